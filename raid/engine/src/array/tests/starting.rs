//! Starting what was left on the devices.

use std::time::Duration;

use raid_core::md::assemble::Options;
use raid_core::md::superblock::ROLES_MAX;
use raid_core::md::{Role, Superblock};
use raid_core::units::Sector;

use super::world::{FakeDevice, Setup, World, created};
use crate::array::Command;
use crate::message::{MemberHandle, MemberState};

const SECOND: Duration = Duration::from_secs(1);
const FORCE: Options = Options {
    uuid: None,
    run: true,
    force: true,
    support: raid_core::md::superblock::Support { bitmap: false, ppl: false, bad_blocks: false },
};

fn change(device: &mut FakeDevice, change: impl FnOnce(&mut Superblock)) {
    let mut superblock = super::world::parse(&device.stored, device.sectors).unwrap();
    change(&mut superblock);
    superblock.emit(&mut device.stored);
}

#[test]
fn a_member_that_lags_is_brought_up_to_date() {
    let mut devices = created(&Setup::default());
    for handle in [0, 1, 3] {
        change(devices.get_mut(&handle).unwrap(), |superblock| superblock.events = 1);
    }
    let mut world = World::from_devices(Setup::default(), devices, &Options::default());
    world.settle();
    assert_eq!(world.array.degraded(), 0);
    assert_eq!(world.superblock(2).events, 2);
    assert_eq!(world.superblock(0).events, 2);
}

#[test]
fn a_slot_without_a_device_is_recorded_before_writes() {
    let mut devices = created(&Setup::default());
    let gone = devices.remove(&1).unwrap();
    let mut world = World::from_devices(Setup::default(), devices, &Options { run: true, ..Options::default() });
    assert_eq!(world.state(1), MemberState::Absent);
    world.write(0);
    world.settle();
    assert!(!world.is_waiting(0));
    assert_eq!(world.superblock(0).role_of(1), Role::Faulty);

    // Next time the device is there again, and is out of date.
    world.pass(SECOND);
    let mut devices = world.devices;
    devices.insert(1, gone);
    let mut world = World::from_devices(Setup::default(), devices, &Options::default());
    assert_eq!(world.state(1), MemberState::Absent);
    world.try_crashes = false;
    world.settle();
    assert_eq!(world.state(1), MemberState::InSync, "rebuilt by itself");
    assert_eq!(world.role(1), Role::Active(1));
}

#[test]
fn dirty_and_degraded_by_force_has_nothing_to_resync_with() {
    let mut devices = created(&Setup { assume_clean: false, ..Setup::default() });
    devices.remove(&1);
    let mut world = World::from_devices(Setup::default(), devices, &FORCE);
    assert_eq!(world.view().parity_trusted_below, Sector(u64::MAX));
    world.settle();
    assert_eq!(world.detail().state, "clean, degraded");
    assert_eq!(world.superblock(0).resync_offset, None);
}

#[test]
fn what_was_found_counts_only_until_something_else_is_written() {
    let mut devices = created(&Setup { assume_clean: false, ..Setup::default() });
    devices.remove(&1);
    let mut world = World::from_devices(Setup::default(), devices, &FORCE);
    world.settle();
    assert_eq!(world.superblock(0).resync_offset, None, "clean, as there is nothing to resync with");
    // It is to say what it said when it was found; it does not any more.
    world.write(0);
    world.settle();
    assert_eq!(world.superblock(0).resync_offset, Some(Sector::ZERO));
}

#[test]
fn a_member_that_is_back_is_not_taken_for_another_half() {
    let mut world = World::new(Setup { spares: 1, ..Setup::default() });
    world.try_crashes = false;
    world.silence(1);
    world.pass(31 * SECOND);
    world.settle();
    assert_eq!((world.role(1), world.role(4)), (Role::Faulty, Role::Active(1)));
    // What device 0 has seen last is that device 1 has failed; then it is lost as well, and device 1 takes its place.
    let last = world.devices[&0].clone();
    world.unsilence(1);
    world.settle();
    assert_eq!(world.role(1), Role::Spare);
    world.silence(0);
    world.pass(31 * SECOND);
    world.settle();
    assert_eq!((world.role(0), world.role(1)), (Role::Faulty, Role::Active(0)));
    let mut devices = world.devices;
    devices.insert(0, last);
    let mut world = World::from_devices(Setup::default(), devices, &Options::default());
    world.try_crashes = false;
    world.settle();
    assert_eq!(world.role(0), Role::Spare, "it was only out of date");
}

