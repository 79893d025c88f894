//! Threads and clocks: the one place where the engine's values are joined and driven.
//!
//! A thread per place for a worker ([`worker_thread`]), whether it works or not, one control thread for the array ([`control`]), and the front
//! ends' own threads, which hold a [`client::Client`] each. What they share is [`Shared`]: the [`Board`], reply queues per client, and the slab.
//!
//! Crossings: a part crosses once from whoever posts it to the worker that carries it out, and once back; not at all where the front end takes the
//! worker's turns itself ([`turns`]). Atomics on the way: its region's word, once
//! per region and plug, and an end of a queue if nothing was waiting there yet; a reply queue once per client and turn; sleepers' flags.

pub mod bufs;
pub mod client;
mod control;
pub mod finding;
pub mod groups;
pub mod opener;
pub mod running;
mod seating;
pub mod stepped;
pub mod topology;
mod turns;
mod wake;
pub mod watch;
mod worker_thread;

use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aoe_proto::initiator::Tunables as AoeTunables;
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use raid_core::geometry::Geometry;
use raid_core::units::MemberCount;

use crate::array::MemberEvent;
use crate::board::{self, Board, Desk, WorkerSet};
use crate::letters::CLIENTS_MAX as LETTERS_CLIENTS_MAX;
use crate::member::Owner;
use crate::member::aoe::Care;
use crate::member::aoe::Traffic;
use crate::member::aoe::paths::DevicePaths;
use crate::member::devices::{Device, Devices};
use crate::message::{ClientId, MemberHandle, Part, PartReply, Report, ToWorker, View, WorkerId};
use crate::region::Regions;
use crate::slab::{Arena, PAGE, Slab};
use crate::sync::{AtomicU16, AtomicU64, Ordering};
use crate::worker::{self, Counters, Effects, Inputs, Worker};
use client::{Client, ClientShared};
use groups::{Seat, working};
use seating::Seating;
use turns::Turns;
use wake::{Bell, Wake};
use worker_thread::WorkerThread;

/// Most front ends at once.
pub const CLIENTS_MAX: usize = LETTERS_CLIENTS_MAX;

/// Messages on their way from the array to one worker.
const CONTROL_MAX: usize = 4096;

/// Messages on their way to the array.
const TO_ARRAY_MAX: usize = 65536;

/// To a worker's thread.
#[derive(Debug)]
pub(crate) enum WorkerMsg {
    Array(ToWorker),
    Attach(MemberHandle, Device),
    Detach(MemberHandle),
    /// New settings of the initiators.
    Tune(AoeTunables),
    /// Tell the paths to AoE devices.
    Paths(SyncSender<Vec<DevicePaths>>),
    /// Use the links that there are now.
    Relink,
    /// Look after the paths to one AoE device, or to all.
    Care(Option<MemberHandle>, Care),
    Shape(Shape),
    End,
}

/// What a worker is to be from now on: where it sits, and with how much memory. What it has still to do for that it does first, and then says so.
#[derive(Debug)]
pub(crate) struct Shape {
    /// Comes back in [`ToArray::Shaped`].
    pub(crate) token: u32,
    /// Its place; `None`: it gives up what it owns and works no more.
    pub(crate) seat: Option<Seat>,
    /// Other memory for its cache, so many pages of it.
    pub(crate) memory: Option<(Arena, usize)>,
}

/// Ends the process when its thread panics: a worker or control thread that is gone would leave clients waiting for ever, and superblocks
/// that nobody keeps.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// To the array's thread.
#[derive(Debug)]
pub(crate) enum ToArray {
    Report(WorkerId, Report),
    Member(Owner, MemberHandle, MemberEvent),
    Sync(PartReply),
    /// A worker is what the message with this token made of it; the memory that it has no use for.
    Shaped(u32, Option<Arena>),
}

/// Numbers that a worker publishes: [`Counters`], pages in use, [`Traffic`], and [`board::Traffic`].
const COUNTERS: usize = 13;

/// What others need of a worker.
#[derive(Debug)]
pub(crate) struct WorkerShared {
    id: WorkerId,
    control: ArrayQueue<WorkerMsg>,
    bell: Bell,
    counters: CachePadded<[AtomicU64; COUNTERS]>,
    /// Parts of clients taken in so far.
    parts: AtomicU64,
}

