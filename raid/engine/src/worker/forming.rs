//! Parts become runs.
//!
//! Parts that cannot go straight to a member wait at their stripe. When the stripe is touched, those whose sectors no active run covers form
//! runs: the range is cut wherever the set of written members changes, so that every run is alike over its length. Adjacent and
//! overlapping parts of several requests thus share one plan, and a row that was written in pieces is seen as full.
//!
//! A stripe whose run is out for reads forms no further runs: what arrives meanwhile is gathered and planned together when
//! the reads are in. This is md's gather window without a timer, kept to the stripe so that it delays nobody else.

use raid_core::units::StripeIndex;

use super::run::{Kind, Phase, Seg};
use super::running::Queue;
use super::{Effects, Worker};
use crate::message::{Part, PartOp};

/// A chunk row with something going on.
#[derive(Debug, Default)]
pub(super) struct Stripe {
    /// Runs that lock part of it.
    pub(super) active: Vec<u32>,
    /// Parts that wait, oldest first.
    waiting: Vec<u32>,
    /// In the worker's list of touched stripes.
    touched: bool,
    /// Scratch of `form`.
    taken: Vec<u32>,
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
        let part = self.parts[id].part;
        if matches!(part.op, PartOp::Write { .. }) {
            self.writes_pending += 1;
        }
        let index = match self.stripes.get(&part.stripe.0) {
            Some(index) => *index,
            None => {
                let index = self.stripe_pool.open();
                self.stripes.insert(part.stripe.0, index);
                index
            }
        };
        self.stripe_pool[index].waiting.push(id);
        self.touch(part.stripe);
    }

    /// Notes that waiting parts of the stripe may form runs.
    pub(super) fn touch(&mut self, stripe: StripeIndex) {
        if let Some(index) = self.stripes.get(&stripe.0) {
            let entry = &mut self.stripe_pool[*index];
            if !entry.touched {
                entry.touched = true;
                self.touched.push(stripe.0);
            }
        }
    }

    /// Forms what runs can be formed at a touched stripe, and forgets the stripe when nothing is left there.
    pub(super) fn form(&mut self, stripe: u64, effects: &mut Effects) {
        let index = self.stripes[&stripe];
        let mut entry = std::mem::take(&mut self.stripe_pool[index]);
        entry.touched = false;
        let gathering = entry.active.iter().any(|run| self.runs[*run].phase == Phase::Reading);
        if !gathering && !entry.waiting.is_empty() {
            self.take_waiting(&mut entry);
            self.make_runs(StripeIndex(stripe), &mut entry);
        }
        let empty = entry.active.is_empty() && entry.waiting.is_empty();
        self.stripe_pool[index] = entry;
        if empty {
            self.stripes.remove(&stripe);
            self.stripe_pool.close(index);
        }
        // A run that starts may end at once and touch the stripe again; it does not form here.
        while let Some(run) = self.fresh.pop() {
            self.start(run, Queue::Join, effects);
        }
    }

    /// Moves from `waiting` to `taken` what clashes neither with active runs nor with an older part.
    fn take_waiting(&mut self, entry: &mut Stripe) {
        entry.taken.clear();
        let mut kept = 0;
        for i in 0..entry.waiting.len() {
            let id = entry.waiting[i];
            let part = self.parts[id].part;
            let locked = entry.active.iter().any(|r| self.runs[*r].overlaps(part.from, part.from + part.sectors));
            let clashes = |other: &u32| clash(&self.parts[*other].part, &part);
            if locked || entry.taken.iter().any(clashes) || entry.waiting[..kept].iter().any(clashes) {
                entry.waiting[kept] = id;
                kept += 1;
            } else {
                entry.taken.push(id);
            }
        }
        entry.waiting.truncate(kept);
    }

    /// Makes runs of the taken parts, puts them into `active`, and notes them as fresh.
    fn make_runs(&mut self, stripe: StripeIndex, entry: &mut Stripe) {
        let first = entry.active.len();
        // Reads to rebuild and sync parts are runs of their own.
        let taken = std::mem::take(&mut entry.taken);
        for &id in &taken {
            let part = self.parts[id].part;
            match part.op {
                PartOp::Write { .. } => {
                    entry.cuts.push(part.from);
                    entry.cuts.push(part.from + part.sectors);
                }
                PartOp::Sync(kind) => self.make_single(stripe, id, Kind::Sync(kind), entry),
                PartOp::Read => self.make_single(stripe, id, Kind::Rebuild, entry),
                PartOp::Flush => unreachable!("flushes have no stripe"),
            }
        }
        entry.cuts.sort_unstable();
        entry.cuts.dedup();
        let cuts = std::mem::take(&mut entry.cuts);
        let singles = entry.active.len();
        for pair in cuts.windows(2) {
            self.make_alike(stripe, pair[0], pair[1], &taken, singles, entry);
        }
        entry.cuts = cuts;
        entry.cuts.clear();
        entry.taken = taken;
        self.fresh.extend_from_slice(&entry.active[first..]);
    }

    /// One part, in as many runs as the pages ask for.
    fn make_single(&mut self, stripe: StripeIndex, id: u32, kind: Kind, entry: &mut Stripe) {
        let part = self.parts[id].part;
        let mut from = part.from;
        while from < part.from + part.sectors {
            let sectors = (part.from + part.sectors - from).min(self.run_sectors_max);
            let run = self.open_run(stripe, from, sectors, kind);
            self.add_range(run, id, from, from + sectors);
            entry.active.push(run);
            from += sectors;
        }
    }

    /// The rows between two neighbouring cuts are alike: they lengthen the run before them if that writes the same members, else
    /// they are a new run.
    fn make_alike(
        &mut self,
        stripe: StripeIndex,
        from: u32,
        end: u32,
        taken: &[u32],
        singles: usize,
        entry: &mut Stripe,
    ) {
        let given = taken
            .iter()
            .map(|id| self.parts[*id].part)
            .filter(|p| matches!(p.op, PartOp::Write { .. }) && overlaps(p, from, end))
            .map(|p| self.geometry.data_member(stripe, p.data))
            .collect::<raid_core::units::MemberSet>();
        if given.is_empty() {
            return;
        }
        let mut from = from;
        while from < end {
            let last = entry.active[singles..].last().copied().filter(|r| {
                let r = &self.runs[*r];
                r.end() == from && r.given == given && r.sectors < self.run_sectors_max
            });
            let (run, sectors) = match last {
                Some(run) => (run, (end - from).min(self.run_sectors_max - self.runs[run].sectors)),
                None => {
                    let sectors = (end - from).min(self.run_sectors_max);
                    let run = self.open_run(stripe, from, sectors, Kind::Write);
                    self.runs[run].given = given;
                    entry.active.push(run);
                    (run, sectors)
                }
            };
            if last.is_some() {
                self.runs[run].sectors += sectors;
            }
            for &id in taken {
                if overlaps(&self.parts[id].part, from, from + sectors) {
                    self.add_range(run, id, from, from + sectors);
                }
            }
            from += sectors;
        }
    }

    fn open_run(&mut self, stripe: StripeIndex, from: u32, sectors: u32, kind: Kind) -> u32 {
        let run = self.runs.open();
        self.runs[run].reset(stripe, from, sectors, kind, self.geometry.members().len());
        run
    }

    /// Ties a part to a run that covers `from .. end` with it: the part ends when the run does, and its memory is the run's.
    fn add_range(&mut self, run: u32, id: u32, from: u32, end: u32) {
        let slot = &mut self.parts[id];
        let part = slot.part;
        let run = &mut self.runs[run];
        if run.parts.last() != Some(&id) && !run.parts.contains(&id) {
            run.parts.push(id);
            slot.runs_left += 1;
        }
        if matches!(part.op, PartOp::Sync(_)) {
            return;
        }
        let member = self.geometry.data_member(part.stripe, part.data);
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
