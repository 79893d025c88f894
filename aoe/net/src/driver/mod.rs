//! The initiator's driver: moves frames between an [`Initiator`] and its links, and data between frames and request buffers.
//!
//! Owns both. Called by the thread that owns the requests (a worker, a bench, a test):
//!
//! ```text
//! loop:  submit requests to initiator()
//!        pump(now, memory)          received frames in, frames to send out
//!        poll completions and events of initiator()
//!        when nothing moved: wait for fds() until wake_at()
//! ```
//!
//! Frames go out in batches of up to [`BATCH`], each as its header and the pieces of its request's buffer, without a copy. Read data
//! are copied once, from the receive slot to the request's buffer. Nothing is allocated per frame.
//!
//! While replies keep coming for many frames in flight, a driver's thread should rest for a moment instead of waiting for the first of them
//! ([`Driver::rest`]): to wake a thread costs whoever sends a reply as much as some replies, and on one host that is the other end's CPU.
//!
//! When a link is full, frames that the initiator has handed out are copied to the port's backlog and tried again for
//! [`BACKLOG_PATIENCE`]; then they are lost, and the initiator sends them again when their time is up. So a frame leaves at most that
//! much later than the initiator believes; `aoe_frame_lifetime` has to include it. While a backlog waits, the initiator is not asked
//! for more frames. Bounds: a backlog has [`BATCH`] frames; a pump receives `aoe_maxioc` frames and sends `aoe_maxtx`,
//! each rounded up to whole batches, so that other work of the thread gets its turn.

mod backlog;

use crate::link::{BATCH, FrameRef, Link, LinkCounters, LinkWatch};
use crate::wake::WAIT_MAX;
use crate::{LINK_CHECK, LINK_CHECK_WATCHED};
use aoe_proto::initiator::{Initiator, RequestId, Transmit};
use aoe_proto::port::{PortId, PortInfo};
use backlog::Backlog;
use core::time::Duration;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};

/// Most links of a driver: so many can be waited for together, with a watch and the caller's own descriptor.
pub const LINKS_MAX: usize = WAIT_MAX - 2;

/// How long frames wait for room in a full link.
pub const BACKLOG_PATIENCE: Duration = Duration::from_millis(10);
/// How soon a full link is tried again.
const BACKLOG_RETRY: Duration = Duration::from_micros(100);
/// How soon the watch is asked again: it costs a system call.
const WATCH_AGAIN: Duration = Duration::from_millis(1);
/// Frames in flight from which on the driver rests, and for how long; the network and the other end have work for longer than that.
const REST_FRAMES: usize = 32;
const REST: Duration = Duration::from_micros(30);
/// Replies keep coming as long as the last one is no older.
const REST_AFTER: Duration = Duration::from_micros(200);
/// Pieces that the data of one frame may be in: 127 sectors at the largest MTU, not aligned.
const FRAME_PIECES: usize = 128;
/// Pieces of all frames of a batch; a batch ends early when the next frame might not fit.
const BATCH_PIECES: usize = 4 * FRAME_PIECES;

/// The buffers of outstanding requests.
pub trait Memory {
    /// Puts arrived read data into the buffer of `id`, from byte `offset` on.
    fn write(&mut self, id: RequestId, offset: usize, data: &[u8]);

    /// Names the pieces that hold `len` bytes of the buffer of `id` from byte `offset` on, in order. Each piece but the first and the
    /// last has at least 512 bytes.
    fn slices<'a>(&'a self, id: RequestId, offset: usize, len: usize, piece: &mut dyn FnMut(&'a [u8]));
}

/// What a pump did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pumped {
    /// Frames received.
    pub received: usize,
    /// Frames sent.
    pub sent: usize,
}

impl Pumped {
    /// Whether anything moved.
    pub fn any(self) -> bool {
        self.received + self.sent > 0
    }
}

struct Port {
    link: Box<dyn Link>,
    /// The port as the initiator knows it.
    info: Option<PortInfo>,
    backlog: Backlog,
}

impl Port {
    fn new(link: Box<dyn Link>) -> Port {
        Port { link, info: None, backlog: Backlog::new() }
    }
}

/// Stands where a link was given up, so that the others keep their numbers.
struct NoLink;

impl Link for NoLink {
    fn name(&self) -> &str {
        ""
    }

    fn info(&self) -> Option<PortInfo> {
        None
    }

    fn refresh(&mut self) {}

