//! What reaches the members: how many requests, how long, and nothing that need not be.

use raid_core::geometry::Layout;
use raid_core::plan::RmwLevel;
use raid_core::units::Sector;

use super::world::{Shape, World};
use crate::member::{MemberOp, MemberRequest};
use crate::message::PartOp;

const WRITE: PartOp = PartOp::Write { fua: false };

pub(super) fn shape(members: u8) -> Shape {
    Shape {
        members,
        layout: Layout::LeftSymmetric,
        chunk: 128,
        rows: 8,
        workers: 1,
        pages: 64 * usize::from(members),
        rmw_level: RmwLevel::Fewer,
    }
}

pub(super) fn world(members: u8) -> World {
    World::new(1, shape(members)).marked()
}

pub(super) fn reads(log: &[MemberRequest]) -> Vec<u32> {
    log.iter().filter(|r| r.op == MemberOp::Read).map(|r| r.sectors).collect()
}

pub(super) fn writes(log: &[MemberRequest]) -> Vec<u32> {
    log.iter().filter(|r| r.op == MemberOp::Write).map(|r| r.sectors).collect()
}

#[test]
fn a_mib_of_full_rows_is_one_request_to_each_member() {
    let mut world = world(5);
    world.write(world.span().0, 2048);
    world.settle();
    assert_eq!(writes(&world.log), [512; 5]);
    assert_eq!(reads(&world.log), []);
    let handles: Vec<u16> = world.log.iter().map(|r| r.handle.0).collect();
    assert_eq!(handles, [0, 1, 2, 3, 4]);
    assert_eq!(world.counters(0).runs_full, 4);
    assert_eq!((world.counters(0).member_requests, world.counters(0).member_sectors), (5, 5 * 512));
    world.finish();
}

#[test]
fn small_writes_of_one_plug_make_a_full_row() {
    let mut world = world(5);
    let start = world.span().0;
    // A row is 512 sectors; any order.
    for plug in [0, 1] {
        let step = [37, 1][plug];
        world.log.clear();
        world.submit(&(0..64).map(|i| (WRITE, start + (i * step % 64) * 8, 8)).collect::<Vec<_>>());
        world.settle();
        assert_eq!(writes(&world.log), [128; 5]);
    }
    assert_eq!(reads(&world.log), []);
    world.finish();
}

#[test]
fn a_small_write_reads_and_writes_as_little_as_the_row_allows() {
    // 3 members: the other block; 4: a tie, both other blocks; 5 and more: old data and old parity.
    for (members, read) in [(3, 1), (4, 2), (5, 2), (8, 2)] {
        let mut world = world(members);
        world.write(world.span().0 + 133, 8);
        world.settle();
        assert_eq!(reads(&world.log), vec![8; read], "{members} members");
        assert_eq!(writes(&world.log), [8; 2], "{members} members");
        world.finish();
    }
}

#[test]
fn an_odd_write_is_not_rounded_up() {
    let mut world = world(5);
    world.write(world.span().0 + 3, 3);
    world.settle();
    assert_eq!((reads(&world.log), writes(&world.log)), (vec![3; 2], vec![3; 2]));
    world.finish();
}

#[test]
fn neighbours_in_two_rows_are_merged_at_the_member() {
    let mut world = world(5);
    // Three chunks of each of two rows.
    world.write(world.span().0 + 128, 768);
    world.settle();
    let mut lengths = writes(&world.log);
    lengths.sort_unstable();
    assert_eq!(lengths, [128, 128, 256, 256, 256]);
    assert_eq!(reads(&world.log), [128; 2], "the chunks that are not written");
    world.finish();
}

#[test]
fn a_long_read_is_one_request_for_what_touches() {
    let mut world = world(5);
    world.read(world.span().0, 2048);
    world.settle();
    assert_eq!(writes(&world.log), []);
    assert_eq!(reads(&world.log).iter().sum::<u32>(), 2048);
    // Four rows; each member holds parity in at most one of them, which splits its reads at most once.
    assert!(world.log.len() <= 10, "{:?}", reads(&world.log));
    world.finish();
}

