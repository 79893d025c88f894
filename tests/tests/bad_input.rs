//! What a user can get wrong about members, places and values: each is refused with a message that says what, where and what to try, with
//! exit status 1 (2 for the command line), and no byte of a member changes.
//!
//! Networks are in `bad_network.rs`, clients in `bad_clients.rs`, media that fail in `bad_media.rs`.

use etherraid_tests::array::{self, Spec};
use etherraid_tests::proc::{Cmd, Finished};
use etherraid_tests::{binary, pattern, require, rig};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const MEMBER_BYTES: u64 = 16 << 20;
const LIMIT: Duration = Duration::from_secs(60);
/// Where a 1.2 superblock lies, and fields of it (`mdp_superblock_1` of Linux).
const SUPERBLOCK: u64 = 4096;
const FEATURE_MAP: usize = 8;
const CHECKSUM: usize = 216;
const MAX_DEV: usize = 220;
const ROLES: usize = 256;

/// Member files of a stopped array, and what they held when it stopped.
struct Disks {
    dir: TempDir,
    files: Vec<PathBuf>,
    name: String,
}

impl Disks {
    /// A clean array of `count` members.
    fn new(count: usize) -> Self {
        let disks = Self::blank(count);
        disks.spec().create(&["-c", rig::CHUNK, "--assume-clean"]);
        disks
    }

    fn blank(count: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = rig::blank_files(dir.path(), count, MEMBER_BYTES);
        Self { dir, files, name: array::unique_name() }
    }

    fn spec(&self) -> Spec<'_> {
        Spec::local(&self.files).named(&self.name)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A copy of a member, with its superblock changed; the checksum is made right again if `checksum`.
    fn copy(&self, member: usize, name: &str, checksum: bool, change: impl FnOnce(&mut [u8])) -> PathBuf {
        let to = self.path(name);
        std::fs::copy(&self.files[member], &to).unwrap();
        let file = File::options().read(true).write(true).open(&to).unwrap();
        let mut block = vec![0; 4096];
        file.read_exact_at(&mut block, SUPERBLOCK).unwrap();
        change(&mut block);
        if checksum {
            set_checksum(&mut block);
        }
        file.write_all_at(&block, SUPERBLOCK).unwrap();
        to
    }

    /// `run` with these arguments after its name is refused so, and changes no file in the directory.
    fn refused(&self, code: i32, args: &[&str], words: &[&str]) {
        self.unchanged_by(code, words, |cmd| cmd.args(["run", &self.name]).args(args));
    }

    /// `run` over these members, with an NBD socket that can be had.
    fn refused_members(&self, members: &[&Path], more: &[&str], words: &[&str]) {
        let members: Vec<&str> = members.iter().map(|path| path.to_str().unwrap()).collect();
        let nbd = self.nbd();
        let args = [&["--nbd", &nbd], more, &members].concat();
        self.refused(1, &args, words);
    }

    fn nbd(&self) -> String {
        format!("unix:{}", self.path("nbd").display())
    }

    fn unchanged_by(&self, code: i32, words: &[&str], args: impl FnOnce(Cmd) -> Cmd) {
        let before = self.digests();
        let finished = args(Cmd::new(binary::path())).finish(LIMIT);
        says(finished, code, words);
        assert!(self.digests() == before, "a refused command has changed something: {words:?}");
    }

    /// Name and SHA-256 of each file in the directory.
    fn digests(&self) -> Vec<(PathBuf, String)> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
        let digest = |path: PathBuf| {
            let sha256 = if path.is_file() { pattern::sha256(&path).unwrap() } else { String::new() };
            (path, sha256)
        };
        files.into_iter().map(digest).collect()
    }
}

