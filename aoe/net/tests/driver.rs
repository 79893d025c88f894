//! The driver against the shelf server over in-memory links, with faults, full links, a failing path, a restart.

mod common;

use aoe_net::driver::{Driver, Memory};
use aoe_net::link::{FaultConfig, FaultLink, Faults, FrameRef, Link, LinkCounters, Segment};
use aoe_net::shelf_server::{ServedDevice, ServerConfig, ShelfHandle, ShelfServer};
use aoe_net::store::{AnyStore, MemoryStore};
use aoe_proto::initiator::{Config, Credits, Event, Initiator, Op, RequestId, Status, Tunables, WorkerId};
use aoe_proto::port::PortInfo;
use aoe_proto::shelf::DeviceConfig;
use aoe_proto::wire::Address;
use common::client::{Client, pattern};
use common::mac;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

const DEVICE: Address = Address::new(3, 4);

fn serve(links: Vec<Box<dyn Link>>, store: &MemoryStore) -> ShelfHandle {
    let store = AnyStore::new(store.clone());
    let devices = vec![ServedDevice { config: DeviceConfig::new(DEVICE, 64, "memory"), store }];
    ShelfServer::spawn(ServerConfig { settle: false, ..ServerConfig::new(devices) }, links).unwrap()
}

#[test]
fn everything_that_is_written_is_read_again() {
    for mtu in [1500, 9000] {
        let segment = Segment::new();
        let store = MemoryStore::new(20_000);
        let shelf = serve(vec![Box::new(segment.attach(mac(1), mtu).unwrap())], &store);
        let mut client = Client::new(vec![Box::new(segment.attach(mac(2), mtu).unwrap())], Tunables::default());
        let found = client.open(DEVICE);
        assert_eq!(found.identify.sectors, 20_000);
        client.write_and_verify(found.device, 20_000, 1, 16);
        assert!(*store.contents() == pattern(1, 0, 20_000));
        shelf.stop().unwrap();
    }
}

#[test]
fn two_paths_carry_the_same_device() {
    let segments = [Segment::new(), Segment::new()];
    let links = |last| {
        let link = |s: &Segment| Box::new(s.attach(mac(last), 9000).unwrap()) as Box<dyn Link>;
        segments.iter().map(link).collect::<Vec<_>>()
    };
    let store = MemoryStore::new(20_000);
    let shelf = serve(links(1), &store);
    let mut client = Client::new(links(2), Tunables { aoe_requery: 1, ..Tunables::default() });
    let found = client.open(DEVICE);
    client.write_and_verify(found.device, 20_000, 1, 32);
    // One segment fails: all goes on over the other.
    segments[0].set_link(mac(1), false);
    client.write_and_verify(found.device, 20_000, 2, 32);
    segments[0].set_link(mac(1), true);
    segments[1].set_link(mac(2), false);
    client.write_and_verify(found.device, 20_000, 3, 32);
    shelf.stop().unwrap();
}

#[test]
fn links_are_changed_while_requests_are_made() {
    let segments = [Segment::new(), Segment::new()];
    let link = |segment: usize, last| Box::new(segments[segment].attach(mac(last), 9000).unwrap()) as Box<dyn Link>;
    let store = MemoryStore::new(20_000);
    let shelf = serve(vec![link(0, 1), link(1, 1)], &store);
    let mut client = Client::new(vec![link(0, 2)], Tunables::default());
    let found = client.open(DEVICE);
    client.write_and_verify(found.device, 20_000, 1, 32);
    // To the other segment alone, then back, a link of a segment once more under another address.
    for (round, segment) in [(2u8, 1), (3, 0)] {
        let now = client.now();
        client.driver.set_links(now, vec![link(segment, 2 + round)]);
        client.write_and_verify(found.device, 20_000, round.into(), 32);
        assert_eq!(client.driver.links().filter(|(name, ..)| !name.is_empty()).count(), 1);
        let device = client.driver.initiator().device(found.device).unwrap();
        assert_eq!(device.paths().count(), 1);
    }
    shelf.stop().unwrap();
}