impl WorkerShared {
    fn new(id: WorkerId) -> io::Result<WorkerShared> {
        Ok(WorkerShared {
            id,
            control: ArrayQueue::new(CONTROL_MAX),
            bell: Bell::new()?,
            counters: CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0))),
            parts: AtomicU64::new(0),
        })
    }

    fn publish(&self, counters: &Counters, cache_bytes: usize, traffic: Traffic, taken: board::Traffic) {
        let c = counters;
        let values: [u64; COUNTERS] = [
            c.member_requests,
            c.member_sectors,
            c.runs_full,
            c.runs_rmw,
            c.runs_rcw,
            c.runs_reconstruct,
            c.blocks_cached,
            cache_bytes as u64,
            traffic.frames_answered,
            traffic.data_bytes,
            traffic.retransmits,
            taken.handoffs,
            taken.stolen,
        ];
        for (slot, value) in self.counters.iter().zip(values) {
            slot.store(value, Ordering::Relaxed);
        }
    }
}

/// Where parts are posted from.
#[derive(Debug)]
enum Homes {
    /// By the number of the CPU that the client is on: the group near it.
    ByCpu(Box<[AtomicU16]>),
    /// Clients are spread over the groups: in a simulation, which must not depend on CPUs.
    ByClient,
}

/// How a front end's parts came to workers: written by it alone, and by whoever sums up what those that are gone have done.
#[derive(Debug, Default)]
struct Posts([AtomicU64; 3]);

impl Posts {
    fn add(&self, traffic: board::Traffic) {
        for (count, more) in self.0.iter().zip([traffic.parts, traffic.handoffs, traffic.contended]) {
            if more > 0 {
                count.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    fn read(&self) -> board::Traffic {
        let [parts, handoffs, contended] = std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed));
        board::Traffic { parts, handoffs, contended, stolen: 0 }
    }
}

/// What all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) geometry: Geometry,
    pub(crate) board: Arc<Board>,
    pub(crate) slab: Arc<Slab>,
    pub(crate) workers: Vec<WorkerShared>,
    homes: Homes,
    /// How long threads may look for work before they sleep, in nanoseconds.
    spin: AtomicU64,
    /// Of the array's sync, and of clients that are gone.
    posts: Posts,
    clients: Vec<RwLock<Option<Arc<ClientShared>>>>,
    free_clients: Mutex<Vec<u16>>,
    to_array: ArrayQueue<ToArray>,
    array_wake: Wake,
    pub(crate) start: Instant,
}

impl Shared {
    /// Whether no message is on its way between threads.
    fn is_quiet(&self) -> bool {
        self.to_array.is_empty() && self.workers.iter().all(|w| w.control.is_empty())
    }

    /// The group that a client's parts are posted to.
    fn home(&self, client: ClientId) -> usize {
        match &self.homes {
            Homes::ByCpu(groups) => usize::from(groups[topology::current() % groups.len()].load(Ordering::Relaxed)),
            Homes::ByClient => usize::from(client.0) % self.board.groups(),
        }
    }

    /// Posts parts, which are sorted by row, to the group `home`, and counts them. The answer is whom to kick.
    #[must_use]
    fn post(&self, parts: &[Part], home: usize, slot_of: impl FnMut(&Part) -> u32, posts: &Posts) -> WorkerSet {
        let mut traffic = board::Traffic::default();
        let kicks = self.board.post(parts, home, slot_of, &mut traffic);
        posts.add(traffic);
        kicks
    }

    /// Puts workers where they sit, for whoever posts.
    fn seat(&self, seats: &[Option<Seat>], homes: &[u16]) {
        if let Homes::ByCpu(by_cpu) = &self.homes {
            for (home, group) in by_cpu.iter().zip(homes) {
                home.store(*group, Ordering::Relaxed);
            }
        }
        let groups: Vec<_> = seats.iter().map(|seat| seat.as_ref().map(|seat| seat.group)).collect();
        self.kick(self.board.seat(&groups));
    }

    fn kick(&self, workers: WorkerSet) {
        for worker in workers.iter() {
            self.workers[usize::from(worker.0)].bell.ring();
        }
    }

    /// Sends a worker a control message and wakes it.
    fn tell(&self, worker: usize, msg: WorkerMsg) {
        let sent = self.workers[worker].control.push(msg);
        assert!(sent.is_ok(), "the array sends few messages, and the worker reads them each turn");
        self.notify(worker);
    }

    fn notify(&self, worker: usize) {
        board::left_work();
        if self.board.sleeper(WorkerId(worker as u8)).must_kick() {
            self.workers[worker].bell.ring();
        }
    }

    fn spin(&self) -> Duration {
        Duration::from_nanos(self.spin.load(Ordering::Relaxed))
    }

