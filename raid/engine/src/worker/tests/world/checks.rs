//! What must hold: at each request, at each reply, and when all is quiet.

use std::collections::HashMap;

use super::{Outstanding, SECTOR, SLOT_SECTORS, World};
use crate::member::{MemberOp, MemberRequest};
use crate::message::{MemberState, MemberView, PartOp};

impl World {
    /// Whether the worker's view lets this request leave.
    pub(super) fn check_allowed(&self, index: usize, request: &MemberRequest) {
        let station = &self.stations[index];
        let view = &station.view;
        let member = view.members.iter().find(|m| m.handle == request.handle);
        let member = member.expect("the device has a role");
        let from = request.lba.0.saturating_sub(member.data_offset.0);
        let end = from + u64::from(request.sectors);
        match (request.op, member.state) {
            (_, MemberState::Absent) => panic!("{request:?} to an absent member"),
            (MemberOp::Flush, _) => {}
            (_, MemberState::Silent) => panic!("{request:?} to a silent member"),
            (MemberOp::Read, MemberState::Recovering { below }) => {
                assert!(end <= below.0, "{request:?} reads what is not recovered");
            }
            (MemberOp::Read, MemberState::InSync) => {}
            (MemberOp::Write, _) => {
                assert!(!view.suspended, "{request:?} while suspended");
                assert!(!view.read_only, "{request:?} while read-only");
                // Without the dirty mark only what makes rows whole may be written.
                let disk = &self.disks[request.handle.0 as usize];
                let mends = |s: u64| {
                    disk.was_bad.contains(&(s + member.data_offset.0))
                        || self.syncing.values().any(|p| p.0 <= s && s < p.1)
                };
                assert!(station.may_write || (from..end).any(mends), "{request:?} without the dirty mark");
            }
        }
    }

    /// No device uses the memory of a request that was replied to.
    pub(super) fn check_released(&self, request: &Outstanding) {
        let own = self.slot(request.slot, SLOT_SECTORS);
        let start = self.slab.address(own).as_ptr() as usize;
        let range = start..start + own.bytes();
        for pending in self.disks.iter().flat_map(|d| &d.pending) {
            for seg in &pending.segs {
                let at = self.slab.address(*seg).as_ptr() as usize;
                assert!(!range.contains(&at), "{pending:?} uses memory of {request:?}");
            }
        }
    }

    pub(super) fn check_content(&mut self, id: u32, request: &Outstanding) {
        let (at, count) = (request.at, u64::from(request.sectors));
        match request.op {
            PartOp::Read if request.status.is_ok() => {
                let piece = self.slot(request.slot, request.sectors);
                let mut bytes = vec![0; piece.bytes()];
                self.slab.read_out(piece, 0, &mut bytes);
                self.model.check_read(at, &bytes, request.started, "a client's read");
            }
            PartOp::Write { fua } => {
                let ok = request.status.is_ok();
                self.model.write_ends(u64::from(id), at, count, ok);
                if fua && ok {
                    self.check_durable(id, at, count);
                }
            }
            PartOp::Flush if request.status.is_ok() => {
                for member in self.present() {
                    let handle = member.handle.0 as usize;
                    let disk = &self.disks[handle];
                    let due = request.written.get(handle).copied().unwrap_or(0);
                    assert!(disk.flushed >= due, "{member:?} was not flushed");
                }
            }
            _ => {}
        }
    }

    fn present(&self) -> impl Iterator<Item = &MemberView> {
        self.array.view.members.iter().filter(|m| m.state != MemberState::Absent)
    }

    pub(super) fn check_durable(&mut self, id: u32, at: u64, count: u64) {
        for sector in at..at + count {
            if !self.model.is_settled(sector, u64::from(id)) {
                continue;
            }
            let (member, lba) = self.place(sector);
            let member = self.array.view.members[member.index()];
            let disk = &self.disks[member.handle.0 as usize];
            assert!(
                member.state != MemberState::InSync || disk.is_durable(lba),
                "a FUA write of sector {sector} is not durable"
            );
        }
    }

    /// Nothing is left anywhere.
    pub(in super::super) fn assert_idle(&self) {
        assert!(
            self.outstanding.is_empty(),
            "requests without a reply: {:?}\n{:#?}",
            self.outstanding,
            self.stations.iter().map(|s| &s.worker).collect::<Vec<_>>()
        );
        assert!(self.syncing.is_empty(), "sync without a reply");
        for station in &self.stations {
            let worker = &station.worker;
            assert!(worker.is_drained() && worker.is_idle(), "{worker:#?}");
            assert_eq!(worker.pages_used(), 0, "pages were kept");
            super::super::assert_at_rest(worker);
        }
        assert!(self.regions.all_idle() && self.board.is_quiet(), "a region was kept");
        for (disk, in_force) in self.array.in_force.iter().enumerate() {
            assert_eq!(*in_force, self.array.view.generation, "worker {disk} does not act on the newest view");
        }
    }

    /// The bytes on the devices are right: with all members, and with any one left out.
    pub(in super::super) fn check_rows(&mut self) {
        let absent: Vec<usize> = (0..self.shape.members as usize)
            .filter(|i| self.array.view.members[*i].state == MemberState::Absent)
            .collect();
        assert!(absent.len() <= 1, "no test ends with two members absent");
        let all = 0..(self.shape.rows * self.shape.chunk) as usize * SECTOR;
        let mut rebuilt = HashMap::new();
        if let Some(&role) = absent.first() {
            rebuilt.insert(role, self.xor_of_others(role, all));
        } else {
            // Zero over all: then each member is the XOR of the others.
            let sum = self.xor_of_others(usize::MAX, all);
            let wrong = sum.iter().position(|b| *b != 0);
            assert!(
                wrong.is_none(),
                "rows do not sum to zero, first at sector {} of the window",
                wrong.unwrap_or(0) / SECTOR
            );
        }
        let (first, count) = self.span();
        let started = self.model.tick();
        for sector in first..first + count {
            let (role, lba) = self.place(sector);
            let disk = &self.disks[self.array.view.members[role.index()].handle.0 as usize];
            let at = (lba - disk.base) as usize * SECTOR;
            let content = match rebuilt.get(&role.index()) {
                Some(bytes) => bytes[at..at + SECTOR].to_vec(),
                None => disk.sectors(lba, 1).to_vec(),
            };
            self.model.check_read(sector, &content, started, "at the end");
        }
    }

    /// What a worker says to be in force is, and nothing is outstanding that it forbids.
    pub(super) fn check_in_force(&self, index: usize, generation: u32) {
        let view = &self.stations[index].view;
        assert_eq!(generation, view.generation, "the newest view is in force");
        for (handle, disk) in self.disks.iter().enumerate() {
            let present = |m: &MemberView| m.handle.0 as usize == handle && m.state != MemberState::Absent;
            assert!(
                view.members.iter().any(present) || disk.pending.iter().all(|p| p.worker != index),
                "something is outstanding at an absent member"
            );
        }
    }
}
