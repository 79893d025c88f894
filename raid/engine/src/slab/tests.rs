//! Tests of the slab: bounds, ownership of stretches, and XOR against a plain loop.

use proptest::prelude::*;

use super::*;

fn slab() -> Arc<Slab> {
    Slab::with_bytes(Kernels::portable(), 16 << 20).expect("address space")
}

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn read(slab: &Slab, piece: Piece) -> Vec<u8> {
    let mut out = vec![0; piece.bytes()];
    slab.read_out(piece, 0, &mut out);
    out
}

#[test]
fn pieces_are_cut_and_joined() {
    let slab = slab();
    let arena = slab.arena(4096).expect("room");
    let whole = arena.piece().sub(0, 16);
    let (a, b) = (whole.sub(0, 5), whole.sub(5, 11));
    assert!(a.touches(b) && !b.touches(a));
    assert_eq!(a.joined(b), whole);
    assert_eq!(whole.sub(16, 0).sectors(), 0);
    assert_eq!(Piece::NONE.bytes(), 0);
    assert_eq!(b.bytes(), 11 * 512);
}

#[test]
#[should_panic(expected = "sub-piece reaches past its piece")]
fn a_piece_is_not_left() {
    let _ = slab().zeroes(8).sub(u32::MAX, 2);
}

#[test]
#[should_panic(expected = "only pieces that touch can be joined")]
fn pieces_with_a_gap_are_not_joined() {
    let piece = slab().zeroes(8);
    let _ = piece.sub(0, 2).joined(piece.sub(3, 1));
}

#[test]
fn arenas_do_not_overlap_and_come_back() {
    let slab = slab();
    let first = slab.arena(1).expect("room");
    let second = slab.arena(3 << 20).expect("room");
    let (a, b) = (first.piece(), second.piece());
    assert_eq!((a.sectors(), b.sectors()), (4096, 8192), "whole 2 MiB");
    assert!(a.at + a.sectors <= b.at);
    slab.fill(a, 0, &[7; 512]);
    drop(first);
    let again = slab.arena(2 << 20).expect("room");
    assert_eq!(again.piece(), a, "what was given back is used again");
    assert_eq!(read(&slab, a.sub(0, 1)), vec![0; 512], "and holds zeroes");
}

#[test]
fn a_full_slab_has_no_arena() {
    let slab = slab();
    let all: Vec<_> = std::iter::from_fn(|| slab.arena(2 << 20)).collect();
    // 16 MiB less the zero area.
    assert_eq!(all.len(), 7);
    assert!(slab.arena(usize::MAX >> 1).is_none());
}

#[test]
fn the_zero_area_is_no_part_of_an_arena() {
    let slab = slab();
    let arena = slab.arena(2 << 20).expect("room");
    slab.fill(arena.piece(), 0, &vec![0xff; arena.piece().bytes()]);
    assert!(read(&slab, slab.zeroes(2048)).iter().all(|b| *b == 0));
}

#[test]
#[should_panic(expected = "longer than the zero area")]
fn zeroes_are_at_most_a_mib() {
    let _ = slab().zeroes(2049);
}

#[test]
fn data_go_in_and_out_at_offsets() {
    let slab = slab();
    let arena = slab.arena(4096).expect("room");
    let piece = arena.piece().sub(3, 2);
    slab.fill(piece, 0, &vec![0; 1024]);
    slab.fill(piece, 1000, &[1, 2, 3]);
    let mut out = [9; 5];
    slab.read_out(piece, 999, &mut out);
    assert_eq!(out, [0, 1, 2, 3, 0]);
    let to = arena.piece().sub(100, 2);
    slab.copy(piece, to);
    assert!(slab.equal(piece, to));
    slab.fill(to, 1023, &[1]);
    assert!(!slab.equal(piece, to));
}

#[test]
#[should_panic(expected = "data longer than the piece")]
fn nothing_is_written_past_a_piece() {
    let slab = slab();
    let arena = slab.arena(4096).expect("room");
    slab.fill(arena.piece().sub(0, 1), 510, &[0; 3]);
}

#[test]
#[should_panic(expected = "data longer than the piece")]
fn nothing_is_read_past_a_piece() {
    let slab = slab();
    let arena = slab.arena(4096).expect("room");
    slab.read_out(arena.piece().sub(0, 1), 0, &mut [0; 513]);
}

#[test]
#[should_panic(expected = "piece outside the slab")]
fn a_piece_of_a_larger_slab_is_refused() {
    let large = Slab::with_bytes(Kernels::portable(), 64 << 20).expect("address space");
    let arena = large.arena(32 << 20).expect("room");
    let _ = slab().address(arena.piece());
}

#[test]
#[should_panic(expected = "pieces of one length")]
fn xor_takes_pieces_of_one_length() {
    let slab = slab();
    let arena = slab.arena(4096).expect("room");
    let piece = arena.piece();
    slab.xor_into(piece.sub(0, 2), &[piece.sub(2, 2), piece.sub(4, 1)]);
}

#[test]
fn a_buffer_is_its_memory() {
    let slab = slab();
    let arena = slab.arena(4096).expect("room");
    let piece = arena.piece().sub(0, 8);
    // SAFETY: nobody else knows the piece.
    let mut buf = unsafe { Buf::new(Arc::clone(&slab), piece, 700) };
    assert_eq!(buf.len(), 700);
    buf.copy_from_slice(&bytes(5, 700));
    assert_eq!(buf.piece(), piece);
    drop(buf);
    assert_eq!(read(&slab, piece)[..700], bytes(5, 700));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Few sources and many, odd lengths, both forms, against one byte at a time.
    #[test]
    fn xor_is_xor(count in 1usize..=128, sectors in 1u32..24, acc: bool) {
        let slab = slab();
        let arena = slab.arena(4 << 20).expect("room");
        let piece = |i: usize| arena.piece().sub(i as u32 * sectors, sectors);
        let to = piece(count);
        let len = to.bytes();
        let before = bytes(200, len);
        slab.fill(to, 0, &before);
        let mut sum = if acc { before } else { vec![0; len] };
        let sources: Vec<Piece> = (0..count).map(piece).collect();
        for (i, source) in sources.iter().enumerate() {
            let data = bytes(i as u8, len);
            slab.fill(*source, 0, &data);
            sum.iter_mut().zip(&data).for_each(|(s, d)| *s ^= d);
        }
        if acc {
            slab.xor_acc(to, &sources);
        } else {
            slab.xor_into(to, &sources);
        }
        prop_assert_eq!(read(&slab, to), sum);
    }
}
