//! An array over AoE shelves in this process: initiators and shelves on one in-process Ethernet segment.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::ethernet::{Ports, shelf, shelf_with};
use common::{Rig, check, fill, open, request, wait_for};
use raid_core::units::{Sector, Sectors};
use raid_engine::array::Tunables;
use raid_engine::assembly::random_uuid;
use raid_engine::member::aoe::Links;
use raid_engine::message::IoStatus;
use raid_engine::runtime::client::{Op, Request};

#[test]
fn a_shelf_vanishes_and_is_replaced() {
    let ports = Ports::new(180);
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

#[test]
fn a_fresh_disk_takes_the_address_of_one_that_was_lost() {
    let ports = Ports::new(180);
    let sectors = 16 << 11;
    let mut shelves: Vec<_> = (0..3).map(|slot| Some(shelf(&ports, slot, sectors))).collect();
    let names: Vec<String> = (0..3).map(|slot| format!("e7.{slot}")).collect();
    let links: Arc<dyn Links> = Arc::clone(&ports) as _;
    let mut rig = Rig::new(&names, true, Some(links));
    rig.tunables = Tunables { member_hold: Duration::from_millis(500), ..rig.tunables };
    let array = rig.run(1);
    let mut client = array.client().expect("fd").expect("room");
    fill(&mut client, 0, 2000, 1);
    shelves[1].take().expect("running").kill();
    fill(&mut client, 1000, 500, 2);
    wait_for(&array, "degraded", |d| d.degraded == 1);

    shelves[1] = Some(shelf_with(&ports, 1, sectors, "another"));
    let in_use = open(&mut rig.opener, "e7.2");
    let refused = array.add(in_use.device.clone(), in_use.name.clone(), random_uuid().0);
    assert!(refused.is_err(), "a member that is in use");
    let fresh = open(&mut rig.opener, "e7.1");
    array.add(fresh.device.clone(), fresh.name.clone(), random_uuid().0).expect("fits");
    fill(&mut client, 1500, 100, 3);
    wait_for(&array, "recovered", |d| d.degraded == 0);
    shelves[0].take().expect("running").kill();
    for (from, sectors, pass) in [(0, 1000, 1), (1000, 500, 2), (1500, 100, 3), (1600, 400, 1)] {
        check(&mut client, from, sectors, pass);
    }
    drop(client);
    assert_eq!(array.stop(false), 0);
}

#[test]
fn two_shelves_are_away_for_longer_than_aoe_deadsecs() {
    let ports = Ports::new(1);
    let sectors = 16 << 11;
    let (mut macs, mut shelves) = (Vec::new(), Vec::new());
    for slot in 0..4 {
        macs.push(ports.next_mac());
        shelves.push(shelf(&ports, slot, sectors));
    }
    let names: Vec<String> = (0..4).map(|slot| format!("e7.{slot}")).collect();
    let links: Arc<dyn Links> = Arc::clone(&ports) as _;
    let mut rig = Rig::new(&names, true, Some(links));
    let array = rig.run(1);
    let mut client = array.client().expect("fd").expect("room");
    fill(&mut client, 0, 1000, 1);
    for mac in [macs[1], macs[2]] {
        ports.segment.set_link(mac, false);
    }
    // Writes and a flush that cannot end.
    let writes = 16;
    for i in 0..writes {
        let mut buf = client.alloc(64 * 512).expect("memory");
        buf.copy_from_slice(&(i * 64..(i + 1) * 64).flat_map(|sector| common::pattern(sector, 2)).collect::<Vec<_>>());
        let (at, sectors) = (Sector(i * 64), Sectors(64));
        client.submit(Request { id: i, op: Op::Write { fua: i % 4 == 0 }, at, sectors, buf: Some(buf) });
    }
    client.submit(Request { id: writes, op: Op::Flush, at: Sector(0), sectors: Sectors(0), buf: None });
    client.unplug();
    wait_for(&array, "suspended", |d| d.state.contains("suspended"));
    // What is shown is that the time away does not matter, so it has to pass.
    let away = Instant::now();
    wait_for(&array, "away for three times aoe_deadsecs", |_| away.elapsed() > Duration::from_secs(3));
    for mac in [macs[1], macs[2]] {
        ports.segment.set_link(mac, true);
    }
    let mut ended = 0;
    while ended <= writes {
        match client.poll() {
            Some(reply) => {
                assert_eq!(reply.status, IoStatus::Ok, "request {}", reply.id);
                reply.buf.into_iter().for_each(|buf| client.free(buf));
                ended += 1;
            }
            None => client.wait(Some(Duration::from_secs(1))),
        }
        assert!(away.elapsed() < Duration::from_secs(60), "{ended} of {} ended", writes + 1);
    }
    check(&mut client, 0, writes * 64, 2);
    drop(client);
    assert_eq!(array.stop(false), 0);
    drop(shelves);
}
