//! A file or a block device as a store, by plain positioned reads and writes.
//!
//! Flush is fdatasync, a FUA write is one with RWF_DSYNC, TRIM punches a hole (or writes zeros where that is not supported, because
//! trimmed sectors are promised to read zeros). A flush that failed stays failed: the kernel reports lost pages only once.
//!
//! With direct I/O the page cache is left out. Requests whose memory, offset or length is not aligned go through a bounce buffer of
//! [`BOUNCE`] bytes, allocated when the store is opened; a write that covers part of a block reads that block first.

use aoe_proto::shelf::{BlockStore, StoreError};
use aoe_proto::wire::{Lba, SECTOR};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom, fallocate, fdatasync, open, seek};
use rustix::io::{Errno, ReadWriteFlags, pread, pwrite, pwritev2};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Sizes are rounded down to this many bytes: an odd size makes some initiators do 512-byte I/O.
const SIZE_UNIT: u64 = 4096;
/// Bytes of the bounce buffer, and of one piece of a zeroing write.
const BOUNCE: usize = 256 << 10;
/// The strictest alignment that direct I/O asks for.
const ALIGN: usize = 4096;

/// How to open a [`FileStore`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// First byte to export; a multiple of 512.
    pub offset: u64,
    /// Bytes to export; `None` is all that follow `offset`.
    pub length: Option<u64>,
    /// Leave out the page cache (O_DIRECT).
    pub direct: bool,
    /// Make each write durable before it is answered (O_DSYNC).
    pub sync: bool,
}

/// Why a file can't be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// It could not be opened or measured.
    #[error("opening {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Its file system has no direct I/O.
    #[error("{} can't be opened for direct I/O; leave out 'direct'", path.display())]
    NotDirect {
        /// The file.
        path: PathBuf,
    },
    /// Offset and length leave nothing, or reach beyond the end, or are not whole sectors.
    #[error("{} has {size} bytes: offset {offset} and length {length:?} must be multiples of 512 within it, and leave 4096 at least",
            path.display())]
    Range {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// The offset asked for.
        offset: u64,
        /// The length asked for.
        length: Option<u64>,
    },
}

/// A file or block device.
#[derive(Debug)]
pub struct FileStore {
    file: OwnedFd,
    offset: u64,
    sectors: u64,
    read_only: bool,
    /// Direct I/O: the unit of alignment, and the buffer for what is not aligned.
    direct: Option<Bounce>,
    flush_failed: bool,
}

impl FileStore {
    /// Opens `path`.
    pub fn open(path: &Path, options: FileOptions) -> Result<FileStore, OpenError> {
        let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let mut flags = access | OFlags::CLOEXEC;
        flags.set(OFlags::DIRECT, options.direct);
        flags.set(OFlags::DSYNC, options.sync);
        let open_error = |errno: Errno| OpenError::Open { path: path.to_owned(), source: errno.into() };
        let file = match open(path, flags, Mode::empty()) {
            Err(Errno::INVAL) if options.direct => return Err(OpenError::NotDirect { path: path.to_owned() }),
            opened => opened.map_err(open_error)?,
        };
        let size = seek(&file, SeekFrom::End(0)).map_err(open_error)?;
        let bytes = range(size, options.offset, options.length).ok_or_else(|| OpenError::Range {
            path: path.to_owned(),
            size,
            offset: options.offset,
            length: options.length,
        })?;
        let rounded = bytes / SIZE_UNIT * SIZE_UNIT;
        if rounded != bytes {
            tracing::warn!(path = %path.display(), bytes, rounded, "size rounded down to a multiple of 4096");
        }
        let direct = options.direct.then(|| Bounce::new(&file, options.offset));
        Ok(FileStore {
            file,
            offset: options.offset,
            sectors: rounded / SECTOR as u64,
            read_only: options.read_only,
            direct,
            flush_failed: false,
        })
    }

    fn at(&self, lba: Lba) -> u64 {
        self.offset + lba.0 * SECTOR as u64
    }

    fn write_zeros(&mut self, mut at: u64, mut len: u64) -> Result<(), Errno> {
        let zeros = vec![0; BOUNCE];
        while len > 0 {
            let step = len.min(BOUNCE as u64);
            self.write_at(at, &zeros[..step as usize], false)?;
            at += step;
            len -= step;
        }
        Ok(())
    }

    fn write_at(&mut self, at: u64, data: &[u8], fua: bool) -> Result<(), Errno> {
        match &mut self.direct {
            Some(bounce) if !bounce.is_aligned(data.as_ptr(), at, data.len()) => {
                bounce.write(&self.file, at, data, fua)
            }
            _ => write_all(&self.file, at, data, fua),
        }
    }
}

/// Bytes to export of a file of `size`.
fn range(size: u64, offset: u64, length: Option<u64>) -> Option<u64> {
    let rest = size.checked_sub(offset)?;
    let bytes = length.unwrap_or(rest);
    let whole = offset.is_multiple_of(SECTOR as u64) && length.is_none_or(|len| len.is_multiple_of(SECTOR as u64));
    (whole && bytes <= rest && bytes >= SIZE_UNIT).then_some(bytes)
}

