//! The worker's share of the stripe cache: pages of 4 KiB, taken last-in first-out so that they stay in the CPU's cache.
//!
//! Bound: `stripe_cache_size` × members pages over all workers.

use crate::slab::{Arena, PAGE_SECTORS, Piece};

/// See the module's text.
#[derive(Debug)]
pub(super) struct Pages {
    arena: Arena,
    free: Vec<u32>,
    total: usize,
    /// So many are for runs that rebuild for a reader alone.
    kept: usize,
}

impl Pages {
    /// `total` pages of `arena`, the last `kept` of them for readers.
    pub(super) fn new(arena: Arena, total: usize, kept: usize) -> Pages {
        assert!(arena.piece().sectors() as usize / PAGE_SECTORS as usize >= total, "arena holds the pages");
        Pages { arena, free: (0..total as u32).rev().collect(), total, kept }
    }

    /// The memory, with no page in use.
    pub(super) fn into_arena(self) -> Arena {
        assert_eq!(self.used(), 0, "all pages were given back");
        self.arena
    }

    /// Whether some pages are for readers alone.
    pub(super) fn keeps_some(&self) -> bool {
        self.kept > 0
    }

    /// Whether `count` pages are free for a run of this kind.
    pub(super) fn has(&self, count: usize, reader: bool) -> bool {
        let kept = if reader || count == 0 { 0 } else { self.kept };
        self.free.len() >= count + kept
    }

    /// Takes a page that [`has`](Pages::has) promised.
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().expect("the caller asked `has` first")
    }

    /// Gives a page back.
    pub(super) fn give(&mut self, page: u32) {
        self.free.push(page);
        debug_assert!(self.free.len() <= self.total);
    }

    /// Pages in use.
    pub(super) fn used(&self) -> usize {
        self.total - self.free.len()
    }

    /// The memory of a page.
    pub(super) fn piece(&self, page: u32) -> Piece {
        self.arena.piece().sub(page * PAGE_SECTORS, PAGE_SECTORS)
    }
}
