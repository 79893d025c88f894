//! Member requests of one worker: made from runs and reads, merged on the way out, taken apart when they end.
//!
//! Called by [`super::Worker`] only. Each piece of work that goes to a member is an [`Io`]. At the end of a turn those that touch
//! on one member are sent as one member request, whose ios form a chain. A merged request that fails is taken apart
//! and its ios are sent again one by one, so that a bad sector costs only its own io.
//!
//! Invariants: an io is in exactly one chain from [`Ios::send`] until [`Ios::end`]; a request's id is never reused
//! (its high half counts up), and an end for an id that is not outstanding is a bug of the member and panics.

use raid_core::units::{MemberIndex, Sector};

use super::pool::Pool;
use super::{Cancel, Effects};
use crate::member::{MemberOp, MemberRequest, MemberRequestId};
use crate::message::MemberHandle;
use crate::slab::Piece;

/// Longest merged request: 1 MiB, as md's largest.
const MERGE_SECTORS_MAX: u32 = 2048;

/// Most segments of a merged request.
const MERGE_SEGS_MAX: u32 = 256;

pub(super) const NONE: u32 = u32::MAX;

/// Whose work an io is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// A read part's, straight into the caller's memory.
    PartRead(u32),
    /// A run's read of this member's block.
    RunRead(u32, MemberIndex),
    /// A run's write of this member's block.
    RunWrite(u32, MemberIndex),
    /// The worker's flush of all members.
    Flush,
}

/// One piece of work at a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Io {
    pub(super) whose: Whose,
    pub(super) handle: MemberHandle,
    pub(super) op: MemberOp,
    pub(super) lba: Sector,
    pub(super) sectors: u32,
    /// Sent alone: not to be merged, since a merged request failed.
    pub(super) alone: bool,
    /// As [`MemberRequest::warm`].
    pub(super) warm: bool,
    /// Next io of the same member request.
    next: u32,
    /// First io of a request that is out: which of its uses this is; 0 otherwise.
    serial: u32,
    /// A cancel was sent for the request that begins with this io.
    cancelled: bool,
}

impl Io {
    pub(super) fn new(whose: Whose, handle: MemberHandle, op: MemberOp, lba: Sector, sectors: u32) -> Io {
        Io { whose, handle, op, lba, sectors, alone: false, warm: false, next: NONE, serial: 0, cancelled: false }
    }

    /// The same, not to be merged.
    pub(super) fn alone(self) -> Io {
        Io { alone: true, ..self }
    }

    /// The same, of sectors that the run has read.
    pub(super) fn warm(self) -> Io {
        Io { warm: true, ..self }
    }
}

/// An io on its way out, with its segments.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    handle: MemberHandle,
    op: MemberOp,
    lba: Sector,
    sectors: u32,
    io: u32,
    segs_from: u32,
    segs: u32,
    alone: bool,
    warm: bool,
}

/// Low bits of a key: place in the list.
const INDEX_BITS: u32 = 32;
const INDEX_MASK: u128 = (1 << INDEX_BITS) - 1;

impl Outgoing {
    /// Sorts by device, operation and sector; the place `i` in the list makes it unique. One number, as that sorts fastest.
    fn key(&self, i: usize) -> u128 {
        let device = u128::from(self.handle.0) << 2 | self.op as u128;
        (device << 64 | u128::from(self.lba.0)) << INDEX_BITS | i as u128
    }
}

/// All ios of a worker.
#[derive(Debug, Default)]
pub(super) struct Ios {
    pool: Pool<Io>,
    out: Vec<Outgoing>,
    /// Their keys, in the order in which they are sent.
    order: Vec<u128>,
    segs: Vec<Piece>,
    serial: u32,
    /// Member requests sent, and their sectors: their quotient is the mean member request.
    pub(super) requests: u64,
    pub(super) request_sectors: u64,
}

impl Ios {
    /// Queues an io for the end of the turn.
    pub(super) fn send(&mut self, io: Io, segs: impl Iterator<Item = Piece>) {
        let from = self.segs.len();
        for seg in segs {
            match self.segs[from..].last_mut() {
                Some(last) if last.touches(seg) => *last = last.joined(seg),
                _ => self.segs.push(seg),
            }
        }
        let Io { handle, op, lba, sectors, alone, warm, .. } = io;
        let id = self.pool.put(io);
        let segs = (self.segs.len() - from) as u32;
        self.out.push(Outgoing { handle, op, lba, sectors, io: id, segs_from: from as u32, segs, alone, warm });
    }