fn read_all(file: &OwnedFd, mut at: u64, mut buf: &mut [u8]) -> Result<(), Errno> {
    while !buf.is_empty() {
        match pread(file, &mut *buf, at) {
            // The file has become shorter than it was.
            Ok(0) => return Err(Errno::NXIO),
            Ok(count) => {
                buf = &mut buf[count..];
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write_all(file: &OwnedFd, mut at: u64, mut data: &[u8], fua: bool) -> Result<(), Errno> {
    let mut sync_after = false;
    while !data.is_empty() {
        let result = if fua && !sync_after {
            pwritev2(file, &[IoSlice::new(data)], at, ReadWriteFlags::DSYNC)
        } else {
            pwrite(file, data, at)
        };
        match result {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(count) => {
                data = &data[count..];
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP) if fua && !sync_after => sync_after = true,
            Err(error) => return Err(error),
        }
    }
    if sync_after { fdatasync(file) } else { Ok(()) }
}

/// An aligned buffer for direct I/O, and the file's unit of alignment.
#[derive(Debug)]
struct Bounce {
    bytes: Vec<u8>,
    /// Where the aligned part begins.
    start: usize,
    unit: u64,
}

impl Bounce {
    fn new(file: &OwnedFd, offset: u64) -> Bounce {
        let bytes = vec![0; BOUNCE + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        let mut bounce = Bounce { bytes, start, unit: SECTOR as u64 };
        // A device with blocks of 4096 bytes refuses to read one sector.
        if pread(file, bounce.part(0, SECTOR), offset).is_err() {
            bounce.unit = ALIGN as u64;
        }
        bounce
    }

    fn part(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at + len <= BOUNCE, "within the buffer");
        &mut self.bytes[self.start + at..][..len]
    }

    fn is_aligned(&self, memory: *const u8, at: u64, len: usize) -> bool {
        let unit = self.unit;
        memory.addr().is_multiple_of(unit as usize) && at.is_multiple_of(unit) && (len as u64).is_multiple_of(unit)
    }

    /// The largest step from `at` that fits the buffer with whole blocks around it: block to begin at, bytes of whole blocks, bytes
    /// to skip in them, bytes of the step.
    fn step(&self, at: u64, len: usize) -> (u64, usize, usize, usize) {
        let first = at / self.unit * self.unit;
        let skip = (at - first) as usize;
        let bytes = len.min(BOUNCE - 2 * ALIGN);
        (first, (skip + bytes).next_multiple_of(self.unit as usize), skip, bytes)
    }

    fn read(&mut self, file: &OwnedFd, mut at: u64, mut buf: &mut [u8]) -> Result<(), Errno> {
        while !buf.is_empty() {
            let (first, blocks, skip, bytes) = self.step(at, buf.len());
            read_all(file, first, self.part(0, blocks))?;
            let (now, rest) = buf.split_at_mut(bytes);
            now.copy_from_slice(self.part(skip, bytes));
            buf = rest;
            at += bytes as u64;
        }
        Ok(())
    }

    fn write(&mut self, file: &OwnedFd, mut at: u64, mut data: &[u8], fua: bool) -> Result<(), Errno> {
        while !data.is_empty() {
            let (first, blocks, skip, bytes) = self.step(at, data.len());
            if skip > 0 || blocks > skip + bytes {
                read_all(file, first, self.part(0, blocks))?;
            }
            let (now, rest) = data.split_at(bytes);
            self.part(skip, bytes).copy_from_slice(now);
            write_all(file, first, self.part(0, blocks), fua)?;
            data = rest;
            at += bytes as u64;
        }
        Ok(())
    }
}

fn read_error(errno: Errno) -> StoreError {
    match errno {
        Errno::IO | Errno::NODATA => StoreError::Medium,
        _ => StoreError::Io,
    }
}

fn write_error(errno: Errno) -> StoreError {
    match errno {
        Errno::ROFS | Errno::BADF | Errno::PERM => StoreError::ReadOnly,
        _ => StoreError::Io,
    }
}

impl BlockStore for FileStore {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn read(&mut self, lba: Lba, buf: &mut [u8]) -> Result<(), StoreError> {
        let at = self.at(lba);
        match &mut self.direct {
            Some(bounce) if !bounce.is_aligned(buf.as_ptr(), at, buf.len()) => bounce.read(&self.file, at, buf),
            _ => read_all(&self.file, at, buf),
        }
        .map_err(read_error)
    }

    fn write(&mut self, lba: Lba, data: &[u8], fua: bool) -> Result<(), StoreError> {
        if self.read_only {
            return Err(StoreError::ReadOnly);
        }
        self.write_at(self.at(lba), data, fua).map_err(write_error)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        if let Err(error) = fdatasync(&self.file) {
            tracing::error!(%error, "flush failed: written data may be lost");
            self.flush_failed = true;
        }
        if self.flush_failed { Err(StoreError::Io) } else { Ok(()) }
    }

    fn trim(&mut self, lba: Lba, sectors: u64) -> Result<(), StoreError> {
        if self.read_only {
            return Err(StoreError::ReadOnly);
        }
        let (at, len) = (self.at(lba), sectors * SECTOR as u64);
        match fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::INVAL) => {
                self.write_zeros(at, len).map_err(write_error)
            }
            Err(error) => Err(write_error(error)),
        }
    }

    fn read_only(&self) -> bool {
        self.read_only
    }
}
