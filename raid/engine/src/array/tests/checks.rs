//! What must hold of every effect of an [`Array`](crate::array::Array), and after a crash at any step.

use std::collections::BTreeMap;
use std::sync::Arc;

use raid_core::md::assemble::{Options, Refusal};
use raid_core::md::{Role, Superblock};
use raid_core::units::Sector;

use super::world::{Block, CHUNK, DEVICE, FakeDevice, ROWS, World, assembled, parse};
use crate::array::{ArrayState, MetaOp};
use crate::message::{MemberHandle, MemberState, View};

impl World {
    /// In an array that is clean, or was stopped well, all that clients wrote is durable.
    pub(super) fn check_flushed(&self) {
        if self.array.array_state() != ArrayState::Clean && self.stopped != Some(0) {
            return;
        }
        for member in self.view.members.iter().filter(|m| m.state != MemberState::Absent) {
            let device = &self.devices[&member.handle.0];
            assert!(device.volatile || !device.unflushed, "{:?} holds what was not flushed", member.handle);
        }
    }

    /// A superblock write leaves: it must be allowed, and newer than what was written before.
    pub(super) fn check_write(&mut self, handle: MemberHandle, data: &[u8]) {
        assert!(!self.suspended, "no superblock is written while suspended");
        let mut others = self.meta.iter().filter(|(_, device, _)| *device == handle.0);
        assert!(others.all(|(.., op)| !matches!(op, MetaOp::Write { .. })), "two superblock writes to one device");
        assert!(!self.view.read_only, "no superblock is written while read-only or fenced");
        assert!(!self.view.abandon, "no superblock is written after giving up");
        let superblock = parse(data.try_into().unwrap(), DEVICE).expect("a superblock that parses");
        assert!(superblock.events >= self.event_max, "events never decrease");
        self.event_max = superblock.events;
        let device = &self.devices[&handle.0];
        if let Some(old) = parse(&device.stored, device.sectors)
            && old.set_uuid == superblock.set_uuid
        {
            assert!(superblock.events >= old.events, "no superblock is older than the last");
        }
        self.trace.push(format!("write {}", handle.0));
    }

    pub(super) fn durable(&self, handle: u16) -> Option<Superblock> {
        let device = &self.devices[&handle];
        parse(&device.stored, device.sectors)
    }

    /// A view leaves: what it allows must be covered by what is durable.
    pub(super) fn check_view(&mut self, view: &Arc<View>) {
        assert_eq!(view.generation, self.view.generation + 1);
        for (slot, member) in view.members.iter().enumerate() {
            if member.state == MemberState::Absent {
                self.check_absent(view, slot);
                continue;
            }
            let enters = self.view.members.iter().all(|m| m.state == MemberState::Absent || m.handle != member.handle);
            if enters {
                assert_eq!(member.state, MemberState::Recovering { below: Sector::ZERO });
                self.devices.get_mut(&member.handle.0).unwrap().forget_rebuilt();
            }
            let device = &self.devices[&member.handle.0];
            let trusted = member.state == MemberState::InSync;
            assert!(!(trusted && device.forgot), "member {} forgot writes and is trusted", member.handle.0);
            if !view.write_ok {
                continue;
            }
            let superblock = self.durable(member.handle.0).expect("a member has a superblock");
            assert_eq!(superblock.resync_offset, Some(Sector::ZERO), "writes are allowed without a durable dirty mark");
        }
        self.view = Arc::clone(view);
    }

    /// Slots that become absent were recorded as lost on all members that are left.
    fn check_absent(&self, view: &View, slot: usize) {
        let before = &self.view.members[slot];
        if before.state == MemberState::Absent || view.read_only {
            return;
        }
        let number = self.durable(before.handle.0).expect("it was a member").dev_number;
        for left in view.members.iter().filter(|m| m.state != MemberState::Absent) {
            let superblock = self.durable(left.handle.0).expect("a member has a superblock");
            let role = superblock.role_of(number);
            assert_eq!(role, Role::Faulty, "slot {slot} is absent, but member {} does not say so", left.handle.0);
        }
    }

    /// What the devices hold after a crash; bit n of `kept`: the nth of those that had not flushed had stored it all the same.
    pub(super) fn after_crash(&self, kept: u32) -> BTreeMap<u16, Block> {
        let used = self
            .devices
            .iter()
            .filter(|(_, device)| parse(&device.stored, DEVICE).is_some() || device.cached.is_some());
        let mut nth = 0;
        let block = |(handle, device): (&u16, &FakeDevice)| {
            let Some(cached) = &device.cached else {
                return (*handle, device.stored.clone());
            };
            nth += 1;
            (*handle, if kept >> (nth - 1) & 1 == 1 { cached.clone() } else { device.stored.clone() })
        };
        used.map(block).collect()
    }

    pub(super) fn view_lacks(&self, handle: u16) -> bool {
        self.view.members.iter().all(|m| m.state == MemberState::Absent || m.handle.0 != handle)
    }

    pub(super) fn crash_everywhere(&self) {
        let cached = self.devices.values().filter(|d| d.cached.is_some()).count();
        for kept in 0..1 << cached {
            self.check_crash(self.after_crash(kept));
        }
    }

    /// After a crash, the array that assembles must not trust what it should not.
    fn check_crash(&self, mut blocks: BTreeMap<u16, Block>) {
        let usual = Options { run: true, ..Options::default() };
        let writing = self.workers.iter().any(|w| w.may_write);
        let found = match assembled(blocks.clone(), &usual) {
            Ok(found) => {
                assert!(!writing || found.dirty(), "writes may be under way and the array assembles as clean");
                found
            }
            Err(Refusal::DirtyDegraded { .. }) => {
                let forced = Options { run: true, force: true, ..Options::default() };
                assembled(blocks, &forced).expect("force starts a dirty and degraded array")
            }
            Err(Refusal::RunApart { second, .. }) => {
                // A member that was replaced and knows nothing of those that came later: it is to be left out.
                assert!(self.view_lacks(second), "member {second} is in use and cannot be assembled");
                blocks.remove(&second);
                return self.check_crash(blocks);
            }
            Err(refusal) => panic!("after a crash the array does not assemble: {refusal}"),
        };
        for (slot, seat) in found.slots.iter().enumerate() {
            let Some(seat) = seat else { continue };
            let device = &self.devices[&seat.device];
            if !found.dirty() {
                assert!(!device.unflushed, "clean, but member {} had not flushed", seat.device);
            }
            if let Some(below) = seat.recovered.or((!device.rebuilt.is_empty()).then_some(Sector(CHUNK.0 * ROWS))) {
                let right = (0..below.0).all(|sector| device.rebuilt_flushed.contains(&sector));
                assert!(right, "member {} is trusted below {below} and is not right there", seat.device);
            } else {
                assert!(!device.missed, "member {} in slot {slot} lacks acknowledged writes", seat.device);
            }
        }
    }
}
