//! Files and block devices as members, by one io_uring per worker.
//!
//! Owned by the worker's [`Devices`](super::devices::Devices). An operation owns its iovec array in its slot until its completion; the data lie in the
//! slab, which outlives the ring. A short transfer is carried on until it is whole; a read that ends at the end of a file
//! is an error of the member (it has shrunk).
//!
//! Files are opened without the page cache where that is offered (block devices), so that a flush has only the device's cache to empty.
//! Bounds: [`RING_ENTRIES`] submissions per system call; with the kernel at once what it has room to complete, [`IN_FLIGHT_MAX`], so that it never has to
//! refuse; what is beyond that waits here in order, and is bounded by what the worker has outstanding.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use raid_core::units::{SECTOR_SIZE, Sectors};

use super::{Done, MemberOp, MemberRequest, MemberRequestId};
use crate::message::IoStatus;
use crate::slab::{Piece, Slab};

/// Submissions queued before the kernel is told.
const RING_ENTRIES: u32 = 256;

/// Operations that the kernel has at once, at most: room for completions.
const IN_FLIGHT_MAX: u32 = 16 * RING_ENTRIES;

/// How soon to try again what the kernel had no memory for.
const TRY_AGAIN: Duration = Duration::from_millis(1);

/// Errors of a kind that are logged of a disk without -v.
const ERRORS_TOLD: u32 = 5;

/// A file or block device, opened once and shared by all workers.
#[derive(Debug)]
pub struct FileDisk {
    file: File,
    path: PathBuf,
    sectors: Sectors,
    /// Reads that failed so far, and others.
    errors: [AtomicU32; 2],
}

