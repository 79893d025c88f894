//! Resync, recovery, check and repair.

use std::time::Duration;

use raid_core::md::assemble::Options;
use raid_core::units::{Sector, Sectors};

use super::world::{CHUNK, ROWS, Setup, World, created};
use crate::array::{Command, CommandErrorKind, Input, SyncAction, Tunables};
use crate::message::{IoStatus, MemberState, SyncKind};

const SECOND: Duration = Duration::from_secs(1);

fn dirty() -> World {
    World::new(Setup { assume_clean: false, ..Setup::default() })
}

fn action(world: &mut World, action: SyncAction) -> Result<(), CommandErrorKind> {
    let id = world.command(Command::Action(action));
    world.answers[&id].clone().map_err(|error| error.kind)
}

#[test]
fn runs_cover_every_row_once() {
    let mut world = dirty();
    world.sync_held = true;
    let mut seen = Vec::new();
    loop {
        world.settle();
        if world.sync.is_empty() {
            break;
        }
        for run in &world.sync {
            assert_eq!(run.kind, SyncKind::Resync);
            assert!(u64::from(run.from + run.sectors) <= CHUNK.0);
            seen.push((run.stripe.0 * CHUNK.0 + u64::from(run.from), run.sectors));
        }
        world.sync_held = false;
        for _ in 0..world.sync.len() {
            world.step_sync(3);
        }
        world.sync_held = true;
    }
    seen.sort_unstable();
    let mut next = 0;
    for (from, sectors) in seen {
        assert_eq!(from, next);
        next += u64::from(sectors);
    }
    assert_eq!(next, CHUNK.0 * ROWS);
}

#[test]
fn the_window_bounds_what_is_outstanding() {
    let tunables = Tunables { sync_window: Sectors(2048), sync_speed_max: 0, ..Tunables::default() };
    let mut world = World::new(Setup { assume_clean: false, tunables, ..Setup::default() });
    let outstanding = |world: &World| world.sync.iter().map(|run| u64::from(run.sectors)).sum::<u64>();
    assert_eq!(outstanding(&world), 2048);
    world.input(Input::Busy(true));
    world.step_sync(0);
    assert_eq!(outstanding(&world), 2048 - CHUNK.0);
    while outstanding(&world) >= 1024 {
        world.step_sync(0);
    }
    // Busy: not more than one part's worth, and pauses between.
    for _ in 0..50 {
        world.now += SECOND / 100;
        world.input(Input::Timer);
        assert!(outstanding(&world) <= 1024 + CHUNK.0);
        world.step_sync(0);
    }
}

#[test]
fn the_speed_limit_holds() {
    // 1 MiB/s over 4 MiB on each member.
    let tunables = Tunables { sync_speed_max: 1024, ..Tunables::default() };
    let mut world = World::new(Setup { assume_clean: false, tunables, ..Setup::default() });
    world.pass(3 * SECOND);
    assert_eq!(world.detail().sync_action, "resync");
    let percent = world.detail().sync.unwrap().percent();
    assert!((70..=80).contains(&percent), "{percent} %");
    world.pass(2 * SECOND);
    assert_eq!(world.detail().sync_action, "idle");
}

#[test]
fn trust_in_parity_follows_what_is_done_in_order() {
    let mut world = dirty();
    world.sync_held = true;
    world.settle();
    world.sync_held = false;
    world.now += 2 * SECOND;
    // The last of those outstanding end first.
    for _ in 0..16 {
        let last = world.sync.len() - 1;
        world.step_sync(last);
    }
    assert_eq!(world.view().parity_trusted_below, Sector::ZERO);
    for _ in 0..16 {
        world.step_sync(0);
    }
    assert_eq!(world.view().parity_trusted_below, Sector(1024));
    world.now += 2 * SECOND;
    for _ in 0..8 {
        world.step_sync(0);
    }
    assert_eq!(world.view().parity_trusted_below, Sector(3072));
}

#[test]
fn a_quiet_resync_is_checkpointed_and_goes_on_there() {
    let tunables = Tunables { sync_speed_max: 1024, ..Tunables::default() };
    let setup = Setup { assume_clean: false, tunables, ..Setup::default() };
    let mut world = World::new(setup.clone());
    world.pass(2 * SECOND);
    let mark = world.superblock(0).resync_offset.expect("not done");
    assert!(mark >= Sector(CHUNK.0 * ROWS / 4), "checkpoint at {mark}");
    // A power cut.
    let devices = created(&setup).into_iter().map(|(handle, mut device)| {
        device.stored = world.after_crash(0)[&handle].clone();
        (handle, device)
    });
    let world = World::from_devices(setup, devices.collect(), &Options::default());
    assert_eq!(world.view().parity_trusted_below, mark);
    assert_eq!(world.detail().resync_start, Some(mark));
    assert_eq!(world.sync[0].stripe.0, mark.0 / CHUNK.0);
}

#[test]
fn writes_during_a_resync_make_the_mark_zero_again() {
    let tunables = Tunables { sync_speed_max: 1024, ..Tunables::default() };
    let mut world = World::new(Setup { assume_clean: false, tunables, ..Setup::default() });
    world.pass(2 * SECOND);
    world.workers[1].busy = true;
    world.write(0);
    world.settle();
    assert_eq!(world.superblock(0).resync_offset, Some(Sector::ZERO));
    world.workers[1].busy = false;
    world.pass(10 * SECOND);
    assert_eq!(world.detail().state, "clean");
}

#[test]
fn a_failed_resync_is_tried_again() {
    let mut world = dirty();
    world.sync_status = IoStatus::Failed;
    world.settle();
    assert_eq!(world.detail().sync_action, "idle");
    world.sync_status = IoStatus::Ok;
    world.pass(6 * SECOND);
    assert_eq!(world.detail().state, "clean");
}

