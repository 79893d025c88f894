//! `run --sysfs DIR`: the array as files, as scripts and monitors use those that md has in /sys and /proc.

use etherraid_tests::array::{Running, Spec};
use etherraid_tests::proc::{Cmd, Finished};
use etherraid_tests::world::{World, blocks};
use etherraid_tests::{binary, nbd, pattern, require, rig, wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const MEMBER_BYTES: u64 = 32 << 20;
const LIMIT: Duration = Duration::from_secs(60);
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_IPC_LOCK: u64 = 1 << 14;
const CHANGED: PollFlags = PollFlags::PRI.union(PollFlags::ERR);

/// As written for md; only the root differs.
const SCRIPT: &str = r#"
set -eu
md=$SYS/block/$MD/md
[ "$(cat $md/level) $(cat $md/raid_disks) $(cat $md/chunk_size) $(cat $md/metadata_version)" = "raid5 3 65536 1.2" ]
for size in 4096 512 17 1024; do
    echo $size > $md/stripe_cache_size
    [ "$(cat $md/stripe_cache_size)" = $size ]
done
for count in 0 2 1; do
    echo $count > $md/group_thread_cnt
    [ "$(cat $md/group_thread_cnt)" = $count ]
done
echo 150000 > $md/sync_speed_max
case "$(cat $md/sync_speed_max)" in "150000 (local)") ;; *) exit 1 ;; esac
echo system > $md/sync_speed_max
[ "$(cat $md/sync_speed_max)" = "200000 (system)" ]
echo check > $md/sync_action
while [ "$(cat $md/sync_action)" != idle ]; do sleep 0.1; done
[ "$(cat $md/last_sync_action) $(cat $md/mismatch_cnt) $(cat $md/sync_completed)" = "check 0 none" ]
if echo 1 > $md/stripe_cache_size; then exit 1; fi
if echo nonsense > $md/sync_action; then exit 1; fi
[ "$(cat $md/stripe_cache_size) $(cat $md/sync_action)" = "1024 idle" ]
for slot in 0 1 2; do
    [ "$(cat $md/rd$slot/state) $(cat $md/rd$slot/slot) $(cat $md/rd$slot/errors)" = "in_sync $slot 0" ]
done
grep -q "^$MD : active raid5 .*$" $ROOT/proc/mdstat
grep -q "level 5, 64k chunk, algorithm 2 \[3/3\] \[UUU\]" $ROOT/proc/mdstat
echo done
"#;

/// An array over files, and its tree.
struct Rig {
    spec: Spec<'static>,
    files: Vec<PathBuf>,
    root: PathBuf,
    _dir: TempDir,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let files = rig::blank_files(dir.path(), 4, MEMBER_BYTES);
        let spec = Spec::local(&files[..3]);
        spec.create(&["-c", rig::CHUNK, "--assume-clean"]);
        Rig { spec, files, root: dir.path().join("sys"), _dir: dir }
    }

    fn run(&self) -> Running {
        self.spec.run(&["--sysfs", self.root.to_str().unwrap()])
    }

    /// `DIR/block/NAME/md`.
    fn md(&self) -> PathBuf {
        self.root.join("block").join(self.spec.name()).join("md")
    }

    /// The directory of a member.
    fn device(&self, n: usize) -> PathBuf {
        self.md().join(format!("dev-{}", self.files[n].to_str().unwrap().replace('/', "!")))
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.md().join(file)).unwrap()
    }

    fn is_mounted(&self) -> bool {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.lines().any(|line| line.split(' ').nth(4) == self.root.to_str() && line.contains("fuse.etherraid"))
    }

    fn refused(&self, sysfs: &Path) -> Finished {
        self.spec.run_refused(&["--sysfs", sysfs.to_str().unwrap()])
    }
}

/// What `echo` does, with the error of write(2) alone.
fn echo(word: &str, to: &Path) -> std::io::Result<()> {
    let mut file = File::options().write(true).truncate(true).open(to).unwrap_or_else(|e| panic!("{to:?}: {e}"));
    file.write_all(format!("{word}\n").as_bytes())
}

fn errno(done: std::io::Result<()>) -> i32 {
    done.expect_err("refused").raw_os_error().expect("an error of the system")
}

/// What poll(2) says within this time: at once, or when it changes.
fn polled(file: &File, within: Duration) -> PollFlags {
    let mut fds = [PollFd::new(file, PollFlags::PRI)];
    let limit = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: 0 };
    poll(&mut fds, Some(&limit)).unwrap();
    fds[0].revents()
}

fn reread(file: &mut File) -> String {
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

/// The process that unmounts when the array's ends.
fn helper_of(pid: u32) -> u32 {
    let parent = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok()
    };
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let children: Vec<u32> = all.filter(|child| parent(*child) == Some(pid)).collect();
    assert_eq!(children.len(), 1, "{children:?}");
    children[0]
}

