//! A world for tests: initiators and a target over the simulated Ethernet, one thread, virtual time, a workload from a seed.
//!
//! Everything that happens follows from the seed. A failing run panics with the command that replays it.

#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod model;
pub(crate) mod target;

use aoe_proto::initiator::{
    Config, Credits, DeviceId, Event, Initiator, Op, PathState, Request, RequestId, Status, Tunables, WorkerId,
};
use aoe_proto::port::{PortId as AoePort, PortInfo};
use aoe_proto::wire::{Lba, MacAddr, SECTOR};
use aoe_sim::{HostId, Network, PortConfig, PortId, Rng};
use core::time::Duration;
use model::{Model, WriteId, contents};
use std::collections::BTreeMap;
use std::sync::Arc;
use target::{DEVICE, Store, Target};

/// Longest time that a run may take, in virtual time.
const DEADLINE: Duration = Duration::from_secs(3600);

/// What a world looks like.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) seed: u64,
    /// Initiators, each with sectors of its own.
    pub(crate) workers: u8,
    /// Ports of the initiators' host and of the target.
    pub(crate) ports: u8,
    pub(crate) mtu: u32,
    /// Sectors of the device.
    pub(crate) sectors: u64,
    /// Our shelf, or the plain target.
    pub(crate) ours: bool,
    /// Requests outstanding per worker at most.
    pub(crate) depth: usize,
    /// Requests per worker.
    pub(crate) requests: u64,
    pub(crate) cancels: bool,
    /// All requests are small, so that rates can be compared.
    pub(crate) even: bool,
    /// Frames may arrive damaged: nothing is promised but that each request ends once.
    pub(crate) damaged: bool,
    pub(crate) tunables: Tunables,
    /// Frames stay under way for no longer than this; the shelf remembers twice as long.
    pub(crate) lifetime: Duration,
}

impl Shape {
    pub(crate) fn new(seed: u64) -> Shape {
        Shape {
            seed,
            workers: 1,
            ports: 1,
            mtu: 9000,
            sectors: 128,
            ours: true,
            depth: 16,
            requests: 300,
            cancels: false,
            even: false,
            damaged: false,
            tunables: Tunables { aoe_deadsecs: 0, ..Tunables::default() },
            lifetime: Duration::from_secs(1),
        }
    }
}

struct Outstanding {
    op: Op,
    lba: u64,
    sectors: u32,
    /// Of a write: its number in the model.
    write: WriteId,
    submitted: u64,
    since: Duration,
    buffer: Vec<u8>,
}

/// An initiator with its workload.
struct Worker {
    initiator: Initiator,
    device: DeviceId,
    rng: Rng,
    found: bool,
    outstanding: BTreeMap<u64, Outstanding>,
    left: u64,
    next_id: u64,
}

/// Initiators, network and target.
pub(crate) struct World {
    pub(crate) shape: Shape,
    pub(crate) network: Network,
    pub(crate) now: Duration,
    pub(crate) target: Target,
    pub(crate) target_host: HostId,
    pub(crate) near_host: HostId,
    /// Ports of the initiators' host, shared by all workers; a reply reaches the worker that its tag names.
    pub(crate) near: Vec<PortId>,
    pub(crate) far: Vec<PortId>,
    workers: Vec<Worker>,
    model: Model,
    step: u64,
    next_write: WriteId,
    /// Requests by the way they ended.
    pub(crate) ended: BTreeMap<&'static str, u64>,
    /// When the last one did.
    pub(crate) last_ended: Duration,
    /// The longest time that one took.
    pub(crate) longest: Duration,
    /// With the time at which they were polled.
    pub(crate) events: Vec<(Duration, Event)>,
    pub(crate) boots: u32,
}

fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}

