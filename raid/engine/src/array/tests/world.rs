//! A small world around an [`Array`]: devices with volatile caches, workers, clients, and checks of every effect.
//!
//! Nothing happens by itself but through [`World::settle`], which carries out what is due until all is quiet, or step by
//! step through [`World::step`]. After every step all crashes are tried: each device may or may not have stored what it had not
//! flushed, and the array assembled from what is left must be one that lost nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use raid_core::geometry::Layout;
use raid_core::md::assemble::{Assembly, Candidate, LeftOut, Options, Refusal, assemble};
use raid_core::md::create::{NewArray, NewDevice, create};
use raid_core::md::superblock::SUPERBLOCK_SIZE;
use raid_core::md::{Minor, Role, Superblock, Uuid};
use raid_core::units::{MemberCount, MemberIndex, Sector, Sectors};

use crate::array::{
    Array, ArrayState, Command, CommandError, CommandId, Detail, Device, Effect, Input, MemberEvent, MetaId, MetaOp,
    Start, StartMember, StartRole, SyncRun, Tunables,
};
use crate::message::{IoStatus, MemberHandle, MemberState, Report, SyncKind, ToWorker, View, WorkerId};

pub(super) const CHUNK: Sectors = Sectors(128);
pub(super) const ROWS: u64 = 64;
pub(super) const DEVICE: Sectors = Sectors(2048 + CHUNK.0 * ROWS);
pub(super) const WORKERS: usize = 2;
pub(super) const ARRAY_UUID: Uuid = Uuid([7; 16]);

pub(super) type Block = Box<[u8; SUPERBLOCK_SIZE]>;

/// A device: its superblock's block and what matters of its data.
#[derive(Clone)]
pub(super) struct FakeDevice {
    pub(super) stored: Block,
    /// Written, not flushed.
    pub(super) cached: Option<Block>,
    pub(super) volatile: bool,
    pub(super) sectors: Sectors,
    /// Answers nothing while set; requests wait.
    pub(super) mute: bool,
    /// Which start of it answers.
    pub(super) boot: Option<u32>,
    /// How requests end.
    pub(super) status: IoStatus,
    /// Clients' writes that it has not flushed.
    pub(super) unflushed: bool,
    /// It was restarted and has forgotten such writes.
    pub(super) forgot: bool,
    /// It lacks writes that were acknowledged.
    pub(super) missed: bool,
    /// Sectors rebuilt since it entered its slot; and those of them that are flushed.
    pub(super) rebuilt: BTreeSet<u64>,
    pub(super) rebuilt_flushed: BTreeSet<u64>,
}

#[derive(Clone)]
pub(super) struct FakeWorker {
    pub(super) view: Arc<View>,
    pub(super) may_write: bool,
    inbox: VecDeque<ToWorker>,
    /// A client's write waits.
    wants: bool,
    /// Writes are in flight, so it is not idle.
    pub(super) busy: bool,
    /// Has requests at absent members that do not end.
    pub(super) stuck: bool,
}

/// See the module's text.
pub(super) struct World {
    pub(super) array: Array,
    pub(super) now: Duration,
    pub(super) devices: BTreeMap<u16, FakeDevice>,
    pub(super) meta: VecDeque<(MetaId, u16, MetaOp)>,
    /// Metadata requests that were given up and have not ended.
    pub(super) cancelled: BTreeSet<MetaId>,
    pub(super) workers: Vec<FakeWorker>,
    pub(super) sync: VecDeque<SyncRun>,
    /// How sync runs end, and whether they end.
    pub(super) sync_status: IoStatus,
    pub(super) sync_held: bool,
    pub(super) answers: BTreeMap<u64, Result<(), CommandError>>,
    commands: u64,
    pub(super) released: Vec<u16>,
    pub(super) stopped: Option<i32>,
    pub(super) flush_faults: u32,
    /// What happened, for tests of order.
    pub(super) trace: Vec<String>,
    pub(super) logs: Vec<String>,
    pub(super) try_crashes: bool,
    pub(super) view: Arc<View>,
    pub(super) event_max: u64,
    pub(super) suspended: bool,
}

fn blank() -> Block {
    Box::new([0; SUPERBLOCK_SIZE])
}

fn fresh_device() -> FakeDevice {
    FakeDevice {
        stored: blank(),
        cached: None,
        volatile: false,
        sectors: DEVICE,
        mute: false,
        boot: None,
        status: IoStatus::Ok,
        unflushed: false,
        forgot: false,
        missed: true,
        rebuilt: BTreeSet::new(),
        rebuilt_flushed: BTreeSet::new(),
    }
}

