//! The stripe cache between requests: rows of 4 KiB whose blocks are known and were written more than once of late.
//!
//! A run that ends leaves its blocks here when its rows have been written before within memory ([`GHOSTS`] rows back), so that the next write of
//! the same rows needs no reads: journals, metadata and sequential streams of small writes. Rows written once leave nothing, so random
//! writes over a large array pay one comparison and keep the pages that are hot in the CPU's cache.
//!
//! A row's blocks are what its members hold, or would hold were they there. They go when the row is touched in any other way, and all of them when a
//! view changes how members stand. Those of a region that is given up are kept, and count again if nobody else had the region meanwhile. Pages that runs need are taken from here, least recently used
//! first, so the cache never keeps work waiting. Bound: the worker's pages.

use raid_core::units::{MemberIndex, MemberSet, StripeIndex};

use super::pages::Pages;
use super::pool::Pool;
use super::run::Run;
use super::{IndexMap, NONE};
use crate::region::RegionIndex;
use crate::slab::{PAGE_SECTORS, Slab};

/// How many rows back, about, a row counts as written again: the size of a table of hashes, 8 bytes each.
const GHOSTS: usize = 4096;

/// A row that is kept.
#[derive(Debug, Default)]
struct Row {
    key: u64,
    /// When it was kept, by the cache's count.
    kept_at: u64,
    /// Page of each member's block, or `NONE`.
    pages: Vec<u32>,
    /// Neighbours in order of use.
    older: u32,
    newer: u32,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Cache {
    rows: Pool<Row>,
    by_key: IndexMap<u32>,
    oldest: u32,
    newest: u32,
    /// Rows written not long ago, by their hash.
    ghosts: Box<[u64]>,
    rows_per_chunk: u64,
    /// Counts up with each row that is kept.
    count: u64,
    /// By region: rows that were kept before that count are not to be used.
    lost: IndexMap<u64>,
    /// Pages kept.
    pages: usize,
}

impl Cache {
    /// Keeps nothing yet.
    pub(super) fn new(chunk_sectors: u64) -> Cache {
        Cache {
            rows: Pool::default(),
            by_key: IndexMap::default(),
            oldest: NONE,
            newest: NONE,
            ghosts: vec![u64::MAX; GHOSTS].into_boxed_slice(),
            count: 0,
            lost: IndexMap::default(),
            rows_per_chunk: (chunk_sectors / u64::from(PAGE_SECTORS)).max(1),
            pages: 0,
        }
    }

    /// Pages kept.
    #[cfg(test)]
    pub(super) fn pages(&self) -> usize {
        self.pages
    }

    fn key(&self, stripe: StripeIndex, row: u32) -> u64 {
        stripe.0 * self.rows_per_chunk + u64::from(row)
    }

    /// The rows of a run, if it is made of whole ones.
    fn rows_of(run: &Run) -> Option<std::ops::Range<u32>> {
        let whole = run.from.is_multiple_of(PAGE_SECTORS) && run.sectors.is_multiple_of(PAGE_SECTORS);
        whole.then(|| run.from / PAGE_SECTORS..run.end() / PAGE_SECTORS)
    }

    /// Members whose blocks are kept for every row of the run, which is in this region.
    pub(super) fn held(&self, run: &Run, all: MemberSet, region: RegionIndex) -> MemberSet {
        if self.by_key.is_empty() {
            return MemberSet::EMPTY;
        }
        let Some(rows) = Cache::rows_of(run) else { return MemberSet::EMPTY };
        let mut held = all;
        let lost = self.lost.get(&u64::from(region.0)).copied().unwrap_or(0);
        for row in rows {
            let Some(at) = self.by_key.get(&self.key(run.place.stripe, row)) else { return MemberSet::EMPTY };
            let Row { kept_at, pages, .. } = &self.rows[*at];
            if *kept_at < lost {
                return MemberSet::EMPTY;
            }
            held = held.iter().filter(|m| pages[m.index()] != NONE).collect();
        }
        held
    }

    /// Takes the rows that the run touches out: pages of `wanted` members go to the run, which has places for them; all others are free.
    pub(super) fn take(&mut self, run: &mut Run, wanted: MemberSet, pool: &mut Pages) {
        if self.by_key.is_empty() {
            return;
        }
        let first = run.from / PAGE_SECTORS;
        for row in first..run.end().div_ceil(PAGE_SECTORS) {
            let Some(at) = self.by_key.get(&self.key(run.place.stripe, row)).copied() else { continue };
            for member in wanted {
                let page = std::mem::replace(&mut self.rows[at].pages[member.index()], NONE);
                assert!(page != NONE, "the plan counted on this block");
                self.pages -= 1;
                run.put_page(member, row - first, page);
            }
            self.forget(at, pool);
        }
    }

    /// Keeps the blocks of a run that wrote well, for those of its rows that were written before; whether there were any.
    pub(super) fn keep(&mut self, run: &mut Run, pool: &Pages, slab: &Slab) -> bool {
        let Some(rows) = Cache::rows_of(run) else { return false };
        let mut kept = false;
        let first = rows.start;
        for row in rows {
            let key = self.key(run.place.stripe, row);
            let ghost = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % GHOSTS;
            if std::mem::replace(&mut self.ghosts[ghost], key) != key {
                continue;
            }
            let at = self.rows.open();
            let members = run.members();
            let mut entry = std::mem::take(&mut self.rows[at]);
            entry.pages.clear();
            entry.pages.resize(members, NONE);
            for member in (0..members as u8).map(MemberIndex) {
                if let Some(page) = run.take_current(member, row - first, pool, slab) {
                    entry.pages[member.index()] = page;
                    self.pages += 1;
                }
            }
            entry.key = key;
            entry.kept_at = self.count;
            self.count += 1;
            self.rows[at] = entry;
            self.link(at);
            let before = self.by_key.insert(key, at);
            assert!(before.is_none(), "a row is taken out before it is written");
            kept = true;
        }
        kept
    }

    /// Frees the pages of the row used longest ago; false when none is kept.
    pub(super) fn evict(&mut self, pool: &mut Pages) -> bool {
        let at = self.oldest;
        if at != NONE {
            self.forget(at, pool);
        }
        at != NONE
    }

    /// Does not use what it has of a region any more: another owner may have changed it. The pages go as room is made.
    pub(super) fn forget_region(&mut self, region: RegionIndex) {
        if !self.by_key.is_empty() {
            self.lost.insert(u64::from(region.0), self.count);
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self, pool: &mut Pages) {
        while self.evict(pool) {}
        self.lost.clear();
    }

    fn forget(&mut self, at: u32, pool: &mut Pages) {
        self.unlink(at);
        let row = &mut self.rows[at];
        for page in row.pages.drain(..).filter(|page| *page != NONE) {
            pool.give(page);
            self.pages -= 1;
        }
        self.by_key.remove(&row.key);
        self.rows.close(at);
    }

    fn link(&mut self, at: u32) {
        self.rows[at].older = self.newest;
        self.rows[at].newer = NONE;
        match self.newest {
            NONE => self.oldest = at,
            newest => self.rows[newest].newer = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let (older, newer) = (self.rows[at].older, self.rows[at].newer);
        match older {
            NONE => self.oldest = newer,
            older => self.rows[older].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.rows[newer].older = older,
        }
    }
}
