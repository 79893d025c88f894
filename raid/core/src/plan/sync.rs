//! What resync, check, repair and recovery read and write in a row.
//!
//! Called by the engine for each run that [`crate::sync::SyncCursor`] hands out. Pure, no state.

use super::{Fetch, Refusal};
use crate::units::{MemberIndex, MemberSet};

/// The work, in md's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncKind {
    /// Makes parity match data after a crash: writes it where it does not.
    Resync,
    /// Counts rows whose parity does not match; writes nothing.
    Check,
    /// Counts such rows and writes their parity anew. Data is never changed.
    Repair,
    /// Rebuilds this member's block.
    Recovery(MemberIndex),
}

/// What is asked of a row by a sync, and how its members stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncAsk {
    /// The members that hold the row's data blocks.
    pub data: MemberSet,
    /// The member that holds the row's parity; not in `data`.
    pub parity: MemberIndex,
    /// Members in sync here and answering.
    pub readable: MemberSet,
    /// Members that take writes: those readable, and those being recovered.
    pub writable: MemberSet,
    /// Blocks whose whole present content is in memory and right. A check that is to see the members themselves passes none.
    pub held: MemberSet,
    /// The work.
    pub kind: SyncKind,
}

/// What to do: read, then compare or rebuild, then write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncPlan {
    /// Blocks to read first.
    pub read: MemberSet,
    /// Whether to compare the parity in memory with the XOR of all data, and to count a mismatch.
    pub compare: bool,
    /// Block to compute as the XOR of all others, after the reads.
    pub rebuild: Option<MemberIndex>,
    /// Block to write. With `compare`, only where a mismatch was found, and the XOR of all data goes there.
    pub write: Option<MemberIndex>,
}

impl SyncPlan {
    /// Nothing to do for this row.
    pub const SKIP: Self = Self { read: MemberSet::EMPTY, compare: false, rebuild: None, write: None };
}

/// Plans one row of a sync.
///
/// Resync, check and repair skip a row with an absent block: its parity is what defines that block, so there is nothing to compare with.
/// Recovery skips a member that is in sync here already, or that takes no writes; it is refused when another block that it needs
/// is absent.
pub fn sync(ask: &SyncAsk) -> Result<SyncPlan, Refusal> {
    assert!(!ask.data.contains(ask.parity), "the parity member is among the data members");
    let all = ask.data.with(ask.parity);
    let compare = |write| {
        if ask.readable.contains_all(all) {
            SyncPlan { read: all.minus(ask.held), compare: true, rebuild: None, write }
        } else {
            SyncPlan::SKIP
        }
    };
    match ask.kind {
        SyncKind::Check => Ok(compare(None)),
        SyncKind::Resync | SyncKind::Repair => Ok(compare(Some(ask.parity))),
        SyncKind::Recovery(member) if ask.readable.contains(member) || !ask.writable.contains(member) => {
            Ok(SyncPlan::SKIP)
        }
        SyncKind::Recovery(member) => {
            let fetch = Fetch::of(all, ask.readable, ask.held, member.into())?;
            Ok(SyncPlan { read: fetch.read, compare: false, rebuild: fetch.rebuild, write: Some(member) })
        }
    }
}
