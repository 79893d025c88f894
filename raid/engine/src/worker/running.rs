//! Runs from forming until their requests leave: decide, take pages, read, compute, write.
//!
//! [`Worker::decide`] alone says what a run may do under the present view, when it starts and again, should a new view have come
//! meanwhile, before its writes leave. So a write never leaves on an old view's word.

use raid_core::plan::{self, Ask, Method, ParityWork, Plan, Refusal, SyncAsk, SyncKind, SyncPlan};
use raid_core::units::{MemberIndex, MemberSet, Sectors};

use super::io::{Io, Whose};
use super::run::{Kind, Phase, Planned, Run};
use super::{Effects, Standing, Worker};
use crate::member::MemberOp;
use crate::message::{IoStatus, Report};
use crate::slab::PAGE_SECTORS;

/// No more than this is rebuilt and written again around a sector that cannot be read, as in md. The rest of the block can be read, and
/// where parity does not match, what would be rebuilt is not what was there.
const MEND_SECTORS_MAX: u32 = PAGE_SECTORS;

/// What is to become of a run under the present view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Carry the plan out; these blocks are written in the end.
    Go(Planned, MemberSet),
    /// Wait for another view.
    Hold,
    /// Two halves are to be tried, as some sector could not be read: only what cannot be read itself is rebuilt, and bad sectors of
    /// several members need not be in the same row.
    Split,
    /// It ends like this.
    End(IoStatus),
}

/// Where a run stands that finds too few pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Behind all that wait already.
    Join,
    /// Before them: it has waited.
    Lead,
}

impl Worker {
    /// Starts the run as the present view allows: sends its first requests, holds it, or ends it.
    pub(super) fn start(&mut self, id: u32, queue: Queue, effects: &mut Effects) {
        let run = &mut self.runs[id];
        assert!(run.outstanding == 0 && run.phase == Phase::Held, "a run starts with nothing outstanding");
        run.replan = false;
        run.doubted.retain(|(handle, before)| self.view.goes_on(*handle) == Some(*before));
        run.cached = match run.kind {
            Kind::Write => self.cache.held(run, self.geometry.all_members(), self.regions.of(run.place.stripe)),
            Kind::Rebuild | Kind::Sync(_) => MemberSet::EMPTY,
        };
        match self.decide(id) {
            Verdict::Go(planned, write) => {
                let run = &mut self.runs[id];
                run.planned = Some(planned);
                run.write = write;
                run.generation = self.view.generation;
                self.start_planned(id, planned, queue, effects);
            }
            Verdict::Hold => {
                if self.runs[id].needs_mark() {
                    self.want_write(effects);
                }
                self.held.push(id);
            }
            Verdict::Split => self.split(id, effects),
            Verdict::End(status) => self.finish(id, status, effects),
        }
    }

    /// Whether the run may go on as planned, though there may be a new view.
    pub(super) fn still_stands(&self, id: u32) -> bool {
        let run = &self.runs[id];
        let planned = run.planned.expect("it is under way");
        run.generation == self.view.generation || self.decide(id) == Verdict::Go(planned, run.write)
    }

    fn decide(&self, id: u32) -> Verdict {
        let run = &self.runs[id];
        let view = &self.view;
        if view.abandon {
            return Verdict::End(IoStatus::Stopped);
        }
        if view.read_only && run.is_write() {
            return Verdict::End(IoStatus::ReadOnly);
        }
        if run.is_write() && view.suspended || run.needs_mark() && !self.may_write {
            return Verdict::Hold;
        }
        let standing = self.standing(run.place.stripe, run.end());
        let (readable, _, silent) = standing;
        if !run.bad.is_empty() && run.sectors > MEND_SECTORS_MAX {
            return Verdict::Split;
        }
        // Members whose failure the array does not know yet.
        let failing = readable.intersection(run.avoid);
        match self.plan(id, standing) {
            Ok(Planned::Sync(plan)) if plan == SyncPlan::SKIP && !silent.union(failing).is_empty() => Verdict::Hold,
            Ok(Planned::Sync(SyncPlan::SKIP)) => self.skipped(run.kind, standing),
            // Where parity is not known to be right, what it says of a member that may come back is not to be believed.
            Ok(Planned::Data(Plan { rebuild: Some(member), .. }))
                if !self.is_trusted(run) && silent.union(failing).contains(member) =>
            {
                Verdict::Hold
            }
            Ok(planned) => {
                let write = self.write_set(id, &planned, standing);
                if write.intersects(silent) { Verdict::Hold } else { Verdict::Go(planned, write) }
            }
            Err(_) if view.suspended || !silent.is_empty() => Verdict::Hold,
            Err(_) if !failing.is_empty() && (!view.read_only || !run.doubted.is_empty()) => Verdict::Hold,
            Err(_) if !run.bad.is_empty() && run.sectors > 1 => Verdict::Split,
            Err(_) => Verdict::End(IoStatus::Failed),
        }
    }