impl World {
    pub(crate) fn new(shape: Shape) -> World {
        let mut network = Network::new(shape.seed);
        let (near_host, target_host) = (network.add_host(), network.add_host());
        let mut port = |host, last| {
            let config = PortConfig { mtu: shape.mtu as usize, ..PortConfig::new(mac(last)) };
            network.add_port(host, config)
        };
        let near: Vec<_> = (0..shape.ports).map(|i| port(near_host, 1 + i)).collect();
        let far: Vec<_> = (0..shape.ports).map(|i| port(target_host, 101 + i)).collect();
        let store = Store(vec![0; shape.sectors as usize * SECTOR]);
        let target = if shape.ours {
            Target::shelf(store, 1, Duration::ZERO, shape.lifetime, &infos(&network, &far))
        } else {
            Target::Plain(store)
        };
        let credits = Arc::new(Credits::new());
        let mut rng = Rng::new(shape.seed ^ 0x5EED);
        let workers = (0..shape.workers)
            .map(|worker| {
                let config = Config {
                    discovers: worker == 0,
                    tunables: shape.tunables,
                    ..Config::new(WorkerId(worker), rng.next_u64())
                };
                let mut initiator = Initiator::new(config);
                for (port, info) in (0..).zip(infos(&network, &near)) {
                    initiator.set_port(Duration::ZERO, AoePort(port), Some(info));
                }
                Worker {
                    device: initiator.open(Duration::ZERO, DEVICE, Arc::clone(&credits)),
                    initiator,
                    rng: Rng::new(rng.next_u64()),
                    found: false,
                    outstanding: BTreeMap::new(),
                    left: shape.requests,
                    next_id: 1,
                }
            })
            .collect();
        World {
            model: Model::new(shape.sectors),
            shape,
            network,
            now: Duration::ZERO,
            target,
            target_host,
            near_host,
            near,
            far,
            workers,
            step: 1,
            next_write: 1,
            ended: BTreeMap::new(),
            last_ended: Duration::ZERO,
            longest: Duration::ZERO,
            events: Vec::new(),
            boots: 1,
        }
    }

    /// Fails the test, saying how to see it again.
    pub(crate) fn fail(&self, what: &str) -> ! {
        panic!(
            "{what}\n  at {:?}; {:?}\n  replay: ETHERRAID_SEED={} cargo test -p aoe-sim --test initiator_shelf",
            self.now, self.shape, self.shape.seed
        );
    }

    /// Runs until all requests of the workload have ended, with `disturb` called at each step; then checks the device.
    pub(crate) fn run(&mut self, mut disturb: impl FnMut(&mut World)) {
        while self.workers.iter().any(|worker| worker.left > 0 || !worker.outstanding.is_empty()) {
            disturb(self);
            self.turn(DEADLINE);
        }
        // Until every copy of every frame has arrived or is lost.
        let end = self.now + 3 * self.shape.lifetime;
        while self.now < end {
            self.turn(end);
        }
        self.check_device();
    }

    /// Checks the contents of the whole device.
    pub(crate) fn check_device(&mut self) {
        self.step += 1;
        let (from, to) = (self.step, self.step + 1);
        if let Err(what) = self.model.check(0, &self.target.store().0, from, to)
            && !self.shape.damaged
        {
            self.fail(&format!("device at the end: {what}"));
        }
        if !self.network.totals().accounted(self.network.under_way()) {
            self.fail("a frame is not accounted for");
        }
    }

    /// One step: everything that is to be done now, then on to the next instant, not beyond `until`.
    pub(crate) fn turn(&mut self, until: Duration) {
        self.step += 1;
        while let Some((port, frame)) = self.network.poll(self.now) {
            self.arrived(port, &frame);
            self.network.recycle(frame);
        }
        for index in 0..self.workers.len() {
            self.work(index);
        }
        let timers = self.workers.iter().filter_map(|worker| worker.initiator.poll_timeout());
        let next = timers.chain(self.network.next_event()).min().unwrap_or(until);
        if self.now >= DEADLINE {
            self.fail("no end: a request was lost");
        }
        self.now = next.clamp(self.now, until);
    }

