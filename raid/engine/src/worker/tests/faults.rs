//! What failures do, one at a time.

use std::time::Duration;

use raid_core::geometry::Layout;
use raid_core::plan::RmwLevel;
use raid_core::units::MemberIndex;

use super::disk::Mode;
use super::fake_array::Task;
use super::world::{Shape, World};
use crate::member::MemberOp;
use crate::message::{IoStatus, MemberHandle, PartOp, Report, SyncKind};

const H: fn(u16) -> MemberHandle = MemberHandle;

fn unmarked(pages: usize) -> World {
    // Parity on the last member: member n holds data block n of each row.
    let shape = Shape {
        members: 5,
        layout: Layout::ParityLast,
        chunk: 128,
        rows: 4,
        workers: 1,
        pages,
        rmw_level: RmwLevel::Fewer,
    };
    World::new(7, shape)
}

fn world() -> World {
    unmarked(320).marked()
}

/// Makes sector `row` of the window unreadable on a member.
fn spoil(world: &mut World, member: usize, row: u64) {
    let disk = &mut world.disks[member];
    disk.bad.insert(disk.base + row);
}

fn no_bad_left(world: &World) -> bool {
    world.disks.iter().all(|d| d.bad.is_empty())
}

fn count(world: &World, op: MemberOp) -> usize {
    world.log.iter().filter(|r| r.op == op).count()
}

fn statuses(world: &World) -> Vec<(IoStatus, u64)> {
    world.statuses.iter().map(|(s, n)| (*s, *n)).collect()
}

#[test]
fn a_bad_sector_is_rebuilt_for_the_reader_and_mended() {
    let mut world = world();
    spoil(&mut world, 0, 5);
    world.read(world.span().0, 16);
    world.settle();
    assert!(no_bad_left(&world));
    assert_eq!(world.array.corrected, 8);
    world.finish();
}

#[test]
fn bad_sectors_of_two_members_cost_nothing_while_they_are_in_different_rows() {
    let mut world = world();
    for (member, row) in [(0, 5), (1, 6), (2, 100), (4, 7), (1, 127)] {
        spoil(&mut world, member, row);
    }
    world.read(world.span().0, 512);
    world.settle();
    let left: Vec<usize> = world.disks.iter().map(|d| d.bad.len()).collect();
    assert_eq!(left, [0, 0, 0, 0, 1], "nobody needed that sector of parity");
    world.finish();
}

#[test]
fn what_can_be_read_is_not_rebuilt() {
    let mut world = world();
    spoil(&mut world, 0, 5);
    // Parity does not match in the next page: rebuilt from it, what can be read would be lost.
    world.disks[4].bytes[9 * 512] ^= 1;
    let start = world.span().0;
    world.read(start, 128);
    world.write(start + 16, 512 - 16);
    world.settle();
    assert!(no_bad_left(&world));
    world.read(start, 16);
    world.write(start, 512);
    world.finish();
}

#[test]
fn two_bad_sectors_in_one_row_fail_the_read_of_them_alone() {
    let mut world = world();
    world.may_fail = true;
    spoil(&mut world, 0, 5);
    spoil(&mut world, 1, 5);
    let start = world.span().0;
    world.read(start, 6);
    world.settle();
    assert_eq!(statuses(&world), [(IoStatus::Failed, 1)]);
    world.statuses.clear();
    world.read(start, 5);
    world.read(start + 6, 122);
    world.settle();
    assert_eq!(statuses(&world), [(IoStatus::Ok, 2)]);
    // Writing them makes them readable.
    world.write(start, 512);
    world.settle();
    assert!(no_bad_left(&world));
    world.finish();
}

#[test]
fn a_write_takes_another_way_round_a_bad_sector() {
    for member in [0, 4] {
        let mut world = world();
        spoil(&mut world, member, 3);
        world.write(world.span().0, 8);
        world.settle();
        assert!(no_bad_left(&world), "the block or the parity that could not be read is written");
        assert_eq!(world.array.corrected, 8);
        world.finish();
    }
}

#[test]
fn a_bad_sector_fails_only_its_own_part_of_a_merged_read() {
    let mut world = world();
    spoil(&mut world, 0, 9);
    let start = world.span().0;
    world.submit(&(0..4).map(|i| (PartOp::Read, start + i * 8, 8)).collect::<Vec<_>>());
    world.settle();
    // One merged read; four alone; the bad one's stripe: itself again, then the four others.
    assert_eq!(count(&world, MemberOp::Read), 1 + 4 + 1 + 4);
    assert_eq!(count(&world, MemberOp::Write), 1);
    world.finish();
}

