//! The default: holds the window near the value that last worked.
//!
//! ```text
//!  slow start --loss--> cooling off --32 quiet rounds--> avoidance --256 quiet rounds--> slow start
//!                        ^   |  ^                           |
//!                        +loss  +-----------loss------------+
//! ```
//!
//! A round is one window of replies. In a shallow switch queue the window that overflows it hardly changes from minute
//! to minute; Reno overruns it again and again, and each overrun costs a timeout, because AoE has no faster sign of
//! loss. So after a loss the window grows back at once to the largest value for which a whole round went through, and
//! stays there for a while before it probes further, one frame per round. Where the held value itself keeps losing,
//! the network has become slower and the held value shrinks. After a long quiet time the network may have become
//! faster, and growth is fast again.

use super::{Congestion, WINDOW_INITIAL};

/// Rounds without loss at the held window before it is probed further.
const COOLING_ROUNDS: u32 = 32;
/// Rounds of slow growth without loss before growth is fast again.
const FAST_AFTER_ROUNDS: u32 = 256;
/// A loss after fewer rounds than this blames the held window; after more, chance.
const SHRINK_ROUNDS: u32 = 8;
/// The held window does not shrink below this by single losses, so that one lost frame never stops a path.
const HOLD_MIN: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    SlowStart,
    CoolingOff,
    Avoidance,
}

/// A window that remembers what worked.
#[derive(Clone, Copy, Debug)]
pub struct Sticky {
    cwnd: u32,
    cap: u32,
    phase: Phase,
    /// The window held while cooling off; `u32::MAX` before the first loss.
    hold: u32,
    /// The last window for which a whole round went through.
    worked: u32,
    /// The window when this round began.
    round_window: u32,
    /// Replies that are left of this round.
    round_left: u32,
    /// Whether the window was used up at some time in this round; a round that was not proves nothing.
    round_limited: bool,
    /// Rounds without loss in this phase.
    quiet_rounds: u32,
}

impl Sticky {
    /// Starts in slow start.
    pub fn new(cap: u32) -> Sticky {
        let cap = cap.max(1);
        let cwnd = WINDOW_INITIAL.min(cap);
        Sticky {
            cwnd,
            cap,
            phase: Phase::SlowStart,
            hold: u32::MAX,
            worked: 1,
            round_window: cwnd,
            round_left: cwnd,
            round_limited: false,
            quiet_rounds: 0,
        }
    }

    fn begin_round(&mut self) {
        self.round_window = self.cwnd;
        self.round_left = self.cwnd;
        self.round_limited = false;
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.quiet_rounds = 0;
    }

    fn end_round(&mut self) {
        if self.round_limited {
            self.worked = self.round_window;
        }
        self.quiet_rounds = self.quiet_rounds.saturating_add(1);
        match self.phase {
            Phase::SlowStart => {}
            Phase::CoolingOff if self.quiet_rounds >= COOLING_ROUNDS => self.enter(Phase::Avoidance),
            Phase::CoolingOff => {}
            Phase::Avoidance if self.quiet_rounds >= FAST_AFTER_ROUNDS => self.enter(Phase::SlowStart),
            Phase::Avoidance if self.round_limited => self.grow(self.cap),
            Phase::Avoidance => {}
        }
        self.begin_round();
    }

    fn grow(&mut self, to: u32) {
        if self.cwnd < to.min(self.cap) {
            self.cwnd += 1;
        }
    }
}

impl Congestion for Sticky {
    fn window(&self) -> u32 {
        self.cwnd
    }

    fn ssthresh(&self) -> u32 {
        self.hold
    }

    fn set_cap(&mut self, cap: u32) {
        self.cap = cap.max(1);
        if self.cwnd > self.cap {
            self.cwnd = self.cap;
            self.begin_round();
        }
    }

    fn on_reply(&mut self, in_flight: u32) {
        self.round_limited |= in_flight >= self.cwnd;
        // Where growth is fast, half of the window in use shows that it was needed: it doubles per round trip.
        if in_flight.saturating_mul(2) >= self.cwnd {
            match self.phase {
                Phase::SlowStart => self.grow(self.cap),
                Phase::CoolingOff => self.grow(self.hold),
                Phase::Avoidance => {}
            }
        }
        self.round_left = self.round_left.saturating_sub(1);
        if self.round_left == 0 {
            self.end_round();
        }
    }

    fn on_loss(&mut self, consecutive: bool) {
        let hold = match self.phase {
            Phase::CoolingOff if self.quiet_rounds < SHRINK_ROUNDS => self.hold / 4 * 3 + self.hold % 4 / 2,
            Phase::CoolingOff => self.hold,
            Phase::SlowStart | Phase::Avoidance => self.worked.min(self.cwnd.saturating_sub(1)),
        };
        self.hold = hold.max(HOLD_MIN).min(self.cap);
        self.worked = self.worked.min(self.hold);
        self.cwnd = if consecutive { 1 } else { (self.hold / 2).max(1).min(self.cwnd) };
        self.enter(Phase::CoolingOff);
        self.begin_round();
    }
}
