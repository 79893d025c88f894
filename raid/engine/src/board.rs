//! Where work waits until a worker takes it: queues of regions by worker group, and lists of regions by owner.
//!
//! Front ends [`post`](Board::post) parts; each worker has a [`Desk`] from which it [`collect`](Desk::collect)s. A queued region is in the
//! queue of the group on whose CPU it was posted, so it stays near the data; a worker whose group has nothing takes from the other groups' queues. A busy
//! worker that finds more than a turn's work while another is idle gives the regions that it is not busy with back to its queue. So no worker is idle
//! while work waits, however regions are spread, and a part is still handed over once.
//!
//! Who sleeps, and which workers are in which group, is here too, so that a model checker sees all that decides whether a letter is found. Putting a
//! thread to sleep and kicking it awake are the runtime's affair.
//!
//! Shared atomics: a word per region, the queues' and lists' ends, a flag per worker, the number of idle workers; and, written by changes of the
//! groups alone, who sits where. Bounds: a region is in one queue or list, so each holds as many as there are regions.

mod desk;
mod seats;

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

pub use desk::{Desk, Holder, TAKE_PARTS, TAKE_SECTORS};
pub use seats::{NO_GROUP, WorkerSet};

use crate::letters::{Letter, Letters};
use crate::message::{Part, WorkerId};
use crate::region::{Posted, RegionIndex, Regions};
use crate::sync::{AtomicBool, AtomicUsize, Ordering, fence};
use seats::Seats;

/// A thread that sleeps, or is about to.
#[derive(Debug, Default)]
pub struct Sleeper(AtomicBool);

