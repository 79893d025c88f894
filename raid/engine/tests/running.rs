//! A whole array on threads over memory and file members: made, assembled, written, degraded, rebuilt, stopped, found again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raid_core::geometry::Layout;
use raid_core::md::Minor;
use raid_core::md::assemble::Options;
use raid_core::md::create::NewArray;
use raid_core::parity::Kernels;
use raid_core::units::{MemberCount, Sector, Sectors};
use raid_engine::array::{Command, Detail, Tunables};
use raid_engine::assembly::{Named, assemble_array, create_array, random_uuid, read_superblock};
use raid_engine::member::opener::Opener;
use raid_engine::member::spec::MemberSpec;
use raid_engine::message::IoStatus;
use raid_engine::runtime::Groups;
use raid_engine::runtime::client::{Client, Op, Request};
use raid_engine::runtime::running::Running;
use raid_engine::runtime::topology;
use raid_engine::slab::Slab;

struct Rig {
    slab: Arc<Slab>,
    opener: Opener,
    members: Vec<Named>,
}

impl Rig {
    /// Opens members by name and makes an array of them.
    fn new(names: &[String], assume_clean: bool) -> Rig {
        let slab = Slab::with_bytes(Kernels::detect(), 4 << 30).expect("address space");
        let mut opener = Opener::new(&slab, None).expect("memory");
        let members: Vec<Named> = names.iter().map(|name| open(&mut opener, name)).collect();
        let new = NewArray {
            name: "t",
            homehost: None,
            minor: Minor::V2,
            level: 5,
            layout: Layout::LeftSymmetric,
            chunk: Sectors(128),
            members: MemberCount(names.len() as u8),
            size: None,
            assume_clean,
            set_uuid: random_uuid(),
            now: 1_000_000,
        };
        create_array(&mut opener, &new, &members).expect("valid");
        Rig { slab, opener, members }
    }

    fn run(&mut self, workers: usize) -> Running {
        let tunables = Tunables { safe_mode_delay: Duration::from_secs(3600), ..Tunables::default() };
        let options = Options { run: true, ..Options::default() };
        let start = assemble_array(&mut self.opener, &self.members, &options, false, tunables).expect("assembles");
        let cpus = topology::allowed().expect("affinity");
        let groups = Groups { group_thread_cnt: workers, cpus };
        let devices: Vec<_> = start
            .members
            .iter()
            .map(|m| (m.device.handle, self.members[usize::from(m.device.handle.0)].device.clone()))
            .collect();
        Running::start(start, &self.slab, &groups, 64, &devices).expect("starts")
    }
}

fn open(opener: &mut Opener, name: &str) -> Named {
    let spec: MemberSpec = name.parse().expect("a member name");
    Named { name: name.to_owned(), device: opener.open(&spec, false).expect("opens") }
}

/// Runs one request and answers with its status and data.
fn request(client: &mut Client, op: Op, at: u64, sectors: u64, data: Option<&[u8]>) -> (IoStatus, Vec<u8>) {
    let buf = (op != Op::Flush).then(|| {
        let mut buf = client.alloc(sectors as usize * 512).expect("memory");
        if let Some(data) = data {
            buf.copy_from_slice(data);
        }
        buf
    });
    client.submit(Request { id: 1, op, at: Sector(at), sectors: Sectors(sectors), buf });
    client.unplug();
    loop {
        if let Some(reply) = client.poll() {
            let data = reply.buf.as_ref().map_or(Vec::new(), |b| b.to_vec());
            if let Some(buf) = reply.buf {
                client.free(buf);
            }
            return (reply.status, data);
        }
        client.wait(Some(Duration::from_secs(20)));
    }
}

fn pattern(sector: u64, pass: u8) -> [u8; 512] {
    let mut data = [pass; 512];
    for (i, chunk) in data.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&(sector.wrapping_mul(0x9e37_79b9) ^ ((i as u64) << 40) ^ u64::from(pass)).to_le_bytes());
    }
    data
}

fn fill(client: &mut Client, from: u64, sectors: u64, pass: u8) {
    let mut at = from;
    while at < from + sectors {
        let len = (from + sectors - at).min(777);
        let data: Vec<u8> = (at..at + len).flat_map(|s| pattern(s, pass)).collect();
        assert_eq!(request(client, Op::Write { fua: at % 2 == 0 }, at, len, Some(&data)).0, IoStatus::Ok);
        at += len;
    }
}

fn check(client: &mut Client, from: u64, sectors: u64, pass: u8) {
    let mut at = from;
    while at < from + sectors {
        let len = (from + sectors - at).min(1000);
        let (status, data) = request(client, Op::Read, at, len, None);
        assert_eq!(status, IoStatus::Ok);
        for (i, got) in data.chunks(512).enumerate() {
            assert_eq!(got, pattern(at + i as u64, pass), "sector {}", at + i as u64);
        }
        at += len;
    }
}

/// Polls the array until it stands as wanted. The bound is for a hang, not a measure.
fn wait_for(array: &Running, what: &str, wanted: impl Fn(&Detail) -> bool) -> Detail {
    let start = Instant::now();
    loop {
        let detail = array.detail().expect("it runs");
        if wanted(&detail) {
            return detail;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "never {what}: {detail:?}");
        std::thread::yield_now();
    }
}

fn whole_life(names: &[String], spare: &str, workers: usize) {
    let mut rig = Rig::new(names, false);
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
    let mut rig = Rig::new(&names, true);
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
