//! Tells the service manager how the process stands (sd_notify(3)): ready, alive, stopping.
//!
//! Without `NOTIFY_SOCKET` in the environment nothing is sent. A message that can't be sent is lost: nothing depends on it here.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// It serves; `status` is shown by `systemctl status`.
pub(crate) fn ready(status: &str) {
    send(&format!("READY=1\nSTATUS={}", status.replace('\n', " ")));
}

/// It still answers.
pub(crate) fn alive() {
    send("WATCHDOG=1");
}

/// It has begun to end.
pub(crate) fn stopping() {
    send("STOPPING=1");
}

/// How often the service manager wants to hear that we are alive: half of what it waits for.
pub(crate) fn watchdog() -> Option<Duration> {
    let for_us = |pid: String| pid.parse() == Ok(std::process::id());
    if !std::env::var("WATCHDOG_PID").map_or(true, for_us) {
        return None;
    }
    let micros: u64 = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    (micros > 1).then(|| Duration::from_micros(micros / 2))
}

fn send(message: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::debug!(%error, "NOTIFY_SOCKET");
    }
}
