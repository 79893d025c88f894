//! The one planner: which blocks of a row to read, rebuild, compute and write for a request.
//!
//! Pure: [`plan`] maps an [`Ask`] to a [`Plan`], with no state. The engine calls it for every run, for reads and writes alike, with
//! nothing else deciding about rmw or rcw: in md two planners that disagreed hung arrays and lost data. [`sync`] does the same
//! for resync, check, repair and recovery.
//!
//! A *row* here is any piece of a chunk row that is alike over its length: the same blocks are touched, held, readable and so on.
//! A *block* is one member's part of it. Sets name blocks by the member that holds them.
//!
//! What a plan means, in this order:
//! 1. read the blocks in [`Plan::read`] (none is held, each is readable);
//! 2. if [`Plan::rebuild`] names a block, its present content is the XOR of all other blocks of the row, all of which are now in memory;
//! 3. hand wanted blocks to readers (present content), lay the new bytes over partial blocks;
//! 4. compute new parity: [`ParityWork::Rmw`] is old parity ^ old ^ new of every touched block; [`ParityWork::Rcw`] is the XOR of
//!    all data blocks, new content where touched;
//! 5. write the blocks in [`Plan::write`]. A touched block of an absent member is not among them: its effect is in the parity.
//!
//! Rules:
//! - rmw needs parity that is known to be right; otherwise new parity would carry the fault on. Where `parity_trusted` is false only rcw is used.
//! - A block that cannot be read and is needed is rebuilt from all the others, from untrusted parity too: there is nothing better, and
//!   md does the same. Such a block may be wrong in rows that were being written at a crash (the write hole). Assembly refuses an array that
//!   is dirty and degraded for this reason, so it happens after `--force`, or when a member is lost during a resync.
//! - The method with fewer reads wins; on a tie `rmw_level` decides as in md. Where nothing has to be read rcw is used, on level 2 too.
//! - Writes are refused when they could not land whole: more absent members than parity covers. Reads of readable blocks go on.

use crate::units::{MemberIndex, MemberSet};

mod sync;
#[cfg(test)]
mod tests;

pub use sync::{SyncAsk, SyncKind, SyncPlan, sync};

/// md's `rmw_level`: when read-modify-write may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RmwLevel {
    /// 0: never.
    Never,
    /// 1, the default: when it reads fewer blocks than reconstruct-write.
    #[default]
    Fewer,
    /// 2: also when it reads as many.
    Tie,
}

impl RmwLevel {
    /// The level with md's number.
    pub const fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Never),
            1 => Some(Self::Fewer),
            2 => Some(Self::Tie),
            _ => None,
        }
    }

    /// md's number.
    pub const fn number(self) -> u64 {
        match self {
            Self::Never => 0,
            Self::Fewer => 1,
            Self::Tie => 2,
        }
    }
}

/// What is asked of a row, and how its members stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The members that hold the row's data blocks.
    pub data: MemberSet,
    /// The member that holds the row's parity; not in `data`.
    pub parity: MemberIndex,
    /// Members in sync here and answering.
    pub readable: MemberSet,
    /// Members that take writes: those readable, and those being recovered, whose content here is not valid yet.
    pub writable: MemberSet,
    /// Blocks whose whole present content (what the member has, or would have) is in memory and right.
    pub held: MemberSet,
    /// Data blocks given whole.
    pub overwrite: MemberSet,
    /// Data blocks given in part; disjoint from `overwrite`.
    pub partial: MemberSet,
    /// Blocks whose present content, before this write, a reader wants.
    pub want: MemberSet,
    /// Whether the row's parity is known to match its data: not beyond the resync mark, no bitmap bit that needs a resync.
    pub parity_trusted: bool,
    /// When rmw may be used.
    pub rmw_level: RmwLevel,
}

impl Ask {
    /// Every block of the row.
    pub const fn all(&self) -> MemberSet {
        self.data.with(self.parity)
    }

    /// The data blocks that the request changes.
    pub const fn touched(&self) -> MemberSet {
        self.overwrite.union(self.partial)
    }

    fn fetch(&self, need: MemberSet) -> Result<Fetch, Refusal> {
        Fetch::of(self.all(), self.readable, self.held, need)
    }

    /// Panics on sets that contradict each other: a plan made from them could damage data.
    fn assert_consistent(&self) {
        let all = self.all();
        assert!(!self.data.contains(self.parity), "the parity member is among the data members");
        assert!(self.data.contains_all(self.touched()), "a write to a block that is no data block of the row");
        assert!(!self.overwrite.intersects(self.partial), "a block is given both whole and in part");
        assert!(all.contains_all(self.want), "a block is wanted that the row does not have");
        assert!(self.writable.contains_all(self.readable.intersection(all)), "a readable member is not writable");
    }
}

/// How new parity comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParityWork {
    /// No new parity: a read, or the parity member is absent.
    None,
    /// Old parity ^ old ^ new of every touched block.
    Rmw,
    /// XOR of all data blocks, with new content where touched.
    Rcw,
}

/// What kind of plan it is, for counters and traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// A read of readable or held blocks.
    Read,
    /// A write of all data blocks whole: nothing is read for it.
    Full,
    /// Read-modify-write.
    Rmw,
    /// Reconstruct-write.
    Rcw,
    /// A read or write that rebuilds an absent block.
    Reconstruct,
    /// A write to a row whose parity member is absent: data only.
    NoParity,
}