#[test]
fn mending_needs_no_dirty_mark() {
    let mut world = unmarked(320);
    spoil(&mut world, 2, 5);
    world.read(world.span().0 + 256, 8);
    world.settle();
    assert!(no_bad_left(&world));
    assert!(!world.reports.contains(&Report::WantWrite));
    world.finish();
}

#[test]
fn a_read_only_array_mends_nothing() {
    let mut world = unmarked(320);
    world.task(Task::ReadOnly);
    world.may_fail = true;
    spoil(&mut world, 2, 5);
    world.read(world.span().0 + 256, 8);
    world.write(world.span().0, 8);
    world.settle();
    assert!(!no_bad_left(&world));
    assert_eq!(count(&world, MemberOp::Write), 0);
    let mut ends = statuses(&world);
    ends.sort_by_key(|e| e.0.is_ok());
    assert_eq!(ends, [(IoStatus::ReadOnly, 1), (IoStatus::Ok, 1)]);
    world.finish();
}

#[test]
fn a_check_counts_what_differs_and_mends_what_cannot_be_read() {
    let mut world = unmarked(320);
    let start = world.span().0 / 4;
    spoil(&mut world, 1, 70);
    spoil(&mut world, 4, 300);
    // A byte of parity in one page, two in another.
    for at in [10 * 512, 200 * 512, 201 * 512 + 1] {
        world.disks[4].bytes[at] ^= 1;
    }
    world.array.start_sync(SyncKind::Check, start);
    world.settle();
    assert_eq!(world.array.mismatches, 16, "two pages");
    assert!(no_bad_left(&world));
    assert!(!world.reports.contains(&Report::WantWrite));
    world.array.start_sync(SyncKind::Repair, start);
    world.settle();
    assert_eq!(world.array.mismatches, 16);
    world.array.start_sync(SyncKind::Check, start);
    world.settle();
    assert_eq!(world.array.mismatches, 0);
    world.finish();
}

#[test]
fn a_failed_write_is_answered_once_the_member_is_absent() {
    let mut world = world();
    world.disks[0].mode = Mode::Fails(IoStatus::Failed);
    world.write(world.span().0, 512);
    world.turn_all();
    world.serve();
    world.turn_all();
    assert!(world.reports.contains(&Report::MemberError { handle: H(0), status: IoStatus::Failed }));
    assert_eq!(world.outstanding.len(), 1, "the failure is not recorded yet");
    world.settle();
    world.finish();
}

#[test]
fn a_device_that_is_back_before_the_other_writes_ended_holds_nobody() {
    let mut world = world();
    world.disks[0].mode = Mode::Fails(IoStatus::Failed);
    world.disks[1].mode = Mode::Silent;
    world.write(world.span().0, 512);
    world.turn_all();
    world.serve();
    world.turn_all();
    world.task(Task::Drop(H(0)));
    world.disks[0].mode = Mode::Works;
    world.task(Task::Replace(MemberIndex(0), H(0)));
    assert_eq!(world.outstanding.len(), 1, "member 1 has not answered");
    world.disks[1].mode = Mode::Works;
    world.finish();
}

#[test]
fn only_the_newest_of_several_views_counts() {
    let mut world = unmarked(320);
    world.write(world.span().0, 8);
    world.turn_all();
    assert!(world.reports.contains(&Report::WantWrite));
    // Both arrive in one turn: nothing may be sent on the first one's word.
    assert!(world.array.carry_out(Task::Mark) && world.array.carry_out(Task::Drop(H(0))));
    world.turn_all();
    assert!(world.log.iter().all(|r| r.handle != H(0)));
    world.settle();
    assert_eq!(count(&world, MemberOp::Write), 1, "the parity alone");
    world.finish();
}

#[test]
fn a_view_that_comes_during_the_reads_counts_for_the_writes() {
    for task in [Task::Drop(H(0)), Task::Drop(H(4)), Task::Silent(H(0))] {
        let mut world = world();
        world.write(world.span().0, 8);
        world.turn_all();
        world.task(task);
        world.serve();
        world.turn_all();
        if task == Task::Silent(H(0)) {
            world.serve();
            world.turn_all();
            assert_eq!(count(&world, MemberOp::Write), 0, "the member that is written is silent");
            world.task(Task::Answers(H(0)));
        }
        world.settle();
        world.finish();
    }
}

