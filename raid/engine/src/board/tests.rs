//! Tests of the board: who takes what, what is left to others, and who is kicked.

use std::collections::HashMap;

use raid_core::geometry::{Geometry, Layout};
use raid_core::units::{DataIndex, MemberCount, Sectors, StripeIndex};

use super::*;
use crate::message::{ClientId, PartOp};
use crate::slab::Piece;

/// Rows of a region here.
const ROWS: u64 = 64;

fn board(workers: usize) -> Arc<Board> {
    let geometry = Geometry::new(MemberCount(5), Sectors(128), Sectors(128 * ROWS * 200), Layout::LeftSymmetric);
    Arc::new(Board::new(Arc::new(Regions::new(&geometry.expect("valid"))), 2, workers, workers))
}

/// Workers, each in a group of its own.
fn seated(board: &Arc<Board>, workers: u8) -> Vec<Desk> {
    let groups: Vec<Option<usize>> = (0..usize::from(workers)).map(Some).collect();
    assert!(board.seat(&groups).is_empty(), "nobody sleeps");
    let sit = |id: u8| {
        let mut desk = Desk::new(board, WorkerId(id));
        desk.sit(Some(usize::from(id)));
        desk
    };
    (0..workers).map(sit).collect()
}

/// Posts a part for the first row of each of these regions.
fn post(board: &Board, next: &mut u32, regions: impl Iterator<Item = u64>, home: usize) -> Vec<u8> {
    let part = |region| {
        let (client, op, stripe, data) = (ClientId(1), PartOp::Read, StripeIndex(region * ROWS), DataIndex(0));
        Part { client, op, request: 0, stripe, data, from: 0, sectors: 1, piece: Piece::NONE }
    };
    let parts: Vec<Part> = regions.map(part).collect();
    let slot_of = |_: &Part| {
        *next += 1;
        *next
    };
    let kicks = board.post(&parts, home, slot_of, &mut Traffic::default());
    kicks.iter().map(|worker| worker.0).collect()
}

/// Parts by region; those of 0 are done.
#[derive(Default)]
struct Hands {
    owned: HashMap<u32, usize>,
    /// Regions that may not be given up yet although nothing is left of them.
    closed: Vec<u32>,
}

impl Holder for Hands {
    fn may_give_up(&self, region: RegionIndex) -> bool {
        self.owned.get(&region.0) == Some(&0) && !self.closed.contains(&region.0)
    }
    fn must_keep(&self, region: RegionIndex) -> bool {
        self.owned.get(&region.0) == Some(&0) && self.closed.contains(&region.0)
    }
    fn taken(&mut self, _: RegionIndex, _: bool) {}
    fn give_up(&mut self, region: RegionIndex) {
        self.owned.remove(&region.0);
    }
}

impl Hands {
    /// Collects; answers with the regions of what came, in order.
    fn collect(&mut self, desk: &mut Desk) -> Vec<u64> {
        let mut parts = Vec::new();
        let _ = desk.collect(self, &mut parts);
        let regions: Vec<u64> = parts.iter().map(|part| part.stripe.0 / ROWS).collect();
        regions.iter().for_each(|region| *self.owned.entry(*region as u32).or_default() += 1);
        regions
    }

    /// Everything here is done, but the regions stay.
    fn finish(&mut self) {
        self.owned.values_mut().for_each(|count| *count = 0);
    }
}

#[test]
fn work_stays_with_its_group_and_goes_to_others_that_have_none() {
    let (board, mut next) = (board(2), 0);
    let mut desks = seated(&board, 2);
    post(&board, &mut next, 0..3, 1);
    let (mut a, mut b) = (Hands::default(), Hands::default());
    post(&board, &mut next, 3..4, 0);
    assert_eq!(a.collect(&mut desks[0]), [3], "its own first");
    desks[0].stay(true);
    assert!(!desks[0].has_work(&a) && a.collect(&mut desks[0]).is_empty(), "while it stays with its group");
    desks[0].stay(false);
    assert_eq!(a.collect(&mut desks[0]), [0, 1, 2]);
    assert_eq!(desks[0].traffic.stolen, 3);
    assert_eq!(b.collect(&mut desks[1]), []);
    post(&board, &mut next, 2..5, 1);
    assert_eq!(b.collect(&mut desks[1]), [4], "the others are at their owner");
    assert_eq!(a.collect(&mut desks[0]), [2, 3]);
}

