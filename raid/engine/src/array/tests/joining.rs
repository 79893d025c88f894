//! Devices that are added, failed and removed by commands.

use std::time::Duration;

use raid_core::md::Role;
use raid_core::units::{Sector, Sectors};

use super::world::{DEVICE, Setup, World};
use crate::array::{Command, CommandErrorKind, MemberEvent};
use crate::message::{IoStatus, MemberHandle, MemberState};

const SECOND: Duration = Duration::from_secs(1);

fn kind(world: &World, id: u64) -> CommandErrorKind {
    world.answers[&id].as_ref().expect_err("refused").kind
}

fn fail(world: &mut World, handle: u16) -> u64 {
    world.command(Command::Fail(MemberHandle(handle)))
}

fn remove(world: &mut World, handle: u16) -> u64 {
    world.command(Command::Remove(MemberHandle(handle)))
}

#[test]
fn fail_remove_add_rebuild() {
    let mut world = World::new(Setup::default());
    let failed = fail(&mut world, 1);
    assert!(!world.answers.contains_key(&failed), "answered before it is recorded");
    world.settle();
    assert_eq!(world.answers[&failed], Ok(()));
    assert_eq!(world.role(1), Role::Faulty);

    let removed = remove(&mut world, 1);
    world.settle();
    assert_eq!(world.answers[&removed], Ok(()));
    assert_eq!(world.released, [1]);
    assert_eq!(world.detail().total_devices, 3);

    world.sync_held = true;
    let added = world.add(9);
    assert!(!world.answers.contains_key(&added));
    world.settle();
    assert_eq!(world.answers[&added], Ok(()));
    assert_eq!(world.state(1), MemberState::Recovering { below: Sector::ZERO });
    assert_eq!(world.superblock(9).dev_number, 4, "numbers are not used again");
    assert_eq!(world.role(9), Role::Active(1));
    assert_eq!(world.superblock(9).data_offset, Sector(2048));
    assert_eq!(world.detail().state, "clean, degraded, recovering");
    world.sync_held = false;
    world.settle();
    assert_eq!(world.state(1), MemberState::InSync);
    assert_eq!(world.detail().state, "clean");
    assert_eq!(world.superblock(9).recovery(), None);
    assert_eq!(world.superblock(0).events, world.superblock(9).events);
}

#[test]
fn a_spare_is_added_and_removed() {
    let mut world = World::new(Setup::default());
    let added = world.add(9);
    world.settle();
    assert_eq!(world.answers[&added], Ok(()));
    assert_eq!(world.role(9), Role::Spare);
    assert_eq!(world.detail().spare_devices, 1);
    let removed = remove(&mut world, 9);
    world.settle();
    assert_eq!(world.answers[&removed], Ok(()));
    assert_eq!(world.released, [9]);
    assert_eq!(world.superblock(0).role_of(4), Role::Faulty);
    let again = world.add(10);
    world.settle();
    assert_eq!(world.answers[&again], Ok(()));
    assert_eq!(world.superblock(10).dev_number, 5);
}

#[test]
fn refusals_of_remove_and_fail() {
    let mut world = World::new(Setup::default());
    let active = remove(&mut world, 0);
    assert_eq!(kind(&world, active), CommandErrorKind::Busy);
    let unknown = remove(&mut world, 77);
    assert_eq!(kind(&world, unknown), CommandErrorKind::NoDevice);
    fail(&mut world, 0);
    let twice = fail(&mut world, 0);
    assert_eq!(kind(&world, twice), CommandErrorKind::Busy);
    let early = remove(&mut world, 0);
    assert_eq!(kind(&world, early), CommandErrorKind::Busy);
    world.settle();
    let last = fail(&mut world, 1);
    assert_eq!(kind(&world, last), CommandErrorKind::Busy);
    assert!(world.answers[&last].as_ref().unwrap_err().text.contains("would fail without it"));
    world.settle();
    assert_eq!(world.array.degraded(), 1);
}

#[test]
fn failing_a_member_during_a_resync_is_refused() {
    let mut world = World::new(Setup { assume_clean: false, ..Setup::default() });
    let id = fail(&mut world, 0);
    assert_eq!(kind(&world, id), CommandErrorKind::Busy);
}

#[test]
fn refusals_of_add() {
    let mut world = World::new(Setup::default());
    let known = world.add(0);
    assert_eq!(kind(&world, known), CommandErrorKind::Busy);

    // One member's device under another name.
    let stored = world.devices[&1].stored.clone();
    world.add(20);
    world.settle();
    remove(&mut world, 20);
    world.settle();
    world.devices.get_mut(&20).unwrap().stored = stored;
    world.try_crashes = false;
    let twin = world.add(20);
    world.settle();
    assert_eq!(kind(&world, twin), CommandErrorKind::Busy);
    assert_eq!(world.released, [20, 20]);
    world.devices.remove(&20);
    world.try_crashes = true;

    world.add(21);
    world.settle();
    let mut small = World::new(Setup::default());
    small.devices.insert(22, world.devices[&21].clone());
    small.devices.get_mut(&22).unwrap().sectors = DEVICE - Sectors(1);
    let id = small.add(22);
    assert_eq!(kind(&small, id), CommandErrorKind::TooSmall);

    world.silence(0);
    world.silence(1);
    let suspended = world.add(23);
    assert_eq!(kind(&world, suspended), CommandErrorKind::Busy);
}

