//! Fixed-capacity storage for the initiator's requests and frames, and lists threaded through it.
//!
//! A [`Slab`] never holds more than the capacity it was made with and never moves an entry, so an index stays good
//! until the entry is removed. A [`List`] keeps its links inside the entries: membership costs no allocation, and
//! removal from the middle is O(1). An entry may be on one list per link number at a time; indexing a free slot
//! panics, because it can only mean that the initiator's own books are wrong.

use core::ops::{Index, IndexMut};

/// The index that means "no entry".
pub(super) const NONE: u32 = u32::MAX;

enum Entry<T> {
    Used(T),
    Free { next: u32 },
}

/// Entries with stable indices and a bound.
pub(super) struct Slab<T> {
    entries: Vec<Entry<T>>,
    /// First free slot below `entries.len()`.
    free: u32,
    used: usize,
    capacity: usize,
}

impl<T> Slab<T> {
    /// Room for `capacity` entries, allocated at once.
    pub(super) fn new(capacity: usize) -> Slab<T> {
        assert!(capacity < NONE as usize, "indices are 32 bits wide");
        Slab { entries: Vec::with_capacity(capacity), free: NONE, used: 0, capacity }
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    pub(super) fn is_full(&self) -> bool {
        self.used == self.capacity
    }

    /// Stores `value`; the caller has checked that there is room.
    pub(super) fn insert(&mut self, value: T) -> u32 {
        assert!(!self.is_full(), "the caller checks for room");
        self.used += 1;
        if self.free == NONE {
            self.entries.push(Entry::Used(value));
            return (self.entries.len() - 1) as u32;
        }
        let index = self.free;
        let slot = &mut self.entries[index as usize];
        match *slot {
            Entry::Free { next } => self.free = next,
            Entry::Used(_) => unreachable!("the free list holds free slots only"),
        }
        *slot = Entry::Used(value);
        index
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, index: u32) -> T {
        let free = Entry::Free { next: self.free };
        match core::mem::replace(&mut self.entries[index as usize], free) {
            Entry::Used(value) => {
                self.free = index;
                self.used -= 1;
                value
            }
            Entry::Free { .. } => panic!("slab entry {index} removed twice"),
        }
    }

    /// All entries in use, in index order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let all = self.entries.iter().enumerate();
        all.filter_map(|(index, entry)| match entry {
            Entry::Used(value) => Some((index as u32, value)),
            Entry::Free { .. } => None,
        })
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        match &self.entries[index as usize] {
            Entry::Used(value) => value,
            Entry::Free { .. } => panic!("slab entry {index} is free"),
        }
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        match &mut self.entries[index as usize] {
            Entry::Used(value) => value,
            Entry::Free { .. } => panic!("slab entry {index} is free"),
        }
    }
}

/// An entry's neighbours on one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    prev: u32,
    next: u32,
    /// Whether the entry is on a list of this link number at all.
    on: bool,
}

impl Links {
    pub(super) const OFF: Links = Links { prev: NONE, next: NONE, on: false };
}

/// An entry that can be on lists.
pub(super) trait Linked {
    /// The links of list number `n`.
    fn links(&self, n: usize) -> &Links;
    /// The same, to change.
    fn links_mut(&mut self, n: usize) -> &mut Links;
}

/// A doubly linked list through the entries' links number `N`.
#[derive(Clone, Copy, Debug)]
pub(super) struct List<const N: usize> {
    head: u32,
    tail: u32,
    len: u32,
}

