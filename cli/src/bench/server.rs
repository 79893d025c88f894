//! The process of an array that is measured through NBD: found by its control socket, and looked at.

use std::os::fd::AsFd;
use std::time::Duration;

use raid_export::nbd::client::Stream;
use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;

use super::measure::resident;
use super::report::{Row, mean};
use crate::control::client::ControlArgs;
use crate::control::messages::{Counters, Tunable};
use crate::runtime_dir::announced;

/// How long the array may take to answer. It answers at once, however busy it is with data.
const PATIENCE: Duration = Duration::from_secs(5);

/// An array that runs on this host.
#[derive(Debug)]
pub(super) struct ArrayProcess {
    control: ControlArgs,
    pid: Pid,
}

/// What was seen of it at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    counters: Option<Counters>,
    group_thread_cnt: Option<usize>,
    /// Processor time of its threads so far.
    pub(super) cpu: Duration,
    /// Resident size in bytes.
    pub(super) rss: u64,
}

impl ArrayProcess {
    /// The array that runs on this host under this name, and whose NBD server is at the other end of `stream`; else none.
    pub(super) fn find(name: &str, stream: &Stream) -> Option<ArrayProcess> {
        let nbd = match stream {
            Stream::Unix(stream) => Some(socket_peercred(stream.as_fd()).ok()?.pid),
            // An address of this host's on both ends.
            Stream::Tcp(stream) if stream.local_addr().ok()?.ip() == stream.peer_addr().ok()?.ip() => None,
            Stream::Tcp(_) => return None,
        };
        for (named, path) in announced().ok()? {
            let Ok(control) = std::os::unix::net::UnixStream::connect(&path) else { continue };
            let Ok(peer) = socket_peercred(control.as_fd()) else { continue };
            if named == name && nbd.is_none_or(|pid| pid == peer.pid) {
                return Some(ArrayProcess { control: ControlArgs::at(named, path), pid: peer.pid });
            }
        }
        None
    }

    /// How it is now; what it does not tell is left out.
    pub(super) fn look(&self) -> Look {
        let tunables: Vec<Tunable> = self.control.get_within("/tunables", PATIENCE).unwrap_or_default();
        let count = tunables.iter().find(|tunable| tunable.name == "group_thread_cnt");
        Look {
            counters: self.control.get_within("/counters", PATIENCE).ok(),
            group_thread_cnt: count.and_then(|tunable| tunable.value.parse().ok()),
            cpu: self.cpu().unwrap_or_default(),
            rss: resident(self.pid.as_raw_nonzero()),
        }
    }

    /// User and system time.
    fn cpu(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero())).ok()?;
        let ticks = parse_ticks(&stat)?;
        Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }
}

/// The sum of utime and stime, fields 14 and 15 of proc(5)'s `stat`. The second field may hold spaces and parentheses.
fn parse_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(ticks()? + ticks()?)
}

impl Look {
    /// The row with what the array did since `before`.
    pub(super) fn since(&self, before: &Look, row: Row) -> Row {
        let row = Row { group_thread_cnt: self.group_thread_cnt, ..row };
        let (Some(before), Some(after)) = (before.counters, self.counters) else { return row };
        let requests = after.member_requests - before.member_requests;
        let frames = after.frames_answered - before.frames_answered;
        Row {
            member_request_sectors: mean(after.member_sectors - before.member_sectors, requests),
            frame_bytes_mean: mean(after.frame_data_bytes - before.frame_data_bytes, frames),
            retransmits: after.retransmits - before.retransmits,
            ..row
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_process() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 1000 0 0";
        assert_eq!(parse_ticks(stat), Some(300));
        assert_eq!(parse_ticks("7 (x) S 1"), None);
        let own = ArrayProcess {
            control: ControlArgs::at("x".into(), "/nonexistent".into()),
            pid: rustix::process::getpid(),
        };
        let look = own.look();
        assert!(look.rss > 0 && look.counters.is_none());
    }
}
