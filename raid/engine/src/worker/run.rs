//! A run: alike rows of one chunk row that are planned, computed and sent together.
//!
//! A run covers sectors `from .. from + sectors` of the chunk on every member, so "a row" here may be as small as one sector:
//! partial 4 KiB blocks need no special case. It locks that range of its stripe from forming to finish. Its blocks are kept in pages
//! of the worker's stripe cache; new data stays in the caller's memory.
//!
//! Invariant: all pages that a run will need are taken before its first request leaves, so a started run always ends.

use raid_core::plan::{Method, ParityWork, Plan, SyncPlan};
use raid_core::units::{MemberIndex, MemberSet, StripeIndex};

use super::pages::Pages;
use crate::message::{MemberHandle, SyncKind};
use crate::slab::{PAGE_SECTORS, Piece, Slab};

/// What a run is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// New data for some members' blocks.
    #[default]
    Write,
    /// Reads of a block that cannot be read itself.
    Rebuild,
    /// The array's sync.
    Sync(SyncKind),
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for a view (suspended, not marked dirty, silent member) or for pages; nothing is outstanding.
    #[default]
    Held,
    /// Old content is being read.
    Reading,
    /// New content is being written.
    Writing,
}

/// What the planner said, for data or sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planned {
    /// A read or write.
    Data(Plan),
    /// A sync.
    Sync(SyncPlan),
}

impl Planned {
    /// Blocks to be read.
    pub(super) fn read(&self) -> MemberSet {
        match self {
            Planned::Data(plan) => plan.read,
            Planned::Sync(plan) => plan.read,
        }
    }
}

/// Some of the caller's memory: `piece` holds the run's sectors from `off` on, of this member's block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seg {
    pub(super) member: MemberIndex,
    pub(super) off: u32,
    pub(super) piece: Piece,
}

/// Where a run is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    pub(super) stripe: StripeIndex,
    /// The stripe's entry in the worker's pool.
    pub(super) entry: u32,
    /// The member that holds the row's parity.
    pub(super) parity: MemberIndex,
}

const NO_BLOCK: u32 = u32::MAX;

/// A place whose page is, or has gone, into the cache.
const NO_PAGE: u32 = u32::MAX;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) place: Place,
    pub(super) from: u32,
    pub(super) sectors: u32,
    pub(super) kind: Kind,
    pub(super) phase: Phase,
    pub(super) planned: Option<Planned>,
    /// Blocks that the plan writes, a bad block that is mended among them.
    pub(super) write: MemberSet,
    /// Blocks that the cache had when the plan was made.
    pub(super) cached: MemberSet,
    /// The view that the plan was made under.
    pub(super) generation: u32,
    /// Members whose blocks are given (write) or wanted (rebuild).
    pub(super) given: MemberSet,
    /// The caller's memory, covering each given block whole; by the time that parity is computed, sorted by member and offset.
    pub(super) segs: Vec<Seg>,
    /// Parts that end with the run.
    pub(super) parts: Vec<u32>,
    /// Member requests out.
    pub(super) outstanding: u32,
    /// Blocks that gave a medium error: rebuilt and written again.
    pub(super) bad: MemberSet,
    /// Members not to be read in this run, because a read failed in another way.
    pub(super) avoid: MemberSet,
    /// Members that have not got what was sent to them.
    pub(super) missed: MemberSet,
    /// Devices whose write failed; the run waits for a view in which they are absent.
    pub(super) failed: Vec<MemberHandle>,
    /// Devices that turned out to be restarted, and the start of them that the view went on: the run waits until it goes on another.
    pub(super) doubted: Vec<(MemberHandle, Option<u32>)>,
    /// Members whose write must be sent again once the view allows it.
    pub(super) resend: MemberSet,
    /// The reads did not all succeed: plan again.
    pub(super) replan: bool,
    /// Sectors whose parity did not match (sync).
    pub(super) mismatches: u32,
    /// First page of each member's block in `pages`, by member.
    block_at: Vec<u32>,
    pages: Vec<u32>,
}

