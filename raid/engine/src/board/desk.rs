//! A worker's place at the board: what it takes for a turn, and what it leaves to others.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Board, NO_GROUP, Traffic, WorkerSet, left_work};
use crate::message::{Part, WorkerId};
use crate::region::RegionIndex;
use crate::sync::Ordering;

/// A worker takes no further region once it has so many parts for a turn. What waits beyond that others may take.
pub const TAKE_PARTS: usize = 64;

/// The same in sectors: 128 KiB, which with old content, parity and what members in memory have of them stay in a CPU's own cache until they are
/// done. A region's letters are taken together, as neighbours are merged, so a turn often has twice that.
pub const TAKE_SECTORS: u64 = 256;

/// What a desk needs to know of the worker that sits there.
pub trait Holder {
    /// Whether a region that it owns could be given up now: no part of it is left, and its closed ranges are open.
    fn may_give_up(&self, region: RegionIndex) -> bool;

    /// Whether it has no part of the region but must keep it, as copies of writes may still be in the network.
    fn must_keep(&self, region: RegionIndex) -> bool;

    /// The region has become its own. Unless it `was_last` to own it, what it knows of its rows may be wrong by now.
    fn taken(&mut self, region: RegionIndex, was_last: bool);

    /// Forgets the region, which [`may_give_up`](Holder::may_give_up).
    fn give_up(&mut self, region: RegionIndex);
}

/// A region in the owner's list.
#[derive(Clone, Copy, Debug)]
struct Listed {
    region: RegionIndex,
    /// Its letters stay closed until what the worker has of it is done, for another to take it.
    leaving: bool,
}

/// See the module's text.
#[derive(Debug)]
pub struct Desk {
    board: Arc<Board>,
    id: WorkerId,
    group: usize,
    listed: VecDeque<Listed>,
    /// The worker takes nothing on.
    paused: bool,
    /// More than a turn's work was there.
    more: bool,
    /// It counts as idle.
    idle: bool,
    /// It takes nothing from other groups' queues.
    stays: bool,
    /// The queue comes before the list, every other time: neither keeps the other waiting.
    queue_first: bool,
    /// What it has done.
    pub traffic: Traffic,
}

/// What a turn has room for.
struct Room {
    from: usize,
    seen: usize,
    sectors: u64,
}

impl Room {
    fn is_used(&mut self, parts: &[Part]) -> bool {
        self.sectors += parts[self.seen..].iter().map(|part| u64::from(part.sectors)).sum::<u64>();
        self.seen = parts.len();
        parts.len() - self.from >= TAKE_PARTS || self.sectors >= TAKE_SECTORS
    }
}

impl Desk {
    /// A desk in no group.
    pub fn new(board: &Arc<Board>, id: WorkerId) -> Desk {
        Desk {
            board: Arc::clone(board),
            id,
            group: NO_GROUP,
            listed: VecDeque::new(),
            paused: false,
            more: false,
            idle: false,
            stays: false,
            queue_first: false,
            traffic: Traffic::default(),
        }
    }

    /// Moves the worker to another group; with none it takes nothing from queues, and gives up what it owns as it gets done.
    pub fn sit(&mut self, group: Option<usize>) {
        self.busy();
        self.group = group.unwrap_or(NO_GROUP);
    }

    /// Whether the worker is in a group.
    pub fn is_seated(&self) -> bool {
        self.group != NO_GROUP
    }

    /// With `paused` the worker takes nothing on until told otherwise.
    pub fn pause(&mut self, paused: bool) {
        if paused {
            self.busy();
        }
        self.paused = paused;
    }

    /// With `stays` the worker takes nothing from other groups' queues until told otherwise: somebody else comes to that.
    pub fn stay(&mut self, stays: bool) {
        self.stays = stays;
    }

    /// Appends what the worker is to do in this turn. The answer is whom to kick, as there is more than that.
    pub fn collect(&mut self, holder: &mut impl Holder, parts: &mut Vec<Part>) -> WorkerSet {
        let mut kicks = WorkerSet::default();
        if self.paused {
            // Others may take what was left for this one.
            left_work();
            if self.board.anything_queued() {
                self.board.kick_anyone(&mut kicks);
            }
            return kicks;
        }
        while let Some(region) = self.board.lists[usize::from(self.id.0)].pop() {
            self.listed.push_back(Listed { region, leaving: false });
        }
        self.more = false;
        let mut room = Room { from: parts.len(), seen: parts.len(), sectors: 0 };
        if self.group == NO_GROUP {
            self.leave(holder, parts, &mut kicks);
            return kicks;
        }
        self.queue_first = !self.queue_first;
        if self.queue_first {
            self.take_queued(holder, parts, &mut room);
        }
        self.take_listed(holder, parts, &mut room);
        if !self.queue_first {
            self.take_queued(holder, parts, &mut room);
        }
        if parts.len() == room.from && !self.stays {
            self.steal(holder, parts, &mut room);
        }
        if self.more {
            left_work();
            self.board.kick_helper(&mut kicks);
        }
        if parts.len() > room.from {
            self.busy();
        }
        kicks
    }

