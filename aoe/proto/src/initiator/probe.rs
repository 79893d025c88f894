//! Probes of paths: when one is sent, and what its end means.
//!
//! A probe is a read at sector 0 whose request is padded to the length of its reply, so that an answer proves both directions. It
//! looks for the size of frames that a path carries ([`super::payload`]), and it is what makes a path good again that was left. One
//! internal request is under way on a path at a time.

use core::time::Duration;

use super::Initiator;
use super::congestion::Congestion;
use super::frame::Owner;
use super::path::PathState;
use super::payload::Verdict;
use super::types::{DeviceId, Op};

/// How long a probe waits that found no room.
const NO_ROOM: Duration = Duration::from_millis(100);

impl Initiator {
    /// Reads a little over each path of a device that is in use: whether it is still reserved for this host, for one, is told by no other reply of a
    /// device that nobody uses at the time.
    pub fn ask(&mut self, now: Duration, device: DeviceId) {
        let Some(at) = self.index(device) else { return };
        for path in 0..self.devices[at as usize].paths.len() as u8 {
            if self.path(at, path).state == PathState::Up {
                self.path_mut(at, path).payload.doubt(now);
                self.probe_if_due(now, at, path);
            }
        }
    }

    /// Sends the probe that a path wants, if its time has come and nothing else internal is under way there.
    pub(super) fn probe_if_due(&mut self, now: Duration, at: u16, path_index: u8) {
        let path = self.path(at, path_index);
        let due = path.payload.due().is_some_and(|due| due <= now);
        if !due || path.pinned.is_some() || !path.is_usable(now) {
            return;
        }
        let sectors = path.payload.wanted();
        let size = self.devices[at as usize].identity.map_or(0, |identity| identity.sectors);
        // A device smaller than a frame is read as a whole: the request has its full length all the same.
        let length = u64::from(sectors).min(size) as u32;
        let owner = Owner::Probe { path: path_index, sectors };
        if length == 0 || !self.start_internal(at, path_index, owner, Op::Read, length) {
            self.path_mut(at, path_index).payload.postpone(now + NO_ROOM);
        }
    }

    /// A probe was answered: so the path is good, and its size passes.
    pub(super) fn probe_passed(&mut self, now: Duration, at: u16, path_index: u8, sectors: u8) {
        let path = self.path_mut(at, path_index);
        let before = path.payload.sectors();
        let verdict = path.payload.passed(now, sectors);
        if path.payload.sectors() != before {
            path.control.forget();
        }
        let sectors = path.payload.sectors();
        if verdict == Verdict::Fell {
            self.reroute(at, path_index, Some(sectors));
        }
        self.path_up(now, at, path_index);
        self.probe_if_due(now, at, path_index);
        self.wake(at);
    }

    /// No copy of a probe was answered.
    pub(super) fn probe_failed(&mut self, now: Duration, at: u16, path_index: u8, sectors: u8) {
        let path = self.path_mut(at, path_index);
        if path.payload.failed(now, sectors) == Verdict::NoAnswer {
            path.timeouts = path.timeouts.saturating_add(1);
            self.retire_if_lossy(now, at, path_index);
        }
        self.probe_if_due(now, at, path_index);
    }

    /// A probe was answered by an error. What the frames' sizes are concerned that will do: whatever refuses this read may still serve
    /// others. A path that was left stays so, as it was not shown to serve data.
    pub(super) fn probe_refused(&mut self, now: Duration, at: u16, path_index: u8, sectors: u8) {
        if self.path(at, path_index).state == PathState::Up {
            self.probe_passed(now, at, path_index, sectors);
            return;
        }
        let max = self.tunables.rto_bounds().max;
        self.path_mut(at, path_index).hold_on(now, max);
    }
}
