//! The default: holds the window near the value that last worked.
//!
//! ```text
//!  slow start --a loss, or twice the shortest round trip--> avoidance
//! ```
//!
//! In a shallow switch queue the window that overflows it hardly changes from minute to minute; Reno overruns it again and again. So a loss
//! is taken as a lesson: the round trip at which it came is that of a full queue, and from then on the window keeps round trips near the middle
//! between the shortest and that one. It grows by a little per round below, and shrinks by the excess above, so that all who share the
//! queue see the same and come to equal windows, the queue is never empty, and nothing more is lost. After some time without a loss
//! the window probes until one comes, soon at first and then ever more seldom, so that a network that has become better is found out. Where nothing is ever lost there is
//! no lesson, and the window grows to its cap.
//!
//! A loss at round trips that are not longer than usual is no sign of a full queue: cables lose frames too, and a smaller window would not help.
//! Unless a sixth of the frames are lost, it does not change the window.
//!
//! Hosts have queues as well, which make round trips grow with the window without ever being full; then a cable's loss passes for a lesson. What
//! tells is what comes of it: behind a full queue losses end with the cut, or are at long round trips. If they go on at short ones the lesson
//! was none, and for some thousands of replies, twice as many each time, losses teach nothing, unless the window that grows meanwhile makes them three times as many.
//!
//! Windows have fractions: a window of 2.4 frames is 3 in two of five rounds. Less than one frame is one with pauses in between: with
//! many devices behind one port the fair share is less than a frame per round trip.

use core::time::Duration;

use super::{Congestion, Loss, Reply, WINDOW_INITIAL};

/// One frame, in the fixed point of windows.
const FRAME: u32 = 256;
/// Smallest window: one frame in so many round trips.
const WINDOW_MIN: u32 = FRAME / 64;
/// Growth per round, where nothing was learned, and where it was.
const GROWTH_UNTAUGHT: u32 = FRAME;
const GROWTH: u32 = FRAME / 4;
/// Rounds without a loss after which the window probes for more: soon after the first lesson, so that all who share the queue see it full
/// once, then eight times as many each time, up to the latter.
const PROBE_FIRST: u32 = 64;
const PROBE_ROUNDS: u32 = 16_384;
/// Replies after which the shortest round trip of before is forgotten at the latest.
const SHORTEST_REPLIES: u32 = 1 << 20;
/// Losses and replies are counted over about as many replies.
const LOSS_REPLIES: u32 = 256;
/// So many times as many losses as replies are too many to come of bad cables.
const LOST_MANY: u32 = 6;
/// So many losses of late are more than chance.
const LOST_FEW: u32 = 3;
/// So many losses at round trips well below those of a full queue, none so many replies after the one before, show that there is no such queue.
const LOST_LOW: u32 = 8;
const LOW_REPLIES: u32 = 1 << 9;
/// Smallest window, in frames, with which the last round trips tell that: with less they are too few.
const TELLING_WINDOW: u32 = 4;
/// Replies for which losses teach nothing after that, at first and at most.
const DEAF_FIRST: u32 = 1 << 12;
const DEAF_MAX: u32 = 1 << 20;
/// So many times as many losses as before mean that there is such a queue, which nothing refutes for so many replies.
const DEAF_FACTOR: u32 = 3;
const SURE_REPLIES: u32 = 1 << 18;
/// Longest pause between frames of a window below one.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// A window that remembers at which round trip frames were lost.
#[derive(Clone, Copy, Debug)]
pub struct Sticky {
    /// In 1/256 frames.
    cwnd: u32,
    cap: u32,
    slow_start: bool,
    /// This round's window in whole frames, and what is owed to later rounds in 1/256 frames.
    window: u32,
    owed: u32,
    /// Shortest round trip, of this period and of the one before; microseconds.
    shortest: [u32; 2],
    /// The same of requests alone.
    shortest_data: [u32; 2],
    shortest_left: u32,
    /// Mean of the last round trips, in microseconds; 0 before the first.
    recent: u32,
    /// The last three round trips, in microseconds.
    last: [u32; 3],
    /// The longest that three in a row exceeded, in this round and in the one before; microseconds.
    peak: [u32; 2],
    /// The window grows until something is lost, to learn anew.
    probing: bool,
    /// The window before that, in 1/256 frames.
    before: u32,
    /// The round trip at which frames were lost; microseconds. 0 when nothing was learned.
    full: u32,
    /// Replies that are left of this round.
    round_left: u32,
    /// Sum and number of round trips in this round.
    round_sum: u64,
    round_samples: u32,
    /// Whether the window was used up at some time in this round; a round that was not proves nothing.
    round_limited: bool,
    /// The last round ended with a cut: what is answered now was sent before it.
    cut: bool,
    /// Rounds since the last loss.
    quiet_rounds: u32,
    /// So many of them lead to the next probe.
    probe_after: u32,
    /// Frames lost and answered of late.
    lost: u32,
    answered: u32,
    /// Losses at short round trips, one soon after the other; replies since the first of them and since the last.
    lost_low: u32,
    low_span: u32,
    low_replies: u32,
    /// Replies for which losses teach nothing yet, and for how many they will the next time.
    deaf: u32,
    deaf_next: u32,
    /// Meanwhile: losses, and replies since these are counted.
    deaf_lost: u32,
    deaf_span: u32,
    /// Replies for which nothing is refuted.
    sure: u32,
}

