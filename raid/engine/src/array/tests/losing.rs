//! Members that fail, fall silent, restart or are fenced off.

use std::time::Duration;

use raid_core::md::Role;
use raid_core::units::Sector;

use super::world::{Setup, World};
use crate::array::{ArrayState, Command, CommandErrorKind, Input, MemberEvent, MetaOp, Tunables};
use crate::message::{IoStatus, MemberHandle, MemberState};

const SECOND: Duration = Duration::from_secs(1);

fn writing() -> World {
    let mut world = World::new(Setup::default());
    world.workers[1].busy = true;
    world.write(0);
    world.settle();
    world.trace.clear();
    world
}

#[test]
fn a_failure_is_durable_before_the_member_is_absent() {
    for status in [IoStatus::Failed, IoStatus::Medium] {
        let mut world = writing();
        world.member_error(1, status);
        // Not read, and writes that need it wait, until the failure is recorded.
        assert_eq!(world.state(1), MemberState::Silent);
        world.settle();
        let expected = ["write 0", "write 2", "write 3", "view", "flush 0", "flush 2", "flush 3", "view"];
        assert_eq!(world.trace, expected);
        assert_eq!(world.state(1), MemberState::Absent);
        assert_eq!(world.role(1), Role::Faulty);
        assert_eq!(world.superblock(1).events, 1, "its own superblock is left alone");
        assert_eq!(world.superblock(0).events, 2);
        let detail = world.detail();
        assert_eq!(detail.state, "active, degraded");
        assert_eq!(detail.devices[1].state, "removed");
        assert_eq!(detail.devices[4].state, "faulty");
        assert_eq!(detail.failed_devices, 1);
    }
}

#[test]
fn a_second_failure_breaks_the_array_and_is_never_recorded() {
    // The first may have failed or gone missing: neither comes back without the second.
    let firsts: [fn(&mut World); 2] = [
        |world| world.member_error(1, IoStatus::Failed),
        |world| {
            world.silence(1);
            world.pass(31 * SECOND);
            world.unsilence(1);
        },
    ];
    for first in firsts {
        let mut world = writing();
        world.set_stuck(1, true);
        first(&mut world);
        world.settle();
        world.set_stuck(1, false);
        world.silence(0);
        world.settle();
        world.write(0);
        assert!(world.is_waiting(0), "held for a silent member");
        world.trace.clear();
        world.member_error(2, IoStatus::Failed);
        assert!(world.view().abandon && world.view().read_only && !world.view().write_ok);
        world.unsilence(0);
        world.pass(100 * SECOND);
        assert!(!world.is_waiting(0), "what is held ends");
        assert!(world.trace.iter().all(|what| what == "view"), "{:?}", world.trace);
        assert_eq!(world.superblock(0).role_of(2), Role::Active(2));
        assert_eq!(world.array.array_state(), ArrayState::Broken);
        assert_eq!(world.detail().state, "active, FAILED");
        assert_eq!(world.logs.iter().filter(|text| text.starts_with("broken: 2 members")).count(), 1);

        let id = world.add(9);
        assert_eq!(world.answers[&id].as_ref().unwrap_err().kind, CommandErrorKind::Io);
        let id = world.command(Command::Stop { abandon: false });
        world.settle();
        assert_eq!(world.answers[&id], Ok(()));
        assert_eq!(world.stopped, Some(1));
    }
}

#[test]
fn commands_that_a_broken_array_cannot_record_are_answered() {
    let mut world = writing();
    let id = world.command(Command::Fail(MemberHandle(1)));
    world.member_error(2, IoStatus::Failed);
    assert_eq!(world.answers[&id].as_ref().unwrap_err().kind, CommandErrorKind::Io);
    // Stopped before every worker knows.
    let stop = world.command(Command::Stop { abandon: true });
    assert_eq!(world.stopped, None);
    world.settle();
    assert_eq!(world.answers[&stop], Ok(()));
    assert_eq!(world.stopped, Some(1));
}

#[test]
fn a_second_failure_before_the_first_is_recorded() {
    // At every point of recording the first.
    for point in 0..12 {
        let mut world = writing();
        world.member_error(1, IoStatus::Failed);
        for _ in 0..point {
            world.step();
        }
        world.member_error(2, IoStatus::Failed);
        assert_eq!(world.array.array_state(), ArrayState::Broken);
        world.pass(100 * SECOND);
        assert_eq!(world.array.array_state(), ArrayState::Broken);
        assert_eq!(world.role(2), Role::Active(2), "point {point}");
    }
}

