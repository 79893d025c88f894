//! The backend over a real array of memory members.

use raid_core::geometry::Layout;
use raid_core::md::Minor;
use raid_core::md::assemble::Options;
use raid_core::md::create::NewArray;
use raid_core::parity::Kernels;
use raid_core::units::MemberCount;
use raid_engine::array::Tunables;
use raid_engine::assembly::{Named, assemble_array, create_array, random_uuid};
use raid_engine::member::spec::MemberSpec;
use raid_engine::message::MemberHandle;
use raid_engine::runtime::groups::Groups;
use raid_engine::runtime::opener::Opener;
use raid_engine::slab::Slab;
use raid_engine::tunables::Settings;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

const CHUNK: u64 = 8;

/// A running array of three memory members with chunks of 4 KiB.
fn array(read_only: bool) -> Arc<Running> {
    let slab = Slab::with_bytes(Kernels::portable(), 4 << 30).expect("address space");
    let mut opener = Opener::new(&slab, None).expect("a ring");
    let members: Vec<Named> = (0..3)
        .map(|i| {
            let device = opener.open(&MemberSpec::Memory(Sectors(128 << 11)), false).expect("memory");
            Named { name: format!("m{i}"), device }
        })
        .collect();
    let new = NewArray {
        name: "t",
        homehost: None,
        minor: Minor::V2,
        level: 5,
        layout: Layout::LeftSymmetric,
        chunk: Sectors(CHUNK),
        members: MemberCount(3),
        size: None,
        assume_clean: true,
        set_uuid: random_uuid(),
        now: 1_700_000_000,
    };
    create_array(&mut opener, &new, &members).expect("an array");
    let start = assemble_array(&mut opener, &members, &Options::default(), read_only, Tunables::default());
    let devices: Vec<_> = members.iter().enumerate().map(|(i, m)| (MemberHandle(i as u16), m.device.clone())).collect();
    let groups = Groups::per_cpu(0, Vec::new());
    Arc::new(Running::start(start.expect("assembles"), &slab, &groups, &Settings::default(), &devices).expect("starts"))
}

/// The next reply, slept for as the server does.
fn wait(backend: &mut EngineBackend) -> Reply<Buf> {
    loop {
        if let Some(reply) = backend.poll() {
            return reply;
        }
        if backend.announce() {
            let mut fds = [PollFd::from_borrowed_fd(backend.wake_fd(), PollFlags::IN)];
            let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
            assert!(poll(&mut fds, Some(&limit)).expect("poll") > 0, "a reply wakes its client");
            backend.awake();
        }
    }
}

fn write(backend: &mut EngineBackend, id: u64, sector: u64, bytes: usize, fill: u8) {
    let mut buf = backend.alloc(bytes).expect("memory");
    buf.fill(fill);
    backend.submit(id, Op::Write { fua: false }, sector, (bytes / 512) as u32, Some(buf));
}

#[test]
fn what_is_written_is_read_and_the_buffer_comes_back() {
    let backends = EngineBackends::new(array(false), "t", false);
    assert_eq!(backends.info().check(), Ok(()));
    assert_eq!((backends.info().preferred_block, backends.info().min_block), (8192, 512));
    let mut backend = backends.open().expect("a client");
    write(&mut backend, 1, 5, 10 * 512, 0xA5);
    backend.unplug();
    let reply = wait(&mut backend);
    assert_eq!((reply.id, reply.status), (1, Status::Ok));
    assert_eq!(reply.buf.expect("the write's").len(), 10 * 512);

    backend.submit(2, Op::Flush, 0, 0, None);
    backend.submit(3, Op::WriteZeroes { fua: true }, 7, 2, None);
    backend.unplug();
    let mut ids = [wait(&mut backend).id, wait(&mut backend).id];
    ids.sort_unstable();
    assert_eq!(ids, [2, 3]);

    let buf = backend.alloc(16 * 512).expect("memory");
    backend.submit(4, Op::Read, 4, 12, Some(buf));
    backend.unplug();
    let reply = wait(&mut backend);
    assert_eq!((reply.id, reply.status), (4, Status::Ok));
    let buf = reply.buf.expect("the read's");
    let sectors: Vec<u8> = buf[..12 * 512].chunks(512).map(|sector| sector[511]).collect();
    assert_eq!(sectors, [0, 0xA5, 0xA5, 0, 0, 0xA5, 0xA5, 0xA5, 0xA5, 0xA5, 0xA5, 0]);
}

#[test]
fn memory_and_parts_are_bounded_and_come_back() {
    let backends = EngineBackends::new(array(false), "t", false);
    let mut backend = backends.open().expect("a client");
    let bufs: Vec<_> = std::iter::from_fn(|| backend.alloc(MAX_TRANSFER as usize)).collect();
    assert!(!bufs.is_empty());
    bufs.into_iter().for_each(|buf| backend.free(buf));
    let buf = backend.alloc(MAX_TRANSFER as usize).expect("what is given back can be had again");
    backend.free(buf);

    // Each covers 2048 chunks of 4 KiB, so a client's parts are in flight before sixteen are.
    let sectors = 16 << 10;
    let mut submitted = 0;
    while backend.has_room(sectors) && submitted < 16 {
        backend.submit(submitted, Op::WriteZeroes { fua: false }, submitted * u64::from(sectors), sectors, None);
        submitted += 1;
    }
    assert!((1..16).contains(&submitted), "{submitted}");
    backend.unplug();
    let mut ids: Vec<u64> = (0..submitted)
        .map(|_| {
            let reply = wait(&mut backend);
            assert_eq!(reply.status, Status::Ok);
            reply.id
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..submitted).collect::<Vec<_>>());
    assert!(backend.poll().is_none() && backend.has_room(sectors), "each ends once");
}

#[test]
fn a_read_only_array_refuses_writes() {
    let backends = EngineBackends::new(array(true), "t", true);
    assert!(backends.info().read_only);
    let mut backend = backends.open().expect("a client");
    write(&mut backend, 9, 0, 512, 1);
    backend.unplug();
    assert_eq!(wait(&mut backend).status, Status::ReadOnly);
}

#[test]
fn statuses() {
    for (engine, nbd) in [
        (IoStatus::Ok, Status::Ok),
        (IoStatus::ReadOnly, Status::ReadOnly),
        (IoStatus::OutOfRange, Status::NoSpace),
        (IoStatus::Medium, Status::Io),
        (IoStatus::Gone, Status::Io),
        (IoStatus::Stopped, Status::Io),
    ] {
        assert_eq!(status(engine), nbd);
    }
}

#[test]
fn the_preferred_block_is_a_row_or_divides_a_chunk() {
    assert_eq!(preferred_block(64 << 10, 4), 256 << 10);
    assert_eq!(preferred_block(64 << 10, 3), 64 << 10);
    assert_eq!(preferred_block(12 << 10, 3), 4 << 10);
    assert_eq!(preferred_block(16 << 20, 4), MAX_TRANSFER);
}
