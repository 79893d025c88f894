//! An array over AoE shelves in this process: initiators and shelves on one in-process Ethernet segment.

mod common;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use aoe_net::link::Link;
use aoe_net::link::memory::Segment;
use aoe_net::shelf_server::{ServedDevice, ServerConfig, ShelfHandle, ShelfServer};
use aoe_net::store::{AnyStore, MemoryStore};
use aoe_proto::initiator::{Tunables as AoeTunables, WorkerId};
use aoe_proto::shelf::DeviceConfig;
use aoe_proto::wire::{Address, MacAddr, Shelf, Slot};
use common::{Rig, check, fill, open, request, wait_for};
use raid_engine::array::Tunables;
use raid_engine::assembly::random_uuid;
use raid_engine::member::aoe::Links;
use raid_engine::message::IoStatus;
use raid_engine::runtime::client::Op;

/// Ports on one segment for any number of initiators and shelves.
#[derive(Debug)]
struct Ports {
    segment: Segment,
    next: AtomicU8,
}

impl Ports {
    fn port(&self) -> io::Result<Box<dyn Link>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(self.segment.attach(MacAddr([2, 0, 0, 0, 0, number]), 9000)?))
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the segment")
    }
}

impl Links for Ports {
    fn open(&self, _: WorkerId, _: bool) -> io::Result<Vec<Box<dyn Link>>> {
        Ok(vec![self.port()?])
    }

    fn tunables(&self) -> AoeTunables {
        AoeTunables { aoe_silence: 300, ..AoeTunables::default() }
    }
}

fn shelf(ports: &Ports, slot: u8, sectors: u64) -> ShelfHandle {
    let address = Address { shelf: Shelf(7), slot: Slot(slot) };
    let config = DeviceConfig::new(address, 32, &format!("serial-{slot}"));
    let device = ServedDevice { config, store: AnyStore::new(MemoryStore::new(sectors)) };
    let config = ServerConfig { settle: false, ..ServerConfig::new(vec![device]) };
    ShelfServer::spawn(config, vec![ports.port().expect("a port")]).expect("starts")
}

#[test]
fn a_shelf_vanishes_and_is_replaced() {
    let ports = Arc::new(Ports { segment: Segment::new(), next: AtomicU8::new(1) });
    let sectors = 16 << 11;
    let mut shelves: Vec<_> = (0..5).map(|slot| Some(shelf(&ports, slot, sectors))).collect();
    let names: Vec<String> = (0..5).map(|slot| format!("e7.{slot}")).collect();
    let links: Arc<dyn Links> = Arc::clone(&ports) as _;
    let mut rig = Rig::new(&names, false, Some(links));
    rig.tunables = Tunables { member_hold: Duration::from_millis(700), ..rig.tunables };
    let array = rig.run(1);
    let mut client = array.client().expect("fd").expect("room");
    fill(&mut client, 0, 5000, 1);
    check(&mut client, 0, 5000, 1);
    let traffic = array.totals().traffic;
    assert!(traffic.data_bytes > 2 * 5000 * 512, "all was written with parity, and read: {traffic:?}");
    assert!(traffic.frames_answered > traffic.data_bytes / 9000, "{traffic:?}");
    assert_eq!(request(&mut client, Op::Flush, 0, 0, None).0, IoStatus::Ok);
    wait_for(&array, "resynced", |d| d.resync_start.is_none());

    shelves[2].take().expect("running").kill();
    fill(&mut client, 2000, 2000, 2);
    let detail = wait_for(&array, "degraded", |d| d.degraded == 1);
    assert!(detail.state.contains("degraded"), "{}", detail.state);
    check(&mut client, 0, 2000, 1);
    check(&mut client, 2000, 2000, 2);

    shelves.push(Some(shelf(&ports, 9, sectors + 4096)));
    let fresh = open(&mut rig.opener, "e7.9");
    array.add(fresh.device.clone(), fresh.name.clone(), random_uuid().0).expect("fits");
    wait_for(&array, "recovered", |d| d.degraded == 0);

    shelves[0].take().expect("running").kill();
    check(&mut client, 0, 2000, 1);
    check(&mut client, 2000, 2000, 2);
    check(&mut client, 4000, 1000, 1);
    wait_for(&array, "degraded again", |d| d.degraded == 1);
    drop(client);
    assert_eq!(array.stop(false), 0);
}
