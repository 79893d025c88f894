//! The shelf server over in-memory links: discovery, data, saved state, buffer counts, several links, stopping and killing.

mod common;

use aoe_net::link::{BATCH, FrameRef, Link, MemoryLink, Segment};
use aoe_net::shelf_server::{ServedDevice, ServerConfig, ServerError, ShelfHandle, ShelfServer};
use aoe_net::store::{AnyStore, FileOptions, FileStore, MemoryStore, Survivors, VolatileStore};
use aoe_net::wake::wait;
use aoe_proto::shelf::DeviceConfig;
use aoe_proto::wire::{
    Address, AoeError, AtaRequest, Body, CCmd, Command, ConfigInfo, Frame, Header, Lba, MacAddr, RCmd, Reserve, SECTOR,
    Status, Tag,
};
use common::mac;
use std::time::{Duration, Instant};

fn device(slot: u8, store: AnyStore) -> ServedDevice {
    ServedDevice { config: DeviceConfig::new(Address::new(7, slot), 64, &format!("serial{slot}")), store }
}

/// A server without the waiting at the start, for segments that are new.
fn config(devices: Vec<ServedDevice>) -> ServerConfig {
    ServerConfig { settle: false, ..ServerConfig::new(devices) }
}

fn spawn(segment: &Segment, devices: Vec<ServedDevice>) -> ShelfHandle {
    ShelfServer::spawn(config(devices), vec![Box::new(segment.attach(mac(1), 9000).unwrap())]).unwrap()
}

/// A station that sends requests and looks at the replies.
struct Station {
    link: MemoryLink,
    tag: u32,
}

impl Station {
    fn new(segment: &Segment, last: u8) -> Station {
        Station { link: segment.attach(mac(last), 9000).unwrap(), tag: 1 << 31 }
    }

    fn header(&mut self, address: Address, command: Command) -> Header {
        self.tag += 1;
        let dst = if address.is_wildcard() { MacAddr::BROADCAST } else { mac(1) };
        Header::request(dst, self.link.info().unwrap().mac, address, command, Tag(self.tag))
    }

    fn send(&mut self, frame: &[u8]) {
        assert_eq!(self.link.send(&[FrameRef::whole(frame)]), 1);
    }

    /// The replies that arrive, until there are `count`; fails after ten seconds.
    fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        self.receive_kind(count, false)
    }

    /// The beacons that arrive, until there are `count`.
    fn beacons(&mut self, count: usize) -> Vec<Vec<u8>> {
        self.receive_kind(count, true)
    }

    fn receive_kind(&mut self, count: usize, beacons: bool) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        let end = Instant::now() + Duration::from_secs(10);
        while got.len() < count {
            assert!(Instant::now() < end, "{} of {count} replies arrived", got.len());
            wait(&[self.link.fd().unwrap()], Some(Duration::from_millis(100)));
            self.link.receive(&mut |frame| {
                if (Header::parse(frame).unwrap().0.tag == Tag::UNSOLICITED) == beacons {
                    got.push(frame.to_vec());
                }
            });
        }
        got
    }

    fn ata(&mut self, address: Address, request: &AtaRequest, data: &[u8]) -> (Status, Vec<u8>) {
        let header = self.header(address, Command::ATA);
        let mut frame = [0; 9014];
        let len = request.emit(&header, &mut frame);
        frame[len..len + data.len()].copy_from_slice(data);
        self.send(&frame[..(len + data.len()).max(60)]);
        let reply = self.receive(1).remove(0);
        match Frame::parse(&reply).unwrap() {
            Frame { header: got, body: Body::AtaReply(reply, data) } => {
                assert_eq!((got.tag, got.error), (header.tag, None));
                (reply.status, data.to_vec())
            }
            other => panic!("{other:?}"),
        }
    }

    /// Sends query config; buffer count and string of each of `count` replies, by address.
    fn config(&mut self, address: Address, ccmd: CCmd, string: &[u8], count: usize) -> Vec<(Address, u16, Vec<u8>)> {
        let header = self.header(address, Command::CONFIG);
        let mut frame = [0; 2000];
        let len = ConfigInfo::request(ccmd, string).emit(&header, &mut frame);
        self.send(&frame[..len.max(60)]);
        let mut got: Vec<_> = self
            .receive(count)
            .iter()
            .map(|reply| match Frame::parse(reply).unwrap() {
                Frame { header, body: Body::Config(info) } => {
                    assert_eq!(header.error, None);
                    (header.address, info.buffer_count, info.string.to_vec())
                }
                other => panic!("{other:?}"),
            })
            .collect();
        got.sort();
        got
    }
}

