//! The engine's life: the array is made, assembled, started, stopped, killed, and started again on what is left.
//!
//! Assembly is the product's own decision on the superblocks as the targets would read them out; nothing is written for a frame's lifetime after
//! an engine has gone. What it accepts is checked: a dirty array that lacks a member is to be refused unless forced.

use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use aoe_proto::initiator::{Durability, VolatileReason};
use raid_core::md::assemble::{Options, Refusal};
use raid_core::md::create::{NewArray, NewDevice, create};
use raid_core::md::{Minor, Role, Uuid};
use raid_core::units::{MemberIndex, Sector};
use raid_engine::array::{self, Command, CommandError, Start, StartRole};
use raid_engine::assembly::decide;
use raid_engine::member::aoe::{AoeDisk, Links};
use raid_engine::member::devices::Device;
use raid_engine::message::MemberHandle;
use raid_engine::runtime::stepped::Stepped;

use super::disk::State;
use super::ether::Ports;
use super::load::Load;
use super::model::contents;
use super::shape::LIFETIME;
use super::target::Kind;
use super::world::{Engine, PATIENCE, World};

/// The array's UUID.
const ARRAY: Uuid = Uuid([0x51; 16]);

/// Longest time in which a stop or a command must have ended.
const COMMAND_TIME: Duration = Duration::from_secs(120);

impl World {
    /// Writes the superblocks of a new array, and garbage where the run wants that.
    pub(super) fn create(&mut self) {
        let disks: Vec<MutexGuard<'_, State>> = self.hosts.iter().map(|host| host.disk.lock()).collect();
        let device = |(n, disk): (usize, &MutexGuard<'_, State>)| NewDevice {
            size: disk.sectors(),
            uuid: Uuid([n as u8 + 1; 16]),
        };
        let devices: Vec<NewDevice> = disks.iter().enumerate().map(device).collect();
        let new = NewArray {
            name: "sim",
            homehost: None,
            minor: Minor::V2,
            level: 5,
            layout: self.shape.layout,
            chunk: self.shape.chunk,
            members: self.geometry.members(),
            size: Some(self.geometry.component_size()),
            assume_clean: self.shape.assume_clean,
            set_uuid: ARRAY,
            now: 1_700_000_000,
        };
        let created = create(&new, &devices).expect("a shape within the limits");
        assert_eq!(created.geometry, self.geometry, "the array is as the shape has it");
        for (slot, (mut disk, superblock)) in disks.into_iter().zip(&created.superblocks).enumerate() {
            disk.put_superblock(superblock);
            let rows = if self.shape.garbage { self.geometry.component_size().0 } else { 0 };
            for at in 0..rows {
                let sector = self.geometry.array_sector_on(MemberIndex(slot as u8), Sector(at));
                let data = sector.map_or_else(|| contents(7, at), |sector| contents(0, sector.0));
                disk.put(superblock.data_offset.0 + at, &data);
            }
        }
    }

    /// Looks for the members and decides what to start.
    fn assemble(&mut self, force: bool) -> Result<Start, String> {
        let mut found = Vec::new();
        for (handle, host) in (0..).zip(self.hosts.iter().filter(|host| host.up && !host.dead)) {
            let disk = host.disk.lock();
            let volatile = host.target.kind() == Kind::Vblade;
            let device = array::Device {
                handle: MemberHandle(handle),
                name: host.name.clone(),
                sectors: disk.sectors(),
                volatile,
                boot: host.boot(),
            };
            found.push((device, disk.visible.clone()));
        }
        let tunables = self.shape.tunables.clone();
        let options = Options { force, ..Options::default() };
        let decided = match decide(&found, &options, false, tunables.clone()) {
            Err(Refusal::Missing { .. }) => decide(&found, &Options { run: true, ..options }, false, tunables),
            other => other,
        };
        let start = decided.map_err(|refusal| refusal.to_string())?;
        let in_sync = start.members.iter().filter(|m| matches!(m.role, StartRole::InSync(_))).count();
        let members = found.iter().filter_map(|(_, superblock)| superblock.as_ref().ok());
        let members = members.filter(|superblock| matches!(superblock.role(), Role::Active(_)));
        let freshest = members.map(|superblock| (superblock.events, superblock.resync_offset.is_some())).max();
        let dirty = freshest.is_some_and(|(_, dirty)| dirty);
        if dirty && in_sync < self.geometry.members().len() && !force {
            self.fail("a dirty array was assembled without all members in sync, though nobody forced it");
        }
        Ok(start)
    }

