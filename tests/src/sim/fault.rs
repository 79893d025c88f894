//! What goes wrong in a run, and when: one fault after the other, each within what the array promises to survive.
//!
//! Promised is that no more members are lost at once than parity covers, unless the whole goes away and comes back. A member is lost on purpose only while all
//! others are in sync and parity is right everywhere. Members fall silent, the switch goes off and the engine is killed at any time.

use std::time::Duration;

use aoe_sim::{Faults, Ppm};
use raid_core::units::MemberIndex;
use raid_engine::array::{ArrayState, Command, SyncAction};
use raid_engine::runtime::client::Op;

use super::target::Kind;
use super::world::{PATIENCE, World};

/// After the last fault the array is whole again within this.
const HEAL_TIME: Duration = Duration::from_secs(600);

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Storm,
    SilenceOne,
    SilenceMany,
    Switch,
    RestartOne,
    RestartMany,
    Kill,
    Replace,
    Fail,
    Crash,
    Power,
    Stop,
    StopSuspended,
    Check,
    Medium,
}

/// At any time.
const ALWAYS: [Fault; 9] = [
    Fault::None,
    Fault::Storm,
    Fault::SilenceOne,
    Fault::SilenceMany,
    Fault::Switch,
    Fault::Crash,
    Fault::Power,
    Fault::Stop,
    Fault::StopSuspended,
];

/// While all members are in sync and parity is right.
const HEALTHY: [Fault; 7] =
    [Fault::RestartOne, Fault::RestartMany, Fault::Kill, Fault::Fail, Fault::Check, Fault::Medium, Fault::Crash];

impl World {
    /// The whole run.
    pub(super) fn play(&mut self) {
        self.start();
        if self.shape.garbage {
            // Until the first resync has ended, what was never written has no redundancy.
            self.set_faults(Faults::NONE);
            self.refill();
            self.expect("resynced", HEAL_TIME, World::is_healthy);
            self.calm_network();
        }
        for _ in 0..self.shape.episodes {
            self.refill();
            let calm = self.upto(self.shape.calm);
            self.run_for(calm);
            let fault = self.draw_fault();
            self.note(format!("fault: {fault:?}"));
            self.play_fault(fault);
            self.note(format!("fault over: {fault:?}"));
        }
        self.finish();
    }

    fn upto(&mut self, longest: Duration) -> Duration {
        Duration::from_micros(self.rng.below(longest.as_micros() as u64 + 1))
    }

    /// Lets clients ask for more, in a hurry or at leisure.
    fn refill(&mut self) {
        self.left = self.shape.requests / self.shape.episodes as u64;
        self.think = if self.rng.below(2) == 0 { self.shape.think } else { self.shape.think * 20 };
    }

    fn draw_fault(&mut self) -> Fault {
        let replaceable = self.free_slot() && self.detail.as_ref().is_some_and(|d| d.spare_devices == 0);
        if replaceable && self.rng.below(2) == 0 {
            return Fault::Replace;
        }
        let more = if self.is_healthy() { &HEALTHY[..] } else { &[] };
        let index = self.rng.below((ALWAYS.len() + more.len()) as u64) as usize;
        *ALWAYS.get(index).unwrap_or_else(|| &more[index - ALWAYS.len()])
    }

    fn play_fault(&mut self, fault: Fault) {
        match fault {
            Fault::None => {}
            Fault::Storm => self.storm(),
            Fault::SilenceOne => self.silence(1),
            Fault::SilenceMany => {
                let count = 2 + self.rng.below(self.shape.targets.len() as u64 - 1) as usize;
                self.silence(count);
            }
            Fault::Switch => self.switch_off(),
            Fault::RestartOne => self.restart_one(),
            Fault::RestartMany => self.restart_many(),
            Fault::Kill => self.kill_member(),
            Fault::Replace => self.replace(),
            Fault::Fail => self.fail_member(),
            Fault::Crash | Fault::Power => self.crash_somewhere(fault == Fault::Power),
            Fault::Stop => {
                self.stop();
                self.start_again();
            }
            Fault::StopSuspended => self.stop_while_suspended(),
            Fault::Check => self.check_action(),
            Fault::Medium => self.medium_errors(),
        }
    }