impl<const N: usize> List<N> {
    pub(super) const EMPTY: List<N> = List { head: NONE, tail: NONE, len: 0 };

    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn front(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// The entry after `index`.
    pub(super) fn after<T: Linked>(&self, slab: &Slab<T>, index: u32) -> Option<u32> {
        let next = slab[index].links(N).next;
        (next != NONE).then_some(next)
    }

    pub(super) fn push_back<T: Linked>(&mut self, slab: &mut Slab<T>, index: u32) {
        self.insert_after(slab, self.tail, index);
    }

    /// Inserts before the first entry that is past `index` in the order of `key`, seen from the back: for lists that
    /// are nearly sorted by arrival this takes no step.
    pub(super) fn insert_sorted<T: Linked, K: Ord>(&mut self, slab: &mut Slab<T>, index: u32, key: impl Fn(&T) -> K) {
        let own = key(&slab[index]);
        let mut at = self.tail;
        while at != NONE && key(&slab[at]) > own {
            at = slab[at].links(N).prev;
        }
        self.insert_after(slab, at, index);
    }

    /// Inserts behind `at`, or in front of all when that is [`NONE`].
    fn insert_after<T: Linked>(&mut self, slab: &mut Slab<T>, at: u32, index: u32) {
        let next = if at == NONE { self.head } else { slab[at].links(N).next };
        let links = slab[index].links_mut(N);
        assert!(!links.on, "an entry is on one list per link number");
        *links = Links { prev: at, next, on: true };
        match at {
            NONE => self.head = index,
            _ => slab[at].links_mut(N).next = index,
        }
        match next {
            NONE => self.tail = index,
            _ => slab[next].links_mut(N).prev = index,
        }
        self.len += 1;
    }

    /// Takes `index`, which is on this list, off it.
    pub(super) fn remove<T: Linked>(&mut self, slab: &mut Slab<T>, index: u32) {
        let links = core::mem::replace(slab[index].links_mut(N), Links::OFF);
        assert!(links.on, "only entries on the list can be removed");
        match links.prev {
            NONE => self.head = links.next,
            prev => slab[prev].links_mut(N).next = links.next,
        }
        match links.next {
            NONE => self.tail = links.prev,
            next => slab[next].links_mut(N).prev = links.prev,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Item {
        key: u32,
        links: [Links; 1],
    }

    impl Linked for Item {
        fn links(&self, n: usize) -> &Links {
            &self.links[n]
        }
        fn links_mut(&mut self, n: usize) -> &mut Links {
            &mut self.links[n]
        }
    }

    fn item(key: u32) -> Item {
        Item { key, links: [Links::OFF] }
    }

    fn keys(list: &List<0>, slab: &Slab<Item>) -> Vec<u32> {
        let mut keys = Vec::new();
        let mut at = list.front();
        while let Some(index) = at {
            keys.push(slab[index].key);
            at = list.after(slab, index);
        }
        keys
    }

    #[test]
    fn slab_reuses_slots_within_its_bound() {
        let mut slab = Slab::new(2);
        let a = slab.insert(item(1));
        let b = slab.insert(item(2));
        assert!(slab.is_full());
        assert_eq!(slab.remove(a).key, 1);
        assert_eq!(slab.insert(item(3)), a);
        assert_eq!(slab[b].key, 2);
        assert_eq!(slab.iter().count(), slab.len());
    }

    #[test]
    #[should_panic(expected = "removed twice")]
    fn removing_twice_panics() {
        let mut slab = Slab::new(1);
        let a = slab.insert(item(1));
        slab.remove(a);
        slab.remove(a);
    }

    proptest! {
        /// A list against a vector.
        #[test]
        fn list_follows_a_vector(ops in prop::collection::vec((0u8..3, any::<u8>()), 0..200)) {
            let mut slab = Slab::new(256);
            let mut list = List::<0>::EMPTY;
            let mut model: Vec<(u32, u32)> = Vec::new();
            for (op, value) in ops {
                let value = u32::from(value);
                match op {
                    0 => {
                        let index = slab.insert(item(value));
                        list.push_back(&mut slab, index);
                        model.push((value, index));
                    }
                    1 => {
                        let index = slab.insert(item(value));
                        list.insert_sorted(&mut slab, index, |item| item.key);
                        let at = model.iter().rposition(|(key, _)| *key <= value);
                        model.insert(at.map_or(0, |at| at + 1), (value, index));
                    }
                    _ if !model.is_empty() => {
                        let (_, index) = model.remove(value as usize % model.len());
                        list.remove(&mut slab, index);
                        slab.remove(index);
                    }
                    _ => {}
                }
                let expected: Vec<u32> = model.iter().map(|(key, _)| *key).collect();
                prop_assert_eq!(keys(&list, &slab), expected);
                prop_assert_eq!(list.len() as usize, model.len());
                prop_assert_eq!(list.is_empty(), model.is_empty());
            }
        }
    }
}
