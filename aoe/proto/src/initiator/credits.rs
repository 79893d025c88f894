//! Credits: the one thing that initiators of a process share, per device.
//!
//! A target holds a number of messages (its buffer count) and drops what comes beyond it, whichever worker sent it. So
//! each frame in flight holds one of the device's credits. There is no lock: two counters, a map of the workers that
//! wait, and a count of what was granted to each of them.
//!
//! A worker that finds no credit registers with [`Credits::wait`]. Freed credits go to registered workers first, in
//! turn, one each; only when nobody waits can anybody take one. The credit is handed over by the worker that freed it,
//! which is told whom to wake. So nobody starves, and no credit is lost:
//!
//! - whoever frees credits and whoever registers both look for a pair (free credit, waiting worker) afterwards, in
//!   sequentially consistent order, so that one of them sees it;
//! - a worker that no longer needs a credit calls [`Credits::withdraw`], which gives back what was granted to it.
//!
//! Invariant: `taken` counts the credits in use and those granted. It passes the limit only when the limit was
//! lowered, and nothing is handed out until it is below again.

use super::WorkerId;
use super::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Words of the map of waiting workers: one bit per possible worker.
const WAITING_WORDS: usize = 4;

/// Frames that may be in flight to one device, over all workers. See the module's text.
#[derive(Debug)]
pub struct Credits {
    limit: AtomicU32,
    taken: AtomicU32,
    /// Number of bits set in `waiting`, or a little more while one is being set: what the fast path looks at.
    waiters: AtomicU32,
    waiting: [AtomicU64; WAITING_WORDS],
    /// The worker that was granted a credit last: the search goes on behind it.
    last: AtomicU8,
    granted: Box<[AtomicU32]>,
}

impl Default for Credits {
    fn default() -> Credits {
        Credits::new()
    }
}

impl Credits {
    /// One credit, until the target's buffer count is known.
    pub fn new() -> Credits {
        Credits {
            limit: AtomicU32::new(1),
            taken: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            waiting: [const { AtomicU64::new(0) }; WAITING_WORDS],
            last: AtomicU8::new(u8::MAX),
            granted: (0..=u8::MAX).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// How many credits there are.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::SeqCst)
    }

    /// Credits in use or granted. Exact only while nobody else is at work.
    pub fn taken(&self) -> u32 {
        self.taken.load(Ordering::SeqCst)
    }

    /// Sets the number of credits, at least 1. The caller then calls [`Credits::hand_over`] until it returns `None`.
    pub fn set_limit(&self, limit: u32) {
        self.limit.store(limit.max(1), Ordering::SeqCst);
    }

    /// Takes one credit: one that was granted to `worker`, or a free one if nobody waits.
    #[must_use]
    pub fn try_take(&self, worker: WorkerId) -> bool {
        if self.take_granted(worker) {
            return true;
        }
        self.waiters.load(Ordering::SeqCst) == 0 && self.take_free()
    }

    /// Registers `worker` for the next free credit. Returns a worker that was granted one on the way, perhaps this
    /// very one: it must be woken.
    #[must_use]
    pub fn wait(&self, worker: WorkerId) -> Option<WorkerId> {
        let (word, bit) = position(worker);
        // Counted before the bit is visible, so that the count never goes below the bits.
        self.waiters.fetch_add(1, Ordering::SeqCst);
        if self.waiting[word].fetch_or(bit, Ordering::SeqCst) & bit != 0 {
            self.waiters.fetch_sub(1, Ordering::SeqCst);
        }
        self.hand_over()
    }

    /// Undoes [`Credits::wait`]: `worker` needs no credit now. Returns a worker to be woken.
    #[must_use]
    pub fn withdraw(&self, worker: WorkerId) -> Option<WorkerId> {
        self.clear_waiting(worker);
        // Where a grant came in between, its credit goes on to the next.
        while self.take_granted(worker) {
            self.taken.fetch_sub(1, Ordering::SeqCst);
        }
        self.hand_over()
    }

    /// Whether a credit was granted to `worker` and not yet taken.
    pub fn is_granted(&self, worker: WorkerId) -> bool {
        self.granted[usize::from(worker.0)].load(Ordering::SeqCst) != 0
    }

    /// Gives one credit back. Returns the worker that it was handed to, which must be woken.
    #[must_use]
    pub fn give_back(&self) -> Option<WorkerId> {
        let before = self.taken.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a credit is given back once");
        self.hand_over()
    }

    /// Hands one free credit, if there is one, to the next waiting worker, if there is one, and returns that worker.
    #[must_use]
    pub fn hand_over(&self) -> Option<WorkerId> {
        // Each further turn means that another worker registered or withdrew meanwhile.
        while self.waiters.load(Ordering::SeqCst) != 0 && self.take_free() {
            if let Some(worker) = self.pop_waiting() {
                self.granted[usize::from(worker.0)].fetch_add(1, Ordering::SeqCst);
                return Some(worker);
            }
            self.taken.fetch_sub(1, Ordering::SeqCst);
        }
        None
    }

    fn take_granted(&self, worker: WorkerId) -> bool {
        let granted = &self.granted[usize::from(worker.0)];
        // Only the worker itself takes from its own count, so what is seen can't go away.
        if granted.load(Ordering::SeqCst) == 0 {
            return false;
        }
        granted.fetch_sub(1, Ordering::SeqCst);
        true
    }

    fn take_free(&self) -> bool {
        let limit = self.limit.load(Ordering::SeqCst);
        let more = |taken| (taken < limit).then_some(taken + 1);
        self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    fn clear_waiting(&self, worker: WorkerId) -> bool {
        let (word, bit) = position(worker);
        let was = self.waiting[word].fetch_and(!bit, Ordering::SeqCst) & bit != 0;
        if was {
            self.waiters.fetch_sub(1, Ordering::SeqCst);
        }
        was
    }

    /// Takes the next waiting worker behind the last one off the map.
    fn pop_waiting(&self) -> Option<WorkerId> {
        let start = self.last.load(Ordering::Relaxed).wrapping_add(1);
        for step in 0..=WAITING_WORDS {
            let word = (usize::from(start) / 64 + step) % WAITING_WORDS;
            let mut bits = self.waiting[word].load(Ordering::SeqCst);
            if step == 0 {
                bits &= u64::MAX << (start % 64);
            }
            while bits != 0 {
                let worker = WorkerId((word * 64) as u8 + bits.trailing_zeros() as u8);
                if self.clear_waiting(worker) {
                    self.last.store(worker.0, Ordering::Relaxed);
                    return Some(worker);
                }
                bits &= bits - 1;
            }
        }
        None
    }
}

fn position(worker: WorkerId) -> (usize, u64) {
    (usize::from(worker.0) / 64, 1 << (worker.0 % 64))
}

#[cfg(test)]
mod tests;