impl Sticky {
    /// Starts in slow start.
    pub fn new(cap: u32) -> Sticky {
        let cap = cap.max(1);
        let window = WINDOW_INITIAL.min(cap);
        Sticky {
            cwnd: window * FRAME,
            cap,
            slow_start: true,
            window,
            owed: 0,
            shortest: [u32::MAX; 2],
            shortest_data: [u32::MAX; 2],
            shortest_left: SHORTEST_REPLIES,
            recent: 0,
            last: [0; 3],
            peak: [0; 2],
            probing: false,
            before: 0,
            full: 0,
            round_left: window,
            round_sum: 0,
            round_samples: 0,
            round_limited: false,
            cut: false,
            quiet_rounds: 0,
            probe_after: PROBE_FIRST,
            lost: 0,
            answered: 0,
            lost_low: 0,
            low_span: 0,
            low_replies: 0,
            deaf: 0,
            deaf_next: DEAF_FIRST,
            deaf_lost: 0,
            deaf_span: 0,
            sure: 0,
        }
    }

    fn shortest(&self) -> u32 {
        self.shortest[0].min(self.shortest[1])
    }

    /// The round trip of a request where no queue is; 0 before the first. Who comes to a queue that is never empty sees none of those: the
    /// small frames that proved the path tell how long they can be at most.
    fn usual(&self) -> u32 {
        let shortest = self.shortest_data[0].min(self.shortest_data[1]);
        let bound = self.shortest().saturating_mul(2);
        if shortest == u32::MAX { 0 } else { shortest.min(bound) }
    }

    /// The round trip to be kept, if one was learned. The smaller a window, the longer, so that small ones catch up: from three tenths of the
    /// way to the full queue to all of it, but no further than nine tenths.
    fn target(&self) -> Option<u32> {
        let room = self.full.checked_sub(self.shortest()).filter(|_| self.full > 0)?;
        let part = u64::from(room / 10 * 7) * u64::from(FRAME) / u64::from(FRAME + self.cwnd);
        let kept = self.shortest() + room / 10 * 3 + part as u32;
        Some(kept.max(self.usual() / 2 * 3).min(self.shortest() + room / 10 * 9))
    }

