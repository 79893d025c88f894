//! Threads and clocks: the one place where the engine's values are joined and driven.
//!
//! A thread per worker ([`worker_thread`]), one control thread for the array ([`control`]), and the front ends' own threads, which hold a
//! [`client::Client`] each. What they share is [`Shared`]: the region words, an inbox per worker, reply queues per client, and the slab.
//!
//! Crossings: a request crosses once as part of its plug's batch to each owner, and once back. Atomics on the way: one region word and one
//! inbox slot per batch and part, and the sleepers' flags.

pub mod bufs;
pub mod client;
mod control;
pub mod running;
pub mod stepped;
pub mod topology;
mod wake;
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
use crate::member::Owner;
use crate::member::aoe::Traffic;
use crate::member::aoe::paths::DevicePaths;
use crate::member::devices::{Device, Devices};
use crate::message::{ClientId, MemberHandle, Part, PartReply, Report, ToWorker, View, WorkerId};
use crate::region::Regions;
use crate::slab::{PAGE, Slab};
use crate::sync::{AtomicU64, Ordering};
use crate::worker::{self, Counters, Effects, Inputs, Worker};
use client::{Client, ClientShared};
use topology::Cpu;
use wake::Wake;
use worker_thread::WorkerThread;

/// Most front ends at once.
pub const CLIENTS_MAX: usize = 256;

/// Batches of parts on their way to one worker.
const INBOX_MAX: usize = 65536;

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
    End,
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
}

/// Numbers that a worker publishes: [`Counters`], pages in use, [`Traffic`].
const COUNTERS: usize = 11;

/// What others need of a worker.
#[derive(Debug)]
pub(crate) struct WorkerShared {
    id: WorkerId,
    inbox: ArrayQueue<Vec<Part>>,
    control: ArrayQueue<WorkerMsg>,
    wake: Wake,
    counters: CachePadded<[AtomicU64; COUNTERS]>,
    /// Parts of clients taken in so far.
    parts: AtomicU64,
}

impl WorkerShared {
    fn new(id: WorkerId) -> io::Result<WorkerShared> {
        Ok(WorkerShared {
            id,
            inbox: ArrayQueue::new(INBOX_MAX),
            control: ArrayQueue::new(CONTROL_MAX),
            wake: Wake::new()?,
            counters: CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0))),
            parts: AtomicU64::new(0),
        })
    }

    /// Hands a batch over and wakes the worker.
    pub(crate) fn send(&self, batch: Vec<Part>) {
        let mut batch = Some(batch);
        while let Some(b) = batch.take() {
            // Full only when hundreds of clients have all their requests at one worker; it empties the inbox each turn.
            if let Err(back) = self.inbox.push(b) {
                batch = Some(back);
                self.wake.notify();
                std::thread::yield_now();
            }
        }
        self.wake.notify();
    }

    /// Sends a control message and wakes the worker.
    pub(crate) fn tell(&self, msg: WorkerMsg) {
        assert!(self.control.push(msg).is_ok(), "the array sends few messages, and the worker reads them each turn");
        self.wake.notify();
    }

    fn publish(&self, counters: &Counters, cache_bytes: usize, traffic: Traffic) {
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
        ];
        for (slot, value) in self.counters.iter().zip(values) {
            slot.store(value, Ordering::Relaxed);
        }
    }
}

/// What all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) geometry: Geometry,
    pub(crate) regions: Arc<Regions>,
    pub(crate) slab: Arc<Slab>,
    pub(crate) workers: Vec<WorkerShared>,
    clients: Vec<RwLock<Option<Arc<ClientShared>>>>,
    free_clients: Mutex<Vec<u16>>,
    to_array: ArrayQueue<ToArray>,
    array_wake: Wake,
    pub(crate) start: Instant,
}

impl Shared {
    /// Whether no message is on its way between threads.
    fn is_quiet(&self) -> bool {
        self.to_array.is_empty() && self.workers.iter().all(|w| w.inbox.is_empty() && w.control.is_empty())
    }

    fn client(&self, id: ClientId) -> Option<Arc<ClientShared>> {
        let slot = self.clients.get(usize::from(id.0))?;
        slot.read().expect("no panic while held").clone()
    }

    /// A client is gone; nothing of it is in flight.
    fn forget(&self, id: ClientId) {
        *self.clients[usize::from(id.0)].write().expect("no panic while held") = None;
        self.free_clients.lock().expect("no panic while held").push(id.0);
    }

    /// More members restarted than parity covers: what clients believe to be durable may be lost, and each is told once.
    fn fail_next_flushes(&self) {
        for slot in &self.clients {
            if let Some(client) = slot.read().expect("no panic while held").as_ref() {
                client.flush_fault.store(true, Ordering::Release);
            }
        }
    }

