//! The world of a run: hosts, network, engine and clients on one thread, and time, which moves from one event to the next.
//!
//! [`World::turn`] is one instant: frames arrive, clients poll and submit, the engine is stepped until nothing is left to do; then time goes to the
//! next event. What was found to be wrong ends the run. [`run`] is the whole of it.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aoe_proto::port::PortInfo;
use aoe_proto::wire::{Address, MacAddr};
use aoe_sim::{Direction, Faults, HostId, Network, PortConfig, PortId, Rng, Span};
use raid_core::geometry::Geometry;
use raid_core::parity::Kernels;
use raid_core::units::{MemberCount, MemberIndex};
use raid_engine::array::{ArrayState, Detail};
use raid_engine::runtime::stepped::Stepped;
use raid_engine::slab::Slab;

use super::disk::{Disk, Findings};
use super::ether::{Ether, Ports, SharedEther};
use super::load::Load;
use super::model::Model;
use super::shape::{LIFETIME, Shape};
use super::target::{Kind, Target};

/// Longest run, in virtual time.
pub const RUN_TIME_MAX: Duration = Duration::from_secs(7200);

/// Most turns of a run.
pub const STEPS_MAX: u64 = 10_000_000;

/// How often the engine is stepped at one instant.
const ROUNDS_MAX: u32 = 10_000;

/// A request that is older than this, with nothing in its way for as long, is stuck.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Address space of a run's slab.
const SLAB_BYTES: usize = 12 << 30;

/// Events kept for the report of a failure.
const EVENTS_KEPT: usize = 200;

/// Hosts that may become members in a run.
const HOSTS_MAX: usize = 24;

/// A host with one disk.
pub struct MemberHost {
    /// As the engine calls its device.
    pub name: String,
    /// Its address.
    pub address: Address,
    /// What it holds.
    pub disk: Disk,
    /// What serves it.
    pub target: Target,
    /// Its host in the network.
    pub host: HostId,
    /// Its port there.
    pub port: PortId,
    /// Answers.
    pub up: bool,
    /// Starts so far.
    pub boots: u32,
    /// When it was last started anew.
    pub restarted_at: Option<Duration>,
    /// Never comes back.
    pub dead: bool,
}

impl MemberHost {
    /// Which start of it answers, where it tells.
    pub fn boot(&self) -> Option<u32> {
        (self.target.kind() == Kind::Ours).then_some(self.boots)
    }
}

/// A running engine and its clients.
pub struct Engine {
    /// The engine.
    pub stepped: Stepped,
    /// Its clients.
    pub loads: Vec<Load>,
    /// Its links.
    pub links: Arc<Ports>,
}

/// How a run went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Turns.
    pub steps: u64,
    /// Virtual time.
    pub time: Duration,
    /// Requests that ended.
    pub requests: u64,
    /// Frames in the network.
    pub frames: u64,
    /// Times that an engine was started.
    pub starts: u64,
}

/// See the module's text.
pub struct World {
    /// What the run looks like.
    pub shape: Shape,
    /// For what happens.
    pub rng: Rng,
    /// The time.
    pub now: Duration,
    /// Counts turns and requests: the model's time.
    pub step: u64,
    /// Network and time, shared with the links.
    pub ether: SharedEther,
    /// All hosts with disks, those not in use included.
    pub hosts: Vec<MemberHost>,
    /// What is wrong.
    pub findings: Arc<Mutex<Findings>>,
    /// The array's shape.
    pub geometry: Geometry,
    /// What the array may hold.
    pub model: Model,
    /// Memory of the engine.
    pub slab: Arc<Slab>,
    /// The engine, while one runs.
    pub engine: Option<Engine>,
    /// How the array stands, as of the last turn.
    pub detail: Option<Detail>,
    /// Requests that clients may still submit in this episode.
    pub left: u64,
    /// Longest pause between submissions in this episode.
    pub think: Duration,
    /// Faults of the network now.
    pub faults: Faults,
    /// The switch works.
    pub switch_up: bool,
    /// Something was in the way until then.
    pub disturbed: Duration,
    /// Flushes may fail with an error: caches were lost beyond what parity covers.
    pub flush_faults: bool,
    /// Requests may end as stopped.
    pub abandoning: bool,
    /// Seconds since 1970 at the start.
    pub report: Report,
    /// Sectors whose rows were being written when an engine ended, until all members are in sync and parity is right: what a member that is lost
    /// before that held in these rows is unknown, as nothing else tells.
    pub risk: Vec<u64>,
    /// Those where parity is right again, but may be so in caches alone; and since which step.
    pub risk_cached: (u64, Vec<u64>),
    /// Slots whose part of that has been forgotten.
    pub forgotten: Vec<MemberIndex>,
    /// The last host known in each slot.
    pub holders: Vec<Option<usize>>,
    /// For the report of a failure.
    pub events: Arc<Mutex<VecDeque<String>>>,
    next_wake: Duration,
}

