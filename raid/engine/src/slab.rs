//! The memory that data lives in: one aligned mapping, handed out in pieces.
//!
//! Owned by the engine; front ends and workers carve an [`arena`](Slab::arena) each out of it and allocate within that
//! without sharing anything. Every byte that a member reads or writes lies here, so a piece is a plain address in
//! the slab, `Copy` and eight bytes.
//!
//! Who may touch a piece is decided by ownership, not by the borrow checker: a [`Buf`] is its holder's alone; when
//! its piece is in a request the engine alone touches it until the reply. All access goes through raw copies
//! and XORs that check the slab's bounds; no reference into shared memory is ever made except through a `Buf`.
//!
//! Bound: [`SLAB_BYTES`] of address space, reserved without memory behind it; only what is touched counts.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use crate::sync::{AtomicUsize, Ordering};
use raid_core::parity::Kernels;
use raid_core::units::SECTOR_SIZE;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes in a page of stripe cache: md's stripe size.
pub const PAGE: usize = 4096;

/// Sectors in a page.
pub const PAGE_SECTORS: u32 = (PAGE as u64 / SECTOR_SIZE) as u32;

/// Address space of a slab. Reserved only; memory is used where pieces are touched.
pub const SLAB_BYTES: usize = 512 << 30;

/// The part of the slab that is never written, so reads as zeroes and takes no memory: the source of zeroes for
/// WRITE_ZEROES. As long as the longest part.
const ZERO_BYTES: usize = 1 << 20;

/// What arenas are a multiple of, and start at a multiple of: a huge page.
const ARENA_BYTES: usize = 2 << 20;

/// Some sectors of the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it starts, in sectors from the slab's start.
    at: u32,
    /// How long it is, in sectors.
    sectors: u32,
}

impl Piece {
    /// No memory at all, for requests that carry no data.
    pub const NONE: Piece = Piece { at: 0, sectors: 0 };

    /// Start and length in sectors, to be made a piece again by [`from_raw`](Piece::from_raw).
    pub(crate) fn to_raw(self) -> (u32, u32) {
        (self.at, self.sectors)
    }

    /// A piece as it was taken apart. Whoever uses it has its bounds checked, like any piece's.
    pub(crate) fn from_raw(at: u32, sectors: u32) -> Piece {
        Piece { at, sectors }
    }

    /// Length in sectors.
    pub fn sectors(self) -> u32 {
        self.sectors
    }

    /// Length in bytes.
    pub fn bytes(self) -> usize {
        self.sectors as usize * SECTOR_SIZE as usize
    }

    /// `sectors` of the piece from `from` on. Panics where that is not within the piece.
    pub fn sub(self, from: u32, sectors: u32) -> Piece {
        assert!(from.checked_add(sectors).is_some_and(|end| end <= self.sectors), "sub-piece reaches past its piece");
        Piece { at: self.at + from, sectors }
    }

    /// Whether `next` begins where this piece ends.
    pub fn touches(self, next: Piece) -> bool {
        self.at + self.sectors == next.at
    }

    /// The piece and the one that [`touches`](Piece::touches) it, as one.
    pub fn joined(self, next: Piece) -> Piece {
        assert!(self.touches(next), "only pieces that touch can be joined");
        Piece { at: self.at, sectors: self.sectors + next.sectors }
    }
}

/// How [`Slab::copy_xor`] stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Into the caches.
    Plain,
    /// Past them.
    Stream,
}

/// A stretch of the slab that one owner allocates from. Given back to the slab when dropped.
#[derive(Debug)]
pub struct Arena {
    slab: Arc<Slab>,
    piece: Piece,
    /// The system was asked for huge pages.
    huge: bool,
}

impl Arena {
    /// The whole stretch.
    pub fn piece(&self) -> Piece {
        self.piece
    }

    /// The slab it was carved from.
    pub fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.slab.release(self.piece);
        if self.huge {
            self.slab.advise(self.piece, Advice::LinuxNoHugepage);
        }
        self.slab.carved.lock().expect("no panic while held").free.push(self.piece);
    }
}

/// What of the slab is carved, for control paths only.
#[derive(Debug)]
struct Carved {
    next: u32,
    free: Vec<Piece>,
}

