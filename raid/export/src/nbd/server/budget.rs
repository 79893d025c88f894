//! Memory for payloads over all connections of a server.
//!
//! Shared by the connections' threads, each with a [`Share`]. A connection may always hold [`OWN_BYTES`]; beyond that it borrows from what all have in
//! common, and never more than is still free there: so many greedy clients leave some for one more. A request for which that is too little takes the *turn*: until it
//! has its memory or is given up, nobody else borrows. So every request gets its memory at last, however small those of others are.
//!
//! Bound: [`MAX_PAYLOAD_BYTES`] lent, and [`OWN_BYTES`] for each connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Payload bytes that all connections may borrow together. Many times the largest request.
pub const MAX_PAYLOAD_BYTES: u64 = 256 << 20;
/// Payload bytes that each connection may hold whatever others do: a plug's worth.
pub const OWN_BYTES: u64 = 1 << 20;

/// Nobody's turn.
const NOBODY: u64 = 0;

#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    lent: AtomicU64,
    /// Who waits for memory that only others can give back.
    turn: AtomicU64,
    /// Shares made.
    shares: AtomicU64,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        Arc::new(Self { limit, lent: zero(), turn: AtomicU64::new(NOBODY), shares: zero() })
    }

    /// A connection's share, with nothing taken.
    pub(super) fn share(self: &Arc<Self>) -> Share {
        let id = self.shares.fetch_add(1, Ordering::Relaxed) + 1;
        Share { budget: Arc::clone(self), id, held: 0, borrowed: 0 }
    }
}

/// One connection's part.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    id: u64,
    held: u64,
    /// What of `held` is lent by the budget.
    borrowed: u64,
}

impl Share {
    /// Takes memory, or says that there is none now: then ask again, or [`Share::cancel`].
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let needed = (self.held + bytes).saturating_sub(OWN_BYTES);
        if needed > self.borrowed && !self.borrow_up_to(needed) {
            return false;
        }
        self.held += bytes;
        true
    }

    fn borrow_up_to(&mut self, needed: u64) -> bool {
        let Budget { limit, lent, turn, .. } = &*self.budget;
        let whose = turn.load(Ordering::Acquire);
        if whose != NOBODY && whose != self.id {
            return false;
        }
        let more = needed - self.borrowed;
        let lend = |lent: u64| {
            let free = limit - lent;
            let fair = whose == self.id || needed <= free;
            (more <= free && fair).then_some(lent + more)
        };
        if lent.fetch_update(Ordering::AcqRel, Ordering::Acquire, lend).is_err() {
            // Somebody else may be first: then ours comes after.
            let _ = turn.compare_exchange(NOBODY, self.id, Ordering::AcqRel, Ordering::Acquire);
            return false;
        }
        self.borrowed = needed;
        self.cancel();
        true
    }

    /// Gives memory back.
    pub(super) fn give(&mut self, bytes: u64) {
        assert!(bytes <= self.held, "no more comes back than was taken");
        self.held -= bytes;
        let needed = self.held.saturating_sub(OWN_BYTES);
        if needed < self.borrowed {
            self.budget.lent.fetch_sub(self.borrowed - needed, Ordering::AcqRel);
            self.borrowed = needed;
        }
    }

    /// Nothing is waited for any more.
    pub(super) fn cancel(&self) {
        // Nothing to do when it is not ours.
        let _ = self.budget.turn.compare_exchange(self.id, NOBODY, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Somebody waits for memory that others hold.
    pub(super) fn is_pressed(&self) -> bool {
        self.budget.turn.load(Ordering::Relaxed) != NOBODY
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give(self.held);
        self.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_lone_connection_gets_what_it_may_hold() {
        let budget = Budget::new(MAX_PAYLOAD_BYTES);
        let mut share = budget.share();
        assert!(share.take(32 * MIB) && share.take(32 * MIB));
        assert_eq!(budget.lent.load(Ordering::Relaxed), 63 * MIB);
        share.give(32 * MIB);
        share.give(32 * MIB);
        assert_eq!(budget.lent.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn greedy_ones_leave_some_and_each_has_its_own() {
        let budget = Budget::new(8 * MIB);
        let mut greedy: Vec<Share> = (0..7).map(|_| budget.share()).collect();
        for share in &mut greedy[..3] {
            while share.take(MIB / 4) {}
            share.cancel();
        }
        // Half, a quarter, an eighth: the rest is for who comes now.
        assert_eq!(budget.lent.load(Ordering::Relaxed), 7 * MIB);
        for share in &mut greedy {
            while share.take(MIB / 4) {}
            share.cancel();
        }
        let mut modest = budget.share();
        assert!(modest.take(OWN_BYTES));
        assert!(!greedy[0].is_pressed());
    }

    #[test]
    fn one_that_waits_is_served_before_others() {
        let budget = Budget::new(8 * MIB);
        let (mut large, mut small) = (budget.share(), budget.share());
        assert!(small.take(5 * MIB));
        assert!(!large.take(8 * MIB));
        assert!(small.is_pressed());
        assert!(!small.take(MIB), "the other's turn");
        small.give(2 * MIB);
        assert!(!large.take(8 * MIB));
        small.give(2 * MIB);
        assert!(large.take(8 * MIB));
        assert!(!large.is_pressed());
        assert!(small.take(MIB / 2));
    }

    #[test]
    fn who_goes_away_waits_no_longer_and_gives_all_back() {
        let budget = Budget::new(4 * MIB);
        let (mut first, mut second) = (budget.share(), budget.share());
        assert!(first.take(4 * MIB));
        assert!(!second.take(4 * MIB));
        drop(second);
        assert!(!first.is_pressed());
        let mut third = budget.share();
        assert!(!third.take(4 * MIB));
        third.cancel();
        assert!(!first.is_pressed());
        drop(first);
        assert!(third.take(4 * MIB));
    }

    proptest! {
        /// Never more than the limit is lent, what is lent is what the shares have borrowed, and all of it comes back.
        #[test]
        fn lending_adds_up(steps in proptest::collection::vec((0usize..4, 1u64..3000, 0u8..4), 1..200)) {
            let limit = 9000 << 10;
            let budget = Budget::new(limit);
            let mut shares: Vec<Share> = (0..4).map(|_| budget.share()).collect();
            let mut held: Vec<Vec<u64>> = vec![vec![]; 4];
            for (who, kib, step) in steps {
                match step {
                    0 | 1 if shares[who].take(kib << 10) => held[who].push(kib << 10),
                    2 => held[who].pop().into_iter().for_each(|bytes| shares[who].give(bytes)),
                    3 => shares[who].cancel(),
                    _ => {}
                }
                let beyond = |bytes: &Vec<u64>| bytes.iter().sum::<u64>().saturating_sub(OWN_BYTES);
                let lent = budget.lent.load(Ordering::Relaxed);
                prop_assert_eq!(lent, held.iter().map(beyond).sum::<u64>());
                prop_assert!(lent <= limit);
            }
            drop(shares);
            prop_assert_eq!(budget.lent.load(Ordering::Relaxed), 0);
            prop_assert_eq!(budget.turn.load(Ordering::Relaxed), NOBODY);
        }
    }
}
