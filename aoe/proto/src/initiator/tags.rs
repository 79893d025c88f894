//! Tags: bit 31 set, the worker in bits 30 to 23, a sequence number from a random start below.
//!
//! The table finds the frame of a tag in one step: it is indexed by the sequence number's low bits, and a number whose
//! place is occupied is skipped. So a tag is never given out while it is outstanding. It is not given out again within
//! a frame's lifetime of its last copy either: the numbers are cut into blocks, each remembers when any of its tags
//! was last sent, and a block is entered only when that is long enough ago. A refusal says until when.

use core::time::Duration;

use super::WorkerId;
use super::slab::NONE;
use crate::wire::Tag;

/// Set in all tags of user space: the Linux driver ignores them.
const USER: u32 = 1 << 31;
/// Bits of the sequence number.
const SEQUENCE_BITS: u32 = 23;
const SEQUENCE_MASK: u32 = (1 << SEQUENCE_BITS) - 1;
/// Bits of a number within its block.
const BLOCK_BITS: u32 = 17;
const BLOCKS: usize = 1 << (SEQUENCE_BITS - BLOCK_BITS);

/// The outstanding tags of one initiator.
pub(super) struct Tags {
    /// Bits above the sequence number.
    prefix: u32,
    /// The next number to try.
    next: u32,
    /// Slab index of the frame by the number's low bits, [`NONE`] where free.
    table: Box<[u32]>,
    /// When a tag of the block was last sent, if ever.
    sent: [Option<Duration>; BLOCKS],
}

impl Tags {
    /// Room for `frames` outstanding tags; `random` chooses the start.
    pub(super) fn new(worker: WorkerId, frames: usize, random: u64) -> Tags {
        // Four times as many places as frames: skips stay few.
        let places = (frames * 4).next_power_of_two();
        Tags {
            prefix: USER | u32::from(worker.0) << SEQUENCE_BITS,
            next: random as u32 & SEQUENCE_MASK,
            table: vec![NONE; places].into_boxed_slice(),
            sent: [None; BLOCKS],
        }
    }

    /// Whether replies with this tag are for this initiator.
    pub(super) fn is_ours(&self, tag: Tag) -> bool {
        tag.0 & !SEQUENCE_MASK == self.prefix
    }

    /// A tag for the frame at `slot` of the slab ([`NONE`] for a message that is matched otherwise). Fewer frames are
    /// outstanding than [`Tags::new`] was told, so there is a free place. The error is when to try again.
    pub(super) fn allocate(&mut self, now: Duration, lifetime: Duration, slot: u32) -> Result<Tag, Duration> {
        for _ in 0..self.table.len() {
            let number = self.next;
            if number & ((1 << BLOCK_BITS) - 1) == 0
                && let Some(sent) = self.sent[block(number)]
                && now < sent + lifetime
            {
                return Err(sent + lifetime);
            }
            self.next = (number + 1) & SEQUENCE_MASK;
            let place = self.place(number);
            if self.table[place] == NONE {
                self.table[place] = slot;
                return Ok(Tag(self.prefix | number));
            }
        }
        panic!("more tags are outstanding than the table was made for");
    }

    /// The slab index that `tag` may belong to; the caller compares the whole tag.
    pub(super) fn find(&self, tag: Tag) -> Option<u32> {
        let slot = self.table[self.place(tag.0)];
        (slot != NONE).then_some(slot)
    }

    /// Notes that a copy of the tag's message leaves now.
    pub(super) fn sent(&mut self, now: Duration, tag: Tag) {
        self.sent[block(tag.0 & SEQUENCE_MASK)] = Some(now);
    }

    /// The tag is no longer outstanding.
    pub(super) fn release(&mut self, tag: Tag) {
        let place = self.place(tag.0);
        self.table[place] = NONE;
    }

    fn place(&self, number: u32) -> usize {
        number as usize & (self.table.len() - 1)
    }
}

fn block(number: u32) -> usize {
    (number >> BLOCK_BITS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn layout_has_user_bit_worker_and_sequence() {
        let mut tags = Tags::new(WorkerId(0xA5), 16, 0x1234_5678_9ABC);
        let tag = tags.allocate(at(0), LIFETIME, 3).expect("fresh");
        assert_eq!(tag.0 >> 31, 1);
        assert_eq!(tag.0 >> 23 & 0xFF, 0xA5);
        assert_eq!(tag.0 & SEQUENCE_MASK, 0x5678_9ABC & SEQUENCE_MASK);
        assert!(tags.is_ours(tag));
        assert!(!tags.is_ours(Tag(tag.0 & !USER)));
        assert!(!tags.is_ours(Tag(tag.0 ^ 1 << 23)));
        assert!(!tags.is_ours(Tag::UNSOLICITED));
    }

    #[test]
    fn outstanding_tags_are_skipped_and_found() {
        let mut tags = Tags::new(WorkerId(1), 1, u64::from(SEQUENCE_MASK));
        let first = tags.allocate(at(0), Duration::ZERO, 9).expect("fresh");
        assert_eq!(first.0 & SEQUENCE_MASK, SEQUENCE_MASK);
        for _ in 0..100 {
            let other = tags.allocate(at(0), Duration::ZERO, 8).expect("a free place");
            assert_ne!(other.0 & 3, first.0 & 3, "same place as the outstanding one");
            assert_eq!(tags.find(other), Some(8));
            tags.release(other);
            assert_eq!(tags.find(other), None);
        }
        assert_eq!(tags.find(first), Some(9));
    }

    #[test]
    fn no_tag_comes_again_within_a_lifetime_of_its_last_copy() {
        let mut tags = Tags::new(WorkerId(0), 4, 0);
        let first = tags.allocate(at(0), LIFETIME, 0).expect("fresh");
        tags.sent(at(0), first);
        tags.release(first);
        for _ in 1..1u32 << SEQUENCE_BITS {
            let tag = tags.allocate(at(1), LIFETIME, 0).expect("not used in this lap");
            tags.release(tag);
        }
        // A late copy of the first one left at 700 ms.
        tags.sent(at(700), first);
        assert_eq!(tags.allocate(at(1500), LIFETIME, 0), Err(at(1700)));
        assert_eq!(tags.allocate(at(1700), LIFETIME, 0), Ok(first));
    }

    #[test]
    #[should_panic(expected = "more tags")]
    fn a_full_table_panics() {
        let mut tags = Tags::new(WorkerId(0), 1, 0);
        for slot in 0..5 {
            let _ = tags.allocate(at(0), LIFETIME, slot);
        }
    }
}
