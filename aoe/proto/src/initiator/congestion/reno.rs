//! Additive increase, multiplicative decrease, as in RFC 5681: the yardstick for the others.
//!
//! A first loss halves the window, as fast recovery would: frames in flight beside the lost one are still answered. A
//! loss with no reply since the cut before means that nothing gets through, and the window falls to 1.

use super::{Congestion, Loss, Reply, WINDOW_INITIAL};

/// Window below which slow start does not end.
const SSTHRESH_MIN: u32 = 2;

/// TCP Reno's window, counted in frames.
#[derive(Clone, Copy, Debug)]
pub struct Reno {
    cwnd: u32,
    ssthresh: u32,
    cap: u32,
    /// Replies since the window last grew, in congestion avoidance.
    replies: u32,
}

impl Reno {
    /// Starts in slow start.
    pub fn new(cap: u32) -> Reno {
        let cap = cap.max(1);
        Reno { cwnd: WINDOW_INITIAL.min(cap), ssthresh: u32::MAX, cap, replies: 0 }
    }
}

impl Congestion for Reno {
    fn window(&self) -> u32 {
        self.cwnd
    }

    fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    fn set_cap(&mut self, cap: u32) {
        self.cap = cap.max(1);
        self.cwnd = self.cwnd.min(self.cap);
    }

    fn on_reply(&mut self, reply: Reply) {
        let in_flight = reply.in_flight;
        if self.cwnd < self.ssthresh {
            // In slow start the window doubles per round trip, so half of it in use shows that it was needed.
            if in_flight.saturating_mul(2) >= self.cwnd {
                self.cwnd = (self.cwnd + 1).min(self.cap);
            }
            return;
        }
        if in_flight < self.cwnd {
            return;
        }
        self.replies += 1;
        if self.replies >= self.cwnd {
            self.replies = 0;
            self.cwnd = (self.cwnd + 1).min(self.cap);
        }
    }

    fn on_loss(&mut self, loss: Loss) {
        if !loss.first {
            return;
        }
        self.ssthresh = (self.cwnd / 2).max(SSTHRESH_MIN);
        self.cwnd = if loss.consecutive { 1 } else { self.ssthresh.min(self.cwnd) };
        self.replies = 0;
    }
}
