//! Our array from the command line: `create`, `run`, and the commands on a running one.
//!
//! A [`Spec`] names an array and its members; [`Spec::create`] and [`Spec::run`] call the binary. A [`Running`] array serves NBD on
//! a Unix socket in a directory of its own; dropping it kills the process. Names are unique per test process, so that tests
//! share the default control directory without meeting.

use crate::binary;
use crate::netns::{self, NetNs};
use crate::proc::{Finished, Proc};
use crate::wait;
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Limit for a command that only talks to a running array.
const COMMAND_LIMIT: Duration = Duration::from_secs(20);
/// Limit for `create` and for `run` to become ready: a first frame lifetime passes before anything is written.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Limit for a state that the array reaches by itself: resync, rebuild, a member found missing.
pub const STATE_LIMIT: Duration = Duration::from_secs(120);
/// Where control sockets lie by default.
const CONTROL_DIR: &str = "/run/etherraid";
/// What the one line that `run` prints when it serves holds.
const READY: &str = "ready";

static NEXT: AtomicU32 = AtomicU32::new(0);
static SWEEP: Once = Once::new();

/// A name that no other test's array has.
pub fn unique_name() -> String {
    SWEEP.call_once(sweep);
    format!("{}{}-{}", netns::PREFIX, std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// An array by name and members.
pub struct Spec<'a> {
    name: String,
    netns: Option<&'a NetNs>,
    interfaces: Vec<String>,
    members: Vec<String>,
}

impl<'a> Spec<'a> {
    /// An array over local files and block devices, or `mem:`.
    pub fn local<S: AsRef<Path>>(members: impl IntoIterator<Item = S>) -> Self {
        let members = members.into_iter().map(|path| path.as_ref().display().to_string()).collect();
        Self { name: unique_name(), netns: None, interfaces: Vec::new(), members }
    }

    /// An array over AoE devices found on `interface` of `netns`.
    pub fn aoe<S: AsRef<Path>>(netns: &'a NetNs, interface: &str, members: impl IntoIterator<Item = S>) -> Self {
        Self { netns: Some(netns), interfaces: vec![interface.to_owned()], ..Self::local(members) }
    }

    /// The same members under a name of the caller's, from [`unique_name`].
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// The same array with other members: one left out, or one in another place.
    #[must_use]
    pub fn with_members<S: AsRef<str>>(&self, members: impl IntoIterator<Item = S>) -> Self {
        Self {
            name: self.name.clone(),
            netns: self.netns,
            interfaces: self.interfaces.clone(),
            members: members.into_iter().map(|m| m.as_ref().to_owned()).collect(),
        }
    }

    /// The members, in the order given.
    pub fn members(&self) -> &[String] {
        &self.members
    }

    /// The array's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn interface_args(&self) -> impl Iterator<Item = &str> {
        self.interfaces.iter().flat_map(|interface| ["-i", interface.as_str()])
    }

    /// Writes the superblocks of a RAID5 over all members.
    pub fn create(&self, extra: &[&str]) {
        self.create_level("5", extra);
    }

    /// Writes the superblocks of an array of this level over all members.
    pub fn create_level(&self, level: &str, extra: &[&str]) {
        let count = self.members.len().to_string();
        binary::etherraid("create")
            .maybe_netns(self.netns)
            .args([&self.name, "-l", level, "-n", &count])
            .args(extra)
            .args(self.interface_args())
            .args(&self.members)
            .ok(START_LIMIT);
    }

    /// Starts serving, without waiting for anything.
    fn spawn(&self, socket: &Path, extra: &[&str]) -> Proc {
        binary::etherraid("run")
            .maybe_netns(self.netns)
            .arg(&self.name)
            .args(self.interface_args())
            .args(&self.members)
            .arg("--nbd")
            .arg(format!("unix:{}", socket.display()))
            .args(extra)
            .spawn()
    }

    /// Assembles and serves, and waits until it does.
    pub fn run(&self, extra: &[&str]) -> Running {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let socket = dir.path().join("nbd.sock");
        let proc = self.spawn(&socket, extra);
        let ready = proc.wait_for_line(READY, START_LIMIT);
        Running { proc, name: self.name.clone(), ready, socket, _dir: dir }
    }

    /// Tries to assemble, expecting a refusal; returns how that ended.
    pub fn run_refused(&self, extra: &[&str]) -> Finished {
        let dir = tempfile::tempdir().expect("a temporary directory");
        self.spawn(&dir.path().join("nbd.sock"), extra).finish(START_LIMIT)
    }
}

