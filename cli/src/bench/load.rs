//! The load on an array: one thread and one [`Client`] per CPU, which keeps a number of requests outstanding.
//!
//! It behaves as a front end does: submits what is free under a plug, and unplugs at [`PLUG_REQUESTS`] requests or [`PLUG_BYTES`]. Its buffers
//! are filled once, and used again for request after request. Bound: the queue depth.

use std::time::{Duration, Instant};

use anyhow::Context;
use raid_core::units::{Sector, Sectors};
use raid_engine::runtime::client::{Client, Op, Request};
use raid_engine::slab::Buf;

use super::args::Mode;
use super::measure::{Phases, Tally};

/// A plug ends after so many requests.
pub(super) const PLUG_REQUESTS: usize = 64;

/// A plug ends after so many bytes.
pub(super) const PLUG_BYTES: u64 = 1 << 20;

/// How long to wait for replies before looking at the phase again.
pub(super) const WAIT: Duration = Duration::from_millis(50);

/// Where requests go, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Places {
    size: Sectors,
    first: u64,
    count: u64,
    random: bool,
    state: u64,
}

impl Places {
    /// Places for load thread `index` of `threads` on a device of `space` sectors. Threads that go through the device in order have a part of it
    /// each. There is room for one request at least.
    pub(super) fn new(mode: Mode, space: Sectors, size: Sectors, index: usize, threads: usize) -> Places {
        let all = space.0 / size.0;
        assert!(all > 0, "the caller checked that a request fits");
        let part = (all / threads as u64).max(1);
        let (first, count) = if mode.random() { (0, all) } else { (index as u64 % (all / part) * part, part) };
        Places { size, first, count, random: mode.random(), state: if mode.random() { index as u64 + 1 } else { 0 } }
    }

    /// The next place.
    pub(super) fn next(&mut self) -> Sector {
        let at = if self.random {
            // splitmix64, and the high half of a product in place of a division.
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut x = self.state;
            x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((u128::from(x ^ x >> 31) * u128::from(self.count)) >> 64) as u64
        } else {
            let at = self.state;
            self.state = if at + 1 == self.count { 0 } else { at + 1 };
            at
        };
        Sector((self.first + at) * self.size.0)
    }
}

/// One load thread.
#[derive(Debug)]
pub(super) struct Load {
    /// Its handle on the array.
    pub(super) client: Client,
    /// What it does.
    pub(super) mode: Mode,
    /// Length of its requests.
    pub(super) size: Sectors,
    /// Where they go.
    pub(super) places: Places,
    /// How many are outstanding.
    pub(super) depth: usize,
}

impl Load {
    /// Runs until told to stop, and until all requests have ended.
    pub(super) fn run(mut self, phases: &Phases, mut tally: Tally) -> anyhow::Result<Tally> {
        let mut free = self.buffers().context("no memory for the load's buffers")?;
        let mut began = vec![Instant::now(); self.depth];
        while tally.follow(phases, Instant::now()) {
            self.submit(&mut free, &mut began);
            if !self.collect(&mut free, &began, &mut tally) {
                self.client.wait(Some(WAIT));
            }
        }
        while free.len() < self.depth {
            if !self.collect(&mut free, &began, &mut tally) {
                self.client.wait(Some(WAIT));
            }
        }
        for (_, buf) in free {
            self.client.free(buf);
        }
        Ok(tally)
    }

    fn buffers(&mut self) -> Option<Vec<(u64, Buf)>> {
        let mut buffers = Vec::with_capacity(self.depth);
        for id in 0..self.depth as u64 {
            let mut buf = self.client.alloc(self.size.bytes().0 as usize)?;
            for (word, value) in buf.as_chunks_mut::<8>().0.iter_mut().zip(id..) {
                *word = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            }
            buffers.push((id, buf));
        }
        Some(buffers)
    }

    /// Submits all that is free.
    fn submit(&mut self, free: &mut Vec<(u64, Buf)>, began: &mut [Instant]) {
        let now = Instant::now();
        let op = if self.mode.writes() { Op::Write { fua: false } } else { Op::Read };
        let (mut requests, mut bytes) = (0, 0);
        while !free.is_empty() && self.client.has_room(self.size) {
            let (id, buf) = free.pop().expect("just seen");
            began[id as usize] = now;
            let at = self.places.next();
            self.client.submit(Request { id, op, at, sectors: self.size, buf: Some(buf) });
            requests += 1;
            bytes += self.size.bytes().0;
            if requests == PLUG_REQUESTS || bytes >= PLUG_BYTES {
                self.client.post();
                (requests, bytes) = (0, 0);
            }
        }
        self.client.unplug();
    }

    /// Takes the replies that are there; false when there is none.
    fn collect(&mut self, free: &mut Vec<(u64, Buf)>, began: &[Instant], tally: &mut Tally) -> bool {
        let Some(mut reply) = self.client.poll() else { return false };
        let now = Instant::now();
        loop {
            tally.ended(reply.status.is_ok(), began[reply.id as usize], now);
            free.push((reply.id, reply.buf.expect("a request's buffer comes back with its reply")));
            match self.client.poll() {
                Some(next) => reply = next,
                None => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(mut places: Places, count: usize) -> Vec<u64> {
        (0..count).map(|_| places.next().0).collect()
    }

    #[test]
    fn threads_in_order_have_a_part_each() {
        let space = Sectors(8 * 10 + 7);
        let of = |index| Places::new(Mode::Write, space, Sectors(8), index, 2);
        assert_eq!(take(of(0), 6), [0, 8, 16, 24, 32, 0]);
        assert_eq!(take(of(1), 6), [40, 48, 56, 64, 72, 40]);
    }

    #[test]
    fn more_threads_than_places_share_them() {
        let of = |index| Places::new(Mode::Read, Sectors(16), Sectors(8), index, 3);
        assert_eq!([take(of(0), 2), take(of(1), 2), take(of(2), 2)], [[0, 0], [8, 8], [0, 0]]);
    }

    #[test]
    fn random_places_reach_everything_and_stay_inside() {
        let places = Places::new(Mode::Randwrite, Sectors(8 * 10 + 7), Sectors(8), 1, 2);
        let mut seen = take(places, 1000);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (0..10).map(|i| i * 8).collect::<Vec<_>>());
    }
}
