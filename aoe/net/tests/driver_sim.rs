//! The driver over the simulated Ethernet, on one thread and virtual time, against the shelf as a value.

mod common;

use aoe_net::driver::{Driver, Memory};
use aoe_net::link::{FrameRef, Link, LinkCounters};
use aoe_proto::initiator::{
    Completion, Config, Credits, DeviceId, Event, Initiator, Op, Request, RequestId, Status, Tunables, WorkerId,
};
use aoe_proto::port::{PortId, PortInfo};
use aoe_proto::shelf::{BlockStore, DeviceConfig, DeviceState, Outcome, Shelf, ShelfConfig, StoreError};
use aoe_proto::wire::{Address, Lba, SECTOR};
use aoe_sim::{Faults, Network, PortConfig, Ppm};
use common::client::pattern;
use common::mac;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DEVICE: Address = Address::new(3, 4);
const SECTORS: u64 = 2000;

/// What link and test share: the network, its time, and the frames that arrived at the link.
struct Ether {
    network: Network,
    now: Duration,
    arrived: Vec<Vec<u8>>,
}

/// A port of the simulated Ethernet as a link.
struct SimLink {
    ether: Arc<Mutex<Ether>>,
    port: aoe_sim::PortId,
    info: PortInfo,
    /// It takes a few frames now and then, and is full otherwise.
    clogged: bool,
    calls: usize,
}

impl Link for SimLink {
    fn name(&self) -> &str {
        "sim"
    }
    fn info(&self) -> Option<PortInfo> {
        Some(self.info)
    }
    fn refresh(&mut self) {}
    fn send(&mut self, frames: &[FrameRef<'_>]) -> usize {
        let Ether { network, now, .. } = &mut *self.ether.lock().unwrap();
        self.calls += 1;
        let room = if self.clogged { [0, 3, 0, 1, 2][self.calls % 5] } else { frames.len() };
        let taken = &frames[..room.min(frames.len())];
        let mut bytes = Vec::new();
        for frame in taken {
            frame.copy_to(&mut bytes);
            network.send(*now, self.port, &bytes);
        }
        taken.len()
    }
    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let arrived = std::mem::take(&mut self.ether.lock().unwrap().arrived);
        arrived.iter().for_each(|frame| sink(frame));
        arrived.len()
    }
    fn receive_frames(&self) -> usize {
        usize::MAX
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn counters(&mut self) -> LinkCounters {
        LinkCounters::default()
    }
}

/// The buffer of the one request at a time.
struct OneBuffer(Vec<u8>);

impl Memory for OneBuffer {
    fn write(&mut self, _: RequestId, offset: usize, data: &[u8]) {
        self.0[offset..offset + data.len()].copy_from_slice(data);
    }
    fn slices<'a>(&'a self, _: RequestId, offset: usize, len: usize, piece: &mut dyn FnMut(&'a [u8])) {
        // As small as the trait allows, and not aligned with the frames.
        let (first, rest) = self.0[offset..offset + len].split_at(len.min(100));
        piece(first);
        rest.chunks(512).for_each(piece);
    }
}

struct Store(Vec<u8>);

impl BlockStore for Store {
    fn sectors(&self) -> u64 {
        SECTORS
    }
    fn read(&mut self, lba: Lba, buf: &mut [u8]) -> Result<(), StoreError> {
        buf.copy_from_slice(&self.0[lba.0 as usize * SECTOR..][..buf.len()]);
        Ok(())
    }
    fn write(&mut self, lba: Lba, data: &[u8], _: bool) -> Result<(), StoreError> {
        self.0[lba.0 as usize * SECTOR..][..data.len()].copy_from_slice(data);
        Ok(())
    }
    fn flush(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
    fn trim(&mut self, _: Lba, _: u64) -> Result<(), StoreError> {
        Err(StoreError::Io)
    }
    fn read_only(&self) -> bool {
        false
    }
}

struct World {
    ether: Arc<Mutex<Ether>>,
    far: aoe_sim::PortId,
    shelf: Shelf<Store>,
    driver: Driver,
    memory: OneBuffer,
    found: Option<DeviceId>,
}

impl World {
    fn new(faults: Faults, clogged: bool) -> World {
        let mut network = Network::new(4);
        let host = network.add_host();
        let [near, far] = [1, 2].map(|last| network.add_port(host, PortConfig::new(mac(last).0)));
        network.set_all_faults(faults);
        let info = |last| PortInfo { mac: mac(last), mtu: 9000 };
        let mut shelf = Shelf::new(ShelfConfig::new(1));
        shelf.set_port(PortId(0), Some(info(2))).unwrap();
        let store = Store(vec![0; SECTORS as usize * SECTOR]);
        shelf.add_device(DeviceConfig::new(DEVICE, 32, "sim"), DeviceState::default(), store).unwrap();
        let ether = Arc::new(Mutex::new(Ether { network, now: Duration::ZERO, arrived: Vec::new() }));
        let link = SimLink { ether: Arc::clone(&ether), port: near, info: info(1), clogged, calls: 0 };
        let mut driver = Driver::new(Initiator::new(Config::new(WorkerId(0), 1)), vec![Box::new(link)]);
        let tunables = Tunables { aoe_maxioc: 1, aoe_maxtx: 1, ..Tunables::default() };
        driver.initiator().set_tunables(Duration::ZERO, tunables).expect("in their ranges");
        driver.initiator().open(Duration::ZERO, DEVICE, Arc::new(Credits::new()));
        World { ether, far, shelf, driver, memory: OneBuffer(Vec::new()), found: None }
    }

