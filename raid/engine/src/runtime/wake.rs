//! Waking a thread that waits in poll(2).
//!
//! One [`Wake`] per sleeping thread. The sleeper announces itself, looks at its queues once more, and polls; who puts something
//! into a queue wakes it only if it has announced itself, so a busy thread costs its peers no system call.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::sync::{AtomicBool, Ordering, fence};

/// See the module's text.
#[derive(Debug)]
pub(super) struct Wake {
    fd: OwnedFd,
    sleeping: AtomicBool,
}

impl Wake {
    /// A wake whose owner is awake.
    pub(super) fn new() -> io::Result<Wake> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Wake { fd, sleeping: AtomicBool::new(false) })
    }

    /// Wakes the owner if it sleeps or is about to. Call after putting something into its queue.
    pub(super) fn notify(&self) {
        // Pairs with the fence in `announce`: either we see it sleeping, or it sees what we put into the queue.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed) {
            // Fails only when the count is at its limit, and then it is readable anyway.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    /// The owner is about to sleep; it must look at its queues once more before it does.
    pub(super) fn announce(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The owner is awake again.
    pub(super) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
        let mut count = [0; 8];
        // Nothing to read is what we want.
        let _ = rustix::io::read(&self.fd, &mut count);
    }

    /// Sleeps, announced, until woken, until one of `fds` is readable, or for `timeout`.
    pub(super) fn sleep<'a>(&'a self, fds: impl Iterator<Item = BorrowedFd<'a>>, timeout: Option<Duration>) {
        const FDS_MAX: usize = 32;
        let mut list: [PollFd<'a>; FDS_MAX] = std::array::from_fn(|_| PollFd::new(&self.fd, PollFlags::IN));
        let mut len = 1;
        for fd in fds {
            assert!(len < FDS_MAX, "more descriptors than a worker polls");
            list[len] = PollFd::from_borrowed_fd(fd, PollFlags::IN);
            len += 1;
        }
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        // An interruption is a wake like any other.
        let _ = poll(&mut list[..len], timeout.as_ref());
        self.awake();
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
