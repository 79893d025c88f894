//! Members that fail in the midst of use: a file system that is full, a file that has shrunk, a limit on file sizes. The member is given up,
//! the clients notice nothing, and the array goes on without it.

use etherraid_tests::array;
use etherraid_tests::nbd::Client;
use etherraid_tests::netns::NetNs;
use etherraid_tests::proc::{Cmd, Proc};
use etherraid_tests::{binary, pattern, require, rig, wait};
use rustix::process::Signal;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const MEMBER_BYTES: u64 = 48 << 20;
const BLOCK: usize = 256 << 10;
/// Bytes written: two thirds of these on each of three members.
const LEN: u64 = 48 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// An array that was started by a script, in surroundings of its own.
struct Served {
    proc: Proc,
    name: String,
    dir: TempDir,
}

impl Served {
    /// Runs `script` with `$E` our binary, `$NAME` a name, `$RUN` the arguments of `run` before the members; the current directory has
    /// blank members `disk0` to `disk2`. The script makes the array and ends with `exec .. $RUN MEMBER..`.
    fn start(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        rig::blank_files(dir.path(), 3, MEMBER_BYTES);
        let name = array::unique_name();
        let run = format!("{} run {name} --nbd unix:{}", binary::path().display(), dir.path().join("nbd").display());
        let text = format!("cd {}; {script}", dir.path().display());
        let cmd = Cmd::new("unshare").args(["-m", "sh", "-ec", &text]).env("E", binary::path());
        let proc = cmd.env("NAME", &name).env("RUN", run).spawn();
        proc.wait_for_line("ready", LIMIT);
        Self { proc, name, dir }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("nbd")
    }

    /// Writes it all; no write fails.
    fn write(&self, seed: u64) {
        let mut client = Client::connect(&self.socket()).unwrap();
        for offset in (0..LEN).step_by(BLOCK) {
            client.write(offset, &pattern::bytes(seed, offset, BLOCK), false).unwrap();
        }
        client.flush().unwrap();
    }

    /// Reads it all; every byte is right.
    fn verify(&self, seed: u64) {
        let mut client = Client::connect(&self.socket()).unwrap();
        for offset in (0..LEN).step_by(BLOCK) {
            let read = client.read(offset, BLOCK).unwrap();
            assert!(read == pattern::bytes(seed, offset, BLOCK), "block at {offset}\n{}", self.proc.tail());
        }
    }

    /// Waits until `detail` says that this member, and no other, is faulty.
    fn faulty(&self, member: &str) {
        wait::until("the member is faulty", LIMIT, || {
            let text = Cmd::new(binary::path()).args(["detail", &self.name]).ok(LIMIT);
            let faulty: Vec<&str> = text.lines().filter(|line| line.contains("faulty")).collect();
            (faulty.len() == 1 && faulty[0].contains(member)).then_some(())
        });
    }

    /// SIGTERM ends it in order.
    fn end(mut self) -> TempDir {
        self.proc.signal(Signal::TERM);
        let status = self.proc.wait(LIMIT).expect("it ends");
        assert_eq!(status.code(), Some(0), "{}", self.proc.tail());
        self.dir
    }
}

/// Without the member that failed, another process reads the same.
fn the_others_hold_it(dir: &Path, members: &[&str], seed: u64) {
    let paths: Vec<PathBuf> = members.iter().map(|name| dir.join(name)).collect();
    let array = array::Spec::local(&paths).run(&["--run", "--readonly"]);
    let mut client = Client::connect(array.socket()).unwrap();
    for offset in (0..LEN).step_by(BLOCK) {
        assert!(client.read(offset, BLOCK).unwrap() == pattern::bytes(seed, offset, BLOCK), "block at {offset}");
    }
    array.stop();
}

#[test]
fn a_file_system_that_is_full() {
    require!(root, "unshare");
    let served = Served::start(
        "mkdir small; mount -t tmpfs -o size=8m none small; truncate -s 48M small/disk1
         $E create $NAME -l 5 -n 3 -c 64K --assume-clean disk0 small/disk1 disk2 >&2
         exec $RUN disk0 small/disk1 disk2",
    );
    served.write(1);
    served.faulty("small/disk1");
    served.verify(1);
    served.write(2);
    served.verify(2);
    let line = served.proc.wait_for_line("small/disk1", LIMIT);
    assert!(!line.is_empty());
    let dir = served.end();
    the_others_hold_it(dir.path(), &["disk0", "disk2"], 2);
}