    /// How a sync ends whose plan is to do nothing: well if the member to be recovered is right here already. Otherwise a member
    /// that it needs has no place in the view, and nobody may believe that the rows are done.
    fn skipped(&self, kind: Kind, (readable, ..): Standing) -> Verdict {
        match kind {
            Kind::Sync(SyncKind::Recovery(member)) if readable.contains(member) => Verdict::End(IoStatus::Ok),
            _ => Verdict::End(IoStatus::Gone),
        }
    }

    fn plan(&self, id: u32, (readable, writable, _): Standing) -> Result<Planned, Refusal> {
        let run = &self.runs[id];
        let parity = run.place.parity;
        let data = self.geometry.all_members().without(parity);
        let readable = readable.minus(run.bad).minus(run.avoid);
        let held = run.cached;
        let (overwrite, want) = match run.kind {
            Kind::Write => (run.given, MemberSet::EMPTY),
            Kind::Rebuild => (MemberSet::EMPTY, run.given),
            Kind::Sync(kind) => {
                // A block that a check cannot read is rebuilt and written, whatever the check is for.
                let kind = match (kind, run.bad.first()) {
                    (SyncKind::Recovery(_), _) | (_, None) => kind,
                    (_, Some(bad)) => SyncKind::Recovery(bad),
                };
                return plan::sync(&SyncAsk { data, parity, readable, writable, held, kind }).map(Planned::Sync);
            }
        };
        plan::plan(&Ask {
            data,
            parity,
            readable,
            writable,
            held,
            overwrite,
            partial: MemberSet::EMPTY,
            want,
            parity_trusted: self.is_trusted(run),
            rmw_level: self.view.rmw_level,
        })
        .map(Planned::Data)
    }

    /// Whether parity is known to be right where the run is.
    fn is_trusted(&self, run: &Run) -> bool {
        let end = self.geometry.member_sector(run.place.stripe) + Sectors(u64::from(run.end()));
        end <= self.view.parity_trusted_below
    }

    /// Blocks to be written: what the plan says, and a block that gave a medium error and was rebuilt, where that can be.
    fn write_set(&self, id: u32, planned: &Planned, (_, writable, silent): Standing) -> MemberSet {
        let may_mend = !self.view.read_only && !self.view.suspended;
        match planned {
            Planned::Data(Plan { write, rebuild, .. }) => {
                let bad = |m: &MemberIndex| self.runs[id].bad.contains(*m);
                let mendable = |m: &MemberIndex| writable.contains(*m) && !silent.contains(*m);
                match rebuild.filter(bad).filter(mendable) {
                    Some(member) if may_mend => write.with(member),
                    _ => *write,
                }
            }
            Planned::Sync(plan) if may_mend => plan.write.into_iter().collect(),
            Planned::Sync(_) => MemberSet::EMPTY,
        }
    }

    /// Asks the array for the dirty mark, once.
    fn want_write(&mut self, effects: &mut Effects) {
        if !self.may_write && !self.want_write_sent && !self.view.suspended {
            self.want_write_sent = true;
            effects.reports.push(Report::WantWrite);
        }
    }

    /// Makes two runs of one and starts both.
    fn split(&mut self, id: u32, effects: &mut Effects) {
        let other = self.runs.open();
        let mut second = std::mem::take(&mut self.runs[other]);
        let first = &mut self.runs[id];
        first.split_off(first.middle(), &mut second);
        let (entry, from, end) = (first.place.entry, first.from, first.end());
        let mut parts = std::mem::take(&mut first.parts);
        parts.retain(|&part| {
            let slot = &mut self.parts[part];
            let (begin, limit) = (slot.part.from, slot.part.from + slot.part.sectors);
            let (here, there) = (begin < end && from < limit, end < limit);
            if there {
                second.parts.push(part);
                slot.runs_left += u32::from(here);
            }
            here
        });
        self.runs[id].parts = parts;
        self.runs[other] = second;
        self.stripe_pool[entry].active.push(other);
        self.start(id, Queue::Lead, effects);
        self.start(other, Queue::Lead, effects);
    }

    /// Takes the pages and sends the reads; with nothing to read goes on at once.
    fn start_planned(&mut self, id: u32, planned: Planned, queue: Queue, effects: &mut Effects) {
        let run = &mut self.runs[id];
        let blocks = blocks_needed(&planned, run.place.parity);
        let cached = cached_needed(&planned, run);
        let fresh = blocks.minus(cached);
        let reader = run.kind == Kind::Rebuild && self.pages.keeps_some();
        let starved = if reader { &mut self.starved_readers } else { &mut self.starved };
        let needed = run.pages_for(fresh);
        let mut waits = queue == Queue::Join && !starved.is_empty() && !blocks.is_empty();
        if !waits {
            // The run's own rows leave the cache first, so that making room cannot take what it counts on.
            run.make_places(cached);
            if run.kind != Kind::Rebuild {
                self.cache.take(run, cached, &mut self.pages);
            }
            while !self.pages.has(needed, reader) && self.cache.evict(&mut self.pages) {}
            waits = !self.pages.has(needed, reader);
        }
        if waits {
            run.give_pages(&mut self.pages);
            return match queue {
                Queue::Join => starved.push_back(id),
                Queue::Lead => starved.push_front(id),
            };
        }
        run.take_pages(fresh, &mut self.pages);
        self.counters.blocks_cached += cached.len() as u64;
        run.phase = Phase::Reading;
        self.count_method(&planned);
        let read = planned.read();
        for member in read {
            self.send(id, member, MemberOp::Read, false);
        }
        if read.is_empty() {
            self.reads_done(id, effects);
        }
    }

