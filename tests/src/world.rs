//! A machine within the machine, for texts that are run as they are printed: README, help texts, the pages of docs/.
//!
//! A [`World`] has its own network, processes, `/tmp`, `/run/etherraid` and named namespaces; what is written to `/etc`, `/usr`, `/var/lib`, `/root`,
//! `/run` or `/dev` stays within it. `etherraid` on its PATH is the binary under test. Dropping it kills all that was started in it.

use crate::binary;
use crate::proc::{Cmd, Finished, Proc};
use std::time::Duration;

/// Where texts are run: an empty directory at first.
pub const DIR: &str = "/mnt/work";
/// Bounds the set-up.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Run as root in namespaces of mounts, processes and networks. `$BIN` is the binary.
const SET_UP: &str = r#"
mount -t tmpfs none /mnt
mkdir -p /mnt/bin /mnt/work /mnt/layers
touch /mnt/bin/etherraid
mount --bind "$BIN" /mnt/bin/etherraid
for dir in etc usr var/lib root run dev; do
  layers=/mnt/layers/${dir//\//-}
  mkdir -p $layers/upper $layers/work
  mount -t overlay -o lowerdir=/$dir,upperdir=$layers/upper,workdir=$layers/work overlay /$dir
done
mkdir -p /run/etherraid /run/netns /etc/etherraid
for dir in /tmp /run/etherraid /run/netns; do mount -t tmpfs none $dir; done
for f in all default; do echo 1 > /proc/sys/net/ipv6/conf/$f/disable_ipv6 || true; done
ip link set lo up
echo the world is there
exec sleep infinity
"#;

/// See the module's text.
pub struct World {
    holder: Proc,
    /// The first process inside.
    inside: String,
}

impl World {
    /// Makes one.
    pub fn new() -> Self {
        let cmd = Cmd::new("unshare").args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        let holder = cmd.args(["bash", "-ec", SET_UP]).env("BIN", binary::path()).spawn();
        holder.wait_for_line("the world is there", START_LIMIT);
        let children = format!("/proc/{0}/task/{0}/children", holder.pid());
        let children = std::fs::read_to_string(children).expect("the kernel tells the children of a process");
        let inside = children.split_whitespace().next().expect("unshare has forked").to_owned();
        Self { holder, inside }
    }

    /// A world with two cables, `eth1` and `eth2`, and at their other ends a shelf that serves e9.0 and on, `count` of them.
    pub fn with_shelf(count: usize) -> Self {
        let world = Self::new();
        for n in [1, 2] {
            world.connect(&format!("disks{n}"), &world, &format!("eth{n}"));
        }
        world.start_shelf(&["disks1", "disks2"], count);
        world
    }

    /// Starts a shelf that serves e9.0 and on, `count` of them, 64 MiB each.
    pub fn start_shelf(&self, interfaces: &[&str], count: usize) {
        let interfaces: String = interfaces.iter().map(|interface| format!(" -i {interface}")).collect();
        let devices: String = (0..count).map(|n| format!(" -d 9.{n}=/mnt/shelf/{n}")).collect();
        let last = count - 1;
        self.ok(&format!("mkdir /mnt/shelf; for n in $(seq 0 {last}); do truncate -s 64M /mnt/shelf/$n; done"));
        self.start(&format!("etherraid shelf{interfaces}{devices}"), &format!("ready: e9.{last} "));
    }

    /// Starts what goes on in the background, and waits for a line with `ready`.
    fn start(&self, text: &str, ready: &str) {
        let log = "/mnt/background.log";
        let wait = format!("tail -n +1 -f {log} | grep -q -m 1 '{ready}'");
        self.sh(&format!(": > {log}\n{text} > {log} 2>&1 &\n{wait}"), START_LIMIT).ok();
    }

    /// Has the array `r5` made over the first `count` devices of the shelf, and run with these options if there are any.
    pub fn make_array(&self, count: usize, run: Option<&str>) {
        let members: String = (0..count).map(|n| format!(" e9.{n}")).collect();
        self.ok(&format!("etherraid create r5 -l 5 -n {count} -c 64K --assume-clean -i eth1{members}"));
        if let Some(options) = run {
            self.start(&format!("etherraid run r5 -i eth1{members} {options}"), "^ready: ");
        }
    }

    /// A cable between two worlds: `own` here, `other` there, both up.
    pub fn connect(&self, own: &str, there: &World, other: &str) {
        let names = ["link", "add", own, "mtu", "9000", "netns", &self.inside];
        let peer = ["type", "veth", "peer", "name", other, "mtu", "9000", "netns", &there.inside];
        Cmd::new("ip").args(names).args(peer).ok(START_LIMIT);
        self.ok(&format!("ip link set {own} up"));
        there.ok(&format!("ip link set {other} up"));
    }

    fn cmd(&self, text: &str) -> Cmd {
        let path = std::env::var("PATH").unwrap_or_default();
        Cmd::new("nsenter")
            .args(["--target", &self.inside, "--mount", "--net", "--pid"])
            .args(["bash", "-c", &format!("cd {DIR}\n{text}")])
            .env("PATH", format!("/mnt/bin:{path}:/usr/sbin:/sbin"))
            .env("HOME", "/root")
    }

    /// Runs a text in bash, as if it were typed.
    pub fn sh(&self, text: &str, limit: Duration) -> Finished {
        self.cmd(text).finish(limit)
    }

    /// Runs a text that must end well and soon; answers with what it prints.
    pub fn ok(&self, text: &str) -> String {
        self.sh(text, START_LIMIT).ok()
    }

    /// Starts a simple command, which goes on until it is told to end, and waits for a line with `ready`. A comment may follow it.
    pub fn serve(&self, text: &str, ready: &str) -> Serving<'_> {
        let proc = self.cmd(&format!("( exec {text}\n) &\necho $! > /mnt/served\nwait $!")).spawn();
        proc.wait_for_line(ready, START_LIMIT);
        Serving { world: self, proc }
    }

    /// The process that holds it, for messages.
    pub fn tail(&self) -> String {
        self.holder.tail()
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

/// What was started by [`World::serve`].
pub struct Serving<'a> {
    world: &'a World,
    proc: Proc,
}

impl Serving<'_> {
    /// Waits for a line with this text.
    pub fn line(&self, text: &str, limit: Duration) -> String {
        self.proc.wait_for_line(text, limit)
    }

    /// Ends it by SIGTERM, which must end it well.
    pub fn end(self) -> Finished {
        self.world.ok("kill -TERM $(cat /mnt/served)");
        self.proc.finish(START_LIMIT)
    }

    /// Waits for its end, which something else has asked for.
    pub fn ends(self) -> Finished {
        self.proc.finish(START_LIMIT)
    }
}