fn mac(kind: u8, number: usize) -> [u8; 6] {
    [2, 0, 0, 0, kind, number as u8]
}

impl World {
    /// A world whose members have been made an array of, and no engine.
    pub fn new(seed: u64, events: &Arc<Mutex<VecDeque<String>>>) -> World {
        let shape = Shape::new(seed);
        let mut rng = Rng::new(seed ^ 0xF00D);
        let mut network = Network::new(rng.next_u64());
        let near = network.add_host();
        let config = |mac| PortConfig { mtu: shape.mtu, queue_bytes: 8 << 20, ..PortConfig::new(mac) };
        let ports: Vec<_> = (0..=shape.workers).map(|n| network.add_port(near, config(mac(1, n)))).collect();
        let ether = Arc::new(Mutex::new(Ether::new(network, &ports)));
        let findings = Arc::new(Mutex::new(Findings::default()));
        let members = MemberCount(shape.targets.len() as u8);
        let size = raid_core::units::Sectors(shape.rows * shape.chunk.0);
        let geometry = Geometry::new(members, shape.chunk, size, shape.layout).expect("a shape within the limits");
        let mut world = World {
            model: Model::new(shape.garbage),
            rng,
            now: Duration::ZERO,
            step: 1,
            ether,
            hosts: Vec::new(),
            findings,
            geometry,
            slab: Slab::with_bytes(Kernels::portable(), SLAB_BYTES).expect("address space"),
            engine: None,
            detail: None,
            left: 0,
            think: Duration::ZERO,
            faults: Faults::NONE,
            switch_up: true,
            disturbed: Duration::ZERO,
            flush_faults: false,
            abandoning: false,
            report: Report::default(),
            risk: Vec::new(),
            risk_cached: (0, Vec::new()),
            forgotten: Vec::new(),
            holders: vec![None; members.len()],
            events: Arc::clone(events),
            next_wake: Duration::ZERO,
            shape,
        };
        for kind in world.shape.targets.clone() {
            world.add_host(kind);
        }
        world.calm_network();
        world.create();
        if world.shape.garbage {
            world.risk.extend(0..world.geometry.array_sectors().0);
        }
        // No beacon of these starts is under way any more.
        world.run_for(LIFETIME);
        world
    }

    /// Adds a host with an empty disk, and starts its target.
    pub fn add_host(&mut self, kind: Kind) -> usize {
        let index = self.hosts.len();
        assert!(index < HOSTS_MAX, "a run needs few hosts");
        let (host, port) = {
            let network = &mut self.ether.lock().expect("one thread").network;
            let host = network.add_host();
            let config = PortConfig { mtu: self.shape.mtu, queue_bytes: 8 << 20, ..PortConfig::new(mac(2, index)) };
            (host, network.add_port(host, config))
        };
        let name = format!("e9.{index}");
        let disk_rng = Rng::new(self.rng.next_u64());
        let sectors = 2048 + self.shape.rows * self.shape.chunk.0 + self.rng.below(2) * 64;
        let disk = Disk::new(&name, sectors, kind != Kind::Vblade, disk_rng, &self.findings);
        let address = Address::new(9, index as u8);
        let info = PortInfo { mac: MacAddr(mac(2, index)), mtu: self.shape.mtu as u32 };
        let target = Target::new(kind, address, disk.clone(), info, self.shape.buffers);
        self.hosts.push(MemberHost {
            name,
            address,
            disk,
            target,
            host,
            port,
            up: true,
            boots: 0,
            restarted_at: None,
            dead: false,
        });
        self.start_target(index, false);
        index
    }

