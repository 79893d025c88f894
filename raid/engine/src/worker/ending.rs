//! Ends of member requests, and what failures do to runs and reads.
//!
//! A failed read makes the run plan again once its other reads are in: a medium error marks the block as bad (it is rebuilt from the
//! others and written again), any other failure means not to read that member. Once writes have left, what they write is fixed: a member
//! whose write fails is reported, and the run ends when a view says that it is absent.

use raid_core::units::MemberIndex;

use super::io::{Io, Whose};
use super::run::Phase;
use super::{Effects, Worker, needs_mark};
use crate::member::{Done, MemberOp};
use crate::message::{AnsweredBy, IoStatus, MemberHandle, MemberState, Report};

impl Worker {
    /// A member request has ended.
    pub(super) fn member_done(&mut self, done: Done, effects: &mut Effects) {
        let mut at = self.ios.end(done.id);
        let merged = self.ios.is_merged(at);
        let judged = self.judged(at, &done, effects);
        while let Some(io) = self.ios.next_ended(&mut at) {
            if let Some(until) = done.closed_until {
                self.close_range(&io, until);
            }
            let mut status = judged;
            if merged && matches!(status, IoStatus::Medium | IoStatus::Failed) {
                if self.may_send(io.handle, io.op) {
                    self.send_alone(&io);
                    continue;
                }
                // Which of them failed is not known and cannot be found out now.
                status = IoStatus::Cancelled;
            }
            match io.whose {
                Whose::PartRead(part) => self.part_read_done(part, io.handle, status, effects),
                Whose::RunRead(run, member) => {
                    self.run_read_done(run, member, io.handle, status, effects);
                }
                Whose::RunWrite(run, member) => {
                    self.run_write_done(run, member, io.handle, status, effects);
                }
                Whose::Flush => self.flush_done(io.handle, status, effects),
            }
        }
    }

    /// How a request counts, given which start of the device answered it: one of a start that the view does not go on was not carried out, as what
    /// it read may be older than what was acknowledged, and what it wrote may be lost.
    fn judged(&self, io: u32, done: &Done, effects: &mut Effects) -> IoStatus {
        let handle = self.ios.handle(io);
        let place = self.view.members.iter().find(|m| m.handle == handle && m.state != MemberState::Absent);
        let Some((boot, place)) = done.boot.zip(place) else {
            return done.status;
        };
        match place.boots.judge(boot) {
            AnsweredBy::Later => {
                effects.reports.push(Report::MemberBoot { handle, boot });
                IoStatus::Restarted
            }
            // The array has decided: it is done anew.
            AnsweredBy::Earlier => IoStatus::Cancelled,
            AnsweredBy::This if done.status == IoStatus::Restarted => IoStatus::Cancelled,
            AnsweredBy::This => done.status,
        }
    }

    /// Copies of the write may be in the network until then: its region stays ours.
    fn close_range(&mut self, io: &Io, until: std::time::Duration) {
        let Whose::RunWrite(run, _) = io.whose else {
            return;
        };
        let region = self.regions.of(self.runs[run].place.stripe);
        let owned = self.owned.get_mut(&u64::from(region.0)).expect("a run's region is owned");
        owned.closed_until = owned.closed_until.max(until);
    }

    /// A merged request failed: each of its ios goes again by itself, so that only what is bad fails.
    fn send_alone(&mut self, io: &Io) {
        match io.whose {
            Whose::PartRead(id) => {
                let piece = self.parts[id].part.piece;
                let io = Io::new(io.whose, io.handle, io.op, io.lba, io.sectors).alone();
                self.ios.send(io, std::iter::once(piece));
            }
            Whose::RunRead(run, member) | Whose::RunWrite(run, member) => {
                self.runs[run].outstanding -= 1;
                self.send(run, member, io.op, true);
            }
            Whose::Flush => unreachable!("flushes are not merged"),
        }
    }

    /// Tells the array of a member that answers with errors, unless it knows.
    fn report_error(&mut self, handle: MemberHandle, status: IoStatus, effects: &mut Effects) {
        if self.is_present(handle) {
            effects.reports.push(Report::MemberError { handle, status });
        }
    }

    fn part_read_done(&mut self, id: u32, handle: MemberHandle, status: IoStatus, effects: &mut Effects) {
        match status {
            IoStatus::Ok => return self.end_part(id, effects),
            IoStatus::Medium | IoStatus::Cancelled | IoStatus::Restarted => {}
            status => self.report_error(handle, status, effects),
        }
        // The stripe's run reads it from the others; a medium error shows there again and is mended there.
        self.enqueue(id);
    }