fn status(pid: &str, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {key} in {text}")).trim().to_owned()
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn scripts_for_md_run_with_another_root() {
    require!(fuse);
    let rig = Rig::new();
    let array = rig.run();
    let root = rig.root.to_str().unwrap();
    let script = Cmd::new("bash").args(["-c", SCRIPT]).env("SYS", root).env("ROOT", root).env("MD", rig.spec.name());
    let told = script.ok(LIMIT);
    assert!(told.ends_with("done\n"), "{told}");
    array.stop();
    assert!(!rig.is_mounted(), "`stop` answers when the tree is gone");
    assert_eq!(std::fs::read_dir(&rig.root).unwrap().count(), 0);
}

#[test]
fn every_file_is_a_line_and_says_what_the_commands_say() {
    require!(fuse);
    let rig = Rig::new();
    let array = rig.run();
    let mut directories = vec![rig.root.join("block")];
    let mut seen = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                directories.push(path);
            } else if metadata.is_file() {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(text.len() > 1 && text.len() <= 4096 && text.lines().count() == 1, "{path:?}: {text:?}");
                assert!(text.ends_with('\n') && metadata.len() == 4096, "{path:?}");
                seen += 1;
            }
        }
    }
    let tune = Cmd::new(binary::path()).args(["tune", rig.spec.name(), "--json"]).ok(LIMIT);
    let tunables: Vec<Value> = serde_json::from_str(&tune).unwrap();
    assert!(seen > tunables.len() + 3 * 5, "{seen} files");
    for row in &tunables {
        let (name, value) = (row["name"].as_str().unwrap(), row["value"].as_str().unwrap());
        assert_eq!(rig.read(name).split_whitespace().next(), Some(value), "{name}");
    }
    let detail = array.detail();
    assert_eq!(rig.read("array_state").trim_end(), detail.array_state());
    let uuid = detail.0["uuid"].as_str().unwrap().replace(':', "");
    assert_eq!(rig.read("uuid").trim_end().replace('-', ""), uuid);
    let size = std::fs::read_to_string(rig.md().parent().unwrap().join("size")).unwrap();
    assert_eq!(size.trim_end().parse::<u64>().unwrap() * 512, detail.0["array_size_bytes"].as_u64().unwrap());
    // Other arrays of this host may be in `status`, too.
    let status = Cmd::new(binary::path()).arg("status").ok(LIMIT);
    let mdstat = std::fs::read_to_string(rig.root.join("proc/mdstat")).unwrap();
    assert_eq!(mdstat.lines().count(), 5, "{mdstat}");
    assert!(mdstat.lines().all(|line| status.lines().any(|other| other == line)), "{mdstat}\n{status}");
    array.stop();
}

#[test]
fn errors_come_from_the_write() {
    require!(fuse);
    let rig = Rig::new();
    let array = rig.run();
    let md = rig.md();
    for (file, word) in [
        ("stripe_cache_size", "16"),
        ("stripe_cache_size", "0x100"),
        ("stripe_cache_size", "+256"),
        ("stripe_cache_size", " 256"),
        ("stripe_cache_size", ""),
        ("group_thread_cnt", "9999"),
        ("rmw_level", "3"),
        ("sync_action", "reshape"),
        ("sync_action", "idle idle"),
        ("skip_copy", "0"),
        ("preread_bypass_threshold", "0"),
        ("array_state", "suspended"),
    ] {
        assert_eq!(errno(echo(word, &md.join(file))), errno_base::EINVAL, "{file} {word:?}");
    }
    assert_eq!(errno(echo(&"1".repeat(5000), &md.join("rmw_level"))), errno_base::EINVAL);
    assert_eq!(errno(echo("in_sync", &rig.device(0).join("state"))), errno_base::EINVAL);
    assert_eq!((rig.read("stripe_cache_size"), rig.read("rmw_level")), ("256\n".into(), "1\n".into()));
    for (file, word) in [("skip_copy", "1"), ("preread_bypass_threshold", "1"), ("array_state", "active")] {
        echo(word, &md.join(file)).unwrap();
    }
    // As md says it: not now.
    assert_eq!(errno(echo("readonly", &md.join("array_state"))), errno_base::EBUSY);
    assert_eq!(errno(echo("clear", &md.join("array_state"))), errno_base::EBUSY);
    echo("1", &md.join("sync_speed_max")).unwrap();
    echo("check", &md.join("sync_action")).unwrap();
    assert_eq!(errno(echo("repair", &md.join("sync_action"))), errno_base::EBUSY);
    assert_eq!(rig.read("sync_action"), "check\n");
    assert!(rig.read("sync_completed").contains(" / "), "{}", rig.read("sync_completed"));
    echo("idle", &md.join("sync_action")).unwrap();
    echo("frozen", &md.join("sync_action")).unwrap();
    array.wait_until("frozen", |detail| detail.sync_action() == "frozen");
    echo("idle", &md.join("sync_action")).unwrap();
    // What cannot be written cannot be opened for it, by root either; and nothing can be made.
    let open = |path: &Path| File::options().write(true).create(true).truncate(true).open(path).map(drop);
    for file in ["stripe_cache_active", "degraded", "level", "mismatch_cnt", "no_such_file"] {
        assert_eq!(open(&md.join(file)).expect_err(file).kind(), ErrorKind::PermissionDenied, "{file}");
    }
    assert_eq!(std::fs::metadata(md.join("degraded")).unwrap().permissions().mode() & 0o777, 0o444);
    assert_eq!(std::fs::read(md.join("no_such_file")).expect_err("none").kind(), ErrorKind::NotFound);
    assert!(std::fs::create_dir(md.join("new")).is_err() && std::fs::remove_file(md.join("level")).is_err());
    array.stop();
}

