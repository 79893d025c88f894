//! Parts on their way to the owner of their region.
//!
//! A letter holds one part, and the number of the letter that was posted to the same region before it. Each client has letters of its
//! own: it writes one, posts it ([`crate::region`]), and may write it again once the part has been replied to. Whoever takes the region's letters reads
//! them first, so writing and reading never meet. All fields are atomics and are accessed without order: the region's word orders them.
//!
//! Bound: by the parts that clients have in flight; room is made as it is first needed, and kept.

use std::sync::OnceLock;

use raid_core::units::{DataIndex, MemberIndex, StripeIndex};

use crate::message::{ClientId, Part, PartOp, SyncKind};
use crate::slab::Piece;
use crate::sync::{AtomicU64, Ordering};

/// A client's letters are made in blocks: this many, then as many as there are, and so on.
const FIRST_BLOCK: u32 = 256;

/// Most letters of one client: a number of a letter has that many bits for the place.
const PER_CLIENT_BITS: u32 = 24;

const BLOCKS: usize = (PER_CLIENT_BITS - FIRST_BLOCK.trailing_zeros() + 1) as usize;

/// Most letters of one client.
pub const PER_CLIENT_MAX: u32 = 1 << PER_CLIENT_BITS;

/// Most clients.
pub const CLIENTS_MAX: usize = 1 << (u32::BITS - PER_CLIENT_BITS);

/// Number of a letter: client and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Letter(pub(crate) u32);

/// What is in a letter.
#[derive(Debug)]
struct Paper {
    words: [AtomicU64; 4],
    /// The letter posted before it, plus one; 0: none.
    older: AtomicU64,
}

type Block = OnceLock<Box<[Paper]>>;

/// All letters of an array.
#[derive(Debug)]
pub struct Letters {
    clients: Box<[[Block; BLOCKS]]>,
}

/// Which block a place is in, and where there.
fn place(slot: u32) -> (usize, usize) {
    let block = (slot / FIRST_BLOCK).checked_ilog2().map_or(0, |log| log + 1);
    let before = if block == 0 { 0 } else { FIRST_BLOCK << (block - 1) };
    (block as usize, (slot - before) as usize)
}

fn block_len(block: usize) -> u32 {
    if block == 0 { FIRST_BLOCK } else { FIRST_BLOCK << (block - 1) }
}

impl Letters {
    /// Room for the letters of so many clients; none has any yet.
    pub fn new(clients: usize) -> Letters {
        assert!(clients <= CLIENTS_MAX, "a number of a letter has eight bits for the client");
        Letters { clients: (0..clients).map(|_| std::array::from_fn(|_| OnceLock::new())).collect() }
    }

    fn paper(&self, letter: Letter) -> &Paper {
        let (client, slot) = (letter.0 >> PER_CLIENT_BITS, letter.0 & (PER_CLIENT_MAX - 1));
        let (block, at) = place(slot);
        &self.clients[client as usize][block].get().expect("a letter that was written")[at]
    }

    /// Writes the client's letter number `slot`, which is nowhere.
    pub fn write(&self, client: ClientId, slot: u32, part: &Part) -> Letter {
        assert!(slot < PER_CLIENT_MAX, "more parts in flight than letters");
        let (block, at) = place(slot);
        let make = || {
            let paper = || Paper { words: std::array::from_fn(|_| AtomicU64::new(0)), older: AtomicU64::new(0) };
            (0..block_len(block)).map(|_| paper()).collect()
        };
        let paper = &self.clients[usize::from(client.0)][block].get_or_init(make)[at];
        for (word, value) in paper.words.iter().zip(encode(part)) {
            word.store(value, Ordering::Relaxed);
        }
        Letter(u32::from(client.0) << PER_CLIENT_BITS | slot)
    }

    /// Notes which letter comes before this one, which is not posted yet.
    pub fn link(&self, letter: Letter, older: Option<Letter>) {
        self.paper(letter).older.store(older.map_or(0, |l| u64::from(l.0) + 1), Ordering::Relaxed);
    }

    /// Appends the parts of the letters from `newest` on, the oldest first. The reader has taken them from their region.
    pub fn read(&self, newest: Option<Letter>, parts: &mut Vec<Part>) {
        let from = parts.len();
        let mut next = newest;
        while let Some(letter) = next {
            let paper = self.paper(letter);
            parts.push(decode(std::array::from_fn(|i| paper.words[i].load(Ordering::Relaxed))));
            next = paper.older.load(Ordering::Relaxed).checked_sub(1).map(|n| Letter(n as u32));
        }
        parts[from..].reverse();
    }
}

/// Numbers of operations; a recovery's has the member on top.
const RECOVERY: u16 = 7;

