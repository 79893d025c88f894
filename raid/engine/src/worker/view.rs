//! What the array says: new views, and the question whether it may be marked clean.

use std::sync::Arc;
use std::time::Duration;

use raid_core::units::{MemberIndex, MemberSet, Sector};

use super::io::Io;
use super::run::Phase;
use super::running::Queue;
use super::{Effects, Standing, Worker};
use crate::member::MemberOp;
use crate::message::{MemberHandle, MemberState, MemberView, Report, ToWorker, View};

/// Which members can be read, written, and are silent, in the present view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stand {
    in_sync: MemberSet,
    writable: MemberSet,
    silent: MemberSet,
    recovering: Vec<(MemberIndex, Sector)>,
}

impl Stand {
    pub(super) fn of(view: &View) -> Stand {
        let mut stand = Stand::default();
        for (index, member) in view.members.iter().enumerate() {
            let index = MemberIndex(index as u8);
            match member.state {
                MemberState::InSync => stand.in_sync.insert(index),
                MemberState::Silent => stand.silent.insert(index),
                MemberState::Recovering { below } => stand.recovering.push((index, below)),
                MemberState::Absent => continue,
            }
            stand.writable.insert(index);
        }
        stand
    }

    /// The same for rows that end at `end` of the data area.
    pub(super) fn at(&self, end: Sector) -> Standing {
        let mut readable = self.in_sync;
        for (member, below) in &self.recovering {
            if end <= *below {
                readable.insert(*member);
            }
        }
        (readable, self.writable, self.silent)
    }
}

/// How a device stands, whatever its role; one without a role is absent.
fn state_of(view: &View, handle: MemberHandle) -> MemberState {
    let mut members = view.members.iter();
    members.find(|m| m.handle == handle && m.state != MemberState::Absent).map_or(MemberState::Absent, |m| m.state)
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

    /// Whether nothing that needs the dirty mark is here, nor was for that long.
    fn is_quiet(&self, idle_for: Duration) -> bool {
        self.writes_pending == 0 && (!self.may_write || self.now >= self.last_write + idle_for)
    }

    /// Makes a view the present one. What it sets going is done by [`resume_all`](Worker::resume_all), once, under the newest.
    fn adopt(&mut self, view: Arc<View>, effects: &mut Effects) {
        assert!(view.generation >= self.view.generation, "views arrive in order");
        self.may_write = view.write_ok;
        self.want_write_sent = false;
        let stand = Stand::of(&view);
        let less_trusted = view.parity_trusted_below < self.view.parity_trusted_below;
        let stays = |m: &MemberView| m.state != MemberState::Absent;
        let mut places = view.members.iter().zip(&self.view.members);
        let restarted = places.any(|(new, old)| stays(new) && new.handle == old.handle && new.boots != old.boots);
        self.restarts = self.restarts.wrapping_add(u32::from(restarted));
        if restarted {
            // What was read may be gone.
            for (_, run) in self.runs.iter_mut() {
                run.replan |= run.phase == Phase::Reading;
            }
        }
        if stand != self.stand || less_trusted || restarted {
            // What a member holds may no longer be what was sent to it: what is in memory counts no more, and is read again.
            self.cache.clear(&mut self.pages);
            for (_, run) in self.runs.iter_mut() {
                run.replan |= run.phase == Phase::Reading && !run.cached.is_empty();
            }
        }
        self.stand = stand;
        self.view = view;
        self.view_done_due = true;
        self.resume_due = true;
        let (view, abandon) = (&self.view, self.view.abandon);
        // Now, not when their other writes have ended: by then the same device may be back.
        let present = |h: &MemberHandle| state_of(view, *h) != MemberState::Absent;
        for (_, run) in self.runs.iter_mut() {
            run.failed.retain(present);
            run.doubted.retain(|(handle, before)| view.goes_on(*handle) == Some(*before));
        }
        let halted = view.suspended || view.fenced;
        self.ios.cancel(effects, |io| match state_of(view, io.handle) {
            // What has not left is not to leave any more; when writes may leave again, they are sent anew.
            _ if halted && io.op == MemberOp::Write => true,
            MemberState::Absent => true,
            MemberState::Silent => io.op == MemberOp::Read || abandon,
            // The array looks at members no more: nobody would notice that one has fallen silent.
            MemberState::InSync | MemberState::Recovering { .. } => abandon,
        });
        self.flush_sees_view();
    }

    /// What was held under the last view goes on as the newest says.
    pub(super) fn resume_all(&mut self, effects: &mut Effects) {
        if !std::mem::take(&mut self.resume_due) {
            return;
        }
        for id in std::mem::take(&mut self.held) {
            if self.runs[id].phase == Phase::Writing {
                self.writes_done(id, effects);
            } else {
                self.runs[id].avoid = MemberSet::EMPTY;
                self.start(id, Queue::Join, effects);
            }
        }
        self.flush_ended(effects);
    }

    /// Whether the device has a role in the present view.
    pub(super) fn is_present(&self, handle: MemberHandle) -> bool {
        state_of(&self.view, handle) != MemberState::Absent
    }

    /// Whether a request that is made anew may go to the device.
    pub(super) fn may_send(&self, handle: MemberHandle, op: MemberOp) -> bool {
        let stopped = op == MemberOp::Write && (self.view.suspended || self.view.read_only);
        let state = state_of(&self.view, handle);
        !stopped && !matches!(state, MemberState::Absent | MemberState::Silent)
    }

    /// Tells the array once nothing is outstanding at members that are absent.
    pub(super) fn report_view_done(&mut self, effects: &mut Effects) {
        if !self.view_done_due {
            return;
        }
        let view = &self.view;
        let absent = |io: &Io| state_of(view, io.handle) == MemberState::Absent;
        if !self.ios.any(absent) {
            self.view_done_due = false;
            effects.reports.push(Report::ViewDone { generation: self.view.generation });
        }
    }
}
