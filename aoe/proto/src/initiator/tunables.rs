//! The initiator's tunables: one table of name, unit, default, range and meaning, and the values themselves.
//!
//! Command lines, the sysfs-like tree and the generated documentation read the table; the initiator reads the fields.
//! Names that the Linux driver has are kept. All take effect at once on the initiator they are given to by
//! [`Initiator::set_tunables`](super::Initiator::set_tunables).

use core::time::Duration;

use super::congestion::Algorithm;
use super::rtt::RtoBounds;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Tunable {
    /// Its name.
    pub name: &'static str,
    /// Unit of the number.
    pub unit: &'static str,
    /// Value unless set.
    pub default: u64,
    /// Smallest value accepted.
    pub min: u64,
    /// Largest value accepted.
    pub max: u64,
    /// One line of meaning.
    pub doc: &'static str,
    get: fn(&Tunables) -> u64,
    set: fn(&mut Tunables, u64),
}

/// Why a value was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TunableError {
    /// No tunable has this name.
    #[error("no such tunable")]
    Unknown,
    /// The value is out of its range.
    #[error("{name} must be {min} to {max} ({unit}), not {value}")]
    Range {
        /// The tunable.
        name: &'static str,
        /// Smallest value accepted.
        min: u64,
        /// Largest value accepted.
        max: u64,
        /// Unit of the numbers.
        unit: &'static str,
        /// What was given.
        value: u64,
    },
}

macro_rules! tunables {
    ($($name:ident: $unit:literal, $default:literal, $min:literal..=$max:literal, $doc:literal;)*) => {
        /// Values of the tunables. Each field's unit, default and range are in [`TUNABLES`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Tunables {
            $(#[doc = concat!($doc, " Unit: ", $unit, "; default ", stringify!($default), ".")] pub $name: u64,)*
        }

        impl Default for Tunables {
            fn default() -> Tunables {
                Tunables { $($name: $default,)* }
            }
        }

        /// The table.
        pub const TUNABLES: &[Tunable] = &[$(Tunable {
            name: stringify!($name),
            unit: $unit,
            default: $default,
            min: $min,
            max: $max,
            doc: $doc,
            get: |tunables| tunables.$name,
            set: |tunables, value| tunables.$name = value,
        },)*];
    };
}

tunables! {
    aoe_deadsecs: "s", 180, 0..=86_400,
        "Time without an answer, from a request's first send, after which the device is given up; 0 = never.";
    aoe_maxout: "frames", 64, 1..=1024,
        "Most frames in flight to a device, even if its buffer count is larger.";
    aoe_maxioc: "frames", 256, 1..=65_536,
        "Most frames that an initiator's thread receives before it turns to other work; rounded up to whole batches of 64.";
    aoe_maxtx: "frames", 256, 1..=65_536,
        "Most frames that an initiator's thread sends before it turns to other work; rounded up to whole batches of 64.";
    aoe_frame_lifetime: "ms", 1000, 0..=60_000,
        "Longest time that a copy of a frame may stay in the network; sectors of a resent write stay closed so long.";
    aoe_silence: "ms", 2000, 100..=600_000,
        "Time without an answer, from a request's first send, after which the device is called silent.";
    aoe_rto_min: "us", 10_000, 100..=2_000_000,
        "Floor of the retransmission timeout.";
    aoe_rto_max: "us", 2_000_000, 1_000..=60_000_000,
        "Ceiling of the retransmission timeout, back-off included; not below aoe_rto_min.";
    aoe_rto_initial: "us", 200_000, 1_000..=60_000_000,
        "Retransmission timeout of a path that has answered nothing yet.";
    aoe_rto_flush: "us", 1_000_000, 10_000..=60_000_000,
        "Floor of the retransmission timeout of FLUSH, which may take as long as the disk needs.";
    aoe_requery: "s", 60, 1..=86_400,
        "Interval of config queries to a device that answers: they bring its buffer count and new paths.";
    aoe_rediscover: "ms", 1000, 10..=600_000,
        "Interval of config queries to a device that is silent or not found, doubled up to aoe_rediscover_max.";
    aoe_rediscover_max: "ms", 8000, 10..=600_000,
        "Ceiling of the doubled aoe_rediscover; not below it.";
    aoe_path_losses: "timeouts", 3, 1..=100,
        "Timeouts in a row, with no reply between, after which a path is down if the device has another.";
    aoe_congestion: "0 sticky, 1 fixed, 2 reno", 0, 0..=2,
        "Congestion control of each path.";
    aoe_overtaken: "0 off, 1 on", 1, 0..=1,
        "Whether a frame counts as lost when later ones are answered and more time has passed than usual; else its timeout alone tells.";
    aoe_window: "frames", 16, 1..=1024,
        "Window of each path when aoe_congestion is 1 (fixed).";
}

