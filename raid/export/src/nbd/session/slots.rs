//! The table of requests that were accepted and whose reply has not left.
//!
//! Owned by the session. Bounded by [`MAX_IN_FLIGHT`] entries and [`MAX_IN_FLIGHT_BYTES`]; allocated once. Each entry goes
//! free → receiving → submitted → replied → free, and any other step is a bug of ours that would lose or double a reply, so it
//! panics.

use super::{MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES};
use crate::nbd::proto::{RequestHead, command};

/// What the reply to a successful request carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carries {
    /// Nothing.
    Nothing,
    /// The data of a READ.
    Data,
    /// The extent of a BLOCK_STATUS.
    Extent,
}

/// A request's place in the table of its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u16);

impl Slot {
    /// Index below [`MAX_IN_FLIGHT`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The slot of an index, for a shell that names requests by it; `None` when out of range.
    pub fn from_index(index: u64) -> Option<Self> {
        u16::try_from(index).ok().filter(|&i| usize::from(i) < MAX_IN_FLIGHT).map(Slot)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Receiving,
    Submitted,
    Replied,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    state: State,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) carries: Carries,
    /// Bytes that count against [`MAX_IN_FLIGHT_BYTES`].
    bytes: u32,
}

#[derive(Debug)]
pub(super) struct Slots {
    entries: Box<[Entry]>,
    free: Vec<Slot>,
    bytes: u64,
}

impl Slots {
    pub(super) fn new() -> Self {
        let empty = Entry { state: State::Free, cookie: 0, offset: 0, len: 0, carries: Carries::Nothing, bytes: 0 };
        let last = u16::try_from(MAX_IN_FLIGHT - 1).expect("MAX_IN_FLIGHT fits in a slot");
        Self {
            entries: vec![empty; MAX_IN_FLIGHT].into_boxed_slice(),
            free: (0..=last).rev().map(Slot).collect(),
            bytes: 0,
        }
    }

    pub(super) fn in_use(&self) -> usize {
        MAX_IN_FLIGHT - self.free.len()
    }

    /// Takes a slot for a request that moves `bytes` of data, or `None` when a bound is reached.
    pub(super) fn accept(&mut self, head: &RequestHead, bytes: u32) -> Option<Slot> {
        if self.bytes + u64::from(bytes) > MAX_IN_FLIGHT_BYTES {
            return None;
        }
        let slot = self.free.pop()?;
        self.bytes += u64::from(bytes);
        self.entries[slot.index()] = Entry {
            state: State::Receiving,
            cookie: head.cookie,
            offset: head.offset,
            len: head.len,
            carries: match head.command {
                command::READ => Carries::Data,
                command::BLOCK_STATUS => Carries::Extent,
                _ => Carries::Nothing,
            },
            bytes,
        };
        Some(slot)
    }

    fn step(&mut self, slot: Slot, from: State, to: State) -> &mut Entry {
        let entry = &mut self.entries[slot.index()];
        assert_eq!(entry.state, from, "request {slot:?} cannot become {to:?}");
        entry.state = to;
        entry
    }

    /// The request has been read whole.
    pub(super) fn submit(&mut self, slot: Slot) {
        self.step(slot, State::Receiving, State::Submitted);
    }

    /// The request has ended. Its bytes stay counted only when they are still to be sent.
    pub(super) fn reply(&mut self, slot: Slot, ok: bool) -> Entry {
        let entry = self.step(slot, State::Submitted, State::Replied);
        let counted = entry.bytes;
        if entry.carries != Carries::Data || !ok {
            entry.bytes = 0;
        }
        let given_back = counted - entry.bytes;
        let entry = *entry;
        self.bytes -= u64::from(given_back);
        entry
    }

    /// The reply has left.
    pub(super) fn release(&mut self, slot: Slot) {
        let bytes = self.step(slot, State::Replied, State::Free).bytes;
        self.bytes -= u64::from(bytes);
        self.free.push(slot);
    }

    /// The request will never be read whole.
    pub(super) fn abandon(&mut self, slot: Slot) {
        let bytes = self.step(slot, State::Receiving, State::Free).bytes;
        self.bytes -= u64::from(bytes);
        self.free.push(slot);
    }
}