/// The mapping. See the module's text for who may touch what.
#[derive(Debug)]
pub struct Slab {
    base: NonNull<u8>,
    bytes: usize,
    kernels: Kernels,
    carved: Mutex<Carved>,
    /// Bytes of clients' buffers that are idle and count against the bound over all clients.
    idle: AtomicUsize,
}

// SAFETY: the slab is a mapping that lives until drop; what pieces of it are touched, and by whom, is decided by
// ownership of `Buf`s and parts (see the module's text), never by sharing references into it.
unsafe impl Send for Slab {}
// SAFETY: as above; the only interior state is behind the mutex.
unsafe impl Sync for Slab {}

impl Slab {
    /// Reserves a slab of [`SLAB_BYTES`].
    pub fn new(kernels: Kernels) -> io::Result<Arc<Slab>> {
        Slab::with_bytes(kernels, SLAB_BYTES)
    }

    /// Reserves a slab of this many bytes (at least 4 MiB, for tests with many slabs).
    pub fn with_bytes(kernels: Kernels, bytes: usize) -> io::Result<Arc<Slab>> {
        assert!(bytes >= 2 * ARENA_BYTES && bytes.is_multiple_of(PAGE), "slab size");
        assert!(bytes as u64 / SECTOR_SIZE <= u64::from(u32::MAX), "pieces count sectors in 32 bits");
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never maps page zero");
        let next = (ARENA_BYTES as u64 / SECTOR_SIZE) as u32;
        let carved = Mutex::new(Carved { next, free: Vec::new() });
        Ok(Arc::new(Slab { base, bytes, kernels, carved, idle: AtomicUsize::new(0) }))
    }

    /// The parity kernels in use.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Carves a stretch of `bytes` (rounded up to [`ARENA_BYTES`]) for one owner; `None` when the slab has no room left.
    pub fn arena(self: &Arc<Self>, bytes: usize) -> Option<Arena> {
        let sectors = u32::try_from(bytes.next_multiple_of(ARENA_BYTES) as u64 / SECTOR_SIZE).ok()?;
        let mut carved = self.carved.lock().expect("no panic while held");
        let reuse = carved.free.iter().position(|p| p.sectors == sectors);
        let piece = match reuse {
            Some(i) => carved.free.swap_remove(i),
            None => {
                let end = carved.next.checked_add(sectors)?;
                if u64::from(end) * SECTOR_SIZE > self.bytes as u64 {
                    return None;
                }
                let piece = Piece { at: carved.next, sectors };
                carved.next = end;
                piece
            }
        };
        Some(Arena { slab: Arc::clone(self), piece, huge: false })
    }

    /// As [`Self::arena`], for memory that is used whole and at random: in huge pages where the system has them, so that an access need not
    /// look its address up in tables that are out of cache.
    pub fn huge_arena(self: &Arc<Self>, bytes: usize) -> Option<Arena> {
        let mut arena = self.arena(bytes)?;
        arena.huge = true;
        self.advise(arena.piece, Advice::LinuxHugepage);
        Some(arena)
    }

    /// Advice on a mapping of ours that leaves its content as it is.
    fn advise(&self, piece: Piece, advice: Advice) {
        let start = self.address(piece).as_ptr();
        // SAFETY: the range is within the mapping, and its content stays. A system that does not take the advice does without.
        let _ = unsafe { madvise(start.cast(), piece.bytes(), advice) };
    }