#[test]
fn discovery_finds_every_device_and_data_go_both_ways() {
    let segment = Segment::new();
    let stores: Vec<_> = (0..3).map(|_| MemoryStore::new(64)).collect();
    let devices = stores.iter().zip(0..).map(|(s, slot)| device(slot, AnyStore::new(s.clone()))).collect();
    let handle = spawn(&segment, devices);
    let mut station = Station::new(&segment, 2);
    let found = station.config(Address::ALL, CCmd::READ, b"", 3);
    assert_eq!(found, (0..3).map(|slot| (Address::new(7, slot), 64, vec![])).collect::<Vec<_>>());
    let data: Vec<u8> = (0..17 * SECTOR).map(|i| (i / 5) as u8).collect();
    let (status, _) = station.ata(Address::new(7, 1), &AtaRequest::write(Lba(3), 17, true), &data);
    assert_eq!(status, Status::OK);
    let (status, read) = station.ata(Address::new(7, 1), &AtaRequest::read(Lba(3), 17, true), &[]);
    assert!(status == Status::OK && read == data);
    assert_eq!(stores[1].contents()[3 * SECTOR..20 * SECTOR], data);
    assert!(stores[0].contents().iter().chain(stores[2].contents().iter()).all(|&b| b == 0));
    let counters = handle.counters();
    assert_eq!((counters.devices[1].1.reads, counters.devices[1].1.writes), (1, 1));
    assert_eq!(handle.addresses().len(), 3);
    assert_eq!(handle.sectors(Address::new(7, 2)), Some(64));
    assert!(handle.is_running());
    handle.stop().unwrap();
}

#[test]
fn a_batch_of_requests_gets_a_reply_each() {
    let segment = Segment::new();
    let store = MemoryStore::new(1024);
    for (i, sector) in store.contents().chunks_mut(SECTOR).enumerate() {
        sector.fill(i as u8);
    }
    let handle = spawn(&segment, vec![device(0, AnyStore::new(store))]);
    let mut station = Station::new(&segment, 2);
    for round in 0..20u64 {
        let frames: Vec<_> = (0..BATCH as u64)
            .map(|i| {
                let header = station.header(Address::new(7, 0), Command::ATA);
                let mut frame = vec![0; 60];
                AtaRequest::read(Lba((round * 31 + i * 7) % 1000), 16, true).emit(&header, &mut frame);
                frame
            })
            .collect();
        let refs: Vec<_> = frames.iter().map(|f| FrameRef::whole(f)).collect();
        station.link.send(&refs);
        let replies = station.receive(BATCH);
        for (i, reply) in (0..).zip(&replies) {
            let Frame { body: Body::AtaReply(_, data), .. } = Frame::parse(reply).unwrap() else { panic!() };
            let lba = (round * 31 + i * 7) % 1000;
            for (sector, data) in (lba..).zip(data.chunks(SECTOR)) {
                assert!(data.iter().all(|&b| b == sector as u8));
            }
        }
    }
    drop(handle);
}