#[test]
fn a_refused_device_is_let_go_of_unless_it_is_known() {
    let mut world = World::new(Setup::default());
    let known = world.add(0);
    assert_eq!(kind(&world, known), CommandErrorKind::Busy);
    assert!(world.released.is_empty());

    world.add(9);
    world.settle();
    remove(&mut world, 9);
    world.settle();
    assert_eq!(world.released, [9]);
    world.devices.get_mut(&9).unwrap().sectors = DEVICE - Sectors(1);
    let small = world.add(9);
    assert_eq!(kind(&world, small), CommandErrorKind::TooSmall);
    assert_eq!(world.released, [9, 9]);

    // Another channel to the place of a member.
    let device = crate::array::Device {
        handle: MemberHandle(30),
        name: "d1".into(),
        sectors: DEVICE,
        volatile: false,
        boot: None,
    };
    let again = world.command(Command::Add { device, device_uuid: [30; 16] });
    assert_eq!(kind(&world, again), CommandErrorKind::Busy);
    assert_eq!(world.released, [9, 9, 30]);

    world.command(Command::Stop { abandon: false });
    let late = world.add(10);
    assert_eq!(kind(&world, late), CommandErrorKind::Stopping);
    assert_eq!(world.stopped, Some(0));
}

#[test]
fn all_commands_that_a_fence_ends_are_answered_at_once() {
    let mut world = World::new(Setup::default());
    world.try_crashes = false;
    world.silence(0);
    let ids: Vec<_> = (100..220).map(|handle| world.add(handle)).collect();
    world.settle();
    assert!(ids.iter().all(|id| !world.answers.contains_key(id)), "not recorded while a member is silent");
    world.event(1, MemberEvent::Fenced);
    assert!(ids.iter().all(|id| kind(&world, *id) == CommandErrorKind::ReadOnly));
}

#[test]
fn a_candidate_that_fails_is_let_go_of() {
    // At its first read, and at its first write.
    for reads in 0..2 {
        let mut world = World::new(Setup::default());
        let id = world.add(9);
        for _ in 0..reads {
            world.step_meta(0);
        }
        world.devices.get_mut(&9).unwrap().status = IoStatus::Failed;
        world.settle();
        assert_eq!(kind(&world, id), CommandErrorKind::Io);
        assert_eq!(world.array.degraded(), 0);
        if reads == 0 {
            assert_eq!(world.released, [9]);
        } else {
            assert_eq!(world.superblock(0).role_of(4), Role::Faulty);
            remove(&mut world, 9);
            world.settle();
            assert_eq!(world.released, [9]);
        }
    }
}

#[test]
fn a_missing_device_of_the_same_name_is_replaced() {
    let mut world = World::new(Setup::default());
    world.silence(2);
    world.pass(31 * SECOND);
    // The same place, a fresh disk, a new channel.
    let device = crate::array::Device {
        handle: MemberHandle(30),
        name: "d2".into(),
        sectors: DEVICE,
        volatile: false,
        boot: None,
    };
    let mut fresh = world.devices[&2].clone();
    fresh.mute = false;
    *fresh.stored = [0; 4096];
    world.devices.insert(30, fresh);
    world.try_crashes = false;
    let id = world.command(Command::Add { device, device_uuid: [30; 16] });
    world.settle();
    assert_eq!(world.answers[&id], Ok(()));
    assert_eq!(world.released, [2]);
    assert_eq!(world.array.degraded(), 0);
    assert_eq!(world.array.handle_of("d2"), Some(MemberHandle(30)));
}

#[test]
fn commands_wait_for_members_that_are_silent_then_end() {
    let mut world = World::new(Setup::default());
    world.silence(3);
    let id = fail(&mut world, 3);
    world.settle();
    assert_eq!(world.answers[&id], Ok(()), "the silent member itself can be failed");
    let mut world = World::new(Setup::default());
    world.silence(3);
    let id = world.add(9);
    world.settle();
    assert!(!world.answers.contains_key(&id));
    world.unsilence(3);
    world.settle();
    assert_eq!(world.answers[&id], Ok(()));
}

#[test]
fn many_devices_over_time_get_numbers_that_fit() {
    let mut world = World::new(Setup::default());
    world.try_crashes = false;
    for handle in 100..260 {
        let id = world.add(handle);
        world.settle();
        assert_eq!(world.answers[&id], Ok(()));
        remove(&mut world, handle);
        world.settle();
        world.devices.remove(&handle);
    }
    assert_eq!(world.superblock(0).roles.len(), 128);
    world.add(300);
    world.settle();
    assert_eq!(world.superblock(300).dev_number, 164);
    assert_eq!(world.superblock(0).roles.len(), 384);
    assert_eq!(world.superblock(0).role_of(164), Role::Spare);
}
