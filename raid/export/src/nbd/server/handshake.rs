//! A connection until its client has chosen the export.
//!
//! Called first on the connection's thread. Nothing of the array is taken for a client that may only want to know what there is, or nothing at all.
//! Bound: [`HANDSHAKE_LIMIT`](super::HANDSHAKE_LIMIT) from the first byte to the last.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::Shared;
use crate::nbd::session::{CloseReason, Event, Session};

/// Why the connection ends here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum End {
    #[error(transparent)]
    Closed(CloseReason),
    #[error("client has not chosen an export in time")]
    Late,
    #[error("client is gone: {0}")]
    Gone(Errno),
}

/// Negotiates. Afterwards the session is in transmission; the last of its output may still be to be sent.
pub(super) fn negotiate(socket: &OwnedFd, session: &mut Session, shared: &Shared) -> Result<(), End> {
    let deadline = Instant::now() + shared.limits.handshake;
    loop {
        if shared.is_stopping() {
            session.stop();
        }
        let mut interest = match session.poll() {
            Event::Started => return Ok(()),
            Event::Read => PollFlags::IN,
            Event::Full => PollFlags::empty(),
            Event::Close(reason) => {
                // The answer to ABORT goes if it can.
                let _ = send(socket, session);
                return Err(End::Closed(reason));
            }
            event @ (Event::Payload { .. } | Event::Submit(_) | Event::Answer(..)) => {
                unreachable!("{event:?} before the start")
            }
        };
        send(socket, session).map_err(End::Gone)?;
        if session.output().is_empty() && interest.is_empty() {
            continue;
        }
        interest.set(PollFlags::OUT, !session.output().is_empty());
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(End::Late);
        }
        let timeout = Timespec::try_from(left).expect("limits are minutes at most");
        let mut fds = [
            PollFd::from_borrowed_fd(shared.stop_fd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(socket.as_fd(), interest),
        ];
        // An interruption is a wake like any other.
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
        if interest.contains(PollFlags::IN) && !fds[1].revents().is_empty() {
            receive(socket, session)?;
        }
    }
}

fn send(socket: &OwnedFd, session: &mut Session) -> Result<(), Errno> {
    while !session.output().is_empty() {
        match rustix::net::send(socket, session.output(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(n) => session.output_sent(n),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn receive(socket: &OwnedFd, session: &mut Session) -> Result<(), End> {
    match rustix::io::read(socket, session.room()) {
        Ok(0) => session.end_of_stream(),
        Ok(n) => session.received(n),
        Err(Errno::INTR | Errno::AGAIN) => {}
        Err(errno) => return Err(End::Gone(errno)),
    }
    Ok(())
}