impl Run {
    /// Makes the slot a fresh run; vectors keep their room.
    pub(super) fn reset(&mut self, place: Place, from: u32, sectors: u32, kind: Kind, members: usize) {
        assert!(sectors > 0, "a run covers something");
        debug_assert!(self.pages.is_empty(), "the last user gave its pages back");
        self.place = place;
        self.from = from;
        self.sectors = sectors;
        self.kind = kind;
        self.phase = Phase::Held;
        self.planned = None;
        self.given = MemberSet::EMPTY;
        self.segs.clear();
        self.parts.clear();
        self.outstanding = 0;
        self.bad = MemberSet::EMPTY;
        self.avoid = MemberSet::EMPTY;
        self.write = MemberSet::EMPTY;
        self.cached = MemberSet::EMPTY;
        self.missed = MemberSet::EMPTY;
        self.failed.clear();
        self.doubted.clear();
        self.resend = MemberSet::EMPTY;
        self.replan = false;
        self.mismatches = 0;
        self.block_at.clear();
        self.block_at.resize(members, NO_BLOCK);
    }

    /// End of the range, in sectors of the chunk.
    pub(super) fn end(&self) -> u32 {
        self.from + self.sectors
    }

    /// Whether the range shares a sector with `from .. end`.
    pub(super) fn overlaps(&self, from: u32, end: u32) -> bool {
        self.from < end && from < self.end()
    }

    /// Whether the run has no use but to write.
    pub(super) fn is_write(&self) -> bool {
        match self.kind {
            Kind::Write => true,
            Kind::Rebuild => false,
            Kind::Sync(kind) => kind != SyncKind::Check,
        }
    }

    /// Whether its blocks are now what the members hold, and worth keeping: it was written with blocks that had to be in memory.
    pub(super) fn leaves_blocks(&self) -> bool {
        let Some(Planned::Data(plan)) = self.planned else { return false };
        let undisturbed =
            self.bad.is_empty() && self.avoid.is_empty() && self.missed.is_empty() && self.failed.is_empty();
        undisturbed
            && self.kind == Kind::Write
            && self.phase == Phase::Writing
            && plan.parity != ParityWork::None
            && plan.method != Method::Full
    }

    /// Where to split it: half way, at a 4 KiB border of the chunk if there is one within.
    pub(super) fn middle(&self) -> u32 {
        let half = self.sectors / 2;
        if self.sectors <= PAGE_SECTORS {
            return half;
        }
        let border = (self.from + half) / PAGE_SECTORS * PAGE_SECTORS;
        if border > self.from { border - self.from } else { border + PAGE_SECTORS - self.from }
    }

    /// Whether it may write rows that superblocks call clean, so that it needs the dirty mark first. A resync is for rows that they
    /// call dirty, a recovery for those of a member that they do not trust, and mending changes nothing.
    pub(super) fn needs_mark(&self) -> bool {
        matches!(self.kind, Kind::Write | Kind::Sync(SyncKind::Repair))
    }

    /// Moves the sectors from `at` on to `second`, a run of the same kind. Their parts are the caller's affair.
    pub(super) fn split_off(&mut self, at: u32, second: &mut Run) {
        assert!(
            0 < at && at < self.sectors && self.pages.is_empty() && self.outstanding == 0,
            "only a run that has not started is split, into two that cover something"
        );
        let (from, rest) = (self.from + at, self.sectors - at);
        second.reset(self.place, from, rest, self.kind, self.block_at.len());
        second.given = self.given;
        self.sectors = at;
        let segs = std::mem::take(&mut self.segs);
        for seg in segs {
            let length = seg.piece.sectors();
            let before = at.saturating_sub(seg.off).min(length);
            if before > 0 {
                let piece = seg.piece.sub(0, before);
                self.segs.push(Seg { piece, ..seg });
            }
            if before < length {
                let off = (seg.off + before) - at;
                let piece = seg.piece.sub(before, length - before);
                second.segs.push(Seg { off, piece, ..seg });
            }
        }
        self.bad = MemberSet::EMPTY;
        self.avoid = MemberSet::EMPTY;
    }

    fn pages_per_block(&self) -> u32 {
        self.sectors.div_ceil(PAGE_SECTORS)
    }

    /// How many pages the blocks of so many members take.
    pub(super) fn pages_for(&self, members: MemberSet) -> usize {
        self.pages_per_block() as usize * members.len()
    }

    /// Makes places for these members' blocks, whose pages come from the cache.
    pub(super) fn make_places(&mut self, members: MemberSet) {
        debug_assert!(self.pages.is_empty());
        for member in members {
            self.block_at[member.index()] = self.pages.len() as u32;
            self.pages.resize(self.pages.len() + self.pages_per_block() as usize, NO_PAGE);
        }
    }