impl Tunables {
    /// The value named `name`.
    pub fn value(&self, name: &str) -> Option<u64> {
        let row = TUNABLES.iter().find(|row| row.name == name)?;
        Some((row.get)(self))
    }

    /// Sets the value named `name`; a refused one changes nothing.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), TunableError> {
        let row = TUNABLES.iter().find(|row| row.name == name).ok_or(TunableError::Unknown)?;
        row.check(value)?;
        (row.set)(self, value);
        Ok(())
    }

    /// Whether all values are in their ranges.
    pub fn check(&self) -> Result<(), TunableError> {
        TUNABLES.iter().try_for_each(|row| row.check((row.get)(self)))
    }

    pub(super) fn deadsecs(&self) -> Option<Duration> {
        (self.aoe_deadsecs != 0).then(|| Duration::from_secs(self.aoe_deadsecs))
    }

    pub(super) fn frame_lifetime(&self) -> Duration {
        Duration::from_millis(self.aoe_frame_lifetime)
    }

    pub(super) fn silence(&self) -> Duration {
        Duration::from_millis(self.aoe_silence)
    }

    pub(super) fn requery(&self) -> Duration {
        Duration::from_secs(self.aoe_requery)
    }

    pub(super) fn rediscover(&self) -> Duration {
        Duration::from_millis(self.aoe_rediscover)
    }

    pub(super) fn rediscover_max(&self) -> Duration {
        Duration::from_millis(self.aoe_rediscover_max.max(self.aoe_rediscover))
    }

    pub(super) fn rto_flush(&self) -> Duration {
        Duration::from_micros(self.aoe_rto_flush)
    }

    pub(super) fn rto_bounds(&self) -> RtoBounds {
        RtoBounds {
            min: Duration::from_micros(self.aoe_rto_min),
            max: Duration::from_micros(self.aoe_rto_max.max(self.aoe_rto_min)),
            initial: Duration::from_micros(self.aoe_rto_initial),
        }
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        match self.aoe_congestion {
            0 => Algorithm::Sticky,
            1 => Algorithm::Fixed,
            _ => Algorithm::Reno,
        }
    }

    pub(super) fn finds_overtaken(&self) -> bool {
        self.aoe_overtaken != 0
    }

    pub(super) fn maxout(&self) -> u32 {
        self.aoe_maxout as u32
    }

    pub(super) fn fixed_window(&self) -> u32 {
        self.aoe_window as u32
    }
}

impl Tunable {
    fn check(&self, value: u64) -> Result<(), TunableError> {
        if (self.min..=self.max).contains(&value) {
            return Ok(());
        }
        Err(TunableError::Range { name: self.name, min: self.min, max: self.max, unit: self.unit, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_in_their_ranges_and_equal_the_table() {
        let tunables = Tunables::default();
        assert_eq!(tunables.check(), Ok(()));
        for row in TUNABLES {
            assert_eq!(tunables.value(row.name), Some(row.default), "{}", row.name);
        }
    }

    #[test]
    fn each_row_sets_its_own_value_and_refuses_what_is_out_of_range() {
        for row in TUNABLES {
            let mut tunables = Tunables::default();
            for value in [row.min, row.max] {
                assert_eq!(tunables.set(row.name, value), Ok(()));
                assert_eq!(tunables.value(row.name), Some(value));
            }
            let before = tunables;
            let refused = tunables.set(row.name, row.max + 1);
            assert!(matches!(refused, Err(TunableError::Range { .. })), "{}", row.name);
            assert_eq!(tunables, before, "a refused value changes nothing");
            for other in TUNABLES.iter().filter(|other| other.name != row.name) {
                assert_eq!(tunables.value(other.name), Some(other.default));
            }
        }
        assert_eq!(Tunables::default().set("aoe_none", 1), Err(TunableError::Unknown));
        assert_eq!(Tunables::default().value("aoe_none"), None);
    }

    #[test]
    fn refusal_names_the_range() {
        let refused = Tunables::default().set("aoe_maxout", 0).expect_err("0 is out of range");
        assert_eq!(refused.to_string(), "aoe_maxout must be 1 to 1024 (frames), not 0");
    }

    #[test]
    fn zero_deadsecs_means_never_and_ceilings_are_not_below_floors() {
        let tunables = Tunables {
            aoe_deadsecs: 0,
            aoe_rto_min: 2_000_000,
            aoe_rto_max: 1_000,
            aoe_rediscover: 9_000,
            ..Tunables::default()
        };
        assert_eq!(tunables.deadsecs(), None);
        assert_eq!(tunables.rto_bounds().max, Duration::from_secs(2));
        assert_eq!(tunables.rediscover_max(), Duration::from_secs(9));
    }
}