#[test]
fn many_devices_answer_one_query_and_beacons_announce_them() {
    let segment = Segment::new();
    let mut listener = Station::new(&segment, 3);
    let devices = (0..200).map(|slot| device(slot, AnyStore::new(MemoryStore::new(8)))).collect();
    let handle = spawn(&segment, devices);
    listener.beacons(200);
    let found = listener.config(Address::ALL, CCmd::READ, b"", 200);
    assert_eq!(found.len(), 200);
    // 200 devices share a queue of 1024 frames.
    assert!(found.iter().all(|(_, count, _)| *count == 5), "{:?}", found[0]);
    // A link that comes back is announced on as well.
    segment.set_link(mac(1), false);
    let end = Instant::now() + Duration::from_secs(10);
    while handle.counters().links[0].1.went_down == 0 {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    segment.set_link(mac(1), true);
    listener.beacons(200);
}

#[test]
fn buffer_counts_shrink_with_the_number_of_stations() {
    let segment = Segment::new();
    let devices = (0..4)
        .map(|slot| ServedDevice {
            config: DeviceConfig::new(Address::new(7, slot), 200, "s"),
            store: AnyStore::new(MemoryStore::new(8)),
        })
        .collect();
    let _handle = spawn(&segment, devices);
    for (stations, expected) in [(1, 200), (2, 128), (3, 85), (4, 64)] {
        let mut station = Station::new(&segment, 10 + stations);
        let found = station.config(Address::ALL, CCmd::READ, b"", 4);
        assert!(found.iter().all(|(_, count, _)| *count == expected), "{found:?}");
    }
}

#[test]
fn state_outlives_the_server_and_is_saved_before_the_reply() {
    let directory = tempfile::tempdir().unwrap();
    let store = MemoryStore::new(8);
    let address = Address::new(7, 0);
    let run = |segment: &Segment| {
        let config = ServerConfig {
            state_dir: Some(directory.path().join("state")),
            ..config(vec![device(0, AnyStore::new(store.clone()))])
        };
        ShelfServer::spawn(config, vec![Box::new(segment.attach(mac(1), 1500).unwrap())]).unwrap()
    };
    let segment = Segment::new();
    let handle = run(&segment);
    let mut station = Station::new(&segment, 2);
    station.config(address, CCmd::FORCE_SET, b"owned by two", 1);
    // Killed right after the reply: what it said must be on disk.
    handle.kill();
    let handle = run(&segment);
    let found = station.config(address, CCmd::READ, b"", 1);
    assert_eq!(found[0].2, b"owned by two");
    let header = station.header(address, Command::RESERVE);
    let mut frame = [0; 60];
    Reserve::emit(&header, RCmd::SET, [mac(2)].into_iter(), &mut frame);
    station.send(&frame);
    station.receive(1);
    handle.kill();
    let handle = run(&segment);
    let mut other = Station::new(&segment, 3);
    let header = other.header(address, Command::ATA);
    let mut frame = [0; 60];
    AtaRequest::read(Lba(0), 1, true).emit(&header, &mut frame);
    other.send(&frame);
    let reply = other.receive(1).remove(0);
    assert_eq!(Header::parse(&reply).unwrap().0.error, Some(AoeError::RESERVED));
    // A state that can't be saved is taken back, and said so.
    std::fs::remove_dir_all(directory.path().join("state")).unwrap();
    let header = station.header(address, Command::CONFIG);
    let mut frame = [0; 100];
    let len = ConfigInfo::request(CCmd::FORCE_SET, b"another").emit(&header, &mut frame);
    station.send(&frame[..len.max(60)]);
    let reply = station.receive(1).remove(0);
    assert_eq!(Header::parse(&reply).unwrap().0.error, Some(AoeError::UNAVAILABLE));
    assert_eq!(station.config(address, CCmd::READ, b"", 1)[0].2, b"owned by two");
    assert_eq!(handle.counters().save_failures, 1);
}

#[test]
fn damaged_state_is_not_served() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("e7.0.state"), "rubbish").unwrap();
    let segment = Segment::new();
    let config = ServerConfig {
        state_dir: Some(directory.path().to_owned()),
        ..config(vec![device(0, AnyStore::new(MemoryStore::new(8)))])
    };
    let result = ShelfServer::spawn(config, vec![Box::new(segment.attach(mac(1), 1500).unwrap())]);
    assert!(matches!(result.err(), Some(ServerError::State(_))));
    let twice = vec![device(0, AnyStore::new(MemoryStore::new(8))), device(0, AnyStore::new(MemoryStore::new(8)))];
    let result = ShelfServer::spawn(config_of(twice), vec![Box::new(segment.attach(mac(1), 1500).unwrap())]);
    assert!(matches!(result.err(), Some(ServerError::Device { .. })));
    let result = ShelfServer::spawn(config_of(Vec::new()), Vec::new());
    assert!(matches!(result.err(), Some(ServerError::Links(0))));
}

fn config_of(devices: Vec<ServedDevice>) -> ServerConfig {
    config(devices)
}

#[test]
fn stop_flushes_and_kill_does_not() {
    let address = Address::new(7, 0);
    for (stop, expected) in [(true, 0xAB), (false, 0)] {
        let segment = Segment::new();
        let memory = MemoryStore::new(8);
        let store = VolatileStore::new(memory.clone(), Survivors::None);
        let handle = spawn(&segment, vec![device(0, AnyStore::new(store))]);
        let mut station = Station::new(&segment, 2);
        station.ata(address, &AtaRequest::write(Lba(1), 1, true), &[0xAB; SECTOR]);
        if stop {
            handle.stop().unwrap();
        } else {
            handle.kill();
        }
        assert_eq!(memory.contents()[SECTOR], expected);
    }
}

#[test]
fn one_device_on_two_links_is_the_same_device() {
    let segments = [Segment::new(), Segment::new()];
    let links: Vec<Box<dyn Link>> =
        segments.iter().map(|s| Box::new(s.attach(mac(1), 9000).unwrap()) as Box<dyn Link>).collect();
    let handle = ShelfServer::spawn(config(vec![device(0, AnyStore::new(MemoryStore::new(64)))]), links).unwrap();
    let address = Address::new(7, 0);
    let [mut a, mut b] = [&segments[0], &segments[1]].map(|s| Station::new(s, 2));
    for round in 0..50u8 {
        a.ata(address, &AtaRequest::write(Lba(5), 1, true), &[round; SECTOR]);
        let (status, data) = b.ata(address, &AtaRequest::read(Lba(5), 1, true), &[]);
        assert_eq!((status, data), (Status::OK, vec![round; SECTOR]));
    }
    let (status, _) = b.ata(address, &AtaRequest::flush(true), &[]);
    assert_eq!(status, Status::OK);
    handle.stop().unwrap();
}

