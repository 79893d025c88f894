//! A front end's buffers: page-aligned memory of the slab, in sizes of powers of two.
//!
//! One pool per client, used by its thread alone. A buffer that comes back is given out again first, while it is warm.
//!
//! Bounds: [`BYTES_MAX`] given out per client; when all is in use there is none until one comes back. Idle memory is kept up to [`WARM_OWN_MAX`] per
//! client, and up to [`WARM_SHARED_MAX`] more over all clients of a slab; what exceeds that goes back to the system.

use std::sync::Arc;

use crate::slab::{Arena, Buf, PAGE, Piece, Slab};

/// Largest buffer: the longest NBD payload.
pub const BUF_BYTES_MAX: usize = 32 << 20;

/// Bytes of one client's buffers in use.
pub const BYTES_MAX: usize = 64 << 20;

/// Bytes that a client keeps idle without asking.
pub const WARM_OWN_MAX: usize = 1 << 20;

/// Bytes that all clients of a slab keep idle beyond that.
pub const WARM_SHARED_MAX: usize = 32 << 20;

const CLASSES: usize = (BUF_BYTES_MAX / PAGE).trailing_zeros() as usize + 1;

/// Buffers of one size.
#[derive(Debug, Default)]
struct Class {
    /// Idle, with memory behind them.
    warm: Vec<Piece>,
    /// Idle, without.
    cold: Vec<Piece>,
    /// Room in the arena that was never used, from its end: next free sector of the class.
    used: u32,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Bufs {
    arena: Arena,
    classes: [Class; CLASSES],
    /// Bytes given out.
    out: usize,
    /// Bytes idle and warm.
    warm: usize,
}

impl Bufs {
    /// A pool with address space for [`BYTES_MAX`] of each size; `None` when the slab has no room for it.
    pub(super) fn new(slab: &Arc<Slab>) -> Option<Bufs> {
        let arena = slab.arena(CLASSES * BYTES_MAX)?;
        Some(Bufs { arena, classes: std::array::from_fn(|_| Class::default()), out: 0, warm: 0 })
    }

    /// A buffer of `bytes` (at most [`BUF_BYTES_MAX`]), or `None` while too much is in use.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Buf> {
        assert!(bytes <= BUF_BYTES_MAX, "larger than the largest buffer");
        let class = class_of(bytes);
        let size = PAGE << class;
        if self.out + size > BYTES_MAX {
            return None;
        }
        let piece = match self.classes[class].warm.pop() {
            Some(piece) => {
                self.cooled(size);
                piece
            }
            None => self.classes[class].cold.pop().unwrap_or_else(|| self.fresh(class)),
        };
        self.out += size;
        // SAFETY: the piece is in no list now, and goes back into one only in `give`, which takes the buffer.
        Some(unsafe { Buf::new(Arc::clone(self.arena.slab()), piece, bytes) })
    }

    /// Takes a buffer back.
    pub(super) fn give(&mut self, buf: Buf) {
        let piece = buf.piece();
        let size = piece.bytes();
        self.out -= size;
        let class = &mut self.classes[class_of(size)];
        let shared = beyond_own(self.warm + size) - beyond_own(self.warm);
        if shared == 0 || self.arena.slab().reserve_idle(shared, WARM_SHARED_MAX) {
            class.warm.push(piece);
            self.warm += size;
        } else {
            self.arena.slab().release(piece);
            class.cold.push(piece);
        }
    }

    /// So many bytes are idle no longer.
    fn cooled(&mut self, size: usize) {
        let now = self.warm - size;
        self.arena.slab().give_up_idle(beyond_own(self.warm) - beyond_own(now));
        self.warm = now;
    }

    /// The next buffer of the class that was never used. Each class has [`BYTES_MAX`] of room, and no more than that is ever out.
    fn fresh(&mut self, class: usize) -> Piece {
        let sectors = (PAGE << class) as u32 / 512;
        let base = (class * BYTES_MAX / 512) as u32;
        let at = self.classes[class].used;
        self.classes[class].used += sectors;
        assert!(self.classes[class].used as usize <= BYTES_MAX / 512, "a class stays within its room");
        self.arena.piece().sub(base + at, sectors)
    }
}

/// What of so many idle bytes counts against the shared bound.
fn beyond_own(warm: usize) -> usize {
    warm.saturating_sub(WARM_OWN_MAX)
}

impl Drop for Bufs {
    fn drop(&mut self) {
        self.arena.slab().give_up_idle(beyond_own(self.warm));
    }
}

/// The smallest class that holds `bytes`.
fn class_of(bytes: usize) -> usize {
    (bytes.max(1).div_ceil(PAGE)).next_power_of_two().trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use raid_core::parity::Kernels;

    fn bufs() -> Bufs {
        Bufs::new(&Slab::with_bytes(Kernels::portable(), 2 << 30).expect("address space")).expect("room")
    }

    #[test]
    fn buffers_are_given_out_again_while_warm() {
        let mut bufs = bufs();
        let mut a = bufs.take(5000).expect("room");
        assert_eq!(a.len(), 5000);
        a[4999] = 7;
        let piece = a.piece();
        bufs.give(a);
        assert_eq!(bufs.take(8192).expect("room").piece(), piece);
    }

    #[test]
    fn what_is_in_use_is_bounded() {
        let mut bufs = bufs();
        let a = bufs.take(BUF_BYTES_MAX).expect("room");
        let b = bufs.take(BUF_BYTES_MAX).expect("room");
        assert!(bufs.take(1).is_none(), "all is in use");
        bufs.give(a);
        let small: Vec<Buf> = (0..BUF_BYTES_MAX / PAGE).map(|_| bufs.take(PAGE).expect("room")).collect();
        assert!(bufs.take(1).is_none());
        drop(small);
        bufs.give(b);
    }

    #[test]
    fn idle_memory_is_bounded_over_all_clients_and_given_up_with_them() {
        let slab = Slab::with_bytes(Kernels::portable(), 4 << 30).expect("address space");
        let mut clients: Vec<Bufs> = (0..3).map(|_| Bufs::new(&slab).expect("room")).collect();
        for bufs in &mut clients {
            let taken: Vec<Buf> = (0..24).map(|_| bufs.take(1 << 20).expect("room")).collect();
            taken.into_iter().for_each(|buf| bufs.give(buf));
        }
        let warm: usize = clients.iter().map(|bufs| bufs.warm).sum();
        assert_eq!(warm, WARM_SHARED_MAX + 3 * WARM_OWN_MAX);
        // What the others gave up may be kept by a client that comes after them.
        clients.clear();
        let mut bufs = Bufs::new(&slab).expect("room");
        let taken: Vec<Buf> = (0..24).map(|_| bufs.take(1 << 20).expect("room")).collect();
        taken.into_iter().for_each(|buf| bufs.give(buf));
        assert_eq!(bufs.warm, 24 << 20);
    }
}