/// The shell blocks of a page: the text between a line with three backquotes and `sh`, and the next with three backquotes.
pub fn shell_blocks(page: &str) -> Vec<String> {
    blocks(page).into_iter().filter(|(kind, _)| kind == "sh").map(|(_, text)| text).collect()
}

/// All fenced blocks of a page, in order: kind and text.
pub fn blocks(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(kind), None) => open = Some((kind.to_owned(), String::new())),
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some((_, text))) => text.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::require;
    use std::path::Path;

    #[test]
    fn blocks_are_found_in_order() {
        let page = "a\n```sh\nb\nc\n```\n```json\n{}\n```\n```sh\nd\n```\n";
        assert_eq!(shell_blocks(page), ["b\nc\n", "d\n"]);
        assert_eq!(blocks(page)[1], ("json".to_owned(), "{}\n".to_owned()));
    }

    #[test]
    fn what_is_done_inside_stays_inside() {
        require!(netns, "nsenter");
        let world = World::new();
        let text = "ip link add inside-only type dummy; touch /etc/inside-only /tmp/inside-only /dev/inside-only; pwd; sleep 600 &";
        assert_eq!(world.ok(text), format!("{DIR}\n"));
        assert!(world.ok("ls /etc/inside-only; ls /sys/class/net; etherraid --version").contains("etherraid "));
        let sleep = world.ok("grep -l sleep.600 /proc/[0-9]*/cmdline -s -a | wc -l");
        assert_ne!(sleep.trim(), "0");
        for path in ["/etc/inside-only", "/tmp/inside-only", "/dev/inside-only", "/sys/class/net/inside-only"] {
            assert!(!Path::new(path).exists(), "{path}");
        }
        let served = world.serve("sh -c 'echo here; exec sleep 600' # sleeps", "here");
        assert!(!served.end().status.success(), "sleep dies of the signal");
        drop(world);
    }
}
