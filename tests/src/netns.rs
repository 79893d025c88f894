//! Network namespaces, veth pairs, and a bridge as the switch.
//!
//! A [`NetNs`] is named `er-PID-N` after the process that made it. Dropping it removes it with every interface in it; what a
//! killed test left behind is removed by the next test that makes one. Processes of the test enter it by [`crate::proc::Cmd::netns`].

use crate::proc::Cmd;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What names of ours begin with.
pub const PREFIX: &str = "er-";
/// Where iproute2 keeps named namespaces.
const NETNS_DIR: &str = "/run/netns";
const LIMIT: Duration = Duration::from_secs(20);
static NEXT: AtomicU32 = AtomicU32::new(0);
static SWEEP: Once = Once::new();

/// A network namespace that lives as long as this value.
pub struct NetNs {
    name: String,
}

impl NetNs {
    /// Makes an empty namespace, with IPv6 off so that no frame but the test's own is on its links.
    #[expect(clippy::new_without_default, reason = "it changes the machine; a default would hide that")]
    pub fn new() -> Self {
        SWEEP.call_once(|| sweep(Path::new(NETNS_DIR), remove));
        let name = unique_name();
        Cmd::new("ip").args(["netns", "add", &name]).ok(LIMIT);
        let netns = Self { name };
        netns.sh("for f in all default; do echo 1 > /proc/sys/net/ipv6/conf/$f/disable_ipv6 || true; done; ip link set lo up");
        netns
    }

    /// Its name, as `ip netns exec` takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens it, for `setns`.
    pub(crate) fn open(&self) -> File {
        let path = Path::new(NETNS_DIR).join(&self.name);
        match File::open(&path) {
            Ok(file) => file,
            Err(error) => panic!("cannot open namespace {}: {error}", path.display()),
        }
    }

    /// Runs `work` on a thread that is in it: sockets opened there belong to it, and stay usable anywhere.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let netns = self.open();
        let enter = move || {
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(netns.as_fd(), kind).expect("root may enter a namespace");
            work()
        };
        match std::thread::scope(|scope| scope.spawn(enter).join()) {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Runs a shell script in it; panics when that fails.
    pub fn sh(&self, script: &str) -> String {
        Cmd::new("sh").args(["-ec", script]).netns(self).ok(LIMIT)
    }

    /// A cable: two interfaces that see each other's frames, both up.
    pub fn veth(&self, a: &str, b: &str, mtu: u32) {
        self.sh(&format!(
            "ip link add dev {a} mtu {mtu} type veth peer name {b} mtu {mtu}; ip link set {a} up; ip link set {b} up"
        ));
    }

    /// A switch `name` with a cable to each host interface; the switch's end of `h0` is `h0-sw`.
    pub fn switch(&self, name: &str, hosts: &[&str], mtu: u32) {
        self.sh(&format!(
            "ip link add dev {name} mtu {mtu} type bridge stp_state 0 forward_delay 0 mcast_snooping 0; ip link set {name} up"
        ));
        for host in hosts {
            let port = format!("{host}-sw");
            self.veth(host, &port, mtu);
            self.sh(&format!("ip link set {port} master {name}"));
        }
    }

    /// Makes a switch port slow and shallow: `mbit` Mbit/s towards the host, and a queue of `queue_bytes`.
    pub fn shape(&self, port: &str, mbit: u32, queue_bytes: u32) {
        self.sh(&format!("tc qdisc replace dev {port} root tbf rate {mbit}mbit burst 64kb limit {queue_bytes}"));
    }

    /// Pulls (`false`) or plugs (`true`) the cable of an interface.
    pub fn set_link(&self, interface: &str, up: bool) {
        let state = if up { "up" } else { "down" };
        self.sh(&format!("ip link set {interface} {state}"));
    }

    /// The interface's hardware address, as six hex pairs with colons.
    pub fn mac(&self, interface: &str) -> String {
        self.sh(&format!("ip -br link show dev {interface}"))
            .split_whitespace()
            .nth(2)
            .expect("`ip -br link` prints name, state, address")
            .to_owned()
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

fn unique_name() -> String {
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}-{n}", std::process::id())
}

fn remove(name: &str) {
    // Runs in drop, also while panicking: a failure here must not hide the first one.
    let done = Cmd::new("ip").args(["netns", "del", name]).finish(LIMIT);
    if !done.status.success() {
        eprintln!("cannot remove namespace {name}: {}", done.stderr);
    }
}

/// The process that made the namespace or file `name`, when the name is one of ours.
pub(crate) fn owner(name: &str) -> Option<u32> {
    let (pid, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// Calls `remove` for each entry of `dir` whose process is dead.
fn sweep(dir: &Path, mut remove: impl FnMut(&str)) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let dead = owner(name).is_some_and(|pid| !PathBuf::from(format!("/proc/{pid}")).exists());
        if dead {
            remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
