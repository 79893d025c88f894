//! What the disks must hold at certain moments: when a write is acknowledged, when all is at rest, and at the end.

use std::time::Duration;

use raid_core::md::Role;
use raid_core::units::{MemberIndex, Sector, StripeIndex};

use super::disk::Found;
use super::model::{SECTOR, WriteId};
use super::world::World;

impl World {
    /// The host whose device is in a slot, and how it stands there.
    pub(super) fn in_slot(&self, slot: MemberIndex) -> Option<(usize, &str)> {
        let row = self.detail.as_ref()?.devices.iter().find(|row| row.raid_device == Some(slot))?;
        let name = row.device.as_ref()?;
        Some((self.hosts.iter().position(|host| host.name == *name)?, row.state.as_str()))
    }

    /// The slot that each host's device has and is in sync in.
    pub(super) fn in_sync(&self) -> Vec<Option<usize>> {
        let in_sync =
            |slot| self.in_slot(slot).filter(|(_, state)| state.starts_with("active sync")).map(|(host, _)| host);
        self.geometry.members().indices().map(in_sync).collect()
    }

    /// Remembers who is in each slot; who was there last stays known while nobody is.
    pub(super) fn follow_holders(&mut self) {
        for slot in self.geometry.members().indices() {
            if let Some((host, _)) = self.in_slot(slot) {
                self.holders[slot.index()] = Some(host);
            }
        }
    }

    /// Forgets what lost members held in rows that were being written when an engine ended, once and for all members that are lost before parity
    /// is right again. RAID without a journal promises no more: some of a row's new blocks may be on their members and some not, so the
    /// others and their parity do not tell what the lost one held, and no engine could. While the member is only silent, it is waited for.
    pub(super) fn follow_risk(&mut self) {
        if self.risk.is_empty() {
            return;
        }
        if self.is_healthy() {
            let sectors = std::mem::take(&mut self.risk);
            self.risk_cached.1.extend(sectors);
            self.risk_cached.0 = self.step;
            return;
        }
        let slots = self.geometry.members().indices();
        let lost: Vec<MemberIndex> = slots.filter(|slot| self.in_slot(*slot).is_none()).collect();
        if lost != self.forgotten {
            let sectors = std::mem::take(&mut self.risk);
            self.forget_columns(&sectors, &lost);
            self.risk = sectors;
            self.forgotten = lost;
        }
    }

    /// A write that was submitted at `since` was acknowledged: a member that lacks it must be recorded as lost, durably, on all others. One that was
    /// restarted since then is excused: it may have had the write in its cache and answered, and nobody can know of the restart before
    /// something is heard of it again. That it is recorded before the next flush ends shows at rest.
    pub(super) fn check_acknowledged(&mut self, id: WriteId, at: u64, sectors: u64, since: Duration) {
        if self.model.is_lost(id) {
            return;
        }
        self.detail = Some(self.engine.as_ref().expect("the engine runs").stepped.detail());
        self.follow_holders();
        for sector in (at..at + sectors).filter(|sector| !self.model.contended(*sector, id)) {
            let place = self.geometry.locate(Sector(sector));
            let wanted = self.model.data_of(id, sector);
            let holder = self.holders[place.member.index()];
            if holder.is_some_and(|host| self.hosts[host].restarted_at.is_some_and(|at| at >= since)) {
                continue;
            }
            let holds = holder.is_some_and(|host| {
                let disk = self.hosts[host].disk.lock();
                let offset = disk.visible.as_ref().map_or(0, |superblock| superblock.data_offset.0);
                disk.sector(offset + place.member_sector.0) == wanted
            });
            if !holds {
                self.check_recorded(place.member, place.member_sector, (sector, id, since));
            }
        }
    }