    /// Starts an engine on what is there, or says why the array was refused. Slots that have no member in sync are handed to `lacking`.
    fn start_engine(&mut self, force: bool, lacking: &mut Vec<MemberIndex>) -> Result<(), String> {
        let start = self.assemble(force)?;
        let has = |slot: MemberIndex| start.members.iter().any(|m| m.role == StartRole::InSync(slot));
        lacking.extend(self.geometry.members().indices().filter(|slot| !has(*slot)));
        let links = Arc::new(Ports {
            ether: Arc::clone(&self.ether),
            tunables: self.shape.aoe,
            seed: AtomicU64::new(self.rng.next_u64()),
        });
        let up: Vec<usize> = (0..self.hosts.len()).filter(|n| self.hosts[*n].up && !self.hosts[*n].dead).collect();
        let device = |handle: MemberHandle| (handle, self.device(up[usize::from(handle.0)], &links));
        let devices: Vec<_> = start.members.iter().map(|m| device(m.device.handle)).collect();
        let (workers, cache) = (self.shape.workers, self.shape.stripe_cache_size);
        let stepped = Stepped::new(start, &self.slab, workers, cache, &devices, self.now).expect("memory");
        let client = |_| Load::new(stepped.client().expect("descriptors").expect("room for a client"));
        let loads = (0..self.shape.clients).map(client).collect();
        self.engine = Some(Engine { stepped, loads, links });
        self.report.starts += 1;
        self.note(format!("engine started, force {force}, slots lacking {lacking:?}"));
        Ok(())
    }

    /// A host's disk as a member device.
    pub(super) fn device(&self, host: usize, links: &Arc<Ports>) -> Device {
        let host = &self.hosts[host];
        let durability = match host.target.kind() {
            Kind::Vblade => Durability::Volatile(VolatileReason::NoFlush),
            Kind::Ours | Kind::Plain => Durability::Durable,
        };
        let links: Arc<dyn Links> = Arc::clone(links) as _;
        let sectors = host.disk.lock().sectors();
        Device::Aoe(Arc::new(AoeDisk::known(links, host.address, sectors, durability, host.boot())))
    }

    /// Starts an engine; the array must be one that starts.
    pub(super) fn start(&mut self) {
        if let Err(refusal) = self.start_engine(false, &mut Vec::new()) {
            self.fail(format!("the array does not start: {refusal}"));
        }
    }

    /// Starts an engine after one ended somehow. Members that are only away are brought back where that helps; where members are lost the array is forced,
    /// and what they held in rows that were being written is unknown.
    pub(super) fn start_again(&mut self) {
        self.run_for(LIFETIME + Duration::from_millis(1));
        self.abandoning = false;
        let mut refused = match self.start_engine(false, &mut Vec::new()) {
            Ok(()) => return,
            Err(refusal) => refusal,
        };
        self.note(format!("refused: {refused}"));
        if self.hosts.iter().any(|host| !host.up && !host.dead) || !self.switch_up {
            self.set_switch(true);
            self.all_up();
            refused = match self.start_engine(false, &mut Vec::new()) {
                Ok(()) => return,
                Err(refusal) => refusal,
            };
            self.note(format!("refused: {refused}"));
        }
        let mut lacking = Vec::new();
        if let Err(refusal) = self.start_engine(true, &mut lacking) {
            self.fail(format!("the array does not start though forced: {refusal}; before: {refused}"));
        }
        if lacking.is_empty() {
            self.fail(format!("the array was refused though all members are in sync: {refused}"));
        }
        let risk = self.risk.clone();
        self.forget_columns(&risk, &lacking);
    }

    /// From now on the rows of these sectors are at risk, too.
    fn add_risk(&mut self, sectors: Vec<u64>) {
        self.risk.extend(sectors);
        self.risk.sort_unstable();
        self.risk.dedup();
        self.forgotten.clear();
    }

