//! Which worker is in which group.
//!
//! Read by whoever posts or looks for a helper; written by changes of the groups alone. Readers may see a change half done: a worker that is
//! kicked without need looks at all queues and sleeps again, and whoever makes the change kicks everybody afterwards.

use crate::message::WorkerId;
use crate::sync::{AtomicU64, Ordering};

const WORDS: usize = 4;

/// The group of a worker that is in none.
pub const NO_GROUP: usize = usize::MAX;

/// Some workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerSet([u64; WORDS]);

impl WorkerSet {
    /// Adds one.
    pub fn insert(&mut self, worker: WorkerId) {
        self.0[usize::from(worker.0) / 64] |= 1 << (worker.0 % 64);
    }

    /// These and those.
    #[must_use]
    pub fn with(self, others: WorkerSet) -> WorkerSet {
        WorkerSet(std::array::from_fn(|i| self.0[i] | others.0[i]))
    }

    /// Takes those out that are among `others`.
    #[must_use]
    pub fn take(&mut self, others: WorkerSet) -> WorkerSet {
        let taken = WorkerSet(std::array::from_fn(|i| self.0[i] & others.0[i]));
        self.0 = std::array::from_fn(|i| self.0[i] & !others.0[i]);
        taken
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// All, in order.
    pub fn iter(self) -> impl Iterator<Item = WorkerId> {
        (0..WORDS).flat_map(move |i| {
            let mut bits = self.0[i];
            std::iter::from_fn(move || {
                (bits != 0).then(|| {
                    let bit = bits.trailing_zeros();
                    bits &= bits - 1;
                    WorkerId((i as u32 * 64 + bit) as u8)
                })
            })
        })
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Seats {
    /// By group: its workers.
    groups: Box<[[AtomicU64; WORDS]]>,
}

impl Seats {
    pub(super) fn new(workers: usize, groups: usize) -> Seats {
        assert!(workers <= 64 * WORDS && groups > 0, "a worker's number has eight bits");
        Seats { groups: (0..groups).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect() }
    }

    pub(super) fn members(&self, group: usize) -> WorkerSet {
        WorkerSet(std::array::from_fn(|i| self.groups[group][i].load(Ordering::Relaxed)))
    }

    pub(super) fn set(&self, by_worker: &[Option<usize>]) {
        for (group, words) in self.groups.iter().enumerate() {
            let mut members = WorkerSet::default();
            for (worker, seat) in by_worker.iter().enumerate() {
                if *seat == Some(group) {
                    members.insert(WorkerId(worker as u8));
                }
            }
            for (word, bits) in words.iter().zip(members.0) {
                word.store(bits, Ordering::Relaxed);
            }
        }
    }
}
