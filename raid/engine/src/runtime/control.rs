//! The control thread: drives the array's life cycle.
//!
//! It collects what workers report, what operators ask and what its own metadata requests brought, hands it to [`Array::turn`] one by
//! one, and carries the effects out. It has channels of its own to every member, so it never waits for stripes.
//!
//! Bounds: one turn per message; metadata memory as [`super::bufs::BYTES_MAX`]; commands by [`COMMANDS_MAX`].

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use raid_core::units::{DataIndex, Sector};

use super::bufs::Bufs;
use super::seating::{Change, Seating};
use super::topology;
use super::watch::{Looks, Watch};
use super::{Shared, ToArray, WorkerMsg};
use crate::array::MemberEvent;
use crate::array::{
    self, Array, Command, CommandError, CommandErrorKind, CommandId, Detail, Effect, Input, LogLevel, MetaId, MetaOp,
    SyncRun,
};
use crate::letters::{Bundle, Stock};
use crate::member::aoe::Care;
use crate::member::aoe::paths::DevicePaths;
use crate::member::devices::{Device, DeviceEvent, Devices};
use crate::member::{Done, MemberOp, MemberRequest, MemberRequestId, Owner};
use crate::message::{ClientId, IoStatus, MemberHandle, Part, PartOp, PartReply};
use crate::slab::{Buf, Piece};
use crate::sync::Ordering;
use crate::tunables::Settings;

/// Commands waiting for the control thread.
const COMMANDS_MAX: usize = 256;

/// Longest sleep: also how often sync is told whether clients are busy.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// How often to look which CPUs there are.
const LOOK_AT_CPUS: Duration = Duration::from_millis(500);

pub(super) type Answer = SyncSender<Result<(), CommandError>>;

/// What an operator's thread sends.
#[derive(Debug)]
pub(super) enum Ask {
    /// Take in a device.
    Add { device: Device, name: String, device_uuid: [u8; 16], answer: Answer },
    /// Anything that names a device by handle, or none.
    Command(Command, Answer),
    /// How it stands.
    Detail(SyncSender<Detail>),
    /// The device with this name.
    Find(String, SyncSender<Option<MemberHandle>>),
    /// New settings.
    Tune(Box<Settings>, Answer),
    /// The paths to AoE devices, a list from each owner: this thread and every worker.
    Paths(SyncSender<Vec<DevicePaths>>),
    /// Use the links that there are now.
    Relink(Answer),
    /// Look after the paths to one AoE device, or to all.
    Care(Option<MemberHandle>, Care, Answer),
}

/// Commands on their way to the control thread.
#[derive(Debug, Default)]
pub(super) struct Asks(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    asks: VecDeque<Ask>,
    /// The array has ended: nobody answers any more.
    closed: bool,
}

/// Why an ask was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAsked {
    /// Too many are waiting.
    Full,
    /// The array has ended.
    Ended,
}

impl Asks {
    /// Queues one.
    pub(super) fn push(&self, ask: Ask) -> Result<(), NotAsked> {
        let mut waiting = self.0.lock().expect("no panic while held");
        if waiting.closed {
            return Err(NotAsked::Ended);
        }
        if waiting.asks.len() >= COMMANDS_MAX {
            return Err(NotAsked::Full);
        }
        waiting.asks.push_back(ask);
        Ok(())
    }

    fn pop(&self) -> Option<Ask> {
        self.0.lock().expect("no panic while held").asks.pop_front()
    }

    fn is_empty(&self) -> bool {
        self.0.lock().expect("no panic while held").asks.is_empty()
    }

    /// Answers whoever still waits by hanging up.
    fn close(&self) {
        let mut waiting = self.0.lock().expect("no panic while held");
        waiting.closed = true;
        waiting.asks.clear();
    }
}

/// A metadata request that is out.
#[derive(Debug)]
struct Meta {
    op: MemberOp,
    buf: Option<Buf>,
}

