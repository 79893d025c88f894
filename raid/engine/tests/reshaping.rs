//! Worker groups and stripe cache change again and again under a load that verifies every byte, while a member is rebuilt.
//!
//! `ETHERRAID_CHANGES` is how often they change (default 60); when it is given, a request that took more than a second fails the test, too.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Rig, open, pattern, wait_for};
use raid_core::units::{Sector, Sectors};
use raid_engine::array::{Command, CommandErrorKind};
use raid_engine::assembly::random_uuid;
use raid_engine::message::IoStatus;
use raid_engine::runtime::client::{Client, Op, Request};
use raid_engine::runtime::running::Running;
use raid_engine::runtime::topology;
use raid_engine::slab::Buf;
use raid_engine::tunables::{Settings, WorkerGroup};

/// Sectors that are written together and have one content.
const BLOCK: u64 = 8;

/// Longest request, in blocks: 256 KiB.
const BLOCKS_MAX: u64 = 64;

struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A request in flight: first block, blocks, and what it writes.
type Flight = (u64, u64, Option<u8>, Instant);

/// A client that has some blocks to itself and knows what is in each.
struct Load {
    client: Client,
    rng: Rng,
    /// First block.
    first: u64,
    /// By block: what it was written with last.
    content: Vec<u8>,
    busy: Vec<bool>,
    flights: Vec<Option<Flight>>,
    slowest: Duration,
    requests: u64,
}

impl Load {
    fn new(client: Client, first: u64, blocks: u64) -> Load {
        let flights = (0..24).map(|_| None).collect();
        let (content, busy) = (vec![0; blocks as usize], vec![false; blocks as usize]);
        let (slowest, requests) = (Duration::ZERO, 0);
        Load { client, rng: Rng(first + 1), first, content, busy, flights, slowest, requests }
    }

    fn range(&mut self) -> Option<(u64, u64)> {
        let blocks = 1 + if self.rng.below(3) == 0 { self.rng.below(BLOCKS_MAX) } else { self.rng.below(4) };
        let at = self.rng.below(self.content.len() as u64 - blocks);
        let range = at as usize..(at + blocks) as usize;
        (!self.busy[range].contains(&true)).then_some((at, blocks))
    }

    fn submit(&mut self) {
        for id in 0..self.flights.len() {
            if self.flights[id].is_some() {
                continue;
            }
            let Some((at, blocks)) = self.range() else { continue };
            let sectors = blocks * BLOCK;
            let mut buf = self.client.alloc(sectors as usize * 512).expect("memory");
            let content = (self.rng.below(3) > 0).then(|| self.rng.below(256) as u8);
            let mut op = Op::Read;
            if let Some(content) = content {
                op = Op::Write { fua: self.rng.below(16) == 0 };
                self.write(&mut buf, at, content);
            }
            self.busy[at as usize..(at + blocks) as usize].fill(true);
            self.flights[id] = Some((at, blocks, content, Instant::now()));
            let at = Sector((self.first + at) * BLOCK);
            self.client.submit(Request { id: id as u64, op, at, sectors: Sectors(sectors), buf: Some(buf) });
        }
        self.client.unplug();
    }

    fn write(&self, buf: &mut Buf, at: u64, content: u8) {
        for (i, sector) in buf.chunks_mut(512).enumerate() {
            sector.copy_from_slice(&pattern((self.first + at) * BLOCK + i as u64, content));
        }
    }

    fn collect(&mut self) {
        while let Some(reply) = self.client.poll() {
            assert_eq!(reply.status, IoStatus::Ok);
            let (at, blocks, content, began) = self.flights[reply.id as usize].take().expect("in flight");
            self.slowest = self.slowest.max(began.elapsed());
            self.requests += 1;
            let buf = reply.buf.expect("the request's");
            let range = at as usize..(at + blocks) as usize;
            self.busy[range.clone()].fill(false);
            match content {
                Some(content) => self.content[range].fill(content),
                None => self.verify(&buf, at),
            }
            self.client.free(buf);
        }
    }

    fn verify(&self, buf: &Buf, at: u64) {
        for (i, sector) in buf.chunks(512).enumerate() {
            let number = (self.first + at) * BLOCK + i as u64;
            let content = self.content[at as usize + i / BLOCK as usize];
            assert!(content == 0 || sector == pattern(number, content), "sector {number}");
        }
    }

    /// Loads until told to stop, and then verifies all that it has written.
    fn run(mut self, stop: &AtomicBool) -> (Duration, u64) {
        while !stop.load(Ordering::Relaxed) {
            self.submit();
            self.collect();
            self.client.wait(Some(Duration::from_millis(20)));
        }
        while self.flights.iter().any(Option::is_some) {
            self.collect();
            self.client.wait(Some(Duration::from_millis(20)));
        }
        for at in (0..self.content.len() as u64).step_by(BLOCKS_MAX as usize) {
            let blocks = BLOCKS_MAX.min(self.content.len() as u64 - at);
            let mut buf = self.client.alloc((blocks * BLOCK) as usize * 512).expect("memory");
            let sectors = Sectors(blocks * BLOCK);
            let sector = Sector((self.first + at) * BLOCK);
            self.client.submit(Request { id: 0, op: Op::Read, at: sector, sectors, buf: Some(buf) });
            self.client.unplug();
            let reply = loop {
                match self.client.poll() {
                    Some(reply) => break reply,
                    None => self.client.wait(Some(Duration::from_secs(20))),
                }
            };
            assert_eq!(reply.status, IoStatus::Ok);
            buf = reply.buf.expect("the request's");
            self.verify(&buf, at);
            self.client.free(buf);
        }
        (self.slowest, self.requests)
    }
}