    fn count_method(&mut self, planned: &Planned) {
        let Planned::Data(plan) = planned else { return };
        match plan.method {
            Method::Full => self.counters.runs_full += 1,
            Method::Rmw => self.counters.runs_rmw += 1,
            Method::Rcw | Method::NoParity => self.counters.runs_rcw += 1,
            Method::Reconstruct => self.counters.runs_reconstruct += 1,
            Method::Read => {}
        }
    }

    /// Runs that waited for pages, oldest first, as far as the pages reach. They plan again: the view may have changed.
    pub(super) fn start_starved(&mut self, effects: &mut Effects) {
        while let Some(id) = self.starved_readers.pop_front() {
            self.start(id, Queue::Lead, effects);
            if self.starved_readers.front() == Some(&id) {
                break;
            }
        }
        while let Some(id) = self.starved.pop_front() {
            self.start(id, Queue::Lead, effects);
            if self.starved.front() == Some(&id) {
                break;
            }
        }
    }

    /// All reads have ended: compute and write, or plan again.
    pub(super) fn reads_done(&mut self, id: u32, effects: &mut Effects) {
        // What arrived while the reads were out may now be planned.
        self.touch(self.runs[id].place.entry);
        if self.runs[id].replan || !self.still_stands(id) {
            let run = &mut self.runs[id];
            run.give_pages(&mut self.pages);
            run.phase = Phase::Held;
            return self.start(id, Queue::Lead, effects);
        }
        let all = self.geometry.all_members();
        let run = &mut self.runs[id];
        if !run.compute(all, &self.pages, &self.slab, &mut self.sources) {
            run.write = MemberSet::EMPTY;
        }
        run.phase = Phase::Writing;
        let write = run.write;
        for member in write {
            self.send(id, member, MemberOp::Write, false);
        }
        if write.is_empty() {
            self.finish(id, IoStatus::Ok, effects);
        }
    }

    /// Sends one member's block of the run.
    pub(super) fn send(&mut self, id: u32, member: MemberIndex, op: MemberOp, alone: bool) {
        let place = self.view.members[member.index()];
        let run = &mut self.runs[id];
        run.outstanding += 1;
        let base = self.geometry.member_sector(run.place.stripe);
        let lba = base + Sectors(place.data_offset.0 + u64::from(run.from));
        let whose = if op == MemberOp::Read { Whose::RunRead(id, member) } else { Whose::RunWrite(id, member) };
        let io = Io::new(whose, place.handle, op, lba, run.sectors);
        let io = if alone { io.alone() } else { io };
        let run = &self.runs[id];
        let warm = run.planned.is_some_and(|planned| planned.read().contains(member));
        let io = if warm { io.warm() } else { io };
        if op == MemberOp::Write && run.kind == Kind::Write && run.given.contains(member) {
            self.ios.send(io, run.given_pieces(member));
        } else {
            self.ios.send(io, run.block(member, &self.pages));
        }
    }
}

/// Blocks that are in the cache and that the plan uses.
fn cached_needed(planned: &Planned, run: &Run) -> MemberSet {
    let used = match planned {
        Planned::Data(Plan { parity: ParityWork::Rmw, .. }) => run.given.with(run.place.parity),
        Planned::Data(Plan { parity: ParityWork::Rcw, .. }) => run.cached.without(run.place.parity).minus(run.given),
        Planned::Data(_) | Planned::Sync(_) => MemberSet::EMPTY,
    };
    // A block that is rebuilt needs all others.
    let rebuilds = matches!(planned, Planned::Data(Plan { rebuild: Some(_), .. }));
    if rebuilds { run.cached } else { used.intersection(run.cached) }
}

/// Blocks that need pages: all that are read or computed.
fn blocks_needed(planned: &Planned, parity: MemberIndex) -> MemberSet {
    match planned {
        Planned::Data(Plan { read, rebuild, parity: work, .. }) => {
            let computed = if *work == ParityWork::None { MemberSet::EMPTY } else { MemberSet::of(parity) };
            rebuild.map_or(*read, |m| read.with(m)).union(computed)
        }
        Planned::Sync(SyncPlan { read, rebuild, .. }) => rebuild.map_or(*read, |m| read.with(m)),
    }
}