    /// Takes pages for these members' blocks, which the pool has.
    pub(super) fn take_pages(&mut self, members: MemberSet, pool: &mut Pages) {
        for member in members {
            self.block_at[member.index()] = self.pages.len() as u32;
            for _ in 0..self.pages_per_block() {
                self.pages.push(pool.take());
            }
        }
    }

    /// Puts a page from the cache in its place.
    pub(super) fn put_page(&mut self, member: MemberIndex, row: u32, page: u32) {
        let place = &mut self.pages[(self.block_at[member.index()] + row) as usize];
        assert!(*place == NO_PAGE, "a place that was made for it");
        *place = page;
    }

    /// How many members the row has.
    pub(super) fn members(&self) -> usize {
        self.block_at.len()
    }

    /// Takes a member's page of a row out of the run, once it holds what the member does: new content where the block was given. `None` when the run has
    /// no page for it.
    pub(super) fn take_current(&mut self, member: MemberIndex, row: u32, pool: &Pages, slab: &Slab) -> Option<u32> {
        let first = self.block_at[member.index()];
        if first == NO_BLOCK {
            return None;
        }
        if self.given.contains(member) {
            let mut off = row * PAGE_SECTORS;
            while off < (row + 1) * PAGE_SECTORS {
                let to = self.in_block(member, off, pool);
                let from = self.in_given(member, off);
                let sectors = from.sectors().min(to.sectors());
                slab.copy(from.sub(0, sectors), to.sub(0, sectors));
                off += sectors;
            }
        }
        let page = std::mem::replace(&mut self.pages[(first + row) as usize], NO_PAGE);
        (page != NO_PAGE).then_some(page)
    }

    /// Gives all pages back.
    pub(super) fn give_pages(&mut self, pool: &mut Pages) {
        for page in self.pages.drain(..).filter(|page| *page != NO_PAGE) {
            pool.give(page);
        }
        self.block_at.fill(NO_BLOCK);
    }

    /// The pieces of a member's block in the cache, in order.
    pub(super) fn block<'a>(&'a self, member: MemberIndex, pool: &'a Pages) -> impl Iterator<Item = Piece> + 'a {
        (0..self.sectors).step_by(PAGE_SECTORS as usize).map(move |off| self.in_block(member, off, pool))
    }

    /// The cache page (or its last part) that holds the block's sectors from `off` to the page's end.
    fn in_block(&self, member: MemberIndex, off: u32, pool: &Pages) -> Piece {
        let first = self.block_at[member.index()];
        assert!(first != NO_BLOCK, "the plan gave this member a block");
        let page = pool.piece(self.pages[(first + off / PAGE_SECTORS) as usize]);
        let within = off % PAGE_SECTORS;
        page.sub(within, (PAGE_SECTORS - within).min(self.sectors - off))
    }