    /// Counts `bytes` more idle memory, unless that makes more than `max`.
    pub(crate) fn reserve_idle(&self, bytes: usize, max: usize) -> bool {
        let seen = self.idle.fetch_add(bytes, Ordering::Relaxed);
        if seen + bytes > max {
            self.idle.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// So many bytes that were counted are idle no longer.
    pub(crate) fn give_up_idle(&self, bytes: usize) {
        if bytes > 0 {
            self.idle.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Sectors of zeroes, at most a MiB of them. Never write to it.
    pub fn zeroes(&self, sectors: u32) -> Piece {
        assert!(sectors as usize * SECTOR_SIZE as usize <= ZERO_BYTES, "longer than the zero area");
        Piece { at: 0, sectors }
    }

    /// Where a piece is, for the shells that hand it to the kernel. Checked to be inside the slab.
    pub fn address(&self, piece: Piece) -> NonNull<u8> {
        let from = piece.at as usize * SECTOR_SIZE as usize;
        assert!(from + piece.bytes() <= self.bytes, "piece outside the slab");
        // SAFETY: just checked to be within the mapping.
        unsafe { self.base.add(from) }
    }

    /// Copies `data` into the piece from byte `offset` on.
    pub fn fill(&self, piece: Piece, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= piece.bytes(), "data longer than the piece");
        // SAFETY: source and destination are valid for the length (checked), and the slab never overlaps `data`
        // because no reference into it exists but a `Buf`'s, whose holder is not the engine.
        unsafe {
            self.address(piece).add(offset).copy_from_nonoverlapping(NonNull::from(data).cast(), data.len());
        }
    }

    /// Copies from byte `offset` of the piece into `data`.
    pub fn read_out(&self, piece: Piece, offset: usize, data: &mut [u8]) {
        assert!(offset + data.len() <= piece.bytes(), "data longer than the piece");
        // SAFETY: as in `fill`.
        unsafe {
            self.address(piece).add(offset).copy_to_nonoverlapping(NonNull::from(&mut *data).cast(), data.len());
        }
    }

    /// Copies one piece to another of the same length.
    pub fn copy(&self, from: Piece, to: Piece) {
        assert_eq!(from.sectors, to.sectors, "pieces of one length");
        // SAFETY: both are inside the slab; `copy_to` allows overlap.
        unsafe { self.address(from).copy_to(self.address(to), from.bytes()) }
    }

    /// As [`Self::copy`], for pieces that do not overlap and where nobody reads `to` soon: with stores that go past the caches, where the CPU has such.
    pub fn stream(&self, from: Piece, to: Piece) {
        assert_eq!(from.sectors, to.sectors, "pieces of one length");
        assert!(from.at + from.sectors <= to.at || to.at + to.sectors <= from.at, "pieces that do not overlap");
        // SAFETY: both are inside the slab and do not overlap (just checked).
        unsafe { self.kernels.stream_copy_raw(self.address(to).as_ptr(), self.address(from).as_ptr(), from.bytes()) }
    }

    /// `to` becomes the XOR of `sources`, which are as long as it; `to` is not among them.
    pub fn xor_into(&self, to: Piece, sources: &[Piece]) {
        self.with_addresses(to, sources, |to, sources, bytes| {
            // SAFETY: all are inside the slab and `bytes` long (checked by `with_addresses`).
            unsafe { self.kernels.xor_into_raw(to, sources, bytes) }
        });
    }

    /// `to` is XORed with all `sources`.
    pub fn xor_acc(&self, to: Piece, sources: &[Piece]) {
        self.with_addresses(to, sources, |to, sources, bytes| {
            // SAFETY: all are inside the slab and `bytes` long (checked by `with_addresses`).
            unsafe { self.kernels.xor_acc_raw(to, sources, bytes) }
        });
    }

    /// `len` bytes of the piece from byte `offset` on.
    ///
    /// # Safety
    /// Nobody writes them while they are borrowed.
    pub(crate) unsafe fn bytes(&self, piece: Piece, offset: usize, len: usize) -> &[u8] {
        assert!(offset + len <= piece.bytes(), "past the piece's end");
        // SAFETY: inside the slab (checked), and not written meanwhile, as the caller says.
        unsafe { std::slice::from_raw_parts(self.address(piece).as_ptr().add(offset), len) }
    }

    /// Copies each of `sources` to the one of `copies` at the same place, and makes `parity` their XOR. With [`Stores::Stream`] the stores go
    /// past the caches, where the CPU has such.
    pub fn copy_xor(&self, parity: Piece, copies: &[Piece], sources: &[Piece], stores: Stores) {
        assert_eq!(copies.len(), sources.len(), "a copy for each source");
        let mut to = [std::ptr::null_mut::<u8>(); raid_core::units::MEMBERS_MAX];
        for (address, copy) in to.iter_mut().zip(copies) {
            assert_eq!(copy.sectors, parity.sectors, "pieces of one length");
            *address = self.address(*copy).as_ptr();
        }
        let to = &to[..copies.len()];
        self.with_addresses(parity, sources, |parity, sources, bytes| match stores {
            // SAFETY: all are inside the slab and `bytes` long (checked); that they do not overlap is their owner's affair.
            Stores::Plain => unsafe { self.kernels.copy_xor_raw(parity, to, sources, bytes) },
            // SAFETY: as above.
            Stores::Stream => unsafe { self.kernels.stream_copy_xor_raw(parity, to, sources, bytes) },
        });
    }

    /// Whether two pieces of one length hold the same bytes.
    pub fn equal(&self, a: Piece, b: Piece) -> bool {
        assert_eq!(a.sectors, b.sectors, "pieces of one length");
        let (x, y) = (self.address(a).as_ptr(), self.address(b).as_ptr());
        // SAFETY: both lie inside the slab and are so long. No reference is made: as with copies, the bytes may be anybody's.
        unsafe { libc::memcmp(x.cast(), y.cast(), a.bytes()) == 0 }
    }

    /// Gives the memory behind a piece back to the system; it reads as zeroes afterwards.
    pub fn release(&self, piece: Piece) {
        let start = self.address(piece).as_ptr();
        // Locked memory must be named as such; kernels before 5.18 can't give it back while it is locked.
        for advice in [Advice::LinuxDontneedLocked, Advice::LinuxDontNeed] {
            // SAFETY: an anonymous mapping of ours, and the piece has no user any more.
            if unsafe { madvise(start.cast(), piece.bytes(), advice) }.is_ok() {
                return;
            }
        }
        // An error only means that the memory stays.
    }

    /// Puts memory behind a piece before it is used, so that its user need not wait for the system.
    pub fn populate(&self, piece: Piece) -> io::Result<()> {
        let start = self.address(piece).as_ptr();
        // SAFETY: a mapping of ours; its content stays as it is.
        unsafe { madvise(start.cast(), piece.bytes(), Advice::LinuxPopulateWrite) }.map_err(io::Error::from)
    }

    fn with_addresses(&self, to: Piece, sources: &[Piece], f: impl FnOnce(*mut u8, &[*const u8], usize)) {
        const FEW: usize = 8;
        const SOURCES_MAX: usize = 2 * raid_core::units::MEMBERS_MAX;
        // Most XORs have few sources, and clearing room for the most would cost as much as a small XOR.
        if sources.len() <= FEW {
            self.gather::<FEW>(to, sources, f);
        } else {
            self.gather::<SOURCES_MAX>(to, sources, f);
        }
    }

    fn gather<const N: usize>(&self, to: Piece, sources: &[Piece], f: impl FnOnce(*mut u8, &[*const u8], usize)) {
        assert!(sources.len() <= N, "more sources than an array has blocks");
        let mut addresses = [std::ptr::null::<u8>(); N];
        for (address, source) in addresses.iter_mut().zip(sources) {
            assert_eq!(source.sectors, to.sectors, "pieces of one length");
            *address = self.address(*source).as_ptr();
        }
        f(self.address(to).as_ptr(), &addresses[..sources.len()], to.bytes());
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; arenas and buffers hold an `Arc` of the slab, so none is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A front end's buffer: page-aligned memory of the slab, its holder's alone.
#[derive(Debug)]
pub struct Buf {
    slab: Arc<Slab>,
    piece: Piece,
    bytes: usize,
}

impl Buf {
    /// A buffer over a piece of which the caller is the only owner; `bytes` of it are visible.
    ///
    /// # Safety
    /// Nobody else touches the piece while the buffer can be dereferenced.
    pub(crate) unsafe fn new(slab: Arc<Slab>, piece: Piece, bytes: usize) -> Buf {
        assert!(bytes <= piece.bytes(), "buffer longer than its piece");
        Buf { slab, piece, bytes }
    }

    /// The memory behind it, as the engine names it.
    pub fn piece(&self) -> Piece {
        self.piece
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: inside the slab, and ours alone while we hold the buffer.
        unsafe { std::slice::from_raw_parts(self.slab.address(self.piece).as_ptr(), self.bytes) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and we are borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.slab.address(self.piece).as_ptr(), self.bytes) }
    }
}
impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
impl AsMut<[u8]> for Buf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

#[cfg(test)]
mod tests;
