//! Which worker owns which rows, and what waits for it.
//!
//! The array is cut into regions of whole rows. Everything that hangs on a region (stripe locks, waiting parts, closed ranges, cached rows)
//! is touched by one worker, its owner, without a lock. Each region has one word, and letters ([`crate::letters`]) in front of it:
//!
//! ```text
//!            post                take                        post
//!   idle ────────────▶ queued ────────────▶ owned, no letters ──────▶ owned, listed
//!     ▲                ▲ ▲ ▲─ post            │  │      ▲               │ ▲─ post │
//!     └─────────────── │ │ ──── release ──────┘  │      └─ open_letters ┘         │
//!                 post │ └─────────────────── requeue ────────────────────────────┘
//!             parked ──┘ ◀────── park ───────────┘
//! ```
//!
//! - *idle*: nothing is there. Whoever posts the first letter makes it queued, and puts it into a group's queue.
//! - *queued*: letters wait, and any worker may take the region with all of them.
//! - *owned*: a worker has it. Whoever posts the first letter *lists* it at the owner. The owner opens the letters, or, when it has nothing left
//!   of the region, gives it back to a queue with them, for whoever takes it.
//! - *parked*: as idle, but who owned it last still knows rows of it, which are right if nobody has taken it since: the word says who that was until
//!   somebody does.
//!
//! So a part goes from the thread that posts it straight to the worker that carries it out, however often its region changes hands meanwhile.
//!
//! Invariants: a region is in one queue if it is queued, in its owner's list if it is listed, and nowhere else; only its owner releases,
//! requeues and opens. Bound: [`REGIONS_MAX`] words, whatever the array's size; a region is at least [`REGION_SECTORS_MIN`] of array data.

use raid_core::geometry::Geometry;
use raid_core::units::StripeIndex;

use crate::letters::{Letter, Letters};
use crate::message::{Part, PartOp, WorkerId};
use crate::sync::{AtomicU64, Ordering};

/// A region holds at least this much array data: 16 MiB.
pub const REGION_SECTORS_MIN: u64 = (16 << 20) / 512;

/// The most regions of an array; larger arrays have larger regions.
pub const REGIONS_MAX: u64 = 1 << 14;

/// Bits of a word: the newest letter's number plus one, the owner, and the state.
const HEAD: u64 = (1 << 40) - 1;
const OWNER_SHIFT: u32 = 40;
const OWNED: u64 = 1 << 48;
const QUEUED: u64 = 1 << 49;
const LISTED: u64 = 1 << 50;
const PARKED: u64 = 1 << 51;

/// Number of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionIndex(pub u32);

/// A word with a cache line of its own: neighbours have different owners.
#[derive(Debug)]
#[repr(align(64))]
struct Word(AtomicU64);

/// What whoever posted must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// Put the region into a queue.
    Queue,
    /// Put the region into this owner's list.
    List(WorkerId),
    /// Nothing: it is in a queue or a list already.
    Nothing,
}

/// The table of regions, shared by front ends and workers.
#[derive(Debug)]
pub struct Regions {
    words: Box<[Word]>,
    stripes_per_region: u64,
}

fn parked_by(worker: WorkerId) -> u64 {
    PARKED | u64::from(worker.0) << OWNER_SHIFT
}

fn owned_by(worker: WorkerId) -> u64 {
    OWNED | u64::from(worker.0) << OWNER_SHIFT
}

fn head_of(word: u64) -> Option<Letter> {
    (word & HEAD).checked_sub(1).map(|n| Letter(n as u32))
}

impl Regions {
    /// A table for an array of this geometry, all idle.
    pub fn new(geometry: &Geometry) -> Regions {
        let stripe = geometry.stripe_sectors().0;
        let stripes = geometry.stripes();
        let by_size = REGION_SECTORS_MIN.div_ceil(stripe);
        let by_count = stripes.div_ceil(REGIONS_MAX);
        let stripes_per_region = by_size.max(by_count).max(1);
        let count = stripes.div_ceil(stripes_per_region).max(1);
        // One more, without rows: flushes wait there.
        Regions { words: (0..=count).map(|_| Word(AtomicU64::new(0))).collect(), stripes_per_region }
    }