    /// What members in these slots held beside these sectors is unknown.
    pub(super) fn forget_columns(&mut self, sectors: &[u64], slots: &[MemberIndex]) {
        let column = |sector: &u64| self.geometry.locate(Sector(*sector)).member_sector;
        let mut columns: Vec<Sector> = sectors.iter().map(column).collect();
        columns.sort_unstable();
        columns.dedup();
        let held = |at: &Sector| {
            slots.iter().filter_map(|slot| self.geometry.array_sector_on(*slot, *at)).map(|s| s.0).collect::<Vec<_>>()
        };
        let unknown: Vec<u64> = columns.iter().flat_map(held).collect();
        self.note(format!("{} sectors of slots {slots:?} are unknown", unknown.len()));
        self.step += 1;
        self.model.unknown(self.step, unknown);
    }

    /// The engine's process is killed; with `power` all shelves lose their power, too.
    pub(super) fn crash(&mut self, power: bool) {
        let engine = self.engine.take().expect("the engine runs");
        self.detail = None;
        let risk = self.model.at_risk(power);
        self.note(format!("engine killed, power cut {power}, {} sectors at risk", risk.len()));
        engine.stepped.kill(engine.loads.into_iter().map(|load| load.client).collect());
        self.findings.lock().expect("one thread").events_max = None;
        self.ether.lock().expect("one thread").close();
        self.step += 1;
        self.model.crashed(self.step);
        if power {
            self.model.caches_lost(self.step);
            for host in 0..self.hosts.len() {
                self.hosts[host].disk.lock().lose_cache();
                self.start_target(host, true);
            }
        }
        let cached = std::mem::take(&mut self.risk_cached.1);
        self.add_risk(if power { [risk, cached].concat() } else { risk });
    }

    /// Stops the array while clients have nothing outstanding. It ends well, unless it is suspended on the way; whether it did.
    pub(super) fn stop(&mut self) -> bool {
        self.left = 0;
        self.expect("idle", 2 * PATIENCE, World::is_idle);
        self.ask(Command::Stop { abandon: false });
        let exit = self.await_exit();
        let suspended = self.detail.as_ref().is_some_and(|detail| detail.state.contains("suspended"));
        if exit != Some(0) && !suspended {
            self.fail(format!("stopped with {exit:?}"));
        }
        self.end_engine();
        if exit == Some(0) {
            self.step += 1;
            self.flushed(self.step);
        }
        exit == Some(0)
    }

    /// Stops an array that is suspended: what clients wait for ends with an error.
    pub(super) fn stop_suspended(&mut self) {
        self.left = 0;
        self.abandoning = true;
        let risk = self.model.at_risk(false);
        self.note("stop while suspended");
        self.ask(Command::Stop { abandon: false });
        let exit = self.await_exit();
        // It may have come back just before.
        if !matches!(exit, Some(0 | 1)) {
            self.fail(format!("stopped with {exit:?}"));
        }
        self.expect("all requests ended", Duration::from_secs(10), World::is_idle);
        self.end_engine();
        self.add_risk(risk);
    }

    fn await_exit(&mut self) -> Option<i32> {
        let exit = |world: &World| world.engine.as_ref().and_then(|engine| engine.stepped.exit());
        self.run_until(COMMAND_TIME, |world| exit(world).is_some());
        exit(self)
    }

    fn end_engine(&mut self) {
        let engine = self.engine.take().expect("the engine runs");
        engine.stepped.kill(engine.loads.into_iter().map(|load| load.client).collect());
        self.detail = None;
        self.findings.lock().expect("one thread").events_max = None;
        self.ether.lock().expect("one thread").close();
    }

    /// Asks the array for something.
    pub(super) fn ask(&mut self, command: Command) -> Receiver<Result<(), CommandError>> {
        self.note(format!("{command:?}"));
        self.engine.as_ref().expect("the engine runs").stepped.command(command)
    }

    /// Waits for the answer to a command.
    pub(super) fn answer(&mut self, answer: &Receiver<Result<(), CommandError>>) -> Result<(), CommandError> {
        let limit = self.now + COMMAND_TIME;
        loop {
            match answer.try_recv() {
                Ok(result) => return result,
                Err(TryRecvError::Disconnected) => self.fail("a command was never answered"),
                Err(TryRecvError::Empty) if self.now >= limit => self.fail("a command was not answered in time"),
                Err(TryRecvError::Empty) => self.turn(limit),
            }
        }
    }
}
