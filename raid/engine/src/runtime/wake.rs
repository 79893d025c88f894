//! Waking a thread that waits in poll(2), and not letting it sleep when it would soon be woken.
//!
//! A thread that finds nothing to do announces that it sleeps, looks once more, and polls; who leaves work for it kicks it only if
//! it has announced that, so a busy thread costs its peers no system call. Before all that it looks again and again for as long as its [`Spin`] says, and
//! lets others have the CPU in between: a wake-up costs more than a short wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::board::{Sleeper, left_work};

/// What kicks a thread out of poll(2).
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Kicks the thread awake, now or when it next sleeps.
    pub(super) fn ring(&self) {
        // Fails only when the count is at its limit, and then it is readable anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Sleeps until kicked, until one of `fds` is readable, or for `timeout`.
    pub(super) fn sleep<'a>(&'a self, fds: impl Iterator<Item = BorrowedFd<'a>>, timeout: Option<Duration>) {
        const FDS_MAX: usize = 32;
        let mut list: [PollFd<'a>; FDS_MAX] = std::array::from_fn(|_| PollFd::new(&self.0, PollFlags::IN));
        let mut len = 1;
        for fd in fds {
            assert!(len < FDS_MAX, "more descriptors than a worker polls");
            list[len] = PollFd::from_borrowed_fd(fd, PollFlags::IN);
            len += 1;
        }
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        // An interruption is a wake like any other.
        let _ = poll(&mut list[..len], timeout.as_ref());
        if list[0].revents().contains(PollFlags::IN) {
            self.silence();
        }
    }

    fn silence(&self) {
        let mut count = [0; 8];
        // Nothing to read is what we want.
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A thread's flag and bell.
#[derive(Debug)]
pub(super) struct Wake {
    bell: Bell,
    sleeper: Sleeper,
}

impl Wake {
    /// A wake whose owner is awake.
    pub(super) fn new() -> io::Result<Wake> {
        Ok(Wake { bell: Bell::new()?, sleeper: Sleeper::default() })
    }

    /// Wakes the owner if it sleeps or is about to. Call after putting something into its queue.
    pub(super) fn notify(&self) {
        left_work();
        if self.sleeper.must_kick() {
            self.bell.ring();
        }
    }

    /// The owner is about to sleep; it must look at its queues once more before it does.
    pub(super) fn announce(&self) {
        self.sleeper.announce();
    }

    /// The owner is awake again, after a sleep of its own kind.
    pub(super) fn awake(&self) {
        self.sleeper.awake();
        self.bell.silence();
    }

    /// The owner, which had announced that it sleeps, has found something.
    pub(super) fn stay_awake(&self) {
        self.sleeper.awake();
    }

    /// Sleeps, announced, until woken, until one of `fds` is readable, or for `timeout`.
    pub(super) fn sleep<'a>(&'a self, fds: impl Iterator<Item = BorrowedFd<'a>>, timeout: Option<Duration>) {
        self.bell.sleep(fds, timeout);
        self.sleeper.awake();
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// After the CPU was away for long although a thread only let others have it: it is wanted elsewhere, and for so long the thread does not look, but
/// sleeps, as sleepers are preferred to those who had the CPU all the time.
const CPU_WANTED: Duration = Duration::from_millis(10);

/// How long a thread that has nothing to do looks for work before it sleeps: as long as is allowed while waits turn out to be that short, and
/// less and less, down to not at all, while they are longer. So an idle thread uses no CPU.
#[derive(Debug, Default)]
pub(super) struct Spin {
    window: Duration,
    /// The CPU is wanted by others until then.
    not_before: Option<Instant>,
}

impl Spin {
    /// Looks for work until it is `found`, for as long as is of use and `most` allows; answers whether it was.
    pub(super) fn look(&mut self, most: Duration, mut found: impl FnMut() -> bool) -> bool {
        if found() {
            return true;
        }
        let window = self.window.min(most);
        if window.is_zero() {
            return false;
        }
        let began = Instant::now();
        if self.not_before.is_some_and(|at| began < at) {
            return false;
        }
        let mut last = began;
        loop {
            std::thread::yield_now();
            let found = found();
            let now = Instant::now();
            if now - last > most {
                self.not_before = Some(now + CPU_WANTED);
                return found;
            }
            if found || now - began >= window {
                return found;
            }
            last = now;
        }
    }

    /// The thread has waited so long, looking and asleep, until there was work.
    pub(super) fn waited(&mut self, time: Duration, most: Duration) {
        self.window = if time <= most { most } else { self.window / 2 };
        if self.window < Duration::from_micros(1) {
            self.window = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a thread looks before it gives up.
    fn looks(spin: &mut Spin, most: Duration) -> u32 {
        let mut count = 0;
        assert!(!spin.look(most, || {
            count += 1;
            false
        }));
        count
    }

    #[test]
    fn a_thread_looks_for_work_only_while_waits_are_short() {
        let most = Duration::from_millis(200);
        let mut spin = Spin::default();
        assert_eq!(looks(&mut spin, most), 1);
        spin.waited(Duration::from_micros(20), most);
        assert!(looks(&mut spin, most) > 1);
        assert_eq!(looks(&mut spin, Duration::ZERO), 1, "not allowed any more");
        for _ in 0..18 {
            spin.waited(Duration::from_secs(1), most);
        }
        assert_eq!(looks(&mut spin, most), 1);
    }

    #[test]
    fn a_thread_whose_cpu_others_want_sleeps() {
        let most = Duration::from_millis(1);
        let mut spin = Spin::default();
        spin.waited(Duration::ZERO, most);
        // Whatever the thread had to wait for in between.
        let slow = || {
            std::thread::sleep(Duration::from_millis(2));
            false
        };
        assert!(!spin.look(most, slow));
        assert_eq!(looks(&mut spin, most), 1);
    }
}
