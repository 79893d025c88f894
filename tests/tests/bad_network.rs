//! Interfaces that cannot be used, and frames that are none: told, or passed over; no byte of a disk changes.

use aoe_net::link::{FrameRef, Link, PacketConfig, PacketLink, Role};
use etherraid_tests::netns::NetNs;
use etherraid_tests::proc::Cmd;
use etherraid_tests::rig::{self, DISKS, HOST, SHELF, ShelfRig};
use etherraid_tests::{binary, nbd, pattern, require};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const MEMBER_BYTES: u64 = 16 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// Bytes of the Ethernet and AoE headers, of an ATA message's header with them, of a sector.
const AOE_HEADER: usize = 24;
const ATA_HEADER: usize = 36;
const SECTOR: usize = 512;
/// Flags: version 1, and that it is a reply.
const VERSION_1: u8 = 0x10;
const RESPONSE: u8 = 0x08;
const ATA: u8 = 0;
const WRITE_EXT: u8 = 0x34;
const READ_EXT: u8 = 0x24;

/// `etherraid` with these arguments in a namespace ends with exit status 1 and says all of `words`.
fn refused(netns: &NetNs, as_whom: &[&str], args: &[&str], words: &[&str]) {
    let (first, rest) = as_whom.split_first().unwrap_or((&"env", &[]));
    let text = Cmd::new(first).args(rest).netns(netns).arg(binary::path()).args(args).finish(LIMIT).fails_with(1);
    for word in words {
        assert_eq!(text.matches(word).count(), 1, "{word:?} must be said once in:\n{text}");
    }
}

#[test]
fn interfaces_that_cannot_be_used() {
    require!(netns, "setpriv");
    let dir = tempfile::tempdir().unwrap();
    let disk = rig::blank_files(dir.path(), 1, MEMBER_BYTES).remove(0);
    let before = pattern::sha256(&disk).unwrap();
    let netns = NetNs::new();
    netns.veth(HOST, DISKS, 1500);
    let device = format!("9.0={}", disk.display());
    let nbd = format!("unix:{}", dir.path().join("nbd").display());
    let each = |as_whom: &[&str], words: &[&str]| {
        let control = dir.path().join("control").display().to_string();
        let run = ["run", "x", "-i", HOST, "--control", &control, "--nbd", &nbd];
        refused(&netns, as_whom, &[&run[..], &["e9.0", "e9.1"]].concat(), words);
        refused(&netns, as_whom, &[&run[..], &["--scan"]].concat(), words);
        refused(&netns, as_whom, &["create", "x", "-l", "5", "-n", "2", "-i", HOST, "e9.0", "e9.1"], words);
        refused(&netns, as_whom, &["shelf", "-i", HOST, "-d", &device], words);
    };
    let no_raw = ["setpriv", "--bounding-set", "-net_raw", "--inh-caps", "-net_raw"];
    each(&no_raw, &["host needs CAP_NET_RAW", "try as root"]);
    netns.sh(&format!("ip link set {HOST} mtu 547"));
    each(&[], &["host has MTU 547", "one sector needs 548", "ip link set host mtu"]);
    netns.sh(&format!("ip link set {HOST} mtu 1500"));
    netns.set_link(HOST, false);
    each(&[], &["interface host is down", "ip link set host up"]);
    netns.sh(&format!("ip link del {HOST}"));
    each(&[], &["no interface named host", "there are: lo"]);
    // A device that nobody serves, on an interface that is well.
    netns.veth(HOST, DISKS, 1500);
    let args = ["create", "x", "-l", "5", "-n", "2", "-i", HOST, "e9.0", "e9.1"];
    refused(&netns, &[], &args, &["e9.0: no answer within", "is the shelf up"]);
    assert_eq!(pattern::sha256(&disk).unwrap(), before);
    assert!(!dir.path().join("nbd").exists() && !dir.path().join("control").exists());
}

#[test]
fn what_a_shelf_cannot_serve() {
    require!(netns);
    let dir = tempfile::tempdir().unwrap();
    let disk = rig::blank_files(dir.path(), 1, MEMBER_BYTES).remove(0).display().to_string();
    let netns = NetNs::new();
    netns.veth(HOST, DISKS, 1500);
    let shelf = |device: &str, more: &[&str], words: &[&str]| {
        refused(&netns, &[], &[&["shelf", "-i", DISKS, "-d", device], more].concat(), words);
    };
    shelf("9.0=/nonexistent/disk", &[], &["/nonexistent/disk", "No such file"]);
    shelf(&format!("9.0={}", dir.path().display()), &[], &["Is a directory"]);
    shelf(&format!("9.0={disk},offset=17M"), &[], &["offset"]);
    shelf(&format!("9.0={disk},offset=100"), &[], &["multiples of 512"]);
    shelf(&format!("9.0={disk}"), &["--state", "/proc/state"], &["state directory /proc/state"]);
}