/// Load threads over the whole array.
fn loads(array: &Running, stop: &Arc<AtomicBool>) -> Vec<std::thread::JoinHandle<(Duration, u64)>> {
    let blocks = array.sectors().0 / BLOCK / 2;
    let start = |i| {
        let load = Load::new(array.client().expect("fd").expect("room"), i * blocks, blocks);
        let stop = Arc::clone(stop);
        std::thread::spawn(move || load.run(&stop))
    };
    (0..2).map(start).collect()
}

/// Replaces the first member, so that it is rebuilt, slowly.
fn rebuild(rig: &mut Rig, array: &Running, spare: &str) {
    let victim = array.find(&rig.members[0].name).expect("it runs").expect("a member");
    array.command(Command::Fail(victim)).expect("can be spared");
    array.command(Command::Remove(victim)).expect("faulty");
    let fresh = open(&mut rig.opener, spare);
    array.add(fresh.device.clone(), fresh.name.clone(), random_uuid().0).expect("fits");
    rig.members.push(fresh);
}

fn changes() -> (u64, bool) {
    let given = std::env::var("ETHERRAID_CHANGES").ok().and_then(|n| n.parse().ok());
    (given.unwrap_or(60), given.is_some())
}

fn reshape_under_load(names: &[String], spare: &str) {
    let (changes, strict) = changes();
    let mut rig = Rig::new(names, true, None);
    let cpus = topology::allowed().expect("affinity").len() as u64;
    let array = rig.run(1);
    let mut settings = Settings { array: rig.tunables.clone(), stripe_cache_size: 64, ..Settings::default() };
    (settings.array.sync_speed_min, settings.array.sync_speed_max) = (0, 200);
    array.tune(&settings).expect("valid");
    rebuild(&mut rig, &array, spare);
    let stop = Arc::new(AtomicBool::new(false));
    let threads = loads(&array, &stop);
    let mut rng = Rng(7);
    let mut longest = Duration::ZERO;
    for _ in 0..changes {
        match rng.below(3) {
            0 => settings.stripe_cache_size = 17 + rng.below(1000) as usize,
            1 => settings.group_thread_cnt = rng.below(3) as usize,
            _ => settings.worker_group = if rng.below(2) == 0 { WorkerGroup::Cpu } else { WorkerGroup::Node },
        }
        let began = Instant::now();
        array.tune(&settings).expect("nothing is silent");
        longest = longest.max(began.elapsed());
        let workers = array.totals().workers as u64;
        let most =
            if settings.worker_group == WorkerGroup::Cpu { cpus * settings.group_thread_cnt as u64 } else { 2 * cpus };
        assert!(workers >= 1 && workers <= most.max(1), "{workers} workers under {settings:?}");
    }
    assert_eq!(array.detail().expect("it runs").degraded, 1, "the rebuild is under way all the time");
    (settings.array.sync_speed_min, settings.array.sync_speed_max) = (0, 0);
    array.tune(&settings).expect("valid");
    wait_for(&array, "recovered", |d| d.degraded == 0);
    // What was rebuilt is used from here on.
    let other = array.find(&rig.members[1].name).expect("it runs").expect("a member");
    array.command(Command::Fail(other)).expect("can be spared");
    stop.store(true, Ordering::Relaxed);
    let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("verifies")).collect();
    let slowest = ended.iter().map(|(slowest, _)| *slowest).max().expect("threads");
    let requests: u64 = ended.iter().map(|(_, requests)| requests).sum();
    println!("{changes} changes, the longest {longest:?}; {requests} requests, the slowest {slowest:?}");
    assert!(!strict || slowest < Duration::from_secs(1), "a request took {slowest:?}");
    assert_eq!(array.stop(false), 0);
}

#[test]
fn groups_and_cache_change_under_load_memory() {
    let names: Vec<String> = (0..5).map(|i| format!("mem:{}M", 40 + i)).collect();
    reshape_under_load(&names, "mem:60M");
}

#[test]
fn groups_and_cache_change_under_load_files() {
    let dir = tempfile::tempdir().expect("room");
    let file = |name: &str| {
        let path = dir.path().join(name);
        std::fs::File::create(&path).and_then(|f| f.set_len(40 << 20)).expect("room");
        path.display().to_string()
    };
    let names: Vec<String> = (0..4).map(|i| file(&format!("m{i}"))).collect();
    reshape_under_load(&names, &file("fresh"));
}

#[test]
fn a_count_that_is_out_of_range_changes_nothing() {
    let names: Vec<String> = (0..3).map(|i| format!("mem:{}M", 16 + i)).collect();
    let mut rig = Rig::new(&names, true, None);
    let array = rig.run(1);
    let workers = array.totals().workers;
    let mut settings = Settings { array: rig.tunables.clone(), stripe_cache_size: 64, ..Settings::default() };
    settings.group_thread_cnt = 3;
    let error = array.tune(&settings).expect_err("too many");
    assert!(error.kind == CommandErrorKind::Invalid && error.text.contains("takes 0 to 2"), "{error:?}");
    assert_eq!(array.totals().workers, workers);
    assert_eq!(array.stop(false), 0);
}
