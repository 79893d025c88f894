//! What the array says: new views, and the question whether it may be marked clean.

use std::sync::Arc;
use std::time::Duration;

use raid_core::units::{MemberIndex, MemberSet, Sector};

use super::run::Phase;
use super::{Effects, Standing, Worker};
use crate::member::MemberOp;
use crate::message::{IoStatus, MemberHandle, MemberState, Report, ToWorker, View};

/// Which members can be read, written, and are silent, for rows that end at `end` of the data area.
pub(super) fn standing(view: &View, end: Sector) -> Standing {
    let (mut readable, mut writable, mut silent) =
        (MemberSet::EMPTY, MemberSet::EMPTY, MemberSet::EMPTY);
    for (index, member) in view.members.iter().enumerate() {
        let index = MemberIndex(index as u8);
        match member.state {
            MemberState::InSync => readable.insert(index),
            MemberState::Silent => silent.insert(index),
            MemberState::Recovering { below } if end <= below => readable.insert(index),
            MemberState::Recovering { .. } => {}
            MemberState::Absent => continue,
        }
        writable.insert(index);
    }
    (readable, writable, silent)
}

impl Worker {
    pub(super) fn control(&mut self, control: ToWorker, effects: &mut Effects) {
        match control {
            ToWorker::View(view) => self.adopt(view, effects),
            ToWorker::Quiesce { token, idle_for } => {
                let idle = self.is_quiet(idle_for);
                if idle {
                    self.may_write = false;
                    self.want_write_sent = false;
                }
                effects.reports.push(Report::Quiet { token, idle });
            }
        }
    }

    /// Whether no write is here, nor was for that long.
    fn is_quiet(&self, idle_for: Duration) -> bool {
        self.writes_pending == 0 && (!self.may_write || self.now >= self.last_write + idle_for)
    }

    fn adopt(&mut self, view: Arc<View>, effects: &mut Effects) {
        assert!(
            view.generation >= self.view.generation,
            "views arrive in order"
        );
        self.may_write = view.write_ok;
        self.want_write_sent = false;
        self.view = view;
        self.view_done_due = true;
        let state = |handle: MemberHandle| {
            let member = self
                .view
                .members
                .iter()
                .find(|m| m.handle == handle && m.state != MemberState::Absent);
            member.map_or(MemberState::Absent, |m| m.state)
        };
        let abandon = self.view.abandon;
        self.ios.cancel(effects, |io| match state(io.handle) {
            MemberState::Absent => true,
            MemberState::Silent => io.op == MemberOp::Read || abandon,
            MemberState::InSync | MemberState::Recovering { .. } => false,
        });
        for id in std::mem::take(&mut self.held) {
            self.resume(id, effects);
        }
        self.flush_ended(effects);
    }

    /// A held run under a new view.
    fn resume(&mut self, id: u32, effects: &mut Effects) {
        if self.runs[id].phase == Phase::Writing {
            return self.writes_done(id, effects);
        }
        self.runs[id].avoid = MemberSet::EMPTY;
        if self.view.read_only && self.runs[id].writes() {
            return self.finish(id, IoStatus::ReadOnly, effects);
        }
        self.start(id, effects);
    }

    /// Tells the array once nothing is outstanding at members that are absent.
    pub(super) fn report_view_done(&mut self, effects: &mut Effects) {
        if !self.view_done_due {
            return;
        }
        let view = &self.view;
        let absent = |handle: MemberHandle| {
            !view
                .members
                .iter()
                .any(|m| m.handle == handle && m.state != MemberState::Absent)
        };
        if !self.ios.any(|io| absent(io.handle)) {
            self.view_done_due = false;
            effects.reports.push(Report::ViewDone {
                generation: self.view.generation,
            });
        }
    }
}
