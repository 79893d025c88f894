//! Ranges of sectors that writes must keep off: those in flight, and those closed after a write that may still have a
//! copy in the network.
//!
//! A request can be in the network twice, when it was sent again, and a target executes a late copy whenever it
//! arrives, over newer data. So the initiator keeps two sets per device. [`ActiveRanges`] holds the writes that were let
//! through and are not completed: no two overlap. [`ClosedRanges`] holds what is closed until a time: the last moment
//! at which a copy may arrive. Both are sorted arrays of disjoint ranges, allocated at once, so that a look-up is a
//! binary search and an update is a short move.
//!
//! Closed ranges are bounded by [`CLOSED_MAX`]. When there is no room for one more, the whole device is closed for as
//! long as that one needs: safety goes before speed.

use core::time::Duration;

/// Most closed ranges per device.
pub const CLOSED_MAX: usize = 1024;

/// Sectors `start..end` of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Range {
    pub(super) fn new(lba: u64, sectors: u32) -> Range {
        Range { start: lba, end: lba.saturating_add(u64::from(sectors)) }
    }

    pub(super) fn overlaps(self, other: Range) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// The writes that were let through to a device and are not completed.
pub(super) struct ActiveRanges {
    /// Sorted and disjoint.
    ranges: Vec<Range>,
}

impl ActiveRanges {
    /// Room for `capacity` writes.
    pub(super) fn new(capacity: usize) -> ActiveRanges {
        ActiveRanges { ranges: Vec::with_capacity(capacity) }
    }

    /// Index of the first range that ends behind `start`.
    fn first_behind(&self, start: u64) -> usize {
        self.ranges.partition_point(|range| range.end <= start)
    }

    pub(super) fn overlaps(&self, range: Range) -> bool {
        let at = self.first_behind(range.start);
        self.ranges.get(at).is_some_and(|other| other.overlaps(range))
    }

    pub(super) fn insert(&mut self, range: Range) {
        assert!(!self.overlaps(range), "at most one write per sector of a device is in flight");
        let at = self.first_behind(range.start);
        self.ranges.insert(at, range);
    }