/// Removes control sockets of test processes that are dead.
fn sweep() {
    let Ok(entries) = std::fs::read_dir(CONTROL_DIR) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let stem = name.to_str().and_then(|n| n.split('.').next());
        let dead = stem.and_then(netns::owner).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        if dead {
            // Another test process may sweep the same socket at the same time.
            let _gone = std::fs::remove_file(entry.path());
        }
    }
}

/// An array that is being served.
pub struct Running {
    proc: Proc,
    name: String,
    /// The line that told that it serves.
    ready: String,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Running {
    /// The NBD socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Where it says that it serves, as URIs: the socket, and what more was asked for.
    pub fn uris(&self) -> Vec<String> {
        self.ready.split_whitespace().filter(|word| word.starts_with("nbd")).map(str::to_owned).collect()
    }

    /// Waits for a line of its log with this text.
    pub fn log_line(&self, text: &str) -> String {
        self.proc.wait_for_line(text, COMMAND_LIMIT)
    }

    /// Process id of `etherraid run`.
    pub fn pid(&self) -> u32 {
        self.proc.pid()
    }

    fn command(&self, command: &str, args: &[&str]) -> Finished {
        binary::etherraid(command).arg(&self.name).args(args).finish(COMMAND_LIMIT)
    }

    /// What `detail --json` says.
    pub fn detail(&self) -> Detail {
        let text = self.command("detail", &["--json"]).ok();
        match serde_json::from_str(&text) {
            Ok(value) => Detail(value),
            Err(error) => panic!("`detail --json` prints no JSON: {error}\n{text}"),
        }
    }

    /// Waits until `detail` satisfies `holds`, and returns it.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Detail) -> bool) -> Detail {
        let mut last = None;
        let found = wait::try_until(what, STATE_LIMIT, || {
            let detail = self.detail();
            let held = holds(&detail);
            last = Some(detail.0.clone());
            held.then_some(detail)
        });
        match found {
            Ok(detail) => detail,
            Err(text) => panic!("{text}; last detail: {}\n{}", last.unwrap_or_default(), self.proc.tail()),
        }
    }

    /// Waits until no member is missing and no resync or rebuild runs.
    pub fn wait_in_sync(&self) -> Detail {
        self.wait_until("in sync and idle", |d| d.degraded() == 0 && d.is_idle())
    }

    /// Adds a member.
    pub fn add(&self, member: &str) {
        self.command("add", &[member]).ok();
    }

    /// Marks a member faulty.
    pub fn fail(&self, member: &str) {
        self.command("fail", &[member]).ok();
    }

    /// Removes a faulty member or a spare.
    pub fn remove(&self, member: &str) {
        self.command("remove", &[member]).ok();
    }

    /// Stops it by `etherraid stop` and expects exit status 0 of both.
    pub fn stop(mut self) {
        self.command("stop", &[]).ok();
        let status = self.wait_exit();
        assert_eq!(status.code(), Some(0), "{}", self.proc.tail());
    }

    /// Sends SIGTERM.
    pub fn sigterm(&self) {
        self.proc.signal(Signal::TERM);
    }

    /// Kills it at once, as a crash of the host would.
    pub fn sigkill(mut self) {
        self.proc.signal(Signal::KILL);
        self.wait_exit();
    }