    /// Starts a host's target, or starts it `anew`: then nobody knows which requests it answered before.
    pub fn start_target(&mut self, index: usize, anew: bool) {
        let now = self.now;
        let host = &mut self.hosts[index];
        host.boots += 1;
        host.restarted_at = anew.then_some(now);
        let changes_from = if anew { now + LIFETIME } else { now };
        let network = &mut self.ether.lock().expect("one thread").network;
        let port = host.port;
        host.target.start(host.boots, LIFETIME, changes_from, |frame| network.send(now, port, frame));
    }

    /// The network is as the shape has it. Towards targets that cannot recognise repeated requests, a copy directly follows its original, on the
    /// last link.
    pub fn calm_network(&mut self) {
        self.set_faults(self.shape.faults);
    }

    /// Sets the faults of all links.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
        let all_ours = self.hosts.iter().all(|host| host.target.kind() == Kind::Ours);
        let network = &mut self.ether.lock().expect("one thread").network;
        network.set_all_faults(faults);
        if all_ours {
            return;
        }
        for port in (0..=self.shape.workers).map(PortId) {
            network.faults(port, Direction::ToSwitch).duplicate = aoe_sim::Ppm::ZERO;
        }
        for host in self.hosts.iter().filter(|host| host.target.kind() != Kind::Ours) {
            network.faults(host.port, Direction::FromSwitch).duplicate_delay = Span::ZERO;
        }
    }

    /// Adds a line to what a failure shows.
    pub fn note(&self, what: impl AsRef<str>) {
        let mut events = self.events.lock().expect("one thread");
        if events.len() == EVENTS_KEPT {
            events.pop_front();
        }
        events.push_back(format!("{:>12.6} {}", self.now.as_secs_f64(), what.as_ref()));
    }

    /// Ends the run: something is wrong.
    pub fn fail(&self, what: impl AsRef<str>) -> ! {
        panic!("at {:?}: {}\n{:?}\nlast detail: {:?}", self.now, what.as_ref(), self.shape, self.detail);
    }

    /// Seconds since 1970.
    fn wall(&self) -> u64 {
        1_700_000_000 + self.now.as_secs()
    }

    /// One instant, then on to the next, not beyond `until`.
    pub fn turn(&mut self, until: Duration) {
        self.report.steps += 1;
        if self.report.steps > STEPS_MAX || self.now > RUN_TIME_MAX {
            self.fail("the run does not end");
        }
        self.deliver();
        let mut next = until;
        if self.engine.is_some() {
            next = next.min(self.engine_turn());
            self.after_engine();
        }
        let notes = std::mem::take(&mut self.findings.lock().expect("one thread").notes);
        notes.iter().for_each(|note| self.note(note));
        let found = self.findings.lock().expect("one thread").offences.first().cloned();
        if let Some(found) = found {
            self.fail(found);
        }
        let ether = &mut *self.ether.lock().expect("one thread");
        let event = ether.network.next_event().unwrap_or(until);
        self.now = next.min(event).clamp(self.now, until);
        ether.now = self.now;
    }

    /// Frames that have arrived go to whom they are for.
    fn deliver(&mut self) {
        let now = self.now;
        let ether = &mut *self.ether.lock().expect("one thread");
        while let Some((port, frame)) = ether.network.poll(now) {
            self.report.frames += 1;
            let Some(frame) = ether.arrived(port, frame) else { continue };
            if let Some(host) = self.hosts.iter_mut().find(|host| host.port == port) {
                let from = frame.get(11).copied().unwrap_or_default();
                let tag = frame.get(20..24).unwrap_or_default();
                self.findings.lock().expect("one thread").frame = format!("port {from}, tag {tag:02x?} at {now:?}");
                host.target.handle(now, &frame, |reply| ether.network.send(now, port, reply));
            }
            ether.network.recycle(frame);
        }
    }

    /// Steps clients and engine until nothing is left to do now; answers when to do so again.
    fn engine_turn(&mut self) -> Duration {
        let mut last = None;
        for _ in 0..ROUNDS_MAX {
            let (moved, client_wake) = self.clients_turn();
            let frames = self.ether.lock().expect("one thread").moved;
            let (now, wall) = (self.now, self.wall());
            let engine = self.engine.as_mut().expect("the engine runs");
            let engine_wake = engine.stepped.step(now, wall);
            let quiet = self.ether.lock().expect("one thread").moved == frames;
            if !moved && quiet && engine_wake > now {
                return engine_wake.min(client_wake);
            }
            last = Some((moved, quiet, engine_wake));
        }
        self.fail(format!("the engine does not come to rest: clients moved, network quiet, wake at {last:?}"));
    }

    /// Looks at what the engine has become.
    fn after_engine(&mut self) {
        let detail = self.engine.as_ref().expect("the engine runs").stepped.detail();
        let suspended = detail.array_state == ArrayState::Suspended;
        let mut findings = self.findings.lock().expect("one thread");
        if !suspended {
            findings.events_max = None;
        } else if findings.events_max.is_none() {
            findings.events_max = Some(detail.events);
        }
        drop(findings);
        if suspended || !self.switch_up {
            self.disturbed = self.now;
        }
        self.detail = Some(detail);
        self.follow_holders();
        self.follow_risk();
        if self.now >= self.next_wake {
            self.next_wake = self.now + Duration::from_secs(1);
            self.look_for_stuck();
        }
    }

    fn look_for_stuck(&self) {
        let loads = &self.engine.as_ref().expect("the engine runs").loads;
        let oldest = loads.iter().filter_map(Load::oldest).min();
        if let Some(at) = oldest.filter(|at| self.now > (*at).max(self.disturbed) + PATIENCE) {
            self.fail(format!("a request of {at:?} has not ended"));
        }
    }

    /// Lets the world go on for a while.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.turn(until);
        }
    }

    /// Lets the world go on until something is so, or for `limit`; whether it came to be so.
    pub fn run_until(&mut self, limit: Duration, so: impl Fn(&World) -> bool) -> bool {
        let until = self.now + limit;
        while !so(self) {
            if self.now >= until {
                return false;
            }
            self.turn(until);
        }
        true
    }

    /// As [`run_until`](World::run_until), of what must come to be so.
    pub fn expect(&mut self, what: &str, limit: Duration, so: impl Fn(&World) -> bool) {
        if !self.run_until(limit, so) {
            self.fail(format!("not {what} within {limit:?}"));
        }
    }
}