#[test]
fn a_recovery_that_keeps_failing_gives_the_device_up() {
    let mut world = World::new(Setup { spares: 1, ..Setup::default() });
    world.sync_status = IoStatus::Medium;
    world.member_error(0, IoStatus::Failed);
    world.pass(60 * SECOND);
    assert_eq!(world.state(0), MemberState::Absent);
    assert_eq!(world.detail().failed_devices, 2);
}

#[test]
fn a_recovery_is_checkpointed_after_a_flush_and_goes_on_there() {
    let tunables = Tunables { sync_speed_max: 1024, ..Tunables::default() };
    let setup = Setup { spares: 1, tunables, ..Setup::default() };
    let mut world = World::new(setup.clone());
    world.member_error(0, IoStatus::Failed);
    world.pass(2 * SECOND);
    let mark = world.superblock(4).recovery().expect("not done");
    assert!(mark >= Sector(CHUNK.0 * ROWS / 4), "checkpoint at {mark}");
    assert!(matches!(world.state(0), MemberState::Recovering { below } if below >= Sector(CHUNK.0 * ROWS / 8)));
    let mut devices = world.devices.clone();
    devices.remove(&0);
    let mut world = World::from_devices(setup, devices, &Options::default());
    assert_eq!(world.state(0), MemberState::Recovering { below: mark });
    world.try_crashes = false;
    world.pass(10 * SECOND);
    assert_eq!(world.state(0), MemberState::InSync);
    assert_eq!(world.superblock(4).recovery(), None);
}

#[test]
fn a_member_lost_during_a_resync_ends_it() {
    let mut world = dirty();
    world.sync_held = true;
    world.settle();
    world.member_error(2, IoStatus::Failed);
    world.settle();
    // Runs that are out end first, in whatever way.
    world.sync_status = IoStatus::Failed;
    world.sync_held = false;
    world.settle();
    assert_eq!(world.detail().state, "clean, degraded");
    assert_eq!(world.superblock(0).resync_offset, None);
    world.sync_status = IoStatus::Ok;
    world.add(9);
    world.pass(10 * SECOND);
    assert_eq!(world.detail().state, "clean");
}

#[test]
fn a_rebuilding_member_that_fails_is_replaced() {
    let mut world = World::new(Setup { spares: 2, ..Setup::default() });
    world.member_error(0, IoStatus::Failed);
    world.sync_held = true;
    world.settle();
    assert!(matches!(world.state(0), MemberState::Recovering { .. }));
    world.member_error(4, IoStatus::Failed);
    world.settle();
    world.sync_held = false;
    world.pass(10 * SECOND);
    assert_eq!(world.state(0), MemberState::InSync);
    assert_eq!(world.view().members[0].handle.0, 5);
}

#[test]
fn silence_pauses_sync() {
    let mut world = dirty();
    world.silence(1);
    let before = world.sync.len();
    world.pass(20 * SECOND);
    assert_eq!(world.sync.len(), before);
    world.unsilence(1);
    world.pass(SECOND);
    assert_eq!(world.detail().state, "clean");
}

#[test]
fn actions() {
    let mut world = World::new(Setup::default());
    world.sync_held = true;
    assert_eq!(action(&mut world, SyncAction::Check), Ok(()));
    assert_eq!(world.detail().state, "clean, checking");
    assert!(world.sync.iter().all(|run| run.kind == SyncKind::Check));
    assert_eq!(action(&mut world, SyncAction::Repair), Err(CommandErrorKind::Busy));
    assert_eq!(action(&mut world, SyncAction::Idle), Ok(()));
    world.sync_held = false;
    world.settle();
    assert_eq!(world.detail().sync_action, "idle");
    assert_eq!(world.detail().last_sync_action, Some("check"));

    // A repair writes parity, so the array is dirty meanwhile.
    world.sync_held = true;
    assert_eq!(action(&mut world, SyncAction::Repair), Ok(()));
    assert!(world.sync.is_empty());
    world.settle();
    assert!(world.sync.iter().all(|run| run.kind == SyncKind::Repair) && !world.sync.is_empty());
    world.pass(10 * SECOND);
    assert_eq!(world.superblock(0).resync_offset, Some(Sector::ZERO));
    world.sync_held = false;
    world.pass(10 * SECOND);
    assert_eq!(world.detail().state, "clean");
    assert_eq!(world.superblock(0).resync_offset, None);

    world.member_error(1, IoStatus::Failed);
    world.settle();
    assert_eq!(action(&mut world, SyncAction::Check), Err(CommandErrorKind::Busy));
}

#[test]
fn frozen_starts_nothing_until_idle() {
    let mut world = dirty();
    assert_eq!(action(&mut world, SyncAction::Frozen), Ok(()));
    world.pass(100 * SECOND);
    assert_eq!(world.detail().sync_action, "frozen");
    assert_eq!(world.view().parity_trusted_below, Sector::ZERO);
    assert_eq!(action(&mut world, SyncAction::Idle), Ok(()));
    world.settle();
    assert_eq!(world.detail().state, "clean");
}

#[test]
fn mismatches_are_counted() {
    let mut world = World::new(Setup::default());
    action(&mut world, SyncAction::Check).unwrap();
    let run = world.sync.pop_front().unwrap();
    world.input(Input::SyncDone { request: run.request, status: IoStatus::Ok, mismatches: 16 });
    world.settle();
    assert_eq!(world.detail().mismatch_cnt, 16);
    assert_eq!(world.detail().sync, None);
}
