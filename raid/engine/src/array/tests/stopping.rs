//! The end of an array.

use std::time::Duration;

use raid_core::md::assemble::Options;
use raid_core::units::Sector;

use super::world::{Setup, World};
use crate::array::{ArrayState, Command, CommandErrorKind, MemberEvent};
use crate::message::IoStatus;

const SECOND: Duration = Duration::from_secs(1);

fn stop(world: &mut World, abandon: bool) -> u64 {
    world.command(Command::Stop { abandon })
}

#[test]
fn clean_and_idle_stops_at_once() {
    let mut world = World::new(Setup::default());
    let id = stop(&mut world, false);
    assert_eq!(world.stopped, Some(0));
    assert_eq!(world.answers[&id], Ok(()));
    assert!(world.trace.iter().all(|what| what.starts_with("answer")));
    assert_eq!(world.array.array_state(), ArrayState::Clear);
    assert_eq!(world.array.wake_at(), None);
    let late = world.command(Command::Fail(crate::message::MemberHandle(0)));
    assert_eq!(world.answers[&late].as_ref().unwrap_err().kind, CommandErrorKind::Stopping);
}

#[test]
fn dirty_is_flushed_and_marked_clean_without_the_delay() {
    for volatile in [false, true] {
        let mut world = World::new(Setup { volatile, ..Setup::default() });
        world.write(0);
        world.settle();
        stop(&mut world, false);
        world.settle();
        assert_eq!(world.stopped, Some(0));
        assert_eq!(world.superblock(3).resync_offset, None);
    }
}

#[test]
fn busy_workers_are_waited_for() {
    let mut world = World::new(Setup::default());
    world.workers[0].busy = true;
    world.write(0);
    world.settle();
    let id = stop(&mut world, false);
    let refused = world.add(9);
    assert_eq!(world.answers[&refused].as_ref().unwrap_err().kind, CommandErrorKind::Stopping);
    world.pass(SECOND);
    assert_eq!(world.stopped, None);
    world.workers[0].busy = false;
    world.pass(SECOND);
    assert_eq!(world.stopped, Some(0));
    assert_eq!(world.answers[&id], Ok(()));
}

#[test]
fn a_stop_records_how_far_sync_got() {
    let setup = Setup { assume_clean: false, ..Setup::default() };
    let mut world = World::new(setup.clone());
    world.sync_held = true;
    world.settle();
    world.sync_held = false;
    for _ in 0..8 {
        world.step_sync(0);
    }
    stop(&mut world, false);
    world.settle();
    assert_eq!(world.stopped, Some(0));
    assert_eq!(world.superblock(0).resync_offset, Some(Sector(1024)));
    let next = World::from_devices(setup, world.devices, &Options::default());
    assert_eq!(next.detail().resync_start, Some(Sector(1024)));
}

#[test]
fn a_stop_before_resync_got_anywhere_flushes_what_was_written() {
    let setup = Setup { assume_clean: false, ..Setup::default() };
    // Quiet before the stop as well as because of it.
    for quiet in [false, true] {
        let mut world = World::new(setup.clone());
        world.sync_held = true;
        world.write(0);
        world.settle();
        assert!(world.devices[&0].unflushed);
        if quiet {
            world.pass(SECOND);
            assert_eq!(world.detail().array_state, ArrayState::Clean);
            assert!(!world.devices[&0].unflushed);
        }
        let events = world.superblock(0).events;
        stop(&mut world, false);
        world.sync_held = false;
        world.settle();
        assert_eq!(world.stopped, Some(0));
        let flushed = (0..4).all(|handle| !world.devices[&handle].unflushed);
        assert!(flushed, "acknowledged, and the array stopped well");
        let superblock = world.superblock(0);
        assert_eq!((superblock.resync_offset, superblock.events), (Some(Sector::ZERO), events), "they said so before");
    }
}

#[test]
fn suspended_is_abandoned_and_left_dirty() {
    let mut world = World::new(Setup::default());
    world.workers[1].busy = true;
    world.write(0);
    world.settle();
    world.silence(0);
    world.silence(1);
    world.settle();
    world.write(0);
    assert!(world.is_waiting(0));
    world.trace.clear();
    let id = stop(&mut world, false);
    assert!(world.view().abandon);
    assert_eq!(world.stopped, None, "not before the workers have given up");
    world.settle();
    assert_eq!(world.stopped, Some(1));
    assert_eq!(world.answers[&id], Ok(()));
    assert!(world.trace.iter().all(|what| !what.starts_with("write")));
    assert_eq!(world.superblock(2).resync_offset, Some(Sector::ZERO));
}

#[test]
fn a_silent_member_is_waited_for_unless_hurried() {
    let mut world = World::new(Setup::default());
    world.write(0);
    world.settle();
    world.silence(0);
    stop(&mut world, false);
    world.pass(10 * SECOND);
    assert_eq!(world.stopped, None);
    world.pass(30 * SECOND);
    assert_eq!(world.stopped, Some(0), "degraded and clean once it is missing");

    let mut world = World::new(Setup::default());
    world.write(0);
    world.settle();
    world.silence(0);
    let first = stop(&mut world, false);
    world.pass(10 * SECOND);
    let second = stop(&mut world, true);
    world.settle();
    assert_eq!(world.stopped, Some(1));
    assert!(world.answers[&first].is_ok() && world.answers[&second].is_ok());
}

#[test]
fn commands_under_way_are_answered() {
    let mut world = World::new(Setup::default());
    world.silence(0);
    let added = world.add(9);
    world.settle();
    stop(&mut world, true);
    world.settle();
    assert_eq!(world.answers[&added].as_ref().unwrap_err().kind, CommandErrorKind::Stopping);
}

#[test]
fn a_member_that_fails_during_the_stop_is_recorded() {
    for point in 0..20 {
        let mut world = World::new(Setup::default());
        world.write(0);
        world.settle();
        stop(&mut world, false);
        for _ in 0..point {
            if world.stopped.is_none() {
                world.step();
            }
        }
        if world.stopped.is_none() {
            world.member_error(2, IoStatus::Failed);
        }
        if world.stopped.is_none() {
            world.pass(SECOND);
        }
        assert_eq!(world.stopped, Some(0), "point {point}");
        assert_eq!(world.superblock(0).resync_offset, None);
    }
}

#[test]
fn suspension_during_a_stop_abandons_it() {
    let mut world = World::new(Setup::default());
    world.write(0);
    world.settle();
    stop(&mut world, false);
    world.step();
    world.silence(0);
    world.event(1, MemberEvent::Gone);
    world.settle();
    assert_eq!(world.stopped, Some(1));
}
