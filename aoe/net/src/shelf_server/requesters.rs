//! Who sends requests to a port, so that the buffer counts told to all of them together fit the socket buffer.
//!
//! Owned by a serving thread. Bound: [`KNOWN`] stations; one that was not heard for [`FORGET`] is forgotten. With more at a time the
//! count stays at the bound: each of them is told the least then.

use aoe_proto::wire::MacAddr;
use core::time::Duration;

/// Stations remembered at most.
const KNOWN: usize = 256;
/// After this long without a frame a station is forgotten. Initiators ask for the configuration every 60 s.
const FORGET: Duration = Duration::from_secs(180);

/// The stations that send requests.
#[derive(Debug, Default)]
pub(super) struct Requesters {
    known: Vec<(MacAddr, Duration)>,
}

impl Requesters {
    pub(super) fn new() -> Requesters {
        Requesters { known: Vec::with_capacity(KNOWN) }
    }

    /// Notes a frame's sender; whether it is a new one.
    pub(super) fn note(&mut self, now: Duration, frame: &[u8]) -> bool {
        let Some(source) = frame.get(6..).and_then(|rest| rest.first_chunk::<6>()) else { return false };
        let source = MacAddr(*source);
        // The one heard last is in front: mostly the first comparison hits.
        match self.known.iter().position(|(mac, _)| *mac == source) {
            Some(index) => {
                self.known.swap(0, index);
                self.known[0].1 = now;
                false
            }
            None if self.known.len() < KNOWN => {
                self.known.push((source, now));
                true
            }
            None => false,
        }
    }

    /// Forgets who has not been heard for long; whether there was one.
    pub(super) fn forget(&mut self, now: Duration) -> bool {
        let before = self.known.len();
        self.known.retain(|(_, heard)| *heard + FORGET > now);
        self.known.len() < before
    }

    /// How many there are, at least one.
    pub(super) fn count(&self) -> usize {
        self.known.len().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(from: u16) -> Vec<u8> {
        let mut frame = vec![0; 24];
        frame[10..12].copy_from_slice(&from.to_be_bytes());
        frame
    }

    #[test]
    fn stations_are_counted_once_and_forgotten() {
        let secs = Duration::from_secs;
        let mut requesters = Requesters::new();
        assert_eq!(requesters.count(), 1);
        assert!(requesters.note(secs(0), &frame(1)));
        assert!(requesters.note(secs(0), &frame(2)));
        assert!(!requesters.note(secs(100), &frame(1)));
        assert!(!requesters.note(secs(100), &[0; 11]));
        assert_eq!(requesters.count(), 2);
        assert!(requesters.forget(secs(200)));
        assert!(!requesters.forget(secs(200)));
        assert_eq!(requesters.count(), 1);
        assert!(!requesters.note(secs(201), &frame(1)));
    }

    #[test]
    fn their_number_is_bounded() {
        let mut requesters = Requesters::new();
        for from in 0..1000 {
            requesters.note(Duration::ZERO, &frame(from));
        }
        assert_eq!(requesters.count(), KNOWN);
    }
}