#[test]
fn a_suspended_array_sends_no_write_and_no_flush() {
    let mut world = world();
    world.write(world.span().0, 8);
    world.turn_all();
    world.task(Task::Silent(H(1)));
    world.task(Task::Silent(H(2)));
    world.submit(&[(PartOp::Flush, 0, 0)]);
    world.settle();
    assert_eq!(count(&world, MemberOp::Write), 0);
    assert_eq!(world.outstanding.len(), 2);
    assert_eq!(world.disks.iter().map(|d| d.pending.len()).sum::<usize>(), 0, "no flush is out");
    // Reads that need neither go on.
    world.read(world.span().0 + 384, 8);
    world.settle();
    assert_eq!(world.outstanding.len(), 2);
    world.task(Task::Answers(H(1)));
    world.task(Task::Answers(H(2)));
    world.finish();
}

#[test]
fn a_flush_that_a_vanished_member_missed_is_repeated_when_the_array_was_suspended() {
    let mut world = world();
    world.write(world.span().0, 512);
    world.settle();
    for disk in [1, 2] {
        world.disks[disk].mode = Mode::Silent;
    }
    world.submit(&[(PartOp::Flush, 0, 0)]);
    world.turn_all();
    world.task(Task::Drop(H(1)));
    world.task(Task::Silent(H(2)));
    world.settle();
    assert_eq!(world.outstanding.len(), 1, "too little of the data is flushed");
    world.disks[2].mode = Mode::Works;
    world.task(Task::Answers(H(2)));
    world.finish();
}

#[test]
fn a_fenced_write_ends_when_the_array_takes_no_more_writes() {
    let mut world = world();
    world.may_fail = true;
    world.disks[0].mode = Mode::Fails(IoStatus::Fenced);
    world.submit(&[(PartOp::Write { fua: false }, world.span().0, 512), (PartOp::Flush, 0, 0)]);
    world.turn_all();
    world.serve();
    world.turn_all();
    assert!(world.reports.contains(&Report::MemberError { handle: H(0), status: IoStatus::Fenced }));
    assert_eq!(world.outstanding.len(), 2);
    world.array.tasks.clear();
    world.task(Task::ReadOnly);
    world.settle();
    let mut ends = statuses(&world);
    ends.sort_by_key(|e| e.0 == IoStatus::ReadOnly);
    assert_eq!(ends, [(IoStatus::Failed, 1), (IoStatus::ReadOnly, 1)]);
    world.assert_idle();
}

#[test]
fn who_waits_for_pages_is_not_overtaken() {
    let mut world = unmarked(5).marked();
    world.task(Task::Drop(H(0)));
    let start = world.span().0;
    world.write(start + 384, 8);
    world.turn_all();
    // It needs all pages, and some are in use.
    world.read(start + 512, 8);
    world.turn_all();
    let before = world.log.len();
    // This would find enough.
    world.write(start + 512 * 2 + 384, 8);
    world.turn_all();
    assert_eq!(world.log.len(), before, "the later write waits");
    world.serve();
    world.turn_all();
    world.serve();
    world.turn_all();
    let next = world.log.iter().rev().find(|r| r.op == MemberOp::Read).expect("the rebuild began");
    assert_eq!(next.lba.0 - world.disks[next.handle.0 as usize].base, 128, "in the second row");
    world.finish();
}

#[test]
fn a_recovery_that_comes_before_its_view_is_not_taken_for_done() {
    let mut world = world();
    world.task(Task::Drop(H(3)));
    world.array.may_fail = true;
    let start = world.span().0 / 4;
    for kind in [SyncKind::Recovery(MemberIndex(3)), SyncKind::Resync, SyncKind::Check] {
        world.array.start_sync(kind, start);
        world.settle();
        assert_eq!(world.array.failed.take(), Some(IoStatus::Gone), "{kind:?}");
    }
    world.finish();
}

#[test]
fn a_sync_waits_for_a_silent_member() {
    let mut world = world();
    world.task(Task::Silent(H(3)));
    let start = world.span().0 / 4;
    world.array.start_sync(SyncKind::Resync, start);
    world.settle();
    assert!(world.array.sync.is_some() && world.log.is_empty());
    world.task(Task::Answers(H(3)));
    world.settle();
    assert!(world.array.sync.is_none());
    world.finish();
}

#[test]
fn the_dirty_mark_is_asked_for_once_and_again_after_quiet() {
    let mut world = unmarked(320);
    let start = world.span().0;
    let asked = |world: &World| world.reports.iter().filter(|r| **r == Report::WantWrite).count();
    world.write(start, 8);
    world.write(start + 512, 8);
    world.turn_all();
    assert_eq!(asked(&world), 1);
    world.task(Task::Quiesce);
    world.settle();
    assert_eq!(asked(&world), 1);
    world.pass(Duration::from_millis(1));
    world.task(Task::Quiesce);
    assert!(matches!(world.reports.last(), Some(Report::Quiet { idle: true, .. })));
    world.write(start, 8);
    world.turn_all();
    assert_eq!(asked(&world), 2);
    world.finish();
}

