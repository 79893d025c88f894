//! How long a client may keep memory that only it can free.
//!
//! Owned by a connection, told of the bytes that move and asked now and then. A client that holds something and moves fewer than
//! [`STALL_BYTES`] within the limit is cut off: silence counts, and so does a trickle.

use std::time::{Duration, Instant};

/// Bytes that count as progress.
pub const STALL_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct Patience {
    /// When progress was last seen; `None` while the client holds nothing.
    since: Option<Instant>,
    /// Bytes moved since then.
    bytes: u64,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { since: None, bytes: 0 }
    }

    /// Bytes have moved, in either direction.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// The client holds nothing now.
    pub(super) fn reset(&mut self) {
        self.since = None;
    }

    /// The client holds something: has it kept it for too long?
    pub(super) fn is_over(&mut self, now: Instant, limit: Duration) -> bool {
        match self.since {
            Some(since) if self.bytes < STALL_BYTES => now - since >= limit,
            _ => {
                *self = Self { since: Some(now), bytes: 0 };
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn silence_and_trickles_end_and_progress_does_not() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        for (bytes, over) in [(0, true), (1, true), (6000, true), (7000, false), (1 << 20, false)] {
            let mut patience = Patience::new();
            let ended = (0..100).any(|secs| {
                let over = patience.is_over(at(secs), LIMIT);
                patience.moved(bytes);
                over
            });
            assert_eq!(ended, over, "{bytes} a second");
        }
    }

    #[test]
    fn the_time_begins_when_something_is_held() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut patience = Patience::new();
        assert!(!patience.is_over(at(0), LIMIT));
        assert!(!patience.is_over(at(9), LIMIT));
        patience.reset();
        assert!(!patience.is_over(at(20), LIMIT));
        assert!(!patience.is_over(at(29), LIMIT));
        assert!(patience.is_over(at(30), LIMIT));
        assert!(!Patience::new().is_over(at(30), Duration::ZERO), "looked at for the first time");
    }
}