    /// Merges what was queued in this turn and moves it to the effects.
    pub(super) fn take_out(&mut self, effects: &mut Effects) {
        self.order.clear();
        self.order.extend(self.out.iter().enumerate().map(|(i, o)| o.key(i)));
        self.order.sort_unstable();
        let mut tail = NONE;
        for key in &self.order {
            let o = self.out[(key & INDEX_MASK) as usize];
            let segs = &self.segs[o.segs_from as usize..(o.segs_from + o.segs) as usize];
            if let Some(last) = effects.requests.last_mut()
                && tail != NONE
                && mergeable(last, &o, self.pool[tail].alone)
            {
                last.sectors += o.sectors;
                last.warm |= o.warm;
                for seg in segs {
                    match effects.segs.last_mut() {
                        Some(end) if end.touches(*seg) => *end = end.joined(*seg),
                        _ => {
                            effects.segs.push(*seg);
                            last.segs += 1;
                        }
                    }
                }
                self.pool[tail].next = o.io;
            } else {
                self.serial = self.serial.wrapping_add(1).max(1);
                let head = &mut self.pool[o.io];
                head.serial = self.serial;
                let id = MemberRequestId(u64::from(self.serial) << 32 | u64::from(o.io));
                let segs_from = effects.segs.len() as u32;
                effects.segs.extend_from_slice(segs);
                let Outgoing { handle, op, lba, sectors, segs, warm, .. } = o;
                effects.requests.push(MemberRequest { id, handle, op, lba, sectors, segs_from, segs, warm });
                self.requests += u64::from(op != MemberOp::Flush);
            }
            self.request_sectors += u64::from(o.sectors);
            tail = o.io;
        }
        self.out.clear();
        self.segs.clear();
    }

    /// A member request has ended: its first io, to begin [`next_ended`](Ios::next_ended) with.
    pub(super) fn end(&self, id: MemberRequestId) -> u32 {
        let (head, serial) = (id.0 as u32, (id.0 >> 32) as u32);
        assert!(
            self.pool.is_live(head) && self.pool[head].serial == serial,
            "a member ended a request that is not outstanding"
        );
        head
    }

    /// Takes the io at `at` out of its chain, and moves `at` on to the next; `None` at the chain's end.
    pub(super) fn next_ended(&mut self, at: &mut u32) -> Option<Io> {
        if *at == NONE {
            return None;
        }
        let io = self.pool.take(*at);
        *at = io.next;
        Some(io)
    }

    /// The device of a request that begins with this io.
    pub(super) fn handle(&self, head: u32) -> MemberHandle {
        self.pool[head].handle
    }

    /// Whether the request that begins with this io has more than it.
    pub(super) fn is_merged(&self, head: u32) -> bool {
        self.pool[head].next != NONE
    }

    /// Sends a cancel for each request out whose first io `doomed` names, once.
    pub(super) fn cancel(&mut self, effects: &mut Effects, mut doomed: impl FnMut(&Io) -> bool) {
        for (index, io) in self.pool.iter_mut() {
            if io.serial != 0 && !io.cancelled && doomed(io) {
                io.cancelled = true;
                let id = MemberRequestId(u64::from(io.serial) << 32 | u64::from(index));
                effects.cancels.push(Cancel { handle: io.handle, id });
            }
        }
    }

    /// Whether an io that `matches` is outstanding or queued.
    pub(super) fn any(&mut self, mut matches: impl FnMut(&Io) -> bool) -> bool {
        self.pool.iter_mut().any(|(_, io)| matches(io))
    }

    /// Whether nothing is outstanding or queued.
    pub(super) fn is_empty(&self) -> bool {
        self.pool.is_empty()
    }
}

/// Whether `o` continues the request `last` at the same member.
fn mergeable(last: &MemberRequest, o: &Outgoing, last_alone: bool) -> bool {
    last.handle == o.handle
        && last.op == o.op
        && o.op != MemberOp::Flush
        && !o.alone
        && !last_alone
        && last.lba.0 + u64::from(last.sectors) == o.lba.0
        && last.sectors + o.sectors <= MERGE_SECTORS_MAX
        && last.segs + o.segs <= MERGE_SEGS_MAX
}
