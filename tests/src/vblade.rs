//! Debian's vblade: the AoE target that most users have.
//!
//! One process a device, as vblade wants it. It keeps no memory of requests and has no real flush.

use crate::netns::NetNs;
use crate::proc::{Cmd, Proc};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Buffer count that ours advertise; vblade's own default is 16.
const BUFFER_COUNT: &str = "64";
const START_LIMIT: Duration = Duration::from_secs(10);

/// A running vblade.
pub struct Vblade {
    proc: Proc,
    shelf: u16,
    slot: u8,
    file: PathBuf,
}

impl Vblade {
    /// Serves `file` as e`shelf`.`slot` on `interface`, and waits until it does.
    pub fn start(netns: &NetNs, interface: &str, shelf: u16, slot: u8, file: &Path) -> Self {
        let (shelf_text, slot_text) = (shelf.to_string(), slot.to_string());
        let proc = Cmd::new("vblade")
            .args(["-b", BUFFER_COUNT, &shelf_text, &slot_text, interface])
            .arg(file)
            .netns(netns)
            .spawn();
        proc.wait_for_line(&format!("e{shelf}.{slot}"), START_LIMIT);
        Self { proc, shelf, slot, file: file.to_owned() }
    }

    /// Serves each file on a slot of its own, from slot 0.
    pub fn start_all(netns: &NetNs, interface: &str, shelf: u16, files: &[PathBuf]) -> Vec<Self> {
        let slots = 0..=u8::MAX;
        slots.zip(files).map(|(slot, file)| Self::start(netns, interface, shelf, slot, file)).collect()
    }

    /// Its device as a MEMBER argument: `e9.0`.
    pub fn member(&self) -> String {
        format!("e{}.{}", self.shelf, self.slot)
    }

    /// The file behind it.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Stops it from answering, without ending it.
    pub fn suspend(&self) {
        self.proc.signal(Signal::STOP);
    }

    /// Lets it answer again; frames that its socket kept meanwhile are served first.
    pub fn resume(&self) {
        self.proc.signal(Signal::CONT);
    }

    /// Kills it.
    pub fn kill(mut self) {
        self.proc.signal(Signal::KILL);
        self.proc.wait(START_LIMIT);
    }

    /// Bytes that it has written so far, to file and wire.
    pub fn written_bytes(&self) -> u64 {
        let path = format!("/proc/{}/io", self.proc.pid());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("wchar: "));
        line.and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{pattern, require, wait};

    /// Asks e9.3 for its configuration over a raw socket, and prints the buffer count of the reply. aoeping can't be used: it
    /// waits for ever when a reply has less than Ethernet's 60 bytes, as on veth.
    const QUERY: &str = r#"
import socket, struct, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x88a2)
s.bind(("host", 0x88a2))
s.settimeout(float(sys.argv[1]))
me = s.getsockname()[4]
s.send(b"\xff" * 6 + me + struct.pack(">HBBHBBLHHBBH", 0x88a2, 0x10, 0, 9, 3, 1, 0x80001234, 0, 0, 0, 0, 0))
while True:
    f = s.recv(2048)
    if f[:6] == me and f[14] & 8 and f[20:24] == b"\x80\x00\x12\x34":
        print("buffers", struct.unpack(">H", f[24:26])[0])
        break
"#;

    fn query(netns: &NetNs, seconds: &str) -> Option<String> {
        let done = Cmd::new("python3").args(["-c", QUERY, seconds]).netns(netns).finish(Duration::from_secs(30));
        done.status.success().then_some(done.stdout)
    }

    #[test]
    fn answers_stops_and_dies() {
        require!(netns, "vblade", "python3");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk");
        pattern::blank(&file, 1 << 20).unwrap();
        let netns = NetNs::new();
        netns.veth("host", "disks", 9000);
        let vblade = Vblade::start(&netns, "disks", 9, 3, &file);
        assert_eq!(vblade.member(), "e9.3");

        let before = vblade.written_bytes();
        assert_eq!(query(&netns, "20").as_deref(), Some("buffers 64\n"));
        wait::until("the reply counted", START_LIMIT, || (vblade.written_bytes() > before).then_some(()));
        vblade.suspend();
        assert_eq!(query(&netns, "0.5"), None);
        vblade.resume();
        assert!(query(&netns, "20").is_some());
        vblade.kill();
        assert_eq!(query(&netns, "0.5"), None);
    }
}