    fn arrived(&mut self, port: PortId, frame: &[u8]) {
        if let Some(index) = self.far.iter().position(|&far| far == port) {
            let info = infos(&self.network, &self.far)[index];
            for reply in self.target.handle(self.now, AoePort(index as u8), info, frame) {
                self.network.send(self.now, port, &reply);
            }
            return;
        }
        let index = self.near.iter().position(|&near| near == port).expect("every port is near or far");
        for worker in &mut self.workers {
            if let Some(arrived) = worker.initiator.handle_frame(self.now, AoePort(index as u8), frame) {
                let Some(request) = worker.outstanding.get_mut(&arrived.id.0) else {
                    panic!("data for a request that has ended")
                };
                request.buffer[arrived.offset..][..arrived.data.len()].copy_from_slice(arrived.data);
            }
        }
    }

    fn work(&mut self, index: usize) {
        let now = self.now;
        if self.workers[index].initiator.poll_timeout().is_some_and(|at| at <= now) {
            self.workers[index].initiator.handle_timeout(now);
        }
        loop {
            let mut moved = false;
            while let Some(completion) = self.workers[index].initiator.poll_completion() {
                self.completed(index, completion.id, completion.status);
                moved = true;
            }
            while let Some(event) = self.workers[index].initiator.poll_event() {
                match event {
                    Event::Found(_) => self.workers[index].found = true,
                    Event::Gone { .. } => self.workers[index].found = false,
                    // All workers are asked for frames in each turn; a worker that comes earlier needs another one.
                    Event::CreditsFreed { worker } => {
                        self.transmit(usize::from(worker.0));
                    }
                    _ => {}
                }
                self.events.push((self.now, event));
                moved = true;
            }
            self.submit(index);
            moved |= self.transmit(index);
            if !moved {
                return;
            }
        }
    }

    fn transmit(&mut self, index: usize) -> bool {
        let worker = &mut self.workers[index];
        let mut any = false;
        let mut frame = Vec::new();
        while let Some(transmit) = worker.initiator.poll_transmit(self.now) {
            frame.clear();
            frame.extend_from_slice(&transmit.header[..transmit.header_len]);
            if let Some(payload) = transmit.payload {
                let request = &worker.outstanding[&payload.id.0];
                frame.extend_from_slice(&request.buffer[payload.offset..][..payload.len]);
            }
            frame.resize(frame.len() + transmit.pad, 0);
            self.network.send(self.now, self.near[usize::from(transmit.port.0)], &frame);
            any = true;
        }
        any
    }

    /// Keeps the worker busy: mostly small requests on few sectors, so that they overlap.
    fn submit(&mut self, index: usize) {
        let share = self.shape.sectors / u64::from(self.shape.workers);
        loop {
            let (depth, cancels, even) = (self.shape.depth, self.shape.cancels, self.shape.even);
            let worker = &mut self.workers[index];
            if !worker.found || worker.left == 0 || worker.outstanding.len() >= depth {
                return;
            }
            worker.left -= 1;
            if cancels && worker.rng.below(20) == 0 && !worker.outstanding.is_empty() {
                let nth = worker.rng.below(worker.outstanding.len() as u64) as usize;
                let id = *worker.outstanding.keys().nth(nth).expect("there are that many");
                worker.initiator.cancel(self.now, RequestId(id));
                continue;
            }
            let id = worker.next_id;
            worker.next_id += 1;
            let op = match worker.rng.below(10) {
                0..5 => Op::Write { fua: false },
                5..9 => Op::Read,
                _ => Op::Flush,
            };
            let most = if !even && worker.rng.below(8) == 0 { share } else { 8 };
            let sectors = 1 + worker.rng.below(most);
            let lba = index as u64 * share + worker.rng.below(share - sectors + 1);
            self.submit_one(index, id, op, lba, sectors as u32);
        }
    }

