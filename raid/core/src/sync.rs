//! Which rows a resync, check, repair or recovery works on next, how far it is, and how fast it may go.
//!
//! [`SyncCursor`] hands out runs of rows in order and knows which have ended; [`SyncPacer`] says when the next may start. The engine owns one of each per sync
//! and plans every run with [`crate::plan::sync`]. Both are pure: time comes in as `now`, a duration since any fixed origin.
//!
//! Invariants: at most `window` runs are out at once; a row counts as done only when its run was reported done; the checkpoint is the first row that is not
//! known to be done, however the runs end out of order or fail. md has lost data by storing checkpoints that were ahead of failed rows.

use core::time::Duration;

use crate::units::{Bytes, StripeIndex};

#[cfg(test)]
mod tests;

/// The most runs that can be out at once.
pub const WINDOW_MAX: usize = 64;

/// Rows that are worked on together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first row.
    pub start: StripeIndex,
    /// How many rows: at least one.
    pub rows: u64,
}

/// Where a sync is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncCursor {
    /// First row.
    start: u64,
    /// Row after the last.
    end: u64,
    /// Rows of every run but the last.
    run_rows: u64,
    /// Runs that may be out at once.
    window: usize,
    /// Number of the first run that is not done; runs are numbered from 0.
    base: u64,
    /// Bit n: run `base + n` is done. Bit 0 is never set.
    done: u64,
    /// Bit n: run `base + n` is out.
    out: u64,
}

impl SyncCursor {
    /// A sync of the rows from `start` up to, not including, `end`, in runs of `run_rows` rows of which `window` are out at once.
    pub fn new(start: StripeIndex, end: StripeIndex, run_rows: u64, window: usize) -> Self {
        assert!(run_rows > 0, "runs have at least one row");
        assert!((1..=WINDOW_MAX).contains(&window), "a window of {window} runs: 1 to {WINDOW_MAX}");
        let end = end.0.max(start.0);
        Self { start: start.0, end, run_rows, window, base: 0, done: 0, out: 0 }
    }

    /// The next run to work on. `None` while the window is full, and when all runs are out or done.
    pub fn next_run(&mut self) -> Option<Run> {
        if self.outstanding() >= self.window {
            return None;
        }
        let place = (self.done | self.out).trailing_ones();
        // A run far behind the others holds the window back, as its bits are counted from it.
        if place as usize >= WINDOW_MAX {
            return None;
        }
        let run = self.run(self.base + u64::from(place))?;
        self.out |= 1 << place;
        Some(run)
    }

    fn run(&self, number: u64) -> Option<Run> {
        let start = number.checked_mul(self.run_rows)?.checked_add(self.start)?;
        (start < self.end).then(|| Run { start: StripeIndex(start), rows: self.run_rows.min(self.end - start) })
    }

    /// The place in the bit sets of a run that is out.
    fn place(&self, run: Run) -> u32 {
        let number = (run.start.0 - self.start) / self.run_rows;
        let place = number.checked_sub(self.base).filter(|place| *place < WINDOW_MAX as u64);
        let place = place.filter(|place| self.out >> place & 1 == 1 && self.run(number) == Some(run));
        place.unwrap_or_else(|| panic!("run at row {} is not out", run.start)) as u32
    }

    /// Reports that `run` is done on all members it concerns.
    pub fn done(&mut self, run: Run) {
        let place = self.place(run);
        self.out &= !(1 << place);
        self.done |= 1 << place;
        let ahead = self.done.trailing_ones();
        self.base += u64::from(ahead);
        self.done = self.done.checked_shr(ahead).unwrap_or(0);
        self.out = self.out.checked_shr(ahead).unwrap_or(0);
    }

    /// The first row that is not known to be done: what to store, and from where to go on after a restart.
    pub fn checkpoint(&self) -> StripeIndex {
        StripeIndex(self.base.saturating_mul(self.run_rows).saturating_add(self.start).min(self.end))
    }

    /// The row after the last.
    pub fn end(&self) -> StripeIndex {
        StripeIndex(self.end)
    }

    /// Runs that are out.
    pub fn outstanding(&self) -> usize {
        self.out.count_ones() as usize
    }

    /// Whether every row is done.
    pub fn is_finished(&self) -> bool {
        self.checkpoint().0 == self.end
    }
}

/// How fast a sync may go, counted on one member as md does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncLimits {
    /// Per second, at least this much even while the array is busy (`sync_speed_min`).
    pub speed_min: Bytes,
    /// Per second, never more than this (`sync_speed_max`).
    pub speed_max: Bytes,
    /// Share of the time, in percent from 1 to 100, that the sync may take while the array is busy.
    pub share_percent: u8,
}

impl Default for SyncLimits {
    /// md's limits, 1000 and 200000 KiB/s, and a third of the time.
    fn default() -> Self {
        Self { speed_min: Bytes(1000 << 10), speed_max: Bytes(200_000 << 10), share_percent: 33 }
    }
}

/// How far [`SyncLimits::speed_max`] may be made up for after a stall.
const BURST: Duration = Duration::from_millis(100);

/// Says when the next run of a sync may start.
///
/// Where the array is busy, a run that took some time is followed by a pause, so that the sync gets its share of the time and with it of the
/// members' bandwidth, whatever that is: no figure in KiB/s fits both a disk and a 100 Gbit/s link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncPacer {
    limits: SyncLimits,
    /// Until then `speed_max` is used up.
    max_until: Duration,
    /// Until then `speed_min` is met.
    min_until: Duration,
    /// Until then the share is used up.
    share_until: Duration,
}

impl SyncPacer {
    /// A pacer that lets the first run start at once.
    pub fn new(limits: SyncLimits) -> Self {
        let zero = Duration::ZERO;
        Self { limits, max_until: zero, min_until: zero, share_until: zero }
    }

    /// Changes the limits from now on. What was used under the same limits still counts.
    pub fn set_limits(&mut self, limits: SyncLimits) {
        if limits != self.limits {
            *self = Self::new(limits);
        }
    }

    /// When the next run may start: at `now` or before it, at once. `busy` says whether the array has other work.
    pub fn start_at(&self, busy: bool) -> Duration {
        let yielding = if busy { self.share_until.min(self.min_until) } else { Duration::ZERO };
        self.max_until.max(yielding)
    }

    /// Reports that a run of `size` bytes per member starts at `now`.
    pub fn started(&mut self, now: Duration, size: Bytes) {
        self.max_until = self.max_until.max(now.saturating_sub(BURST)) + time_for(size, self.limits.speed_max);
        self.min_until = self.min_until.max(now) + time_for(size, self.limits.speed_min);
    }

    /// Reports at `now` that a run took `service` from start to end.
    pub fn finished(&mut self, now: Duration, service: Duration) {
        let share = u32::from(self.limits.share_percent.clamp(1, 100));
        self.share_until = now + service * (100 - share) / share;
    }
}

/// The time that `size` takes at `speed` per second; an hour at no speed at all.
fn time_for(size: Bytes, speed: Bytes) -> Duration {
    const HOUR: Duration = Duration::from_secs(3600);
    let nanos = u128::from(size.0) * 1_000_000_000 / u128::from(speed.0.max(1));
    u64::try_from(nanos).map_or(HOUR, |nanos| Duration::from_nanos(nanos).min(HOUR))
}
