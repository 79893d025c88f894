//! A front end's buffers: page-aligned memory of the slab, in sizes of powers of two.
//!
//! One pool per client, used by its thread alone. A buffer that comes back is given out again first, while it is warm. Bound: [`BYTES_MAX`]
//! resident; beyond it idle buffers of other sizes give their memory back to the system, and when all is in use there
//! is none until one comes back.

use std::sync::Arc;

use crate::slab::{Arena, Buf, PAGE, Piece, Slab};

/// Largest buffer: the longest NBD payload.
pub const BUF_BYTES_MAX: usize = 32 << 20;

/// Bytes of buffers in use, or idle and warm.
pub const BYTES_MAX: usize = 64 << 20;

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
                self.warm -= size;
                piece
            }
            None => {
                self.cool(size);
                self.classes[class].cold.pop().unwrap_or_else(|| self.fresh(class))
            }
        };
        self.out += size;
        // SAFETY: the piece is in no list now, and goes back into one only in `give`, which takes the buffer.
        Some(unsafe { Buf::new(Arc::clone(self.arena.slab()), piece, bytes) })
    }

    /// Takes a buffer back.
    pub(super) fn give(&mut self, buf: Buf) {
        let piece = buf.piece();
        let class = class_of(piece.bytes());
        self.classes[class].warm.push(piece);
        self.out -= piece.bytes();
        self.warm += piece.bytes();
    }

    /// Makes room for `size` more warm bytes: idle memory goes back to the system, largest first.
    fn cool(&mut self, size: usize) {
        for class in self.classes.iter_mut().rev() {
            while self.out + self.warm + size > BYTES_MAX {
                let Some(piece) = class.warm.pop() else { break };
                self.arena.slab().release(piece);
                self.warm -= piece.bytes();
                class.cold.push(piece);
            }
        }
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
        assert_eq!(bufs.warm, 0, "the idle large buffer gave its memory to the small ones");
        drop(small);
        bufs.give(b);
    }
}
