//! Which worker owns which rows.
//!
//! The array is cut into regions of whole rows. A front end that submits a part [`claim`](Regions::claim)s the part's
//! region: an idle region gets the owner that the front end proposes, a busy one keeps its own. The owner counts what it has
//! finished and [`release`](Regions::release)s the region when nothing is left. So everything that hangs on a
//! region (stripe locks, waiting parts, closed ranges) is touched by one worker, without a lock.
//!
//! One word per region is shared: owner in the top byte (0 is idle), parts submitted since it was idle below. Front
//! ends add one per part; the owner writes it only when it has finished all it knows of.
//!
//! Bound: [`REGIONS_MAX`] words, whatever the array's size; a region is at least [`REGION_SECTORS_MIN`] of array data.

use raid_core::geometry::Geometry;
use raid_core::units::StripeIndex;

use crate::message::WorkerId;
use crate::sync::{AtomicU64, Ordering};

/// A region holds at least this much array data: 16 MiB.
pub const REGION_SECTORS_MIN: u64 = (16 << 20) / 512;

/// The most regions of an array; larger arrays have larger regions.
pub const REGIONS_MAX: u64 = 1 << 16;

const COUNT_BITS: u32 = 56;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Number of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionIndex(pub u32);

/// The table of owners, shared by front ends and workers.
#[derive(Debug)]
pub struct Regions {
    words: Box<[AtomicU64]>,
    stripes_per_region: u64,
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
        Regions { words: (0..count).map(|_| AtomicU64::new(0)).collect(), stripes_per_region }
    }

    /// The region of a row.
    pub fn of(&self, stripe: StripeIndex) -> RegionIndex {
        RegionIndex((stripe.0 / self.stripes_per_region) as u32)
    }

    /// Counts one more part for the region and tells its owner: the present one, or `proposed` if it was idle. The
    /// part must then be sent to that worker.
    pub fn claim(&self, region: RegionIndex, proposed: WorkerId) -> WorkerId {
        let word = &self.words[region.0 as usize];
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let owner = if seen == 0 { u64::from(proposed.0) + 1 } else { seen >> COUNT_BITS };
            let next = (owner << COUNT_BITS) | ((seen & COUNT_MASK) + 1);
            // Acquire pairs with the release in `release`: what the former owner did to the rows is visible to the new one
            // through the part that follows.
            match word.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return WorkerId((owner - 1) as u8),
                Err(now) => seen = now,
            }
        }
    }

    /// The owner has finished `finished` parts since it got the region; if that is all that were submitted the region
    /// becomes idle and the answer is true. Otherwise more are on their way to the owner.
    pub fn release(&self, region: RegionIndex, owner: WorkerId, finished: u64) -> bool {
        let word = &self.words[region.0 as usize];
        let full = ((u64::from(owner.0) + 1) << COUNT_BITS) | finished;
        word.compare_exchange(full, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether no region has an owner.
    pub fn all_idle(&self) -> bool {
        self.words.iter().all(|w| w.load(Ordering::Acquire) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use raid_core::geometry::Layout;
    use raid_core::units::{MemberCount, Sectors};

    fn regions() -> Regions {
        let geometry =
            Geometry::new(MemberCount(5), Sectors(128), Sectors(1 << 20), Layout::LeftSymmetric).expect("valid");
        Regions::new(&geometry)
    }

    #[test]
    fn an_idle_region_goes_to_the_proposed_worker_and_stays_with_it() {
        let r = regions();
        let region = r.of(StripeIndex(70));
        assert_eq!(region, RegionIndex(1));
        assert_eq!(r.claim(region, WorkerId(3)), WorkerId(3));
        assert_eq!(r.claim(region, WorkerId(0)), WorkerId(3));
        assert!(!r.release(region, WorkerId(3), 1), "one part is still on its way");
        assert!(!r.all_idle());
        assert!(r.release(region, WorkerId(3), 2));
        assert!(r.all_idle());
        assert_eq!(r.claim(region, WorkerId(0)), WorkerId(0));
    }

    #[test]
    fn a_region_is_whole_rows_of_at_least_16_mib() {
        let r = regions();
        assert_eq!(r.stripes_per_region, 64);
        assert_eq!(r.of(StripeIndex(63)), RegionIndex(0));
        assert_eq!(r.of(StripeIndex(64)), RegionIndex(1));
    }

    #[test]
    fn huge_arrays_have_a_bounded_table() {
        let geometry =
            Geometry::new(MemberCount(5), Sectors(128), Sectors(128 << 30), Layout::LeftSymmetric).expect("valid");
        let r = Regions::new(&geometry);
        assert!(r.words.len() as u64 <= REGIONS_MAX);
        let last = StripeIndex(geometry.stripes() - 1);
        assert_eq!(r.claim(r.of(last), WorkerId(1)), WorkerId(1));
    }
}