/// It ended with this exit status and one message that holds all of `words`, none of them twice.
fn says(finished: Finished, code: i32, words: &[&str]) {
    let text = finished.fails_with(code);
    for word in words {
        assert_eq!(text.matches(word).count(), 1, "{word:?} must be said once in:\n{text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

/// Makes the checksum of a superblock right (`calc_sb_1_csum` of Linux: 32-bit words summed, carries folded in).
fn set_checksum(block: &mut [u8]) {
    let word = |block: &[u8], at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
    block[CHECKSUM..CHECKSUM + 4].fill(0);
    let bytes = ROLES + 2 * word(block, MAX_DEV) as usize;
    let mut sum: u64 = (0..bytes / 4).map(|n| u64::from(word(block, 4 * n))).sum();
    if bytes % 4 == 2 {
        sum += u64::from(u16::from_le_bytes([block[bytes - 2], block[bytes - 1]]));
    }
    let checksum = (sum & 0xFFFF_FFFF) as u32;
    let checksum = checksum.wrapping_add((sum >> 32) as u32);
    block[CHECKSUM..CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
}

#[test]
fn members_that_are_not_there_or_not_enough() {
    let disks = Disks::new(3);
    let [a, b, _] = &disks.files[..] else { panic!("three") };
    disks.refused_members(&[a, b, &disks.path("none")], &[], &["none", "No such file", "check the name"]);
    disks.refused_members(&[a, b], &[], &["slots 2 are missing that were there last time", "attach them", "--run"]);
    disks.refused_members(&[a], &["--run"], &["1 of 3 members", "2 are needed", "slots missing: 1, 2", "attach"]);
    disks.refused_members(&[a, b, Path::new("/dev")], &[], &["/dev", "neither a file nor a block device"]);
    let blank = disks.path("blank");
    pattern::blank(&blank, MEMBER_BYTES).unwrap();
    disks.refused_members(&[&blank], &[], &["blank", "no md superblock", "check the device names"]);
    disks.refused_members(&[a, b, &blank], &[], &["slots 2 are missing", "blank", "no md superblock"]);
    let tiny = disks.path("tiny");
    pattern::blank(&tiny, 4096).unwrap();
    disks.refused_members(&[a, b, &tiny], &[], &["tiny", "too small"]);
    // Nothing above was in the way of the array.
    disks.spec().run(&[]).stop();
}

#[test]
fn members_of_different_arrays() {
    let (disks, other) = (Disks::new(3), Disks::new(3));
    let before = other.digests();
    let (own, foreign) = (&disks.files, &other.files);
    let uuid = |disks: &Disks| {
        let text = Cmd::new(binary::path()).arg("examine").arg(&disks.files[0]).ok(LIMIT);
        let line = text.lines().find_map(|line| line.trim().strip_prefix("Array UUID : ").map(str::to_owned));
        line.expect("examine prints the array's UUID")
    };
    let (own_uuid, foreign_uuid) = (uuid(&disks), uuid(&other));
    disks.refused_members(&[&own[0], &own[1], &foreign[2]], &[], &[&foreign_uuid, "belongs to array", "slots 2"]);
    disks.refused_members(&[&own[0], &own[1], &own[2], &foreign[2]], &["--uuid", &foreign_uuid], &["1 of 3 members"]);
    let [a, b] = [&own[0], &foreign[0]];
    disks.refused_members(&[a, b], &["--run"], &["belongs to array", "1 of 3 members"]);
    assert_ne!(own_uuid, foreign_uuid);
    assert!(other.digests() == before, "a member of another array has changed");
}

#[test]
fn superblocks_that_are_damaged_or_from_the_future() {
    let disks = Disks::new(3);
    let [a, b, _] = &disks.files[..] else { panic!("three") };
    let flipped = disks.copy(2, "flipped", false, |block| block[128] ^= 1);
    disks.refused_members(&[a, b, &flipped], &[], &["flipped", "checksum", "is damaged", "--run"]);
    let newer = disks.copy(2, "newer", true, |block| block[FEATURE_MAP + 3] |= 0x10);
    disks.refused_members(&[a, b, &newer], &[], &["newer: unknown feature bits 0x10000000", "update this program"]);
    disks.refused_members(&[a, b, &newer], &["--run", "--force"], &["unknown feature bits"]);
    let major = disks.copy(2, "major", true, |block| block[4] = 2);
    disks.refused_members(&[a, b, &major], &[], &["major: superblock of major version 2", "only version 1 is"]);
    // The change of nothing is no change: what the copies are made by is sound.
    let same = disks.copy(2, "same", true, |_| {});
    disks.refused_members(&[a, b, &disks.files[2], &same], &[], &["same device UUID", "give only one"]);
}

#[test]
fn a_member_that_has_shrunk() {
    let disks = Disks::new(3);
    let [a, b, c] = &disks.files[..] else { panic!("three") };
    let short = disks.copy(2, "short", true, |_| {});
    File::options().write(true).open(&short).unwrap().set_len(MEMBER_BYTES / 2).unwrap();
    disks.refused_members(&[a, b, &short], &[], &["short", "too small for the data it should hold", "--run"]);
    assert!(c.exists());
    let small = disks.path("small");
    pattern::blank(&small, 100 << 10).unwrap();
    let blank = Disks::blank(2);
    let [x, y] = &blank.files[..] else { panic!("two") };
    let words = ["small has 100 KiB: too small, at least", "KiB are needed"];
    blank.unchanged_by(1, &words, |cmd| cmd.args(["create", "x", "-l", "5", "-n", "3"]).arg(x).arg(y).arg(&small));
}

#[test]
fn one_device_twice() {
    let disks = Disks::new(3);
    let [a, b, c] = &disks.files[..] else { panic!("three") };
    let (alias, twin) = (disks.path("alias"), disks.path("twin"));
    std::os::unix::fs::symlink(c, &alias).unwrap();
    std::fs::hard_link(c, &twin).unwrap();
    let words = ["disk2", "one device under two names", "give only one"];
    disks.refused_members(&[a, b, c, &alias], &[], &["alias", words[1], words[2]]);
    disks.refused_members(&[a, b, c, &twin], &[], &["twin", words[1], words[2]]);
    disks.refused_members(&[a, b, c, c], &[], &["device UUID", words[1], words[2]]);
    // Blank ones, for `create`: there is no UUID to know them by.
    let blank = Disks::blank(3);
    let [x, y, z] = &blank.files[..] else { panic!("three") };
    let (alias, twin) = (blank.path("alias"), blank.path("twin"));
    std::os::unix::fs::symlink(z, &alias).unwrap();
    std::fs::hard_link(z, &twin).unwrap();
    for (second, words) in [(z, "is given twice"), (&alias, "under two names"), (&twin, "under two names")] {
        blank.unchanged_by(2, &[words], |cmd| cmd.args(["create", "x", "-l", "5", "-n", "4"]).args([x, y, z, second]));
    }
}

#[test]
fn a_stale_member_is_told_and_comes_back_only_whole() {
    let disks = Disks::new(3);
    let [a, b, c] = &disks.files[..] else { panic!("three") };
    // It misses what is written while it is away.
    let without = disks.spec().with_members([a.to_str().unwrap(), b.to_str().unwrap()]);
    let array = without.run(&["--run"]);
    etherraid_tests::nbd::Client::connect(array.socket()).unwrap().write(0, &[7; 4096], true).unwrap();
    array.stop();
    disks.refused_members(&[a, c], &["--run"], &["disk2: it is out of date", "1 of 3 members", "--force"]);
    let array = disks.spec().run(&[]);
    array.wait_in_sync();
    let mut client = etherraid_tests::nbd::Client::connect(array.socket()).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    array.stop();
    // Now it has all: any other may be away.
    let array = disks.spec().with_members([b.to_str().unwrap(), c.to_str().unwrap()]).run(&["--run", "--readonly"]);
    let mut client = etherraid_tests::nbd::Client::connect(array.socket()).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    array.stop();
}

#[test]
fn a_member_that_is_in_use() {
    let disks = Disks::new(3);
    let other = Disks::new(3);
    let array = disks.spec().run(&["--readonly"]);
    let members = [&disks.files[0], &disks.files[1], &disks.files[2]].map(|p| p.to_str().unwrap());
    let control = format!("{}", disks.path("control").display());
    let nbd = disks.nbd();
    let again = [&["--control", &control, "--nbd", &nbd], &members[..]].concat();
    disks.refused(1, &again, &["runs on this host already", "stop that first"]);
    disks.refused(1, &[&["--nbd", &nbd], &members[..]].concat(), &["a running array answers", "--control"]);
    disks.unchanged_by(1, &["belongs to the running array", "stop that first"], |cmd| {
        cmd.args(["create", "x", "-l", "5", "-n", "3", "--run"]).args(members)
    });
    let second = other.spec().run(&["--member-dir", disks.dir.path().to_str().unwrap()]);
    disks.unchanged_by(1, &["belongs to the running array"], |cmd| cmd.args(["add", &other.name, members[0]]));
    disks.unchanged_by(1, &["is in the array already"], |cmd| cmd.args(["add", &disks.name, members[0]]));
    second.stop();
    array.stop();
}

#[test]
fn sockets_that_cannot_be_had() {
    let disks = Disks::new(3);
    let [a, b, _] = &disks.files[..] else { panic!("three") };
    let members = [a.to_str().unwrap(), b.to_str().unwrap()];
    // With a member missing the start of the array would write superblocks: the socket must come first.
    let run = |nbd: &str, control: Option<&str>, words: &[&str]| {
        let control: Vec<&str> = control.iter().flat_map(|path| ["--control", path]).collect();
        disks.refused(1, &[&["--run", "--nbd", nbd], &control[..], &members].concat(), words);
    };
    let long = format!("{}/{}", disks.dir.path().display(), "x".repeat(120));
    run(&format!("unix:{long}"), None, &["bytes long, the limit is 107", "choose a shorter one"]);
    run(&disks.nbd(), Some(&long), &["bytes long, the limit is 107", "choose a shorter one with --control"]);
    run("unix:/proc/nbd", None, &["/proc/nbd"]);
    run(&disks.nbd(), Some("/proc/control"), &["/proc/control", "--control"]);
    run("unix:/nonexistent/nbd", None, &["/nonexistent/nbd", "No such file"]);
    run(&disks.nbd(), Some("/nonexistent/control"), &["/nonexistent/control", "No such file", "--control"]);
    let taken = disks.path("taken");
    std::fs::write(&taken, "mine").unwrap();
    let taken_text = taken.display().to_string();
    run(&format!("unix:{taken_text}"), None, &["taken", "is not a socket", "choose another path"]);
    run(&disks.nbd(), Some(&taken_text), &["taken", "is not a socket", "choose another --control"]);
    let listening = disks.path("listening");
    let _listener = std::os::unix::net::UnixListener::bind(&listening).unwrap();
    let listening = listening.display().to_string();
    run(&format!("unix:{listening}"), None, &["listening", "in use by a running server", "choose another path"]);
    run(&disks.nbd(), Some(&listening), &["listening", "choose another name or --control"]);
    assert_eq!(std::fs::read(&taken).unwrap(), b"mine");
}

#[test]
fn directories_that_are_not_ours_to_write() {
    require!(root, "setpriv");
    let disks = Disks::new(3);
    let members = [&disks.files[0], &disks.files[1], &disks.files[2]].map(|p| p.to_str().unwrap());
    let locked = disks.path("locked");
    std::fs::create_dir(&locked).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(disks.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for member in members {
        std::fs::set_permissions(member, PermissionsExt::from_mode(0o666)).unwrap();
    }
    let before = disks.digests();
    let run = |nbd: &Path, words: &[&str]| {
        let cmd = Cmd::new("setpriv").args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        // /dev/shm is a place that everybody may write to.
        let cmd = cmd.env("XDG_RUNTIME_DIR", "/dev/shm").arg(binary::path()).args(["run", &disks.name]);
        let finished = cmd.arg("--nbd").arg(format!("unix:{}", nbd.display())).args(members).finish(LIMIT);
        says(finished, 1, words);
    };
    run(&locked.join("nbd"), &["locked/nbd", "Permission denied"]);
    std::fs::set_permissions(members[1], PermissionsExt::from_mode(0o600)).unwrap();
    run(Path::new("/dev/shm/etherraid/nbd"), &["disk1", "Permission denied", "try as root"]);
    std::fs::remove_dir_all("/dev/shm/etherraid").unwrap();
    assert!(disks.digests() == before);
}

#[test]
fn values_that_are_none() {
    let disks = Disks::new(3);
    let members = [&disks.files[0], &disks.files[1], &disks.files[2]].map(|p| p.to_str().unwrap());
    let nbd = disks.nbd();
    let set = |pair: &str, words: &[&str]| {
        disks.refused(2, &[&["--nbd", &nbd, "--set", pair], &members[..]].concat(), words);
    };
    set("stripe_cash_size=256", &["there is no tunable", "did you mean stripe_cache_size"]);
    set("stripe_cache_size=1", &["whole number from 17 to 32768"]);
    set("stripe_cache_size=99999999999999999999", &["whole number from 17 to 32768"]);
    set("stripe_cache_size=256K", &["whole number from 17 to 32768"]);
    set("stripe_cache_size", &["a setting is KEY=VALUE", "such as stripe_cache_size=2048"]);
    set("member_hold=-1", &["seconds from 0 to 86400"]);
    set("rmw_level=", &["0 to 2"]);
    set("=1", &["there is no tunable"]);
    disks.refused(2, &[&["--nbd", &nbd], &members[..2], &["e9.0"]].concat(), &["e9.0", "needs an interface", "-i"]);
    disks.refused(2, &[&["--nbd", &nbd], &members[..2], &["mem:64M"]].concat(), &["mem:64M", "bench and demo"]);

    let blank = Disks::blank(3);
    let create = |more: &[&str], code: i32, words: &[&str]| {
        blank.unchanged_by(code, words, |cmd| {
            cmd.args(["create", "x", "-l", "5", "-n", "3"]).args(more).args(&blank.files)
        });
    };
    for size in ["64KB", "64k b", "-1", "0x10000", "1.5M", "K", ""] {
        create(&[&format!("--chunk={size}")], 2, &["a size is a whole number with K, M, G, T"]);
    }
    create(&["--chunk=99999999T"], 2, &["less than 2^64"]);
    create(&["--chunk=700"], 2, &["multiple of 512"]);
    create(&["--chunk=65K"], 1, &["chunk"]);
    create(&["--chunk=0"], 1, &["chunk"]);
    create(&["--size=1T"], 1, &["disk0", "too small"]);
}

#[test]
fn tunables_of_a_running_array() {
    let disks = Disks::new(3);
    let array = disks.spec().run(&["--readonly"]);
    let tune = |pair: &str, words: &[&str]| {
        disks.unchanged_by(2, words, |cmd| cmd.args(["tune", &disks.name, pair]));
    };
    tune("rmw_level=9", &["0 to 2"]);
    tune("rmv_level=1", &["there is no tunable", "did you mean rmw_level"]);
    let value = || Cmd::new(binary::path()).args(["tune", &disks.name, "rmw_level"]).ok(LIMIT);
    assert_eq!(value().trim(), "1");
    // One of two is bad: neither is set.
    disks.unchanged_by(2, &["0 to 2"], |cmd| cmd.args(["tune", &disks.name, "rmw_level=2", "rmw_level=3"]));
    assert_eq!(value().trim(), "1");
    array.stop();
}