/// What to do for an [`Ask`]; see the module's text for the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Blocks to read first. None is held.
    pub read: MemberSet,
    /// Block to compute as the XOR of all others of the row, after the reads and before new data is laid over.
    pub rebuild: Option<MemberIndex>,
    /// How new parity comes about.
    pub parity: ParityWork,
    /// Blocks to write, parity included.
    pub write: MemberSet,
    /// What kind of plan it is.
    pub method: Method,
}

/// Why nothing can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// More members absent than parity covers.
    #[error("members {absent} are absent: more than parity covers")]
    TooManyAbsent {
        /// The members whose blocks can be neither read nor written as needed.
        absent: MemberSet,
    },
}

/// Blocks that must be in memory, and how they get there.
#[derive(Clone, Copy)]
struct Fetch {
    read: MemberSet,
    rebuild: Option<MemberIndex>,
}

impl Fetch {
    /// The blocks to read and the block to rebuild so that `need` is in memory.
    fn of(all: MemberSet, readable: MemberSet, held: MemberSet, need: MemberSet) -> Result<Self, Refusal> {
        let missing = need.minus(held);
        let absent = missing.minus(readable);
        let Some(member) = absent.first() else {
            return Ok(Self { read: missing, rebuild: None });
        };
        let others = all.without(member).minus(held);
        let unreadable = others.minus(readable);
        if !unreadable.is_empty() {
            return Err(Refusal::TooManyAbsent { absent: unreadable.with(member) });
        }
        Ok(Self { read: others, rebuild: Some(member) })
    }
}

/// Plans one row. Refuses only what cannot be done; panics when the ask contradicts itself.
pub fn plan(ask: &Ask) -> Result<Plan, Refusal> {
    ask.assert_consistent();
    if ask.touched().is_empty() { plan_read(ask) } else { plan_write(ask) }
}

fn plan_read(ask: &Ask) -> Result<Plan, Refusal> {
    let Fetch { read, rebuild } = ask.fetch(ask.want)?;
    let method = if rebuild.is_some() { Method::Reconstruct } else { Method::Read };
    Ok(Plan { read, rebuild, parity: ParityWork::None, write: MemberSet::EMPTY, method })
}

fn plan_write(ask: &Ask) -> Result<Plan, Refusal> {
    let absent = ask.all().minus(ask.writable);
    if absent.len() > 1 {
        return Err(Refusal::TooManyAbsent { absent });
    }
    let write = ask.touched().with(ask.parity).intersection(ask.writable);
    // Needed whatever the method: what readers want, and what new bytes are laid over.
    let base = ask.want.union(ask.partial);
    if !ask.writable.contains(ask.parity) {
        let Fetch { read, rebuild } = ask.fetch(base)?;
        let method = if rebuild.is_some() { Method::Reconstruct } else { Method::NoParity };
        return Ok(Plan { read, rebuild, parity: ParityWork::None, write, method });
    }
    let rmw = rmw_fetch(ask, base);
    let rcw = ask.fetch(base.union(ask.data.minus(ask.overwrite)));
    let (parity, Fetch { read, rebuild }) = match (rmw, rcw) {
        (Some(rmw), Ok(rcw)) if prefer_rmw(ask, base, rmw, rcw) => (ParityWork::Rmw, rmw),
        (_, Ok(rcw)) => (ParityWork::Rcw, rcw),
        (Some(rmw), Err(_)) => (ParityWork::Rmw, rmw),
        (None, Err(refusal)) => return Err(refusal),
    };
    let method = match parity {
        _ if rebuild.is_some() => Method::Reconstruct,
        ParityWork::Rmw => Method::Rmw,
        ParityWork::Rcw | ParityWork::None if ask.overwrite == ask.data => Method::Full,
        ParityWork::Rcw | ParityWork::None => Method::Rcw,
    };
    Ok(Plan { read, rebuild, parity, write, method })
}

/// What rmw has to fetch, or `None` where it is forbidden or impossible.
fn rmw_fetch(ask: &Ask, base: MemberSet) -> Option<Fetch> {
    if ask.rmw_level == RmwLevel::Never || !ask.parity_trusted {
        return None;
    }
    let old = ask.touched().with(ask.parity);
    // A touched block of an absent member has no old content to read. Rebuilding it takes every other block, and with those
    // in memory rcw needs nothing more.
    if !ask.readable.union(ask.held).contains_all(old) {
        return None;
    }
    ask.fetch(base.union(old)).ok()
}

fn prefer_rmw(ask: &Ask, base: MemberSet, rmw: Fetch, rcw: Fetch) -> bool {
    // A block rebuilt for rcw alone costs md twice the members, more than any rmw. A block that is rebuilt for a reader anyway is free.
    let rebuilt_for_rcw_alone = rcw.rebuild.is_some_and(|member| !base.contains(member));
    if rebuilt_for_rcw_alone {
        return true;
    }
    let (rmw, rcw) = (rmw.read.len(), rcw.read.len());
    rmw < rcw || (rmw == rcw && rcw > 0 && ask.rmw_level == RmwLevel::Tie)
}
