//! One direction of a link: a drop-tail queue in bytes, a rate, a delay, and the faults drawn for each frame.
//!
//! Owned by a port (one to the switch, one from it), called by the network. It does not hold frames: it tells when a frame that
//! enters now will arrive, and remembers until when it occupies the queue. Bound: `queue_bytes` on the wire.

use crate::counters::Loss;
use crate::faults::Faults;
use crate::rng::Rng;
use core::time::Duration;
use std::collections::VecDeque;

/// Preamble, check sequence and gap that each frame occupies on the wire besides its own bytes.
const WIRE_OVERHEAD: u64 = 24;
/// The shortest frame on the wire, without its check sequence.
const WIRE_MIN: u64 = 60;

/// What a link does with one frame that enters it.
#[derive(Debug)]
pub(super) struct Passage {
    /// When it comes out.
    pub(super) arrives: Duration,
    /// It was held back by the reordering fault.
    pub(super) reordered: bool,
    /// Flip this bit (counted from the start of the frame) before it comes out.
    pub(super) garbled_bit: Option<u64>,
    /// When a second copy comes out, if there is one.
    pub(super) copy_arrives: Option<Duration>,
}

/// One direction of a link.
#[derive(Debug)]
pub(super) struct Link {
    /// Bits per second; 0 is infinitely fast.
    pub(super) rate_bps: u64,
    /// Wire bytes that may wait or be on their way onto the wire.
    pub(super) queue_bytes: u64,
    /// Propagation delay.
    pub(super) delay: Duration,
    pub(super) faults: Faults,
    rng: Rng,
    /// When the wire is free again.
    free_at: Duration,
    /// (time it has left the queue, wire bytes) of each frame in the queue, in order.
    queued: VecDeque<(Duration, u64)>,
    /// Sum of the bytes in `queued`.
    occupied: u64,
}

impl Link {
    pub(super) fn new(rate_bps: u64, queue_bytes: u64, delay: Duration, rng: Rng) -> Self {
        Link {
            rate_bps,
            queue_bytes,
            delay,
            faults: Faults::NONE,
            rng,
            free_at: Duration::ZERO,
            queued: VecDeque::new(),
            occupied: 0,
        }
    }

    /// Takes a frame of `len` bytes at `now`.
    pub(super) fn enter(&mut self, now: Duration, len: usize) -> Result<Passage, Loss> {
        let wire = (len as u64).max(WIRE_MIN) + WIRE_OVERHEAD;
        while let Some(&(leaves, bytes)) = self.queued.front()
            && leaves <= now
        {
            self.queued.pop_front();
            self.occupied -= bytes;
        }
        if self.occupied + wire > self.queue_bytes {
            return Err(Loss::QueueFull);
        }
        let leaves = self.free_at.max(now) + self.serialisation(wire);
        self.free_at = leaves;
        self.queued.push_back((leaves, wire));
        self.occupied += wire;
        self.draw(leaves, len)
    }

    /// Forgets the queue, as a link does that went down.
    pub(super) fn clear(&mut self, now: Duration) {
        self.queued.clear();
        self.occupied = 0;
        self.free_at = now;
    }

    /// Frames that were accepted have used the wire even when a fault then takes them.
    fn draw(&mut self, leaves: Duration, len: usize) -> Result<Passage, Loss> {
        let faults = self.faults;
        if self.rng.chance(faults.loss) {
            return Err(Loss::Fault);
        }
        if self.rng.chance(faults.corrupt) {
            return Err(Loss::Corrupt);
        }
        let garbled_bit =
            if self.rng.chance(faults.garble) && len > 0 { Some(self.rng.below(len as u64 * 8)) } else { None };
        let duplicate = self.rng.chance(faults.duplicate);
        let reordered = self.rng.chance(faults.reorder);
        let mut arrives = leaves + self.delay + self.rng.within(faults.jitter);
        if reordered {
            arrives += self.rng.within(faults.reorder_delay);
        }
        let copy_arrives = duplicate.then(|| arrives + self.rng.within(faults.duplicate_delay));
        Ok(Passage { arrives, reordered, garbled_bit, copy_arrives })
    }

    fn serialisation(&self, wire_bytes: u64) -> Duration {
        if self.rate_bps == 0 {
            return Duration::ZERO;
        }
        let ns = u128::from(wire_bytes) * 8 * 1_000_000_000 / u128::from(self.rate_bps);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}