    fn submit_one(&mut self, index: usize, id: u64, op: Op, lba: u64, sectors: u32) {
        let mut buffer = vec![0; sectors as usize * SECTOR];
        let mut write = 0;
        if let Op::Write { .. } = op {
            write = self.next_write;
            self.next_write += 1;
            for (sector, data) in (lba..).zip(buffer.as_chunks_mut::<SECTOR>().0) {
                *data = contents(write, sector);
            }
            self.model.submitted(self.step, write, lba, sectors);
        }
        self.step += 1;
        let worker = &mut self.workers[index];
        let request = Request { id: RequestId(id), device: worker.device, op, lba: Lba(lba), sectors };
        worker.initiator.submit(self.now, request).expect("the device was found and there is room");
        worker
            .outstanding
            .insert(id, Outstanding { op, lba, sectors, write, submitted: self.step, since: self.now, buffer });
    }

    fn completed(&mut self, index: usize, id: RequestId, status: Status) {
        self.step += 1;
        let Some(request) = self.workers[index].outstanding.remove(&id.0) else {
            self.fail(&format!("request {} ended twice, the second time with {status:?}", id.0));
        };
        let name = match status {
            Status::Ok => "ok",
            Status::Cancelled => "cancelled",
            Status::Restarted => "restarted",
            Status::DeviceGone => "gone",
            _ if self.shape.damaged => "failed",
            _ => self.fail(&format!("request {} ended with {status:?}", id.0)),
        };
        *self.ended.entry(name).or_default() += 1;
        self.last_ended = self.now;
        self.longest = self.longest.max(self.now - request.since);
        let (lba, sectors) = (request.lba, request.sectors);
        match request.op {
            Op::Write { .. } => self.model.ended(self.step, request.write, lba, sectors, status == Status::Ok),
            Op::Read if status == Status::Ok && !self.shape.damaged => {
                if let Err(what) = self.model.check(lba, &request.buffer, request.submitted, self.step) {
                    self.fail(&format!("read {} of worker {index}: {what}", id.0));
                }
            }
            _ => {}
        }
    }

    /// Starts our shelf anew on the same data, as after a crash that lost nothing but its memory of requests.
    pub(crate) fn restart_target(&mut self) {
        self.boots += 1;
        let store = self.target.store().clone();
        let ports = infos(&self.network, &self.far);
        let writes_from = self.now + self.shape.lifetime;
        self.target = Target::shelf(store, self.boots, writes_from, self.shape.lifetime, &ports);
    }

    /// Requests that are outstanding.
    pub(crate) fn outstanding(&self) -> usize {
        self.workers.iter().map(|worker| worker.outstanding.len()).sum()
    }

    /// The paths of the first worker: state and sectors per frame.
    pub(crate) fn paths(&self) -> Vec<(PathState, u8)> {
        let worker = &self.workers[0];
        let view = worker.initiator.device(worker.device).expect("it is open");
        view.paths().map(|path| (path.state, path.payload)).collect()
    }

    /// Frames that initiators sent again, in all.
    pub(crate) fn retransmits(&self) -> u64 {
        self.workers.iter().map(|worker| worker.initiator.counters().retransmits).sum()
    }
}

fn infos(network: &Network, ports: &[PortId]) -> Vec<PortInfo> {
    let info = |&port| PortInfo { mac: MacAddr(network.mac(port)), mtu: network.mtu(port) as u32 };
    ports.iter().map(info).collect()
}

/// The seeds to run: `count` of them from `first` on. ETHERRAID_SEED names another first one, and then one is run; ETHERRAID_RUNS says
/// how many, for long runs and for fresh seeds.
pub(crate) fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (seed, runs) = (number("ETHERRAID_SEED"), number("ETHERRAID_RUNS"));
    let count = runs.unwrap_or(if seed.is_some() { 1 } else { count });
    let first = seed.unwrap_or(first);
    first..first + count
}
