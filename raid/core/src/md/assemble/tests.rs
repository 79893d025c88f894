//! Tests of assembly: each rule and refusal on superblocks made for it. Arrays of the Linux kernel are assembled in the crate's `tests` folder.

use proptest::prelude::*;

use super::*;
use crate::md::Minor;
use crate::md::create::tests_support::superblocks;
use crate::md::superblock::Timestamp;

const SIZE: Sectors = Sectors(12288);

/// A clean array of `members` members at event count 10, each device listed in every table.
fn array(members: u8) -> Vec<Superblock> {
    let mut array = superblocks(members);
    for superblock in &mut array {
        superblock.events = 10;
        superblock.resync_offset = None;
    }
    array
}

fn candidates(array: &[Superblock]) -> Vec<Candidate<String>> {
    let name = |superblock: &Superblock| format!("d{}", superblock.dev_number);
    array.iter().map(|sb| Candidate { device: name(sb), size: SIZE, superblock: Ok(sb.clone()) }).collect()
}

fn assembled(array: &[Superblock], options: Options) -> Assembly<String> {
    assemble(candidates(array), &options).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn refused(array: &[Superblock], options: Options) -> Refusal<String> {
    match assemble(candidates(array), &options) {
        Ok(assembly) => panic!("assembled: {assembly:?}"),
        Err(refusal) => refusal,
    }
}

fn set(members: &[u8]) -> MemberSet {
    members.iter().map(|&member| MemberIndex(member)).collect()
}

/// The array goes on without `gone`: `writes` events later the others record it as failed.
fn lose(array: &mut [Superblock], gone: usize, writes: u64) {
    let number = array[gone].dev_number as usize;
    for (index, superblock) in array.iter_mut().enumerate() {
        if index != gone {
            superblock.roles[number] = Role::Faulty;
            superblock.events += writes;
        }
    }
}

const PLAIN: Options =
    Options { uuid: None, run: false, force: false, support: Support { bitmap: false, ppl: false, bad_blocks: false } };
const RUN: Options = Options { run: true, ..PLAIN };
const FORCE: Options = Options { force: true, ..PLAIN };

#[test]
fn a_clean_array() {
    let assembly = assembled(&array(4), PLAIN);
    assert_eq!((assembly.in_sync(), assembly.degraded(), assembly.dirty()), (set(&[0, 1, 2, 3]), 0, false));
    assert_eq!((assembly.recovering(), assembly.missing()), (MemberSet::EMPTY, MemberSet::EMPTY));
    assert_eq!(assembly.geometry.members().0, 4);
    // Order does not matter: slots come from the tables.
    let mut reversed = array(4);
    reversed.reverse();
    let slots = assembled(&reversed, PLAIN).slots;
    let names: Vec<String> = slots.into_iter().map(|seat| seat.unwrap().device).collect();
    assert_eq!(names, ["d0", "d1", "d2", "d3"]);
}

#[test]
fn a_device_number_is_not_a_slot() {
    // As after mdadm's own creation: the last member has number 4 and slot 3.
    let mut array = array(4);
    for superblock in &mut array {
        superblock.roles[3] = Role::Faulty;
        superblock.roles[4] = Role::Active(3);
    }
    array[3].dev_number = 4;
    assert_eq!(assembled(&array, PLAIN).slots[3].as_ref().unwrap().device, "d4");
}

#[test]
fn nothing_to_assemble() {
    assert!(matches!(refused(&[], PLAIN), Refusal::NoMembers { .. }));
    let none = Candidate::<String> { device: "d0".into(), size: SIZE, superblock: Err(SuperblockError::Magic(0)) };
    let refusal = assemble(vec![none], &PLAIN).unwrap_err();
    assert!(refusal.to_string().contains("d0: no md superblock"), "{refusal}");
    let mut spare = array(3).swap_remove(0);
    spare.dev_number = 3;
    assert!(matches!(refused(&[spare], PLAIN), Refusal::NoMembers { .. }));
}

#[test]
fn a_missing_member_needs_run_unless_it_was_missing_before() {
    let mut array = array(4);
    let refusal = refused(&array[1..], PLAIN);
    assert!(matches!(refusal, Refusal::Missing { missing, .. } if missing == set(&[0])), "{refusal}");
    assert_eq!(assembled(&array[1..], RUN).missing(), set(&[0]));
    lose(&mut array, 0, 1);
    assert_eq!(assembled(&array[1..], PLAIN).missing(), set(&[0]));
}

#[test]
fn too_few_members() {
    let array = array(4);
    let refusal = refused(&array[2..], RUN);
    let Refusal::TooFew { in_sync: 2, members: 4, needed: 3, missing, stale: false, .. } = refusal else {
        panic!("{refusal}");
    };
    assert_eq!(missing, set(&[0, 1]));
    // Force invents no members.
    assert!(matches!(refused(&array[2..], FORCE), Refusal::TooFew { .. }));
}

#[test]
fn one_event_behind_is_a_member_by_the_freshest_word() {
    let mut behind = array(4);
    behind[2].events = 9;
    assert_eq!(assembled(&behind, PLAIN).degraded(), 0);
    // Two behind is stale.
    behind[2].events = 8;
    assert!(matches!(refused(&behind, PLAIN), Refusal::Missing { .. }));
    let left_out = assembled(&behind, RUN).left_out;
    assert_eq!(left_out, [("d2".to_owned(), LeftOut::Stale { events: 8, freshest: 10 })]);
    // One behind, but recorded as failed: its own word does not count.
    let mut failed = array(4);
    lose(&mut failed, 2, 1);
    let assembly = assembled(&failed, PLAIN);
    assert_eq!(assembly.left_out, [("d2".to_owned(), LeftOut::Failed)]);
    assert_eq!(assembly.missing(), set(&[2]));
}

#[test]
fn a_member_is_where_the_freshest_has_it() {
    // The freshest moved the device to another slot in the one write the device missed.
    let mut array = array(4);
    for superblock in &mut array[..3] {
        superblock.events = 11;
        superblock.roles[3] = Role::Faulty;
    }
    array[3].roles[3] = Role::Active(3);
    let assembly = assembled(&array, PLAIN);
    assert_eq!((assembly.missing(), assembly.left_out.len()), (set(&[3]), 1));
    for superblock in &mut array[..3] {
        superblock.roles[3] = Role::Active(200);
    }
    assert_eq!(assembled(&array, RUN).left_out, [("d3".to_owned(), LeftOut::Failed)]);
}

#[test]
fn halves_run_apart_are_refused_even_by_force() {
    // Two members each, both halves forced to run.
    let mut halves = array(4);
    for (index, superblock) in halves.iter_mut().enumerate() {
        for other in (0..4).filter(|other| other / 2 != index / 2) {
            superblock.roles[other] = Role::Faulty;
        }
    }
    for (first, second) in [(10, 10), (30, 10), (10, 30), (10, 11)] {
        for (index, superblock) in halves.iter_mut().enumerate() {
            superblock.events = if index < 2 { first } else { second };
        }
        for options in [PLAIN, RUN, FORCE] {
            let refusal = refused(&halves, options);
            assert!(matches!(refusal, Refusal::RunApart { .. }), "{refusal}");
        }
    }
    // Equal counts, where only one records the other as failed.
    let mut array = array(4);
    lose(&mut array, 0, 0);
    assert!(matches!(refused(&array, FORCE), Refusal::RunApart { .. }));
}

#[test]
fn a_member_from_before_another_joined_is_stale_in_any_order() {
    // d1 failed and was replaced by d3, of which its superblock knows nothing.
    let mut array = array(3);
    let mut fresh = array[1].clone();
    (fresh.dev_number, fresh.device_uuid) = (3, Uuid([99; 16]));
    array.push(fresh);
    for index in [0, 2, 3] {
        let superblock = &mut array[index];
        superblock.events = 20;
        (superblock.roles[1], superblock.roles[3]) = (Role::Faulty, Role::Active(1));
    }
    for unknown in [Role::Faulty, Role::Spare] {
        array[1].roles[3] = unknown;
        for order in [[0, 1, 2, 3], [3, 0, 1, 2], [1, 3, 2, 0]] {
            let given: Vec<_> = order.iter().map(|index| array[*index].clone()).collect();
            let assembly = assembled(&given, PLAIN);
            assert_eq!((assembly.degraded(), assembly.left_out.len()), (0, 1), "{order:?}");
            assert!(matches!(assembly.left_out[0].1, LeftOut::Stale { events: 10, freshest: 20 }));
        }
    }
}

#[test]
fn an_older_member_that_records_the_freshest_as_failed() {
    let mut array = array(4);
    array[0].events = 9;
    array[0].roles[1..4].fill(Role::Faulty);
    let assembly = assembled(&array, RUN);
    assert_eq!(assembly.left_out, [("d0".to_owned(), LeftOut::DisagreesWithFreshest)]);
    assert_eq!(assembly.missing(), set(&[0]));
}

#[test]
fn spares_never_count_as_freshest() {
    let mut array = array(3);
    let mut spare = array[0].clone();
    (spare.dev_number, spare.device_uuid, spare.events) = (3, Uuid([99; 16]), 50);
    array.push(spare.clone());
    let assembly = assembled(&array, PLAIN);
    assert_eq!((assembly.freshest.events, assembly.degraded(), assembly.spares.len()), (10, 0, 1));
    // A spare of another shape is no reason to refuse.
    array[3].raid_disks = 7;
    let assembly = assembled(&array, PLAIN);
    assert_eq!((assembly.spares.len(), assembly.left_out.len()), (0, 1));
    // One that says that it has failed is none.
    array[3] = spare;
    array[3].roles[3] = Role::Faulty;
    assert_eq!(assembled(&array, PLAIN).left_out, [("d3".to_owned(), LeftOut::Failed)]);
}

#[test]
fn a_recovering_member_counts_as_degraded() {
    let mut array = array(4);
    array[3].set_recovery(Some(Sector(4096)));
    let assembly = assembled(&array, PLAIN);
    assert_eq!((assembly.degraded(), assembly.recovering(), assembly.missing()), (1, set(&[3]), MemberSet::EMPTY));
    assert_eq!(assembly.slots[3].as_ref().unwrap().recovered, Some(Sector(4096)));
    // With another one missing too few are in sync, and force does not use the half-recovered one.
    for options in [RUN, FORCE] {
        assert!(matches!(refused(&array[1..], options), Refusal::TooFew { in_sync: 2, .. }));
    }
    for superblock in &mut array {
        superblock.resync_offset = Some(Sector(0));
    }
    assert!(matches!(refused(&array, PLAIN), Refusal::DirtyDegraded { missing } if missing == set(&[3])));
}

#[test]
fn dirty_arrays_are_resynced_from_the_lowest_mark() {
    let mut array = array(4);
    array[1].resync_offset = Some(Sector(5000));
    array[2].resync_offset = Some(Sector(3000));
    assert_eq!(assembled(&array, PLAIN).resync_from, Some(Sector(3000)));
    // A crash while the members are marked dirty: the freshest are, the one behind not yet.
    for superblock in &mut array[..3] {
        (superblock.events, superblock.resync_offset) = (11, Some(Sector(0)));
    }
    assert_eq!(assembled(&array, PLAIN).resync_from, Some(Sector(0)));
    // While they are marked clean: the one behind is still dirty, which says nothing new.
    for superblock in &mut array[..3] {
        (superblock.events, superblock.resync_offset) = (12, None);
    }
    (array[3].events, array[3].resync_offset) = (11, Some(Sector(0)));
    assert_eq!(assembled(&array, PLAIN).resync_from, None);
}

#[test]
fn dirty_and_degraded_needs_force() {
    let mut array = array(4);
    for superblock in &mut array {
        superblock.resync_offset = Some(Sector(0));
    }
    assert!(matches!(refused(&array[1..], PLAIN), Refusal::Missing { .. }));
    assert!(matches!(refused(&array[1..], RUN), Refusal::DirtyDegraded { missing } if missing == set(&[0])));
    let forced = assembled(&array[1..], FORCE);
    assert_eq!((forced.dirty(), forced.missing()), (true, set(&[0])));
}

#[test]
fn force_takes_the_least_stale() {
    let mut array = array(4);
    lose(&mut array, 0, 10);
    lose(&mut array[1..], 0, 10);
    array[0].events = 10;
    // Events: 10, 20, 30, 30; two in sync of three needed.
    assert!(matches!(refused(&array, RUN), Refusal::TooFew { in_sync: 2, stale: true, .. }));
    let forced = assembled(&array, FORCE);
    assert_eq!(forced.missing(), set(&[0]));
    assert_eq!(forced.slots.iter().flatten().map(|seat| seat.forced).collect::<Vec<_>>(), [true, false, false]);
    // Not one that was being recovered.
    array[1].set_recovery(Some(Sector(8)));
    assert_eq!(assembled(&array, FORCE).missing(), set(&[1]));
    // Nor one of another shape.
    array[0].chunk = Sectors(64);
    assert!(matches!(refused(&array, FORCE), Refusal::TooFew { .. }));
    // With enough fresh members none is taken.
    let mut array = superblocks(4);
    lose(&mut array, 0, 10);
    array.iter_mut().for_each(|superblock| superblock.resync_offset = None);
    assert_eq!(assembled(&array, FORCE).missing(), set(&[0]));
}

#[test]
fn duplicates() {
    let mut array = array(4);
    array.push(array[1].clone());
    let refusal = refused(&array, PLAIN);
    assert!(
        matches!(&refusal, Refusal::Duplicate { first, second, .. } if first == "d1" && second == "d1"),
        "{refusal}"
    );
    // Another device with the same slot.
    array[4].device_uuid = Uuid([77; 16]);
    let refusal = refused(&array, FORCE);
    assert!(matches!(refusal, Refusal::SlotTwice { slot: MemberIndex(1), .. }), "{refusal}");
}

#[test]
fn a_replacement_waits() {
    let mut array = array(3);
    for superblock in &mut array {
        superblock.roles[3] = Role::Active(1);
    }
    let mut replacement = array[1].clone();
    (replacement.dev_number, replacement.device_uuid) = (3, Uuid([77; 16]));
    replacement.features = Features::REPLACEMENT;
    replacement.set_recovery(Some(Sector(64)));
    array.push(replacement);
    let assembly = assembled(&array, PLAIN);
    assert_eq!(assembly.left_out, [("d3".to_owned(), LeftOut::Replacement(MemberIndex(1)))]);
    assert_eq!(assembly.degraded(), 0);
}

#[test]
fn disagreements() {
    type Change = fn(&mut Superblock);
    let changes: [(&str, Change); 6] = [
        ("level", |sb| sb.level = 4),
        ("layout", |sb| sb.layout = 3),
        ("chunk size", |sb| sb.chunk = Sectors(64)),
        ("component size", |sb| sb.size = Sectors(5120)),
        ("number of members", |sb| sb.raid_disks = 5),
        ("creation time", |sb| sb.ctime = Timestamp(5)),
    ];
    for (field, change) in changes {
        let mut array = array(4);
        change(&mut array[2]);
        let refusal = refused(&array, FORCE);
        assert!(matches!(refusal, Refusal::Disagree { field: found, .. } if found == field), "{field}: {refusal}");
        // A stale device is left out in any case.
        array[2].events = 5;
        assert_eq!(assembled(&array, RUN).missing(), set(&[2]), "{field}");
    }
    let mut minors = array(4);
    (minors[2].minor, minors[2].super_offset) = (Minor::V1, Sector(0));
    assert!(matches!(refused(&minors, FORCE), Refusal::Disagree { field: "metadata version", .. }));
}

#[test]
fn unsupported_features_of_any_member() {
    for member in 0..4 {
        let mut array = array(4);
        array[member].features = Features::BAD_BLOCKS;
        let refusal = refused(&array, PLAIN);
        assert!(matches!(refusal, Refusal::Unsupported { what: Unsupported::BadBlocks, .. }), "{refusal}");
        let support = Support { bad_blocks: true, ..PLAIN.support };
        assert_eq!(assembled(&array, Options { support, ..PLAIN }).degraded(), 0);
    }
}

#[test]
fn every_refusal_says_what_and_what_to_try() {
    let mut dirty = array(4);
    dirty.iter_mut().for_each(|superblock| superblock.resync_offset = Some(Sector(0)));
    let mut twice = array(4);
    twice.push(twice[1].clone());
    for (refusal, words) in [
        (refused(&array(4)[1..], PLAIN), ["slots 0", "--run"]),
        (refused(&array(4)[2..], PLAIN), ["2 of 4 members", "slots missing: 0, 1"]),
        (refused(&dirty[1..], RUN), ["dirty", "--force"]),
        (refused(&twice, RUN), ["d1", "give only one"]),
    ] {
        let text = refusal.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Whatever histories the superblocks tell, nothing panics, and what starts is sound.
    #[test]
    fn any_history(
        events in prop::collection::vec(8u64..13, 5), roles in prop::collection::vec(0u8..24, 25),
        dirty: u8, recovering in 0u8..8, present: u8, run: bool, force: bool,
    ) {
        let mut array = array(5);
        for (index, superblock) in array.iter_mut().enumerate() {
            superblock.events = events[index];
            superblock.resync_offset = (dirty >> index & 1 == 1).then_some(Sector(128));
            superblock.set_recovery((usize::from(recovering) == index).then_some(Sector(64)));
            for device in 0..5 {
                // Mostly the plain role, at times failed, a spare, or another slot.
                superblock.roles[device] = match roles[index * 5 + device] {
                    0 => Role::Faulty,
                    1 => Role::Spare,
                    2 => Role::Active(7),
                    3 => Role::Active(((device + 1) % 5) as u16),
                    _ => Role::Active(device as u16),
                };
            }
        }
        let mut candidates = candidates(&array);
        let mut index = 0;
        candidates.retain(|_| { index += 1; present >> (index - 1) & 1 == 1 });
        let given = candidates.len();
        let Ok(assembly) = assemble(candidates, &Options { run, force, ..PLAIN }) else { return Ok(()) };
        prop_assert!(assembly.in_sync().len() >= 4);
        prop_assert!(force || !assembly.dirty() || assembly.degraded() == 0);
        let seated = assembly.slots.iter().flatten().count();
        prop_assert_eq!(seated + assembly.spares.len() + assembly.left_out.len(), given);
        for (slot, seat) in assembly.slots.iter().enumerate() {
            let Some(seat) = seat else { continue };
            let superblock = &seat.superblock;
            prop_assert!(seat.forced || superblock.events + 1 >= assembly.freshest.events);
            let by_freshest = assembly.freshest.role_of(superblock.dev_number);
            prop_assert!(seat.forced || by_freshest == Role::Active(slot as u16));
            prop_assert!(force || !seat.forced);
        }
    }
}
