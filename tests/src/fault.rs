//! Faults that our own link injects, as the `--fault` option of `run` and `shelf` takes them.
//!
//! Towards vblade only what [`Faults::for_vblade`] allows: vblade keeps no memory of requests, so a copy of a write that arrives
//! after a newer write can't be told apart there by anybody.

use std::fmt;

/// Shares are of all frames in each direction, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Share of frames lost.
    pub loss: f64,
    /// Share of frames sent twice.
    pub dup: f64,
    /// How long after its original a copy follows, in milliseconds.
    pub dup_delay_ms: u32,
    /// Share of frames that let later ones pass.
    pub reorder: f64,
    /// Start of the random numbers; the same seed injects the same faults.
    pub seed: u64,
}

impl Faults {
    /// What our shelf must stand, thanks to its duplicate cache.
    pub fn for_our_shelf(seed: u64) -> Self {
        Self { loss: 0.02, dup: 0.01, dup_delay_ms: 20, reorder: 0.01, seed }
    }

    /// The same towards vblade: each copy directly follows its original.
    pub fn for_vblade(seed: u64) -> Self {
        Self { dup_delay_ms: 0, ..Self::for_our_shelf(seed) }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "loss={},dup={},dup_delay_ms={},reorder={},seed={}",
            self.loss, self.dup, self.dup_delay_ms, self.reorder, self.seed
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_as_the_option_takes_it() {
        assert_eq!(Faults::for_our_shelf(7).to_string(), "loss=0.02,dup=0.01,dup_delay_ms=20,reorder=0.01,seed=7");
        assert!(Faults::for_vblade(7).to_string().contains("dup_delay_ms=0,"));
    }
}
