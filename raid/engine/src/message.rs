//! What the parts of the engine say to each other: front end → worker → front end, and array ↔ workers.
//!
//! All of it is plain data. [`Part`] and [`PartReply`] are on the data path and `Copy`; the rest is control and may
//! allocate. Nothing here decides.

use std::sync::Arc;
use std::time::Duration;

use raid_core::plan::RmwLevel;
pub use raid_core::plan::SyncKind;
use raid_core::units::{DataIndex, MemberIndex, Sector, StripeIndex};

use crate::slab::Piece;

/// How a request, part or member request ended. Small and `Copy`: it is on the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoStatus {
    /// Done.
    Ok,
    /// The member could not read these sectors (ATA UNC, EIO on read): RAID reconstructs and rewrites.
    Medium,
    /// The member answered with an error that is not the medium's.
    Failed,
    /// The member is gone: no answer within its dead time, or its file vanished.
    Gone,
    /// The member was found restarted, and the array has not decided yet what that means: what it had not flushed may be lost, so the
    /// request does not count as carried out.
    Restarted,
    /// Another host holds the reservation (AoE error 6).
    Fenced,
    /// Given up because the worker asked for it.
    Cancelled,
    /// The array is being stopped; the request was not carried out, or not durably.
    Stopped,
    /// The array takes no writes.
    ReadOnly,
    /// The request reaches past the end of the array, or is not whole sectors.
    OutOfRange,
}

impl IoStatus {
    /// Whether the request was carried out.
    pub fn is_ok(self) -> bool {
        self == IoStatus::Ok
    }

    /// The worse of two: any failure beats `Ok`, the first failure stays.
    pub fn and(self, other: IoStatus) -> IoStatus {
        if self.is_ok() { other } else { self }
    }
}

/// One front end of the engine: a connection, the load generator, or the array's own sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(pub u16);

impl ClientId {
    /// The array itself: its sync work.
    pub const ARRAY: ClientId = ClientId(0);
}

/// One worker, counted over all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u8);

/// An opened member device; it stays the same when the device's role in the array changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberHandle(pub u16);

/// What a part asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartOp {
    /// Read into the part's piece.
    Read,
    /// Write from the part's piece; with `fua` it is durable before the reply.
    Write {
        /// Durable before the reply.
        fua: bool,
    },
    /// Flush every member; covers all writes replied to before it was submitted. Has no place and no piece.
    Flush,
    /// Sync work of the array on these rows. Has no piece.
    Sync(SyncKind),
}

/// A piece of a request that lies within one chunk: the unit that crosses from a front end to a worker.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Who gets the reply.
    pub client: ClientId,
    /// What to do.
    pub op: PartOp,
    /// The client's own number for the request that the part belongs to; comes back in the reply.
    pub request: u32,
    /// The chunk row.
    pub stripe: StripeIndex,
    /// Which data chunk of the row. Sync parts cover all members and ignore it.
    pub data: DataIndex,
    /// First sector within the chunk.
    pub from: u32,
    /// Length in sectors; `from + sectors` is at most the chunk.
    pub sectors: u32,
    /// The caller's memory for the data, `sectors` long.
    pub piece: Piece,
}

/// The end of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartReply {
    /// Who asked.
    pub client: ClientId,
    /// The client's number for the request.
    pub request: u32,
    /// How it ended.
    pub status: IoStatus,
    /// Sync parts: sectors of parity that did not match.
    pub mismatches: u32,
}

/// How a member stands, as the workers need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Holds right data everywhere.
    InSync,
    /// In sync, but a request has been unanswered for `aoe_silence`: not read from, and writes that need it wait.
    Silent,
    /// Being rebuilt: right below this sector of the data area, elsewhere written but not read.
    Recovering {
        /// First sector (of the member's data area) not known to be right.
        below: Sector,
    },
    /// Missing or faulty: neither read nor written.
    Absent,
}

/// Boot numbers of a device that tells them: that of the start which the array goes on, and those of before. They have no order of their
/// own, so earlier ones are remembered. So few are enough: nothing of an earlier start is heard for long after the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boots {
    now: Option<u32>,
    before: [Option<u32>; 3],
}

/// What start of a device an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The one that the array goes on, as far as can be told.
    This,
    /// One of before.
    Earlier,
    /// One that the array does not go on yet.
    Later,
}