impl FileDisk {
    /// Opens a member for reading and, unless `read_only`, writing. A block device is opened for us alone, which fails while it is mounted.
    pub fn open(path: &Path, read_only: bool) -> io::Result<FileDisk> {
        let kind = std::fs::metadata(path)?.file_type();
        let mut flags = libc::O_CLOEXEC;
        if kind.is_block_device() {
            flags |= libc::O_EXCL | libc::O_DIRECT;
        } else if !kind.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a block device"));
        }
        let mut file = OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path)?;
        let bytes = io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
        let sectors = Sectors(bytes / SECTOR_SIZE);
        if kind.is_block_device() && u64::from(rustix::fs::ioctl_blksszget(&file)?) != SECTOR_SIZE {
            let text = "its logical sectors have more than 512 bytes, which arrays of 512-byte sectors cannot use";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        Ok(FileDisk { file, path: path.to_path_buf(), sectors, errors: Default::default() })
    }

    /// Its size, rounded down to whole sectors.
    pub fn sectors(&self) -> Sectors {
        self.sectors
    }

    /// Logs an error. A disk that dies has hundreds of requests that fail: the array says what becomes of it.
    fn tell(&self, op: MemberOp, what: std::fmt::Arguments<'_>) {
        let path = self.path.display();
        match self.errors[usize::from(op != MemberOp::Read)].fetch_add(1, Ordering::Relaxed) {
            told if told + 1 < ERRORS_TOLD => tracing::warn!("{path}: {what}"),
            told if told + 1 == ERRORS_TOLD => tracing::warn!("{path}: {what}; -v logs further ones"),
            _ => tracing::debug!("{path}: {what}"),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// An operation that the kernel has.
#[derive(Debug)]
struct Slot {
    id: MemberRequestId,
    disk: Option<Arc<FileDisk>>,
    op: MemberOp,
    /// Byte offset of what is left.
    at: u64,
    /// Bytes left.
    left: usize,
    iovecs: Vec<libc::iovec>,
}

// SAFETY: the iovecs point into the slab, whose memory any thread may pass to the kernel; the slot is used by one thread at a time.
unsafe impl Send for Slot {}

/// The ring and its operations.
pub(super) struct Files {
    ring: IoUring,
    slab: Arc<Slab>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots whose operation is not in the ring yet, oldest first.
    waiting: VecDeque<usize>,
    /// Operations put into the ring whose completion has not been seen.
    in_flight: u32,
    /// The kernel did not take all that is in the ring.
    refused: bool,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("in_flight", &(self.slots.len() - self.free.len())).finish_non_exhaustive()
    }
}

impl Files {
    pub(super) fn new(slab: Arc<Slab>) -> io::Result<Files> {
        let ring = IoUring::builder().setup_cqsize(IN_FLIGHT_MAX).build(RING_ENTRIES)?;
        Ok(Files {
            ring,
            slab,
            slots: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            in_flight: 0,
            refused: false,
        })
    }

    pub(super) fn submit(&mut self, disk: &Arc<FileDisk>, request: &MemberRequest, segs: &[Piece]) {
        let index = self.free.pop().unwrap_or_else(|| {
            let (op, iovecs) = (MemberOp::Flush, Vec::new());
            self.slots.push(Slot { id: request.id, disk: None, op, at: 0, left: 0, iovecs });
            self.slots.len() - 1
        });
        let slab = &self.slab;
        let slot = &mut self.slots[index];
        slot.id = request.id;
        slot.disk = Some(Arc::clone(disk));
        slot.op = request.op;
        slot.at = request.lba.bytes().0;
        slot.left = request.sectors as usize * SECTOR_SIZE as usize;
        slot.iovecs.clear();
        slot.iovecs.extend(
            segs.iter()
                .map(|piece| libc::iovec { iov_base: slab.address(*piece).as_ptr().cast(), iov_len: piece.bytes() }),
        );
        self.waiting.push_back(index);
    }

    /// What is left of the slot's operation, for the kernel.
    fn entry(&self, index: usize) -> squeue::Entry {
        let slot = &self.slots[index];
        let fd = types::Fd(slot.disk.as_ref().expect("a slot in use has its disk").file.as_raw_fd());
        let iovecs = (slot.iovecs.as_ptr(), slot.iovecs.len() as u32);
        let entry = match slot.op {
            MemberOp::Read => opcode::Readv::new(fd, iovecs.0, iovecs.1).offset(slot.at).build(),
            MemberOp::Write => opcode::Writev::new(fd, iovecs.0, iovecs.1).offset(slot.at).build(),
            MemberOp::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        entry.user_data(index as u64)
    }

    /// Fills the ring from what waits, as far as there is room.
    fn fill(&mut self) {
        while self.in_flight < IN_FLIGHT_MAX
            && let Some(index) = self.waiting.front()
        {
            let entry = self.entry(*index);
            // SAFETY: the slot keeps the iovecs and the file until the completion, and the slab, which we hold, the data.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                return;
            }
            self.waiting.pop_front();
            self.in_flight += 1;
        }
    }

    /// Tells the kernel of what waits.
    fn enter(&mut self) {
        loop {
            self.fill();
            if self.ring.submission().is_empty() {
                self.refused = false;
                return;
            }
            // It is short of memory, or did not come to it. What is in the ring stays there, and goes with the next call.
            if let Err(error) = self.ring.submit() {
                tracing::debug!(%error, "io_uring submit");
                self.refused = true;
                return;
            }
        }
    }

    /// When to pump though nothing has been completed: what the kernel did not take is in nobody's hands but ours.
    pub(super) fn wake_at(&self, now: Duration) -> Option<Duration> {
        self.refused.then(|| now + TRY_AGAIN)
    }

    /// Tells the kernel of what waits, and collects completions, until neither changes anything.
    pub(super) fn pump(&mut self, done: &mut Vec<Done>) {
        loop {
            self.enter();
            let reaped = self.reap(done);
            if !reaped || self.waiting.is_empty() {
                return;
            }
        }
    }

    /// Collects completions; answers whether there were any.
    fn reap(&mut self, done: &mut Vec<Done>) -> bool {
        let mut reaped = false;
        loop {
            let Some(cqe) = self.ring.completion().next() else { return reaped };
            reaped = true;
            self.in_flight -= 1;
            let index = cqe.user_data() as usize;
            if let Some(status) = self.completed(index, cqe.result()) {
                let slot = &mut self.slots[index];
                slot.disk = None;
                done.push(Done { id: slot.id, status, boot: None, closed_until: None });
                self.free.push(index);
            }
        }
    }

    /// The kernel's answer for a slot; `None` when the rest of the operation has been queued.
    fn completed(&mut self, index: usize, result: i32) -> Option<IoStatus> {
        let slot = &mut self.slots[index];
        let disk = slot.disk.as_ref().expect("a slot in use has its disk");
        if result < 0 {
            let error = io::Error::from_raw_os_error(-result);
            if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) {
                self.waiting.push_back(index);
                return None;
            }
            disk.tell(slot.op, format_args!("{:?} at sector {}: {error}", slot.op, slot.at / SECTOR_SIZE));
            let medium = slot.op == MemberOp::Read
                && matches!(-result, libc::EIO | libc::EREMOTEIO | libc::ENODATA | libc::EILSEQ);
            return Some(if medium { IoStatus::Medium } else { IoStatus::Failed });
        }
        let moved = result as usize;
        if slot.op == MemberOp::Flush || moved == slot.left {
            return Some(IoStatus::Ok);
        }
        if moved == 0 {
            disk.tell(slot.op, format_args!("it ends before sector {}", slot.at / SECTOR_SIZE));
            return Some(IoStatus::Failed);
        }
        slot.at += moved as u64;
        slot.left -= moved;
        advance(&mut slot.iovecs, moved);
        self.waiting.push_back(index);
        None
    }

    /// The ring's descriptor: readable when there are completions.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring keeps it open as long as we are borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// Whether the kernel has operations of ours.
    fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }
}

impl Drop for Files {
    /// The kernel may still move data of operations in flight: waits for them.
    fn drop(&mut self) {
        let mut done = Vec::new();
        while !self.is_idle() {
            self.enter();
            if self.ring.submit_and_wait(1).is_err() {
                return;
            }
            self.pump(&mut done);
        }
    }
}

/// Cuts `moved` bytes off the front.
fn advance(iovecs: &mut Vec<libc::iovec>, mut moved: usize) {
    let whole = iovecs
        .iter()
        .take_while(|v| {
            let fits = v.iov_len <= moved;
            if fits {
                moved -= v.iov_len;
            }
            fits
        })
        .count();
    iovecs.drain(..whole);
    if let Some(first) = iovecs.first_mut() {
        // SAFETY: `moved` is less than the vector's length, so the pointer stays inside its piece.
        first.iov_base = unsafe { first.iov_base.cast::<u8>().add(moved) }.cast();
        first.iov_len -= moved;
    }
}