    /// The region of a row.
    pub fn of(&self, stripe: StripeIndex) -> RegionIndex {
        RegionIndex((stripe.0 / self.stripes_per_region) as u32)
    }

    /// The region whose owner carries the part out. Flushes, which have no rows, have a region to themselves: those of several clients meet there.
    pub fn of_part(&self, part: &Part) -> RegionIndex {
        if part.op == PartOp::Flush { RegionIndex(self.words.len() as u32 - 1) } else { self.of(part.stripe) }
    }

    /// How many there are, that of the flushes among them.
    pub fn count(&self) -> usize {
        self.words.len()
    }

    fn word(&self, region: RegionIndex) -> &AtomicU64 {
        &self.words[region.0 as usize].0
    }

    /// Puts the letters from `first` to `last`, which are linked, newest first, in front of what waits. `contended` counts how often
    /// another thread was faster.
    pub fn post(
        &self,
        region: RegionIndex,
        letters: &Letters,
        first: Letter,
        last: Letter,
        contended: &mut u64,
    ) -> Posted {
        let word = self.word(region);
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            letters.link(last, head_of(seen));
            let state = match seen & !HEAD {
                state if state & OWNED != 0 => state | LISTED,
                state => state | QUEUED,
            };
            // Release: who takes the letters sees what is in them. A former owner's release comes before it in the word's order, and whoever
            // takes the region next acquires both.
            match word.compare_exchange_weak(
                seen,
                state | (u64::from(first.0) + 1),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) if seen & (QUEUED | OWNED) == 0 => return Posted::Queue,
                Ok(_) if seen & (OWNED | LISTED) == OWNED => {
                    return Posted::List(WorkerId((seen >> OWNER_SHIFT) as u8));
                }
                Ok(_) => return Posted::Nothing,
                Err(now) => {
                    *contended += u64::from(now != seen);
                    seen = now;
                }
            }
        }
    }

    /// A worker that got the region from a queue becomes its owner; the answer is its newest letter, and whether it was the last to own it
    /// and had parked it.
    pub fn take(&self, region: RegionIndex, worker: WorkerId) -> (Option<Letter>, bool) {
        let seen = self.word(region).swap(owned_by(worker), Ordering::AcqRel);
        assert!(seen & (QUEUED | OWNED | LISTED) == QUEUED, "a region is in a queue once");
        (head_of(seen), seen & !HEAD == QUEUED | parked_by(worker))
    }

    /// The owner, whose list the region has just left, takes its letters; the answer is the newest.
    pub fn open_letters(&self, region: RegionIndex, owner: WorkerId) -> Option<Letter> {
        let seen = self.word(region).swap(owned_by(owner), Ordering::AcqRel);
        assert!(seen & !HEAD == owned_by(owner) | LISTED, "a region is in its owner's list once");
        head_of(seen)
    }

    /// The owner has nothing left of the region: it becomes idle, and the answer is true, unless letters are there or on their way.
    pub fn release(&self, region: RegionIndex, owner: WorkerId) -> bool {
        self.leave(region, owner, 0)
    }

    /// As [`release`](Regions::release), by an owner that still knows rows of it.
    pub fn park(&self, region: RegionIndex, owner: WorkerId) -> bool {
        self.leave(region, owner, parked_by(owner))
    }

    fn leave(&self, region: RegionIndex, owner: WorkerId, state: u64) -> bool {
        // Release: the next owner sees what was done to the rows.
        self.word(region).compare_exchange(owned_by(owner), state, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The owner, whose list the region has just left, has nothing left of it and leaves it with its letters to whoever takes it. The
    /// caller puts it into a queue.
    pub fn requeue(&self, region: RegionIndex, owner: WorkerId) {
        let word = self.word(region);
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            assert!(seen & !HEAD == owned_by(owner) | LISTED, "a region is in its owner's list once");
            match word.compare_exchange_weak(seen, QUEUED | seen & HEAD, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Whether no region has an owner or letters.
    #[cfg(any(test, feature = "model"))]
    pub fn all_idle(&self) -> bool {
        self.words.iter().all(|w| w.0.load(Ordering::Acquire) & (OWNED | QUEUED | HEAD) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ClientId;
    use crate::plug;
    use raid_core::geometry::Layout;
    use raid_core::units::{MemberCount, Sectors};

    fn regions(sectors: u64) -> Regions {
        let geometry =
            Geometry::new(MemberCount(5), Sectors(128), Sectors(sectors), Layout::LeftSymmetric).expect("valid");
        Regions::new(&geometry)
    }

    #[test]
    fn a_region_goes_from_queue_to_owner_and_back() {
        let (r, letters) = (regions(1 << 20), Letters::new(2));
        let region = r.of(StripeIndex(70));
        assert_eq!(region, RegionIndex(1));
        let part = |request| plug::flush(ClientId(1), request);
        let post = |slot| {
            let letter = letters.write(ClientId(1), slot, &part(slot));
            r.post(region, &letters, letter, letter, &mut 0)
        };
        let read = |newest: Option<Letter>| {
            let mut parts = Vec::new();
            letters.read(newest, &mut parts);
            parts.iter().map(|part| part.request).collect::<Vec<_>>()
        };
        assert_eq!((post(0), post(1)), (Posted::Queue, Posted::Nothing));
        assert_eq!(read(r.take(region, WorkerId(3)).0), [0, 1], "oldest first");
        assert_eq!((post(2), post(3)), (Posted::List(WorkerId(3)), Posted::Nothing));
        assert!(!r.release(region, WorkerId(3)), "letters are there");
        assert_eq!(read(r.open_letters(region, WorkerId(3))), [2, 3]);
        assert_eq!(post(4), Posted::List(WorkerId(3)));
        r.requeue(region, WorkerId(3));
        assert_eq!(post(5), Posted::Nothing);
        assert_eq!(read(r.take(region, WorkerId(0)).0), [4, 5]);
        assert!(!r.all_idle());
        assert!(r.release(region, WorkerId(0)));
        assert!(r.all_idle());
    }

    #[test]
    fn who_parks_a_region_hears_whether_it_was_the_last_owner() {
        let (r, letters) = (regions(1 << 20), Letters::new(2));
        let region = RegionIndex(1);
        let mut slot = 0;
        let mut taken_by = |worker| {
            let letter = letters.write(ClientId(1), slot, &plug::flush(ClientId(1), slot));
            slot += 1;
            assert_eq!(r.post(region, &letters, letter, letter, &mut 0), Posted::Queue);
            r.take(region, worker).1
        };
        let (a, b) = (WorkerId(3), WorkerId(0));
        assert!(!taken_by(a));
        assert!(r.park(region, a) && r.all_idle());
        assert!(taken_by(a), "nobody else had it");
        assert!(r.park(region, a));
        assert!(!taken_by(b));
        assert!(r.park(region, b));
        assert!(!taken_by(a), "the other had it since");
        assert!(r.release(region, a));
        assert!(!taken_by(a), "it was not parked");
    }

    #[test]
    fn a_region_is_whole_rows_of_at_least_16_mib() {
        let r = regions(1 << 20);
        assert_eq!(r.stripes_per_region, 64);
        assert_eq!(r.of(StripeIndex(63)), RegionIndex(0));
        assert_eq!(r.of(StripeIndex(64)), RegionIndex(1));
        let flush = r.of_part(&plug::flush(ClientId(1), 0));
        assert_eq!(flush.0 as usize, r.count() - 1);
        assert!(r.of(StripeIndex((1 << 20) / 128 - 1)).0 < flush.0, "no row is there");
    }

    #[test]
    fn huge_arrays_have_a_bounded_table() {
        let geometry =
            Geometry::new(MemberCount(5), Sectors(128), Sectors(128 << 30), Layout::LeftSymmetric).expect("valid");
        let r = Regions::new(&geometry);
        assert!(r.count() as u64 <= REGIONS_MAX + 1);
        let last = r.of(StripeIndex(geometry.stripes() - 1));
        assert!((last.0 as usize) < r.count() - 1);
    }
}
