//! Our own AoE target, `etherraid shelf`.

use crate::binary;
use crate::fault::Faults;
use crate::netns::NetNs;
use crate::proc::Proc;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

const START_LIMIT: Duration = Duration::from_secs(15);
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// A running `etherraid shelf`.
pub struct Shelf {
    proc: Proc,
    members: Vec<String>,
}

impl Shelf {
    /// Serves each file as e`shelf`.N on `interface`, N from 0, and waits until all are ready.
    pub fn start(netns: &NetNs, interface: &str, shelf: u16, files: &[PathBuf], faults: Option<Faults>) -> Self {
        let faults = faults.map(|faults| ["--fault".to_owned(), faults.to_string()]);
        Self::start_with(netns, interface, shelf, files, faults.iter().flatten())
    }

    /// As [`Shelf::start`], with further options.
    pub fn start_with<S: AsRef<OsStr>>(
        netns: &NetNs,
        interface: &str,
        shelf: u16,
        files: &[PathBuf],
        options: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut cmd = binary::etherraid("shelf").netns(netns).args(["-i", interface]);
        let mut members = Vec::new();
        for (slot, file) in files.iter().enumerate() {
            cmd = cmd.arg("-d").arg(format!("{shelf}.{slot}={}", file.display()));
            members.push(format!("e{shelf}.{slot}"));
        }
        let proc = cmd.args(options).spawn();
        for member in &members {
            proc.wait_for_line(member, START_LIMIT);
        }
        Self { proc, members }
    }

    /// Its devices as MEMBER arguments.
    pub fn members(&self) -> &[String] {
        &self.members
    }

    /// Ends it by SIGTERM and returns how it ended.
    pub fn stop(mut self) -> ExitStatus {
        self.proc.signal(Signal::TERM);
        match self.proc.wait(STOP_LIMIT) {
            Some(status) => status,
            None => panic!("the shelf ignores SIGTERM\n{}", self.proc.tail()),
        }
    }

    /// Kills it.
    pub fn kill(mut self) {
        self.proc.signal(Signal::KILL);
        self.proc.wait(STOP_LIMIT);
    }
}