pub(super) struct ControlThread {
    shared: Arc<Shared>,
    asks: Arc<Asks>,
    watch: Arc<Watch>,
    /// What those who watch know.
    looks: Looks,
    array: Array,
    devices: Devices,
    done: Vec<Done>,
    effects: Vec<Effect>,
    meta: HashMap<MemberRequestId, Meta>,
    bufs: Bufs,
    answers: HashMap<CommandId, Answer>,
    /// By member: owners whose requests are overdue.
    silent: HashMap<MemberHandle, Vec<Owner>>,
    /// A metadata request was submitted since the devices were last pumped.
    sent: bool,
    next_command: u64,
    next_handle: u16,
    /// The group for the next piece of sync.
    next_group: usize,
    /// Letters of the array's sync, by request.
    letters: Stock,
    letters_out: HashMap<u32, Bundle>,
    seating: Seating,
    change: Change,
    /// When to look at the CPUs again.
    next_look: Duration,
    /// Client parts that the workers had taken in when last asked, and when that was.
    busy: (u64, Duration),
    /// The array has had its first turn.
    begun: bool,
    /// Set once the array has ended.
    exit: Option<i32>,
    /// The time of the current step.
    now: Duration,
}

impl ControlThread {
    pub(super) fn new(
        shared: Arc<Shared>,
        asks: Arc<Asks>,
        array: Array,
        devices: Devices,
        bufs: Bufs,
        next_handle: u16,
        seating: Seating,
    ) -> ControlThread {
        ControlThread {
            shared,
            asks,
            watch: Arc::default(),
            looks: Looks::of(&array),
            array,
            devices,
            done: Vec::new(),
            effects: Vec::new(),
            meta: HashMap::new(),
            bufs,
            answers: HashMap::new(),
            silent: HashMap::new(),
            sent: false,
            next_command: 0,
            next_handle,
            next_group: 0,
            letters: Stock::default(),
            letters_out: HashMap::new(),
            seating,
            change: Change::default(),
            next_look: Duration::ZERO,
            busy: (0, Duration::ZERO),
            begun: false,
            exit: None,
            now: Duration::ZERO,
        }
    }

    /// Runs until the array has ended; answers with the exit status.
    pub(super) fn run(mut self) -> i32 {
        let _guard = super::AbortOnPanic;
        let start = self.shared.start;
        loop {
            let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
            self.look_at_cpus();
            if let Err(exit) = self.step(start.elapsed(), wall) {
                self.asks.close();
                self.watch.end();
                return exit;
            }
            self.sleep(start);
        }
    }

    /// Takes in what has arrived and carries out what the array wants; `wall` is in seconds since 1970. Answers when it wants to be stepped
    /// again though nothing arrives, or the exit status once the array has ended.
    pub(super) fn step(&mut self, now: Duration, wall: u64) -> Result<Duration, i32> {
        self.now = now;
        self.array.set_wall_clock(wall);
        self.collect();
        if !self.begun || self.array.wake_at().is_some_and(|at| at <= now) {
            self.begun = true;
            self.turn(Input::Timer);
        }
        // What those turns submitted leaves now, not when something next arrives.
        while std::mem::take(&mut self.sent) {
            self.pump();
        }
        if !self.array.may_change_workers() {
            // What was changed is in force, but workers may have to wait for members before they are done with it.
            self.change.end();
        }
        self.looks.follow(Looks::of(&self.array), &self.watch);
        self.exit.map_or(Ok(self.wake_at(now)), Err)
    }

    /// CPUs come and go, by themselves or out of the process's cpuset. This thread keeps to none, so it may use those that are left.
    fn look_at_cpus(&mut self) {
        if self.shared.start.elapsed() < self.next_look {
            return;
        }
        self.next_look = self.shared.start.elapsed() + LOOK_AT_CPUS;
        // Where that can't be read workers stay where they are.
        if let Ok(present) = topology::allowed() {
            self.change.cpus(&self.shared, &mut self.seating, present);
        }
    }

