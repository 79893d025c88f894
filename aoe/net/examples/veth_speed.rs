//! How fast our initiator reads from and writes to our shelf over a veth pair: `veth_speed [read|write] [KIB] [DEPTH] [SECONDS] [DIRECTORY]`.
//!
//! Needs root. The initiator runs on CPU 0, the shelf on CPU 1. Prints MB/s (10^6) and frames per second.

use aoe_net::driver::{Driver, Memory};
use aoe_net::link::{PacketConfig, PacketLink, Role};
use aoe_net::shelf_server::{ServedDevice, ServerConfig, ShelfServer};
use aoe_net::store::{AnyStore, FileOptions, FileStore};
use aoe_net::wake::wait;
use aoe_proto::initiator::{Config, Credits, Event, Initiator, Op, Request, RequestId, Status, Tunables, WorkerId};
use aoe_proto::shelf::{BlockStore, DeviceConfig};
use aoe_proto::wire::{Address, Lba, SECTOR};
use rustix::thread::{CpuSet, ThreadNameSpaceType, move_into_thread_name_spaces, sched_setaffinity};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEVICE: Address = Address::new(1, 1);

/// Equal buffers, one per request in flight.
struct Buffers {
    bytes: Vec<u8>,
    each: usize,
}

impl Memory for Buffers {
    fn write(&mut self, id: RequestId, offset: usize, data: &[u8]) {
        let at = id.0 as usize * self.each + offset;
        self.bytes[at..at + data.len()].copy_from_slice(data);
    }

    fn slices<'a>(&'a self, id: RequestId, offset: usize, len: usize, piece: &mut dyn FnMut(&'a [u8])) {
        let at = id.0 as usize * self.each + offset;
        piece(&self.bytes[at..at + len]);
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("the ip command");
    assert!(status.success(), "ip {arguments}");
}

/// Moves this thread to a network namespace that vanishes with it.
fn enter_namespace() {
    let name = format!("er-speed-{}", std::process::id());
    ip(&format!("netns add {name}"));
    let namespace = File::open(format!("/run/netns/{name}")).expect("it was made just now");
    let entered = move_into_thread_name_spaces(namespace.as_fd(), ThreadNameSpaceType::NETWORK);
    ip(&format!("netns del {name}"));
    entered.expect("root may enter namespaces");
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let argument = |at: usize, default: &str| arguments.get(at).cloned().unwrap_or_else(|| default.to_owned());
    let write = argument(0, "read") == "write";
    let each = argument(1, "64").parse::<usize>().expect("KIB is a number") << 10;
    let depth = argument(2, "16").parse::<usize>().expect("DEPTH is a number");
    let seconds = argument(3, "3").parse::<u64>().expect("SECONDS is a number");
    let directory = argument(4, "/dev/shm");
    let mut file = tempfile::NamedTempFile::new_in(directory).expect("DIRECTORY can be written");
    file.write_all(&vec![1; 256 << 20]).expect("DIRECTORY has room for 256 MiB");

    enter_namespace();
    ip("link add near mtu 9000 type veth peer name far mtu 9000");
    ip("link set near up");
    ip("link set far up");
    run("near", "far", file.path(), write, each, depth, Duration::from_secs(seconds));
}

/// A driver over the interface `near`, with this thread pinned to CPU 0. MAXOUT in the environment sets `aoe_maxout`.
fn driver(near: &str) -> Driver {
    let mut cpus = CpuSet::new();
    cpus.set(0);
    sched_setaffinity(None, &cpus).expect("CPU 0 exists");
    let link = PacketLink::open(&PacketConfig::new(near, Role::Initiator { worker: 0, discovers: true }));
    let maxout = std::env::var("MAXOUT").map_or(64, |text| text.parse().expect("MAXOUT is a number"));
    let tunables = Tunables { aoe_maxout: maxout, ..Tunables::default() };
    let initiator = Initiator::new(Config { discovers: true, tunables, ..Config::new(WorkerId(0), 1) });
    Driver::new(initiator, vec![Box::new(link.expect("a packet socket"))])
}

fn run(near: &str, far: &str, file: &Path, write: bool, each: usize, depth: usize, time: Duration) {
    let store = FileStore::open(file, FileOptions::default()).expect("the file was written above");
    let sectors = store.sectors();
    let devices = vec![ServedDevice { config: DeviceConfig::new(DEVICE, 256, "speed"), store: AnyStore::new(store) }];
    let link = PacketLink::open(&PacketConfig::new(far, Role::Shelf)).expect("a packet socket");
    let config = ServerConfig { settle: false, cpus: vec![1], ..ServerConfig::new(devices) };
    let shelf = ShelfServer::spawn(config, vec![Box::new(link)]).expect("the shelf starts");

    let mut driver = driver(near);
    let mut memory = Buffers { bytes: vec![2; each * depth], each };
    let start = Instant::now();
    driver.initiator().open(Duration::ZERO, DEVICE, Arc::new(Credits::new()));
    let mut device = None;
    let mut lba = 0u64;
    let (mut bytes, mut began) = (0u64, None);
    let (mut turns, mut waits) = (0u64, 0u64);
    loop {
        let now = start.elapsed();
        let mut submit = |driver: &mut Driver, id, device| {
            let request = Request {
                id,
                device,
                op: if write { Op::Write { fua: false } } else { Op::Read },
                lba: Lba(lba),
                sectors: (each / SECTOR) as u32,
            };
            driver.initiator().submit(now, request).expect("there is room");
            lba = (lba + (each / SECTOR) as u64) % (sectors - (each / SECTOR) as u64);
        };
        let pumped = driver.pump(now, &mut memory);
        turns += 1;
        while let Some(event) = driver.initiator().poll_event() {
            if let Event::Found(found) = event {
                device = Some(found.device);
                began = Some(now);
                for id in 0..depth as u64 {
                    submit(&mut driver, RequestId(id), found.device);
                }
            }
        }
        while let Some(completion) = driver.initiator().poll_completion() {
            assert_eq!(completion.status, Status::Ok);
            bytes += each as u64;
            submit(&mut driver, completion.id, device.expect("requests come after it was found"));
        }
        if began.is_some_and(|began| now > began + time) {
            break;
        }
        if !pumped.any() {
            waits += 1;
            let timeout = driver.wake_at(now).saturating_sub(now);
            wait(&driver.fds().collect::<Vec<_>>(), Some(timeout));
        }
    }
    let took = (start.elapsed() - began.expect("the device was found")).as_secs_f64();
    let counters = *driver.initiator().counters();
    println!(
        "{} {} KiB depth {depth}: {:.0} MB/s, {:.0} frames/s, {} retransmits, {turns} turns, {waits} waits",
        if write { "write" } else { "read" },
        each >> 10,
        bytes as f64 / took / 1e6,
        counters.frames_answered as f64 / took,
        counters.retransmits,
    );
    println!("{:?}", shelf.counters().links);
    shelf.stop().expect("the file can be flushed");
}