#[test]
fn a_member_taken_by_force_makes_all_parity_suspect() {
    let mut devices = created(&Setup::default());
    for handle in [0, 1, 3] {
        change(devices.get_mut(&handle).unwrap(), |superblock| superblock.events = 7);
    }
    // Slot 3 is half rebuilt, so the member in slot 2 is needed, though out of date.
    change(devices.get_mut(&3).unwrap(), |superblock| superblock.set_recovery(Some(Sector(1024))));
    let mut world = World::from_devices(Setup::default(), devices, &FORCE);
    world.try_crashes = false;
    world.sync_held = true;
    world.settle();
    assert_eq!(world.view().parity_trusted_below, Sector::ZERO);
    assert_eq!(world.state(3), MemberState::Recovering { below: Sector(1024) });
    assert_eq!(world.superblock(2).events, world.superblock(0).events);
    world.sync_held = false;
    world.settle();
    assert_eq!(world.detail().last_sync_action, Some("resync"));
    assert_eq!(world.view().parity_trusted_below, Sector(u64::MAX));
    assert_eq!(world.detail().state, "clean");
}

#[test]
fn a_spare_of_mdadm_is_marked_as_not_rebuilt_before_it_gets_a_slot() {
    let mut world = World::new(Setup { spares: 1, ..Setup::default() });
    world.settle();
    assert_eq!(world.superblock(4).recovery(), Some(Sector::ZERO));
    assert_eq!(world.role(4), Role::Spare);
    let events = world.superblock(0).events;
    let again = World::from_devices(Setup::default(), world.devices, &Options::default());
    assert!(again.trace.is_empty());
    assert_eq!(again.superblock(0).events, events);
}

#[test]
fn a_stale_device_whose_number_was_given_away_gets_another() {
    let mut world = World::new(Setup::default());
    world.try_crashes = false;
    world.command(Command::Fail(MemberHandle(1)));
    world.settle();
    world.add(9);
    world.settle();
    assert_eq!((world.superblock(9).dev_number, world.role(9)), (4, Role::Active(1)));

    // A run without it forgets it, and its number goes to another.
    let mut devices = world.devices;
    devices.remove(&1);
    let old = devices.remove(&9).unwrap();
    let mut world = World::from_devices(Setup::default(), devices, &Options { run: true, ..Options::default() });
    world.try_crashes = false;
    world.settle();
    world.add(10);
    world.settle();
    assert_eq!((world.superblock(10).dev_number, world.role(10)), (4, Role::Active(1)));

    let mut devices = world.devices;
    devices.insert(9, old);
    let mut world = World::from_devices(Setup::default(), devices, &Options::default());
    world.try_crashes = false;
    world.settle();
    // Another again when it comes back: the first is for telling the two apart at once.
    assert_eq!(world.superblock(9).dev_number, 6);
    for handle in [0, 2, 3, 9, 10] {
        let superblock = world.superblock(handle);
        assert_eq!((superblock.role_of(4), superblock.role_of(6)), (Role::Active(1), Role::Spare));
    }
    assert_eq!(world.superblock(9).role(), Role::Spare);
    assert_eq!(world.superblock(9).events, world.superblock(0).events);
}

#[test]
fn spares_get_numbers_that_differ_and_fit() {
    for number in [4, 1919, ROLES_MAX as u32, u32::MAX] {
        let setup = Setup { spares: 2, ..Setup::default() };
        let mut devices = created(&setup);
        for handle in [4, 5] {
            change(devices.get_mut(&handle).unwrap(), |superblock| superblock.dev_number = number);
        }
        let mut world = World::from_devices(setup, devices, &Options::default());
        world.try_crashes = false;
        world.settle();
        let rows = world.detail().devices;
        let mut numbers: Vec<_> = rows.iter().map(|row| row.number.unwrap()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), rows.len(), "number {number}");
        assert!(numbers.iter().all(|number| (*number as usize) < ROLES_MAX), "{numbers:?}");
    }
}

#[test]
fn numbers_that_are_used_again_belong_to_nobody() {
    let setup = Setup { spares: 2, ..Setup::default() };
    let mut devices = created(&setup);
    change(devices.get_mut(&4).unwrap(), |superblock| superblock.dev_number = ROLES_MAX as u32 - 1);
    let mut world = World::from_devices(setup, devices, &Options::default());
    world.try_crashes = false;
    for handle in 20..23 {
        world.add(handle);
        world.settle();
    }
    let numbers: Vec<_> = world.detail().devices.iter().skip(4).map(|row| row.number.unwrap()).collect();
    // The one with the highest number, which no table has, comes back as a new one.
    assert_eq!(numbers, [5, 6, 4, 7, 8]);
}