    fn sample(&mut self, rtt: Duration, data: bool) {
        let rtt = u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX / 16).min(u32::MAX / 16);
        self.shortest[0] = self.shortest[0].min(rtt);
        if !data {
            return;
        }
        self.shortest_data[0] = self.shortest_data[0].min(rtt);
        self.shortest_left -= 1;
        if self.shortest_left == 0 {
            self.shortest_data = [u32::MAX, self.shortest_data[0]];
            self.shortest = [u32::MAX, self.shortest[0]];
            self.shortest_left = SHORTEST_REPLIES;
        }
        self.recent = if self.recent == 0 { rtt } else { self.recent - self.recent / 4 + rtt / 4 };
        self.last = [rtt, self.last[0], self.last[1]];
        let level = self.last.into_iter().fold(rtt, u32::min);
        self.peak[0] = self.peak[0].max(level);
        if self.full > 0 {
            // Nothing was lost at these.
            self.full = self.full.max(level);
        }
        self.round_sum += u64::from(rtt);
        self.round_samples += 1;
    }

    fn end_round(&mut self, in_flight: u32) {
        self.quiet_rounds += 1;
        if self.quiet_rounds >= self.probe_after {
            self.quiet_rounds = 0;
            self.before = self.cwnd;
            self.probing = self.full > 0;
            if self.probing {
                self.probe_after = (self.probe_after * 8).min(PROBE_ROUNDS);
            }
        }
        let cut = core::mem::take(&mut self.cut);
        let mean = self.round_sum.checked_div(u64::from(self.round_samples)).map(|mean| mean as u32);
        let excess = self.target().zip(mean).map_or(0, |(target, mean)| {
            (u64::from(mean.saturating_sub(target)) * u64::from(FRAME) / u64::from(mean.max(1))) as u32
        });
        if excess > 0 && !self.probing {
            self.slow_start = false;
            if !cut {
                self.cut = true;
                self.set(self.cwnd - self.cwnd * excess.min(FRAME * 3 / 8) / FRAME);
            }
        } else if self.round_limited && !self.slow_start {
            let growth = match (self.full, self.probing) {
                // Briefly, as the others give way meanwhile.
                (_, true) => GROWTH_UNTAUGHT,
                (0, _) => GROWTH_UNTAUGHT,
                _ => GROWTH,
            };
            // Below one frame, where a round is one reply, by as large a share of the window.
            self.set(self.cwnd + (growth * self.cwnd.min(FRAME) / FRAME).max(1));
        }
        if self.slow_start
            && mean.is_some_and(|mean| mean > self.shortest().saturating_mul(2))
            && self.cwnd >= 8 * FRAME
        {
            self.slow_start = false;
        }
        self.begin_round(in_flight);
    }

    fn begin_round(&mut self, in_flight: u32) {
        self.owed += self.cwnd % FRAME;
        self.window = (self.cwnd / FRAME + self.owed / FRAME).clamp(1, self.cap).min(self.window + 1);
        self.owed %= FRAME;
        self.round_left = in_flight.max(1);
        (self.round_sum, self.round_samples) = (0, 0);
        self.peak = [0, self.peak[0]];
        self.round_limited = false;
    }

    fn set(&mut self, cwnd: u32) {
        self.cwnd = cwnd.clamp(WINDOW_MIN, self.cap * FRAME);
    }

    /// Learns from a loss, and tells whether it came of a full queue, as far as can be told.
    fn learn(&mut self) -> bool {
        let many = self.lost * LOST_MANY > self.answered;
        if !many && (self.is_deaf() || self.is_low()) {
            return false;
        }
        let peak = self.peak[0].max(self.peak[1]).max(self.recent);
        let usual = self.usual();
        if peak >= usual.saturating_mul(2) && peak >= self.full / 4 * 3 {
            self.full = self.full.max(peak);
            return true;
        }
        if self.full == 0 {
            self.full = if many { peak } else { 0 };
        } else if many || self.lost < LOST_FEW || self.full >= usual.saturating_mul(4) {
            self.full -= self.full.saturating_sub(peak) / 4;
        } else {
            // It came from a cable; so may have what was learned.
            self.full += self.full.saturating_sub(self.shortest()) / 16;
        }
        many
    }

    /// Whether a loss came at a round trip far from that of a full queue. When that goes on, what was learned is forgotten.
    fn is_low(&mut self) -> bool {
        let telling = self.cwnd >= TELLING_WINDOW * FRAME && self.sure == 0;
        if self.full == 0 || !telling || self.recent >= self.full / 4 * 3 {
            return false;
        }
        if self.lost_low == 0 || self.low_replies > LOW_REPLIES {
            (self.lost_low, self.low_span) = (0, 0);
        }
        (self.lost_low, self.low_replies) = (self.lost_low + 1, 0);
        if self.lost_low >= LOST_LOW {
            (self.full, self.lost_low, self.probing) = (0, 0, false);
            (self.deaf, self.deaf_lost, self.deaf_span) = (self.deaf_next, 0, 0);
            self.deaf_next = (self.deaf_next * 2).min(DEAF_MAX);
        }
        true
    }

    /// Whether losses teach nothing now. If they are far more than before, now that the window is larger, the queue is there after all.
    fn is_deaf(&mut self) -> bool {
        if self.deaf == 0 {
            return false;
        }
        self.deaf_lost += 1;
        if self.deaf_lost < LOST_LOW {
            return true;
        }
        if self.deaf_span >= self.low_span / DEAF_FACTOR {
            (self.deaf_lost, self.deaf_span) = (0, 0);
            return true;
        }
        (self.deaf, self.deaf_next, self.sure) = (0, DEAF_FIRST, SURE_REPLIES);
        false
    }
}