    /// When to step though nothing arrives.
    fn wake_at(&self, now: Duration) -> Duration {
        let next = [self.array.wake_at(), self.devices.wake_at(now)].into_iter().flatten().min();
        next.map_or(now + SLEEP_MAX, |at| at.min(now + SLEEP_MAX))
    }

    /// Where others see what has changed.
    pub(super) fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    pub(super) fn detail(&self) -> Detail {
        self.array.detail(self.now)
    }

    pub(super) fn find(&self, name: &str) -> Option<MemberHandle> {
        self.array.handle_of(name)
    }

    fn collect(&mut self) {
        while let Some(ask) = self.asks.pop() {
            self.ask(ask);
        }
        while let Some(msg) = self.shared.to_array.pop() {
            match msg {
                ToArray::Report(worker, report) => self.turn(Input::Report(worker, report)),
                ToArray::Member(owner, handle, event) => self.member_event(owner, handle, event),
                ToArray::Shaped(token, spare) => {
                    // Memory that a worker has no use for goes back here, where it keeps nobody waiting.
                    drop(spare);
                    self.change.shaped(token);
                }
                ToArray::Sync(reply) => {
                    let PartReply { request, status, mismatches, .. } = reply;
                    self.letters.give(self.letters_out.remove(&request).expect("a piece of sync ends once"));
                    self.turn(Input::SyncDone { request, status, mismatches });
                }
            }
        }
        self.pump();
        self.tell_busy();
    }

    /// Collects metadata requests that ended. Each turn may send more.
    fn pump(&mut self) {
        let now = self.now;
        self.devices.pump(now, &mut self.done);
        let mut events = Vec::new();
        self.devices.events(now, &mut events);
        for event in events {
            match event {
                DeviceEvent::Member(handle, event) => self.member_event(Owner::Control, handle, event),
                DeviceEvent::Wake(owner) => self.shared.wake(owner),
            }
        }
        while let Some(done) = self.done.pop() {
            let meta = self.meta.remove(&done.id).expect("a metadata request ends once");
            let mut data = Vec::new();
            if let Some(buf) = meta.buf {
                if meta.op == MemberOp::Read && done.status.is_ok() {
                    data.extend_from_slice(&buf);
                }
                self.bufs.give(buf);
            }
            self.turn(Input::MetaDone { id: MetaId(done.id.0), status: done.status, boot: done.boot, data });
        }
    }

    /// A member is silent as long as any owner's request to it is overdue: one owner's answer is not another's.
    fn member_event(&mut self, owner: Owner, handle: MemberHandle, event: MemberEvent) {
        let waiting = self.silent.entry(handle).or_default();
        match event {
            MemberEvent::Silent { .. } | MemberEvent::Gone if !waiting.contains(&owner) => waiting.push(owner),
            MemberEvent::Answers => waiting.retain(|other| *other != owner),
            _ => {}
        }
        if event != MemberEvent::Answers || waiting.is_empty() {
            self.turn(Input::Member(handle, event));
        }
    }

    /// Tells the array whether clients were busy in the last tenth of a second.
    fn tell_busy(&mut self) {
        let (parts, at) = self.busy;
        let now = self.now;
        if now < at + SLEEP_MAX {
            return;
        }
        let total: u64 = self.shared.workers.iter().map(|w| w.parts.load(Ordering::Relaxed)).sum();
        self.busy = (total, now);
        self.turn(Input::Busy(total != parts));
    }

