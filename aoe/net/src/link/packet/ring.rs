//! A receive ring (TPACKET_V2): the kernel puts arriving frames into memory that this process sees, so that receiving takes no system call and
//! no socket buffer is queued, charged and freed on another CPU.
//!
//! Owned by [`super::PacketLink`]. Each slot begins with a header whose status word says whose the slot is: the kernel's until a frame is in it,
//! then ours until we give it back. Frames are taken in their order. Bound: the slots, made when the ring is.

use super::sys::{self, Arrival};
use std::io::{self, Error};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Smallest piece that the kernel allocates for a ring.
const BLOCK: usize = 64 << 10;
/// Slots begin at multiples of a cache line, and so do the data of frames in them.
const ALIGN: usize = 64;
/// Where a frame of 14 bytes of header begins in its slot, if no more room is reserved before it.
const FRAME_AT: usize = 66;
/// Bytes of a frame before an ATA command's data.
const DATA_OFFSET: usize = 36;
/// Bytes that the kernel is to leave free before each frame.
const RESERVE: usize = (FRAME_AT + DATA_OFFSET).next_multiple_of(ALIGN) - FRAME_AT - DATA_OFFSET;

/// How a ring's memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    stride: usize,
    block: usize,
    blocks: usize,
}

impl Shape {
    /// Slots for `frames` frames or a few more, each of up to `longest` bytes.
    pub(super) fn new(longest: usize, frames: usize) -> Shape {
        let stride = (FRAME_AT + RESERVE + longest).next_multiple_of(ALIGN);
        let block = stride.max(BLOCK).next_power_of_two();
        Shape { stride, block, blocks: frames.div_ceil(block / stride).max(1) }
    }

    fn per_block(self) -> usize {
        self.block / self.stride
    }

    /// How many frames it holds.
    pub(super) fn slots(self) -> usize {
        self.per_block() * self.blocks
    }

    fn bytes(self) -> usize {
        self.block * self.blocks
    }

    fn offset(self, slot: usize) -> usize {
        slot / self.per_block() * self.block + slot % self.per_block() * self.stride
    }

    fn request(self) -> libc::tpacket_req {
        libc::tpacket_req {
            tp_block_size: self.block as libc::c_uint,
            tp_block_nr: self.blocks as libc::c_uint,
            tp_frame_size: self.stride as libc::c_uint,
            tp_frame_nr: self.slots() as libc::c_uint,
        }
    }
}

/// A ring of a socket, mapped.
pub(super) struct Ring {
    base: NonNull<u8>,
    shape: Shape,
    /// The slot that the next frame will be in.
    next: usize,
}

// SAFETY: the mapping belongs to the ring alone and is not bound to a thread.
unsafe impl Send for Ring {}

impl Ring {
    /// Gives a socket that has none a ring of this shape.
    pub(super) fn new(fd: BorrowedFd<'_>, shape: Shape) -> io::Result<Ring> {
        sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as i32))?;
        sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_RESERVE, &(RESERVE as libc::c_uint))?;
        sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &shape.request())?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, of the size that the ring was made with, at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), shape.bytes(), access, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        match NonNull::new(base.cast::<u8>()).filter(|_| base != libc::MAP_FAILED) {
            Some(base) => Ok(Ring { base, shape, next: 0 }),
            None => {
                let error = Error::last_os_error();
                Ring::remove(fd)?;
                Err(error)
            }
        }
    }

    /// Takes the ring of a socket away, after it was dropped here: frames are queued again.
    pub(super) fn remove(fd: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: all zeros is a valid value of this plain C structure.
        let none: libc::tpacket_req = unsafe { mem::zeroed() };
        sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &none)
    }

    /// How many frames it holds.
    pub(super) fn slots(&self) -> usize {
        self.shape.slots()
    }

    /// Hands up to `most` frames to `each`, and gives each one's slot back after it; how many.
    pub(super) fn receive(&mut self, most: usize, each: &mut dyn FnMut(Arrival<'_>)) -> usize {
        let mut count = 0;
        while count < most {
            // SAFETY: the offset of a slot is inside the mapping.
            let slot = unsafe { self.base.add(self.shape.offset(self.next)) };
            // SAFETY: a slot begins with its status word, which is aligned and changed by this thread and the kernel only, atomically.
            let status = unsafe { AtomicU32::from_ptr(slot.as_ptr().cast()) };
            if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                break;
            }
            each(self.arrival(slot));
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = if self.next + 1 == self.slots() { 0 } else { self.next + 1 };
            count += 1;
        }
        count
    }

    /// The frame in a slot that is ours.
    fn arrival(&self, slot: NonNull<u8>) -> Arrival<'_> {
        // SAFETY: the header is in the slot, which is aligned for it, and the kernel writes nothing there until we give the slot back.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        let (at, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        assert!(at + len <= self.shape.stride, "the kernel puts a frame into one slot");
        // SAFETY: inside the slot, as just checked; nobody writes there while the caller has the bytes, which is until it gives the slot back.
        let bytes = unsafe { std::slice::from_raw_parts(slot.add(at).as_ptr(), len) };
        let arrived = Duration::new(header.tp_sec.into(), header.tp_nsec);
        Arrival { bytes, truncated: header.tp_len > header.tp_snaplen, arrived: Some(arrived) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this size, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.shape.bytes()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_lie_in_blocks_and_data_are_aligned() {
        for longest in [60, 1518, 4114, 9018, 65_553] {
            for frames in [1, 7, 128, 1000] {
                let shape = Shape::new(longest, frames);
                assert!((frames..frames + shape.per_block()).contains(&shape.slots()), "{shape:?}");
                for slot in 0..shape.slots() {
                    let offset = shape.offset(slot);
                    assert_eq!((offset + FRAME_AT + RESERVE + DATA_OFFSET) % ALIGN, 0, "{shape:?}");
                    let end = offset + FRAME_AT + RESERVE + longest;
                    assert!(end <= offset + shape.stride && end <= offset / shape.block * shape.block + shape.block);
                    assert!(slot == 0 || offset >= shape.offset(slot - 1) + shape.stride);
                }
            }
        }
    }
}