#[test]
fn a_silent_member_that_answers_in_time_changes_nothing() {
    let mut world = writing();
    world.silence(3);
    assert_eq!(world.state(3), MemberState::Silent);
    world.settle();
    world.write(0);
    world.pass(29 * SECOND);
    assert!(world.is_waiting(0), "writes that need it wait");
    assert_eq!(world.trace, ["view"], "nothing is written meanwhile");
    world.unsilence(3);
    world.settle();
    assert_eq!(world.trace, ["view", "view", "data"]);
    assert_eq!(world.state(3), MemberState::InSync);
}

#[test]
fn a_silent_member_is_missing_once_all_others_answered() {
    let mut world = writing();
    world.silence(3);
    world.pass(29 * SECOND);
    world.trace.clear();
    // One of the others is slow to answer the probe.
    world.devices.get_mut(&0).unwrap().mute = true;
    world.pass(10 * SECOND);
    assert_eq!(world.state(3), MemberState::Silent);
    assert!(world.trace.is_empty());
    world.devices.get_mut(&0).unwrap().mute = false;
    world.settle();
    assert_eq!(world.trace, ["write 0", "write 1", "write 2", "view", "flush 0", "flush 1", "flush 2", "view"]);
    assert_eq!(world.state(3), MemberState::Absent);
    assert_eq!(world.detail().devices[4].state, "missing");
    assert_eq!(world.role(3), Role::Faulty);
}

#[test]
fn member_hold_is_obeyed() {
    for (hold, seconds, state) in
        [(5, 4, MemberState::Silent), (5, 6, MemberState::Absent), (0, 100_000, MemberState::Silent)]
    {
        let tunables = Tunables { member_hold: SECOND * hold, ..Tunables::default() };
        let mut world = World::new(Setup { tunables, ..Setup::default() });
        world.silence(3);
        world.pass(SECOND * seconds);
        assert_eq!(world.state(3), state, "hold {hold}");
    }
}

#[test]
fn the_hold_time_counts_from_the_first_send_and_can_be_shortened() {
    let mut world = writing();
    let since = world.now.saturating_sub(20 * SECOND);
    world.event(3, MemberEvent::Silent { since });
    world.pass(9 * SECOND);
    assert_eq!(world.state(3), MemberState::Silent);
    world.pass(2 * SECOND);
    assert_eq!(world.state(3), MemberState::Absent);

    let mut world = writing();
    world.silence(3);
    world.pass(9 * SECOND);
    world.input(Input::Tune(Tunables { member_hold: 3 * SECOND, ..Tunables::default() }));
    world.settle();
    assert_eq!(world.state(3), MemberState::Absent);
}

#[test]
fn a_member_that_was_given_up_below_is_missing_at_once() {
    let mut world = writing();
    world.devices.get_mut(&3).unwrap().mute = true;
    world.member_error(3, IoStatus::Gone);
    world.settle();
    assert_eq!(world.state(3), MemberState::Absent);
    // With a hold time for ever as well.
    let tunables = Tunables { member_hold: Duration::ZERO, ..Tunables::default() };
    let mut world = World::new(Setup { tunables, ..Setup::default() });
    world.event(3, MemberEvent::Gone);
    world.settle();
    assert_eq!(world.state(3), MemberState::Absent);
}

#[test]
fn a_member_that_dies_with_a_request_outstanding_can_be_replaced() {
    let mut world = World::new(Setup::default());
    world.write(0);
    while world.meta.is_empty() {
        assert!(world.step(), "the dirty mark is to be written");
    }
    assert!(world.meta.iter().any(|(_, device, _)| *device == 2));
    world.silence(2);
    world.pass(31 * SECOND);
    assert_eq!(world.state(2), MemberState::Absent);
    assert!(!world.is_waiting(0));
    let id = world.add(9);
    world.settle();
    assert_eq!(world.answers[&id], Ok(()));
    assert_eq!(world.array.degraded(), 0);
    assert!(world.meta.is_empty());
}

