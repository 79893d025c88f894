//! Timers: retransmission, frames that were overtaken, pauses between frames, silence, giving up, queries, held writes.
//!
//! There is no timer per frame. The frames of a path are in the order of their deadlines, so that only the first one's
//! counts; the same holds for the requests of a device and its clocks. [`Initiator::poll_timeout`] looks at paths and
//! devices, not at frames or requests.

use core::time::Duration;

use super::Initiator;
use super::congestion::Congestion;
use super::device::pending;
use super::discover::PROVE_COPIES;
use super::frame::Owner;
use super::path::{MORE_MAX, Path, PathState};
use super::payload::SAFE;
use super::types::Status;

impl Initiator {
    /// When [`Initiator::handle_timeout`] must be called next. May be in the past, which means at once.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let mut next = self.tag_wait;
        let mut note = |at: Option<Duration>| {
            if let Some(at) = at {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        };
        for device in self.devices.iter().filter(|device| device.open) {
            note(Some(device.next_query));
            note(device.held_until);
            if let Some(oldest) = device.unanswered.front() {
                let since = self.requests[oldest].first_sent;
                let silence = (!device.silent).then(|| self.tunables.silence());
                for length in silence.into_iter().chain(self.tunables.deadsecs()) {
                    note(since.map(|since| since + length));
                }
            }
            for path in &device.paths {
                note(path.hold);
                note(path.paced);
                note(path.suspect);
                if path.pinned.is_none() && path.hold.is_none() && path.is_open() {
                    note(path.payload.due());
                }
                for first in [path.flying.front(), path.flying_slow.front()] {
                    note(first.map(|first| self.frames[first].deadline));
                }
            }
        }
        next
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.tag_wait.is_some_and(|until| until <= now) {
            self.tag_wait = None;
            self.wake_all();
        }
        for at in 0..self.devices.len() as u16 {
            if self.devices[at as usize].open {
                self.device_timeout(now, at);
            }
        }
    }

    fn device_timeout(&mut self, now: Duration, at: u16) {
        for path in 0..self.devices[at as usize].paths.len() as u8 {
            self.path_timeout(now, at, path);
        }
        let device = &self.devices[at as usize];
        if device.held_until.is_some_and(|until| until <= now) {
            self.release_held(now, at);
        }
        if self.oldest_is_past(now, at, self.tunables.deadsecs()) {
            self.give_up(now, at);
        } else if !self.devices[at as usize].silent && self.is_overdue(now, at) {
            self.set_silent(now, at, true);
        }
        if self.devices[at as usize].next_query <= now {
            self.query_device(now, at);
        }
    }

    fn path_timeout(&mut self, now: Duration, at: u16, path_index: u8) {
        for slow in [false, true] {
            loop {
                let path = self.path(at, path_index);
                let list = if slow { path.flying_slow } else { path.flying };
                match list.front() {
                    Some(index) if self.frames[index].deadline <= now => {
                        self.frame_timeout(now, index, slow);
                    }
                    _ => break,
                }
            }
        }
        self.find_overtaken(now, at, path_index);
        let path = self.path_mut(at, path_index);
        let due = |until: &mut Option<Duration>| until.take_if(|until| *until <= now).is_some();
        if due(&mut path.hold) | due(&mut path.paced) {
            self.wake(at);
        }
        self.probe_if_due(now, at, path_index);
    }

    /// Frames that later ones have overtaken, and for which there was patience long enough, are lost.
    pub(super) fn find_overtaken(&mut self, now: Duration, at: u16, path_index: u8) {
        let bounds = self.tunables.rto_bounds();
        if !self.tunables.finds_overtaken() {
            self.path_mut(at, path_index).suspect = None;
            return;
        }
        loop {
            let path = &mut self.devices[at as usize].paths[path_index as usize];
            path.suspect = None;
            let Some(index) = path.sent.front() else {
                return;
            };
            let frame = &self.frames[index];
            let patience = path.patience(bounds);
            if frame.send_number >= path.answered_number {
                // Nothing was sent behind it that could tell, unless one more may be.
                let due = frame.last_sent + 2 * patience * (path.more + 1);
                if path.more == MORE_MAX || path.in_flight < path.control.window() + path.more {
                    return;
                }
                if due > now {
                    path.suspect = Some(due);
                    return;
                }
                path.more += 1;
                self.wake(at);
                continue;
            }
            let due = frame.last_sent + patience;
            if due > now {
                path.suspect = Some(due);
                return;
            }
            let (number, ghost) = (frame.send_number, frame.is_ghost());
            self.count_lost(now, index, |path| path.on_overtaken(number));
            match ghost {
                true => self.free_frame(index),
                false => self.resend(index),
            }
        }
    }

