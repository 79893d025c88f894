//! What the network tests share: a network namespace for one test, veth pairs in it, child processes that end with it.
//!
//! A namespace made here has no name by the time that a test uses it: it vanishes with the last thread, socket and child process
//! in it, however the test ends.

#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod client;

use aoe_proto::wire::MacAddr;
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

static NAMESPACES: AtomicU32 = AtomicU32::new(0);

/// Runs `test` in a network namespace of its own, with a veth pair `ve0`-`ve1` of `mtu`. Says SKIPPED where that can't be done.
pub(crate) fn in_namespace(mtu: u32, test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            if let Err(why) = enter_namespace() {
                println!("SKIPPED: {why}");
                return;
            }
            ip("link set lo up");
            veth_pair("ve0", "ve1", mtu);
            test();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn enter_namespace() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root".to_owned());
    }
    let number = NAMESPACES.fetch_add(1, Ordering::Relaxed);
    let name = format!("er-{}-{number}", std::process::id());
    run_ip(&["netns", "add", &name])?;
    let entered = File::open(format!("/run/netns/{name}"))
        .map_err(|error| format!("opening a network namespace: {error}"))
        .and_then(|file| {
            move_into_thread_name_spaces(file.as_fd(), ThreadNameSpaceType::NETWORK)
                .map_err(|error| format!("entering a network namespace: {error}"))
        });
    run_ip(&["netns", "del", &name])?;
    entered
}

fn run_ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("no ip command: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

/// Runs `ip` in the namespace of this thread.
pub(crate) fn ip(arguments: &str) {
    let arguments: Vec<_> = arguments.split_whitespace().collect();
    if let Err(error) = run_ip(&arguments) {
        panic!("{error}");
    }
}

/// Makes a veth pair, both ends up.
pub(crate) fn veth_pair(a: &str, b: &str, mtu: u32) {
    ip(&format!("link add {a} mtu {mtu} type veth peer name {b} mtu {mtu}"));
    for end in [a, b] {
        // Nothing but AoE is to be on the wire.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6"), "1");
        ip(&format!("link set {end} up"));
    }
}

/// Whether a program can be started; says SKIPPED when not.
pub(crate) fn have(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
        || std::path::Path::new("/usr/sbin").join(program).is_file();
    if !found {
        println!("SKIPPED: {program} is not installed");
    }
    found
}

/// A child process, killed when dropped.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Starts `program` in the namespace of this thread and waits for its first line on standard output.
    pub(crate) fn start(program: &str, arguments: &[&str]) -> (Running, String) {
        let mut child = Command::new(program)
            .args(arguments)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("starting {program}: {error}"));
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).unwrap();
        (Running(child), line)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A locally administered address that ends in `last`.
pub(crate) fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

/// An AoE frame from `src` to `dst`: a request of command 1 (or its reply) with `tag`, `len` bytes long.
pub(crate) fn frame(dst: MacAddr, src: MacAddr, reply: bool, tag: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![0u8; len.max(32)];
    frame[..6].copy_from_slice(&dst.0);
    frame[6..12].copy_from_slice(&src.0);
    frame[12..14].copy_from_slice(&[0x88, 0xA2]);
    frame[14] = if reply { 0x18 } else { 0x10 };
    frame[19] = 1;
    frame[20..24].copy_from_slice(&tag.to_be_bytes());
    for (i, byte) in frame.iter_mut().enumerate().skip(32) {
        *byte = (i as u32 ^ tag) as u8;
    }
    frame
}