/// A socket on an interface of a namespace.
fn link(netns: &NetNs, interface: &str, role: Role) -> PacketLink {
    netns.inside(|| PacketLink::open(&PacketConfig::new(interface, role))).expect("root may open packet sockets")
}

fn mac(netns: &NetNs, interface: &str) -> Vec<u8> {
    netns.mac(interface).split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// The start of a frame, up to the end of an ATA header.
fn ata(to: &[u8], from: &[u8], command: u8, sectors: u8, lba: u64) -> Vec<u8> {
    let mut frame = [to, from, &[0x88, 0xA2, VERSION_1, 0]].concat();
    frame.extend(SHELF.to_be_bytes());
    frame.extend([0, ATA, 0x80, 0x11, 0x22, 0x33]);
    let write = u8::from(command == WRITE_EXT);
    frame.extend([0x40 | write, 0, sectors, command]);
    frame.extend(&lba.to_le_bytes()[..6]);
    frame.extend([0, 0]);
    assert_eq!(frame.len(), ATA_HEADER);
    frame
}

/// Frames that no shelf may act on.
fn malformed(to: &[u8], from: &[u8]) -> Vec<Vec<u8>> {
    let write = |sectors, bytes: usize| [ata(to, from, WRITE_EXT, sectors, 0), vec![0xEE; bytes]].concat();
    let changed = |at: usize, value: u8| {
        let mut frame = write(1, SECTOR);
        frame[at] = value;
        frame
    };
    let mut frames = vec![
        // Less data than its count says, none, half a sector more, more than a count.
        write(2, SECTOR),
        write(1, 0),
        write(1, SECTOR - 1),
        write(255, SECTOR),
        write(0, SECTOR),
        // Beyond the end of the disk, and beyond 2^47.
        [ata(to, from, WRITE_EXT, 1, MEMBER_BYTES / 512), vec![0xEE; SECTOR]].concat(),
        [ata(to, from, WRITE_EXT, 1, (1 << 48) - 1), vec![0xEE; SECTOR]].concat(),
        [ata(to, from, WRITE_EXT, 2, MEMBER_BYTES / 512 - 1), vec![0xEE; 2 * SECTOR]].concat(),
        // Another version, a reply, another command, a command of ATA that is none.
        changed(14, 0x20),
        changed(14, VERSION_1 | RESPONSE),
        changed(19, 0x77),
        changed(27, 0xFF),
        // Wildcards are for config queries alone.
        changed(18, 0xFF),
        [&changed(16, 0xFF)[..17], &[0xFF, 0xFF], &changed(0, to[0])[19..]].concat(),
    ];
    // Cut off at each length, config queries, masks and reservations with lengths that are not there.
    frames.extend((14..ATA_HEADER).map(|len| write(1, SECTOR)[..len].to_vec()));
    for (command, body) in [
        (1, &[0, 0, 0, 0, 0, 0x14, 0xFF, 0xFF][..]),
        (1, &[0, 0, 0, 0, 0, 0x13, 4, 1]),
        (2, &[0, 1, 0, 255, 0, 1]),
        (3, &[1, 255, 2, 2]),
    ] {
        let mut frame = write(0, 0);
        frame.truncate(AOE_HEADER);
        frame[19] = command;
        frame.extend(body);
        frames.push(frame);
    }
    frames
}

fn send(link: &mut PacketLink, frames: &[Vec<u8>]) {
    for frame in frames {
        assert_eq!(link.send(&[FrameRef::whole(frame)]), 1, "the link has room");
    }
}

#[test]
fn a_shelf_acts_on_no_malformed_frame() {
    require!(netns);
    let rig = ShelfRig::new(1, MEMBER_BYTES, None);
    pattern::overlay(&rig.files[0], 5, &[(0, MEMBER_BYTES)]).unwrap();
    let before = pattern::sha256(&rig.files[0]).unwrap();
    let (to, from) = (mac(&rig.netns, DISKS), mac(&rig.netns, HOST));
    let mut sender = link(&rig.netns, HOST, Role::Everything);
    let frames = malformed(&to, &from);
    send(&mut sender, &frames);
    send(&mut sender, &malformed(&[0xFF; 6], &from));
    // It answers in order: what comes after has passed all of these.
    let good = [ata(&to, &from, WRITE_EXT, 1, 8), vec![0x5A; SECTOR]].concat();
    // It counts what came first as changes of a time that it does not know, so the first write may have to be sent again.
    let mut written = pattern::bytes(5, 0, 16 * SECTOR);
    written[8 * SECTOR..9 * SECTOR].fill(0x5A);
    etherraid_tests::wait::until("a good write is done", LIMIT, || {
        send(&mut sender, std::slice::from_ref(&good));
        let start = &std::fs::read(&rig.files[0]).unwrap()[..16 * SECTOR];
        (start == written).then_some(())
    });
    let identify = Cmd::new(binary::path()).args(["identify", "-i", HOST, "e9.0"]).netns(&rig.netns).ok(LIMIT);
    assert!(identify.contains("etherraid"), "{identify}");
    assert_eq!(rig.shelf.stop().code(), Some(0));
    pattern::overlay(&rig.files[0], 5, &[(8 * SECTOR as u64, SECTOR as u64)]).unwrap();
    assert_eq!(pattern::sha256(&rig.files[0]).unwrap(), before, "only the good write has changed anything");
}

/// Answers each request that it sees wrongly, before or after the shelf answers rightly, until told to end.
fn answer_wrongly(mut link: PacketLink, end: &AtomicBool, answered: &AtomicUsize) {
    while !end.load(Ordering::Acquire) {
        let mut fds = [PollFd::from_borrowed_fd(link.fd().expect("a packet socket"), PollFlags::IN)];
        let pause = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        rustix::event::poll(&mut fds, Some(&pause)).unwrap();
        let mut wrong = Vec::new();
        link.receive(&mut |frame| wrong.extend(wrong_replies(frame)));
        for frame in &wrong {
            // A full queue loses it, as a network does.
            answered.fetch_add(link.send(&[FrameRef::whole(frame)]), Ordering::Relaxed);
        }
    }
}

/// Replies to a request that hold its tag and are none. A write's reply has no data that could be wrong, so those are only cut off.
fn wrong_replies(request: &[u8]) -> Vec<Vec<u8>> {
    if request.len() < ATA_HEADER || request[14] & RESPONSE != 0 {
        return Vec::new();
    }
    let (to, from) = (&request[6..12], &request[..6]);
    let mut reply = [to, from, &request[12..ATA_HEADER]].concat();
    reply[14] |= RESPONSE;
    let cut = reply[..AOE_HEADER + 2].to_vec();
    let is_read = request[19] == ATA && request[27] == READ_EXT;
    if !is_read {
        return vec![cut];
    }
    reply[27] = 0x40;
    let sectors = usize::from(request[26]);
    let short = [&reply[..], &vec![0xBB; sectors * SECTOR - 1]].concat();
    let mut elsewhere = [&reply[..], &vec![0xBB; sectors * SECTOR]].concat();
    elsewhere[17] ^= 0x40;
    let mut other_tag = elsewhere.clone();
    other_tag[17] ^= 0x40;
    other_tag[23] ^= 0x55;
    let mut version = [&reply[..], &vec![0xBB; sectors * SECTOR]].concat();
    version[14] = 0xF0 | RESPONSE;
    vec![cut, reply, short, elsewhere, other_tag, version]
}

#[test]
fn an_array_takes_no_malformed_reply() {
    require!(netns);
    let rig = ShelfRig::new(3, MEMBER_BYTES, None);
    let spec = rig.spec();
    spec.create(&["-c", rig::CHUNK, "--assume-clean"]);
    let liar = link(&rig.netns, DISKS, Role::Shelf);
    let (end, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    const LEN: usize = 4 << 20;
    let data = pattern::bytes(3, 0, LEN);
    std::thread::scope(|scope| {
        scope.spawn(|| answer_wrongly(liar, &end, &answered));
        let read = std::panic::catch_unwind(|| {
            let array = spec.run(&[]);
            write(array.socket(), &data);
            array.stop();
            // A new process has nothing in memory.
            let array = spec.run(&[]);
            let read = read(array.socket(), data.len());
            assert_eq!(array.detail().degraded(), 0);
            array.stop();
            read
        });
        end.store(true, Ordering::Release);
        assert!(read.expect("no error reaches the client") == data, "a wrong reply was taken for data");
    });
    assert!(answered.load(Ordering::Relaxed) > 100, "the wrong replies were sent");
    assert_eq!(rig.shelf.stop().code(), Some(0));
}

/// Pieces that are no stripes.
const PIECE: usize = 60 << 10;

fn write(socket: &Path, data: &[u8]) {
    let mut client = nbd::Client::connect(socket).unwrap();
    for (n, piece) in data.chunks(PIECE).enumerate() {
        client.write((n * PIECE) as u64, piece, false).unwrap();
    }
    client.flush().unwrap();
}

fn read(socket: &Path, len: usize) -> Vec<u8> {
    let mut client = nbd::Client::connect(socket).unwrap();
    let pieces = (0..len).step_by(PIECE);
    pieces.flat_map(|at| client.read(at as u64, PIECE.min(len - at)).unwrap()).collect()
}
