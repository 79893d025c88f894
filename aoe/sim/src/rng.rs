//! The seeded generator behind every random choice (splitmix64). Called by the network for faults and by test workloads.
//!
//! Not for secrets. A generator is a value: clone it and both go the same way.

use crate::faults::{Ppm, Span};
use core::time::Duration;

/// A small deterministic generator of random numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator that yields the same numbers for the same `seed`.
    pub fn new(seed: u64) -> Self {
        Rng { state: seed }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no member");
        // The high half of a 64x64 product: no division, and a bias far below anything a test could see.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True with probability `p`. Draws nothing when `p` is 0, so that an absent fault leaves the stream as it was.
    pub fn chance(&mut self, p: Ppm) -> bool {
        p.0 > 0 && self.below(u64::from(Ppm::ONE.0)) < u64::from(p.0)
    }

    /// A duration within `span`, both ends included.
    pub fn within(&mut self, span: Span) -> Duration {
        let (min, max) = (nanos(span.min), nanos(span.max));
        if max <= min {
            return span.min;
        }
        Duration::from_nanos(min + self.below(max - min + 1))
    }
}

/// `duration` in nanoseconds; virtual time ends after 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