    /// Waits for its end.
    pub fn wait_exit(&mut self) -> ExitStatus {
        match self.proc.wait(STATE_LIMIT) {
            Some(status) => status,
            None => panic!("`etherraid run` does not end\n{}", self.proc.tail()),
        }
    }

    /// Resident set size in bytes.
    pub fn rss_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let text = text.unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    }
}

/// The state that `detail --json` prints: md's words, as in sysfs.
#[derive(Debug)]
pub struct Detail(pub Value);

impl Detail {
    fn text(&self, key: &str) -> &str {
        match self.0.get(key).and_then(Value::as_str) {
            Some(text) => text,
            None => panic!("`detail --json` has no text `{key}`: {}", self.0),
        }
    }

    /// `clean`, `active`, `suspended` and so on.
    pub fn array_state(&self) -> &str {
        self.text("array_state")
    }

    /// mdadm's State line: `clean, degraded, recovering`.
    pub fn state(&self) -> &str {
        self.text("state")
    }

    /// `idle`, `resync`, `recover`.
    pub fn sync_action(&self) -> &str {
        self.text("sync_action")
    }

    /// What ran last, since the array was assembled: `resync`, `recover` and so on.
    pub fn last_sync_action(&self) -> Option<&str> {
        self.0.get("last_sync_action").and_then(Value::as_str)
    }

    /// Members that are not in sync.
    pub fn degraded(&self) -> u64 {
        match self.0.get("degraded").and_then(Value::as_u64) {
            Some(count) => count,
            None => panic!("`detail --json` has no number `degraded`: {}", self.0),
        }
    }

    /// Sectors of each member that the sync work under way has done; 0 when none is.
    pub fn sync_done_sectors(&self) -> u64 {
        self.0.pointer("/sync/done_sectors").and_then(Value::as_u64).unwrap_or(0)
    }

    /// The state of each slot, in mdadm's words.
    pub fn slots(&self) -> Vec<&str> {
        let devices = self.0.get("devices").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let slots = devices.iter().filter(|device| device.get("raid_device").is_some_and(Value::is_number));
        slots.map(|device| device.get("state").and_then(Value::as_str).unwrap_or("no state")).collect()
    }

    /// Whether neither resync nor rebuild runs.
    pub fn is_idle(&self) -> bool {
        self.sync_action() == "idle"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_have_names_of_their_own_and_keep_them() {
        let a = Spec::local(["/a", "/b", "/c"]);
        let b = Spec::local(["/a", "/b", "/c"]);
        assert_ne!(a.name(), b.name());
        assert_eq!(netns::owner(a.name()), Some(std::process::id()));
        let fewer = a.with_members(["/a", "/c"]);
        assert_eq!(fewer.name(), a.name());
        assert_eq!(fewer.members(), ["/a", "/c"]);
    }

    #[test]
    fn detail_is_read_by_mds_words() {
        let text = r#"{"array_state":"clean","state":"clean, degraded","sync_action":"idle","degraded":1}"#;
        let detail = Detail(serde_json::from_str(text).unwrap());
        assert_eq!(detail.array_state(), "clean");
        assert_eq!(detail.state(), "clean, degraded");
        assert_eq!((detail.degraded(), detail.is_idle()), (1, true));
        assert_eq!(detail.sync_done_sectors(), 0);
        let text = r#"{"sync":{"done_sectors":7},"devices":[
            {"raid_device":0,"state":"active sync"},{"raid_device":1,"state":"removed"},{"raid_device":null,"state":"spare"}]}"#;
        let detail = Detail(serde_json::from_str(text).unwrap());
        assert_eq!(detail.sync_done_sectors(), 7);
        assert_eq!(detail.slots(), ["active sync", "removed"]);
    }

    #[test]
    #[should_panic(expected = "no text `array_state`")]
    fn a_missing_field_is_named() {
        Detail(serde_json::json!({"degraded": 0})).array_state();
    }
}