#[test]
fn members_fail_and_leave_by_their_state() {
    require!(fuse);
    let rig = Rig::new();
    let array = rig.run();
    let state = rig.device(1).join("state");
    let mut held = File::open(&state).unwrap();
    assert_eq!(reread(&mut held), "in_sync\n");
    assert_eq!(errno(echo("remove", &state)), errno_base::EBUSY, "it is in use");
    echo("faulty", &state).unwrap();
    array.wait_until("one is gone", |detail| detail.degraded() == 1);
    assert_eq!(reread(&mut held), "faulty\n", "a file that is open has fresh content");
    assert_eq!(rig.read("degraded"), "1\n");
    assert!(!rig.md().join("rd1").exists());
    assert_eq!(errno(echo("faulty", &rig.device(2).join("state"))), errno_base::EBUSY, "the array would break");
    // The failure is recorded on the others first.
    wait::until("it leaves", LIMIT, || echo("remove", &state).ok());
    assert!(!rig.device(1).exists());
    assert_eq!(
        held.rewind().and_then(|()| held.read(&mut [0; 9])).expect_err("gone").raw_os_error(),
        Some(errno_base::ENODEV)
    );
    array.add(rig.files[3].to_str().unwrap());
    array.wait_in_sync();
    assert_eq!(std::fs::read_to_string(rig.md().join("rd1/state")).unwrap(), "in_sync\n");
    assert!(std::fs::read_link(rig.md().join("rd1")).unwrap().ends_with(rig.device(3).file_name().unwrap()));
    array.stop();
}

#[test]
fn poll_tells_of_changes_until_they_are_read() {
    require!(fuse);
    let rig = Rig::new();
    let array = rig.run();
    let open = |name: &str| File::open(rig.md().join(name)).unwrap();
    let mut files = ["sync_action", "array_state", "degraded"].map(open);
    let mut mdstat = File::open(rig.root.join("proc/mdstat")).unwrap();
    for file in files.iter_mut().chain([&mut mdstat]) {
        assert_eq!(polled(file, Duration::ZERO), CHANGED, "not read yet, as in sysfs");
        reread(file);
        assert_eq!(polled(file, Duration::ZERO), PollFlags::empty());
    }
    let [action, state, degraded] = &mut files;
    echo("frozen", &rig.md().join("sync_action")).unwrap();
    assert_eq!(polled(action, LIMIT), CHANGED);
    assert_eq!(polled(action, Duration::ZERO), CHANGED, "until it is read");
    assert_eq!(reread(action), "frozen\n");
    assert_eq!(polled(action, Duration::ZERO), PollFlags::empty());
    assert_eq!(polled(degraded, Duration::ZERO), PollFlags::empty(), "others have not changed");

    // A poll that waits is woken.
    let mut client = nbd::Client::connect(array.socket()).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| polled(state, LIMIT));
        client.write(0, &pattern::bytes(1, 0, 4096), false).unwrap();
        assert_eq!(waits.join().unwrap(), CHANGED);
    });
    client.disconnect().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| polled(degraded, LIMIT));
        array.fail(rig.files[1].to_str().unwrap());
        assert_eq!(waits.join().unwrap(), CHANGED);
    });
    assert_eq!(reread(degraded), "1\n");
    assert_eq!(polled(&mdstat, Duration::ZERO), CHANGED);
    // What does not change by itself says nothing, even unread.
    assert_eq!(polled(&open("level"), Duration::ZERO), PollFlags::empty());
    array.stop();
}