    fn now(&self) -> Duration {
        self.ether.lock().unwrap().now
    }

    /// One instant: the driver, then the network up to the next one, with the shelf's replies. A request that ended, if one did.
    fn turn(&mut self) -> Option<Completion> {
        let now = self.now();
        self.driver.pump(now, &mut self.memory);
        while let Some(event) = self.driver.initiator().poll_event() {
            if let Event::Found(found) = event {
                self.found = Some(found.device);
            }
        }
        let ended = self.driver.initiator().poll_completion();
        let Ether { network, now: at, arrived } = &mut *self.ether.lock().unwrap();
        let wake = self.driver.wake_at(now);
        *at = network.next_event().map_or(wake, |event| event.min(wake)).max(now);
        let mut reply = vec![0; 9014];
        while let Some((port, frame)) = network.poll(*at) {
            if port != self.far {
                arrived.push(frame);
                continue;
            }
            if let Outcome::Reply(len) = self.shelf.handle_frame(*at, PortId(0), &frame, &mut reply) {
                network.send(*at, self.far, &reply[..len]);
            }
            while let Some(Outcome::Reply(len)) = self.shelf.poll_reply(&mut reply) {
                network.send(*at, self.far, &reply[..len]);
            }
        }
        ended
    }

    fn run(&mut self, op: Op) -> Status {
        while self.found.is_none() {
            assert_eq!(self.turn(), None);
        }
        let device = self.found.expect("found just now");
        let request = Request { id: RequestId(1), device, op, lba: Lba(0), sectors: SECTORS as u32 };
        let now = self.now();
        self.driver.initiator().submit(now, request).unwrap();
        loop {
            if let Some(completion) = self.turn() {
                return completion.status;
            }
        }
    }
}

/// Writes the device and reads it back in a world.
fn write_and_read(world: &mut World) {
    let data = pattern(7, 0, SECTORS);
    world.memory.0 = data.clone();
    assert_eq!(world.run(Op::Write { fua: true }), Status::Ok);
    assert!(world.shelf.store(DEVICE).unwrap().0 == data);
    world.memory.0.fill(0);
    assert_eq!(world.run(Op::Read), Status::Ok);
    assert!(world.memory.0 == data);
    assert!(world.now() < Duration::from_secs(20));
}

#[test]
fn the_driver_runs_on_virtual_time() {
    for (loss, resent) in [(Ppm::ZERO, false), (Ppm::percent(2), true)] {
        let mut world = World::new(Faults { loss, ..Faults::NONE }, false);
        write_and_read(&mut world);
        assert_eq!(world.driver.initiator().counters().retransmits > 0, resent);
    }
}

#[test]
fn a_full_link_delays_frames_and_loses_none() {
    let mut world = World::new(Faults::NONE, true);
    write_and_read(&mut world);
    assert_eq!(world.driver.backlog_lost(), 0);
    assert_eq!(world.driver.initiator().counters().retransmits, 0);
}
