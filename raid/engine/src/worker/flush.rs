//! Flushes of one worker, gathered: one is out at a time, and all that arrive meanwhile share the next.
//!
//! A flush goes to every member that is not absent. All writes replied to before it was submitted, by any worker, were answered
//! by their members, so it covers them. A FUA write waits here for the flush that follows its data.

use raid_core::units::Sector;

use super::io::{Io, Whose};
use super::{Effects, Worker};
use crate::member::MemberOp;
use crate::message::{IoStatus, MemberHandle, MemberState, Report};

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    /// Parts for the next flush.
    pub(super) waiting: Vec<u32>,
    /// Parts of the flush that is out.
    active: Vec<u32>,
    outstanding: u32,
    /// Members whose flush failed; the flush ends when they are absent.
    failed: Vec<MemberHandle>,
}

impl Worker {
    /// Sends a flush if none is out and somebody waits.
    pub(super) fn start_flush(&mut self) {
        if self.flushes.waiting.is_empty() || !self.flushes.active.is_empty() {
            return;
        }
        std::mem::swap(&mut self.flushes.waiting, &mut self.flushes.active);
        self.flushes.failed.clear();
        for place in &self.view.members {
            if place.state == MemberState::Absent {
                continue;
            }
            self.flushes.outstanding += 1;
            let io = Io::new(Whose::Flush, place.handle, MemberOp::Flush, Sector::ZERO, 0);
            self.ios.send(io, std::iter::empty());
        }
        assert!(
            self.flushes.outstanding > 0,
            "an array has members that are not absent"
        );
    }

    pub(super) fn flush_done(
        &mut self,
        handle: MemberHandle,
        status: IoStatus,
        effects: &mut Effects,
    ) {
        self.flushes.outstanding -= 1;
        match status {
            IoStatus::Ok => {}
            IoStatus::Cancelled => self.flushes.failed.push(handle),
            status => {
                self.flushes.failed.push(handle);
                effects.reports.push(Report::MemberError { handle, status });
            }
        }
        if self.flushes.outstanding == 0 {
            self.flush_ended(effects);
        }
    }

    /// All members have answered: the waiters get their reply once every member that failed is known to be absent.
    pub(super) fn flush_ended(&mut self, effects: &mut Effects) {
        if self.flushes.outstanding > 0 || self.flushes.active.is_empty() {
            return;
        }
        let view = &self.view;
        let present = |h: &MemberHandle| {
            view.members
                .iter()
                .any(|m| m.handle == *h && m.state != MemberState::Absent)
        };
        let status = if !self.flushes.failed.iter().any(present) {
            IoStatus::Ok
        } else if self.view.abandon {
            IoStatus::Stopped
        } else {
            return;
        };
        let mut active = std::mem::take(&mut self.flushes.active);
        for id in active.drain(..) {
            let slot = &mut self.parts[id];
            slot.status = slot.status.and(status);
            self.reply(id, effects);
        }
        self.flushes.active = active;
    }
}