impl Congestion for Sticky {
    fn window(&self) -> u32 {
        self.window
    }

    fn ssthresh(&self) -> u32 {
        if self.slow_start { u32::MAX } else { self.cwnd.div_ceil(FRAME) }
    }

    fn pause(&self) -> Option<Duration> {
        let pause = u64::from(self.recent) * u64::from(FRAME) / u64::from(self.cwnd);
        (self.cwnd < FRAME).then(|| Duration::from_micros(pause).min(PAUSE_MAX))
    }

    fn set_cap(&mut self, cap: u32) {
        self.cap = cap.max(1);
        self.set(self.cwnd);
        self.window = self.window.min(self.cap);
    }

    fn on_reply(&mut self, Reply { in_flight, rtt, data }: Reply) {
        self.answered += 1;
        self.low_replies = self.low_replies.saturating_add(1);
        self.deaf = self.deaf.saturating_sub(1);
        self.sure = self.sure.saturating_sub(1);
        self.deaf_span = self.deaf_span.saturating_add(1);
        if self.lost_low > 0 {
            self.low_span = self.low_span.saturating_add(1);
        }
        if self.answered >= LOSS_REPLIES {
            (self.answered, self.lost) = (self.answered / 2, self.lost / 2);
        }
        if let Some(rtt) = rtt {
            self.sample(rtt, data);
        }
        self.round_limited |= in_flight >= self.window;
        // In slow start the window doubles per round trip, so half of it in use shows that it was needed.
        if self.slow_start && in_flight.saturating_mul(2) >= self.window {
            self.set(self.cwnd + FRAME);
            self.window = (self.cwnd / FRAME).max(1);
        }
        self.round_left = self.round_left.saturating_sub(1);
        if self.round_left == 0 {
            self.end_round(in_flight);
        }
    }

    fn forget(&mut self) {
        *self = Sticky { shortest: self.shortest, ..Sticky::new(self.cap) };
    }

    fn on_loss(&mut self, loss: Loss) {
        self.lost += 1;
        if loss.consecutive {
            self.set(self.cwnd.min(FRAME));
        } else if loss.first && self.learn() {
            let kept = match (self.slow_start, self.probing) {
                (true, _) => self.cwnd / 2,
                (_, true) => self.before.min(self.cwnd / 4 * 3),
                _ => self.cwnd / 4 * 3,
            };
            self.set(kept);
            self.cut = true;
        } else {
            return;
        }
        (self.slow_start, self.probing) = (false, false);
        self.quiet_rounds = 0;
        let before = self.window;
        self.begin_round(self.window);
        self.window = self.window.min(before);
    }
}