    /// Whether all slots have members in sync that answer, and parity is right everywhere.
    pub(super) fn is_healthy(&self) -> bool {
        let Some(detail) = &self.detail else { return false };
        let in_slots = detail.devices.iter().filter(|row| row.raid_device.is_some());
        detail.degraded == 0
            && detail.resync_start.is_none()
            && detail.array_state != ArrayState::Suspended
            && in_slots.clone().count() == self.geometry.members().len()
            && in_slots.clone().all(|row| row.state == "active sync")
    }

    /// Whether a slot has no device.
    fn free_slot(&self) -> bool {
        self.detail.as_ref().is_some_and(|d| d.devices.iter().any(|row| row.state == "removed"))
    }

    /// Hosts of members in slots.
    fn member_hosts(&self) -> Vec<usize> {
        self.geometry.members().indices().filter_map(|slot| self.in_slot(slot)).map(|(host, _)| host).collect()
    }

    fn pick_member(&mut self) -> Option<usize> {
        let members = self.member_hosts();
        (!members.is_empty()).then(|| members[self.rng.below(members.len() as u64) as usize])
    }

    pub(super) fn set_up(&mut self, host: usize, up: bool) {
        if self.hosts[host].dead || self.hosts[host].up == up {
            return;
        }
        self.note(format!("{} {}", self.hosts[host].name, if up { "answers" } else { "falls silent" }));
        self.hosts[host].up = up;
        let id = self.hosts[host].host;
        self.ether.lock().expect("one thread").network.set_host(self.now, id, up);
        self.disturbed = self.now;
    }

    pub(super) fn all_up(&mut self) {
        for host in 0..self.hosts.len() {
            self.set_up(host, true);
        }
    }

    pub(super) fn set_switch(&mut self, up: bool) {
        if self.switch_up != up {
            self.note(format!("switch {}", if up { "on" } else { "off" }));
            self.switch_up = up;
            let ether = &mut *self.ether.lock().expect("one thread");
            ether.network.set_switch(self.now, up);
            ether.carrier = up || !self.shape.carrier;
            self.disturbed = self.now;
        }
    }

    /// The network is bad for a while.
    fn storm(&mut self) {
        let some = |world: &mut World, most: u64| Ppm(world.rng.below(most + 1) as u32);
        let faults = Faults {
            loss: some(self, 200_000),
            duplicate: some(self, 100_000),
            reorder: some(self, 100_000),
            ..self.shape.faults
        };
        self.set_faults(faults);
        let time = self.upto(Duration::from_secs(3));
        self.run_for(time);
        self.calm_network();
        self.disturbed = self.now;
    }

    /// Members fall silent, one after the other, and come back.
    fn silence(&mut self, count: usize) {
        let mut chosen: Vec<usize> = Vec::new();
        for _ in 0..count {
            let Some(host) = self.pick_member() else { continue };
            if !chosen.contains(&host) {
                chosen.push(host);
            }
            self.set_up(host, false);
            let apart = self.upto(Duration::from_millis(50));
            let apart = if self.rng.below(4) == 0 { apart * 60 } else { apart };
            self.run_for(apart);
        }
        let longest = if self.rng.below(2) == 0 { 2_000 } else { 20_000 };
        let time = self.upto(Duration::from_millis(longest));
        self.run_for(time);
        for host in chosen {
            self.set_up(host, true);
            let apart = self.upto(Duration::from_millis(500));
            self.run_for(apart);
        }
    }

    fn switch_off(&mut self) {
        self.set_switch(false);
        let time = self.upto(Duration::from_secs(20));
        self.run_for(time);
        self.set_switch(true);
    }

    /// Starts a host's target anew without what it had not flushed.
    fn restart(&mut self, host: usize) {
        let unflushed = {
            let mut disk = self.hosts[host].disk.lock();
            let unflushed = disk.unflushed();
            disk.lose_cache();
            unflushed
        };
        self.note(format!("{} restarts, {unflushed} sectors at risk", self.hosts[host].name));
        self.start_target(host, true);
    }

    fn ours_in_slots(&self) -> Vec<usize> {
        let mut hosts = self.member_hosts();
        hosts.retain(|host| self.hosts[*host].target.kind() == Kind::Ours);
        hosts
    }

    /// A flush of each client reaches every member, so whatever happened to one is known afterwards.
    fn flush_all(&mut self) {
        self.left = 0;
        self.expect("idle", 2 * PATIENCE, World::is_idle);
        for client in 0..self.shape.clients {
            self.submit(client, Op::Flush, 0, 0);
            self.engine.as_mut().expect("the engine runs").loads[client].client.unplug();
        }
        self.expect("flushed", 2 * PATIENCE, World::is_idle);
    }