#[test]
fn a_larger_mtu_is_served_after_it_changed() {
    let segment = Segment::new();
    let link = segment.attach(mac(1), 1500).unwrap();
    let mut station = Station::new(&segment, 2);
    let devices = vec![device(0, AnyStore::new(MemoryStore::new(64)))];
    let _handle = ShelfServer::spawn(config(devices), vec![Box::new(link)]).unwrap();
    station.beacons(1);
    let header = station.header(Address::new(7, 0), Command::ATA);
    let mut read = [0; 60];
    AtaRequest::read(Lba(0), 17, true).emit(&header, &mut read);
    station.send(&read);
    let reply = station.receive(1).remove(0);
    assert_eq!(Header::parse(&reply).unwrap().0.error, Some(AoeError::ARGUMENT));
    segment.set_mtu(mac(1), 9000);
    // The second beacon, after the one of the start, says that it is ready.
    station.beacons(1);
    station.send(&read);
    assert_eq!(station.receive(1)[0].len(), 36 + 17 * SECTOR);
}

#[test]
fn direct_and_synchronous_files_are_served() {
    let directory = tempfile::Builder::new().prefix("er-shelf").tempdir_in("/var/tmp").unwrap();
    for (i, (direct, sync)) in [(false, false), (true, false), (false, true), (true, true)].into_iter().enumerate() {
        let path = directory.path().join(i.to_string());
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let options = FileOptions { direct, sync, ..FileOptions::default() };
        let Ok(store) = FileStore::open(&path, options) else {
            println!("SKIPPED: no direct I/O in /var/tmp");
            continue;
        };
        let segment = Segment::new();
        let handle = spawn(&segment, vec![device(0, AnyStore::new(store))]);
        let mut station = Station::new(&segment, 2);
        let data: Vec<u8> = (0..17 * SECTOR).map(|at| (at / 7) as u8).collect();
        for (lba, sectors) in [(0, 16), (8, 17), (13, 3), (1, 1)] {
            let data = &data[..usize::from(sectors) * SECTOR];
            let address = Address::new(7, 0);
            let (status, _) = station.ata(address, &AtaRequest::write(Lba(lba), sectors, true), data);
            assert_eq!(status, Status::OK);
            let (status, read) = station.ata(address, &AtaRequest::read(Lba(lba), sectors, true), &[]);
            assert!(status == Status::OK && read == data, "direct {direct} sync {sync} lba {lba}");
        }
        handle.stop().unwrap();
    }
}

#[test]
fn boot_numbers_differ_from_start_to_start() {
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..8 {
        let segment = Segment::new();
        let _handle = spawn(&segment, vec![device(0, AnyStore::new(MemoryStore::new(8)))]);
        let mut station = Station::new(&segment, 2);
        let (_, data) = station.ata(Address::new(7, 0), &AtaRequest::identify(), &[]);
        let identify = aoe_proto::wire::Identify::parse(&data[..SECTOR]).unwrap();
        assert!(identify.is_ours());
        seen.insert(identify.boot_number().unwrap());
    }
    assert_eq!(seen.len(), 8);
}

#[test]
fn a_mask_from_the_configuration_holds_until_another_is_saved() {
    let segment = Segment::new();
    let devices = vec![device(0, AnyStore::new(MemoryStore::new(8)))];
    let config = ServerConfig { mask: vec![mac(2)], ..config(devices) };
    let link = segment.attach(mac(1), 9000).unwrap();
    let handle = ShelfServer::spawn(config, vec![Box::new(link)]).unwrap();
    let (mut listed, mut other) = (Station::new(&segment, 2), Station::new(&segment, 3));
    let header = other.header(Address::new(7, 0), Command::CONFIG);
    let mut frame = [0; 60];
    ConfigInfo::request(CCmd::READ, b"").emit(&header, &mut frame);
    other.send(&frame);
    // Frames are answered in order: when the listed one has its answer, the other has been ignored.
    assert_eq!(listed.config(Address::new(7, 0), CCmd::READ, b"", 1).len(), 1);
    assert_eq!(handle.counters().devices[0].1.masked, 1);
    assert_eq!(other.link.receive(&mut |_| panic!("an answer")), 0);
}