#[test]
fn what_arrives_during_reads_is_planned_together() {
    let mut world = world(5);
    let start = world.span().0;
    world.write(start, 8);
    world.turn_all();
    assert_eq!(reads(&world.log), [8; 2]);
    // The rest of the row comes in pieces while the reads are out.
    for i in 1..64 {
        world.write(start + i * 8, 8);
        world.turn_all();
    }
    assert_eq!(world.log.len(), 2, "nothing leaves before the reads are in");
    world.settle();
    // The first write and, merged with it, all rows beside it, full; last the three blocks that had to wait for the first.
    assert_eq!(reads(&world.log), [8; 3]);
    let mut lengths = writes(&world.log);
    lengths.sort_unstable();
    assert_eq!(lengths, [8, 8, 8, 8, 120, 120, 120, 8 + 120, 8 + 120]);
    world.finish();
}

#[test]
fn a_write_to_other_rows_does_not_wait_for_reads() {
    let mut world = world(5);
    let start = world.span().0;
    world.write(start, 8);
    world.turn_all();
    world.write(start + 512, 512);
    world.turn_all();
    assert_eq!(writes(&world.log), [128; 5]);
    world.finish();
}

#[test]
fn a_tiny_cache_cuts_runs_but_not_requests() {
    let shape = Shape {
        members: 5,
        layout: Layout::RightAsymmetric,
        chunk: 128,
        rows: 8,
        workers: 1,
        pages: 5,
        rmw_level: RmwLevel::Fewer,
    };
    let mut world = World::new(1, shape).marked();
    world.write(world.span().0, 512);
    world.settle();
    assert_eq!(writes(&world.log).iter().sum::<u32>(), 5 * 128);
    assert_eq!(reads(&world.log), []);
    world.finish();
}

#[test]
fn where_parity_is_not_trusted_it_comes_from_all_data() {
    let mut world = world(5);
    let (start, chunk) = (world.span().0, world.shape.chunk);
    // From the second row on.
    world.array.view.parity_trusted_below = Sector(start / 4 + chunk);
    world.array.publish();
    for (row, read) in [(0, vec![8; 2]), (1, vec![8; 3])] {
        world.log.clear();
        world.write(start + row * 512, 8);
        world.settle();
        assert_eq!(reads(&world.log), read, "row {row}");
        assert_eq!(writes(&world.log), [8; 2]);
    }
    world.finish();
}

#[test]
fn a_part_is_not_overtaken_by_one_that_it_clashes_with() {
    let mut world = world(5);
    let start = world.span().0;
    world.write(start, 8);
    world.turn_all();
    world.serve();
    world.turn_all();
    // The first write is on its way. The second waits for it, and the third for the second.
    world.write(start, 16);
    world.turn_all();
    world.write(start + 8, 8);
    world.turn_all();
    assert_eq!(world.log.len(), 4, "two reads and two writes, all of the first");
    world.serve();
    world.turn_all();
    assert_eq!(reads(&world.log), [8, 8, 16, 16]);
    world.finish();
}

#[test]
fn a_write_beside_one_on_its_way_does_not_wait() {
    let mut world = world(5);
    let start = world.span().0;
    world.write(start, 8);
    world.turn_all();
    world.serve();
    world.turn_all();
    world.write(start + 8, 8);
    world.turn_all();
    assert_eq!(reads(&world.log), [8; 4]);
    world.finish();
}

#[test]
fn writes_of_what_was_read_before_are_warm() {
    let mut world = world(5);
    let start = world.span().0;
    world.write(start, 8);
    world.settle();
    let warm =
        |log: &[MemberRequest]| log.iter().filter(|r| r.op == MemberOp::Write).map(|r| r.warm).collect::<Vec<_>>();
    assert_eq!(warm(&world.log), [true; 2], "old data and old parity were read");
    world.log.clear();
    world.write(start + 512, 512);
    world.settle();
    assert_eq!(warm(&world.log), [false; 5], "a row given whole");
    world.finish();
}