#[test]
fn a_turn_takes_no_more_than_it_has_room_for() {
    let (board, mut next) = (board(2), 0);
    let mut desks = seated(&board, 2);
    post(&board, &mut next, 0..100, 0);
    let (mut a, mut b) = (Hands::default(), Hands::default());
    assert_eq!(a.collect(&mut desks[0]).len(), TAKE_PARTS);
    assert!(desks[0].has_work(&a));
    assert_eq!(b.collect(&mut desks[1]).len(), 100 - TAKE_PARTS, "what waits is anyone's");
}

#[test]
fn a_busy_owner_leaves_what_it_is_not_at_to_the_idle() {
    let (board, mut next) = (board(2), 0);
    let mut desks = seated(&board, 2);
    let (mut a, mut b) = (Hands::default(), Hands::default());
    post(&board, &mut next, 0..100, 0);
    while !a.collect(&mut desks[0]).is_empty() {}
    a.finish();
    a.closed.push(99);
    *a.owned.get_mut(&98).expect("owned") = 1;
    post(&board, &mut next, 0..100, 0);
    assert_eq!(b.collect(&mut desks[1]), [], "all have an owner");
    desks[1].idle();
    assert_eq!(a.collect(&mut desks[0]).len(), TAKE_PARTS);
    let left: Vec<u64> = (TAKE_PARTS as u64..98).collect();
    assert_eq!(b.collect(&mut desks[1]), left, "but what must be kept, and what it is at");
    assert_eq!(a.collect(&mut desks[0]), [98, 99], "when nobody is idle it goes on with that, too");
}

#[test]
fn who_sits_nowhere_gives_everything_up() {
    let (board, mut next) = (board(2), 0);
    let mut desks = seated(&board, 2);
    let (mut a, mut b) = (Hands::default(), Hands::default());
    post(&board, &mut next, 0..3, 0);
    assert_eq!(a.collect(&mut desks[0]), [0, 1, 2]);
    desks[0].sit(None);
    post(&board, &mut next, 0..4, 0);
    a.closed.push(2);
    *a.owned.get_mut(&0).expect("owned") = 0;
    *a.owned.get_mut(&2).expect("owned") = 0;
    assert_eq!(a.collect(&mut desks[0]), [2], "copies of its writes are still about");
    assert!(!desks[0].has_work(&a));
    assert_eq!(b.collect(&mut desks[1]), [3, 0]);
    a.finish();
    assert!(desks[0].has_work(&a), "the region that it was at can go now");
    assert_eq!(a.collect(&mut desks[0]), []);
    assert_eq!(b.collect(&mut desks[1]), [1]);
}

#[test]
fn a_worker_that_is_drained_takes_nothing() {
    let (board, mut next) = (board(1), 0);
    let mut desks = seated(&board, 1);
    let mut a = Hands::default();
    desks[0].pause(true);
    post(&board, &mut next, 0..3, 0);
    assert_eq!(a.collect(&mut desks[0]), []);
    assert!(!desks[0].has_work(&a));
    desks[0].pause(false);
    assert!(desks[0].has_work(&a));
    assert_eq!(a.collect(&mut desks[0]), [0, 1, 2]);
}

#[test]
fn whoever_sleeps_is_kicked_by_what_it_must_do() {
    let (board, mut next) = (board(2), 0);
    let mut desks = seated(&board, 2);
    let mut a = Hands::default();
    let sleep = |desk: &mut Desk, id| {
        desk.idle();
        board.sleeper(WorkerId(id)).announce();
    };
    for id in [0, 1] {
        sleep(&mut desks[usize::from(id)], id);
    }
    assert_eq!(post(&board, &mut next, 0..1, 0), [0], "one of its group");
    assert_eq!(a.collect(&mut desks[0]), [0]);
    assert_eq!(post(&board, &mut next, 1..2, 0), [], "it is awake");
    assert_eq!(post(&board, &mut next, 2..4, 0), [1], "more than one wait, and another has nothing to do");
    sleep(&mut desks[0], 0);
    assert_eq!(post(&board, &mut next, 0..1, 1), [0], "the owner, wherever it is posted");
}
