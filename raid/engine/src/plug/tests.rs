//! Tests of splitting and sorting: parts cover a request exactly once, in its order, each within a chunk.

use proptest::prelude::*;
use raid_core::geometry::Layout;
use raid_core::parity::Kernels;
use raid_core::units::MemberCount;

use super::*;
use crate::slab::{Arena, Slab};

fn geometry(members: u8, chunk: u64, layout: Layout) -> Geometry {
    Geometry::new(MemberCount(members), Sectors(chunk), Sectors(chunk * 64), layout).expect("valid")
}

fn arena(sectors: u32) -> Arena {
    let slab = Slab::with_bytes(Kernels::portable(), 256 << 20).expect("address space");
    slab.arena(sectors as usize * 512).expect("room")
}

fn whole(op: PartOp, at: u64, sectors: u64, memory: Memory) -> Whole {
    Whole { client: ClientId(3), request: 9, op, at: Sector(at), sectors: Sectors(sectors), memory }
}

#[test]
fn a_request_within_a_chunk_is_one_part() {
    let arena = arena(64);
    let piece = arena.piece().sub(0, 8);
    let mut parts = Vec::new();
    let request = whole(PartOp::Read, 128 + 5, 8, Memory::Piece(piece));
    assert_eq!(split(&geometry(5, 128, Layout::LeftSymmetric), &request, &mut parts), 1);
    let part = parts[0];
    assert_eq!((part.client, part.request, part.op), (ClientId(3), 9, PartOp::Read));
    assert_eq!((part.stripe, part.data, part.from, part.sectors), (StripeIndex(0), DataIndex(1), 5, 8));
    assert_eq!(part.piece, piece);
}

#[test]
fn an_empty_request_has_no_part() {
    let mut parts = Vec::new();
    let request = whole(PartOp::Read, 0, 0, Memory::Piece(Piece::NONE));
    assert_eq!(split(&geometry(5, 128, Layout::LeftSymmetric), &request, &mut parts), 0);
    assert!(parts.is_empty());
}

#[test]
fn parts_are_at_most_a_mib_and_zeroes_are_used_over_and_over() {
    let arena = arena(2048);
    let piece = arena.piece().sub(0, 2048);
    let mut parts = Vec::new();
    let request = whole(PartOp::Write { fua: false }, 100, 8192, Memory::Zeroes(piece));
    split(&geometry(3, 8192, Layout::ParityLast), &request, &mut parts);
    let cut: Vec<_> = parts.iter().map(|p| (p.data.0, p.from, p.sectors)).collect();
    assert_eq!(cut, [(0, 100, 2048), (0, 2148, 2048), (0, 4196, 2048), (0, 6244, 1948), (1, 0, 100)]);
    for part in parts {
        assert_eq!(part.piece, piece.sub(0, part.sectors));
    }
}

#[test]
fn a_flush_has_neither_place_nor_memory() {
    let part = flush(ClientId(1), 2);
    assert_eq!((part.op, part.sectors, part.piece), (PartOp::Flush, 0, Piece::NONE));
    assert_eq!((part.client, part.request), (ClientId(1), 2));
}

#[test]
fn a_plug_is_sorted_by_row_then_place() {
    let arena = arena(64);
    let geometry = geometry(4, 8, Layout::RightSymmetric);
    let mut parts = Vec::new();
    for at in [50, 3, 24, 0, 49] {
        let piece = Memory::Piece(arena.piece().sub(0, 1));
        split(&geometry, &whole(PartOp::Read, at, 1, piece), &mut parts);
    }
    sort(&mut parts);
    let order: Vec<_> =
        parts.iter().map(|p| geometry.array_sector(p.stripe, p.data, Sectors(u64::from(p.from))).0).collect();
    assert_eq!(order, [0, 3, 24, 49, 50]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Sector by sector, a request's parts are its sectors in order, and its memory.
    #[test]
    fn parts_cover_a_request_exactly_once(
        members in 3u8..9,
        chunk_shift in 3u32..12,
        layout in 0usize..6,
        at in 0u64..20_000,
        sectors in 1u64..9_000,
    ) {
        let geometry = geometry(members, 1 << chunk_shift, Layout::ALL[layout]);
        let total = geometry.array_sectors().0;
        let sectors = sectors.min(total);
        let at = at.min(total - sectors);
        let arena = arena(16_384);
        let piece = arena.piece().sub(7, sectors as u32);
        let mut parts = Vec::new();
        let count = split(&geometry, &whole(PartOp::Read, at, sectors, Memory::Piece(piece)), &mut parts);
        prop_assert_eq!(count as usize, parts.len());
        let mut next = 0;
        for part in parts {
            prop_assert!(u64::from(part.from + part.sectors) <= geometry.chunk().0);
            prop_assert!(u64::from(part.sectors) <= PART_SECTORS_MAX);
            let start = geometry.array_sector(part.stripe, part.data, Sectors(u64::from(part.from)));
            prop_assert_eq!(start, Sector(at + next));
            prop_assert_eq!(part.piece, piece.sub(next as u32, part.sectors));
            next += u64::from(part.sectors);
        }
        prop_assert_eq!(next, sectors);
    }
}
