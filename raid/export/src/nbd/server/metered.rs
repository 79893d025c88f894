//! A connection's backend, with its buffers counted against the server's [`Budget`](super::budget::Budget).
//!
//! Owned by a connection, which sees nothing of the counting but that [`Backend::alloc`] says `None` more often.

use std::os::fd::BorrowedFd;

use super::budget::Share;
use crate::nbd::backend::{Backend, Op, Reply};
use crate::nbd::session::MAX_IN_FLIGHT;

/// A backend's buffer, and what it counts.
pub(super) struct MeteredBuf<T> {
    buf: T,
    bytes: u64,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for MeteredBuf<T> {
    fn as_ref(&self) -> &[u8] {
        self.buf.as_ref()
    }
}

impl<T: AsMut<[u8]>> AsMut<[u8]> for MeteredBuf<T> {
    fn as_mut(&mut self) -> &mut [u8] {
        self.buf.as_mut()
    }
}

pub(super) struct Metered<B> {
    backend: B,
    share: Share,
    /// By id: what the buffer of the request in the array counts.
    submitted: Box<[u64]>,
}

impl<B: Backend> Metered<B> {
    pub(super) fn new(backend: B, share: Share) -> Self {
        Self { backend, share, submitted: vec![0; MAX_IN_FLIGHT].into_boxed_slice() }
    }

    /// Memory that was asked for in vain is not wanted any more.
    pub(super) fn cancel(&self) {
        self.share.cancel();
    }

    /// Some connection waits for memory that others hold.
    pub(super) fn is_pressed(&self) -> bool {
        self.share.is_pressed()
    }
}

fn index(id: u64) -> usize {
    usize::try_from(id).expect("ids are slots")
}

impl<B: Backend> Backend for Metered<B> {
    type Buf = MeteredBuf<B::Buf>;

    fn alloc(&mut self, bytes: usize) -> Option<Self::Buf> {
        let counted = bytes as u64;
        if !self.share.take(counted) {
            return None;
        }
        let buf = self.backend.alloc(bytes);
        if buf.is_none() {
            self.share.give(counted);
        }
        buf.map(|buf| MeteredBuf { buf, bytes: counted })
    }

    fn free(&mut self, buf: Self::Buf) {
        self.backend.free(buf.buf);
        self.share.give(buf.bytes);
    }

    fn has_room(&self, sectors: u32) -> bool {
        self.backend.has_room(sectors)
    }

    fn submit(&mut self, id: u64, op: Op, sector: u64, sectors: u32, buf: Option<Self::Buf>) {
        let buf = buf.map(|MeteredBuf { buf, bytes }| {
            self.submitted[index(id)] = bytes;
            buf
        });
        self.backend.submit(id, op, sector, sectors, buf);
    }

    fn unplug(&mut self) {
        self.backend.unplug();
    }

    fn poll(&mut self) -> Option<Reply<Self::Buf>> {
        let Reply { id, status, buf } = self.backend.poll()?;
        let buf = buf.map(|buf| MeteredBuf { buf, bytes: self.submitted[index(id)] });
        Some(Reply { id, status, buf })
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.backend.wake_fd()
    }

    fn announce(&mut self) -> bool {
        self.backend.announce()
    }

    fn awake(&mut self) {
        self.backend.awake();
    }
}
