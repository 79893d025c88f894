//! What the NBD server needs from the array.
//!
//! The server opens one [`Backend`] per connection, on that connection's thread, and is its only caller; so a backend needs no
//! lock and need not be `Send`. Requests are queued by [`Backend::submit`] and start at [`Backend::unplug`] at the latest; replies
//! come back by [`Backend::poll`] in any order.
//!
//! Invariants:
//! - every submitted id is replied to exactly once, with the buffer that went in; an id is not used again before its reply;
//! - at most [`MAX_IN_FLIGHT`](super::session::MAX_IN_FLIGHT) ids are outstanding per backend;
//! - no request is larger than [`MAX_TRANSFER`] bytes nor reaches beyond the end of the export;
//! - every buffer that [`Backend::alloc`] gave comes back: by [`Backend::submit`] on loan, and at last by [`Backend::free`];
//! - the server drops a backend only after every reply has come back.

use std::io;
use std::os::fd::BorrowedFd;

/// Bytes per sector: the unit of [`Backend::submit`].
pub const SECTOR_BYTES: u32 = 512;

/// Largest request that a backend sees, in bytes, whatever the operation. The server cuts longer WRITE_ZEROES and TRIM into pieces.
pub const MAX_TRANSFER: u32 = super::proto::MAX_PAYLOAD;

/// What to do with the sectors of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Fill the buffer.
    Read,
    /// Store the buffer; with `fua` it is durable before the reply.
    Write {
        /// Forced unit access.
        fua: bool,
    },
    /// Make every write durable that was replied to before this call, on any connection. Sector, count and buffer are absent.
    Flush,
    /// Make the sectors read as zero. There is no buffer.
    WriteZeroes {
        /// Forced unit access.
        fua: bool,
    },
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok,
    /// Failed; what the sectors of a failed write hold is unknown.
    Io,
    /// No room left for a write.
    NoSpace,
    /// The array takes no writes.
    ReadOnly,
    /// The array is being stopped.
    ShuttingDown,
}

/// The end of one request.
#[derive(Debug)]
pub struct Reply<B> {
    /// The id given to [`Backend::submit`].
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// The buffer given to [`Backend::submit`].
    pub buf: Option<B>,
}

/// One connection's way into the array.
pub trait Backend {
    /// A buffer in memory that the array can use without a copy.
    type Buf: AsRef<[u8]> + AsMut<[u8]>;

    /// A buffer of at least `bytes` bytes, or `None` while too much memory is in use. Called again later, after a reply or a moment:
    /// so with no buffer held by anyone, `alloc` must succeed for any size up to [`MAX_TRANSFER`].
    fn alloc(&mut self, bytes: usize) -> Option<Self::Buf>;

    /// Takes a buffer back.
    fn free(&mut self, buf: Self::Buf);

    /// Whether a request of that many sectors may be submitted now. With nothing in flight it must be so for any request up to
    /// [`MAX_TRANSFER`]; otherwise the server asks again after a reply.
    fn has_room(&self, sectors: u32) -> bool;

    /// Queues a request under the plug, after [`Backend::has_room`] said yes. `buf` is present for reads and writes; it may be longer
    /// than the request, of which it then holds the first `sectors * SECTOR_BYTES` bytes.
    fn submit(&mut self, id: u64, op: Op, sector: u64, sectors: u32, buf: Option<Self::Buf>);

    /// Ends the plug: all that is queued goes to the array.
    fn unplug(&mut self);

    /// The next reply, if one has come.
    fn poll(&mut self) -> Option<Reply<Self::Buf>>;

    /// Readable, between [`Backend::announce`] and [`Backend::awake`], when [`Backend::poll`] may have something.
    fn wake_fd(&self) -> BorrowedFd<'_>;

    /// The caller is about to sleep on [`Backend::wake_fd`]; `false` when there is something to poll already, and then it does
    /// not sleep. So the array wakes only those who sleep.
    fn announce(&mut self) -> bool;

    /// The caller is awake again, after an [`Backend::announce`] that said `true`.
    fn awake(&mut self);
}

/// Opens backends; shared by all connections of a server.
pub trait Backends: Send + Sync {
    /// The backend that a connection gets.
    type B: Backend;

    /// Opens a backend on the calling thread.
    ///
    /// # Errors
    /// When the array takes no further client; the connection is then closed.
    fn open(&self) -> io::Result<Self::B>;

    /// What is exported now. Read once per connection, and once when the server starts.
    fn info(&self) -> ExportInfo;
}

/// What a client is told about the export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// The name by which a client asks for it; the empty name always works too.
    pub name: String,
    /// Size in bytes, a multiple of `min_block`.
    pub size_bytes: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Smallest unit of offset and length, in bytes: a power of two from 512 to 65536.
    pub min_block: u32,
    /// Unit that avoids read-modify-write where possible, in bytes: a power of two from `min_block` to [`MAX_TRANSFER`].
    pub preferred_block: u32,
    /// Free text for people.
    pub description: String,
}

/// What is wrong with an [`ExportInfo`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InfoError {
    /// The name is too long for the protocol.
    #[error("export name is {0} bytes long, the limit is 4096")]
    NameTooLong(usize),
    /// The description is too long for the protocol.
    #[error("export description is {0} bytes long, the limit is 4096")]
    DescriptionTooLong(usize),
    /// The minimum block size is not one that the protocol allows.
    #[error("minimum block size {0} is not a power of two from 512 to 65536")]
    MinBlock(u32),
    /// The preferred block size is not one that the protocol allows.
    #[error("preferred block size {0} is not a power of two from the minimum block size to 33554432")]
    PreferredBlock(u32),
    /// The size cannot be reached with whole blocks.
    #[error("export size {0} is not a multiple of the minimum block size, or exceeds 2^63-1 bytes")]
    Size(u64),
}

impl ExportInfo {
    /// Checks what the protocol and the session rely on.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self) -> Result<(), InfoError> {
        if self.name.len() > super::proto::MAX_STRING {
            return Err(InfoError::NameTooLong(self.name.len()));
        }
        if self.description.len() > super::proto::MAX_STRING {
            return Err(InfoError::DescriptionTooLong(self.description.len()));
        }
        if !self.min_block.is_power_of_two() || !(SECTOR_BYTES..=65536).contains(&self.min_block) {
            return Err(InfoError::MinBlock(self.min_block));
        }
        let preferred = self.preferred_block;
        if !preferred.is_power_of_two() || !(self.min_block..=MAX_TRANSFER).contains(&preferred) {
            return Err(InfoError::PreferredBlock(preferred));
        }
        if !self.size_bytes.is_multiple_of(u64::from(self.min_block)) || self.size_bytes > i64::MAX as u64 {
            return Err(InfoError::Size(self.size_bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
