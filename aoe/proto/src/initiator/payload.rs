//! How much the frames of a path carry: proven in both directions, by reads that are padded to the size that they ask for.
//!
//! Port and target allow a number of sectors, the ceiling, but a switch between them may carry less, and drops what is longer
//! without a word. So a new path begins with what every Ethernet carries ([`SAFE`]), and a probe of the ceiling leaves at once. Where
//! that is not answered, the largest size that passes is searched for by halving, and again from time to time.
//!
//! When frames get lost the present size is in *doubt*: it and the safe one are probed in turn until either is answered. If it is the
//! safe one, large frames vanish: the path falls back. If none is, the path is dead, which says nothing about sizes.
//!
//! Called by the initiator, which sends one probe of a path at a time and reports its end. Holds no queue.

use core::time::Duration;

/// Sectors per frame that are taken for granted: any MTU that Ethernet has carries them.
pub(super) const SAFE: u8 = 2;
/// Copies of a probe without an answer after which its size counts as too large; one is enough once all failed.
const PROBE_COPIES: u32 = 3;
/// Pause after a search that ended below the ceiling; doubles up to [`SEARCH_AGAIN_MAX`].
const SEARCH_AGAIN: Duration = Duration::from_secs(1);
const SEARCH_AGAIN_MAX: Duration = Duration::from_secs(32);
/// Pause after neither size was answered; doubles up to [`DOUBT_AGAIN_MAX`], so that a path that works again is soon found to.
const DOUBT_AGAIN: Duration = Duration::from_millis(50);
const DOUBT_AGAIN_MAX: Duration = Duration::from_millis(800);

/// Whether the present size is in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    No,
    /// It is probed.
    Present,
    /// It was not answered; the safe one is probed.
    Safe,
}

/// What a probe's end means for the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing: the size is as it was, or larger.
    Fine,
    /// Large frames vanish: the size is smaller now.
    Fell,
    /// The path was in doubt, and still is.
    NoAnswer,
}

/// See the module's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathPayload {
    /// Sectors that port and target allow; 0 while the port can't carry any.
    ceiling: u8,
    /// Sectors that frames may have.
    sectors: u8,
    /// The smallest size that did not pass in the present search.
    too_large: Option<u8>,
    doubt: Doubt,
    /// When the next probe is due.
    due: Option<Duration>,
    search_again: Duration,
    doubt_again: Duration,
}

impl PathPayload {
    /// Nothing, until the ceiling is known.
    pub(super) fn new() -> PathPayload {
        PathPayload {
            ceiling: 0,
            sectors: 0,
            too_large: None,
            doubt: Doubt::No,
            due: None,
            search_again: SEARCH_AGAIN,
            doubt_again: DOUBT_AGAIN,
        }
    }

    /// Sectors that frames may have; 0 while the port can't carry any.
    pub(super) fn sectors(&self) -> u8 {
        self.sectors
    }

    /// Sectors that port and target allow.
    pub(super) fn ceiling(&self) -> u8 {
        self.ceiling
    }

    /// When a probe is due, if one is.
    pub(super) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Port or target allow so many sectors now. What was proven holds as far as they allow it.
    pub(super) fn set_ceiling(&mut self, now: Duration, ceiling: u8) {
        if ceiling == self.ceiling {
            return;
        }
        self.ceiling = ceiling;
        self.sectors = self.sectors.max(SAFE).min(ceiling);
        self.search(now);
    }

    /// Looks for a larger size from now on, if there may be one.
    pub(super) fn search(&mut self, now: Duration) {
        self.search_again = SEARCH_AGAIN;
        self.too_large = None;
        if self.doubt == Doubt::No {
            self.due = (self.sectors < self.ceiling).then_some(now);
        }
    }

    /// Frames get lost, or the path is not used until a probe is answered.
    pub(super) fn doubt(&mut self, now: Duration) {
        if self.doubt == Doubt::No && self.sectors > 0 {
            self.doubt = Doubt::Present;
            self.doubt_again = DOUBT_AGAIN;
            self.due = Some(now);
        }
    }

    /// The size to probe next, in sectors.
    pub(super) fn wanted(&self) -> u8 {
        match (self.doubt, self.too_large) {
            (Doubt::Present, _) => self.sectors,
            (Doubt::Safe, _) => self.safe(),
            (Doubt::No, None) => self.ceiling,
            (Doubt::No, Some(too_large)) => self.sectors + (too_large - self.sectors) / 2,
        }
    }

    /// Copies of a probe after which it has failed.
    pub(super) fn copies(&self) -> u32 {
        if self.doubt != Doubt::No && self.doubt_again > DOUBT_AGAIN { 1 } else { PROBE_COPIES }
    }

    /// No probe could be sent: not before then.
    pub(super) fn postpone(&mut self, until: Duration) {
        self.due = self.due.map(|due| due.max(until));
    }

    /// A probe of this size was answered.
    pub(super) fn passed(&mut self, now: Duration, size: u8) -> Verdict {
        let size = size.min(self.ceiling);
        let fell = self.doubt == Doubt::Safe && size < self.sectors;
        self.doubt = Doubt::No;
        if fell {
            self.too_large = Some(self.sectors);
            self.search_again = SEARCH_AGAIN;
            self.sectors = size;
        }
        self.sectors = self.sectors.max(size);
        self.go_on(now);
        if fell { Verdict::Fell } else { Verdict::Fine }
    }