    /// Wakes an owner that was given a credit.
    fn wake(&self, owner: Owner) {
        match owner {
            Owner::Worker(id) => {
                if let Some(worker) = self.workers.get(usize::from(id.0)) {
                    worker.wake.notify();
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

/// How many workers, and where.
#[derive(Clone, Debug)]
pub struct Groups {
    /// Workers per group; 0: one thread for everything.
    pub group_thread_cnt: usize,
    /// The groups' CPUs; one group each.
    pub cpus: Vec<Cpu>,
}

impl Groups {
    /// The CPU of each worker; `None`: not pinned.
    pub fn workers(&self) -> Vec<Option<Cpu>> {
        if self.group_thread_cnt == 0 {
            return vec![None];
        }
        self.cpus.iter().flat_map(|cpu| std::iter::repeat_n(Some(*cpu), self.group_thread_cnt)).collect()
    }
}

/// The running workers of one array. Dropping it ends them.
#[derive(Debug)]
struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
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
}

/// What an array's workers are made of.
#[derive(Clone, Copy, Debug)]
struct Plan<'a> {
    geometry: Geometry,
    slab: &'a Arc<Slab>,
    /// A worker for each, pinned where a CPU is named.
    cpus: &'a [Option<Cpu>],
    /// In stripes, over all workers.
    stripe_cache_size: usize,
    view: &'a Arc<View>,
    devices: &'a [(MemberHandle, Device)],
    /// The time at the start.
    now: Duration,
}

impl Plan<'_> {
    /// Makes what the threads share, and the threads' insides.
    fn build(&self) -> io::Result<(Arc<Shared>, Vec<WorkerThread>)> {
        let regions = Arc::new(Regions::new(&self.geometry));
        let ids = 0..self.cpus.len() as u8;
        let shared = Arc::new(Shared {
            geometry: self.geometry,
            regions: Arc::clone(&regions),
            slab: Arc::clone(self.slab),
            workers: ids.map(|id| WorkerShared::new(WorkerId(id))).collect::<io::Result<_>>()?,
            clients: (0..CLIENTS_MAX).map(|_| RwLock::new(None)).collect(),
            free_clients: Mutex::new((1..CLIENTS_MAX as u16).rev().collect()),
            to_array: ArrayQueue::new(TO_ARRAY_MAX),
            array_wake: Wake::new()?,
            start: Instant::now(),
        });
        let threads = (0..self.cpus.len()).map(|index| self.worker(&shared, index)).collect::<io::Result<_>>()?;
        Ok((shared, threads))
    }

    fn worker(&self, shared: &Arc<Shared>, index: usize) -> io::Result<WorkerThread> {
        let id = WorkerId(index as u8);
        let pages = pages_of(self.geometry.members(), self.stripe_cache_size, self.cpus.len());
        let arena = self.slab.arena(pages * PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        // What a write needs is there before it comes. Kernels before 5.14 do it at the first touch alone.
        if let Err(error) = self.slab.populate(arena.piece().sub(0, (pages * PAGE / 512) as u32)) {
            tracing::debug!(%error, "memory is taken as it is used");
        }
        let (geometry, regions, view) = (self.geometry, Arc::clone(&shared.regions), Arc::clone(self.view));
        let mut devices = Devices::new(self.slab, Owner::Worker(id));
        for (handle, device) in self.devices {
            devices.attach(*handle, device, self.now)?;
        }
        Ok(WorkerThread {
            worker: Worker::new(worker::Config { id, geometry, regions, arena, pages, view }),
            index,
            cpu: self.cpus[index],
            shared: Arc::clone(shared),
            devices,
            inputs: Inputs::default(),
            effects: Effects::default(),
            events: Vec::new(),
            replies: Vec::new(),
        })
    }
}

impl Workers {
    fn start(shared: Arc<Shared>, threads: Vec<WorkerThread>) -> io::Result<Workers> {
        let mut workers = Workers { shared, threads: Vec::new() };
        for thread in threads {
            let name = format!("raid5-{}", thread.index);
            workers.threads.push(std::thread::Builder::new().name(name).spawn(move || thread.run())?);
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
        let [runs_reconstruct, blocks_cached, cache_bytes, frames_answered, data_bytes, retransmits] = rest;
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
        Totals { counters, cache_bytes, traffic }
    }
}

fn open_client(shared: &Arc<Shared>) -> io::Result<Option<Client>> {
    let Some(id) = shared.free_clients.lock().expect("no panic while held").pop() else { return Ok(None) };
    let mine = Arc::new(ClientShared::new()?);
    *shared.clients[usize::from(id)].write().expect("no panic while held") = Some(Arc::clone(&mine));
    let client = Client::new(ClientId(id), Arc::clone(shared), mine);
    if client.is_none() {
        shared.forget(ClientId(id));
    }
    Ok(client)
}

/// A worker's share of the cache: at least one page per member.
fn pages_of(members: MemberCount, stripe_cache_size: usize, workers: usize) -> usize {
    (stripe_cache_size / workers).max(1) * members.len()
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &self.shared.workers {
            worker.tell(WorkerMsg::End);
        }
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so already.
            let _ = thread.join();
        }
    }
}
