//! `etherraid capture`: what it writes is what went over the cable, in a form that others read.

use aoe_proto::wire::{Command, Frame};
use etherraid_tests::binary;
use etherraid_tests::netns::NetNs;
use etherraid_tests::proc::{Cmd, Proc};
use etherraid_tests::require;
use etherraid_tests::rig::{DISKS, HOST, ShelfRig};
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Bounds whatever is waited for.
const LIMIT: Duration = Duration::from_secs(60);

/// A frame of a file, and when it was seen, since 1970.
struct Seen {
    at: Duration,
    bytes: Vec<u8>,
}

/// The frames of a pcap file with nanoseconds.
fn read(path: &Path) -> Vec<Seen> {
    let file = std::fs::read(path).expect("the file is there");
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes"));
    assert_eq!((word(0), word(20)), (0xA1B2_3C4D, 1), "nanoseconds, Ethernet");
    let mut at = 24;
    let mut frames = Vec::new();
    while at < file.len() {
        let (time, len) = (Duration::new(word(at).into(), word(at + 4)), word(at + 8) as usize);
        assert_eq!(word(at + 12) as usize, len, "whole frames");
        frames.push(Seen { at: time, bytes: file[at + 16..at + 16 + len].to_vec() });
        at += 16 + len;
    }
    frames
}

/// Starts to capture, and waits until it does.
fn start(netns: &NetNs, arguments: &[&str], file: &Path) -> Proc {
    let capture = binary::etherraid("capture").netns(netns).args(arguments).arg(file).spawn();
    capture.wait_for_line("ready: capturing AoE on ", LIMIT);
    capture
}

fn ping(netns: &NetNs, count: u32) {
    binary::etherraid("ping").netns(netns).args(["-i", HOST, "-c", &count.to_string(), "9.0"]).ok(LIMIT);
}

#[test]
fn each_end_sees_what_arrives_there() {
    require!(netns);
    let rig = ShelfRig::new(1, 8 << 20, None);
    let file = rig.dir.path().join("both.pcap");
    let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    ping(&rig.netns, 1);
    let capture = start(&rig.netns, &["-i", HOST, "-i", DISKS], &file);
    ping(&rig.netns, 5);
    capture.signal(Signal::INT);
    let done = capture.finish(LIMIT).ok();
    let frames = read(&file);
    assert!(done.contains(&format!("{} frames in {}\n", frames.len(), file.display())), "{done}");
    let kinds: Vec<(bool, Command)> = frames
        .iter()
        .map(|seen| {
            let header = Frame::parse(&seen.bytes).expect("AoE").header;
            (header.response, header.command)
        })
        .collect();
    for response in [false, true] {
        let count = kinds.iter().filter(|kind| **kind == (response, Command::ATA)).count();
        assert!(count >= 5, "five IDENTIFYs and their replies: {kinds:?}");
    }
    let after = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    assert!(frames.iter().all(|seen| (before..after).contains(&seen.at)), "times are the clock's");
}

#[test]
fn it_ends_by_itself_after_so_many_frames() {
    require!(netns);
    let rig = ShelfRig::new(1, 8 << 20, None);
    let file = rig.dir.path().join("four.pcap");
    let capture = start(&rig.netns, &["-i", HOST, "-c", "4"], &file);
    ping(&rig.netns, 10);
    let done = capture.finish(LIMIT).ok();
    assert!(done.contains("4 frames in "), "{done}");
    assert_eq!(read(&file).len(), 4);
}

#[test]
fn tcpdump_reads_it() {
    require!(netns, "tcpdump");
    let rig = ShelfRig::new(1, 8 << 20, None);
    let file = rig.dir.path().join("aoe.pcap");
    let capture = start(&rig.netns, &["-i", HOST, "-i", DISKS, "-c", "6"], &file);
    ping(&rig.netns, 10);
    capture.finish(LIMIT).ok();
    let text = Cmd::new("tcpdump").args(["-n", "-e", "-r"]).arg(&file).ok(LIMIT);
    assert_eq!(text.lines().filter(|line| line.contains("0x88a2") || line.contains("AoE")).count(), 6, "{text}");
}

#[test]
fn what_can_not_be_captured_is_told() {
    require!(netns);
    let netns = NetNs::new();
    netns.veth(HOST, DISKS, 1500);
    let run = |arguments: &[&str]| binary::etherraid("capture").netns(&netns).args(arguments).finish(LIMIT);
    let text = run(&["-i", "nosuch", "/dev/null"]).fails_with(1);
    assert!(text.contains("no interface named nosuch; there are: "), "{text}");
    let text = run(&["-i", HOST, "/nonexistent/file.pcap"]).fails_with(1);
    assert!(text.contains("creating /nonexistent/file.pcap"), "{text}");
    let text = run(&["-i", HOST, "/dev/full"]).fails_with(1);
    assert!(text.contains("writing /dev/full"), "{text}");
    run(&["/dev/null"]).fails_with(2);
    run(&["-i", HOST, "-i", HOST, "/dev/null"]).fails_with(2);
    run(&["-i", HOST, "-c", "0", "/dev/null"]).fails_with(2);
}