#[test]
fn what_a_kill_leaves_is_taken_away() {
    require!(fuse);
    let rig = Rig::new();
    // The array alone: its helper unmounts.
    let array = rig.run();
    assert!(rig.is_mounted());
    array.sigkill();
    wait::until("unmounted", LIMIT, || (!rig.is_mounted()).then_some(()));
    // Both, as a service manager may: the next start does it.
    let array = rig.run();
    kill(helper_of(array.pid()));
    array.sigkill();
    assert!(rig.is_mounted());
    let dead = std::fs::read_dir(&rig.root).expect_err("nobody answers");
    assert_eq!(dead.kind(), ErrorKind::NotConnected);
    let array = rig.run();
    assert_eq!(rig.read("level"), "raid5\n");
    array.stop();
    assert!(!rig.is_mounted());
    // An end by signal, with somebody inside.
    let mut array = rig.run();
    let held = File::open(rig.md().join("level")).unwrap();
    array.sigterm();
    assert_eq!(array.wait_exit().code(), Some(0));
    assert!(!rig.is_mounted());
    drop(held);
}

#[test]
fn a_directory_that_is_taken_is_refused() {
    require!(fuse);
    let (first, second) = (Rig::new(), Rig::new());
    let array = first.run();
    let told = second.refused(&first.root).fails_with(1);
    assert!(told.contains("another array has its files there"), "{told}");
    let full = second.files[0].parent().unwrap();
    let told = second.refused(full).fails_with(1);
    assert!(told.contains("not empty"), "{told}");
    let told = second.refused(&second.files[0]).fails_with(1);
    assert!(told.contains("Not a directory"), "{told}");
    assert_eq!(first.read("level"), "raid5\n", "who was there is still there");
    let other = second.run();
    assert_eq!(second.read("raid_disks"), "3\n");
    other.stop();
    array.stop();
}

#[test]
fn neither_process_keeps_more_than_it_needs() {
    require!(fuse, "setpriv");
    let rig = Rig::new();
    let array = rig.run();
    let pid = array.pid();
    let helper = helper_of(pid).to_string();
    for key in ["CapPrm", "CapEff"] {
        assert_eq!(u64::from_str_radix(&status(&helper, key), 16).unwrap(), CAP_SYS_ADMIN, "{key}");
    }
    assert_eq!(status(&helper, "NoNewPrivs"), "1");
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let tasks: Vec<String> = tasks.map(|task| format!("{pid}/task/{}", task.unwrap().file_name().display())).collect();
    let names: Vec<String> = tasks.iter().map(|task| status(task, "Name")).collect();
    assert!(names.iter().any(|name| name.starts_with("fuser")) && names.iter().any(|name| name == "sysfs-poll"));
    for task in &tasks {
        assert_eq!(u64::from_str_radix(&status(task, "CapEff"), 16).unwrap() & !CAP_IPC_LOCK, 0, "{task}");
        assert_eq!((status(task, "NoNewPrivs"), status(task, "Seccomp")), ("1".into(), "2".into()), "{task}");
    }
    // Others may look, not touch.
    let level = rig.md().join("level");
    std::fs::set_permissions(rig.root.parent().unwrap(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let nobody = |shell: &str| {
        let cmd = Cmd::new("setpriv").args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", shell]);
        cmd.finish(LIMIT)
    };
    assert_eq!(nobody(&format!("cat {}", level.display())).ok(), "raid5\n");
    let write = format!("echo 512 > {}", rig.md().join("stripe_cache_size").display());
    assert!(!nobody(&write).status.success());
    assert_eq!(rig.read("stripe_cache_size"), "256\n");
    array.stop();
}

/// The example in docs/CONTROL.md.
#[test]
fn the_page_runs_as_printed() {
    require!(fuse, netns, "nsenter");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/CONTROL.md");
    let page = std::fs::read_to_string(page).unwrap();
    let [(_, typed)] = &blocks(&page).into_iter().filter(|(kind, _)| kind == "bash").collect::<Vec<_>>()[..] else {
        panic!("one block for bash")
    };
    let world = World::with_shelf(3);
    world.make_array(3, Some("--nbd unix:/run/r5.nbd --sysfs /run/r5.sys"));
    let told = world.sh(&format!("set -e\n{typed}"), LIMIT).ok();
    assert!(told.starts_with("Personalities : [raid5] [raid4]\nr5 : active raid5 e9.2[2] e9.1[1] e9.0[0]\n"), "{told}");
    assert!(told.ends_with("\n1024\n2\ncheck\n0\nclean\n1\nin_sync\n"), "{told}");
    world.ok("etherraid stop r5 && rmdir /run/r5.sys");
}

/// Numbers of errors, from Linux's `asm-generic/errno-base.h`.
mod errno_base {
    pub(super) const EBUSY: i32 = 16;
    pub(super) const ENODEV: i32 = 19;
    pub(super) const EINVAL: i32 = 22;
}
