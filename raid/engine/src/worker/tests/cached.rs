//! The cache between requests: what is written again needs no reads, and what is kept is never wrong.

use std::time::Duration;

use super::shapes::{reads, shape, world, writes};
use super::world::{Shape, World};

/// What a write of these sectors reads.
fn reads_of(world: &mut World, at: u64, sectors: u32) -> Vec<u32> {
    world.log.clear();
    world.write(at, sectors);
    world.settle_soon();
    assert_eq!(writes(&world.log).len(), 2, "a data block and parity");
    reads(&world.log)
}

#[test]
fn a_row_that_is_written_again_needs_no_reads() {
    let mut world = world(5);
    let at = world.span().0;
    assert_eq!(reads_of(&mut world, at, 8), [8; 2], "the first time");
    assert_eq!(reads_of(&mut world, at, 8), [8; 2], "the second time its blocks stay");
    assert_eq!(reads_of(&mut world, at, 8), [], "the third");
    assert_eq!(reads_of(&mut world, at, 8), [], "and so on");
    assert_eq!(world.counters(0).blocks_cached, 4);
    world.finish();
}

#[test]
fn another_block_of_a_kept_row_reads_only_itself() {
    let mut world = world(5);
    let at = world.span().0;
    reads_of(&mut world, at, 8);
    reads_of(&mut world, at, 8);
    assert_eq!(reads_of(&mut world, at + 128, 8), [8], "parity is there");
    assert_eq!(reads_of(&mut world, at + 128, 8), [], "and now both are");
    world.finish();
}

#[test]
fn a_write_of_a_part_of_the_row_ends_what_was_kept() {
    let mut world = world(5);
    let at = world.span().0;
    for _ in 0..3 {
        reads_of(&mut world, at, 8);
    }
    assert_eq!(reads_of(&mut world, at + 3, 2), [2; 2]);
    assert_eq!(reads_of(&mut world, at, 8), [8; 2]);
    world.finish();
}

#[test]
fn rows_of_a_region_that_is_given_up_count_until_another_owns_it() {
    let mut world = World::new(1, Shape { workers: 2, ..shape(5) }).marked();
    let at = world.span().0;
    world.seat(&[true, false]);
    for _ in 0..2 {
        assert_eq!(reads_of(&mut world, at, 8), [8; 2]);
    }
    world.pass(Duration::from_secs(1));
    world.settle();
    world.assert_idle();
    assert_eq!(reads_of(&mut world, at, 8), [], "nobody else had it");
    world.seat(&[false, true]);
    assert_eq!(reads_of(&mut world, at, 8), [8; 2], "the other worker knows nothing of it");
    world.seat(&[true, false]);
    assert_eq!(reads_of(&mut world, at, 8), [8; 2], "what another owner may have changed is read");
    assert_eq!(reads_of(&mut world, at, 8), [], "and known again");
    world.finish();
}

#[test]
fn kept_pages_never_keep_work_waiting() {
    let mut world = world(5);
    let at = world.span().0;
    for row in 0..16 {
        for _ in 0..2 {
            reads_of(&mut world, at + row * 8, 8);
        }
    }
    // A run of a whole chunk on two members takes more pages than are left free beside many such rows.
    for chunk in 0..24 {
        world.log.clear();
        world.write(at + chunk * 128, 128);
        world.settle_soon();
        assert_eq!(writes(&world.log), [128; 2]);
    }
    world.finish();
}