    fn send(&mut self, frames: &[FrameRef<'_>]) -> usize {
        frames.len()
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

/// An initiator and its links.
pub struct Driver {
    initiator: Initiator,
    ports: Vec<Port>,
    next_check: Duration,
    /// Tells when a link is worth a look.
    watch: Option<LinkWatch>,
    next_watch: Duration,
    /// The last pump stopped at a limit.
    more: bool,
    /// When the last frame was received.
    heard: Duration,
    /// Whether to rest after the last pump.
    rests: bool,
}

impl Driver {
    /// Drives `initiator` over `links`, which become its ports 0, 1 and so on.
    ///
    /// # Panics
    /// With more links than can be waited for together.
    pub fn new(initiator: Initiator, links: Vec<Box<dyn Link>>) -> Driver {
        assert!(links.len() <= LINKS_MAX, "{} links", links.len());
        Driver {
            initiator,
            ports: links.into_iter().map(Port::new).collect(),
            next_check: Duration::ZERO,
            watch: None,
            next_watch: Duration::ZERO,
            more: false,
            heard: Duration::ZERO,
            rests: false,
        }
    }

    /// Looks at the links as soon as `watch` tells of a change, and else more seldom.
    pub fn watch(&mut self, watch: LinkWatch) {
        self.watch = Some(watch);
    }

    /// Uses these links from now on. One with the name of a link that is in use is dropped: that one goes on. Links in use whose names are not
    /// among them are given up, and what is under way there is sent again on the others.
    ///
    /// # Panics
    /// As [`Driver::new`].
    pub fn set_links(&mut self, now: Duration, links: Vec<Box<dyn Link>>) {
        assert!(links.len() <= LINKS_MAX, "{} links", links.len());
        for (index, port) in self.ports.iter_mut().enumerate() {
            if !links.iter().any(|link| link.name() == port.link.name()) {
                *port = Port::new(Box::new(NoLink));
                self.initiator.set_port(now, port_id(index), None);
            }
        }
        for link in links {
            if self.ports.iter().any(|port| port.link.name() == link.name()) {
                continue;
            }
            match self.ports.iter_mut().find(|port| port.link.name().is_empty()) {
                Some(free) => *free = Port::new(link),
                None => self.ports.push(Port::new(link)),
            }
        }
        // They are told to the initiator by the next pump.
        self.next_check = now;
    }

    /// The initiator: to submit requests, to poll completions and events.
    pub fn initiator(&mut self) -> &mut Initiator {
        &mut self.initiator
    }

    /// Name, state and counters of each link, by port number.
    pub fn links(&mut self) -> impl Iterator<Item = (&str, Option<PortInfo>, LinkCounters)> {
        self.ports.iter_mut().map(|port| {
            let counters = port.link.counters();
            (port.link.name(), port.info, counters)
        })
    }

    /// Frames that were lost because a link stayed full.
    pub fn backlog_lost(&self) -> u64 {
        self.ports.iter().map(|port| port.backlog.lost()).sum()
    }

    /// Receives what has arrived, runs the initiator's timers, and sends what it has to send. Read data go to `memory`, data to be
    /// written come from it.
    pub fn pump(&mut self, now: Duration, memory: &mut impl Memory) -> Pumped {
        self.check_links(now);
        self.more = false;
        let received = self.receive(now, memory);
        if self.initiator.poll_timeout().is_some_and(|at| at <= now) {
            self.initiator.handle_timeout(now);
        }
        let sent = self.transmit(now, memory);
        if received > 0 {
            self.heard = now;
        }
        self.rests = self.initiator.frames_in_flight() >= REST_FRAMES && now < self.heard + REST_AFTER;
        Pumped { received, sent }
    }

    /// The descriptors to wait for, besides the caller's own.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().filter_map(|port| port.link.fd()).chain(self.watch.iter().map(AsFd::as_fd))
    }

    /// For how long, at most, a thread that has nothing else to do should sleep without listening to [`Driver::fds`], as the last pump left it; `None`:
    /// it should listen. A thread that listens all the same loses nothing but time.
    pub fn rest(&self) -> Option<Duration> {
        self.rests.then_some(REST)
    }

    /// When [`Driver::pump`] is to be called at the latest, if no descriptor becomes readable and nothing is submitted before.
    pub fn wake_at(&self, now: Duration) -> Duration {
        if self.more {
            return now;
        }
        let timer = self.initiator.poll_timeout().unwrap_or(self.next_check);
        let waiting = self.ports.iter().any(|port| !port.backlog.is_empty());
        let retry = if waiting { now + BACKLOG_RETRY } else { self.next_check };
        timer.min(retry).min(self.next_check)
    }

    /// Looks at the links' state from time to time, and tells the initiator about changes.
    fn check_links(&mut self, now: Duration) {
        let mut due = now >= self.next_check;
        if let Some(watch) = self.watch.as_mut().filter(|_| now >= self.next_watch) {
            self.next_watch = now + WATCH_AGAIN;
            due |= watch.changed();
        }
        if due {
            self.next_check = now + if self.watch.is_some() { LINK_CHECK_WATCHED } else { LINK_CHECK };
        }
        for (index, port) in self.ports.iter_mut().enumerate() {
            if due {
                port.link.refresh();
            }
            if port.link.info() == port.info {
                continue;
            }
            port.info = port.link.info();
            if let Some(info) = port.info {
                port.backlog.reserve(info.mtu);
            }
            self.initiator.set_port(now, port_id(index), port.info);
        }
    }

    fn receive(&mut self, now: Duration, memory: &mut impl Memory) -> usize {
        let Driver { initiator, ports, more, .. } = self;
        let most = initiator.tunables().aoe_maxioc as usize;
        let mut total = 0;
        for (index, port) in ports.iter_mut().enumerate() {
            let id = port_id(index);
            loop {
                if total >= most {
                    *more = true;
                    return total;
                }
                let count = port.link.receive(&mut |frame| {
                    if let Some(arrived) = initiator.handle_frame(now, id, frame) {
                        memory.write(arrived.id, arrived.offset, arrived.data);
                    }
                });
                total += count;
                if count < BATCH {
                    break;
                }
            }
        }
        total
    }

    fn transmit(&mut self, now: Duration, memory: &impl Memory) -> usize {
        let mut total = 0;
        loop {
            for port in &mut self.ports {
                total += port.backlog.retry(now, port.link.as_mut());
            }
            if self.ports.iter().any(|port| !port.backlog.is_empty()) {
                return total;
            }
            if total >= self.initiator.tunables().aoe_maxtx as usize {
                self.more = true;
                return total;
            }
            let (count, sent) = self.transmit_batch(now, memory);
            total += sent;
            if count == 0 {
                return total;
            }
        }
    }

    /// Takes one batch from the initiator and sends it; how many frames were taken, and how many of them sent.
    fn transmit_batch(&mut self, now: Duration, memory: &impl Memory) -> (usize, usize) {
        // Most pumps have nothing to send, and need none of the arrays, which are kilobytes.
        let mut next = self.initiator.poll_transmit(now);
        if next.is_none() {
            return (0, 0);
        }
        let mut transmits: [Option<Transmit>; BATCH] = [const { None }; BATCH];
        // Where each frame's pieces end; they begin where the frame's before end.
        let mut ends = [0; BATCH];
        let mut pieces = [IoSlice::new(&[]); BATCH_PIECES];
        let (mut count, mut used) = (0, 0);
        while let Some(transmit) = next.take() {
            if let Some(payload) = transmit.payload {
                let mut len = 0;
                memory.slices(payload.id, payload.offset, payload.len, &mut |piece| {
                    len += piece.len();
                    pieces[used] = IoSlice::new(piece);
                    used += 1;
                });
                assert_eq!(len, payload.len, "the buffer of a request has the bytes that the request is about");
            }
            ends[count] = used;
            transmits[count] = Some(transmit);
            count += 1;
            if count < BATCH && used + FRAME_PIECES <= BATCH_PIECES {
                next = self.initiator.poll_transmit(now);
            }
        }
        let mut sent = 0;
        for (index, port) in self.ports.iter_mut().enumerate() {
            let mut frames = [FrameRef::whole(&[]); BATCH];
            let mut of_port = 0;
            let mut start = 0;
            for (transmit, &end) in transmits[..count].iter().flatten().zip(&ends) {
                if transmit.port == port_id(index) {
                    frames[of_port] = FrameRef {
                        head: &transmit.header[..transmit.header_len],
                        data: &pieces[start..end],
                        pad: transmit.pad,
                    };
                    of_port += 1;
                }
                start = end;
            }
            if of_port > 0 {
                let done = port.link.send(&frames[..of_port]);
                port.backlog.keep(now, &frames[done..of_port]);
                sent += done;
            }
        }
        (count, sent)
    }
}

fn port_id(index: usize) -> PortId {
    PortId(u8::try_from(index).expect("the number of links is bounded"))
}