    /// The caller's memory for a member's block, in order.
    pub(super) fn given_pieces(&self, member: MemberIndex) -> impl Iterator<Item = Piece> + '_ {
        self.segs.iter().filter(move |s| s.member == member).map(|s| s.piece)
    }

    /// The caller's memory that holds sector `off` of the member's block, to the end of its segment.
    fn in_given(&self, member: MemberIndex, off: u32) -> Piece {
        let after = self.segs.partition_point(|s| (s.member, s.off) <= (member, off));
        let seg = &self.segs[after - 1];
        assert!(seg.member == member && off < seg.off + seg.piece.sectors(), "a given block is covered whole");
        let within = off - seg.off;
        seg.piece.sub(within, seg.piece.sectors() - within)
    }

    /// What is computed once the reads are in: the rebuilt block, then parity; a rebuild for a reader lands in its memory.
    /// For sync, answers whether the planned write is to be sent.
    pub(super) fn compute(&mut self, all: MemberSet, pool: &Pages, slab: &Slab, sources: &mut Sources) -> bool {
        let data = all.without(self.place.parity);
        self.segs.sort_unstable_by_key(|s| (s.member, s.off));
        match self.planned.expect("computed after planning") {
            Planned::Data(plan) => {
                if let Some(member) = plan.rebuild {
                    self.rebuild(member, all, pool, slab, sources);
                }
                if self.kind == Kind::Rebuild {
                    self.hand_over(pool, slab);
                }
                match plan.parity {
                    ParityWork::None => {}
                    ParityWork::Rmw => self.parity_rmw(pool, slab, sources),
                    ParityWork::Rcw => self.parity_rcw(data, pool, slab, sources),
                }
                true
            }
            Planned::Sync(plan) => {
                if let Some(member) = plan.rebuild {
                    self.rebuild(member, all, pool, slab, sources);
                    return true;
                }
                plan.compare && !self.parity_matches(data, pool, slab, sources)
            }
        }
    }

    /// Copies the wanted blocks to the readers' memory.
    fn hand_over(&self, pool: &Pages, slab: &Slab) {
        for seg in &self.segs {
            let mut off = 0;
            while off < seg.piece.sectors() {
                let from = self.in_block(seg.member, seg.off + off, pool);
                let sectors = from.sectors().min(seg.piece.sectors() - off);
                slab.copy(from.sub(0, sectors), seg.piece.sub(off, sectors));
                off += sectors;
            }
        }
    }

    /// The member's block becomes the XOR of all other blocks' present content.
    fn rebuild(&self, member: MemberIndex, all: MemberSet, pool: &Pages, slab: &Slab, sources: &mut Sources) {
        for off in (0..self.sectors).step_by(PAGE_SECTORS as usize) {
            sources.clear();
            for other in all.without(member) {
                sources.push(self.in_block(other, off, pool));
            }
            slab.xor_into(self.in_block(member, off, pool), sources.all());
        }
    }

    /// Parity ^= old ^ new of each given block.
    fn parity_rmw(&self, pool: &Pages, slab: &Slab, sources: &mut Sources) {
        let mut off = 0;
        while off < self.sectors {
            let mut to = self.in_block(self.place.parity, off, pool);
            sources.clear();
            for member in self.given {
                sources.push(self.in_block(member, off, pool));
                sources.push(self.in_given(member, off));
            }
            let sectors = sources.trim(to.sectors());
            to = to.sub(0, sectors);
            slab.xor_acc(to, sources.all());
            off += sectors;
        }
    }

    /// Parity becomes the XOR of all data blocks, with new content where given.
    fn parity_rcw(&self, data: MemberSet, pool: &Pages, slab: &Slab, sources: &mut Sources) {
        let mut off = 0;
        while off < self.sectors {
            let to = self.in_block(self.place.parity, off, pool);
            sources.clear();
            for member in data {
                if self.given.contains(member) {
                    sources.push(self.in_given(member, off));
                } else {
                    sources.push(self.in_block(member, off, pool));
                }
            }
            let sectors = sources.trim(to.sectors());
            slab.xor_into(to.sub(0, sectors), sources.all());
            off += sectors;
        }
    }

    /// Compares parity with the XOR of all data page by page, puts the right parity in its place, and counts what differed.
    fn parity_matches(&mut self, data: MemberSet, pool: &Pages, slab: &Slab, sources: &mut Sources) -> bool {
        let mut mismatches = 0;
        for off in (0..self.sectors).step_by(PAGE_SECTORS as usize) {
            let is = self.in_block(self.place.parity, off, pool);
            // The first data block's page is no longer needed once its row is summed: it takes the sum.
            sources.clear();
            for member in data {
                sources.push(self.in_block(member, off, pool));
            }
            let (sum, others) = sources.all().split_first().expect("an array has data members");
            slab.xor_acc(*sum, others);
            if !slab.equal(*sum, is) {
                mismatches += is.sectors();
                slab.copy(*sum, is);
            }
        }
        self.mismatches = mismatches;
        mismatches == 0
    }
}

/// Sources of one XOR; kept by the worker for its room.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pieces: Vec<Piece>,
    shortest: u32,
}

impl Sources {
    fn clear(&mut self) {
        self.pieces.clear();
        self.shortest = u32::MAX;
    }

    fn push(&mut self, piece: Piece) {
        self.pieces.push(piece);
        self.shortest = self.shortest.min(piece.sectors());
    }

    /// Cuts all to the shortest, at most `limit`, and tells that length.
    fn trim(&mut self, limit: u32) -> u32 {
        let sectors = self.shortest.min(limit);
        for piece in &mut self.pieces {
            *piece = piece.sub(0, sectors);
        }
        sectors
    }

    fn all(&self) -> &[Piece] {
        &self.pieces
    }
}