    fn client(&self, id: ClientId) -> Option<Arc<ClientShared>> {
        let slot = self.clients.get(usize::from(id.0))?;
        slot.read().expect("no panic while held").clone()
    }

    /// A client is gone; nothing of it is in flight.
    fn forget(&self, id: ClientId) {
        let client = self.clients[usize::from(id.0)].write().expect("no panic while held").take();
        if let Some(client) = client {
            self.posts.add(client.posts.read());
        }
        self.free_clients.lock().expect("no panic while held").push(id.0);
    }

    /// More members restarted than parity covers: what clients believe to be durable may be lost, and each is told once.
    fn fail_next_flushes(&self) {
        for slot in &self.clients {
            if let Some(client) = slot.read().expect("no panic while held").as_ref() {
                client.flush_faults.fetch_add(1, Ordering::Release);
            }
        }
    }

    /// Wakes an owner that was given a credit.
    fn wake(&self, owner: Owner) {
        match owner {
            Owner::Worker(id) => {
                if usize::from(id.0) < self.workers.len() {
                    self.notify(usize::from(id.0));
                }
            }
            Owner::Control | Owner::Opener => self.array_wake.notify(),
        }
    }

    fn tell_array(&self, msg: ToArray) {
        let mut msg = Some(msg);
        while let Some(m) = msg.take() {
            // Full only when the control thread is far behind; it never waits for a worker, so it will catch up.
            if let Err(back) = self.to_array.push(m) {
                msg = Some(back);
                self.array_wake.notify();
                std::thread::yield_now();
            }
        }
        self.array_wake.notify();
    }
}

/// The running workers of one array. Dropping it ends them.
#[derive(Debug)]
struct Workers {
    shared: Arc<Shared>,
    turns: Arc<Turns>,
    /// Those that have not been ended.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What all workers together have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// As [`worker::Counters`], summed.
    pub counters: Counters,
    /// Bytes of stripe cache in use.
    pub cache_bytes: u64,
    /// What the workers' initiators have done.
    pub traffic: Traffic,
    /// How parts came to workers.
    pub handed: board::Traffic,
    /// Workers that work.
    pub workers: usize,
}

/// What an array's workers are made of.
#[derive(Clone, Copy, Debug)]
struct Plan<'a> {
    geometry: Geometry,
    slab: &'a Arc<Slab>,
    seating: &'a Seating,
    view: &'a Arc<View>,
    devices: &'a [(MemberHandle, Device)],
    /// The time at the start.
    now: Duration,
}

impl Plan<'_> {
    /// Makes what the threads share, and the threads' insides.
    fn build(&self) -> io::Result<(Arc<Shared>, Vec<WorkerThread>)> {
        let regions = Arc::new(Regions::new(&self.geometry));
        let places = self.seating.seats.len();
        let homes = match &self.seating.homes[..] {
            [] => Homes::ByClient,
            homes => Homes::ByCpu(homes.iter().map(|group| AtomicU16::new(*group)).collect()),
        };
        let shared = Arc::new(Shared {
            geometry: self.geometry,
            board: Arc::new(Board::new(regions, CLIENTS_MAX, places, self.seating.groups())),
            slab: Arc::clone(self.slab),
            workers: (0..places as u8).map(|id| WorkerShared::new(WorkerId(id))).collect::<io::Result<_>>()?,
            homes,
            spin: AtomicU64::new(self.seating.settings().poll_spin.as_nanos() as u64),
            posts: Posts::default(),
            clients: (0..CLIENTS_MAX).map(|_| RwLock::new(None)).collect(),
            free_clients: Mutex::new((1..CLIENTS_MAX as u16).rev().collect()),
            to_array: ArrayQueue::new(TO_ARRAY_MAX),
            array_wake: Wake::new()?,
            start: Instant::now(),
        });
        shared.seat(&self.seating.seats, &self.seating.homes);
        let threads = (0..places).map(|index| self.worker(&shared, index)).collect::<io::Result<_>>()?;
        Ok((shared, threads))
    }

    fn worker(&self, shared: &Arc<Shared>, index: usize) -> io::Result<WorkerThread> {
        let id = WorkerId(index as u8);
        let pages = self.seating.pages(index);
        let arena = cache_memory(self.slab, pages)?;
        let (geometry, view) = (self.geometry, Arc::clone(self.view));
        let regions = Arc::clone(shared.board.regions());
        let mut devices = Devices::new(self.slab, Owner::Worker(id));
        for (handle, device) in self.devices {
            devices.attach(*handle, device, self.now)?;
        }
        let mut desk = Desk::new(&shared.board, id);
        let seat = self.seating.seats[index].as_ref();
        desk.sit(seat.map(|seat| seat.group));
        Ok(WorkerThread {
            worker: Worker::new(worker::Config { id, geometry, regions, arena, pages, view }),
            index,
            cpus: seat.map_or_else(Vec::new, |seat| seat.cpus.clone()),
            desk,
            moved: true,
            ended: false,
            next: None,
            wakes_at: Duration::ZERO,
            links: 0,
            shape: None,
            shared: Arc::clone(shared),
            devices,
            inputs: Inputs::default(),
            effects: Effects::default(),
            events: Vec::new(),
            hot: false,
            replies: Vec::new(),
        })
    }
}