    fn restart_one(&mut self) {
        let ours = self.ours_in_slots();
        if ours.is_empty() {
            return;
        }
        let host = ours[self.rng.below(ours.len() as u64) as usize];
        self.restart(host);
        let time = self.upto(Duration::from_secs(2));
        self.run_for(time);
        self.flush_all();
    }

    /// More restart at once than parity covers: unflushed writes may be lost, and clients are told.
    fn restart_many(&mut self) {
        let ours = self.ours_in_slots();
        if ours.len() < 2 {
            return;
        }
        let risk = self.model.at_risk(true);
        self.flush_faults = true;
        let spared = self.rng.below(ours.len() as u64 - 1) as usize;
        for host in ours.into_iter().skip(spared) {
            self.restart(host);
        }
        self.step += 1;
        self.model.caches_lost(self.step);
        let time = self.upto(Duration::from_secs(2));
        self.left = 0;
        self.run_for(time);
        self.flush_all();
        let slots: Vec<MemberIndex> = self.geometry.members().indices().collect();
        if self.detail.as_ref().is_some_and(|detail| detail.degraded > 0) {
            // One was noticed before the others and given up.
            self.forget_columns(&risk, &slots);
        }
        self.expect("healthy", HEAL_TIME, World::is_healthy);
        self.flush_all();
        self.flush_faults = false;
        self.flush_all();
    }

    /// A member goes and never comes back.
    fn kill_member(&mut self) {
        let Some(host) = self.pick_member() else { return };
        self.set_up(host, false);
        self.hosts[host].dead = true;
        self.note(format!("{} is dead", self.hosts[host].name));
        // Nobody misses it before it is asked for something; one without a flush has to be written to, as it may hold nothing but parity.
        self.flush_all();
        if self.hosts[host].target.kind() == Kind::Vblade {
            self.submit(0, Op::Write { fua: false }, 0, self.geometry.stripe_sectors().0);
            self.engine.as_mut().expect("the engine runs").loads[0].client.unplug();
        }
        self.expect("given up", HEAL_TIME, move |world| !world.member_hosts().contains(&host));
    }

    /// A fresh member takes the place of a lost one.
    fn replace(&mut self) {
        let kind = self.shape.targets[self.rng.below(self.shape.targets.len() as u64) as usize];
        let host = self.add_host(kind);
        self.set_faults(self.faults);
        // No beacon of its start is under way any more: one that came later would mean that it was started anew.
        self.run_for(super::shape::LIFETIME);
        let engine = self.engine.as_ref().expect("the engine runs");
        let device = self.device(host, &engine.links);
        let uuid = [0x80 + host as u8; 16];
        let answer = engine.stepped.add(device, self.hosts[host].name.clone(), uuid);
        self.note(format!("add {}", self.hosts[host].name));
        if let Err(error) = self.answer(&answer) {
            self.note(format!("add refused: {error}"));
        }
    }

    /// An operator fails a member, removes it, and adds it or another one.
    fn fail_member(&mut self) {
        let Some(host) = self.pick_member() else { return };
        let name = self.hosts[host].name.clone();
        let handle = self.engine.as_ref().expect("the engine runs").stepped.find(&name).expect("a member has a handle");
        let answer = self.ask(Command::Fail(handle));
        if let Err(error) = self.answer(&answer) {
            self.note(format!("fail refused: {error}"));
            return;
        }
        let time = self.upto(Duration::from_millis(500));
        self.run_for(time);
        let answer = self.ask(Command::Remove(handle));
        if let Err(error) = self.answer(&answer) {
            self.note(format!("remove refused: {error}"));
            return;
        }
        let time = self.upto(Duration::from_millis(500));
        self.run_for(time);
        if self.rng.below(2) == 0 {
            return;
        }
        let engine = self.engine.as_ref().expect("the engine runs");
        let device = self.device(host, &engine.links);
        let uuid = [0x40 + self.hosts[host].boots as u8 + host as u8; 16];
        let answer = engine.stepped.add(device, name, uuid);
        if let Err(error) = self.answer(&answer) {
            self.note(format!("add refused: {error}"));
        }
    }