#[test]
fn two_silent_members_suspend_and_nothing_is_written_until_they_answer() {
    let mut world = writing();
    world.silence(1);
    world.silence(2);
    assert!(world.view().suspended);
    world.settle();
    world.write(0);
    world.trace.clear();
    world.pass(1000 * SECOND);
    assert!(world.trace.is_empty());
    assert!(world.is_waiting(0));
    assert_eq!(world.detail().state, "active, suspended");
    world.unsilence(1);
    world.settle();
    // The hold time of the other is long over, and now all the others answer.
    assert_eq!(world.state(2), MemberState::Absent);
    assert!(!world.view().suspended);
    assert!(!world.is_waiting(0));
}

#[test]
fn two_silent_members_that_both_answer_in_time() {
    let mut world = writing();
    world.silence(1);
    world.silence(2);
    world.settle();
    world.write(0);
    world.pass(10 * SECOND);
    world.trace.clear();
    world.unsilence(2);
    world.unsilence(1);
    world.settle();
    assert!(!world.is_waiting(0));
    assert_eq!(world.trace, ["view", "view", "data"]);
    assert_eq!(world.array.degraded(), 0);
}

#[test]
fn silence_at_every_point_of_a_commit() {
    for point in 0..30 {
        for silent in 0..4 {
            let mut world = World::new(Setup::default());
            world.write(0);
            for _ in 0..point {
                world.step();
            }
            world.silence(silent);
            world.settle();
            world.unsilence(silent);
            world.settle();
            assert!(!world.is_waiting(0), "point {point}");
            assert_eq!(world.array.degraded(), 0);

            let mut world = World::new(Setup::default());
            world.write(0);
            for _ in 0..point {
                world.step();
            }
            world.silence(silent);
            world.pass(40 * SECOND);
            assert!(!world.is_waiting(0), "point {point}");
            assert_eq!(world.array.degraded(), 1);
        }
    }
}

#[test]
fn a_probe_that_fails_suspends() {
    let mut world = writing();
    world.silence(3);
    world.devices.get_mut(&0).unwrap().status = IoStatus::Failed;
    world.pass(31 * SECOND);
    assert!(world.view().suspended);
    assert_eq!(world.role(3), Role::Active(3));
}

#[test]
fn a_probe_that_finds_another_superblock_suspends() {
    let mut world = writing();
    world.silence(3);
    let other = world.devices[&1].stored.clone();
    world.devices.get_mut(&0).unwrap().stored = other;
    world.try_crashes = false;
    world.pass(31 * SECOND);
    assert!(world.view().suspended);
}

#[test]
fn a_missing_member_comes_back_by_itself_and_is_rebuilt() {
    let mut world = writing();
    world.silence(3);
    world.pass(31 * SECOND);
    world.write(0);
    world.settle();
    assert_eq!(world.state(3), MemberState::Absent);
    world.sync_held = true;
    world.unsilence(3);
    world.settle();
    assert_eq!(world.state(3), MemberState::Recovering { below: Sector::ZERO });
    assert_eq!(world.superblock(3).recovery(), Some(Sector::ZERO));
    assert_eq!(world.role(3), Role::Active(3), "it keeps its number");
    assert_eq!(world.detail().state, "active, degraded, recovering");
    assert_eq!(world.detail().devices[3].state, "spare rebuilding");
    world.sync_held = false;
    world.settle();
    assert_eq!(world.state(3), MemberState::InSync);
    assert_eq!(world.superblock(3).recovery(), None);
    assert_eq!(world.detail().state, "active");
}

#[test]
fn a_member_does_not_come_back_before_every_worker_has_let_go() {
    let mut world = writing();
    world.set_stuck(1, true);
    world.silence(3);
    world.pass(31 * SECOND);
    world.unsilence(3);
    world.pass(100 * SECOND);
    assert_eq!(world.state(3), MemberState::Absent);
    world.set_stuck(1, false);
    world.settle();
    assert_eq!(world.state(3), MemberState::InSync);
}

#[test]
fn a_device_with_another_superblock_does_not_come_back() {
    let mut world = writing();
    world.silence(3);
    world.pass(31 * SECOND);
    *world.devices.get_mut(&3).unwrap().stored = [0; 4096];
    world.unsilence(3);
    world.settle();
    assert_eq!(world.state(3), MemberState::Absent);
    assert_eq!(world.detail().devices[4].state, "missing");
}

