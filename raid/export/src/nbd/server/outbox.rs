//! Replies on their way to the client.
//!
//! Owned by a connection. Heads and data are gathered into one call; the data go out of the request's own buffer, which is given
//! back when the last byte has left. A reply holds its session slot until then, so the queue is never longer than
//! [`MAX_IN_FLIGHT`].

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::nbd::proto::ReplyHead;
use crate::nbd::session::{MAX_IN_FLIGHT, Session, Slot};

/// Pieces gathered into one call, heads and data: a plug's worth of replies without data. Far below the system's limit of 1024.
const GATHER: usize = 64;

struct Outgoing<B> {
    slot: Slot,
    head: ReplyHead,
    /// Buffer and how many bytes of it to send.
    data: Option<(B, usize)>,
}

impl<B: AsRef<[u8]>> Outgoing<B> {
    fn data(&self) -> &[u8] {
        self.data.as_ref().map_or(&[], |(buf, len)| &buf.as_ref()[..*len])
    }

    fn len(&self) -> usize {
        self.head.as_bytes().len() + self.data().len()
    }
}

pub(super) struct Outbox<B> {
    queue: VecDeque<Outgoing<B>>,
    /// Bytes of the front reply that have left.
    sent: usize,
}

impl<B: AsRef<[u8]>> Outbox<B> {
    pub(super) fn new() -> Self {
        Self { queue: VecDeque::with_capacity(MAX_IN_FLIGHT), sent: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn push(&mut self, slot: Slot, head: ReplyHead, data: Option<(B, usize)>) {
        assert!(self.queue.len() < MAX_IN_FLIGHT, "each queued reply holds a slot");
        self.queue.push_back(Outgoing { slot, head, data });
    }

    /// Sends the session's handshake bytes and then the replies, as much as the client takes, and returns how many bytes. Buffers that are
    /// done with go to `free`.
    ///
    /// # Errors
    /// `AGAIN` when the client takes no more for now, with something left to send; anything else when it is gone.
    pub(super) fn send_some(
        &mut self,
        socket: BorrowedFd<'_>,
        session: &mut Session,
        free: impl FnMut(B),
    ) -> Result<usize, Errno> {
        let mut pieces = [IoSlice::new(&[]); GATHER];
        let mut count = 0;
        // Handshake bytes have all left before the first reply is begun: while there are some, nothing is skipped.
        let mut skip = self.sent;
        let replies = self.queue.iter().flat_map(|reply| [reply.head.as_bytes(), reply.data()]);
        for piece in std::iter::once(session.output()).chain(replies) {
            let cut = skip.min(piece.len());
            skip -= cut;
            if cut == piece.len() {
                continue;
            }
            if count == GATHER {
                break;
            }
            pieces[count] = IoSlice::new(&piece[cut..]);
            count += 1;
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let n = loop {
            match rustix::net::sendmsg(socket, &pieces[..count], &mut SendAncillaryBuffer::default(), flags) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        self.sent_bytes(n, session, free);
        Ok(n)
    }

    fn sent_bytes(&mut self, n: usize, session: &mut Session, mut free: impl FnMut(B)) {
        let handshake = n.min(session.output().len());
        session.output_sent(handshake);
        self.sent += n - handshake;
        while let Some(front) = self.queue.front()
            && self.sent >= front.len()
        {
            self.sent -= front.len();
            session.release(front.slot);
            let done = self.queue.pop_front();
            done.and_then(|reply| reply.data).into_iter().for_each(|(buf, _)| free(buf));
        }
    }

    /// The client is gone: what is queued is forgotten.
    pub(super) fn clear(&mut self, session: &mut Session, mut free: impl FnMut(B)) {
        self.sent = 0;
        for reply in self.queue.drain(..) {
            session.release(reply.slot);
            reply.data.into_iter().for_each(|(buf, _)| free(buf));
        }
    }
}
