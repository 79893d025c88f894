//! Parts become runs.
//!
//! Parts that cannot go straight to a member wait at their stripe. When the stripe is touched, those whose sectors no active run covers form
//! runs: the range is cut wherever the set of written members changes, so that every run is alike over its length. Adjacent and
//! overlapping parts of several requests thus share one plan, and a row that was written in pieces is seen as full.
//!
//! A stripe whose run is out for reads forms no further runs: what arrives meanwhile is gathered and planned together when
//! the reads are in. This is md's gather window without a timer, kept to the stripe so that it delays nobody else.

use raid_core::units::{MemberSet, StripeIndex};

use super::run::{Kind, Phase, Place, Seg};
use super::running::Queue;
use super::{Effects, Worker, needs_mark};
use crate::message::{Part, PartOp};

/// A chunk row with something going on.
#[derive(Debug, Default)]
pub(super) struct Stripe {
    row: StripeIndex,
    /// Runs that lock part of it.
    pub(super) active: Vec<u32>,
    /// Parts that wait, oldest first.
    waiting: Vec<u32>,
    /// In the worker's list of touched stripes.
    touched: bool,
}

/// What forming works with, kept for its room.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Parts that form runs now.
    taken: Vec<u32>,
    /// Where the set of written members may change.
    cuts: Vec<u32>,
}

fn overlaps(part: &Part, from: u32, end: u32) -> bool {
    part.from < end && from < part.from + part.sectors
}

fn clash(a: &Part, b: &Part) -> bool {
    let alone = |p: &Part| !matches!(p.op, PartOp::Write { .. });
    overlaps(a, b.from, b.from + b.sectors) && (alone(a) || alone(b) || a.data == b.data)
}

impl Worker {
    /// Puts a part at the end of its stripe's waiting parts.
    pub(super) fn enqueue(&mut self, id: u32) {
        let slot = &mut self.parts[id];
        slot.restarts = self.restarts;
        let part = &slot.part;
        if needs_mark(part.op) {
            self.writes_pending += 1;
        }
        let row = part.stripe;
        let pool = &mut self.stripe_pool;
        let index = *self.stripes.entry(row.0).or_insert_with(|| pool.open());
        let entry = &mut self.stripe_pool[index];
        entry.row = row;
        entry.waiting.push(id);
        self.touch(index);
    }

    /// Notes that waiting parts of the stripe may form runs.
    pub(super) fn touch(&mut self, index: u32) {
        let entry = &mut self.stripe_pool[index];
        if !entry.touched && !entry.waiting.is_empty() {
            entry.touched = true;
            self.touched.push(index);
        }
    }

    /// A run that locked part of the stripe has ended. A stripe with nothing left is forgotten.
    pub(super) fn unlock(&mut self, index: u32, run: u32) {
        let entry = &mut self.stripe_pool[index];
        let at = entry.active.iter().position(|r| *r == run);
        entry.active.swap_remove(at.expect("an active run is listed at its stripe"));
        if entry.active.is_empty() && entry.waiting.is_empty() {
            let row = entry.row;
            self.stripes.remove(&row.0);
            self.stripe_pool.close(index);
        } else {
            self.touch(index);
        }
    }

    /// Forms what runs can be formed at a touched stripe.
    pub(super) fn form(&mut self, index: u32, effects: &mut Effects) {
        let entry = &mut self.stripe_pool[index];
        entry.touched = false;
        let gathering = entry.active.iter().any(|run| self.runs[*run].phase == Phase::Reading);
        if gathering {
            return;
        }
        self.take_waiting(index);
        self.make_runs(index);
        // A run that starts may end at once and touch the stripe again; it does not form here.
        while let Some(run) = self.fresh.pop() {
            self.start(run, Queue::Join, effects);
        }
    }

    /// Moves from `waiting` to `taken` what clashes neither with active runs nor with an older part.
    fn take_waiting(&mut self, index: u32) {
        let entry = &mut self.stripe_pool[index];
        let taken = &mut self.scratch.taken;
        taken.clear();
        let mut kept = 0;
        for i in 0..entry.waiting.len() {
            let id = entry.waiting[i];
            let part = &self.parts[id].part;
            let locked = entry.active.iter().any(|r| self.runs[*r].overlaps(part.from, part.from + part.sectors));
            let clashes = |other: &u32| clash(&self.parts[*other].part, part);
            if locked || taken.iter().any(clashes) || entry.waiting[..kept].iter().any(clashes) {
                entry.waiting[kept] = id;
                kept += 1;
            } else {
                taken.push(id);
            }
        }
        entry.waiting.truncate(kept);
    }