#[test]
fn a_restarted_member_is_missing_at_once_and_rebuilt() {
    let mut world = writing();
    world.sync_held = true;
    world.event(2, MemberEvent::Restarted);
    world.settle();
    assert_eq!(world.state(2), MemberState::Recovering { below: Sector::ZERO });
    assert_eq!(world.flush_faults, 0);
    world.sync_held = false;
    world.settle();
    assert_eq!(world.array.degraded(), 0);
}

#[test]
fn a_restart_of_a_clean_array_loses_nothing() {
    let mut world = World::new(Setup::default());
    world.event(2, MemberEvent::Restarted);
    world.settle();
    assert_eq!(world.array.degraded(), 0);
    assert!(world.trace.iter().all(|what| what == "view"));

    // Volatile members have not flushed what they acknowledged.
    let mut world = World::new(Setup { volatile: true, ..Setup::default() });
    world.sync_held = true;
    world.event(2, MemberEvent::Restarted);
    world.settle();
    assert_eq!(world.array.degraded(), 1);
}

#[test]
fn more_restarts_than_parity_covers_are_told_to_clients_and_resynced() {
    let mut world = writing();
    world.silence(1);
    world.silence(2);
    world.pass(5 * SECOND);
    for handle in [1, 2] {
        world.devices.get_mut(&handle).unwrap().mute = false;
        world.event(handle, MemberEvent::Restarted);
        world.unsilence(handle);
    }
    assert_eq!(world.flush_faults, 1);
    assert!(!world.view().suspended);
    assert_eq!(world.view().parity_trusted_below, Sector::ZERO);
    assert_eq!(world.detail().state, "active, resyncing");
    world.settle();
    assert_eq!(world.array.degraded(), 0);
    assert_eq!(world.view().parity_trusted_below, Sector(u64::MAX));
}

#[test]
fn a_restarted_member_is_given_up_once_the_others_have_been_flushed() {
    let mut world = writing();
    world.sync_held = true;
    world.event(2, MemberEvent::Restarted);
    assert_eq!(world.state(2), MemberState::Silent);
    assert!(world.meta.iter().all(|(_, handle, op)| *handle != 2 && matches!(op, MetaOp::Flush)), "{:?}", world.meta);
    assert_eq!(world.meta.len(), 3);
    // One of the others turns out to have been restarted as well: none is given up, and clients are told.
    let other = world.devices.get_mut(&3).unwrap();
    other.boot = other.boot.map(|boot| boot + 1);
    world.settle();
    assert_eq!((world.array.degraded(), world.flush_faults), (0, 1));
    assert_eq!(world.view().parity_trusted_below, Sector::ZERO);
    assert_eq!(world.view().members[3].boots.now(), Some(2));
}

#[test]
fn a_member_that_is_restarted_while_parity_is_not_right_stays() {
    let mut world = writing();
    world.sync_held = true;
    for handle in [1, 2] {
        world.event(handle, MemberEvent::Silent { since: Duration::ZERO });
    }
    for handle in [1, 2] {
        world.event(handle, MemberEvent::Restarted);
        world.unsilence(handle);
    }
    assert_eq!((world.flush_faults, world.view().parity_trusted_below), (1, Sector::ZERO));
    // A third is noticed later: what it had cannot be had from the others.
    world.event(3, MemberEvent::Restarted);
    world.settle();
    assert_eq!((world.array.degraded(), world.flush_faults), (0, 2));
    assert_eq!(world.view().parity_trusted_below, Sector::ZERO);
    world.sync_held = false;
    world.settle();
    assert_eq!((world.array.degraded(), world.view().parity_trusted_below), (0, Sector(u64::MAX)));
}

#[test]
fn a_restart_is_counted_once() {
    let mut world = writing();
    world.event(2, MemberEvent::Restarted);
    world.settle();
    assert_eq!((world.array.degraded(), world.state(2)), (0, MemberState::InSync), "rebuilt");
    world.write(0);
    world.settle();
    // Somebody who has not talked to it since learns of it only now, and a late answer of the start before comes in.
    for boot in [2, 1] {
        let report = crate::message::Report::MemberBoot { handle: MemberHandle(2), boot };
        world.input(Input::Report(crate::message::WorkerId(1), report));
        assert_eq!(world.state(2), MemberState::InSync, "{boot}");
    }
}

