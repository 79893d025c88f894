//! `etherraid demo`: needs nothing but the binary, shows the main job, and leaves nothing behind.

use etherraid_tests::netns::{self, NetNs};
use etherraid_tests::proc::{Cmd, Proc};
use etherraid_tests::{binary, require, wait};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(20);
/// User and group without any right.
const NOBODY: &str = "65534";

/// A place of its own for the demo: a copy of the binary (so that its processes can be told) and an empty TMPDIR.
struct Place {
    binary: PathBuf,
    tmp: PathBuf,
    before: BTreeSet<String>,
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
        Self { binary, tmp, before: traces(), _dir: dir }
    }

    fn demo(&self) -> Cmd {
        Cmd::new(&self.binary).arg("demo").env("TMPDIR", &self.tmp)
    }

    fn demo_as_nobody(&self) -> Cmd {
        Cmd::new("setpriv")
            .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"])
            .arg(&self.binary)
            .arg("demo")
            .env("TMPDIR", &self.tmp)
            .env("HOME", &self.tmp)
    }

    /// Waits until neither process, nor file, nor anything in the list of [`traces`] is left.
    fn nothing_is_left(&self) {
        let left = || -> Option<String> {
            let files: Vec<PathBuf> = std::fs::read_dir(&self.tmp).unwrap().map(|e| e.unwrap().path()).collect();
            if !files.is_empty() {
                return Some(format!("files: {files:?}"));
            }
            if let Some(pid) = processes_of(&self.binary) {
                return Some(format!("process {pid}"));
            }
            let new: Vec<String> = traces().difference(&self.before).cloned().collect();
            (!new.is_empty()).then(|| format!("{new:?}"))
        };
        let gone = wait::try_until("everything gone", CLEAN_UP_LIMIT, || left().is_none().then_some(()));
        assert!(gone.is_ok(), "left behind: {:?}", left());
    }
}

/// A process that runs this binary.
fn processes_of(binary: &Path) -> Option<String> {
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let exe = std::fs::read_link(entry.path().join("exe")).ok()?;
        (exe == binary).then(|| entry.file_name().to_string_lossy().into_owned())
    })
}

/// What a demo could leave on the machine: named namespaces, shared memory, control sockets, interfaces, mounts. Those of other
/// tests, which may run beside this one, are left out.
fn traces() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for dir in ["/run/netns", "/dev/shm", "/run/etherraid", "/sys/class/net"] {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with(netns::PREFIX) {
                found.insert(format!("{dir}/{name}"));
            }
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let ours = mounts.lines().filter(|line| line.contains("etherraid"));
    found.extend(ours.map(|line| format!("mount {line}")));
    found
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
    shows_the_main_job(&place.demo().ok(LIMIT));
    place.nothing_is_left();
}

#[test]
fn as_root_in_a_namespace_without_any_link() {
    require!(netns);
    let place = Place::new();
    let netns = NetNs::new();
    shows_the_main_job(&place.demo().netns(&netns).ok(LIMIT));
    let links = netns.sh("ip -br link");
    assert_eq!(links.lines().count(), 1, "only lo was there before:\n{links}");
    place.nothing_is_left();
}

#[test]
fn as_a_user_without_rights() {
    require!(root, "setpriv");
    let place = Place::new();
    shows_the_main_job(&place.demo_as_nobody().ok(LIMIT));
    place.nothing_is_left();
}

/// Kills the demo once it has said `word`.
fn kill_at(mut demo: Proc, word: &str) {
    demo.wait_for_line(word, LIMIT);
    demo.signal(Signal::KILL);
    demo.wait(CLEAN_UP_LIMIT);
}

#[test]
fn killed_it_leaves_nothing() {
    let place = Place::new();
    for word in ["shel", "degraded", "rebuil"] {
        kill_at(place.demo().spawn(), word);
        place.nothing_is_left();
    }
}

#[test]
fn interrupted_it_leaves_nothing() {
    let place = Place::new();
    let mut demo = place.demo().spawn();
    demo.wait_for_line("shel", LIMIT);
    demo.signal(Signal::INT);
    let status = demo.wait(CLEAN_UP_LIMIT).expect("it ends on SIGINT");
    assert!(!status.success());
    place.nothing_is_left();
}
