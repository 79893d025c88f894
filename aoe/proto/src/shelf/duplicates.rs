//! The duplicate cache: answers of requests that changed something, kept while a copy of the request may still arrive.
//!
//! Without it, a write that the network delivers twice is executed twice, the second time perhaps after a newer write
//! to the same sectors, which is then lost. Owned by the shelf, asked before each write, flush and TRIM is executed.
//!
//! **Why two lifetimes from the last answer.** A copy of a frame arrives at most one lifetime after it left. Let the
//! shelf answer at time s. The initiator has that answer at s + 1 lifetime at the latest, or never; when it has it, it
//! sends no more copies, so the last copy arrives before s + 2. When it never has it, it goes on repeating and sends
//! nothing newer to these sectors, so executing again does no harm. Each answer from memory counts as an answer: it
//! starts the time anew.
//!
//! **Why flushes.** A store reports a failed flush once and forgets. If the answer is lost, the repeated flush must
//! have the same answer, not the next flush's success.
//!
//! **The key** is tag, device, all registers and a checksum of the data. The requester's MAC address is not part of it:
//! an initiator with several ports repeats a request from another port with another address, and that is the same
//! request. Two initiators with the same tag, registers and data within two lifetimes are taken for one.
//!
//! Bounds: a fixed number of entries, allocated at the start. Nothing is forgotten early: while the cache is full,
//! requests that need it are dropped, and their senders repeat them. Each call forgets at most [`EXPIRE_BATCH`]
//! entries, so that no frame pays for a long idle time.

use core::time::Duration;

use crate::wire::{Address, AoeError, AtaReply, AtaRequest, Tag};

/// Most entries forgotten per call. More than the one that a call can add, so the cache catches up.
const EXPIRE_BATCH: usize = 16;

/// What tells requests apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) tag: Tag,
    pub(super) device: Address,
    pub(super) request: AtaRequest,
    /// Checksum of the data.
    pub(super) checksum: u32,
}

impl Key {
    fn hash(&self, seed: u32) -> u64 {
        let [a, b, c, d, e, f] = self.request.lba.0;
        let request = &self.request;
        let low = u64::from(self.tag.0) << 32 | u64::from(self.checksum);
        let high = u64::from_le_bytes([a, b, c, d, e, f, request.sectors, request.opcode.0]);
        let device = u64::from(self.device.shelf.0) << 8 | u64::from(self.device.slot.0);
        mix(mix(mix(low ^ u64::from(seed)) ^ high) ^ device)
    }
}

/// splitmix64's finaliser.
fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

/// What a request was answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// An AoE error.
    Refused(AoeError),
    /// An ATA command's registers.
    Done(AtaReply),
}

/// Index of an entry plus 1; 0 is none. So fresh tables are zeros, which the system hands out without touching them.
type Link = u32;

struct Entry {
    key: Key,
    answer: Answer,
    /// When it was last answered, in nanoseconds.
    answered: u64,
    /// Next entry of the same bucket, or of the free list.
    chain: Link,
    /// Neighbours in the order of `answered`.
    older: Link,
    newer: Link,
}

/// The cache.
pub(super) struct Duplicates {
    entries: Vec<Entry>,
    capacity: usize,
    buckets: Vec<Link>,
    free: Link,
    oldest: Link,
    newest: Link,
    used: usize,
    /// How long an entry lives after it was last answered, in nanoseconds.
    life: u64,
    seed: u32,
}

impl Duplicates {
    /// A cache of `capacity` entries for frames that arrive within `lifetime` or not at all.
    pub(super) fn new(capacity: usize, lifetime: Duration, seed: u32) -> Duplicates {
        assert!(capacity > 0 && capacity < u32::MAX as usize, "the cache has entries, and a link can name each");
        Duplicates {
            entries: Vec::with_capacity(capacity),
            capacity,
            buckets: vec![0; capacity.next_power_of_two()],
            free: 0,
            oldest: 0,
            newest: 0,
            used: 0,
            life: nanos(lifetime).saturating_mul(2),
            seed,
        }
    }

    /// Entries in use.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// The answer that a copy of this request had. It counts as answered again.
    pub(super) fn find(&mut self, now: Duration, key: &Key) -> Option<Answer> {
        let now = nanos(now);
        self.expire(now);
        let mut link = self.buckets[self.bucket(key)];
        while let Some(index) = index_of(link) {
            if self.entries[index].key == *key {
                if self.is_expired(index, now) {
                    self.forget(link);
                    return None;
                }
                self.unlink_age(link);
                self.link_newest(link, now);
                return Some(self.entries[index].answer);
            }
            link = self.entries[index].chain;
        }
        None
    }

    /// Whether another answer can be kept now.
    pub(super) fn has_room(&mut self, now: Duration) -> bool {
        self.expire(nanos(now));
        self.used < self.capacity
    }

    /// Keeps an answer. There must be room, and no entry with this key.
    pub(super) fn insert(&mut self, now: Duration, key: Key, answer: Answer) {
        let bucket = self.bucket(&key);
        let entry = Entry { key, answer, answered: 0, chain: self.buckets[bucket], older: 0, newer: 0 };
        let link = match index_of(self.free) {
            Some(index) => {
                let link = self.free;
                self.free = self.entries[index].chain;
                self.entries[index] = entry;
                link
            }
            None => {
                assert!(self.entries.len() < self.capacity, "the caller made sure that there is room");
                self.entries.push(entry);
                self.entries.len() as Link
            }
        };
        self.buckets[bucket] = link;
        self.link_newest(link, nanos(now));
        self.used += 1;
    }

    fn bucket(&self, key: &Key) -> usize {
        key.hash(self.seed) as usize & (self.buckets.len() - 1)
    }

    fn is_expired(&self, index: usize, now: u64) -> bool {
        self.entries[index].answered.saturating_add(self.life) <= now
    }

    fn expire(&mut self, now: u64) {
        for _ in 0..EXPIRE_BATCH {
            match index_of(self.oldest) {
                Some(index) if self.is_expired(index, now) => self.forget(self.oldest),
                _ => return,
            }
        }
    }

    /// Takes an entry out of its bucket and of the order, and frees it.
    fn forget(&mut self, link: Link) {
        self.unlink_age(link);
        let index = link as usize - 1;
        let bucket = self.bucket(&self.entries[index].key);
        let chain = self.entries[index].chain;
        if self.buckets[bucket] == link {
            self.buckets[bucket] = chain;
        } else {
            let mut at = self.buckets[bucket] as usize - 1;
            while self.entries[at].chain != link {
                at = self.entries[at].chain as usize - 1;
            }
            self.entries[at].chain = chain;
        }
        self.entries[index].chain = self.free;
        self.free = link;
        self.used -= 1;
    }

    fn unlink_age(&mut self, link: Link) {
        let Entry { older, newer, .. } = self.entries[link as usize - 1];
        match index_of(older) {
            Some(index) => self.entries[index].newer = newer,
            None => self.oldest = newer,
        }
        match index_of(newer) {
            Some(index) => self.entries[index].older = older,
            None => self.newest = older,
        }
    }

    fn link_newest(&mut self, link: Link, now: u64) {
        let older = self.newest;
        let entry = &mut self.entries[link as usize - 1];
        entry.answered = now;
        entry.older = older;
        entry.newer = 0;
        match index_of(older) {
            Some(index) => self.entries[index].newer = link,
            None => self.oldest = link,
        }
        self.newest = link;
    }
}

fn index_of(link: Link) -> Option<usize> {
    (link as usize).checked_sub(1)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
