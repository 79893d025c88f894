//! Dirty and clean: what is written when, and in which order.

use std::time::Duration;

use raid_core::md::assemble::Options;
use raid_core::units::{Sector, Sectors};

use super::world::{Setup, World, created};
use crate::array::{ArrayState, Input, MemberEvent, Tunables};
use crate::message::IoStatus;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_clean_array_starts_without_a_write() {
    let mut world = World::new(Setup::default());
    world.pass(MINUTE);
    assert_eq!(world.array.array_state(), ArrayState::Clean);
    assert!(world.trace.is_empty(), "{:?}", world.trace);
}

#[test]
fn a_dirty_mark_that_was_found_is_flushed_before_data() {
    let setup = Setup { assume_clean: false, ..Setup::default() };
    let mut world = World::from_devices(setup.clone(), created(&setup), &Options::default());
    // Whoever wrote the mark may have been killed before it was flushed.
    world.sync_held = true;
    world.write(0);
    world.settle();
    assert_eq!(world.trace, ["flush 0", "flush 1", "flush 2", "flush 3", "view", "data"]);
    assert_eq!(world.superblock(2).events, 0);
}

#[test]
fn the_dirty_mark_is_flushed_everywhere_before_data() {
    let mut world = World::new(Setup::default());
    world.write(0);
    assert_eq!(world.array.array_state(), ArrayState::WritePending);
    world.settle();
    let expected =
        ["write 0", "write 1", "write 2", "write 3", "flush 0", "flush 1", "flush 2", "flush 3", "view", "data"];
    assert_eq!(world.trace, expected);
    assert_eq!(world.array.array_state(), ArrayState::Active);
    assert_eq!(world.superblock(2).resync_offset, Some(Sector::ZERO));
    assert_eq!(world.superblock(2).events, 1);
    assert_eq!(world.superblock(2).utime.seconds(), 2_000_000);
}

#[test]
fn clean_again_after_the_delay_with_a_flush_first() {
    let mut world = World::new(Setup::default());
    world.write(0);
    world.settle();
    world.trace.clear();
    world.pass(Duration::from_millis(199));
    assert!(world.trace.is_empty(), "asked too early: {:?}", world.trace);
    world.pass(Duration::from_millis(2));
    let flush = ["flush 0", "flush 1", "flush 2", "flush 3"];
    let write = ["write 0", "write 1", "write 2", "write 3"];
    // The workers stop, the members are flushed, then superblocks are written and flushed.
    let expected = [&["view"][..], &flush, &write, &flush].concat();
    assert_eq!(world.trace, expected);
    assert_eq!(world.array.array_state(), ArrayState::Clean);
    assert_eq!(world.superblock(0).resync_offset, None);
    assert_eq!(world.superblock(0).events, 2);
}

#[test]
fn a_busy_worker_keeps_the_array_dirty_and_all_go_on() {
    let mut world = World::new(Setup::default());
    world.workers[1].busy = true;
    world.write(0);
    world.settle();
    world.trace.clear();
    world.pass(MINUTE);
    assert!(world.trace.iter().all(|what| what == "view"), "{:?}", world.trace);
    assert!(world.workers.iter().all(|w| w.may_write));
    assert_eq!(world.array.array_state(), ArrayState::Active);
}

#[test]
fn a_write_during_unmarking_is_not_lost() {
    // At every point of the unmarking another write arrives; during a resync, when superblocks stay as they are, as well.
    for (point, assume_clean) in (0..40).flat_map(|point| [(point, true), (point, false)]) {
        let mut world = World::new(Setup { assume_clean, ..Setup::default() });
        world.sync_held = true;
        world.write(0);
        world.settle();
        world.now += MINUTE;
        world.input(crate::array::Input::Timer);
        for _ in 0..point {
            world.step();
        }
        world.write(1);
        world.settle();
        assert!(!world.is_waiting(1), "point {point}");
        world.pass(MINUTE);
        assert_eq!(world.array.array_state(), ArrayState::Clean, "point {point}");
    }
}

#[test]
fn a_write_during_a_resync_does_not_wait_for_the_flush_before_quiet() {
    let mut world = World::new(Setup { assume_clean: false, ..Setup::default() });
    world.sync_held = true;
    world.write(0);
    world.settle();
    world.devices.get_mut(&3).unwrap().mute = true;
    world.pass(Duration::from_millis(201));
    assert_eq!(world.array.array_state(), ArrayState::ActiveIdle, "a flush is not answered");
    world.write(1);
    world.settle();
    assert!(!world.is_waiting(1));
    world.devices.get_mut(&3).unwrap().mute = false;
    world.pass(MINUTE);
    assert_eq!(world.array.array_state(), ArrayState::Clean);
}

