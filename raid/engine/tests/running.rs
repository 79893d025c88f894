//! A whole array on threads over memory and file members: made, assembled, written, degraded, rebuilt, stopped, found again.

mod common;

use common::{Rig, check, fill, open, request, wait_for};
use raid_core::units::{Sector, Sectors};
use raid_engine::array::Command;
use raid_engine::assembly::{random_uuid, read_superblock};
use raid_engine::message::IoStatus;
use raid_engine::runtime::client::{Op, Request};

fn whole_life(names: &[String], spare: &str, workers: usize) {
    let mut rig = Rig::new(names, false, None);
    let array = rig.run(workers);
    let mut client = array.client().expect("fd").expect("room");
    let size = array.sectors().0;
    fill(&mut client, 0, 20_000, 1);
    fill(&mut client, size - 3000, 3000, 1);
    check(&mut client, 0, 20_000, 1);
    assert_eq!(request(&mut client, Op::Flush, 0, 0, None).0, IoStatus::Ok);

    // A member whose loss parity does not cover yet is not given up.
    wait_for(&array, "resynced", |d| d.resync_start.is_none());
    let victim = array.find(&names[1]).expect("it runs").expect("a member");
    array.command(Command::Fail(victim)).expect("can be spared");
    let detail = array.detail().expect("it runs");
    assert_eq!(detail.degraded, 1);
    check(&mut client, 0, 20_000, 1);
    fill(&mut client, 5000, 4000, 2);
    array.command(Command::Remove(victim)).expect("faulty");

    let fresh = open(&mut rig.opener, spare);
    array.add(fresh.device.clone(), fresh.name.clone(), random_uuid().0).expect("fits");
    rig.members.push(fresh);
    fill(&mut client, 7000, 1000, 3);
    wait_for(&array, "recovered", |d| d.degraded == 0);
    let other = array.find(&names[0]).expect("it runs").expect("a member");
    array.command(Command::Fail(other)).expect("can be spared");
    for (from, sectors, pass) in [(0, 5000, 1), (5000, 2000, 2), (7000, 1000, 3), (8000, 1000, 2), (9000, 11_000, 1)] {
        check(&mut client, from, sectors, pass);
    }
    check(&mut client, size - 3000, 3000, 1);
    drop(client);
    assert_eq!(array.stop(false), 0);
    drop(array);

    let array = rig.run(workers);
    let detail = array.detail().expect("it runs");
    assert_eq!(detail.degraded, 1, "the member that failed last is still out");
    let mut client = array.client().expect("fd").expect("room");
    check(&mut client, 0, 5000, 1);
    check(&mut client, 7000, 1000, 3);
    drop(client);
    assert_eq!(array.stop(false), 0);
}

#[test]
fn memory_members_one_thread() {
    let names: Vec<String> = (0..4).map(|i| format!("mem:{}M", 16 + i)).collect();
    whole_life(&names, "mem:20M", 0);
}

#[test]
fn memory_members_a_group_per_cpu() {
    let names: Vec<String> = (0..5).map(|i| format!("mem:{}M", 16 + i)).collect();
    whole_life(&names, "mem:24M", 1);
}

#[test]
fn file_members() {
    let dir = tempfile::tempdir().expect("room");
    let file = |name: &str| {
        let path = dir.path().join(name);
        std::fs::File::create(&path).and_then(|f| f.set_len(16 << 20)).expect("room");
        path.display().to_string()
    };
    let names: Vec<String> = (0..4).map(|i| file(&format!("m{i}"))).collect();
    whole_life(&names, &file("fresh"), 1);
}

#[test]
fn a_clean_stop_is_found_clean_and_an_array_dropped_in_use_is_found_dirty() {
    let names: Vec<String> = (0..3).map(|i| format!("mem:{}M", 8 + i)).collect();
    let mut rig = Rig::new(&names, true, None);
    let array = rig.run(1);
    let mut client = array.client().expect("fd").expect("room");
    fill(&mut client, 0, 100, 1);
    drop(client);
    assert_eq!(array.stop(false), 0);
    drop(array);
    let device = rig.members[0].device.clone();
    let superblock = read_superblock(&mut rig.opener, &device).expect("reads").expect("valid");
    assert_eq!(superblock.resync_offset, None, "clean");

    let array = rig.run(1);
    let mut client = array.client().expect("fd").expect("room");
    fill(&mut client, 0, 100, 2);
    // The client's last write was acknowledged a moment ago: the mark is still there.
    let superblock = read_superblock(&mut rig.opener, &device).expect("reads").expect("valid");
    assert_eq!(superblock.resync_offset, Some(Sector::ZERO), "dirty");
    drop(client);
    drop(array);
}

#[test]
fn more_requests_than_the_ring_holds_all_end() {
    let dir = tempfile::tempdir().expect("room");
    let names: Vec<String> = (0..3)
        .map(|i| {
            let path = dir.path().join(format!("m{i}"));
            std::fs::File::create(&path).and_then(|f| f.set_len(16 << 20)).expect("room");
            path.display().to_string()
        })
        .collect();
    let mut rig = Rig::new(&names, true, None);
    let array = rig.run(0);
    let mut client = array.client().expect("fd").expect("room");
    // Pieces of every other sector never touch, so each is a request of its own to its member.
    let requests = 900;
    for id in 0..requests {
        let buf = client.alloc(512).expect("memory");
        client.submit(Request { id, op: Op::Read, at: Sector(id * 2), sectors: Sectors(1), buf: Some(buf) });
    }
    client.unplug();
    let mut ended = 0;
    while ended < requests {
        match client.poll() {
            Some(reply) => {
                assert_eq!(reply.status, IoStatus::Ok);
                reply.buf.into_iter().for_each(|buf| client.free(buf));
                ended += 1;
            }
            None => client.wait(Some(std::time::Duration::from_secs(20))),
        }
    }
    drop(client);
    assert_eq!(array.stop(false), 0);
}
