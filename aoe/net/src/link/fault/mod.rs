//! Faults around any link: loss, duplication, reordering, corruption, from a seed, in either direction.
//!
//! Owns the inner link and the frames it holds back. Used by tests, by the demo, and by the hidden `--fault` option.
//!
//! The choice for each frame follows from the seed and the frame's number in its direction, so a run whose traffic is the same has
//! the same faults; when held frames go on depends on the clock. Bound: [`HELD`] frames are held; beyond that frames pass at once.

mod config;

pub use config::{FaultConfig, FaultParseError, Faults};

use crate::link::{BATCH, FrameRef, Link, LinkCounters};
use aoe_proto::port::PortInfo;
use core::cmp::Reverse;
use core::time::Duration;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::read;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// Frames held back at most.
pub const HELD: usize = 4096;

/// What became of frames because of the faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Frames that vanished.
    pub lost: u64,
    /// Second copies.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
}

/// A link with faults.
pub struct FaultLink<L> {
    inner: L,
    config: FaultConfig,
    random: Random,
    held: BinaryHeap<Reverse<Held>>,
    sequence: u64,
    spare: Vec<Vec<u8>>,
    /// The timer is set for this instant.
    armed: Option<Instant>,
    timer: OwnedFd,
    /// Readable when the inner link or the timer is.
    epoll: OwnedFd,
    counters: FaultCounters,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Direction {
    Send,
    Receive,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    due: Instant,
    sequence: u64,
    direction: Direction,
    frame: Vec<u8>,
}

/// What is to be done with a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Pass,
    Lose,
    /// Pass, and a copy after this long.
    Duplicate(Duration),
    /// Pass after this long.
    Hold(Duration),
    /// Pass with a bit flipped, chosen by this number.
    Corrupt(u64),
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in 0..1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One choice: the probabilities exclude each other, taken in order.
    fn fate(&mut self, faults: &Faults) -> Fate {
        if faults.is_none() {
            return Fate::Pass;
        }
        let (mut at, share) = (self.unit(), self.unit());
        let mut hit = |probability: f64| {
            let is = at < probability;
            at -= probability;
            is
        };
        if hit(faults.loss) {
            Fate::Lose
        } else if hit(faults.duplicate) {
            Fate::Duplicate(faults.duplicate_delay.mul_f64(share))
        } else if hit(faults.reorder) {
            Fate::Hold(faults.reorder_delay.mul_f64(share))
        } else if hit(faults.corrupt) {
            Fate::Corrupt(self.next())
        } else {
            Fate::Pass
        }
    }
}

