//! Runs from start to end: plan, read, compute, write, finish; and what failures on the way do.
//!
//! A failed read makes the run plan again once its other reads are in: a medium error marks the block as bad (it is rebuilt from the
//! others and written again), any other failure means not to read that member. Once writes have left, the outcome is fixed: a member whose
//! write fails is reported, and the run ends when a view says that it is absent.

use raid_core::plan::{self, Ask, Method, ParityWork, Plan, SyncAsk, SyncPlan};
use raid_core::units::{MemberIndex, MemberSet, Sectors};

use super::io::{Io, Whose};
use super::run::{Kind, Phase, Planned};
use super::{Effects, Worker};
use crate::member::{Done, MemberOp};
use crate::message::{IoStatus, MemberHandle, MemberState, PartOp, Report};

impl Worker {
    /// Plans the run under the present view and sends its first requests, or holds it.
    pub(super) fn start(&mut self, id: u32, effects: &mut Effects) {
        let run = &mut self.runs[id];
        debug_assert!(run.outstanding == 0 && run.phase == Phase::Held);
        run.replan = false;
        let (stripe, from, sectors, kind, writes) =
            (run.stripe, run.from, run.sectors, run.kind, run.writes());
        let (readable, writable, silent) = self.standing(stripe, from, sectors);
        if writes && self.must_hold_writes(effects) {
            return self.hold(id, effects);
        }
        let run = &self.runs[id];
        let readable = readable.minus(run.bad).minus(run.avoid);
        let parity = self.geometry.parity_member(stripe);
        let data = self.geometry.data_members(stripe);
        let end = self.geometry.member_sector(stripe) + Sectors(u64::from(from + sectors));
        let given = if kind == Kind::Write {
            run.given
        } else {
            MemberSet::EMPTY
        };
        let want = if kind == Kind::Rebuild {
            run.given
        } else {
            MemberSet::EMPTY
        };
        let planned = match kind {
            Kind::Sync(kind) => plan::sync(&SyncAsk {
                data,
                parity,
                readable,
                writable,
                held: MemberSet::EMPTY,
                kind,
            })
            .map(Planned::Sync),
            Kind::Write | Kind::Rebuild => plan::plan(&Ask {
                data,
                parity,
                readable,
                writable,
                held: MemberSet::EMPTY,
                overwrite: given,
                partial: MemberSet::EMPTY,
                want,
                parity_trusted: end <= self.view.parity_trusted_below,
                rmw_level: self.view.rmw_level,
            })
            .map(Planned::Data),
        };
        match planned {
            Ok(planned) if write_set(&planned, &self.runs[id].bad).intersects(silent) => {
                self.runs[id].planned = Some(planned);
                self.hold(id, effects);
            }
            Ok(planned) => self.start_planned(id, planned, effects),
            // A second view may help: the array is told of every failure, and members that are silent may answer again.
            Err(_)
                if self.view.suspended || !silent.is_empty() || !self.runs[id].avoid.is_empty() =>
            {
                self.hold(id, effects);
            }
            Err(_) => self.finish(id, IoStatus::Failed, effects),
        }
    }

    /// Whether writes must wait for a view; asks the array for the dirty mark if that is why.
    fn must_hold_writes(&mut self, effects: &mut Effects) -> bool {
        if !self.may_write && !self.want_write_sent && !self.view.suspended {
            self.want_write_sent = true;
            effects.reports.push(Report::WantWrite);
        }
        self.view.suspended || !self.may_write
    }

    fn hold(&mut self, id: u32, effects: &mut Effects) {
        if self.view.abandon {
            return self.finish(id, IoStatus::Stopped, effects);
        }
        self.held.push(id);
    }

    /// Takes the pages and sends the reads; with nothing to read goes on at once.
    fn start_planned(&mut self, id: u32, planned: Planned, effects: &mut Effects) {
        let parity = self.geometry.parity_member(self.runs[id].stripe);
        let blocks = blocks_needed(&planned, parity);
        let run = &mut self.runs[id];
        run.planned = Some(planned);
        if !run.take_pages(blocks, &mut self.pages) {
            self.starved.push_back(id);
            return;
        }
        run.phase = Phase::Reading;
        self.count(&planned);
        let read = match planned {
            Planned::Data(plan) => plan.read,
            Planned::Sync(plan) => plan.read,
        };
        for member in read {
            self.send(id, member, MemberOp::Read, false);
        }
        if read.is_empty() {
            self.reads_done(id, effects);
        }
    }