    /// No copy of a probe of this size was answered.
    pub(super) fn failed(&mut self, now: Duration, size: u8) -> Verdict {
        match self.doubt {
            Doubt::No => {
                self.too_large = (size > self.sectors).then_some(size);
                self.go_on(now);
                return Verdict::Fine;
            }
            Doubt::Present if self.sectors > self.safe() => {
                self.doubt = Doubt::Safe;
                self.due = Some(now);
            }
            Doubt::Present | Doubt::Safe => {
                self.doubt = Doubt::Present;
                self.due = Some(now + self.doubt_again);
                self.doubt_again = (self.doubt_again * 2).min(DOUBT_AGAIN_MAX);
            }
        }
        Verdict::NoAnswer
    }

    fn safe(&self) -> u8 {
        SAFE.min(self.ceiling)
    }

    /// The search's next step, or its end.
    fn go_on(&mut self, now: Duration) {
        if self.sectors >= self.ceiling {
            (self.due, self.too_large, self.search_again) = (None, None, SEARCH_AGAIN);
        } else if self.too_large.is_some_and(|too_large| too_large <= self.sectors + 1) {
            self.due = Some(now + self.search_again);
            self.search_again = (self.search_again * 2).min(SEARCH_AGAIN_MAX);
            self.too_large = None;
        } else {
            self.due = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const T: Duration = Duration::from_secs(100);

    fn with_ceiling(ceiling: u8) -> PathPayload {
        let mut payload = PathPayload::new();
        payload.set_ceiling(T, ceiling);
        payload
    }

    /// Probes until none is due at once, over a network that passes so many sectors; the sizes probed.
    fn settle(payload: &mut PathPayload, now: Duration, passes: u8) -> Vec<u8> {
        let mut probed = Vec::new();
        while payload.due().is_some_and(|due| due <= now) {
            let size = payload.wanted();
            probed.push(size);
            assert!(probed.len() < 20, "no end: {probed:?}");
            match size <= passes {
                true => payload.passed(now, size),
                false => payload.failed(now, size),
            };
        }
        probed
    }

    #[test]
    fn a_clean_path_takes_one_probe() {
        let mut payload = with_ceiling(17);
        assert_eq!((payload.sectors(), payload.wanted()), (SAFE, 17));
        assert_eq!(settle(&mut payload, T, 17), [17]);
        assert_eq!((payload.sectors(), payload.due()), (17, None));
        assert_eq!(settle(&mut with_ceiling(2), T, 2), [0; 0], "nothing larger to look for");
        assert_eq!(with_ceiling(1).sectors(), 1);
        assert_eq!((with_ceiling(0).sectors(), with_ceiling(0).due()), (0, None));
    }

    #[test]
    fn a_narrow_path_is_measured_and_measured_again_later() {
        let mut payload = with_ceiling(17);
        assert_eq!(settle(&mut payload, T, 7), [17, 9, 5, 7, 8]);
        assert_eq!(payload.sectors(), 7);
        let mut now = T;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let due = payload.due().expect("it looks again");
            pauses.push((due - now).as_secs());
            now = due;
            settle(&mut payload, now, 7);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32]);
        now = payload.due().expect("it looks again");
        assert_eq!(settle(&mut payload, now, 17), [17]);
        assert_eq!(payload.sectors(), 17);
    }

    #[test]
    fn a_doubt_falls_back_only_if_small_frames_pass() {
        let mut payload = with_ceiling(17);
        settle(&mut payload, T, 17);
        payload.doubt(T);
        assert_eq!(payload.wanted(), 17);
        assert_eq!(payload.passed(T, 17), Verdict::Fine);
        assert_eq!((payload.sectors(), payload.due()), (17, None));
        payload.doubt(T);
        // Nothing is answered: with pauses, the sizes in turn.
        assert_eq!(settle(&mut payload, T, 0), [17, 2]);
        assert_eq!((payload.sectors(), payload.due()), (17, Some(T + DOUBT_AGAIN)));
        payload.doubt(T);
        assert_eq!(payload.due(), Some(T + DOUBT_AGAIN), "it is in doubt already");
        let now = T + DOUBT_AGAIN;
        assert_eq!(payload.failed(now, 17), Verdict::NoAnswer);
        assert_eq!(payload.passed(now, 2), Verdict::Fell);
        assert_eq!(payload.sectors(), 2);
        assert_eq!(settle(&mut payload, now, 7), [9, 5, 7, 8], "the search goes on below what failed");
        assert_eq!(payload.sectors(), 7);
    }

    #[test]
    fn a_changed_mtu_is_searched_anew_at_once() {
        let mut payload = with_ceiling(17);
        settle(&mut payload, T, 7);
        payload.set_ceiling(T, 4);
        assert_eq!((payload.sectors(), payload.due()), (4, None));
        payload.set_ceiling(T, 17);
        assert_eq!((payload.sectors(), payload.due()), (4, Some(T)));
        payload.set_ceiling(T, 0);
        assert_eq!((payload.sectors(), payload.due()), (0, None));
        payload.doubt(T);
        assert_eq!(payload.due(), None, "nothing can be probed");
        payload.set_ceiling(T, 17);
        assert_eq!((payload.sectors(), payload.due()), (SAFE, Some(T)));
        payload.postpone(T + SEARCH_AGAIN);
        assert_eq!(payload.due(), Some(T + SEARCH_AGAIN));
    }

    proptest! {
        /// Whatever the network passes, the search finds it, and after any change it finds that.
        #[test]
        fn the_largest_size_is_found(ceiling in 1u8.., passes in prop::collection::vec(2u8.., 1..5)) {
            let mut payload = with_ceiling(ceiling);
            let mut now = T;
            for passes in passes {
                payload.doubt(now);
                settle(&mut payload, now, passes);
                if let Some(due) = payload.due() {
                    now = due;
                    settle(&mut payload, now, passes);
                }
                prop_assert_eq!(payload.sectors(), passes.min(ceiling));
            }
        }
    }
}