    fn turn(&mut self, input: Input) {
        let mut effects = std::mem::take(&mut self.effects);
        self.array.turn(self.now, input, &mut effects);
        for effect in effects.drain(..) {
            self.carry_out(effect);
        }
        self.effects = effects;
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Meta { id, handle, op } => self.send_meta(id, handle, op),
            Effect::CancelMeta { id, handle } => self.devices.cancel(self.now, handle, MemberRequestId(id.0)),
            Effect::ToWorkers(message) => {
                self.tell_workers(|| WorkerMsg::Array(message.clone()));
            }
            Effect::Sync(runs) => self.send_sync(&runs),
            Effect::Answer(id, result) => {
                if let Some(answer) = self.answers.remove(&id) {
                    // Who asked may have gone away.
                    let _ = answer.try_send(result);
                }
            }
            Effect::Released(handle) => {
                self.silent.remove(&handle);
                self.devices.detach(handle, self.now);
                self.tell_workers(|| WorkerMsg::Detach(handle));
            }
            Effect::FlushFault => self.shared.fail_next_flushes(),
            Effect::Stopped { exit } => self.exit = Some(exit),
            Effect::Log(level, text) => match level {
                LogLevel::Info => tracing::info!("{text}"),
                LogLevel::Warn => tracing::warn!("{text}"),
                LogLevel::Error => tracing::error!("{text}"),
            },
        }
    }

    fn send_meta(&mut self, id: MetaId, handle: MemberHandle, op: MetaOp) {
        let id = MemberRequestId(id.0);
        let (op, lba, buf) = match op {
            MetaOp::Flush => (MemberOp::Flush, Sector::ZERO, None),
            MetaOp::Read { lba, sectors } => (MemberOp::Read, lba, self.bufs.take(sectors.bytes().0 as usize)),
            MetaOp::Write { lba, data } => {
                let mut buf = self.bufs.take(data.len());
                if let Some(buf) = &mut buf {
                    buf.copy_from_slice(&data);
                }
                (MemberOp::Write, lba, buf)
            }
        };
        let sectors = buf.as_ref().map_or(0, |b| (b.len() / 512) as u32);
        let segs: Vec<Piece> = buf.iter().map(|b| b.piece().sub(0, sectors)).collect();
        let no_memory = op != MemberOp::Flush && buf.is_none();
        self.meta.insert(id, Meta { op, buf });
        if no_memory {
            self.done.push(Done { id, status: IoStatus::Failed, boot: None, closed_until: None });
            return;
        }
        let request =
            MemberRequest { id, handle, op, lba, sectors, segs_from: 0, segs: segs.len() as u32, warm: false };
        let now = self.now;
        self.sent = true;
        self.devices.submit(now, &request, &segs, &mut self.done);
    }

    /// Posts sync runs, which are whole rows in order; those for idle regions to the groups in turn.
    fn send_sync(&mut self, runs: &[SyncRun]) {
        for run in runs {
            let part = Part {
                client: ClientId::ARRAY,
                op: PartOp::Sync(run.kind),
                request: run.request,
                stripe: run.stripe,
                data: DataIndex(0),
                from: run.from,
                sectors: run.sectors,
                piece: Piece::NONE,
            };
            let mut bundle = Bundle::default();
            let slot = self.letters.take(&mut bundle);
            self.letters_out.insert(run.request, bundle);
            self.next_group = (self.next_group + 1) % self.shared.board.groups();
            let kicks = self.shared.post(&[part], self.next_group, |_| slot, &self.shared.posts);
            self.shared.kick(kicks);
        }
    }

    fn ask(&mut self, ask: Ask) {
        match ask {
            Ask::Add { device, name, device_uuid, answer } => self.add(device, name, device_uuid, answer),
            Ask::Command(command, answer) => self.command(command, answer),
            Ask::Detail(to) => {
                // Who asked may have gone away.
                let _ = to.try_send(self.detail());
            }
            Ask::Find(name, to) => {
                let _ = to.try_send(self.find(&name));
            }
            Ask::Tune(settings, answer) => self.tune(&settings, answer),
            Ask::Paths(to) => {
                let _ = to.try_send(self.devices.paths());
                self.tell_workers(|| WorkerMsg::Paths(to.clone()));
            }
            Ask::Relink(answer) => {
                let done = self.devices.relink(self.now).map_err(|error| {
                    let text = format!("the interfaces cannot be opened: {error}");
                    CommandError { kind: CommandErrorKind::Io, text }
                });
                if done.is_ok() {
                    self.tell_workers(|| WorkerMsg::Relink);
                }
                let _ = answer.try_send(done);
            }
            Ask::Care(handle, care, answer) => {
                self.devices.care(self.now, handle, care);
                if care != Care::Ask {
                    self.tell_workers(|| WorkerMsg::Care(handle, care));
                }
                let _ = answer.try_send(Ok(()));
            }
        }
    }

    /// Makes settings those in force: all or none.
    fn tune(&mut self, settings: &Settings, answer: Answer) {
        let old = self.seating.settings();
        let shape = |s: &Settings| (s.group_thread_cnt, s.worker_group, s.stripe_cache_size);
        if shape(old) == shape(settings) {
            // Who asked may have gone away.
            let _ = answer.try_send(Ok(()));
        } else if !self.array.may_change_workers() {
            let text = "workers and stripe cache cannot be changed while a member is silent or the array is suspended or \
                        stopping: see `detail`, and try again";
            let error = CommandError { kind: CommandErrorKind::Busy, text: text.into() };
            let _ = answer.try_send(Err(error));
            return;
        } else if let Err((error, answer)) = self.change.begin(&self.shared, &mut self.seating, settings, answer) {
            let _ = answer.try_send(Err(error));
            return;
        }
        let (aoe, spin) = (settings.aoe, settings.poll_spin);
        self.turn(Input::Tune(settings.array.clone()));
        self.devices.tune(self.now, aoe);
        self.tell_workers(|| WorkerMsg::Tune(aoe));
        self.shared.spin.store(spin.as_nanos() as u64, Ordering::Relaxed);
    }

    fn tell_workers(&self, message: impl Fn() -> WorkerMsg) {
        for worker in 0..self.shared.workers.len() {
            self.shared.tell(worker, message());
        }
    }

    fn command(&mut self, command: Command, answer: Answer) {
        let id = CommandId(self.next_command);
        self.next_command += 1;
        self.answers.insert(id, answer);
        self.turn(Input::Command(id, command));
    }

    /// Makes the device known to every worker and to ourselves, then asks the array to take it in.
    fn add(&mut self, device: Device, name: String, device_uuid: [u8; 16], answer: Answer) {
        if usize::from(self.next_handle) >= crate::member::devices::HANDLES_MAX {
            let text = "too many devices were added in this array's run: stop it and run it anew".into();
            // Who asked may have gone away.
            let _ = answer.try_send(Err(CommandError { kind: CommandErrorKind::Busy, text }));
            return;
        }
        // Before any channel is opened: opening one would end the one that is in use.
        let rows = self.detail().devices;
        let lost = |state: &str| state.contains("missing") || state.contains("faulty");
        if rows.iter().any(|row| row.device.as_deref() == Some(&name) && !lost(&row.state)) {
            let text = format!("{name} is in the array already");
            let _ = answer.try_send(Err(CommandError { kind: CommandErrorKind::Busy, text }));
            return;
        }
        let handle = MemberHandle(self.next_handle);
        self.next_handle += 1;
        if let Err(error) = self.devices.attach(handle, &device, self.now) {
            let text = format!("no channel to {name} can be opened: {error}");
            let _ = answer.try_send(Err(CommandError { kind: CommandErrorKind::Io, text }));
            return;
        }
        self.tell_workers(|| WorkerMsg::Attach(handle, device.clone()));
        let (sectors, volatile, boot) = (device.sectors(), device.volatile(), device.boot());
        let device = array::Device { handle, name, sectors, volatile, boot };
        self.command(Command::Add { device, device_uuid }, answer);
    }

    fn sleep(&mut self, start: Instant) {
        let wake = &self.shared.array_wake;
        wake.announce();
        let waiting = !self.shared.to_array.is_empty() || !self.done.is_empty();
        let waiting = waiting || !self.asks.is_empty();
        let now = start.elapsed();
        let timeout = self.wake_at(now).saturating_sub(now);
        if waiting || timeout.is_zero() {
            wake.stay_awake();
            return;
        }
        wake.sleep(self.devices.fds(), Some(timeout));
    }
}
