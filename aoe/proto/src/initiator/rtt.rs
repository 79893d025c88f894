//! Round-trip time of a path, and the retransmission timeout that follows from it.
//!
//! RFC 6298 in whole microseconds: gains of 1/8 and 1/4, timeout `srtt + 4 * rttvar`, exponential back-off that lasts
//! until the next sample. The owner follows Karn's rule: it gives no sample for a frame that was sent twice. Keeping
//! the back-off until a clean sample is the rule's other half: a round trip that grew past the timeout would else
//! never be measured, as each frame would be sent twice before its first reply.

use core::time::Duration;

/// Doublings after which back-off stops growing; the ceiling of the timeout binds long before.
const BACKOFF_MAX: u32 = 16;

/// Bounds of the timeout, from the tunables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtoBounds {
    /// Floor: covers what the estimate can't see coming, as a disk's seek.
    pub min: Duration,
    /// Ceiling, back-off included.
    pub max: Duration,
    /// Timeout while there is no sample.
    pub initial: Duration,
}

/// Smoothed round-trip time and its variation.
#[derive(Clone, Copy, Debug, Default)]
pub struct RttEstimator {
    /// Smoothed round trip in microseconds, times 8; meaningless before the first sample.
    srtt_us_8: u64,
    /// Smoothed deviation in microseconds, times 4.
    rttvar_us_4: u64,
    sampled: bool,
    /// Doublings in force.
    backoff: u32,
}

impl RttEstimator {
    /// Takes the round trip of a frame that was sent once, and ends back-off.
    pub fn sample(&mut self, rtt: Duration) {
        let rtt_us = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX / 16);
        let rtt_us = rtt_us.min(u64::MAX / 16);
        self.backoff = 0;
        if !self.sampled {
            self.sampled = true;
            self.srtt_us_8 = rtt_us * 8;
            self.rttvar_us_4 = rtt_us * 2;
            return;
        }
        let deviation = rtt_us.abs_diff(self.srtt_us_8 / 8);
        self.rttvar_us_4 = self.rttvar_us_4 - self.rttvar_us_4 / 4 + deviation;
        self.srtt_us_8 = self.srtt_us_8 - self.srtt_us_8 / 8 + rtt_us;
    }

    /// Doubles the timeout until the next sample.
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// Whether there was a sample.
    pub fn is_sampled(&self) -> bool {
        self.sampled
    }

    /// Smoothed round trip; zero before the first sample.
    pub fn srtt(&self) -> Duration {
        Duration::from_micros(self.srtt_us_8 / 8)
    }

    /// Smoothed deviation; zero before the first sample.
    pub fn rttvar(&self) -> Duration {
        Duration::from_micros(self.rttvar_us_4 / 4)
    }

    /// What few round trips exceed, as far as the estimate can see: a timeout without floor, ceiling and back-off. At least one and a half
    /// round trips.
    pub fn usual(&self) -> Duration {
        Duration::from_micros(self.srtt_us_8 / 8 + self.rttvar_us_4.max(self.srtt_us_8 / 16))
    }

    /// The timeout of a frame that is sent now.
    pub fn rto(&self, bounds: RtoBounds) -> Duration {
        let max = bounds.max.max(bounds.min);
        self.rto_at_first(bounds).saturating_mul(1 << self.backoff).min(max)
    }

    /// The timeout without back-off, for what is sent rarely.
    pub fn rto_at_first(&self, bounds: RtoBounds) -> Duration {
        let base = if self.sampled {
            Duration::from_micros((self.srtt_us_8 / 8).saturating_add(self.rttvar_us_4))
        } else {
            bounds.initial
        };
        base.clamp(bounds.min, bounds.max.max(bounds.min))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: RtoBounds =
        RtoBounds { min: Duration::from_millis(10), max: Duration::from_secs(2), initial: Duration::from_millis(200) };

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn first_sample_sets_both_means() {
        let mut rtt = RttEstimator::default();
        assert!(!rtt.is_sampled());
        assert_eq!(rtt.rto(BOUNDS), BOUNDS.initial);
        rtt.sample(us(20_000));
        assert_eq!(rtt.srtt(), us(20_000));
        assert_eq!(rtt.rttvar(), us(10_000));
        assert_eq!(rtt.rto(BOUNDS), us(60_000));
    }

    #[test]
    fn later_samples_move_by_an_eighth_and_a_quarter() {
        let mut rtt = RttEstimator::default();
        rtt.sample(us(8_000));
        rtt.sample(us(16_000));
        // srtt = 7/8 * 8000 + 1/8 * 16000, rttvar = 3/4 * 4000 + 1/4 * 8000.
        assert_eq!(rtt.srtt(), us(9_000));
        assert_eq!(rtt.rttvar(), us(5_000));
        assert_eq!(rtt.rto(BOUNDS), us(29_000));
    }

    #[test]
    fn floor_ceiling_and_back_off() {
        let mut rtt = RttEstimator::default();
        rtt.sample(us(50));
        assert_eq!(rtt.rto(BOUNDS), BOUNDS.min);
        rtt.back_off();
        assert_eq!(rtt.rto(BOUNDS), us(20_000));
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(BOUNDS), BOUNDS.max);
        rtt.sample(us(60));
        assert_eq!(rtt.rto(BOUNDS), BOUNDS.min);
        rtt.sample(Duration::MAX);
        assert_eq!(rtt.rto(BOUNDS), BOUNDS.max);
    }

    #[test]
    fn settles_on_a_steady_round_trip() {
        let mut rtt = RttEstimator::default();
        rtt.sample(us(90_000));
        for _ in 0..200 {
            rtt.sample(us(20_000));
        }
        let srtt = rtt.srtt().as_micros();
        assert!((19_900..=20_100).contains(&srtt), "{srtt}");
        assert!(rtt.rto(BOUNDS) < us(21_000));
    }
}