impl<L: Link> FaultLink<L> {
    /// Faults as `config` says around `inner`.
    pub fn new(inner: L, config: FaultConfig) -> io::Result<FaultLink<L>> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &timer, EventData::new_u64(0), EventFlags::IN)?;
        if let Some(fd) = inner.fd() {
            epoll::add(&epoll, fd, EventData::new_u64(1), EventFlags::IN)?;
        }
        Ok(FaultLink {
            inner,
            config,
            random: Random(config.seed),
            held: BinaryHeap::new(),
            sequence: 0,
            spare: Vec::new(),
            armed: None,
            timer,
            epoll,
            counters: FaultCounters::default(),
        })
    }

    /// Changes the faults; the seed is not read again, and frames already held stay held.
    pub fn set(&mut self, send: Faults, receive: Faults) {
        self.config.send = send;
        self.config.receive = receive;
    }

    /// What the faults did so far.
    pub fn fault_counters(&self) -> FaultCounters {
        self.counters
    }

    /// The link inside.
    pub fn inner(&mut self) -> &mut L {
        &mut self.inner
    }

    /// Applies a fate other than passing to a frame that is sent. It is done with then: what has to go at once and finds the link
    /// full is lost, as on a real wire.
    fn send_faulty(&mut self, frame: &FrameRef<'_>, fate: Fate) {
        let mut copy = self.spare.pop().unwrap_or_default();
        frame.copy_to(&mut copy);
        match fate {
            Fate::Pass => unreachable!("frames that pass are sent as they are"),
            Fate::Lose => self.counters.lost += 1,
            Fate::Duplicate(after) => {
                self.counters.duplicated += 1;
                self.inner.send(&[*frame]);
                return self.hold(Direction::Send, after, copy);
            }
            Fate::Hold(after) => {
                self.counters.reordered += 1;
                return self.hold(Direction::Send, after, copy);
            }
            Fate::Corrupt(random) => {
                self.counters.corrupted += 1;
                flip(&mut copy, random);
                self.inner.send(&[FrameRef::whole(&copy)]);
            }
        }
        self.spare.push(copy);
    }

    fn hold(&mut self, direction: Direction, after: Duration, frame: Vec<u8>) {
        let due = if self.held.len() < HELD { Instant::now() + after } else { Instant::now() };
        self.sequence += 1;
        self.held.push(Reverse(Held { due, sequence: self.sequence, direction, frame }));
        self.arm();
    }

    /// Sets the timer for the first held frame.
    fn arm(&mut self) {
        let first = self.held.peek().map(|Reverse(held)| held.due);
        if first == self.armed {
            return;
        }
        self.armed = first;
        let after = first.map_or(Duration::ZERO, |due| {
            // Zero would disarm the timer.
            due.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1))
        });
        let value = Timespec { tv_sec: after.as_secs().cast_signed(), tv_nsec: after.subsec_nanos().into() };
        let interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: interval, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)
            .expect("a relative time below an hour is valid");
    }

    /// Lets held frames go whose time has come; how many went to `sink`.
    fn release(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let mut count = 0;
        let mut expirations = [0u8; 8];
        let _ = read(&self.timer, &mut expirations);
        while let Some(Reverse(first)) = self.held.peek()
            && count < BATCH
            && first.due <= Instant::now()
        {
            let Reverse(Held { direction, frame, .. }) = self.held.pop().expect("peeked just now");
            match direction {
                Direction::Send => {
                    self.inner.send(&[FrameRef::whole(&frame)]);
                }
                Direction::Receive => {
                    sink(&frame);
                    count += 1;
                }
            }
            self.spare.push(frame);
        }
        self.armed = None;
        self.arm();
        count
    }
}

fn flip(frame: &mut [u8], random: u64) {
    if !frame.is_empty() {
        let bit = random % (frame.len() as u64 * 8);
        frame[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

impl<L: Link> Link for FaultLink<L> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn info(&self) -> Option<PortInfo> {
        self.inner.info()
    }

    fn refresh(&mut self) {
        self.inner.refresh();
    }

    fn send(&mut self, frames: &[FrameRef<'_>]) -> usize {
        if self.config.send.is_none() {
            return self.inner.send(frames);
        }
        // Frames that pass go together, up to the next one that does not. A frame that the inner link had no room for gets another
        // fate when it is tried again.
        let mut from = 0;
        for (index, frame) in frames.iter().enumerate() {
            let fate = self.random.fate(&self.config.send);
            if fate == Fate::Pass {
                continue;
            }
            if from < index {
                from += self.inner.send(&frames[from..index]);
                if from < index {
                    return from;
                }
            }
            self.send_faulty(frame, fate);
            from = index + 1;
        }
        if from < frames.len() { from + self.inner.send(&frames[from..]) } else { from }
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let released = self.release(sink);
        if released > 0 {
            // More may be there: the inner link has not been asked.
            return BATCH;
        }
        if self.config.receive.is_none() {
            return self.inner.receive(sink);
        }
        let FaultLink { inner, random, config, counters, spare, held, sequence, .. } = self;
        let count = inner.receive(&mut |frame| {
            let fate = random.fate(&config.receive);
            let after = match fate {
                Fate::Pass => return sink(frame),
                Fate::Lose => {
                    counters.lost += 1;
                    return;
                }
                Fate::Duplicate(after) => {
                    counters.duplicated += 1;
                    sink(frame);
                    after
                }
                Fate::Hold(after) => {
                    counters.reordered += 1;
                    after
                }
                Fate::Corrupt(_) => Duration::ZERO,
            };
            let mut copy = spare.pop().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(frame);
            if let Fate::Corrupt(random) = fate {
                counters.corrupted += 1;
                flip(&mut copy, random);
                sink(&copy);
                spare.push(copy);
                return;
            }
            let due = if held.len() < HELD { Instant::now() + after } else { Instant::now() };
            *sequence += 1;
            held.push(Reverse(Held { due, sequence: *sequence, direction: Direction::Receive, frame: copy }));
        });
        self.arm();
        count
    }

    fn receive_frames(&self) -> usize {
        self.inner.receive_frames()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn counters(&mut self) -> LinkCounters {
        self.inner.counters()
    }
}