#[test]
fn a_flush_that_began_before_the_last_write_does_not_count() {
    // A spare comes and one fails, so superblocks are written and members flushed while workers go on. At every point of that one
    // member stops answering, another write is sent, and workers come to rest.
    for point in 0..40 {
        let mut world = World::new(Setup { assume_clean: false, spares: 1, ..Setup::default() });
        world.sync_held = true;
        world.write(0);
        world.settle();
        world.devices.get_mut(&4).unwrap().status = IoStatus::Failed;
        world.add(9);
        for _ in 0..point {
            world.step();
        }
        world.devices.get_mut(&3).unwrap().mute = true;
        world.settle();
        world.write(0);
        world.pass(Duration::from_secs(1));
        world.devices.get_mut(&3).unwrap().mute = false;
        world.pass(MINUTE);
        assert_eq!(world.array.array_state(), ArrayState::Clean, "point {point}");
    }
}

#[test]
fn volatile_members_keep_it_dirty_for_their_window() {
    let mut world = World::new(Setup { volatile: true, ..Setup::default() });
    world.write(0);
    world.settle();
    world.pass(Duration::from_secs(59));
    assert_eq!(world.array.array_state(), ArrayState::Active);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.array.array_state(), ArrayState::Clean);
}

#[test]
fn a_delay_of_zero_means_never() {
    let tunables = Tunables { safe_mode_delay: Duration::ZERO, ..Tunables::default() };
    let mut world = World::new(Setup { tunables, ..Setup::default() });
    world.write(0);
    world.pass(10 * MINUTE);
    assert_eq!(world.array.array_state(), ArrayState::Active);
}

#[test]
fn a_fresh_array_is_resynced_and_then_clean() {
    let mut world = World::new(Setup { assume_clean: false, ..Setup::default() });
    assert_eq!(world.detail().state, "clean, resyncing");
    assert_eq!(world.view().parity_trusted_below, Sector::ZERO);
    world.settle();
    assert_eq!(world.detail().state, "clean");
    assert_eq!(world.view().parity_trusted_below, Sector(u64::MAX));
    assert_eq!(world.superblock(3).resync_offset, None);
}

#[test]
fn the_dirty_mark_of_a_member_that_fails_is_replaced_by_its_failure() {
    let mut world = World::new(Setup::default());
    world.devices.get_mut(&2).unwrap().status = IoStatus::Failed;
    world.write(0);
    world.settle();
    assert!(!world.is_waiting(0));
    assert_eq!(world.detail().state, "active, degraded");
    assert_eq!(world.array.degraded(), 1);
    assert_eq!(world.superblock(0).events, 2);
}

#[test]
fn detail_counts() {
    let world = World::new(Setup { spares: 1, ..Setup::default() });
    let detail = world.detail();
    assert_eq!((detail.raid_devices, detail.total_devices), (4, 5));
    assert_eq!((detail.active_devices, detail.working_devices), (4, 5));
    assert_eq!((detail.failed_devices, detail.spare_devices), (0, 1));
    assert_eq!(detail.array_size, Sectors(3 * 64 * 128));
    assert_eq!(detail.name, "test");
    assert_eq!(detail.devices[4].state, "spare");
    assert_eq!(detail.devices[4].number, Some(4));
    assert_eq!(detail.consistency_policy, "resync");
}

#[test]
fn a_member_that_turns_out_volatile_keeps_it_dirty_for_the_window() {
    // At every point of the unmarking.
    for point in 0..12 {
        let mut world = World::new(Setup::default());
        world.try_crashes = false;
        world.write(0);
        world.settle();
        world.now += Duration::from_millis(200);
        world.input(Input::Timer);
        for _ in 0..point {
            world.step();
        }
        world.event(2, MemberEvent::Volatile);
        world.event(2, MemberEvent::Volatile);
        assert_eq!(world.logs.iter().filter(|text| text.contains("d2: is volatile")).count(), 1);
        assert!(world.detail().devices[2].volatile);
        world.pass(Duration::from_secs(59));
        assert_eq!(world.array.array_state(), ArrayState::Active, "point {point}");
        assert_eq!(world.superblock(0).resync_offset, Some(Sector::ZERO));
        world.trace.clear();
        world.pass(Duration::from_secs(2));
        assert_eq!(world.array.array_state(), ArrayState::Clean, "point {point}");
        assert!(!world.trace.contains(&"flush 2".to_owned()), "{:?}", world.trace);
    }
}
