//! What pollers wait for: how often `array_state`, `degraded` and `sync_action` have changed since the start.
//!
//! The control thread counts, after each of its steps, what is not as it was after the step before; what changes back within a step has not changed. Whoever waits
//! holds up nobody: the lock is held for a few instructions.

use std::sync::{Condvar, Mutex};

use crate::array::{Array, ArrayState};

/// How often each has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// `array_state`.
    pub array_state: u64,
    /// `degraded`.
    pub degraded: u64,
    /// `sync_action`.
    pub sync_action: u64,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Watch {
    counted: Mutex<Counted>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Counted {
    changes: Changes,
    ended: bool,
}

impl Watch {
    /// The counts.
    pub fn changes(&self) -> Changes {
        self.counted.lock().expect("no panic while held").changes
    }

    /// Waits until the counts are others than `seen`; `None` when nothing will change any more, because the array has ended.
    pub fn wait_beyond(&self, seen: Changes) -> Option<Changes> {
        let counted = self.counted.lock().expect("no panic while held");
        let waited = self.changed.wait_while(counted, |counted| counted.changes == seen && !counted.ended);
        let counted = waited.expect("no panic while held");
        (counted.changes != seen).then_some(counted.changes)
    }

    fn count(&self, by: Changes) {
        let mut counted = self.counted.lock().expect("no panic while held");
        let changes = &mut counted.changes;
        changes.array_state += by.array_state;
        changes.degraded += by.degraded;
        changes.sync_action += by.sync_action;
        self.changed.notify_all();
    }

    /// Nothing changes any more.
    pub(super) fn end(&self) {
        self.counted.lock().expect("no panic while held").ended = true;
        self.changed.notify_all();
    }
}

/// What is watched, as it was last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Looks {
    array_state: ArrayState,
    degraded: u32,
    sync_action: &'static str,
}

impl Looks {
    pub(super) fn of(array: &Array) -> Looks {
        Looks { array_state: array.array_state(), degraded: array.degraded(), sync_action: array.sync_action() }
    }

    /// Counts what differs from `self`, and is what came then.
    pub(super) fn follow(&mut self, next: Looks, watch: &Watch) {
        if *self == next {
            return;
        }
        watch.count(Changes {
            array_state: u64::from(self.array_state != next.array_state),
            degraded: u64::from(self.degraded != next.degraded),
            sync_action: u64::from(self.sync_action != next.sync_action),
        });
        *self = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(array_state: ArrayState, degraded: u32, sync_action: &'static str) -> Looks {
        Looks { array_state, degraded, sync_action }
    }

    #[test]
    fn each_is_counted_by_itself() {
        let watch = Watch::default();
        let mut last = looks(ArrayState::Clean, 0, "idle");
        last.follow(looks(ArrayState::Clean, 0, "idle"), &watch);
        assert_eq!(watch.changes(), Changes::default());
        last.follow(looks(ArrayState::Active, 0, "idle"), &watch);
        last.follow(looks(ArrayState::Active, 1, "recover"), &watch);
        last.follow(looks(ArrayState::Clean, 1, "recover"), &watch);
        assert_eq!(watch.changes(), Changes { array_state: 2, degraded: 1, sync_action: 1 });
    }

    #[test]
    fn who_waits_is_woken_by_a_change_and_by_the_end() {
        let watch = &Watch::default();
        let mut last = looks(ArrayState::Clean, 0, "idle");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| watch.wait_beyond(Changes::default()));
            last.follow(looks(ArrayState::Clean, 1, "idle"), watch);
            let seen = waits.join().expect("no panic").expect("a change");
            assert_eq!(seen.degraded, 1);
            let waits = scope.spawn(move || watch.wait_beyond(seen));
            watch.end();
            assert_eq!(waits.join().expect("no panic"), None);
        });
    }
}
