//! What a running array and a shelf have given up, and that they do all that they should without it.

use etherraid_tests::array::{self, Running, Spec};
use etherraid_tests::netns::NetNs;
use etherraid_tests::proc::Cmd;
use etherraid_tests::rig::{self, DISKS, HOST};
use etherraid_tests::{binary, nbd, pattern, require, wait};
use std::path::Path;
use std::time::Duration;

const MEMBER_BYTES: u64 = 32 << 20;
const LIMIT: Duration = Duration::from_secs(60);
const CAP_NET_RAW: u64 = 1 << 13;
const CAP_IPC_LOCK: u64 = 1 << 14;

/// `/proc/PID/task/*/status`: of each thread its name and what it may do.
struct Thread {
    text: String,
}

impl Thread {
    fn field(&self, key: &str) -> &str {
        let line = self.text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {key} in {}", self.text)).trim()
    }

    fn capabilities(&self) -> u64 {
        let [permitted, effective] = ["CapPrm", "CapEff"].map(|key| u64::from_str_radix(self.field(key), 16).unwrap());
        assert_eq!(permitted, effective);
        permitted
    }
}

fn threads(pid: u32) -> Vec<Thread> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status =
        |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.unwrap().path().join("status"));
    // One that ends meanwhile is passed over.
    tasks.filter_map(|task| status(task).ok()).map(|text| Thread { text }).collect()
}

/// Each thread has at most these capabilities, a filter, and no way to more.
fn is_confined(pid: u32, capabilities: u64) {
    let threads = threads(pid);
    assert!(!threads.is_empty());
    for thread in threads {
        let name = thread.field("Name").to_owned();
        assert_eq!(thread.capabilities() & !capabilities, 0, "{name}: {:#x}", thread.capabilities());
        assert_eq!((thread.field("NoNewPrivs"), thread.field("Seccomp")), ("1", "2"), "{name}");
    }
}

fn write_and_read(array: &Running, seed: u64) {
    let mut client = nbd::Client::connect(array.socket()).unwrap();
    for offset in (0..8 << 20).step_by(1 << 20) {
        client.write(offset, &pattern::bytes(seed, offset, 1 << 20), false).unwrap();
    }
    client.flush().unwrap();
    for offset in (0..8 << 20).step_by(1 << 20) {
        assert!(client.read(offset, 1 << 20).unwrap() == pattern::bytes(seed, offset, 1 << 20));
    }
    client.disconnect().unwrap();
}

#[test]
fn an_array_of_files_keeps_no_privilege() {
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), 4, MEMBER_BYTES);
    let spec = Spec::local(&files[..3]);
    spec.create(&["-c", rig::CHUNK, "--assume-clean"]);
    let array = spec.run(&[]);
    write_and_read(&array, 1);
    is_confined(array.pid(), CAP_IPC_LOCK);
    // A file beside the members may be added, one elsewhere not, and the message says how it may.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = rig::blank_files(elsewhere.path(), 1, MEMBER_BYTES).remove(0);
    let refused = Cmd::new(binary::path()).args(["add", spec.name()]).arg(&other).finish(LIMIT).fails_with(1);
    assert!(refused.contains("--member-dir") && refused.contains("disk0"), "{refused}");
    array.fail(files[1].to_str().unwrap());
    array.add(files[3].to_str().unwrap());
    array.wait_in_sync();
    write_and_read(&array, 2);
    is_confined(array.pid(), CAP_IPC_LOCK);
    let socket = array.socket().to_owned();
    array.stop();
    assert!(!socket.exists(), "its sockets are removed by itself");

    let spec = Spec::local([&files[0], &files[3], &files[2]]);
    let dir = elsewhere.path().to_str().unwrap();
    let array = spec.run(&["--member-dir", dir]);
    array.add(other.to_str().unwrap());
    array.stop();
    let array = spec.run(&["--no-sandbox"]);
    assert!(threads(array.pid()).iter().all(|thread| thread.field("Seccomp") == "0"));
    array.stop();
}

#[test]
fn an_array_of_shelves_keeps_what_it_needs_to_take_another_in() {
    require!(netns);
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), 4, MEMBER_BYTES);
    let state = dir.path().join("state");
    let netns = NetNs::new();
    netns.veth(HOST, DISKS, rig::MTU);
    let mut cmd = binary::etherraid("shelf").netns(&netns).args(["-i", DISKS, "--state"]).arg(&state);
    for (slot, file) in files.iter().enumerate() {
        cmd = cmd.arg("-d").arg(format!("9.{slot}={}", file.display()));
    }
    let shelf = cmd.spawn();
    shelf.wait_for_line("ready: e9.3", LIMIT);
    is_confined(shelf.pid(), 0);
    let spec = Spec::aoe(&netns, HOST, ["e9.0", "e9.1", "e9.2"]);
    spec.create(&["-c", rig::CHUNK, "--assume-clean"]);
    let array = spec.run(&["--set", "member_hold=60"]);
    write_and_read(&array, 1);
    is_confined(array.pid(), CAP_NET_RAW | CAP_IPC_LOCK);
    // What the shelf keeps over its end is still written.
    let set = Cmd::new(binary::path()).args(["cfg", "-i", HOST, "-c", "set", "-s", "kept", "e9.3"]).netns(&netns);
    set.ok(LIMIT);
    let kept = std::fs::read_to_string(state.join("e9.3.state")).unwrap();
    assert!(kept.contains("6b657074"), "`kept` is in the state directory: {kept}");
    // Both stand an interface that goes and comes.
    netns.set_link(HOST, false);
    netns.set_link(HOST, true);
    write_and_read(&array, 2);
    array.fail("e9.1");
    array.add("e9.3");
    array.wait_in_sync();
    write_and_read(&array, 3);
    is_confined(array.pid(), CAP_NET_RAW | CAP_IPC_LOCK);
    is_confined(shelf.pid(), 0);
    array.stop();
}

fn status_kib(pid: u32, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Memory that clients used goes back to the system although it is locked.
#[test]
fn memory_is_locked_and_given_back() {
    require!(root);
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), 3, MEMBER_BYTES);
    let spec = Spec::local(&files).named(&array::unique_name());
    spec.create(&["-c", rig::CHUNK, "--assume-clean"]);
    let array = spec.run(&[]);
    if status_kib(array.pid(), "VmLck") == 0 {
        etherraid_tests::skip::report("this root may not lock memory");
        return;
    }
    assert_eq!(status_kib(array.pid(), "VmSwap"), 0);
    let idle = array.rss_bytes();
    let busy = std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| reads_of_32_mib(array.socket()));
        }
        let mut most = 0;
        wait::until("the clients have had their memory", LIMIT, || {
            most = array.rss_bytes().max(most);
            (most > idle + (64 << 20)).then_some(most)
        })
    });
    wait::until("the memory of clients that have left goes back", LIMIT, || {
        (array.rss_bytes() < idle + (busy - idle) / 2).then_some(())
    });
    array.stop();
}

fn reads_of_32_mib(socket: &Path) {
    let mut client = nbd::Client::connect(socket).unwrap();
    for _ in 0..4 {
        client.read(0, 32 << 20).unwrap();
    }
    client.disconnect().unwrap();
}
