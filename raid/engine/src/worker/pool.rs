//! A table of slots that are used again: index in, value out, no allocation once it has grown to its working size.
//!
//! Used for parts, runs and ios of one worker. Bound: what its users admit; the table never shrinks.

use std::ops::{Index, IndexMut};

/// See the module's text.
#[derive(Debug)]
pub(super) struct Pool<T> {
    slots: Vec<(bool, T)>,
    free: Vec<u32>,
}

impl<T> Default for Pool<T> {
    fn default() -> Pool<T> {
        Pool { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Pool<T> {
    /// Puts a value into a slot.
    pub(super) fn put(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = (true, value);
                index
            }
            None => self.grow(value),
        }
    }

    fn grow(&mut self, value: T) -> u32 {
        let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 slots");
        self.slots.push((true, value));
        index
    }
    /// A live slot that holds what its last user left in it (so that its vectors keep their room), or a new default.
    pub(super) fn open(&mut self) -> u32
    where
        T: Default,
    {
        match self.free.pop() {
            Some(index) => {
                self.slots[index as usize].0 = true;
                index
            }
            None => self.grow(T::default()),
        }
    }

    /// Frees a slot, leaving its content for the next user.
    pub(super) fn close(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        assert!(slot.0, "slot freed twice");
        slot.0 = false;
        self.free.push(index);
    }

    /// Frees a slot; the answer is its value.
    pub(super) fn take(&mut self, index: u32) -> T
    where
        T: Copy,
    {
        self.close(index);
        self.slots[index as usize].1
    }

    /// Whether a slot is in use.
    pub(super) fn is_live(&self, index: u32) -> bool {
        self.slots.get(index as usize).is_some_and(|s| s.0)
    }

    /// Whether no slot is in use.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// All slots in use.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots.iter_mut().enumerate().filter(|(_, s)| s.0).map(|(i, s)| (i as u32, &mut s.1))
    }
}

impl<T> Index<u32> for Pool<T> {
    type Output = T;
    fn index(&self, index: u32) -> &T {
        let slot = &self.slots[index as usize];
        assert!(slot.0, "use of a free slot");
        &slot.1
    }
}

impl<T> IndexMut<u32> for Pool<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        let slot = &mut self.slots[index as usize];
        assert!(slot.0, "use of a free slot");
        &mut slot.1
    }
}