#[test]
fn faults_on_both_sides_damage_nothing() {
    let segment = Segment::new();
    let ms = Duration::from_millis;
    let faults = Faults {
        loss: 0.02,
        duplicate: 0.02,
        duplicate_delay: ms(30),
        reorder: 0.02,
        reorder_delay: ms(3),
        ..Faults::default()
    };
    let link = |last, seed| -> Box<dyn Link> {
        let inner = segment.attach(mac(last), 9000).unwrap();
        Box::new(FaultLink::new(inner, FaultConfig::both(faults, seed)).unwrap())
    };
    let store = MemoryStore::new(8_000);
    let shelf = serve(vec![link(1, 10)], &store);
    let mut client = Client::new(vec![link(2, 20)], Tunables::default());
    let found = client.open(DEVICE);
    for seed in 1..=3 {
        client.write_and_verify(found.device, 8_000, seed, 32);
    }
    assert!(client.driver.initiator().counters().retransmits > 0);
    shelf.stop().unwrap();
}

#[test]
fn a_shelf_that_is_killed_and_started_again_is_noticed_and_used() {
    let segment = Segment::new();
    let store = MemoryStore::new(1000);
    let shelf = serve(vec![Box::new(segment.attach(mac(1), 9000).unwrap())], &store);
    let tunables = Tunables { aoe_silence: 200, aoe_rediscover: 50, ..Tunables::default() };
    let mut client = Client::new(vec![Box::new(segment.attach(mac(2), 9000).unwrap())], tunables);
    let found = client.open(DEVICE);
    client.write_and_verify(found.device, 1000, 1, 8);
    shelf.kill();
    let write = client.submit(found.device, Op::Write { fua: false }, 0, pattern(9, 0, 1));
    while !client.events.iter().any(|event| matches!(event, Event::Silent { .. })) {
        client.turn();
    }
    assert_eq!(client.outstanding(), 1);
    let shelf = serve(vec![Box::new(segment.attach(mac(1), 9000).unwrap())], &store);
    client.run_down_to(0);
    assert_eq!(client.done[&write].status, Status::Ok);
    client.run(found.device, Op::Flush, 0, Vec::new());
    assert!(client.events.iter().any(|event| matches!(event, Event::Answers { .. })));
    assert!(client.events.iter().any(|event| matches!(event, Event::Restarted { .. })), "{:?}", client.events);
    shelf.stop().unwrap();
}

/// A link that takes nothing.
struct Stuck<L>(L);

impl<L: Link> Link for Stuck<L> {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn info(&self) -> Option<PortInfo> {
        self.0.info()
    }
    fn refresh(&mut self) {
        self.0.refresh();
    }
    fn send(&mut self, _: &[FrameRef<'_>]) -> usize {
        0
    }
    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        self.0.receive(sink)
    }
    fn receive_frames(&self) -> usize {
        self.0.receive_frames()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }
    fn counters(&mut self) -> LinkCounters {
        self.0.counters()
    }
}

#[test]
fn a_stuck_link_loses_frames_after_a_while_and_they_are_counted() {
    let segment = Segment::new();
    let inner = segment.attach(mac(2), 9000).unwrap();
    let mut driver = Driver::new(Initiator::new(Config::new(WorkerId(0), 1)), vec![Box::new(Stuck(inner))]);
    struct Nothing;
    impl Memory for Nothing {
        fn write(&mut self, _: RequestId, _: usize, _: &[u8]) {}
        fn slices<'a>(&'a self, _: RequestId, _: usize, _: usize, _: &mut dyn FnMut(&'a [u8])) {}
    }
    driver.initiator().open(Duration::ZERO, DEVICE, Arc::new(Credits::new()));
    let ms = Duration::from_millis;
    assert_eq!(driver.pump(ms(1), &mut Nothing).sent, 0);
    assert!(driver.wake_at(ms(1)) < ms(2));
    assert_eq!(driver.backlog_lost(), 0);
    driver.pump(ms(20), &mut Nothing);
    assert!(driver.backlog_lost() > 0);
}