impl Boots {
    /// Of a device of which this start is known, or that tells none.
    pub fn new(boot: Option<u32>) -> Boots {
        Boots { now: boot, before: [None; 3] }
    }

    /// The start that the array goes on.
    pub fn now(&self) -> Option<u32> {
        self.now
    }

    /// What an answer with this number comes from.
    pub fn judge(&self, boot: u32) -> AnsweredBy {
        match self.now {
            None => AnsweredBy::This,
            Some(now) if now == boot => AnsweredBy::This,
            Some(_) if self.before.contains(&Some(boot)) => AnsweredBy::Earlier,
            Some(_) => AnsweredBy::Later,
        }
    }

    /// The array goes on this start from now on.
    pub fn accept(&mut self, boot: u32) {
        if let Some(now) = self.now.replace(boot).filter(|now| *now != boot) {
            self.pass_over(now);
        }
    }

    /// Nobody will go on this start any more.
    pub fn pass_over(&mut self, boot: u32) {
        self.before.rotate_right(1);
        self.before[0] = Some(boot);
    }
}

/// One role of the array in a [`View`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// How it stands.
    pub state: MemberState,
    /// The device in this role (meaningless when absent).
    pub handle: MemberHandle,
    /// Where the member's data area starts on the device.
    pub data_offset: Sector,
    /// The start of the device that the array goes on, and those of before.
    pub boots: Boots,
}

/// What every worker must know of the array's state. Made by the array, replaced whole; workers act on the newest.
#[derive(Clone, Debug)]
pub struct View {
    /// Counts up with each view.
    pub generation: u32,
    /// By role.
    pub members: Vec<MemberView>,
    /// Parity is known to be right below this sector of the data area (the resync mark); beyond it rmw is forbidden.
    pub parity_trusted_below: Sector,
    /// The dirty mark is durable: writes may be sent.
    pub write_ok: bool,
    /// More members silent or missing than parity covers: no write leaves.
    pub suspended: bool,
    /// Writes are refused.
    pub read_only: bool,
    /// Another host has the members: writes are refused, and those that were sent are called back.
    pub fenced: bool,
    /// md's `rmw_level`.
    pub rmw_level: RmwLevel,
    /// The array is stopping and held requests end with [`IoStatus::Stopped`] rather than wait for members.
    pub abandon: bool,
}

impl View {
    /// The start of a device that this view goes on; the outer `None` of one that is absent.
    pub fn goes_on(&self, handle: MemberHandle) -> Option<Option<u32>> {
        let mut members = self.members.iter();
        members.find(|m| m.handle == handle && m.state != MemberState::Absent).map(|m| m.boots.now())
    }
}

/// Array → every worker.
#[derive(Clone, Debug)]
pub enum ToWorker {
    /// The state has changed.
    View(Arc<View>),
    /// May the array be marked clean? Answered by [`Report::Quiet`]; a worker that answers idle sends no write until
    /// the next view with `write_ok`.
    Quiesce {
        /// Comes back in the answer.
        token: u32,
        /// How long no write may have been in flight for the worker to count as idle.
        idle_for: Duration,
    },
}

/// Worker → array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// A write waits for the dirty mark.
    WantWrite,
    /// Answer to [`ToWorker::Quiesce`].
    Quiet {
        /// The question's.
        token: u32,
        /// No write was in flight for long enough, and none will be sent.
        idle: bool,
    },
    /// The view is in force, and nothing is outstanding at members that are absent in it.
    ViewDone {
        /// The view's.
        generation: u32,
    },
    /// A member answered a request with an error (`Failed`, `Gone`, `Fenced`, or `Medium` on a write); the requests
    /// concerned wait for a view in which it is absent.
    MemberError {
        /// Its device.
        handle: MemberHandle,
        /// What it said.
        status: IoStatus,
    },
    /// A member's answer came from a start of it that the view does not go on; the requests concerned wait for a view that does, or in
    /// which it is absent.
    MemberBoot {
        /// Its device.
        handle: MemberHandle,
        /// The boot number.
        boot: u32,
    },
    /// A read error was mended by reconstruction and rewriting.
    Corrected {
        /// The member that could not read.
        member: MemberIndex,
        /// How many sectors.
        sectors: u32,
    },
}
