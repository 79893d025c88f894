//! Tests of the geometry: the published tables of each layout, refusals, and every sector of small arrays there and back.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn geometry(members: u8, layout: Layout) -> Geometry {
    Geometry::new(MemberCount(members), Sectors(8), Sectors(8 * 40), layout).unwrap()
}

/// A row as md's documentation draws it: array chunk numbers in slot order, P for parity.
fn row(geometry: &Geometry, stripe: u64) -> String {
    geometry
        .members()
        .indices()
        .map(|member| match geometry.data_index(StripeIndex(stripe), member) {
            None => "P".to_owned(),
            Some(data) => (geometry.array_sector(StripeIndex(stripe), data, Sectors::ZERO).0 / 8).to_string(),
        })
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn layouts_as_drawn() {
    let table = [
        (Layout::LeftAsymmetric, ["0 1 2 P", "3 4 P 5", "6 P 7 8", "P 9 10 11", "12 13 14 P"]),
        (Layout::RightAsymmetric, ["P 0 1 2", "3 P 4 5", "6 7 P 8", "9 10 11 P", "P 12 13 14"]),
        (Layout::LeftSymmetric, ["0 1 2 P", "4 5 P 3", "8 P 6 7", "P 9 10 11", "12 13 14 P"]),
        (Layout::RightSymmetric, ["P 0 1 2", "5 P 3 4", "7 8 P 6", "9 10 11 P", "P 12 13 14"]),
        (Layout::ParityFirst, ["P 0 1 2", "P 3 4 5", "P 6 7 8", "P 9 10 11", "P 12 13 14"]),
        (Layout::ParityLast, ["0 1 2 P", "3 4 5 P", "6 7 8 P", "9 10 11 P", "12 13 14 P"]),
    ];
    for (layout, rows) in table {
        let geometry = geometry(4, layout);
        for (stripe, want) in rows.into_iter().enumerate() {
            assert_eq!(row(&geometry, stripe as u64), want, "{layout} row {stripe}");
        }
    }
}

#[test]
fn every_sector_there_and_back() {
    for layout in Layout::ALL {
        for members in [2, 3, 4, 5, 8, 17] {
            let geometry = geometry(members, layout);
            let mut places = BTreeSet::new();
            for sector in (0..geometry.array_sectors().0).map(Sector) {
                let at = geometry.locate(sector);
                assert_eq!(geometry.array_sector(at.stripe, at.data, at.in_chunk), sector);
                assert_eq!(geometry.data_index(at.stripe, at.member), Some(at.data));
                assert_eq!(geometry.data_member(at.stripe, at.data), at.member);
                assert_eq!(geometry.array_sector_on(at.member, at.member_sector), Some(sector));
                assert_ne!(geometry.parity_member(at.stripe), at.member);
                assert!(at.member_sector.0 < geometry.component_size().0);
                assert!(places.insert((at.member, at.member_sector)), "{layout}: two sectors in one place");
            }
        }
    }
}

#[test]
fn sizes() {
    let geometry = Geometry::new(MemberCount(5), Sectors(128), Sectors(1000), Layout::LeftSymmetric).unwrap();
    assert_eq!(geometry.component_size(), Sectors(896));
    assert_eq!(geometry.stripes(), 7);
    assert_eq!(geometry.array_sectors(), Sectors(896 * 4));
    assert_eq!(geometry.stripe_sectors(), Sectors(512));
    assert_eq!((geometry.data_count(), geometry.parity_count()), (4, 1));
    assert_eq!(geometry.stripe_at(Sector(130)), (StripeIndex(1), Sectors(2)));
    assert_eq!(geometry.data_members(StripeIndex(0)), MemberSet(0b1111));
}

#[test]
fn refusals() {
    let make = |members, chunk, size| {
        Geometry::new(MemberCount(members), Sectors(chunk), Sectors(size), Layout::LeftSymmetric).unwrap_err()
    };
    assert_eq!(make(1, 8, 800), GeometryError::Members(MemberCount(1)));
    assert_eq!(make(65, 8, 800), GeometryError::Members(MemberCount(65)));
    assert_eq!(make(4, 24, 800), GeometryError::Chunk(Sectors(24)));
    assert_eq!(make(4, 4, 800), GeometryError::Chunk(Sectors(4)));
    assert_eq!(make(4, 0, 800), GeometryError::Chunk(Sectors(0)));
    assert_eq!(make(4, 1 << 22, 1 << 40), GeometryError::Chunk(Sectors(1 << 22)));
    assert_eq!(make(4, 128, 127), GeometryError::TooSmall { size: Sectors(127), chunk: Sectors(128) });
    assert_eq!(make(4, 128, 1 << 62), GeometryError::TooLarge(Sectors(1 << 62)));
    assert_eq!(make(4, 128, u64::MAX), GeometryError::TooLarge(Sectors(u64::MAX)));
}

#[test]
#[should_panic(expected = "beyond the array")]
fn a_sector_beyond_the_end_is_caught() {
    let geometry = geometry(4, Layout::LeftSymmetric);
    geometry.locate(Sector(geometry.array_sectors().0));
}

#[test]
fn layout_names_and_numbers() {
    for layout in Layout::ALL {
        assert_eq!(layout.name().parse(), Ok(layout));
        assert_eq!(Layout::from_number(layout.number()), Some(layout));
    }
    assert_eq!("ls".parse(), Ok(Layout::LeftSymmetric));
    assert_eq!("ra".parse(), Ok(Layout::RightAsymmetric));
    assert_eq!("la".parse(), Ok(Layout::LeftAsymmetric));
    assert_eq!("rs".parse(), Ok(Layout::RightSymmetric));
    assert_eq!("left".parse::<Layout>(), Err(UnknownLayout("left".to_owned())));
    assert_eq!(Layout::from_number(6), None);
    assert_eq!(Layout::from_number(u32::MAX), None);
}

proptest! {
    #[test]
    fn large_arrays_there_and_back(
        members in 2u8..=64, chunk_shift in 3u32..=21, stripes in 1u64..1 << 34, layout in 0u32..6, pick: u64,
    ) {
        let layout = Layout::from_number(layout).unwrap();
        let geometry =
            Geometry::new(MemberCount(members), Sectors(1 << chunk_shift), Sectors(stripes << chunk_shift), layout)
                .unwrap();
        let sector = Sector(pick % geometry.array_sectors().0);
        let at = geometry.locate(sector);
        prop_assert_eq!(geometry.array_sector_on(at.member, at.member_sector), Some(sector));
        prop_assert_eq!(geometry.array_sector_on(geometry.parity_member(at.stripe), at.member_sector), None);
        prop_assert!(at.member.0 < members && at.member_sector.0 < geometry.component_size().0);
    }
}