#[test]
fn superblocks_on_their_way_are_called_back_when_nothing_may_be_written() {
    for fence in [false, true] {
        let mut world = World::new(Setup::default());
        world.write(0);
        let written = |world: &World| world.meta.iter().filter(|(_, _, op)| matches!(op, MetaOp::Write { .. })).count();
        while written(&world) == 0 {
            world.step();
        }
        assert!(written(&world) > 0);
        let cancelled = world.cancelled.len();
        if fence {
            world.event(3, MemberEvent::Fenced);
        } else {
            world.silence(1);
            world.silence(2);
        }
        assert_eq!(world.cancelled.len(), cancelled + written(&world));
        if !fence {
            world.unsilence(1);
            world.unsilence(2);
            world.settle();
            assert!(!world.is_waiting(0), "they are written again");
        }
    }
}

#[test]
fn a_restart_beside_a_silent_member_waits_for_it() {
    let mut world = writing();
    world.silence(1);
    world.event(2, MemberEvent::Restarted);
    assert!(world.view().suspended);
    world.pass(100 * SECOND);
    assert_eq!((world.flush_faults, world.view().suspended), (0, true));
    world.unsilence(1);
    world.settle();
    assert_eq!(world.flush_faults, 0);
    assert_eq!(world.array.degraded(), 0, "the restarted one was rebuilt");
}

#[test]
fn fenced_by_worker_event_or_metadata_write() {
    let ways: [fn(&mut World); 3] = [
        |world| world.member_error(2, IoStatus::Fenced),
        |world| world.event(2, MemberEvent::Fenced),
        |world| {
            world.devices.get_mut(&2).unwrap().status = IoStatus::Fenced;
            world.workers[1].busy = false;
            world.pass(SECOND);
        },
    ];
    for fence in ways {
        let mut world = writing();
        fence(&mut world);
        assert!(world.view().read_only);
        assert!(!world.view().write_ok);
        world.trace.clear();
        world.devices.get_mut(&2).unwrap().status = IoStatus::Ok;
        world.member_error(1, IoStatus::Failed);
        world.silence(0);
        world.pass(1000 * SECOND);
        assert!(world.trace.iter().all(|what| what == "view"), "{:?}", world.trace);
        assert!(world.detail().fenced);
        let id = world.command(Command::Fail(MemberHandle(3)));
        let refusal = &world.answers[&id].as_ref().unwrap_err().text;
        let ways_out = [refusal, world.logs.iter().find(|text| text.contains("d2: reserved")).unwrap()];
        assert!(ways_out.iter().all(|text| text.contains("--takeover to take")));
        let id = world.command(Command::Stop { abandon: false });
        world.settle();
        assert_eq!(world.stopped, Some(1));
        assert_eq!(world.answers[&id], Ok(()));
    }
}

#[test]
fn a_spare_takes_over_by_itself() {
    let mut world = World::new(Setup { spares: 1, ..Setup::default() });
    world.member_error(1, IoStatus::Failed);
    world.settle();
    assert_eq!(world.state(1), MemberState::InSync);
    assert_eq!(world.view().members[1].handle, MemberHandle(4));
    assert_eq!(world.role(4), Role::Active(1));
    assert_eq!(world.detail().state, "clean");
}

#[test]
fn a_silent_spare_is_dropped_and_returns() {
    let mut world = World::new(Setup { spares: 1, ..Setup::default() });
    world.silence(4);
    world.settle();
    assert_eq!(world.role(4), Role::Faulty);
    assert!(!world.view().suspended);
    world.unsilence(4);
    world.settle();
    assert_eq!(world.role(4), Role::Spare);
}

#[test]
fn corrected_reads_are_counted() {
    let mut world = writing();
    let report = crate::message::Report::Corrected { member: raid_core::units::MemberIndex(2), sectors: 8 };
    world.input(Input::Report(crate::message::WorkerId(1), report));
    assert_eq!(world.detail().devices[2].corrected, 8);
}

#[test]
fn a_read_only_array_writes_nothing() {
    let mut world = World::new(Setup { read_only: true, assume_clean: false, ..Setup::default() });
    world.write(0);
    world.member_error(1, IoStatus::Failed);
    world.pass(100 * SECOND);
    assert_eq!(world.state(1), MemberState::Absent);
    assert!(world.trace.iter().all(|what| what == "view"), "{:?}", world.trace);
    assert_eq!(world.array.array_state(), ArrayState::Readonly);
    world.silence(2);
    assert!(world.view().suspended);
    world.unsilence(2);
    world.command(Command::Stop { abandon: false });
    assert_eq!(world.stopped, Some(0));
}