    fn run_read_done(
        &mut self,
        id: u32,
        member: MemberIndex,
        handle: MemberHandle,
        status: IoStatus,
        effects: &mut Effects,
    ) {
        let present = self.is_present(handle);
        let run = &mut self.runs[id];
        run.outstanding -= 1;
        run.replan |= !status.is_ok();
        match status {
            IoStatus::Ok | IoStatus::Cancelled => {}
            IoStatus::Medium => run.bad.insert(member),
            IoStatus::Restarted => {
                run.avoid.insert(member);
                run.doubted.push((handle, self.view.members[member.index()].boots.now()));
            }
            status if present => {
                run.avoid.insert(member);
                effects.reports.push(Report::MemberError { handle, status });
            }
            _ => {}
        }
        if self.runs[id].outstanding == 0 {
            self.reads_done(id, effects);
        }
    }

    fn run_write_done(
        &mut self,
        id: u32,
        member: MemberIndex,
        handle: MemberHandle,
        status: IoStatus,
        effects: &mut Effects,
    ) {
        let present = self.is_present(handle);
        let run = &mut self.runs[id];
        run.outstanding -= 1;
        if !status.is_ok() {
            run.missed.insert(member);
            // Of a device that is absent by now the array has recorded that it misses writes.
            if matches!(status, IoStatus::Cancelled | IoStatus::Gone | IoStatus::Restarted) {
                // A member that is gone, or was restarted, may keep its place: then it gets what it missed.
                run.resend.insert(member);
            }
            if status == IoStatus::Restarted {
                run.doubted.push((handle, self.view.members[member.index()].boots.now()));
                if self.runs[id].outstanding == 0 {
                    self.writes_done(id, effects);
                }
                return;
            }
            if status == IoStatus::Gone && present {
                effects.reports.push(Report::MemberError { handle, status });
            } else if status != IoStatus::Cancelled && present {
                run.failed.push(handle);
                effects.reports.push(Report::MemberError { handle, status });
            }
        }
        if self.runs[id].outstanding == 0 {
            self.writes_done(id, effects);
        }
    }

    /// All writes have ended: the run ends, or waits until the members that missed theirs are known to be absent.
    pub(super) fn writes_done(&mut self, id: u32, effects: &mut Effects) {
        if self.runs[id].missed.is_empty() {
            return self.finish(id, IoStatus::Ok, effects);
        }
        let view = std::sync::Arc::clone(&self.view);
        let run = &mut self.runs[id];
        for member in run.resend {
            if view.members[member.index()].state == MemberState::Absent {
                run.resend.remove(member);
            }
        }
        let waits = !run.failed.is_empty() || !run.doubted.is_empty();
        let resend = run.resend;
        if run.failed.is_empty() && resend.is_empty() {
            return self.finish(id, IoStatus::Ok, effects);
        }
        if view.abandon {
            return self.finish(id, IoStatus::Stopped, effects);
        }
        if view.read_only {
            return self.finish(id, IoStatus::ReadOnly, effects);
        }
        let may = |m: MemberIndex| self.may_send(view.members[m.index()].handle, MemberOp::Write);
        if waits || !resend.iter().all(may) {
            self.held.push(id);
            return;
        }
        let run = &mut self.runs[id];
        run.resend = raid_core::units::MemberSet::EMPTY;
        run.missed = run.missed.minus(resend);
        for member in resend {
            self.send(id, member, MemberOp::Write, true);
        }
    }

    /// The run has ended: its pages, its lock and its parts go.
    pub(super) fn finish(&mut self, id: u32, status: IoStatus, effects: &mut Effects) {
        let run = &mut self.runs[id];
        assert_eq!(run.outstanding, 0, "a run ends with nothing outstanding");
        if status.is_ok() && run.leaves_blocks() && run.generation == self.view.generation {
            let kept = self.cache.keep(run, &self.pages, &self.slab);
            if kept {
                let region = u64::from(self.regions.of(run.place.stripe).0);
                self.owned.get_mut(&region).expect("a run's region is owned").cached = true;
            }
        }
        run.give_pages(&mut self.pages);
        if status.is_ok() && run.phase == Phase::Writing {
            let sectors = run.sectors;
            for member in run.bad.intersection(run.write).minus(run.missed) {
                effects.reports.push(Report::Corrected { member, sectors });
            }
        }
        if run.needs_mark() {
            self.last_write = self.now;
        }
        let (entry, mismatches) = (run.place.entry, run.mismatches);
        let mut parts = std::mem::take(&mut run.parts);
        self.unlock(entry, id);
        for part in parts.drain(..) {
            let slot = &mut self.parts[part];
            slot.status = slot.status.and(status);
            slot.mismatches += mismatches;
            slot.runs_left -= 1;
            if slot.runs_left == 0 {
                if needs_mark(slot.part.op) {
                    self.writes_pending -= 1;
                }
                self.end_part(part, effects);
            }
        }
        // The vector keeps its room for the slot's next run.
        self.runs[id].parts = parts;
        self.runs.close(id);
    }
}