    /// Whether each member in sync says durably that a slot has no right data at this place.
    fn check_recorded(&self, slot: MemberIndex, at: Sector, write: (u64, WriteId, Duration)) {
        let others = self.in_sync().into_iter().enumerate();
        for host in others.filter(|(other, _)| *other != slot.index()).filter_map(|(_, host)| host) {
            let disk = self.hosts[host].disk.lock();
            let Ok(superblock) = &disk.durable else {
                self.fail(format!("{}: a member in sync has no superblock", self.hosts[host].name));
            };
            let wanted = Role::from(slot);
            let number = superblock.roles.iter().position(|role| *role == wanted);
            let recovering = number.is_some_and(|number| self.is_recovering(number as u32, host, at));
            if number.is_some() && !recovering {
                self.fail(format!(
                    "write {} of sector {}, asked for at {:?}, was acknowledged, but slot {slot} lacks it, and {} counts on it",
                    write.1, write.0, write.2, self.hosts[host].name
                ));
            }
        }
    }

    /// Whether the device with this number says durably that it is not rebuilt so far.
    fn is_recovering(&self, number: u32, but: usize, at: Sector) -> bool {
        self.hosts.iter().enumerate().filter(|(n, _)| *n != but).any(|(_, host)| {
            let disk = host.disk.lock();
            let Ok(superblock) = &disk.durable else { return false };
            superblock.dev_number == number && superblock.recovery().is_some_and(|below| below <= at)
        })
    }

    /// All is at rest: rows match their parity, and what any one member held can be had from the others.
    pub(super) fn check_rest(&mut self) {
        let in_sync = self.in_sync();
        self.note(format!("check at rest, in sync {in_sync:?}"));
        self.check_rows(&in_sync);
    }

    /// Checks all rows against the model, given which host is in sync in each slot: all but one at most.
    pub(super) fn check_rows(&mut self, in_sync: &[Option<usize>]) {
        let lacking = in_sync.iter().filter(|host| host.is_none()).count();
        if lacking > self.geometry.parity_count() {
            self.fail("too few members in sync to check rows");
        }
        self.step += 1;
        for row in 0..self.geometry.stripes() {
            for within in 0..self.geometry.chunk().0 {
                self.check_column(StripeIndex(row), row * self.geometry.chunk().0 + within, in_sync);
            }
        }
    }

    /// Checks one sector of each member.
    fn check_column(&mut self, row: StripeIndex, at: u64, in_sync: &[Option<usize>]) {
        let mut sum = [0; SECTOR];
        let mut held = Vec::new();
        for (slot, host) in in_sync.iter().enumerate() {
            let Some(host) = host else { continue };
            let disk = self.hosts[*host].disk.lock();
            let offset = disk.visible.as_ref().map_or(0, |superblock| superblock.data_offset.0);
            let data = disk.sector(offset + at);
            for (sum, byte) in sum.iter_mut().zip(data) {
                *sum ^= byte;
            }
            held.push((MemberIndex(slot as u8), data.to_vec()));
        }
        let missing = self.geometry.members().indices().find(|slot| in_sync[slot.index()].is_none());
        match missing {
            Some(slot) => held.push((slot, sum.to_vec())),
            None if sum != [0; SECTOR] => {
                self.fail(format!("row {row}, sector {at} of the data area: parity does not match"));
            }
            None => {}
        }
        for (slot, data) in held {
            let Some(sector) = self.geometry.array_sector_on(slot, Sector(at)) else { continue };
            if let Err(what) = self.model.check(sector.0, &data, self.step, self.step + 1) {
                self.fail(format!("at rest, slot {slot}: {what}"));
            }
        }
        self.step += 1;
    }

    /// The hosts in sync in each slot by what superblocks durably say, with all others in step.
    pub(super) fn in_sync_on_disk(&self) -> Vec<Option<usize>> {
        let found: Vec<Found> = self.hosts.iter().map(|host| host.disk.lock().durable.clone()).collect();
        let alive = |n: usize| !self.hosts[n].dead;
        let events = |n: usize| found[n].as_ref().map_or(0, |superblock| superblock.events);
        let most = (0..found.len()).filter(|n| alive(*n)).map(events).max().unwrap_or(0);
        let holds = |n: usize, slot: MemberIndex| {
            let Ok(superblock) = &found[n] else { return false };
            alive(n)
                && superblock.events == most
                && superblock.role() == Role::from(slot)
                && superblock.recovery().is_none()
        };
        let holder = |slot| (0..found.len()).find(|n| holds(*n, slot));
        self.geometry.members().indices().map(holder).collect()
    }
}
