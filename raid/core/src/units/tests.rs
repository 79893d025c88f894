//! Tests of the units: rounding, conversions, and the member set against the standard library's set.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[test]
fn positions_and_lengths() {
    let start = Sector(100);
    assert_eq!(start + Sectors(28), Sector(128));
    assert_eq!(Sector(128) - start, Sectors(28));
    assert_eq!(Sector(128) - Sectors(28), start);
    assert_eq!(Sector(3).bytes(), Bytes(1536));
    assert_eq!(Sector(u64::MAX).checked_add(Sectors(1)), None);
    assert_eq!(Sector(1).checked_add(Sectors(1)), Some(Sector(2)));
    assert_eq!([Sectors(1), Sectors(2)].into_iter().sum::<Sectors>(), Sectors(3));
}

#[test]
fn rounding() {
    assert_eq!(Sectors(1000).round_down(Sectors(128)), Sectors(896));
    assert_eq!(Sectors(1000).round_up(Sectors(128)), Sectors(1024));
    assert_eq!(Sectors(1024).round_up(Sectors(128)), Sectors(1024));
    assert_eq!(Bytes(1023).whole_sectors(), None);
    assert_eq!(Bytes(1024).whole_sectors(), Some(Sectors(2)));
    assert_eq!(Bytes(1023).sectors_within(), Sectors(1));
}

#[test]
fn all_members() {
    assert_eq!(MemberSet::all(MemberCount(0)), MemberSet::EMPTY);
    assert_eq!(MemberSet::all(MemberCount(3)), MemberSet(0b111));
    assert_eq!(MemberSet::all(MemberCount(64)).len(), 64);
    assert_eq!(MemberCount(3).indices().collect::<MemberSet>(), MemberSet(0b111));
}

#[test]
fn set_prints_slots() {
    assert_eq!(MemberSet(0b1001).to_string(), "0, 3");
    assert_eq!(MemberSet::EMPTY.to_string(), "none");
    assert_eq!(format!("{:?}", MemberSet(0b1001)), "{0, 3}");
}

fn slow(set: MemberSet) -> BTreeSet<u8> {
    (0..64).filter(|&slot| set.contains(MemberIndex(slot))).collect()
}

proptest! {
    #[test]
    fn set_equals_a_slow_set(a: u64, b: u64, slot in 0u8..64) {
        let (a, b, member) = (MemberSet(a), MemberSet(b), MemberIndex(slot));
        let (slow_a, slow_b) = (slow(a), slow(b));
        prop_assert_eq!(a.iter().map(|m| m.0).collect::<Vec<_>>(), slow_a.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!(a.iter().len(), slow_a.len());
        prop_assert_eq!(slow(a.union(b)), &slow_a | &slow_b);
        prop_assert_eq!(slow(a.minus(b)), &slow_a - &slow_b);
        prop_assert_eq!(slow(a.intersection(b)), &slow_a & &slow_b);
        prop_assert_eq!(a.intersects(b), !slow_a.is_disjoint(&slow_b));
        prop_assert_eq!(a.contains_all(b), slow_b.is_subset(&slow_a));
        prop_assert_eq!(a.first().map(|m| m.0), slow_a.first().copied());
        prop_assert!(a.with(member).contains(member));
        prop_assert!(!a.without(member).contains(member));
        prop_assert_eq!(a.iter().collect::<MemberSet>(), a);
    }
}