#[test]
fn a_worker_with_a_write_in_flight_is_not_quiet() {
    let mut world = world();
    world.write(world.span().0, 512);
    world.turn_all();
    world.pass(Duration::from_secs(1));
    world.task(Task::Quiesce);
    assert!(matches!(world.reports.last(), Some(Report::Quiet { idle: false, .. })));
    world.finish();
}

#[test]
fn a_read_leaves_a_silent_member_and_is_rebuilt() {
    let mut world = world();
    world.disks[1].mode = Mode::Silent;
    world.read(world.span().0 + 128, 8);
    world.settle();
    assert_eq!(world.outstanding.len(), 1);
    world.task(Task::Silent(H(1)));
    world.settle();
    assert_eq!(world.outstanding.len(), 0);
    assert_eq!(count(&world, MemberOp::Read), 1 + 4);
    world.disks[1].mode = Mode::Works;
    world.task(Task::Answers(H(1)));
    world.finish();
}

#[test]
fn reads_are_rebuilt_though_stuck_writes_fill_the_cache() {
    // Four pages of each member: three for all, one for readers.
    let mut world = unmarked(20).marked();
    let start = world.span().0;
    for i in 0..7 {
        world.write(start + i * 8, 8);
    }
    world.turn_all();
    world.serve();
    world.turn_all();
    // The writes are out, with 14 pages, and one more finds too few.
    world.disks[0].mode = Mode::Silent;
    world.task(Task::Silent(H(0)));
    world.write(start + 512 + 128, 8);
    world.read(start + 1024, 16);
    world.settle();
    assert_eq!(world.outstanding.len(), 8, "all but the read");
    world.disks[0].mode = Mode::Works;
    world.task(Task::Answers(H(0)));
    world.finish();
}

#[test]
fn a_member_that_fails_is_read_around_before_the_array_drops_it() {
    let mut world = world();
    world.disks[0].mode = Mode::Fails(IoStatus::Failed);
    world.read(world.span().0, 8);
    for _ in 0..3 {
        world.turn_all();
        world.serve();
    }
    world.turn_all();
    assert_eq!(world.outstanding.len(), 0);
    assert_eq!(count(&world, MemberOp::Read), 1 + 1 + 4, "itself, in its stripe, the others");
    world.finish();
}

#[test]
fn a_member_that_failed_once_is_tried_again_when_the_array_keeps_it() {
    let mut world = world();
    world.task(Task::Drop(H(0)));
    world.disks[1].mode = Mode::Fails(IoStatus::Failed);
    world.read(world.span().0, 8);
    world.turn_all();
    world.serve();
    world.turn_all();
    assert!(world.reports.contains(&Report::MemberError { handle: H(1), status: IoStatus::Failed }));
    // It cannot be spared.
    world.array.tasks.clear();
    world.settle();
    assert_eq!(world.outstanding.len(), 1);
    world.disks[1].mode = Mode::Works;
    world.array.publish();
    world.settle();
    assert_eq!(world.outstanding.len(), 0);
    world.finish();
}

#[test]
fn a_merged_write_that_fails_while_the_array_is_suspended_is_sent_again_later() {
    let mut world = world();
    // Two rows: one request to each member, of two ios.
    world.write(world.span().0, 1024);
    world.turn_all();
    world.disks[0].mode = Mode::Fails(IoStatus::Failed);
    for disk in 0..5 {
        world.serve_disk(disk);
    }
    assert!(world.array.carry_out(Task::Silent(H(1))) && world.array.carry_out(Task::Silent(H(2))));
    world.log.clear();
    world.settle();
    assert_eq!((world.log.len(), world.outstanding.len()), (0, 1));
    world.disks[0].mode = Mode::Works;
    world.task(Task::Answers(H(1)));
    world.task(Task::Answers(H(2)));
    world.settle();
    assert_eq!(count(&world, MemberOp::Write), 2, "each io by itself");
    assert!(!world.reports.iter().any(|r| matches!(r, Report::MemberError { .. })));
    world.finish();
}

#[test]
fn an_abandoned_array_waits_for_no_member() {
    let mut world = world();
    // Nobody has noticed yet that these do not answer.
    for disk in &mut world.disks {
        disk.mode = Mode::Silent;
    }
    let at = world.span().0;
    let asked = [(PartOp::Read, at, 8), (PartOp::Write { fua: false }, at + 100, 8), (PartOp::Flush, 0, 0)];
    world.submit(&asked);
    world.settle();
    world.array.view.suspended = true;
    world.abandon();
    world.settle();
    world.submit(&asked);
    world.settle();
    assert_eq!(statuses(&world), [(IoStatus::Stopped, 6)]);
    world.assert_idle();
}