/// What to start with.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) members: u8,
    pub(super) spares: usize,
    pub(super) assume_clean: bool,
    pub(super) volatile: bool,
    pub(super) read_only: bool,
    pub(super) tunables: Tunables,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            members: 4,
            spares: 0,
            assume_clean: true,
            volatile: false,
            read_only: false,
            tunables: Tunables { sync_speed_max: 0, ..Tunables::default() },
        }
    }
}

/// Superblocks of a new array.
pub(super) fn created(setup: &Setup) -> BTreeMap<u16, FakeDevice> {
    let count = usize::from(setup.members) + setup.spares;
    let devices: Vec<_> = (0..count).map(|n| NewDevice { size: DEVICE, uuid: Uuid([n as u8 + 1; 16]) }).collect();
    let array = NewArray {
        name: "test",
        homehost: None,
        minor: Minor::V2,
        level: 5,
        layout: Layout::LeftSymmetric,
        chunk: CHUNK,
        members: MemberCount(setup.members),
        size: Some(Sectors(CHUNK.0 * ROWS)),
        assume_clean: setup.assume_clean,
        set_uuid: ARRAY_UUID,
        now: 1_000_000,
    };
    let made = create(&array, &devices).unwrap();
    let device = |superblock: &Superblock| {
        // Those without a flush are not our shelves, and tell nothing.
        let boot = (!setup.volatile).then_some(1);
        let mut device = FakeDevice { volatile: setup.volatile, missed: false, boot, ..fresh_device() };
        superblock.emit(&mut device.stored);
        device
    };
    made.superblocks.iter().enumerate().map(|(n, superblock)| (n as u16, device(superblock))).collect()
}

pub(super) fn parse(block: &[u8; SUPERBLOCK_SIZE], sectors: Sectors) -> Option<Superblock> {
    Superblock::parse(block, Minor::V2, sectors).ok()
}

/// Assembles devices from these blocks.
pub(super) fn assembled(
    blocks: impl IntoIterator<Item = (u16, Block)>,
    options: &Options,
) -> Result<Assembly<u16>, Refusal<u16>> {
    let candidates = blocks.into_iter().map(|(device, block)| {
        let superblock = Superblock::parse(&block, Minor::V2, DEVICE);
        Candidate { device, size: DEVICE, superblock }
    });
    assemble(candidates.collect(), options)
}

/// What the runtime makes of an assembly.
fn started(assembly: Assembly<u16>, setup: &Setup, devices: &BTreeMap<u16, FakeDevice>) -> Start {
    let member = |handle: u16, role| {
        let device = &devices[&handle];
        let superblock = parse(&device.stored, device.sectors).unwrap();
        StartMember { device: described(handle, device), superblock, role }
    };
    let mut members = Vec::new();
    for (slot, seat) in assembly.geometry.members().indices().zip(&assembly.slots) {
        let Some(seat) = seat else { continue };
        let role = seat.recovered.map_or(StartRole::InSync(slot), |at| StartRole::Recovering(slot, at));
        members.push(member(seat.device, role));
    }
    members.extend(assembly.spares.iter().map(|(handle, _)| member(*handle, StartRole::Spare)));
    for (handle, why) in &assembly.left_out {
        let slot = parse(&devices[handle].stored, DEVICE).and_then(|superblock| match superblock.role() {
            Role::Active(slot) => Some(MemberIndex(slot as u8)),
            _ => None,
        });
        if matches!(why, LeftOut::Stale { .. } | LeftOut::Failed) {
            members.push(member(*handle, StartRole::Stale(slot)));
        }
    }
    let mut superblock = assembly.freshest;
    superblock.resync_offset = assembly.resync_from;
    let (read_only, tunables) = (setup.read_only, setup.tunables.clone());
    Start { geometry: assembly.geometry, superblock, members, workers: WORKERS, read_only, tunables }
}

impl World {
    pub(super) fn new(setup: Setup) -> Self {
        let mut world = Self::from_devices(setup.clone(), created(&setup), &Options::default());
        world.flush_found();
        world
    }

