//! A member device of the fake world: bytes, and requests that take effect and are answered when the schedule says so.

use std::collections::HashSet;
use std::time::Duration;

use raid_core::units::SECTOR_SIZE;

use crate::member::{Done, MemberOp, MemberRequest, MemberRequestId};
use crate::message::IoStatus;
use crate::slab::{Piece, Slab};

const SECTOR: usize = SECTOR_SIZE as usize;

/// How a device behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Works,
    /// Every request ends with this.
    Fails(IoStatus),
    /// Nothing is answered.
    Silent,
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) worker: usize,
    pub(super) request: MemberRequest,
    pub(super) segs: Vec<Piece>,
    /// How it went, once it took effect.
    status: Option<IoStatus>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Disk {
    /// First sector that `bytes` holds.
    pub(super) base: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) mode: Mode,
    /// Sectors that cannot be read until they are written.
    pub(super) bad: HashSet<u64>,
    /// Sectors that gave a medium error.
    pub(super) was_bad: HashSet<u64>,
    pub(super) pending: Vec<Pending>,
    /// Counts the writes that took effect; by sector, the last one; and the last one that a flush made durable.
    pub(super) writes: u64,
    sector_writes: Vec<u64>,
    pub(super) flushed: u64,
}

impl Disk {
    pub(super) fn new(base: u64, bytes: Vec<u8>) -> Disk {
        let sectors = bytes.len() / SECTOR;
        Disk {
            base,
            bytes,
            mode: Mode::Works,
            bad: HashSet::new(),
            was_bad: HashSet::new(),
            pending: Vec::new(),
            writes: 0,
            sector_writes: vec![0; sectors],
            flushed: 0,
        }
    }

    pub(super) fn sectors(&self, lba: u64, count: usize) -> &[u8] {
        let from = usize::try_from(lba - self.base).expect("within the window") * SECTOR;
        &self.bytes[from..from + count * SECTOR]
    }

    /// Whether the last write of the sector is durable.
    pub(super) fn is_durable(&self, lba: u64) -> bool {
        self.sector_writes[(lba - self.base) as usize] <= self.flushed
    }

    /// Takes a request in, with what a device may rely on.
    pub(super) fn submit(&mut self, worker: usize, request: MemberRequest, segs: Vec<Piece>) {
        let total: u32 = segs.iter().map(|s| s.sectors()).sum();
        assert_eq!(total, request.sectors, "segments are as long as the request");
        assert_eq!(request.sectors == 0, request.op == MemberOp::Flush, "only flushes have no data");
        assert!(
            self.pending.iter().all(|p| (p.worker, p.request.id) != (worker, request.id)),
            "ids are not reused while outstanding"
        );
        if request.op == MemberOp::Write {
            let overlap = self.pending.iter().find(|p| {
                p.request.op == MemberOp::Write
                    && p.request.lba.0 < request.lba.0 + u64::from(request.sectors)
                    && request.lba.0 < p.request.lba.0 + u64::from(p.request.sectors)
            });
            assert!(overlap.is_none(), "two writes of the same sectors in flight: {request:?} beside {overlap:?}");
        }
        self.pending.push(Pending { worker, request, segs, status: None });
    }

    /// Requests that can take effect.
    pub(super) fn can_apply(&self) -> bool {
        self.mode != Mode::Silent && self.pending.iter().any(|p| p.status.is_none())
    }

    /// Requests that can be answered.
    pub(super) fn can_answer(&self) -> bool {
        self.pending.iter().any(|p| p.status.is_some_and(|s| self.mode != Mode::Silent || s == IoStatus::Cancelled))
    }

    /// Lets the `nth` request that can (counted round) take effect.
    pub(super) fn apply(&mut self, nth: usize, slab: &Slab) {
        let waiting = |p: &&mut Pending| p.status.is_none();
        let count = self.pending.iter_mut().filter(waiting).count();
        let place =
            self.pending.iter().enumerate().filter(|(_, p)| p.status.is_none()).nth(nth % count).expect("counted").0;
        let mut pending = self.pending.swap_remove(place);
        pending.status = Some(match self.mode {
            Mode::Fails(status) => status,
            _ => self.carry_out(&pending, slab),
        });
        self.pending.push(pending);
    }

    fn carry_out(&mut self, pending: &Pending, slab: &Slab) -> IoStatus {
        let request = &pending.request;
        let mut status = IoStatus::Ok;
        let mut lba = request.lba.0;
        for seg in &pending.segs {
            let from = usize::try_from(lba - self.base).expect("within the window") * SECTOR;
            let bytes = &mut self.bytes[from..from + seg.bytes()];
            let range = lba..lba + u64::from(seg.sectors());
            match request.op {
                MemberOp::Read => {
                    slab.fill(*seg, 0, bytes);
                    for bad in range.filter(|s| self.bad.contains(s)) {
                        status = IoStatus::Medium;
                        self.was_bad.insert(bad);
                        slab.fill(seg.sub((bad - lba) as u32, 1), 0, &[0xee; SECTOR]);
                    }
                }
                MemberOp::Write => {
                    let old = bytes.to_vec();
                    slab.read_out(*seg, 0, bytes);
                    self.writes += 1;
                    for (sector, old) in range.zip(old.chunks_exact(SECTOR)) {
                        self.bad.remove(&sector);
                        // The same once more, to mend a neighbour, takes nothing away that was durable.
                        let at = (sector - self.base) as usize;
                        if self.bytes[at * SECTOR..][..SECTOR] != *old {
                            self.sector_writes[at] = self.writes;
                        }
                    }
                }
                MemberOp::Flush => unreachable!("a flush has no segments"),
            }
            lba += u64::from(seg.sectors());
        }
        if request.op == MemberOp::Flush {
            self.flushed = self.writes;
        }
        status
    }

    /// Answers the `nth` request that can be (counted round).
    pub(super) fn answer(&mut self, nth: usize, closed_until: Option<Duration>) -> (Pending, Done) {
        let silent = self.mode == Mode::Silent;
        let can = |p: &Pending| p.status.is_some_and(|s| !silent || s == IoStatus::Cancelled);
        let count = self.pending.iter().filter(|p| can(p)).count();
        let place = self.pending.iter().enumerate().filter(|(_, p)| can(p)).nth(nth % count).expect("counted").0;
        let pending = self.pending.swap_remove(place);
        let closed_until = closed_until.filter(|_| pending.request.op == MemberOp::Write);
        let done = Done { id: pending.request.id, status: pending.status.expect("filtered"), boot: None, closed_until };
        (pending, done)
    }

    /// The worker no longer wants the request.
    pub(super) fn cancel(&mut self, worker: usize, id: MemberRequestId) {
        let found = self.pending.iter_mut().find(|p| p.worker == worker && p.request.id == id);
        // It may have ended just before.
        if let Some(pending) = found
            && (pending.status.is_none() || self.mode == Mode::Silent)
        {
            pending.status = Some(IoStatus::Cancelled);
        }
    }
}
