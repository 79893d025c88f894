//! What is open: the content that a reader has begun to read, what it has seen of a value that changes, and whom to wake when it does.
//!
//! As in sysfs: content is made when a file is read from its beginning, and stays for what is read of it after; poll(2) reports a change until the file is read
//! from its beginning again, and reports one for a file that was not read yet.

use std::collections::HashMap;
use std::sync::Mutex;

use fuser::PollNotifier;
use raid_engine::runtime::watch::Changes;

/// Files open at a time.
pub(super) const OPEN_MAX: usize = 4096;

/// Of these, files that users other than the array's may have open.
const OTHERS_MAX: usize = OPEN_MAX / 2;

#[derive(Debug, Default)]
pub(super) struct Handles(Mutex<Opened>);

#[derive(Debug, Default)]
struct Opened {
    next: u64,
    handles: HashMap<u64, Handle>,
    /// Those of other users.
    others: usize,
}

#[derive(Debug, Default)]
struct Handle {
    by_other: bool,
    content: Option<Vec<u8>>,
    /// How often the value had changed when the content was made.
    seen: Option<u64>,
    /// Who is to be told of the next change.
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    counter: Counter,
    notifier: PollNotifier,
}

/// How often what is in a file has changed.
pub(super) type Counter = fn(&Changes) -> u64;

impl Handles {
    /// Its number; `None` when too many are open.
    pub(super) fn open(&self, by_other: bool) -> Option<u64> {
        let mut opened = self.lock();
        if opened.handles.len() >= OPEN_MAX || (by_other && opened.others >= OTHERS_MAX) {
            return None;
        }
        opened.next += 1;
        opened.others += usize::from(by_other);
        let number = opened.next;
        opened.handles.insert(number, Handle { by_other, ..Handle::default() });
        Some(number)
    }

    pub(super) fn close(&self, number: u64) {
        let mut opened = self.lock();
        if let Some(handle) = opened.handles.remove(&number) {
            opened.others -= usize::from(handle.by_other);
        }
    }

    /// Up to `size` bytes from `offset` of what was filled in; `None` if nothing was.
    pub(super) fn slice(&self, number: u64, offset: u64, size: usize) -> Option<Vec<u8>> {
        let opened = self.lock();
        let content = opened.handles.get(&number)?.content.as_ref()?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let to = from.saturating_add(size).min(content.len());
        Some(content[from..to].to_vec())
    }

    /// New content, made after the value had changed `seen` times.
    pub(super) fn fill(&self, number: u64, content: Vec<u8>, seen: Option<u64>) {
        if let Some(handle) = self.lock().handles.get_mut(&number) {
            handle.content = Some(content);
            handle.seen = seen;
        }
    }

    /// Whether the value is no longer what was read. `notifier` is told of the next change. `now` is asked while none is overlooked.
    pub(super) fn poll(
        &self,
        number: u64,
        counter: Counter,
        notifier: Option<PollNotifier>,
        now: impl FnOnce() -> u64,
    ) -> bool {
        let mut opened = self.lock();
        let Some(handle) = opened.handles.get_mut(&number) else { return false };
        if let Some(notifier) = notifier {
            handle.waiting = Some(Waiting { counter, notifier });
        }
        handle.seen != Some(now())
    }

    /// Takes out whoever waits for a value that has changed since it was read.
    pub(super) fn changed(&self, changes: &Changes) -> Vec<PollNotifier> {
        let is_changed = |handle: &Handle| {
            handle.waiting.as_ref().is_some_and(|waiting| handle.seen != Some((waiting.counter)(changes)))
        };
        let mut opened = self.lock();
        let changed = opened.handles.values_mut().filter(|handle| is_changed(handle));
        changed.filter_map(|handle| Some(handle.waiting.take()?.notifier)).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Opened> {
        self.0.lock().expect("no panic while held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter() -> Counter {
        |changes| changes.degraded
    }

    #[test]
    fn content_stays_until_it_is_made_anew() {
        let handles = Handles::default();
        let number = handles.open(false).expect("room");
        assert_eq!(handles.slice(number, 0, 9), None);
        handles.fill(number, b"active\n".to_vec(), Some(0));
        assert_eq!(handles.slice(number, 0, 3).as_deref(), Some(&b"act"[..]));
        assert_eq!(handles.slice(number, 3, 99).as_deref(), Some(&b"ive\n"[..]));
        assert_eq!(handles.slice(number, 7, 99).as_deref(), Some(&b""[..]));
        assert_eq!(handles.slice(number, u64::MAX, usize::MAX).as_deref(), Some(&b""[..]));
        handles.close(number);
        assert_eq!(handles.slice(number, 0, 9), None);
    }

    #[test]
    fn a_change_is_reported_until_it_is_read() {
        let handles = Handles::default();
        let number = handles.open(false).expect("room");
        let poll = |now| handles.poll(number, counter(), None, || now);
        assert!(poll(0), "not read yet");
        handles.fill(number, Vec::new(), Some(0));
        assert!(!poll(0));
        assert!(poll(2) && poll(2));
        handles.fill(number, Vec::new(), Some(2));
        assert!(!poll(2));
        assert!(!handles.poll(number + 1, counter(), None, || 0), "no such file");
    }

    #[test]
    fn others_leave_room() {
        let handles = Handles::default();
        let theirs: Vec<u64> = std::iter::from_fn(|| handles.open(true)).collect();
        assert_eq!(theirs.len(), OTHERS_MAX);
        let ours: Vec<u64> = std::iter::from_fn(|| handles.open(false)).collect();
        assert_eq!(ours.len(), OPEN_MAX - OTHERS_MAX);
        handles.close(ours[0]);
        assert!(handles.open(true).is_none() && handles.open(false).is_some());
        handles.close(theirs[0]);
        handles.close(theirs[0]);
        assert!(handles.open(true).is_some() && handles.open(true).is_none());
    }
}