#[test]
fn a_limit_on_the_size_of_files() {
    require!(root, "unshare", "prlimit");
    let mut served = Served::start(
        "$E create $NAME -l 5 -n 3 -c 64K --assume-clean disk0 disk1 disk2 >&2
         exec prlimit --fsize=20000000 $RUN disk0 disk1 disk2",
    );
    let mut client = Client::connect(&served.socket()).unwrap();
    let data = pattern::bytes(1, 0, BLOCK);
    client.write(0, &data, true).unwrap();
    // All members refuse this one: more than parity covers, for good, so it fails and the array is broken.
    let cookie = client.send_write(60 << 20, &data, true).unwrap();
    let answer = client.answer().unwrap();
    assert!(answer.cookie == cookie && answer.error != 0, "{answer:?}");
    let text = Cmd::new(binary::path()).args(["detail", "--json", &served.name]).ok(LIMIT);
    assert!(text.contains(r#""array_state": "broken""#), "{text}");
    served.proc.signal(Signal::TERM);
    // SIGXFSZ has not killed it: it ends by itself and tells that superblocks are dirty.
    let status = served.proc.wait(LIMIT).expect("it ends");
    assert_eq!(status.code(), Some(1), "{}", served.proc.tail());
}

#[test]
fn a_file_that_has_shrunk_in_use() {
    require!(root, "unshare");
    let served = Served::start(
        "$E create $NAME -l 5 -n 3 -c 64K --assume-clean disk0 disk1 disk2 >&2
         exec $RUN disk0 disk1 disk2",
    );
    served.write(1);
    let disk = served.dir.path().join("disk2");
    File::options().write(true).open(&disk).unwrap().set_len(4 << 20).unwrap();
    // What is gone is read from the others, and a member whose reads fail is mended or given up; no error reaches the client.
    served.verify(1);
    served.write(2);
    served.verify(2);
    let dir = served.end();
    the_others_hold_it(dir.path(), &["disk0", "disk1"], 2);
}

/// A disk whose reads and writes fail with EIO on demand. It is unmounted and gone with the value.
struct EioDisk {
    proc: Proc,
    dir: PathBuf,
}

impl EioDisk {
    /// `fuse/disk` in a directory.
    fn new(dir: &Path) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bad_media/eio_disk.py");
        let proc = Cmd::new("python3").arg(script).arg(dir).arg(MEMBER_BYTES.to_string()).spawn();
        proc.wait_for_line("mounted", LIMIT);
        Self { proc, dir: dir.to_owned() }
    }

    fn path(&self) -> PathBuf {
        self.dir.join("fuse/disk")
    }

    fn fail(&self, what: &str) {
        std::fs::write(self.dir.join(what), "").unwrap();
    }
}

impl Drop for EioDisk {
    fn drop(&mut self) {
        let gone = Cmd::new("umount").arg("-l").arg(self.dir.join("fuse")).finish(LIMIT);
        if !gone.status.success() {
            eprintln!("{}{}", gone.stderr, self.proc.tail());
        }
    }
}

#[test]
fn a_member_that_answers_eio() {
    require!(root, "python3", "umount");
    if !Path::new("/dev/fuse").exists() {
        etherraid_tests::skip::report("no /dev/fuse");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    rig::blank_files(dir.path(), 3, MEMBER_BYTES);
    let disk = EioDisk::new(dir.path());
    let name = disk.path().display().to_string();
    let spec = array::Spec::local([dir.path().join("disk0"), disk.path(), dir.path().join("disk2")]);
    spec.create(&["-c", rig::CHUNK, "--assume-clean"]);
    let array = spec.run(&[]);
    let mut client = Client::connect(array.socket()).unwrap();
    let mut write = |seed: u64| {
        for offset in (0..LEN).step_by(BLOCK) {
            client.write(offset, &pattern::bytes(seed, offset, BLOCK), false).unwrap();
        }
        client.flush().unwrap();
        for offset in (0..LEN).step_by(BLOCK) {
            assert!(client.read(offset, BLOCK).unwrap() == pattern::bytes(seed, offset, BLOCK), "block at {offset}");
        }
    };
    write(1);
    // What cannot be read is rebuilt, and written to where it was: the member stays.
    disk.fail("read-errors");
    let mut reader = Client::connect(array.socket()).unwrap();
    for offset in (0..LEN).step_by(BLOCK) {
        assert!(reader.read(offset, BLOCK).unwrap() == pattern::bytes(1, offset, BLOCK), "block at {offset}");
    }
    let line = array.log_line("unreadable, and written anew");
    assert!(line.contains("WARN") && line.contains(&name), "{line}");
    let detail = array.detail();
    assert_eq!(detail.degraded(), 0);
    assert_ne!(detail.0.pointer("/devices/1/corrected"), Some(&0.into()));
    // A write that fails costs the member its place, and says where and why.
    disk.fail("write-errors");
    write(2);
    let detail = array.wait_until("the member is given up", |detail| detail.degraded() == 1);
    assert_eq!(detail.slots(), ["active sync", "removed", "active sync"]);
    let line = array.log_line("Write at sector");
    assert!(line.contains("WARN") && line.contains(&name) && line.contains("os error 5"), "{line}");
    write(3);
    array.stop();
    drop(disk);
    the_others_hold_it(dir.path(), &["disk0", "disk2"], 3);
}

/// An array over a shelf that was started by `script` in the directory of `disk0` to `disk2`, with `$SHELF` for our binary and its options,
/// loses e9.1 as it is written, and goes on without it.
fn a_disk_fails_under_a_shelf(script: &str) {
    let dir = tempfile::tempdir().unwrap();
    rig::blank_files(dir.path(), 3, MEMBER_BYTES);
    let netns = NetNs::new();
    netns.veth(rig::HOST, rig::DISKS, rig::MTU);
    let text = format!("cd {}; {script}", dir.path().display());
    let options = format!("{} shelf -i {}", binary::path().display(), rig::DISKS);
    let cmd = Cmd::new("unshare").args(["-m", "sh", "-ec", &text]).env("SHELF", options).netns(&netns);
    let mut shelf = cmd.spawn();
    shelf.wait_for_line("ready: e9.2", LIMIT);
    let spec = array::Spec::aoe(&netns, rig::HOST, ["e9.0", "e9.1", "e9.2"]);
    spec.create(&["-c", rig::CHUNK, "--assume-clean"]);
    let array = spec.run(&[]);
    let mut client = Client::connect(array.socket()).unwrap();
    for offset in (0..LEN).step_by(BLOCK) {
        client.write(offset, &pattern::bytes(1, offset, BLOCK), false).unwrap();
    }
    client.flush().unwrap();
    array.wait_until("e9.1 is given up", |detail| detail.degraded() == 1);
    for offset in (0..LEN).step_by(BLOCK) {
        assert!(client.read(offset, BLOCK).unwrap() == pattern::bytes(1, offset, BLOCK), "block at {offset}");
    }
    array.stop();
    shelf.signal(Signal::TERM);
    shelf.wait(LIMIT).expect("it ends");
    the_others_hold_it(dir.path(), &["disk0", "disk2"], 1);
}

#[test]
fn a_full_file_system_under_a_shelf() {
    require!(netns, "unshare");
    a_disk_fails_under_a_shelf(
        "mkdir small; mount -t tmpfs -o size=8m none small; truncate -s 48M small/disk1
         exec $SHELF -d 9.0=disk0 -d 9.1=small/disk1 -d 9.2=disk2",
    );
}

#[test]
fn a_limit_on_the_size_of_files_under_a_shelf() {
    require!(netns, "unshare", "prlimit");
    // The limit is where the other two end, and in the midst of this one.
    a_disk_fails_under_a_shelf(
        "truncate -s 80M disk1
         exec prlimit --fsize=50331648 $SHELF -d 9.0=disk0 -d 9.1=disk1,offset=32M -d 9.2=disk2",
    );
}