    pub(super) fn remove(&mut self, range: Range) {
        let at = self.first_behind(range.start);
        assert_eq!(self.ranges.get(at), Some(&range), "a write that completes was in flight");
        self.ranges.remove(at);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Closed {
    range: Range,
    until: Duration,
}

/// The sectors of a device that are closed to writes, and until when.
pub(super) struct ClosedRanges {
    /// Sorted and disjoint.
    closed: Vec<Closed>,
    /// Until when all sectors are closed, because there was no room for one range.
    all_until: Duration,
}

impl ClosedRanges {
    pub(super) fn new() -> ClosedRanges {
        ClosedRanges { closed: Vec::with_capacity(CLOSED_MAX), all_until: Duration::ZERO }
    }

    /// Closes `range` until `until`. Where it overlaps what is closed, the two become one range with the later time:
    /// that closes too much rather than too little, and it is rare, as nothing is written to closed sectors.
    pub(super) fn close(&mut self, now: Duration, range: Range, until: Duration) {
        if until <= now || range.start >= range.end {
            return;
        }
        if self.closed.len() == CLOSED_MAX {
            self.closed.retain(|closed| closed.until > now);
        }
        let mut merged = Closed { range, until };
        let first = self.first_behind(range.start);
        let mut last = first;
        while let Some(closed) = self.closed.get(last)
            && closed.range.overlaps(range)
        {
            // One that is open again has nothing to add.
            if closed.until > now {
                merged.range.start = merged.range.start.min(closed.range.start);
                merged.range.end = merged.range.end.max(closed.range.end);
                merged.until = merged.until.max(closed.until);
            }
            last += 1;
        }
        if last == first && self.closed.len() == CLOSED_MAX {
            self.all_until = self.all_until.max(until);
            return;
        }
        self.closed.splice(first..last, [merged]);
    }

    /// Until when some sector of `range` is closed, if any is.
    pub(super) fn closed_until(&self, now: Duration, range: Range) -> Option<Duration> {
        let mut until = self.all_until;
        let first = self.first_behind(range.start);
        for closed in &self.closed[first..] {
            if !closed.range.overlaps(range) {
                break;
            }
            until = until.max(closed.until);
        }
        (until > now).then_some(until)
    }

    /// Whether nothing is closed.
    pub(super) fn is_open(&self, now: Duration) -> bool {
        self.all_until <= now && self.closed.iter().all(|closed| closed.until <= now)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.closed.clear();
        self.all_until = Duration::ZERO;
    }

    fn first_behind(&self, start: u64) -> usize {
        self.closed.partition_point(|closed| closed.range.end <= start)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    #[test]
    fn active_ranges_refuse_only_what_overlaps() {
        let mut active = ActiveRanges::new(8);
        active.insert(range(10, 20));
        active.insert(range(20, 30));
        active.insert(range(0, 5));
        for (other, overlaps) in [
            (range(5, 10), false),
            (range(4, 6), true),
            (range(9, 11), true),
            (range(29, 40), true),
            (range(30, 40), false),
            (range(12, 13), true),
            (range(0, 100), true),
        ] {
            assert_eq!(active.overlaps(other), overlaps, "{other:?}");
        }
        active.remove(range(10, 20));
        assert!(!active.overlaps(range(5, 20)));
    }

    #[test]
    #[should_panic(expected = "at most one write")]
    fn overlapping_active_ranges_panic() {
        let mut active = ActiveRanges::new(8);
        active.insert(range(10, 20));
        active.insert(range(19, 21));
    }

    #[test]
    fn closed_ranges_open_by_themselves() {
        let mut closed = ClosedRanges::new();
        closed.close(at(0), range(10, 20), at(1000));
        closed.close(at(0), range(20, 30), at(500));
        assert_eq!(closed.closed_until(at(1), range(0, 10)), None);
        assert_eq!(closed.closed_until(at(1), range(25, 26)), Some(at(500)));
        assert_eq!(closed.closed_until(at(1), range(15, 25)), Some(at(1000)));
        assert_eq!(closed.closed_until(at(500), range(25, 26)), None);
        assert!(!closed.is_open(at(999)));
        assert!(closed.is_open(at(1000)));
        closed.close(at(1000), range(0, 1), at(1000));
        assert!(closed.is_open(at(999)) || closed.closed_until(at(999), range(0, 1)).is_none());
    }

    #[test]
    fn without_room_the_whole_device_is_closed() {
        let mut closed = ClosedRanges::new();
        for index in 0..CLOSED_MAX as u64 {
            closed.close(at(0), range(index * 2, index * 2 + 1), at(1000));
        }
        assert_eq!(closed.closed_until(at(0), range(1 << 40, (1 << 40) + 1)), None);
        closed.close(at(0), range(1 << 20, (1 << 20) + 1), at(1500));
        assert_eq!(closed.closed_until(at(0), range(1 << 40, (1 << 40) + 1)), Some(at(1500)));
        assert_eq!(closed.closed_until(at(1500), range(1 << 40, (1 << 40) + 1)), None);
        // What opened makes room again.
        closed.close(at(1500), range(7, 8), at(2000));
        assert_eq!(closed.closed_until(at(1500), range(7, 8)), Some(at(2000)));
        assert_eq!(closed.closed_until(at(1500), range(9, 10)), None);
        assert_eq!(closed.closed.len(), 1);
        closed.clear();
        assert!(closed.is_open(at(0)));
    }

    proptest! {
        /// Against a time per sector: never open too early, and exact where nothing overlapped.
        #[test]
        fn never_opens_too_early(
            ops in prop::collection::vec((0u64..60, 1u32..9, 0u64..50, 0u64..20), 0..80),
        ) {
            let mut closed = ClosedRanges::new();
            let mut model = [Duration::ZERO; 80];
            let mut now = at(0);
            for (lba, sectors, length, step) in ops {
                now += at(step);
                let until = now + at(length);
                let range = Range::new(lba, sectors);
                let sectors = range.start as usize..range.end as usize;
                let disjoint = closed.closed_until(now, range).is_none();
                closed.close(now, range, until);
                for sector in &mut model[sectors] {
                    *sector = (*sector).max(until);
                }
                for (sector, until) in model.iter().enumerate() {
                    let seen = closed.closed_until(now, Range::new(sector as u64, 1));
                    prop_assert!(seen.unwrap_or(Duration::ZERO) >= *until || *until <= now);
                }
                if disjoint && until > now {
                    prop_assert_eq!(closed.closed_until(now, range), Some(until));
                }
                let sorted = closed.closed.is_sorted_by(|a, b| a.range.end <= b.range.start);
                prop_assert!(sorted);
            }
        }
    }
}
