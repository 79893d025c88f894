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
    /// Devices whose flush failed and that are present in the view; the flush ends when there is none.
    pub(super) failed: Vec<MemberHandle>,
    /// Devices that were found restarted, and the start of them that the view went on: the flush waits until the array has decided about them.
    restarted: Vec<(MemberHandle, Option<u32>)>,
    /// Devices that are gone: the flush waits until they are absent, or back.
    gone: Vec<MemberHandle>,
    /// A restarted device stays, or one that was gone is back: the flush is repeated.
    again: bool,
    /// Not every member has carried the flush out.
    is_partial: bool,
}

impl Worker {
    /// Sends a flush if none is out and somebody waits. While the array is suspended the members that are gone cannot be flushed, and
    /// what they were sent may be lost with them: flushes wait as writes do.
    pub(super) fn start_flush(&mut self, effects: &mut Effects) {
        if self.flushes.waiting.is_empty() || !self.flushes.active.is_empty() {
            return;
        }
        if self.view.suspended && !self.view.abandon {
            return;
        }
        std::mem::swap(&mut self.flushes.waiting, &mut self.flushes.active);
        self.flushes.failed.clear();
        self.flushes.restarted.clear();
        self.flushes.gone.clear();
        self.flushes.again = false;
        self.flushes.is_partial = false;
        if self.view.abandon {
            return self.reply_flushed(IoStatus::Stopped, effects);
        }
        for place in &self.view.members {
            if place.state == MemberState::Absent {
                continue;
            }
            self.flushes.outstanding += 1;
            let io = Io::new(Whose::Flush, place.handle, MemberOp::Flush, Sector::ZERO, 0);
            self.ios.send(io, std::iter::empty());
        }
        assert!(self.flushes.outstanding > 0, "an array that is not suspended has members");
    }

    pub(super) fn flush_done(&mut self, handle: MemberHandle, status: IoStatus, effects: &mut Effects) {
        self.flushes.outstanding -= 1;
        self.flushes.is_partial |= !status.is_ok();
        let place = self.view.members.iter().find(|m| m.handle == handle && m.state != MemberState::Absent);
        if let (false, Some(place)) = (status.is_ok(), place) {
            match status {
                // It may come back, and has then still to be flushed.
                IoStatus::Gone => self.flushes.gone.push(handle),
                IoStatus::Restarted => self.flushes.restarted.push((handle, place.boots.now())),
                // An earlier start of it did.
                IoStatus::Cancelled => self.flushes.again = true,
                _ => self.flushes.failed.push(handle),
            }
            if !matches!(status, IoStatus::Cancelled | IoStatus::Restarted) {
                effects.reports.push(Report::MemberError { handle, status });
            }
        }
        self.flush_ended(effects);
    }

    /// When all members have answered, the waiters get their reply once every member that failed is known to be absent, and few
    /// enough are for the others to hold all data.
    pub(super) fn flush_ended(&mut self, effects: &mut Effects) {
        if self.flushes.outstanding > 0 || self.flushes.active.is_empty() {
            return;
        }
        let status = if !self.flushes.is_partial {
            IoStatus::Ok
        } else if self.view.abandon {
            IoStatus::Stopped
        } else if self.view.suspended {
            // It begins again when members are back.
            let Flushes { waiting, active, .. } = &mut self.flushes;
            waiting.append(active);
            return;
        } else if !self.flushes.restarted.is_empty() || !self.flushes.gone.is_empty() {
            return;
        } else if self.flushes.again && self.flushes.failed.is_empty() {
            let Flushes { waiting, active, .. } = &mut self.flushes;
            waiting.append(active);
            return;
        } else if self.flushes.failed.is_empty() {
            IoStatus::Ok
        } else if self.view.read_only {
            IoStatus::Failed
        } else {
            return;
        };
        self.reply_flushed(status, effects);
    }

    /// A view has come: devices that it calls absent are done with, and what it decided of restarted ones is known.
    pub(super) fn flush_sees_view(&mut self) {
        let view = &self.view;
        let place = |h: MemberHandle| view.members.iter().find(|m| m.handle == h && m.state != MemberState::Absent);
        let Flushes { failed, restarted, gone, again, .. } = &mut self.flushes;
        failed.retain(|handle| place(*handle).is_some());
        gone.retain(|handle| match place(*handle).map(|place| place.state) {
            Some(MemberState::InSync | MemberState::Recovering { .. }) => {
                *again = true;
                false
            }
            state => state.is_some(),
        });
        restarted.retain(|(handle, before)| match place(*handle) {
            Some(place) if place.boots.now() != *before => {
                *again = true;
                false
            }
            place => place.is_some(),
        });
    }

    fn reply_flushed(&mut self, status: IoStatus, effects: &mut Effects) {
        let mut active = std::mem::take(&mut self.flushes.active);
        for id in active.drain(..) {
            let slot = &mut self.parts[id];
            slot.status = slot.status.and(status);
            self.end_part(id, effects);
        }
        self.flushes.active = active;
    }
}