    /// The engine is killed: now, a little later, or beside superblock writes.
    fn crash_somewhere(&mut self, power: bool) {
        match self.rng.below(3) {
            0 => {
                let time = self.upto(Duration::from_millis(30));
                self.run_for(time);
            }
            1 => {
                let written = self.findings.lock().expect("one thread").superblocks;
                let target = written + 1 + self.rng.below(12);
                let so = move |world: &World| world.findings.lock().expect("one thread").superblocks >= target;
                self.run_until(Duration::from_secs(5), so);
            }
            _ => {}
        }
        if self.rng.below(6) == 0
            && let Some(host) = self.pick_member()
        {
            self.set_up(host, false);
        }
        self.crash(power);
        self.start_again();
        if self.rng.below(2) == 0 {
            self.all_up();
        }
    }

    fn stop_while_suspended(&mut self) {
        let first = self.pick_member();
        let second = self.pick_member();
        let (Some(first), Some(second)) = (first, second) else { return };
        self.set_up(first, false);
        self.set_up(second, false);
        let suspended =
            |world: &World| world.detail.as_ref().is_some_and(|detail| detail.array_state == ArrayState::Suspended);
        if !self.run_until(Duration::from_secs(5), suspended) {
            self.all_up();
            return;
        }
        let time = self.upto(Duration::from_secs(3));
        self.run_for(time);
        if !suspended(self) {
            // One that goes on is stopped when its clients have nothing outstanding.
            return self.all_up();
        }
        self.stop_suspended();
        self.all_up();
        self.start_again();
    }

    /// A check or repair under load finds nothing.
    fn check_action(&mut self) {
        let action = if self.rng.below(2) == 0 { SyncAction::Check } else { SyncAction::Repair };
        let answer = self.ask(Command::Action(action));
        if let Err(error) = self.answer(&answer) {
            self.note(format!("refused: {error}"));
            return;
        }
        let done = |world: &World| {
            let detail = world.detail.as_ref().expect("the engine runs");
            detail.sync_action == "idle"
                && detail.last_sync_action.is_some_and(|last| last == "check" || last == "repair")
        };
        self.run_for(Duration::from_millis(1));
        self.expect("checked", HEAL_TIME, done);
        let detail = self.detail.as_ref().expect("the engine runs");
        if detail.mismatch_cnt != 0 {
            self.fail(format!("a check found {} sectors that do not match", detail.mismatch_cnt));
        }
    }

    /// Sectors of one member cannot be read; the engine has to get them from the others and write them anew.
    fn medium_errors(&mut self) {
        let Some(host) = self.pick_member() else { return };
        let size = self.geometry.component_size().0;
        let count = 1 + self.rng.below(20);
        for _ in 0..count {
            let at = 2048 + self.rng.below(size);
            self.hosts[host].disk.lock().bad.insert(at);
        }
        let time = self.upto(Duration::from_secs(2));
        self.run_for(time);
        let left = std::mem::take(&mut self.hosts[host].disk.lock().bad).len();
        self.note(format!("{}: {left} of {count} bad sectors left", self.hosts[host].name));
    }

    /// All faults end, the array becomes whole, everything is checked, and once more with a member left out.
    fn finish(&mut self) {
        self.set_switch(true);
        self.all_up();
        self.set_faults(Faults::NONE);
        self.run_for(Duration::from_secs(1));
        self.left = 0;
        self.expect("idle", 2 * PATIENCE, World::is_idle);
        self.make_whole();
        self.check_rest();
        if !self.stop() {
            self.fail("the array did not stop well, though nothing is in its way");
        }
        let in_sync = self.in_sync_on_disk();
        if in_sync.iter().any(Option::is_none) {
            self.fail(format!("stopped well, and not all slots have a member in sync on disk: {in_sync:?}"));
        }
        self.check_rows(&in_sync);
        let out = self.rng.below(in_sync.len() as u64) as usize;
        let host = in_sync[out].expect("just seen");
        self.set_up(host, false);
        self.hosts[host].dead = true;
        self.note(format!("without {}", self.hosts[host].name));
        self.run_for(super::shape::LIFETIME);
        self.start();
        self.read_all();
        self.stop();
    }

    /// Adds members until the array is whole.
    fn make_whole(&mut self) {
        for _ in 0..4 {
            let spare = |d: &raid_engine::array::Detail| d.spare_devices > 0;
            let settled =
                |world: &World| world.is_healthy() || world.free_slot() && !world.detail.as_ref().is_some_and(spare);
            self.expect("settled", HEAL_TIME, settled);
            if self.run_until(Duration::from_secs(20), World::is_healthy) {
                return;
            }
            if self.free_slot() {
                self.replace();
            }
        }
        self.expect("healthy", HEAL_TIME, World::is_healthy);
    }
}