fn encode(part: &Part) -> [u64; 4] {
    let Part { client, op, request, stripe, data, from, sectors, piece } = *part;
    let op: u16 = match op {
        PartOp::Read => 0,
        PartOp::Write { fua: false } => 1,
        PartOp::Write { fua: true } => 2,
        PartOp::Flush => 3,
        PartOp::Sync(SyncKind::Resync) => 4,
        PartOp::Sync(SyncKind::Check) => 5,
        PartOp::Sync(SyncKind::Repair) => 6,
        PartOp::Sync(SyncKind::Recovery(member)) => RECOVERY | u16::from(member.0) << 8,
    };
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let kind = u32::from(op) | u32::from(data.0) << 16 | u32::from(client.0 as u8) << 24;
    assert!(usize::from(client.0) < CLIENTS_MAX, "a client's number has eight bits");
    let (at, length) = piece.to_raw();
    [pair(kind, request), stripe.0, pair(from, sectors), pair(at, length)]
}

fn decode([kind, stripe, range, piece]: [u64; 4]) -> Part {
    let halves = |word: u64| (word as u32, (word >> 32) as u32);
    let ((kind, request), (from, sectors), (at, length)) = (halves(kind), halves(range), halves(piece));
    let op = match kind as u16 {
        0 => PartOp::Read,
        1 => PartOp::Write { fua: false },
        2 => PartOp::Write { fua: true },
        3 => PartOp::Flush,
        4 => PartOp::Sync(SyncKind::Resync),
        5 => PartOp::Sync(SyncKind::Check),
        6 => PartOp::Sync(SyncKind::Repair),
        op => PartOp::Sync(SyncKind::Recovery(MemberIndex((op >> 8) as u8))),
    };
    Part {
        client: ClientId((kind >> 24) as u16),
        op,
        request,
        stripe: StripeIndex(stripe),
        data: DataIndex((kind >> 16) as u8),
        from,
        sectors,
        piece: Piece::from_raw(at, length),
    }
}

/// A client's free letters, and which it may not use yet. Touched by the client alone.
#[derive(Debug, Default)]
pub struct Stock {
    free: Option<u32>,
    /// By place: the next free one, or the next of the same request; plus one.
    next: Vec<u32>,
}

/// The letters of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bundle {
    first: Option<u32>,
    last: Option<u32>,
}

impl Stock {
    /// A free place, which belongs to the bundle from now on.
    pub fn take(&mut self, bundle: &mut Bundle) -> u32 {
        let slot = match self.free {
            Some(slot) => {
                self.free = self.next[slot as usize].checked_sub(1);
                slot
            }
            None => {
                self.next.push(0);
                self.next.len() as u32 - 1
            }
        };
        self.next[slot as usize] = bundle.first.map_or(0, |first| first + 1);
        bundle.first = Some(slot);
        bundle.last.get_or_insert(slot);
        slot
    }

    /// All parts of the bundle's request have been replied to.
    pub fn give(&mut self, bundle: Bundle) {
        if let (Some(first), Some(last)) = (bundle.first, bundle.last) {
            self.next[last as usize] = self.free.map_or(0, |free| free + 1);
            self.free = Some(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ops() -> impl Strategy<Value = PartOp> {
        let sync = prop_oneof![
            Just(SyncKind::Resync),
            Just(SyncKind::Check),
            Just(SyncKind::Repair),
            any::<u8>().prop_map(|m| SyncKind::Recovery(MemberIndex(m))),
        ];
        prop_oneof![
            Just(PartOp::Read),
            any::<bool>().prop_map(|fua| PartOp::Write { fua }),
            Just(PartOp::Flush),
            sync.prop_map(PartOp::Sync),
        ]
    }

    proptest! {
        #[test]
        fn a_part_comes_out_as_it_went_in(
            op in ops(), client in 0..256_u16, request: u32, stripe: u64, data: u8, from: u32, sectors: u32, at: u32,
        ) {
            let (stripe, data) = (StripeIndex(stripe), DataIndex(data));
            let piece = Piece::from_raw(at, sectors);
            let part = Part { client: ClientId(client), op, request, stripe, data, from, sectors, piece };
            let out = decode(encode(&part));
            prop_assert_eq!(format!("{part:?}"), format!("{out:?}"));
        }

        #[test]
        fn places_follow_one_another(slot in 0..PER_CLIENT_MAX - 1) {
            let ((block, at), next) = (place(slot), place(slot + 1));
            prop_assert!(block < BLOCKS && (at as u32) < block_len(block));
            prop_assert!(next == (block, at + 1) || next == (block + 1, 0) && at as u32 + 1 == block_len(block));
        }
    }

    #[test]
    fn letters_are_used_again_once_their_request_has_ended() {
        let mut stock = Stock::default();
        let (mut a, mut b) = (Bundle::default(), Bundle::default());
        let taken: Vec<u32> = (0..4).map(|i| stock.take(if i % 2 == 0 { &mut a } else { &mut b })).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        stock.give(a);
        let mut c = Bundle::default();
        let mut again: Vec<u32> = (0..3).map(|_| stock.take(&mut c)).collect();
        again.sort_unstable();
        assert_eq!(again, [0, 2, 4], "those of the request that ended, and a new one");
    }
}