impl Drop for World {
    /// A client that is dropped waits for what it has in flight, which nobody would end.
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.stepped.kill(engine.loads.into_iter().map(|load| load.client).collect());
        }
    }
}

/// Runs one seed; panics when something is wrong, with the command that replays it and what happened last.
pub fn run(seed: u64) -> Report {
    let events = Arc::new(Mutex::new(VecDeque::new()));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let writer = Arc::clone(&events);
        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_ansi(false)
            .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
            .with_writer(move || EventWriter(Arc::clone(&writer)))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let mut world = World::new(seed, &events);
            world.play();
            let frames = world.ether.lock().expect("one thread").network.totals().sent;
            Report { time: world.now, frames, ..world.report }
        })
    }));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let events = events.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let last: Vec<&str> = events.iter().map(String::as_str).collect();
        panic!(
            "{}\n\n{text}\n\nreplay: ETHERRAID_SEED={seed} cargo test -p etherraid-tests --test simulation",
            last.join("\n")
        )
    })
}

/// Puts what the engine logs among the world's events.
struct EventWriter(Arc<Mutex<VecDeque<String>>>);

impl io::Write for EventWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let mut events = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if events.len() == EVENTS_KEPT {
            events.pop_front();
        }
        events.push_back(format!("             {}", String::from_utf8_lossy(text).trim_end()));
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