    /// Makes runs of the taken parts and notes them as fresh.
    fn make_runs(&mut self, index: u32) {
        let Scratch { taken, mut cuts } = std::mem::take(&mut self.scratch);
        cuts.clear();
        for &id in &taken {
            let part = &self.parts[id].part;
            match part.op {
                // Reads to rebuild and sync parts are runs of their own, and so is a lone write.
                PartOp::Read => self.make_single(index, id, Kind::Rebuild),
                PartOp::Sync(kind) => self.make_single(index, id, Kind::Sync(kind)),
                PartOp::Write { .. } if taken.len() == 1 => self.make_single(index, id, Kind::Write),
                PartOp::Write { .. } => cuts.extend([part.from, part.from + part.sectors]),
                PartOp::Flush => unreachable!("flushes have no stripe"),
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut last = None;
        for pair in cuts.windows(2) {
            last = self.make_alike(index, pair[0], pair[1], &taken, last);
        }
        self.scratch = Scratch { taken, cuts };
    }

    /// One part, in as many runs as the pages ask for.
    fn make_single(&mut self, index: u32, id: u32, kind: Kind) {
        let part = &self.parts[id].part;
        let (mut from, end) = (part.from, part.from + part.sectors);
        let longest = if kind == Kind::Rebuild { self.rebuild_sectors_max } else { self.run_sectors_max };
        while from < end {
            let sectors = (end - from).min(longest);
            let run = self.open_run(index, from, sectors, kind);
            self.add_range(run, id, from, from + sectors);
            from += sectors;
        }
    }

    /// The rows between two neighbouring cuts are alike: they lengthen the `last` run if that ends here and writes the same members,
    /// else they are a new run. The answer is the last run now.
    fn make_alike(&mut self, index: u32, from: u32, end: u32, taken: &[u32], mut last: Option<u32>) -> Option<u32> {
        let mut given = MemberSet::EMPTY;
        for slot in taken.iter().map(|id| &self.parts[*id]) {
            if matches!(slot.part.op, PartOp::Write { .. }) && overlaps(&slot.part, from, end) {
                given.insert(slot.member);
            }
        }
        if given.is_empty() {
            return last;
        }
        let mut from = from;
        while from < end {
            let longer = last.filter(|run| {
                let r = &self.runs[*run];
                r.end() == from && r.given == given && r.sectors < self.run_sectors_max
            });
            let room = self.run_sectors_max - longer.map_or(0, |run| self.runs[run].sectors);
            let sectors = room.min(end - from);
            let run = match longer {
                Some(run) => {
                    self.runs[run].sectors += sectors;
                    run
                }
                None => {
                    let run = self.open_run(index, from, sectors, Kind::Write);
                    self.runs[run].given = given;
                    run
                }
            };
            // Parts that were taken together do not clash, so no others than writes overlap here.
            for &id in taken {
                if overlaps(&self.parts[id].part, from, from + sectors) {
                    self.add_range(run, id, from, from + sectors);
                }
            }
            last = Some(run);
            from += sectors;
        }
        last
    }

    /// A new run that locks its range of the stripe.
    fn open_run(&mut self, index: u32, from: u32, sectors: u32, kind: Kind) -> u32 {
        let entry = &mut self.stripe_pool[index];
        let run = self.runs.open();
        let parity = self.geometry.parity_member(entry.row);
        let place = Place { stripe: entry.row, entry: index, parity };
        self.runs[run].reset(place, from, sectors, kind, self.geometry.members().len());
        entry.active.push(run);
        self.fresh.push(run);
        run
    }

    /// Ties a part to a run that covers `from .. end` with it: the part ends when the run does, and its memory is the run's.
    fn add_range(&mut self, run_id: u32, id: u32, from: u32, end: u32) {
        let slot = &mut self.parts[id];
        let part = slot.part;
        let run = &mut self.runs[run_id];
        // Ranges come in order, so a part that is the run's already was tied to no other run since.
        if slot.last_run != run_id {
            slot.last_run = run_id;
            run.parts.push(id);
            slot.runs_left += 1;
        }
        if matches!(part.op, PartOp::Sync(_)) {
            return;
        }
        let member = slot.member;
        run.given.insert(member);
        let (from, end) = (from.max(part.from), end.min(part.from + part.sectors));
        if from < end {
            let piece = part.piece.sub(from - part.from, end - from);
            let seg = Seg { member, off: from - run.from, piece };
            match run.segs.iter_mut().rev().find(|s| s.member == member) {
                Some(last) if last.off + last.piece.sectors() == seg.off && last.piece.touches(seg.piece) => {
                    last.piece = last.piece.joined(seg.piece);
                }
                _ => run.segs.push(seg),
            }
        }
    }
}