    fn count(&mut self, planned: &Planned) {
        let Planned::Data(plan) = planned else { return };
        match plan.method {
            Method::Full => self.counters.runs_full += 1,
            Method::Rmw => self.counters.runs_rmw += 1,
            Method::Rcw | Method::NoParity => self.counters.runs_rcw += 1,
            Method::Reconstruct => self.counters.runs_reconstruct += 1,
            Method::Read => {}
        }
    }

    /// Runs that waited for pages, oldest first, as far as the pages reach.
    pub(super) fn start_starved(&mut self, effects: &mut Effects) {
        for _ in 0..self.starved.len() {
            let Some(id) = self.starved.pop_front() else {
                return;
            };
            let before = self.starved.len();
            // The view may have changed while the run waited: plan again.
            self.start(id, effects);
            if self.starved.len() > before {
                // Still no pages: it goes back to the front, so that nobody overtakes for ever.
                let id = self.starved.pop_back().expect("just pushed");
                self.starved.push_front(id);
                return;
            }
        }
    }

    /// Sends one member's block of the run.
    fn send(&mut self, id: u32, member: MemberIndex, op: MemberOp, alone: bool) {
        let place = self.view.members[member.index()];
        let run = &mut self.runs[id];
        run.outstanding += 1;
        let base = self.geometry.member_sector(run.stripe);
        let lba = base + Sectors(place.data_offset.0 + u64::from(run.from));
        let whose = if op == MemberOp::Read {
            Whose::RunRead(id, member)
        } else {
            Whose::RunWrite(id, member)
        };
        let io = Io::new(whose, place.handle, op, lba, run.sectors);
        let io = if alone { io.alone() } else { io };
        let run = &self.runs[id];
        if op == MemberOp::Write && run.kind == Kind::Write && run.given.contains(member) {
            self.ios.send(io, run.given_pieces(member));
        } else {
            self.ios.send(io, run.block(member, &self.pages));
        }
    }

    /// A member request has ended.
    pub(super) fn member_done(&mut self, done: Done, effects: &mut Effects) {
        let mut chain = std::mem::take(&mut self.chain);
        self.ios.end(done.id, &mut chain);
        let merged = chain.len() > 1;
        for io in chain.drain(..) {
            if let Some(until) = done.closed_until {
                self.close_range(&io, until);
            }
            if merged && matches!(done.status, IoStatus::Medium | IoStatus::Failed) {
                self.send_alone(&io);
                continue;
            }
            match io.whose {
                Whose::PartRead(part) => self.part_read_done(part, io.handle, done.status, effects),
                Whose::RunRead(run, member) => {
                    self.run_read_done(run, member, io.handle, done.status, effects)
                }
                Whose::RunWrite(run, member) => {
                    self.run_write_done(run, member, io.handle, done.status, effects)
                }
                Whose::Flush => self.flush_done(io.handle, done.status, effects),
            }
        }
        self.chain = chain;
    }