    /// A frame's last copy counts as lost.
    fn frame_timeout(&mut self, now: Duration, index: u32, slow: bool) {
        let frame = &self.frames[index];
        let (at, path_index, copies) = (frame.device, frame.path, frame.copies);
        let (number, request) = (frame.send_number, frame.request);
        let owner = if frame.is_ghost() { None } else { Some(self.requests[request].owner) };
        if let Some(Owner::Probe { sectors, .. }) = owner {
            self.resend(index);
            if copies >= self.path(at, path_index).payload.copies() {
                self.finish(now, request, Status::DeviceGone);
                self.probe_failed(now, at, path_index, sectors);
            }
            return;
        }
        // A flush takes as long as the disk needs: its timeout says nothing about the network.
        if !slow {
            self.count_lost(now, index, |path| path.on_timeout(number));
        }
        if owner.is_none() {
            self.free_frame(index);
        } else {
            self.resend(index);
            let state = self.path(at, path_index).state;
            if matches!(owner, Some(Owner::Prove { .. })) && copies >= PROVE_COPIES {
                self.finish(now, request, Status::DeviceGone);
                if state == PathState::Unproven {
                    self.vacate(now, at, path_index);
                }
                return;
            }
        }
        self.retire_if_lossy(now, at, path_index);
    }

    /// Tells a path of a lost frame; where others get through, it may be that such large ones do not.
    fn count_lost(&mut self, now: Duration, index: u32, tell: impl FnOnce(&mut Path)) {
        let frame = &self.frames[index];
        let (at, path_index) = (frame.device, frame.path);
        let suspicious = self.path(at, path_index).is_suspicious(frame);
        let large = frame.sectors > SAFE;
        tell(self.path_mut(at, path_index));
        if suspicious && (large || self.devices[at as usize].has_other_path(now, path_index)) {
            self.path_mut(at, path_index).payload.doubt(now);
            self.probe_if_due(now, at, path_index);
        }
    }

    /// Whether the oldest unanswered request of a device was first sent `length` ago or earlier.
    fn oldest_is_past(&self, now: Duration, at: u16, length: Option<Duration>) -> bool {
        let oldest = self.devices[at as usize].unanswered.front();
        let since = oldest.and_then(|oldest| self.requests[oldest].first_sent);
        since.zip(length).is_some_and(|(since, length)| since + length <= now)
    }

    /// Whether a request has gone unanswered for `aoe_silence`.
    pub(super) fn is_overdue(&self, now: Duration, at: u16) -> bool {
        self.oldest_is_past(now, at, Some(self.tunables.silence()))
    }

    /// The device became silent, or answers again.
    pub(super) fn set_silent(&mut self, now: Duration, at: u16, silent: bool) {
        let (rediscover, requery) = (self.tunables.rediscover(), self.tunables.requery());
        let device = &mut self.devices[at as usize];
        device.silent = silent;
        (device.next_query, device.query_interval) = if silent { (now, rediscover) } else { (now + requery, requery) };
        self.note_events(at);
    }

    /// Nothing was heard of a device for `aoe_deadsecs`: ends all requests and starts looking for it anew.
    fn give_up(&mut self, now: Duration, at: u16) {
        self.end_all(now, at, Status::DeviceGone);
        for path in 0..self.devices[at as usize].paths.len() as u8 {
            self.vacate(now, at, path);
        }
        let rediscover = self.tunables.rediscover();
        let device = &mut self.devices[at as usize];
        device.identity = None;
        device.silent = false;
        device.told_silent = false;
        device.query_interval = rediscover;
        device.next_query = now;
        device.pending &= !(pending::FOUND | pending::SIZE | pending::DURABILITY);
        self.tell(at, pending::GONE);
    }
}
