//! Driver and shelf server over veth pairs, driver against Debian's vblade, and an interface that goes away under load.

mod common;

use aoe_net::link::{FaultConfig, FaultLink, Faults, PacketConfig, PacketLink, Role};
use aoe_net::shelf_server::{ServedDevice, ServerConfig, ShelfHandle, ShelfServer};
use aoe_net::store::{AnyStore, MemoryStore};
use aoe_proto::initiator::{Durability, Event, Op, Status, Tunables, VolatileReason};
use aoe_proto::shelf::DeviceConfig;
use aoe_proto::wire::{Address, SECTOR};
use common::client::{Client, pattern};
use common::{Running, have, in_namespace, ip, veth_pair};
use std::time::Duration;

const DEVICE: Address = Address::new(9, 1);

fn shelf(interface: &str, store: &MemoryStore) -> ShelfHandle {
    let link = PacketLink::open(&PacketConfig::new(interface, Role::Shelf)).unwrap();
    let config = DeviceConfig::new(DEVICE, 64, "veth");
    let devices = vec![ServedDevice { config, store: AnyStore::new(store.clone()) }];
    ShelfServer::spawn(ServerConfig { settle: false, ..ServerConfig::new(devices) }, vec![Box::new(link)]).unwrap()
}

fn client(interface: &str, tunables: Tunables) -> Client {
    let role = Role::Initiator { worker: 0, discovers: true };
    let link = PacketLink::open(&PacketConfig::new(interface, role)).unwrap();
    Client::new(vec![Box::new(link)], tunables)
}

#[test]
fn our_driver_against_our_shelf() {
    for mtu in [1500, 9000] {
        in_namespace(mtu, || {
            let store = MemoryStore::new(20_000);
            let shelf = shelf("ve1", &store);
            let mut client = client("ve0", Tunables::default());
            let found = client.open(DEVICE);
            assert_eq!(found.sectors_max, if mtu == 1500 { 2 } else { 17 });
            client.write_and_verify(found.device, 20_000, 1, 16);
            assert!(*store.contents() == pattern(1, 0, 20_000));
            shelf.stop().unwrap();
        });
    }
}

#[test]
fn our_driver_against_vblade() {
    if !have("vblade") {
        return;
    }
    for mtu in [1500, 9000] {
        in_namespace(mtu, || {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("disk");
            std::fs::write(&path, vec![0; 20_000 * SECTOR]).unwrap();
            let (_vblade, line) = Running::start("vblade", &["-b", "64", "9", "1", "ve1", path.to_str().unwrap()]);
            assert!(line.contains("e9.1"), "{line}");
            let mut client = client("ve0", Tunables::default());
            let found = client.open(DEVICE);
            assert_eq!(found.durability, Durability::Volatile(VolatileReason::KnownLiar));
            assert_eq!((found.buffer_count, found.identify.sectors), (64, 20_000));
            client.write_and_verify(found.device, 20_000, 2, 16);
            assert!(std::fs::read(&path).unwrap() == pattern(2, 0, 20_000));
        });
    }
}

#[test]
fn our_driver_against_vblade_over_a_bad_network() {
    if !have("vblade") {
        return;
    }
    in_namespace(9000, || {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        std::fs::write(&path, vec![0; 4_000 * SECTOR]).unwrap();
        let (_vblade, _) = Running::start("vblade", &["-b", "64", "9", "1", "ve1", path.to_str().unwrap()]);
        // Copies follow their originals at once, and reordering stays within a request's flight: what vblade can bear.
        let faults = Faults {
            loss: 0.02,
            duplicate: 0.01,
            reorder: 0.02,
            reorder_delay: Duration::from_micros(500),
            ..Faults::default()
        };
        let role = Role::Initiator { worker: 0, discovers: true };
        let link = PacketLink::open(&PacketConfig::new("ve0", role)).unwrap();
        let link = FaultLink::new(link, FaultConfig::both(faults, 11)).unwrap();
        let mut client = Client::new(vec![Box::new(link)], Tunables::default());
        let found = client.open(DEVICE);
        for seed in 1..=3 {
            client.write_and_verify(found.device, 4_000, seed, 16);
            assert!(std::fs::read(&path).unwrap() == pattern(seed, 0, 4_000));
        }
        assert!(client.driver.initiator().counters().ranges_closed > 0);
    });
}

#[test]
fn an_interface_that_is_removed_under_load_comes_back() {
    in_namespace(9000, || {
        let store = MemoryStore::new(8_000);
        let shelf = shelf("ve1", &store);
        let tunables = Tunables { aoe_deadsecs: 0, aoe_silence: 300, aoe_rediscover: 100, ..Tunables::default() };
        let mut client = client("ve0", tunables);
        let found = client.open(DEVICE);
        for round in 1..=3u64 {
            let mut lba = 0;
            let mut next = |client: &mut Client| {
                client.submit(found.device, Op::Write { fua: false }, lba, pattern(round, lba, 80));
                lba += 80;
            };
            for _ in 0..40 {
                next(&mut client);
            }
            for _ in 0..20 {
                client.turn();
            }
            ip("link del ve0");
            for _ in 0..40 {
                next(&mut client);
            }
            let from = client.events.len();
            while !client.events[from..].iter().any(|event| matches!(event, Event::Silent { .. })) {
                client.turn();
            }
            veth_pair("ve0", "ve1", 9000);
            for _ in 0..20 {
                next(&mut client);
            }
            client.run_down_to(0);
            assert!(client.done.values().all(|done| done.status == Status::Ok));
            client.done.clear();
            assert!(*store.contents() == pattern(round, 0, 8_000), "round {round}");
        }
        shelf.stop().unwrap();
    });
}

#[test]
fn a_shelf_without_its_interface_still_stops() {
    in_namespace(1500, || {
        let shelf = shelf("ve1", &MemoryStore::new(8));
        ip("link del ve0");
        assert!(shelf.is_running());
        shelf.stop().unwrap();
    });
}
