//! Who sends requests to a port, so that the buffer counts told to all of them together fit the socket buffer.
//!
//! Owned by a serving thread. Bound: [`KNOWN`] stations; one that was not heard for [`FORGET`] is forgotten. With more at a time the
//! count stays at the bound: each of them is told the least then.

use aoe_proto::wire::{Header, MacAddr};
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

    /// Notes the sender of a request; whether it is a new one. Beacons and replies of other shelves, which come to all, do not count.
    pub(super) fn note(&mut self, now: Duration, frame: &[u8]) -> bool {
        let Ok((Header { src: source, response: false, .. }, _)) = Header::parse(frame) else { return false };
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
    use aoe_proto::wire::{CCmd, Command, ConfigInfo, Tag};

    fn header(from: u16) -> Header {
        let [high, low] = from.to_be_bytes();
        let address = "e1.1".parse().expect("an address");
        Header::request(MacAddr::BROADCAST, MacAddr([2, 0, 0, 0, high, low]), address, Command::CONFIG, Tag(1))
    }

    fn frame(header: Header) -> Vec<u8> {
        let mut frame = vec![0; 64];
        ConfigInfo::request(CCmd::READ, &[]).emit(&header, &mut frame);
        frame
    }

    fn request(from: u16) -> Vec<u8> {
        frame(header(from))
    }

    #[test]
    fn stations_are_counted_once_and_forgotten() {
        let secs = Duration::from_secs;
        let mut requesters = Requesters::new();
        assert_eq!(requesters.count(), 1);
        assert!(requesters.note(secs(0), &request(1)));
        assert!(requesters.note(secs(0), &request(2)));
        assert!(!requesters.note(secs(100), &request(1)));
        assert!(!requesters.note(secs(100), &[0; 11]));
        assert_eq!(requesters.count(), 2);
        assert!(requesters.forget(secs(200)));
        assert!(!requesters.forget(secs(200)));
        assert_eq!(requesters.count(), 1);
        assert!(!requesters.note(secs(201), &request(1)));
    }

    #[test]
    fn other_shelves_are_no_requesters() {
        let mut requesters = Requesters::new();
        let request = header(1);
        let beacon = request.reply(MacAddr([2, 0, 0, 0, 0, 9]), request.address, None);
        assert!(!requesters.note(Duration::ZERO, &frame(beacon)));
        assert!(requesters.note(Duration::ZERO, &frame(request)));
        assert_eq!(requesters.count(), 1);
    }

    #[test]
    fn their_number_is_bounded() {
        let mut requesters = Requesters::new();
        for from in 0..1000 {
            requesters.note(Duration::ZERO, &request(from));
        }
        assert_eq!(requesters.count(), KNOWN);
    }
}
