//! A client for tests: a driver with its request buffers, run on the test's own thread.

use aoe_net::driver::{Driver, Memory};
use aoe_net::link::Link;
use aoe_net::wake::wait;
use aoe_proto::initiator::{
    Config, Credits, DeviceId, Event, Found, Initiator, Op, Request, RequestId, Status, Tunables, WorkerId,
};
use aoe_proto::wire::{Address, Lba, SECTOR};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Request buffers; data to be written are handed out in pieces of up to `piece` bytes.
#[derive(Default)]
pub(crate) struct Buffers {
    buffers: BTreeMap<u64, Vec<u8>>,
    piece: usize,
}

impl Memory for Buffers {
    fn write(&mut self, id: RequestId, offset: usize, data: &[u8]) {
        let buffer = self.buffers.get_mut(&id.0).expect("data for a request that has ended");
        buffer[offset..offset + data.len()].copy_from_slice(data);
    }

    fn slices<'a>(&'a self, id: RequestId, offset: usize, len: usize, piece: &mut dyn FnMut(&'a [u8])) {
        for part in self.buffers[&id.0][offset..offset + len].chunks(self.piece) {
            piece(part);
        }
    }
}

/// A request that ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: Status,
    pub(crate) data: Vec<u8>,
}

/// A driver and its buffers.
pub(crate) struct Client {
    pub(crate) driver: Driver,
    buffers: Buffers,
    start: Instant,
    next_id: u64,
    pub(crate) done: BTreeMap<u64, Done>,
    pub(crate) events: Vec<Event>,
}

impl Client {
    pub(crate) fn new(links: Vec<Box<dyn Link>>, tunables: Tunables) -> Client {
        let config = Config { discovers: true, tunables, ..Config::new(WorkerId(0), std::process::id().into()) };
        Client {
            driver: Driver::new(Initiator::new(config), links),
            buffers: Buffers { piece: 4096, ..Buffers::default() },
            start: Instant::now(),
            next_id: 0,
            done: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Opens a device and waits until it is found.
    pub(crate) fn open(&mut self, address: Address) -> Found {
        let now = self.now();
        self.driver.initiator().open(now, address, Arc::new(Credits::new()));
        let mut from = self.events.len();
        let end = now + PATIENCE;
        loop {
            for event in &self.events[from..] {
                if let Event::Found(found) = event {
                    return *found;
                }
            }
            from = self.events.len();
            assert!(self.now() < end, "{address} was not found");
            self.turn();
        }
    }

    /// Submits a request with its data; its number.
    pub(crate) fn submit(&mut self, device: DeviceId, op: Op, lba: u64, data: Vec<u8>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let sectors = u32::try_from(data.len() / SECTOR).unwrap();
        self.buffers.buffers.insert(id, data);
        let request = Request { id: RequestId(id), device, op, lba: Lba(lba), sectors };
        let now = self.now();
        self.driver.initiator().submit(now, request).unwrap();
        id
    }

    /// Requests that have not ended.
    pub(crate) fn outstanding(&self) -> usize {
        self.buffers.buffers.len()
    }

    /// Moves what there is to move, then waits for more for a moment.
    pub(crate) fn turn(&mut self) {
        let now = self.now();
        let pumped = self.driver.pump(now, &mut self.buffers);
        let mut ended = false;
        while let Some(completion) = self.driver.initiator().poll_completion() {
            let data = self.buffers.buffers.remove(&completion.id.0).expect("a request ends once");
            self.done.insert(completion.id.0, Done { status: completion.status, data });
            ended = true;
        }
        while let Some(event) = self.driver.initiator().poll_event() {
            self.events.push(event);
        }
        if !pumped.any() && !ended {
            let now = self.now();
            let timeout = self.driver.wake_at(now).saturating_sub(now);
            wait(&self.driver.fds().collect::<Vec<_>>(), Some(timeout));
        }
    }

    /// Runs until at most `most` requests are outstanding.
    pub(crate) fn run_down_to(&mut self, most: usize) {
        let end = self.now() + PATIENCE;
        while self.outstanding() > most {
            assert!(self.now() < end, "{} requests did not end", self.outstanding());
            self.turn();
        }
    }

    /// Runs one request to its end.
    pub(crate) fn run(&mut self, device: DeviceId, op: Op, lba: u64, data: Vec<u8>) -> Done {
        let id = self.submit(device, op, lba, data);
        let end = self.now() + PATIENCE;
        while !self.done.contains_key(&id) {
            assert!(self.now() < end, "{op:?} of sector {lba} did not end");
            self.turn();
        }
        self.done.remove(&id).unwrap()
    }

    /// Writes the whole device with `seed`, up to `depth` requests at a time, and reads it back: everything must be as written.
    pub(crate) fn write_and_verify(&mut self, device: DeviceId, sectors: u64, seed: u64, depth: usize) {
        let mut extents = Vec::new();
        let mut lba = 0;
        for number in 0.. {
            if lba == sectors {
                break;
            }
            // From one sector to 128, of no particular alignment.
            let count = (1 + (seed.wrapping_add(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57)).min(sectors - lba);
            extents.push((lba, count));
            lba += count;
        }
        for &(lba, count) in extents.iter().rev() {
            self.run_down_to(depth - 1);
            self.submit(device, Op::Write { fua: false }, lba, pattern(seed, lba, count));
        }
        self.run_down_to(0);
        let flushed = self.run(device, Op::Flush, 0, Vec::new()).status;
        assert!(matches!(flushed, Status::Ok | Status::Volatile), "{flushed:?}");
        assert!(self.done.values().all(|done| done.status == Status::Ok));
        self.done.clear();
        let mut reads = BTreeMap::new();
        for &(lba, count) in &extents {
            self.run_down_to(depth - 1);
            reads.insert(self.submit(device, Op::Read, lba, vec![0xEE; count as usize * SECTOR]), (lba, count));
        }
        self.run_down_to(0);
        for (id, (lba, count)) in reads {
            let done = self.done.remove(&id).unwrap();
            assert_eq!(done.status, Status::Ok);
            assert!(done.data == pattern(seed, lba, count), "sectors {lba}+{count} differ");
        }
    }
}

/// What `write_and_verify` writes.
pub(crate) fn pattern(seed: u64, lba: u64, sectors: u64) -> Vec<u8> {
    (lba..lba + sectors)
        .flat_map(|sector| {
            (0..SECTOR as u64 / 8).flat_map(move |word| {
                (seed ^ (sector << 8 | word)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31).to_le_bytes()
            })
        })
        .collect()
}