    /// Copies of the write may be in the network until then: its region stays ours.
    fn close_range(&mut self, io: &Io, until: std::time::Duration) {
        let Whose::RunWrite(run, _) = io.whose else {
            return;
        };
        let region = self.regions.of(self.runs[run].stripe);
        let owned = self
            .owned
            .get_mut(&u64::from(region.0))
            .expect("a run's region is owned");
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

    fn part_read_done(
        &mut self,
        id: u32,
        handle: MemberHandle,
        status: IoStatus,
        effects: &mut Effects,
    ) {
        match status {
            IoStatus::Ok => return self.end_part(id, effects),
            IoStatus::Medium | IoStatus::Cancelled => {}
            status => effects.reports.push(Report::MemberError { handle, status }),
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
        let run = &mut self.runs[id];
        run.outstanding -= 1;
        match status {
            IoStatus::Ok => {}
            IoStatus::Medium => {
                run.bad.insert(member);
                run.replan = true;
            }
            IoStatus::Cancelled => run.replan = true,
            status => {
                run.avoid.insert(member);
                run.replan = true;
                effects.reports.push(Report::MemberError { handle, status });
            }
        }
        if self.runs[id].outstanding == 0 {
            self.reads_done(id, effects);
        }
    }

    /// All reads have ended: compute and write, or plan again.
    fn reads_done(&mut self, id: u32, effects: &mut Effects) {
        let run = &mut self.runs[id];
        let stripe = run.stripe;
        if run.replan {
            run.give_pages(&mut self.pages);
            run.phase = Phase::Held;
            self.touch(stripe);
            return self.start(id, effects);
        }
        let all = self.geometry.all_members();
        let parity = self.geometry.parity_member(stripe);
        let send = run.compute(all, parity, &self.pages, &self.slab);
        run.phase = Phase::Writing;
        let planned = run.planned.expect("planned before the reads");
        let write = if send {
            write_set(&planned, &run.bad)
        } else {
            MemberSet::EMPTY
        };
        // What arrived while the reads were out may now be planned.
        self.touch(stripe);
        for member in write {
            self.send(id, member, MemberOp::Write, false);
        }
        if write.is_empty() {
            self.finish(id, IoStatus::Ok, effects);
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
        let run = &mut self.runs[id];
        run.outstanding -= 1;
        match status {
            IoStatus::Ok => {}
            // Cancelled only because the member is absent by now, or the array is abandoned.
            IoStatus::Cancelled => run.blocked.insert(member),
            status => {
                run.blocked.insert(member);
                effects.reports.push(Report::MemberError { handle, status });
            }
        }
        if self.runs[id].outstanding == 0 {
            self.writes_done(id, effects);
        }
    }

    /// All writes have ended: the run ends, or waits until the members that missed theirs are known to be absent.
    pub(super) fn writes_done(&mut self, id: u32, effects: &mut Effects) {
        let view = &self.view;
        let absent = |m: MemberIndex| view.members[m.index()].state == MemberState::Absent;
        if self.runs[id].blocked.iter().all(absent) {
            return self.finish(id, IoStatus::Ok, effects);
        }
        if self.view.abandon {
            return self.finish(id, IoStatus::Stopped, effects);
        }
        self.held.push(id);
    }

    /// The run has ended: its pages, its lock and its parts go.
    pub(super) fn finish(&mut self, id: u32, status: IoStatus, effects: &mut Effects) {
        let run = &mut self.runs[id];
        run.give_pages(&mut self.pages);
        if status.is_ok() && !matches!(run.kind, Kind::Sync(_)) {
            let sectors = run.sectors;
            for member in run.bad.minus(run.blocked) {
                effects.reports.push(Report::Corrected { member, sectors });
            }
        }
        if run.kind != Kind::Rebuild {
            self.last_write = self.now;
        }
        let (stripe, mismatches) = (run.stripe, run.mismatches);
        let mut parts = std::mem::take(&mut run.parts);
        let entry = &mut self.stripe_pool[self.stripes[&stripe.0]];
        entry.active.retain(|r| *r != id);
        self.touch(stripe);
        for part in parts.drain(..) {
            let slot = &mut self.parts[part];
            slot.status = slot.status.and(status);
            slot.mismatches += mismatches;
            slot.runs_left -= 1;
            if slot.runs_left == 0 {
                if slot.part.op != PartOp::Read {
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

/// Blocks that need pages: all that are read or computed.
fn blocks_needed(planned: &Planned, parity: MemberIndex) -> MemberSet {
    match planned {
        Planned::Data(Plan {
            read,
            rebuild,
            parity: work,
            ..
        }) => {
            let computed = if *work == ParityWork::None {
                MemberSet::EMPTY
            } else {
                MemberSet::of(parity)
            };
            rebuild.map_or(*read, |m| read.with(m)).union(computed)
        }
        Planned::Sync(SyncPlan { read, rebuild, .. }) => rebuild.map_or(*read, |m| read.with(m)),
    }
}

/// Blocks to be written. A block that gave a medium error and was rebuilt is written again as well.
fn write_set(planned: &Planned, bad: &MemberSet) -> MemberSet {
    match planned {
        Planned::Data(Plan { write, rebuild, .. }) => match rebuild {
            Some(member) if bad.contains(*member) => write.with(*member),
            _ => *write,
        },
        Planned::Sync(SyncPlan { write, .. }) => write.iter().copied().collect(),
    }
}
