//! Waiting for descriptors, and waking a thread that waits.
//!
//! Used by whoever runs a driver or a shelf: poll the links' descriptors and a [`Waker`] together. Bound: [`WAIT_MAX`] descriptors.

use core::time::Duration;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Descriptors that [`wait`] takes at most.
pub const WAIT_MAX: usize = 32;

/// Waits until one of `fds` is readable (or has an error to be read), or `timeout` has passed; `None` is for ever. May return early.
///
/// # Panics
/// With more than [`WAIT_MAX`] descriptors.
pub fn wait(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) {
    assert!(fds.len() <= WAIT_MAX, "{} descriptors", fds.len());
    let Some(first) = fds.first() else {
        // Nothing can wake the caller: an endless wait would be a hang.
        std::thread::sleep(timeout.unwrap_or(Duration::ZERO));
        return;
    };
    let mut polled: [PollFd<'_>; WAIT_MAX] =
        core::array::from_fn(|i| PollFd::from_borrowed_fd(*fds.get(i).unwrap_or(first), PollFlags::IN));
    let timeout = timeout
        .map(|t| Timespec { tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX), tv_nsec: t.subsec_nanos().into() });
    match poll(&mut polled[..fds.len()], timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => {
            // Out of kernel memory: go on as if woken, but don't spin.
            tracing::warn!(%error, "poll");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A descriptor that another thread makes readable.
#[derive(Debug)]
pub struct Waker {
    fd: OwnedFd,
}

impl Waker {
    /// A waker that has not been woken.
    pub fn new() -> io::Result<Waker> {
        Ok(Waker { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Makes the descriptor readable, from any thread.
    pub fn wake(&self) {
        // It fails only when the counter is full: then it is readable anyway.
        let _ = write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable again; whether it was readable.
    pub fn clear(&self) -> bool {
        let mut count = [0u8; 8];
        read(&self.fd, &mut count).is_ok()
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

    #[test]
    fn a_woken_waker_ends_a_wait_from_another_thread() {
        let waker = Arc::new(Waker::new().unwrap());
        let other = Arc::clone(&waker);
        let thread = std::thread::spawn(move || other.wake());
        while !waker.clear() {
            wait(&[waker.as_fd()], None);
        }
        assert!(!waker.clear());
        thread.join().unwrap();
    }

    #[test]
    fn a_wait_ends_by_its_timeout() {
        let waker = Waker::new().unwrap();
        let (start, timeout) = (Instant::now(), Duration::from_millis(5));
        wait(&[waker.as_fd()], Some(timeout));
        wait(&[], Some(timeout));
        assert!(start.elapsed() >= 2 * timeout);
    }
}