    /// Assembles and starts what is on the devices.
    pub(super) fn from_devices(setup: Setup, devices: BTreeMap<u16, FakeDevice>, options: &Options) -> Self {
        let blocks = devices.iter().map(|(handle, device)| (*handle, device.stored.clone()));
        let assembly = assembled(blocks, options).unwrap();
        let start = started(assembly, &setup, &devices);
        let event_max = start.superblock.events;
        let mut array = Array::new(start);
        array.set_wall_clock(2_000_000);
        let view = array.view();
        let worker = FakeWorker {
            view: Arc::clone(&view),
            may_write: view.write_ok,
            inbox: VecDeque::new(),
            wants: false,
            busy: false,
            stuck: false,
        };
        let mut world = Self {
            array,
            now: Duration::from_secs(100),
            devices,
            meta: VecDeque::new(),
            cancelled: BTreeSet::new(),
            workers: vec![worker; WORKERS],
            sync: VecDeque::new(),
            sync_status: IoStatus::Ok,
            sync_held: false,
            answers: BTreeMap::new(),
            commands: 0,
            released: Vec::new(),
            stopped: None,
            flush_faults: 0,
            trace: Vec::new(),
            logs: Vec::new(),
            try_crashes: true,
            view,
            event_max,
            suspended: false,
        };
        world.input(Input::Timer);
        world
    }

    /// Ends the flushes with which an array begins whose superblocks say already what they are to say.
    fn flush_found(&mut self) {
        while self.meta.iter().any(|(_, _, op)| *op == MetaOp::Flush) && self.step_meta(0) {}
        self.trace.clear();
    }

    pub(super) fn input(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.array.turn(self.now, input, &mut effects);
        self.suspended = matches!(self.array.array_state(), ArrayState::Suspended | ArrayState::Broken);
        for effect in effects {
            self.effect(effect);
        }
        self.check_flushed();
    }

    fn effect(&mut self, effect: Effect) {
        let late = self.stopped.is_some() && !matches!(effect, Effect::Answer(_, Err(_)));
        assert!(!late, "nothing follows the end: {effect:?}");
        match effect {
            Effect::Meta { id, handle, op } => {
                if let MetaOp::Write { data, .. } = &op {
                    self.check_write(handle, data);
                }
                let flushed = op == MetaOp::Flush && self.devices[&handle.0].volatile;
                assert!(!flushed, "a flush of a volatile device means nothing");
                self.meta.push_back((id, handle.0, op));
            }
            Effect::CancelMeta { id, handle } => {
                let outstanding = self.meta.iter().any(|(meta, device, _)| (*meta, *device) == (id, handle.0));
                assert!(outstanding && self.cancelled.insert(id), "what is outstanding is given up once");
            }
            Effect::ToWorkers(message) => {
                if let ToWorker::View(view) = &message {
                    self.check_view(view);
                    self.trace.push("view".into());
                }
                for worker in &mut self.workers {
                    worker.inbox.push_back(message.clone());
                }
            }
            Effect::Sync(runs) => self.sync.extend(runs),
            Effect::Answer(id, result) => {
                self.trace.push(format!("answer {}", id.0));
                let before = self.answers.insert(id.0, result);
                assert!(before.is_none(), "a command is answered once");
            }
            Effect::Released(handle) => {
                let outstanding = self.meta.iter().any(|(_, device, _)| *device == handle.0);
                assert!(!outstanding, "released with requests outstanding");
                self.released.push(handle.0);
            }
            Effect::FlushFault => self.flush_fault(),
            Effect::Stopped { exit } => self.stopped = Some(exit),
            Effect::Log(_, text) => {
                assert!(!text.is_empty());
                self.logs.push(text);
            }
        }
    }

    /// Clients are told that flushed means nothing for once: what restarted members lack is forgiven.
    fn flush_fault(&mut self) {
        self.flush_faults += 1;
        for member in self.view.members.iter().filter(|m| m.state != MemberState::Absent) {
            self.devices.get_mut(&member.handle.0).unwrap().forgot = false;
        }
    }

    /// Carries out one thing that is due. Whether there was any.
    pub(super) fn step(&mut self) -> bool {
        let stepped = self.step_workers() || self.step_meta(0) || self.step_sync(0);
        if stepped && self.try_crashes {
            self.crash_everywhere();
        }
        stepped
    }

    pub(super) fn settle(&mut self) {
        for _ in 0..20_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the world does not come to rest");
    }