/// Memory for so many pages of cache. What a write needs is there before it comes.
fn cache_memory(slab: &Arc<Slab>, pages: usize) -> io::Result<Arena> {
    // In powers of two, as memory that was given back is given out again whole.
    let arena = slab.arena((pages * PAGE).next_power_of_two()).ok_or(io::ErrorKind::OutOfMemory)?;
    // Kernels before 5.14 do it at the first touch alone.
    if let Err(error) = slab.populate(arena.piece().sub(0, (pages * PAGE / 512) as u32)) {
        tracing::debug!(%error, "memory is taken as it is used");
    }
    Ok(arena)
}

impl Workers {
    fn start(shared: Arc<Shared>, threads: Vec<WorkerThread>) -> io::Result<Workers> {
        let count = threads.len();
        let turns = Arc::new(Turns::new(Arc::clone(&shared), threads));
        let workers = Workers { shared, turns, threads: Mutex::default() };
        for index in 0..count {
            let turns = Arc::clone(&workers.turns);
            let name = format!("raid5-{index}");
            let thread = std::thread::Builder::new().name(name).spawn(move || turns.run(index))?;
            workers.threads.lock().expect("no panic while held").push(thread);
        }
        Ok(workers)
    }

    /// What the workers have done.
    fn totals(&self) -> Totals {
        self.shared.totals()
    }
}

impl Shared {
    fn totals(&self) -> Totals {
        let mut sums = [0; COUNTERS];
        for worker in &self.workers {
            for (sum, slot) in sums.iter_mut().zip(worker.counters.iter()) {
                *sum += slot.load(Ordering::Relaxed);
            }
        }
        let [member_requests, member_sectors, runs_full, runs_rmw, runs_rcw, rest @ ..] = sums;
        let [runs_reconstruct, blocks_cached, cache_bytes, rest @ ..] = rest;
        let [frames_answered, data_bytes, retransmits, handoffs, stolen] = rest;
        let counters = Counters {
            member_requests,
            member_sectors,
            runs_full,
            runs_rmw,
            runs_rcw,
            runs_reconstruct,
            blocks_cached,
        };
        let traffic = Traffic { frames_answered, data_bytes, retransmits };
        let mut handed = board::Traffic { handoffs, stolen, ..board::Traffic::default() };
        handed += self.posts.read();
        for slot in &self.clients {
            if let Some(client) = slot.read().expect("no panic while held").as_ref() {
                handed += client.posts.read();
            }
        }
        let workers = (0..self.board.groups()).map(|group| self.board.members(group).iter().count()).sum();
        Totals { counters, cache_bytes, traffic, handed, workers }
    }
}

fn open_client(shared: &Arc<Shared>, turns: Option<&Arc<Turns>>) -> io::Result<Option<Client>> {
    let Some(id) = shared.free_clients.lock().expect("no panic while held").pop() else { return Ok(None) };
    let mine = Arc::new(ClientShared::new()?);
    *shared.clients[usize::from(id)].write().expect("no panic while held") = Some(Arc::clone(&mine));
    let client = Client::new(ClientId(id), Arc::clone(shared), turns.cloned(), mine);
    if client.is_none() {
        shared.forget(ClientId(id));
    }
    Ok(client)
}

/// A worker's share of the cache: at least one page per member, and no more for one that does not work.
fn pages_of(members: MemberCount, stripe_cache_size: usize, seats: &[Option<Seat>], index: usize) -> usize {
    let share = if seats[index].is_some() { stripe_cache_size / working(seats).count() } else { 0 };
    share.max(1) * members.len()
}

impl Workers {
    /// Ends the workers, and with them whatever they still have at members. No client may be left.
    fn end(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().expect("no panic while held"));
        if threads.is_empty() {
            return;
        }
        for worker in 0..self.shared.workers.len() {
            self.shared.tell(worker, WorkerMsg::End);
        }
        for thread in threads {
            // A worker that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.end();
    }
}
