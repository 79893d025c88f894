//! An array in memory that replies late and out of order, and remembers what it was asked.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::nbd::backend::{Backend, Backends, ExportInfo, MAX_TRANSFER, Op, Reply, SECTOR_BYTES, Status};
use crate::nbd::session::MAX_IN_FLIGHT;

/// One request as the array saw it.
pub(super) type Seen = (Op, u64, u32);

/// The buffers of an array: how much is out, and how much may be.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) held: AtomicUsize,
    limit: AtomicUsize,
}

/// A buffer; one that is dropped and not given back stays counted.
pub(super) struct Buf {
    bytes: Vec<u8>,
    pool: Arc<Pool>,
    /// It was given back, not dropped.
    back: bool,
}

impl Drop for Buf {
    fn drop(&mut self) {
        if self.back {
            self.pool.held.fetch_sub(self.bytes.len(), Ordering::SeqCst);
        }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Buf {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

pub(super) struct Array {
    info: Mutex<ExportInfo>,
    data: Arc<Mutex<Vec<u8>>>,
    pub(super) pool: Arc<Pool>,
    /// Requests wait while set.
    hold: Arc<(Mutex<bool>, Condvar)>,
    /// What the next requests end with, in the order in which they are run.
    fates: Arc<Mutex<VecDeque<Status>>>,
    /// Plugs in the order in which they ended.
    plugs: Arc<Mutex<Vec<Vec<Seen>>>>,
    pub(super) refuse_open: AtomicBool,
    pub(super) open: Arc<AtomicUsize>,
    /// Sectors that may be in flight on a connection.
    room: Arc<AtomicUsize>,
}

impl Array {
    pub(super) fn new(size: usize) -> Self {
        Self {
            info: Mutex::new(ExportInfo {
                name: "md0".into(),
                size_bytes: size as u64,
                read_only: false,
                min_block: 512,
                preferred_block: 65536,
                description: "memory".into(),
            }),
            data: Arc::new(Mutex::new(vec![0; size])),
            pool: Arc::new(Pool { held: AtomicUsize::new(0), limit: AtomicUsize::new(usize::MAX) }),
            hold: Arc::default(),
            fates: Arc::default(),
            plugs: Arc::default(),
            refuse_open: AtomicBool::new(false),
            open: Arc::default(),
            room: Arc::new(AtomicUsize::new(usize::MAX)),
        }
    }

    pub(super) fn with_info(self, change: impl FnOnce(&mut ExportInfo)) -> Self {
        change(&mut self.info.lock().unwrap());
        self
    }

    pub(super) fn limit_memory(&self, bytes: usize) {
        self.pool.limit.store(bytes, Ordering::SeqCst);
    }

    pub(super) fn limit_room(&self, sectors: usize) {
        self.room.store(sectors, Ordering::SeqCst);
    }

    pub(super) fn hold(&self, on: bool) {
        *self.hold.0.lock().unwrap() = on;
        self.hold.1.notify_all();
    }

    pub(super) fn fates(&self, list: &[Status]) {
        self.fates.lock().unwrap().extend(list);
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.data.lock().unwrap().clone()
    }

    pub(super) fn fill(&self, bytes: &[u8]) {
        self.data.lock().unwrap().copy_from_slice(bytes);
    }

    pub(super) fn take_plugs(&self) -> Vec<Vec<Seen>> {
        std::mem::take(&mut self.plugs.lock().unwrap())
    }

    pub(super) fn seen(&self) -> usize {
        self.plugs.lock().unwrap().iter().map(Vec::len).sum()
    }
}

impl Backends for Array {
    type B = Memory;

    fn open(&self) -> io::Result<Memory> {
        if self.refuse_open.load(Ordering::SeqCst) {
            return Err(io::Error::other("the array takes no clients"));
        }
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (to_worker, jobs) = mpsc::channel();
        let (to_client, replies) = mpsc::channel();
        let worker = Worker {
            data: Arc::clone(&self.data),
            hold: Arc::clone(&self.hold),
            fates: Arc::clone(&self.fates),
            wake: Arc::clone(&wake),
            jobs,
            replies: to_client,
        };
        std::thread::spawn(move || worker.run());
        self.open.fetch_add(1, Ordering::SeqCst);
        Ok(Memory {
            pool: Arc::clone(&self.pool),
            plugs: Arc::clone(&self.plugs),
            open: Arc::clone(&self.open),
            wake,
            to_worker,
            replies,
            plug: Vec::new(),
            ready: None,
            ids: Vec::new(),
            room: Arc::clone(&self.room),
            asleep: false,
        })
    }

    fn info(&self) -> ExportInfo {
        self.info.lock().unwrap().clone()
    }
}

struct Job {
    id: u64,
    op: Op,
    sector: u64,
    sectors: u32,
    buf: Option<Buf>,
}

pub(super) struct Memory {
    pool: Arc<Pool>,
    plugs: Arc<Mutex<Vec<Vec<Seen>>>>,
    open: Arc<AtomicUsize>,
    wake: Arc<OwnedFd>,
    to_worker: mpsc::Sender<Vec<Job>>,
    replies: mpsc::Receiver<Reply<Buf>>,
    plug: Vec<Job>,
    /// Replies that were looked at before they were polled.
    ready: Option<Reply<Buf>>,
    /// Ids that are outstanding, with their sectors.
    ids: Vec<(u64, u32)>,
    room: Arc<AtomicUsize>,
    asleep: bool,
}

impl Drop for Memory {
    fn drop(&mut self) {
        assert!(self.ids.is_empty(), "dropped with requests in the array");
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Backend for Memory {
    type Buf = Buf;

    fn alloc(&mut self, bytes: usize) -> Option<Buf> {
        let limit = self.pool.limit.load(Ordering::SeqCst);
        let add = |held: usize| (held == 0 || held + bytes <= limit).then_some(held + bytes);
        self.pool.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).ok()?;
        // What a fresh buffer holds is nobody's business: let it be conspicuous.
        Some(Buf { bytes: vec![0xdb; bytes], pool: Arc::clone(&self.pool), back: false })
    }

    fn free(&mut self, buf: Buf) {
        let mut buf = buf;
        buf.back = true;
    }

    fn has_room(&self, sectors: u32) -> bool {
        let in_flight: u32 = self.ids.iter().map(|&(_, sectors)| sectors).sum();
        in_flight == 0 || u64::from(in_flight) + u64::from(sectors) <= self.room.load(Ordering::SeqCst) as u64
    }

    fn submit(&mut self, id: u64, op: Op, sector: u64, sectors: u32, buf: Option<Buf>) {
        assert!(self.ids.iter().all(|&(other, _)| other != id), "id {id} is in use");
        assert!(self.has_room(sectors));
        self.ids.push((id, sectors));
        assert!(self.ids.len() <= MAX_IN_FLIGHT);
        assert!(sectors <= MAX_TRANSFER / SECTOR_BYTES);
        assert_eq!(buf.is_some(), matches!(op, Op::Read | Op::Write { .. }));
        self.plug.push(Job { id, op, sector, sectors, buf });
    }

    fn unplug(&mut self) {
        assert!(!self.plug.is_empty());
        let seen = self.plug.iter().map(|job| (job.op, job.sector, job.sectors)).collect();
        self.plugs.lock().unwrap().push(seen);
        self.to_worker.send(std::mem::take(&mut self.plug)).unwrap();
    }

    fn poll(&mut self) -> Option<Reply<Buf>> {
        assert!(!self.asleep);
        let reply = self.ready.take().or_else(|| self.replies.try_recv().ok())?;
        self.ids.retain(|&(id, _)| id != reply.id);
        Some(reply)
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn announce(&mut self) -> bool {
        assert!(!self.asleep && self.plug.is_empty(), "nobody sleeps on a plug");
        self.ready = self.ready.take().or_else(|| self.replies.try_recv().ok());
        self.asleep = self.ready.is_none();
        self.asleep
    }

    fn awake(&mut self) {
        assert!(std::mem::replace(&mut self.asleep, false));
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }
}

struct Worker {
    data: Arc<Mutex<Vec<u8>>>,
    hold: Arc<(Mutex<bool>, Condvar)>,
    fates: Arc<Mutex<VecDeque<Status>>>,
    wake: Arc<OwnedFd>,
    jobs: mpsc::Receiver<Vec<Job>>,
    replies: mpsc::Sender<Reply<Buf>>,
}

impl Worker {
    fn run(self) {
        let mut waiting = Vec::new();
        let mut random = 1u64;
        loop {
            // A moment for more to come, so that there is something to shuffle.
            match self.jobs.recv_timeout(Duration::from_micros(200)) {
                Ok(jobs) => waiting.extend(jobs),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
            let held = self.hold.1.wait_while(self.hold.0.lock().unwrap(), |hold| *hold).unwrap();
            drop(held);
            for _ in 0..waiting.len().div_ceil(2) {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let job = waiting.swap_remove((random >> 33) as usize % waiting.len());
                let reply = self.perform(job);
                if self.replies.send(reply).is_err() {
                    return;
                }
                rustix::io::write(&self.wake, &1u64.to_ne_bytes()).unwrap();
            }
        }
    }

    fn perform(&self, mut job: Job) -> Reply<Buf> {
        let status = self.fates.lock().unwrap().pop_front().unwrap_or(Status::Ok);
        let len = (job.sectors * SECTOR_BYTES) as usize;
        let range = (job.sector * u64::from(SECTOR_BYTES)) as usize..;
        if status == Status::Ok {
            let mut data = self.data.lock().unwrap();
            let data = &mut data[range][..len];
            match (job.op, &mut job.buf) {
                (Op::Read, Some(buf)) => buf.bytes[..len].copy_from_slice(data),
                (Op::Write { .. }, Some(buf)) => data.copy_from_slice(&buf.bytes[..len]),
                (Op::WriteZeroes { .. }, None) => data.fill(0),
                (Op::Flush, None) => assert_eq!(len, 0),
                _ => unreachable!("checked in submit"),
            }
        }
        Reply { id: job.id, status, buf: job.buf }
    }
}