    /// Lets time pass, with timers when they are due.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        while let Some(due) = self.array.wake_at().filter(|due| *due <= end) {
            assert!(due > self.now || self.now == Duration::ZERO, "a timer that is due at once does not end");
            self.now = self.now.max(due);
            self.input(Input::Timer);
            self.settle();
        }
        self.now = end;
        self.input(Input::Timer);
        self.settle();
    }

    pub(super) fn step_workers(&mut self) -> bool {
        for index in 0..self.workers.len() {
            let Some(message) = self.workers[index].inbox.pop_front() else {
                continue;
            };
            let id = WorkerId(index as u8);
            let worker = &mut self.workers[index];
            match message {
                ToWorker::View(view) => {
                    assert!(view.generation > worker.view.generation);
                    worker.may_write = view.write_ok;
                    worker.view = Arc::clone(&view);
                    if !worker.stuck {
                        self.input(Input::Report(id, Report::ViewDone { generation: view.generation }));
                    }
                    self.try_write(index);
                }
                ToWorker::Quiesce { token, .. } => {
                    let idle = !(worker.busy || worker.wants && worker.may_write);
                    if idle {
                        worker.may_write = false;
                    }
                    self.input(Input::Report(id, Report::Quiet { token, idle }));
                }
            }
            return true;
        }
        false
    }

    /// Keeps a worker from letting go of absent members, or lets it.
    pub(super) fn set_stuck(&mut self, worker: usize, stuck: bool) {
        self.workers[worker].stuck = stuck;
        if !stuck {
            let generation = self.workers[worker].view.generation;
            self.input(Input::Report(WorkerId(worker as u8), Report::ViewDone { generation }));
        }
    }

    /// A client writes, now or as soon as it may.
    pub(super) fn write(&mut self, worker: usize) {
        self.workers[worker].wants = true;
        self.try_write(worker);
    }

    fn try_write(&mut self, index: usize) {
        let worker = &self.workers[index];
        let view = Arc::clone(&worker.view);
        if !worker.wants || view.suspended && !view.abandon {
            return;
        }
        if view.read_only || view.abandon {
            self.workers[index].wants = false;
            return;
        }
        if !worker.may_write {
            return self.input(Input::Report(WorkerId(index as u8), Report::WantWrite));
        }
        if view.members.iter().any(|m| m.state == MemberState::Silent) {
            return;
        }
        self.workers[index].wants = false;
        self.trace.push("data".into());
        for (handle, device) in &mut self.devices {
            let here = view.members.iter().find(|m| m.handle.0 == *handle && m.state != MemberState::Absent);
            match here {
                Some(_) => device.unflushed = !device.volatile,
                None => {
                    device.missed = true;
                    device.forget_rebuilt();
                }
            }
        }
    }

    pub(super) fn is_waiting(&self, worker: usize) -> bool {
        self.workers[worker].wants
    }

    /// Ends the `nth` metadata request that can end.
    pub(super) fn step_meta(&mut self, nth: usize) -> bool {
        let able = |(id, handle, _): &(MetaId, u16, MetaOp)| !self.devices[handle].mute || self.cancelled.contains(id);
        let able: Vec<_> = (0..self.meta.len()).filter(|index| able(&self.meta[*index])).collect();
        let Some(index) = able.get(nth % able.len().max(1)) else {
            return false;
        };
        let (id, handle, op) = self.meta.remove(*index).unwrap();
        let device = self.devices.get_mut(&handle).unwrap();
        let given_up = self.cancelled.remove(&id) && device.mute;
        let status = if given_up { IoStatus::Cancelled } else { device.status };
        let mut read = Vec::new();
        if status.is_ok() {
            match op {
                MetaOp::Read { lba, sectors } => {
                    assert_eq!((lba, sectors), (Sector(8), Sectors(8)));
                    read = device.cached.as_ref().unwrap_or(&device.stored).to_vec();
                }
                MetaOp::Write { lba, data } => {
                    assert_eq!(lba, Sector(8));
                    let block: Block = Box::new(data.try_into().unwrap());
                    device.cached = Some(block);
                    if device.volatile {
                        device.stored = device.cached.take().unwrap();
                    }
                }
                MetaOp::Flush => {
                    device.flush();
                    self.trace.push(format!("flush {handle}"));
                }
            }
        }
        let boot = if given_up { None } else { self.devices[&handle].boot };
        self.input(Input::MetaDone { id, status, boot, data: read });
        true
    }

    /// Ends the `nth` sync run.
    pub(super) fn step_sync(&mut self, nth: usize) -> bool {
        let halted = |m: &crate::message::MemberView| m.state == MemberState::Silent;
        let waits = self.view.suspended || self.view.members.iter().any(halted);
        if self.sync.is_empty() || self.sync_held || waits && !self.view.read_only && !self.view.abandon {
            return false;
        }
        let run = self.sync.remove(nth % self.sync.len()).unwrap();
        let refused = self.view.read_only || self.view.abandon;
        let mut status = if refused { IoStatus::ReadOnly } else { self.sync_status };
        if let SyncKind::Recovery(slot) = run.kind {
            let member = self.workers[0].view.members[slot.index()];
            match member.state {
                MemberState::Recovering { .. } if status.is_ok() => {
                    let at = run.stripe.0 * CHUNK.0 + u64::from(run.from);
                    let device = self.devices.get_mut(&member.handle.0).unwrap();
                    device.rebuilt.extend(at..at + u64::from(run.sectors));
                    if device.volatile {
                        device.rebuilt_flushed = device.rebuilt.clone();
                    }
                }
                MemberState::Recovering { .. } => {}
                _ => status = IoStatus::Failed,
            }
        }
        self.input(Input::SyncDone { request: run.request, status, mismatches: 0 });
        true
    }

    pub(super) fn command(&mut self, command: Command) -> u64 {
        self.commands += 1;
        let id = self.commands;
        self.input(Input::Command(CommandId(id), command));
        id
    }

    pub(super) fn commands(&self) -> u64 {
        self.commands
    }

    /// Plugs in a fresh device and adds it.
    pub(super) fn add(&mut self, handle: u16) -> u64 {
        self.devices.entry(handle).or_insert_with(fresh_device);
        let device = described(handle, &self.devices[&handle]);
        self.command(Command::Add { device, device_uuid: [(handle as u8).wrapping_add(1); 16] })
    }

    pub(super) fn event(&mut self, handle: u16, event: MemberEvent) {
        let mut event = event;
        if event == MemberEvent::Restarted {
            let device = self.devices.get_mut(&handle).unwrap();
            device.boot = device.boot.map(|boot| boot + 1);
            event = device.boot.map_or(event, MemberEvent::Boot);
            device.cached = None;
            device.rebuilt = device.rebuilt_flushed.clone();
            device.forgot |= device.unflushed;
            device.unflushed = false;
        }
        if event == MemberEvent::Volatile {
            self.devices.get_mut(&handle).unwrap().volatile = true;
        }
        self.input(Input::Member(MemberHandle(handle), event));
    }

    /// The device stops answering, and that is noticed.
    pub(super) fn silence(&mut self, handle: u16) {
        self.devices.get_mut(&handle).unwrap().mute = true;
        let since = self.now;
        self.event(handle, MemberEvent::Silent { since });
    }

    pub(super) fn unsilence(&mut self, handle: u16) {
        self.devices.get_mut(&handle).unwrap().mute = false;
        self.event(handle, MemberEvent::Answers);
    }

    pub(super) fn member_error(&mut self, handle: u16, status: IoStatus) {
        let report = Report::MemberError { handle: MemberHandle(handle), status };
        self.input(Input::Report(WorkerId(0), report));
    }

    pub(super) fn detail(&self) -> Detail {
        self.array.detail(self.now)
    }

    pub(super) fn state(&self, slot: usize) -> MemberState {
        self.view.members[slot].state
    }

    pub(super) fn view(&self) -> &View {
        &self.view
    }

    /// The superblock that a device has stored.
    pub(super) fn superblock(&self, handle: u16) -> Superblock {
        self.durable(handle).unwrap()
    }

    /// The slots whose superblocks all members agree on.
    pub(super) fn role(&self, handle: u16) -> Role {
        let number = self.superblock(handle).dev_number;
        let member = self.view.members.iter().find(|m| m.state != MemberState::Absent).unwrap();
        self.superblock(member.handle.0).role_of(number)
    }
}

impl FakeDevice {
    pub(super) fn forget_rebuilt(&mut self) {
        self.forgot = false;
        self.rebuilt.clear();
        self.rebuilt_flushed.clear();
    }

    fn flush(&mut self) {
        if let Some(block) = self.cached.take() {
            self.stored = block;
        }
        self.unflushed = false;
        self.rebuilt_flushed = self.rebuilt.clone();
    }
}

pub(super) fn described(handle: u16, device: &FakeDevice) -> Device {
    let &FakeDevice { sectors, volatile, boot, .. } = device;
    Device { handle: MemberHandle(handle), name: format!("d{handle}"), sectors, volatile, boot }
}
