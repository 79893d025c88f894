//! Frames that a full link did not take: copied, and tried again for a short while.
//!
//! One per port, owned by the driver. Bound: [`BATCH`] frames of full length, allocated when the port's MTU is known; frames wait for
//! [`super::BACKLOG_PATIENCE`] at most, so that none leaves long after the initiator counted it as sent.

use super::BACKLOG_PATIENCE;
use crate::link::{BATCH, FrameRef, Link, Slots};
use aoe_proto::wire::ETH_HEADER;
use core::time::Duration;

pub(super) struct Backlog {
    slots: Slots,
    lengths: [usize; BATCH],
    /// The frames that wait are these of the slots.
    first: usize,
    end: usize,
    /// Since when they wait.
    since: Duration,
    lost: u64,
}

impl Backlog {
    pub(super) fn new() -> Backlog {
        Backlog { slots: Slots::new(0, 0), lengths: [0; BATCH], first: 0, end: 0, since: Duration::ZERO, lost: 0 }
    }

    /// Makes room for frames of a port with this MTU.
    pub(super) fn reserve(&mut self, mtu: u32) {
        let longest = mtu as usize + ETH_HEADER;
        if longest > self.slots.capacity() {
            self.drop_all();
            self.slots = Slots::new(BATCH, longest);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// Frames lost so far because the link stayed full.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Keeps the frames that a link did not take. Only while none are kept.
    pub(super) fn keep(&mut self, now: Duration, frames: &[FrameRef<'_>]) {
        if frames.is_empty() {
            return;
        }
        assert!(self.is_empty(), "no frames are made while some wait");
        (self.first, self.end, self.since) = (0, 0, now);
        for frame in frames {
            let len = frame.len();
            if self.end == self.slots.count() || len > self.slots.capacity() {
                // The port went down, or changed its MTU, since the frame was made.
                self.lost += 1;
                continue;
            }
            let mut rest = &mut self.slots.slot_mut(self.end)[..len];
            for piece in [frame.head].into_iter().chain(frame.data.iter().map(|piece| &piece[..])) {
                let (to, after) = rest.split_at_mut(piece.len());
                to.copy_from_slice(piece);
                rest = after;
            }
            rest.fill(0);
            self.lengths[self.end] = len;
            self.end += 1;
        }
    }

    /// Tries to send what waits, and gives up what has waited too long; how many were sent.
    pub(super) fn retry(&mut self, now: Duration, link: &mut dyn Link) -> usize {
        if self.is_empty() {
            return 0;
        }
        // Before sending: after a pause of the whole process the frames are older than anybody expects a copy to be.
        if now >= self.since + BACKLOG_PATIENCE {
            self.drop_all();
            return 0;
        }
        let mut frames = [FrameRef::whole(&[]); BATCH];
        let waiting = self.end - self.first;
        for (index, frame) in (self.first..self.end).zip(&mut frames) {
            *frame = FrameRef::whole(&self.slots.slot(index)[..self.lengths[index]]);
        }
        let sent = link.send(&frames[..waiting]);
        self.first += sent;
        sent
    }

    fn drop_all(&mut self) {
        self.lost += (self.end - self.first) as u64;
        (self.first, self.end) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkCounters;
    use aoe_proto::port::PortInfo;
    use std::io::IoSlice;
    use std::os::fd::BorrowedFd;

    /// A link that takes so many frames and then is full.
    #[derive(Default)]
    struct Narrow {
        room: usize,
        sent: Vec<Vec<u8>>,
    }

    impl Link for Narrow {
        fn name(&self) -> &str {
            "narrow"
        }
        fn info(&self) -> Option<PortInfo> {
            None
        }
        fn refresh(&mut self) {}
        fn send(&mut self, frames: &[FrameRef<'_>]) -> usize {
            let count = frames.len().min(self.room);
            self.room -= count;
            for frame in &frames[..count] {
                let mut bytes = Vec::new();
                frame.copy_to(&mut bytes);
                self.sent.push(bytes);
            }
            count
        }
        fn receive(&mut self, _: &mut dyn FnMut(&[u8])) -> usize {
            0
        }
        fn receive_frames(&self) -> usize {
            0
        }
        fn fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
        fn counters(&mut self) -> LinkCounters {
            LinkCounters::default()
        }
    }

    #[test]
    fn frames_go_in_order_when_there_is_room_again() {
        let mut backlog = Backlog::new();
        backlog.reserve(1500);
        let mut link = Narrow::default();
        let bodies = [[1; 600], [2; 600], [3; 600]];
        let data: Vec<_> = bodies.iter().map(|body| [IoSlice::new(&body[..100]), IoSlice::new(&body[100..])]).collect();
        let frames: Vec<_> = data.iter().map(|data| FrameRef { head: &[9; 36], data, pad: 2 }).collect();
        backlog.keep(Duration::ZERO, &frames);
        assert_eq!(backlog.retry(Duration::ZERO, &mut link), 0);
        link.room = 2;
        assert_eq!(backlog.retry(Duration::from_millis(1), &mut link), 2);
        assert!(!backlog.is_empty());
        link.room = 2;
        assert_eq!(backlog.retry(Duration::from_millis(2), &mut link), 1);
        assert!(backlog.is_empty());
        let expected: Vec<_> = bodies.iter().map(|body| [&[9; 36][..], body, &[0; 2]].concat()).collect();
        assert_eq!(link.sent, expected);
        assert_eq!(backlog.lost(), 0);
    }

    #[test]
    fn frames_that_waited_too_long_are_lost() {
        let mut backlog = Backlog::new();
        backlog.reserve(1500);
        let mut link = Narrow { room: 1, ..Narrow::default() };
        backlog.keep(Duration::ZERO, &[FrameRef::whole(&[1; 60]); 3]);
        // Though there is room by now: nobody expects a copy that old.
        assert_eq!(backlog.retry(BACKLOG_PATIENCE, &mut link), 0);
        assert!(backlog.is_empty());
        assert_eq!((backlog.lost(), link.sent.len()), (3, 0));
        // A port that is down has no room at all; a frame longer than its MTU neither.
        let mut down = Backlog::new();
        down.keep(Duration::ZERO, &[FrameRef::whole(&[1; 60])]);
        assert!(down.is_empty());
        assert_eq!(down.lost(), 1);
        down.reserve(600);
        down.keep(Duration::ZERO, &[FrameRef::whole(&[1; 700])]);
        assert!(down.is_empty());
    }
}