impl Sleeper {
    /// The owner is about to sleep; it must look for work once more before it does.
    pub fn announce(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether the owner had announced that it sleeps, and must be kicked awake. Comes after leaving work for it and [`left_work`].
    pub fn must_kick(&self) -> bool {
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }

    /// The owner is awake again.
    pub fn awake(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Between leaving work and looking for who must be kicked. Pairs with the fence in [`Sleeper::announce`]: either we see who sleeps, or it sees what
/// was left.
pub fn left_work() {
    fence(Ordering::SeqCst);
}

/// How often threads had to do with each other on one side's way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Parts handed over.
    pub parts: u64,
    /// Regions that went into a queue or a list, for which a worker must look there.
    pub handoffs: u64,
    /// Regions that a worker took from another group's queue.
    pub stolen: u64,
    /// Times that a region's word was changed by another thread while this one did.
    pub contended: u64,
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.parts += other.parts;
        self.handoffs += other.handoffs;
        self.stolen += other.stolen;
        self.contended += other.contended;
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Board {
    regions: Arc<Regions>,
    letters: Letters,
    /// By group.
    queues: Box<[CachePadded<ArrayQueue<RegionIndex>>]>,
    /// By worker: regions that it owns and that letters have come for.
    lists: Box<[CachePadded<ArrayQueue<RegionIndex>>]>,
    sleepers: Box<[CachePadded<Sleeper>]>,
    /// Workers that have looked everywhere and found nothing.
    idle: CachePadded<AtomicUsize>,
    seats: Seats,
}

impl Board {
    /// A board for so many clients, workers and groups; no worker is in a group yet.
    pub fn new(regions: Arc<Regions>, clients: usize, workers: usize, groups: usize) -> Board {
        let count = regions.count();
        let lists = |n: usize| (0..n).map(|_| CachePadded::new(ArrayQueue::new(count))).collect();
        Board {
            regions,
            letters: Letters::new(clients),
            queues: lists(groups),
            lists: lists(workers),
            sleepers: (0..workers).map(|_| CachePadded::default()).collect(),
            idle: CachePadded::new(AtomicUsize::new(0)),
            seats: Seats::new(workers, groups),
        }
    }

    /// The regions.
    pub fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// A worker's flag.
    pub fn sleeper(&self, worker: WorkerId) -> &Sleeper {
        &self.sleepers[usize::from(worker.0)]
    }

    /// How many groups there may be.
    pub fn groups(&self) -> usize {
        self.queues.len()
    }

    /// Which workers are in a group.
    pub fn members(&self, group: usize) -> WorkerSet {
        self.seats.members(group)
    }

    /// Puts workers into groups, by worker; those without one take nothing any more. The answer is whom to kick: whoever sits somewhere
    /// looks at all queues, so that what was posted to a group that is gone is found.
    pub fn seat(&self, groups: &[Option<usize>]) -> WorkerSet {
        self.seats.set(groups);
        left_work();
        let mut kicks = WorkerSet::default();
        for worker in 0..self.sleepers.len() {
            self.kick(WorkerId(worker as u8), &mut kicks);
        }
        kicks
    }

    /// Adds the worker if it must be kicked, and answers whether it must.
    fn kick(&self, worker: WorkerId, kicks: &mut WorkerSet) -> bool {
        let sleeps = self.sleeper(worker).must_kick();
        if sleeps {
            kicks.insert(worker);
        }
        sleeps
    }

    /// Adds a sleeping worker of the group; answers false when there is none.
    fn kick_one_of(&self, group: usize, kicks: &mut WorkerSet) -> bool {
        self.members(group).iter().any(|worker| self.kick(worker, kicks))
    }

    /// Adds a sleeping worker of any group, if there is one: nobody else may come to what waits.
    fn kick_anyone(&self, kicks: &mut WorkerSet) {
        let _ = (0..self.groups()).any(|group| self.kick_one_of(group, kicks));
    }

    /// Adds a sleeping worker of any group, if there is one with nothing to do.
    fn kick_helper(&self, kicks: &mut WorkerSet) {
        if self.idle.load(Ordering::Relaxed) > 0 {
            self.kick_anyone(kicks);
        }
    }

    /// Posts parts, which are sorted by row. Regions that become queued go to the queue of group `home`. `slot_of` names a letter of the
    /// part's client that is nowhere. The answer is whom to kick.
    pub fn post(
        &self,
        parts: &[Part],
        home: usize,
        mut slot_of: impl FnMut(&Part) -> u32,
        traffic: &mut Traffic,
    ) -> WorkerSet {
        let mut kicks = WorkerSet::default();
        let mut owners = WorkerSet::default();
        let mut queued = false;
        let mut rest = parts;
        while let Some(first) = rest.first() {
            let region = self.regions.of_part(first);
            let length = rest.iter().take_while(|part| self.regions.of_part(part) == region).count();
            let (these, others) = rest.split_at(length);
            rest = others;
            let (newest, oldest) = self.write(these, &mut slot_of);
            match self.regions.post(region, &self.letters, newest, oldest, &mut traffic.contended) {
                Posted::Queue => {
                    self.enqueue(region, home);
                    queued = true;
                    traffic.handoffs += 1;
                }
                Posted::List(owner) => {
                    let listed = self.lists[usize::from(owner.0)].push(region);
                    assert!(listed.is_ok(), "a region is in its owner's list once");
                    owners.insert(owner);
                    traffic.handoffs += 1;
                }
                Posted::Nothing => {}
            }
        }
        traffic.parts += parts.len() as u64;
        left_work();
        for owner in owners.iter() {
            self.kick(owner, &mut kicks);
        }
        if queued && !self.kick_one_of(home, &mut kicks) {
            // All of the group are awake and will come to it, unless the group is gone; more than one of them may be at a long turn.
            if self.members(home).is_empty() {
                self.kick_anyone(&mut kicks);
            } else if self.queues[home].len() > 1 {
                self.kick_helper(&mut kicks);
            }
        }
        kicks
    }

    /// Writes letters and links them; answers with the newest and the oldest.
    fn write(&self, parts: &[Part], slot_of: &mut impl FnMut(&Part) -> u32) -> (Letter, Letter) {
        let mut ends: Option<(Letter, Letter)> = None;
        for part in parts {
            let letter = self.letters.write(part.client, slot_of(part), part);
            if let Some((newest, _)) = ends {
                self.letters.link(letter, Some(newest));
            }
            ends = Some((letter, ends.map_or(letter, |(_, oldest)| oldest)));
        }
        ends.expect("there is a part")
    }

    fn enqueue(&self, region: RegionIndex, group: usize) {
        assert!(self.queues[group].push(region).is_ok(), "a region is in a queue once");
    }

    /// A region from the queue of another group than this.
    fn steal(&self, group: usize) -> Option<RegionIndex> {
        let others = (1..self.groups()).map(|i| (group + i) % self.groups());
        // A look costs less than a pop.
        others.into_iter().find_map(|other| if self.queues[other].is_empty() { None } else { self.queues[other].pop() })
    }

    fn anything_queued(&self) -> bool {
        self.queues.iter().any(|queue| !queue.is_empty())
    }

    /// Whether nothing waits for a worker.
    pub fn is_quiet(&self) -> bool {
        !self.anything_queued() && self.lists.iter().all(|list| list.is_empty())
    }
}

#[cfg(test)]
mod tests;
