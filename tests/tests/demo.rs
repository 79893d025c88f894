//! `etherraid demo`: needs nothing but the binary, shows the main job, and leaves nothing behind.

use etherraid_tests::netns::NetNs;
use etherraid_tests::proc::{Cmd, Proc};
use etherraid_tests::skip::{self, Need};
use etherraid_tests::{binary, require, wait};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(20);
/// A user and group without any right.
const AS_NOBODY: [&str; 5] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"];

/// A place of its own for the demo: a copy of the binary (so that its processes can be told) and an empty TMPDIR; as root
/// also a namespace without links, and an empty /run and /dev/shm.
struct Place {
    binary: PathBuf,
    tmp: PathBuf,
    apart: Option<Apart>,
    _dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (binary, tmp) = (dir.path().join("demo-binary"), dir.path().join("tmp"));
        std::fs::copy(binary::path(), &binary).unwrap();
        std::fs::create_dir(&tmp).unwrap();
        for (path, mode) in [(dir.path(), 0o755), (&binary, 0o755), (&tmp, 0o777)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let apart = skip::missing(&[Need::Netns, Need::Program("nsenter")]).is_none().then(Apart::new);
        Self { binary, tmp, apart, _dir: dir }
    }

    /// A command that runs the demo after `before`, which may change the user.
    fn demo(&self, before: &[&str]) -> Cmd {
        let cmd = match &self.apart {
            Some(apart) => apart.enter(),
            None => Cmd::new("env"),
        };
        cmd.args(before).arg(&self.binary).arg("demo").env("TMPDIR", &self.tmp).env("HOME", &self.tmp)
    }

    /// Waits until neither process, nor file, nor interface is left.
    fn nothing_is_left(&self) {
        let left = || -> Option<String> {
            let files = names_in(&self.tmp);
            if !files.is_empty() {
                return Some(format!("files: {files:?}"));
            }
            if let Some(pid) = processes_of(&self.binary) {
                return Some(format!("process {pid}"));
            }
            self.apart.as_ref().and_then(Apart::left_behind)
        };
        let gone = wait::try_until("everything gone", CLEAN_UP_LIMIT, || left().is_none().then_some(()));
        assert!(gone.is_ok(), "left behind: {:?}", left());
    }
}

/// What keeps the demo apart from everything else on the machine, so that whatever appears is the demo's.
struct Apart {
    /// A process that holds the mount namespace.
    holder: Proc,
    netns: NetNs,
    before: BTreeSet<String>,
}

impl Apart {
    fn new() -> Self {
        let netns = NetNs::new();
        let script = "mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /dev/shm; echo mounted; exec sleep 3600";
        let holder = Cmd::new("unshare").args(["-m", "sh", "-ec", script]).spawn();
        holder.wait_for_line("mounted", CLEAN_UP_LIMIT);
        let mut apart = Self { holder, netns, before: BTreeSet::new() };
        apart.before = apart.traces();
        apart
    }

    fn enter(&self) -> Cmd {
        let mounts = format!("--mount=/proc/{}/ns/mnt", self.holder.pid());
        Cmd::new("nsenter").arg(mounts).netns(&self.netns)
    }

    /// Everything in the places where something could be left.
    fn traces(&self) -> BTreeSet<String> {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.pid()));
        let mut found: BTreeSet<String> = names_in(&root.join("dev/shm")).into_iter().collect();
        // An empty folder for control sockets may stay; what it holds may not.
        found.extend(names_in(&root.join("run")).into_iter().filter(|name| name != "etherraid"));
        found.extend(names_in(&root.join("run/etherraid")));
        found.extend(self.netns.sh("ip -br link").lines().map(str::to_owned));
        let mounts = std::fs::read_to_string(format!("/proc/{}/mounts", self.holder.pid())).unwrap();
        found.extend(mounts.lines().map(str::to_owned));
        found
    }

    fn left_behind(&self) -> Option<String> {
        let now = self.traces();
        let new: Vec<&String> = now.difference(&self.before).collect();
        (!new.is_empty()).then(|| format!("{new:?}"))
    }
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// A process that runs this binary.
fn processes_of(binary: &Path) -> Option<String> {
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let exe = std::fs::read_link(entry.path().join("exe")).ok()?;
        (exe == binary).then(|| entry.file_name().to_string_lossy().into_owned())
    })
}

/// What the demo must tell, in this order: it loses two shelves, one after the rebuild, and compares all bytes each time.
const STORY: [&str; 11] = [
    "shelves",
    "RAID5",
    "every byte is right",
    "killed",
    "degraded",
    "every byte is right",
    "rebuilt",
    "killed",
    "every byte is right",
    "MB/s",
    "No request failed, and every byte read was right",
];

fn shows_the_main_job(output: &str) {
    let mut from = 0;
    for words in STORY {
        match output[from..].find(words) {
            Some(at) => from += at + words.len(),
            None => panic!("no {words:?} where it belongs in\n{output}"),
        }
    }
}

#[test]
fn as_the_user_who_runs_the_tests() {
    let place = Place::new();
    shows_the_main_job(&place.demo(&[]).ok(LIMIT));
    place.nothing_is_left();
}

#[test]
fn as_a_user_without_rights() {
    require!(root, "setpriv");
    let place = Place::new();
    shows_the_main_job(&place.demo(&AS_NOBODY).ok(LIMIT));
    place.nothing_is_left();
}

#[test]
fn killed_it_leaves_nothing() {
    let place = Place::new();
    for word in ["shelves", "degraded", "rebuilt"] {
        let mut demo = place.demo(&[]).spawn();
        demo.wait_for_line(word, LIMIT);
        demo.signal(Signal::KILL);
        demo.wait(CLEAN_UP_LIMIT);
        place.nothing_is_left();
    }
}

#[test]
fn interrupted_it_leaves_nothing() {
    let place = Place::new();
    let mut demo = place.demo(&[]).spawn();
    demo.wait_for_line("shelves", LIMIT);
    demo.signal(Signal::INT);
    let status = demo.wait(CLEAN_UP_LIMIT).expect("it ends on SIGINT");
    assert!(!status.success());
    place.nothing_is_left();
}

#[test]
fn what_would_be_left_is_seen() {
    require!(netns, "nsenter");
    let apart = Apart::new();
    assert_eq!(apart.left_behind(), None);
    for leaves in ["touch /run/x", "mkdir -p /run/etherraid; touch /run/etherraid/x", "touch /dev/shm/x"] {
        let apart = Apart::new();
        apart.enter().args(["sh", "-c", leaves]).ok(CLEAN_UP_LIMIT);
        assert!(apart.left_behind().is_some(), "{leaves}");
    }
    apart.netns.veth("a0", "a1", 1500);
    assert!(apart.left_behind().is_some());
}