    fn open(&mut self, region: RegionIndex, parts: &mut Vec<Part>) {
        let letters = self.board.regions.open_letters(region, self.id);
        self.board.letters.read(letters, parts);
    }

    /// Gives a region up to whoever takes it from the queue of `group`.
    fn requeue(&mut self, region: RegionIndex, group: usize, holder: &mut impl Holder) {
        holder.give_up(region);
        self.board.regions.requeue(region, self.id);
        self.board.enqueue(region, group);
        self.traffic.handoffs += 1;
    }

    fn take_queued(&mut self, holder: &mut impl Holder, parts: &mut Vec<Part>, room: &mut Room) {
        while !room.is_used(parts) {
            let Some(region) = self.board.queues[self.group].pop() else { return };
            self.take(region, holder, parts);
        }
        self.more |= !self.board.queues[self.group].is_empty();
    }

    /// With nothing to do of its own, the worker takes what waits in other groups' queues.
    fn steal(&mut self, holder: &mut impl Holder, parts: &mut Vec<Part>, room: &mut Room) {
        while !room.is_used(parts) {
            let Some(region) = self.board.steal(self.group) else { return };
            self.traffic.stolen += 1;
            self.take(region, holder, parts);
        }
    }

    fn take(&mut self, region: RegionIndex, holder: &mut impl Holder, parts: &mut Vec<Part>) {
        let (letters, was_last) = self.board.regions.take(region, self.id);
        holder.taken(region, was_last);
        self.board.letters.read(letters, parts);
    }

    /// Opens the letters of owned regions, in turn. What a turn has no room for waits, or goes to others who have nothing to do.
    fn take_listed(&mut self, holder: &mut impl Holder, parts: &mut Vec<Part>, room: &mut Room) {
        let others_idle = self.board.idle.load(Ordering::Relaxed) > 0;
        for _ in 0..self.listed.len() {
            let Some(Listed { region, leaving }) = self.listed.pop_front() else { return };
            let leaves = others_idle && !holder.must_keep(region);
            let has_room = !room.is_used(parts);
            if has_room && !(leaves && leaving) {
                self.open(region, parts);
            } else if leaves && holder.may_give_up(region) {
                self.requeue(region, self.group, holder);
                self.more = true;
            } else {
                self.more |= !leaves;
                self.listed.push_back(Listed { region, leaving: leaves });
            }
        }
    }

    /// A worker that is in no group gives up what it owns as soon as it can.
    fn leave(&mut self, holder: &mut impl Holder, parts: &mut Vec<Part>, kicks: &mut WorkerSet) {
        for _ in 0..self.listed.len() {
            let Some(Listed { region, .. }) = self.listed.pop_front() else { return };
            if holder.may_give_up(region) {
                self.requeue(region, 0, holder);
            } else if holder.must_keep(region) {
                self.open(region, parts);
            } else {
                self.listed.push_back(Listed { region, leaving: true });
            }
        }
        left_work();
        // Also what was posted to a group that is gone, by whoever did not know it yet.
        if self.board.anything_queued() {
            self.board.kick_anyone(kicks);
        }
    }

    fn is_anything_queued(&self) -> bool {
        if self.stays { !self.board.queues[self.group].is_empty() } else { self.board.anything_queued() }
    }

    /// The worker has found nothing to do.
    pub fn idle(&mut self) {
        if !self.idle && self.group != NO_GROUP && !self.paused {
            self.idle = true;
            self.board.idle.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The worker has something to do again.
    pub fn busy(&mut self) {
        if std::mem::take(&mut self.idle) {
            self.board.idle.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether [`collect`](Desk::collect) would find something now: for a worker that is about to sleep.
    pub fn has_work(&self, holder: &impl Holder) -> bool {
        if self.paused {
            return false;
        }
        let done_with = |listed: &Listed| listed.leaving && holder.may_give_up(listed.region);
        self.more
            || !self.board.lists[usize::from(self.id.0)].is_empty()
            || self.group != NO_GROUP && self.is_anything_queued()
            || self.listed.iter().any(done_with)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.busy();
    }
}
