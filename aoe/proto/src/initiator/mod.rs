//! The initiator as a value: it turns block requests into AoE frames, and replies into completions.
//!
//! The caller (a worker's driver) owns sockets, buffers and the clock, and calls the verbs of [`Initiator`]. Each worker
//! has an initiator of its own; those of one process share one [`Credits`] per device and nothing else. Time comes in as
//! `now`, a duration since an origin of the caller's, and never goes back. Buffers are named by [`RequestId`]: the
//! initiator says which bytes of which buffer follow a header, or where arrived bytes belong.
//!
//! ```text
//!  submit --> held --> ready --> frames: flying --> answered --> completion
//!             (writes)   |          ^       | timeout
//!                        |          +-- resend
//!                        +-- cut as windows, credits and frames allow, in poll_transmit
//! ```
//!
//! How to drive it: after any of `submit`, `cancel`, `handle_frame`, `handle_timeout`, `set_port`, `open`, `close` or a
//! wake-up for credits, call `poll_transmit`, `poll_completion` and `poll_event` until each returns `None`, and
//! `handle_timeout` when the time that `poll_timeout` names has come.
//!
//! Invariants, whatever the network does:
//! - A request that was taken completes exactly once.
//! - At most one write per sector of a device is in flight. Sectors of a write that was sent more than once, or that
//!   ended otherwise than by its reply, take no other write until `aoe_frame_lifetime` after its last copy left. A target
//!   that recognises repeated requests is exempt where it did answer and all copies went the same way.
//! - All copies of a frame are the same bytes behind the Ethernet addresses, tag included. A tag is not used again
//!   while it is outstanding, nor within a frame's lifetime.
//! - Frames in flight to a device never exceed its buffer count, those on a path never its window. Frames that are
//!   sent again obey the windows too. The exceptions: where nothing comes back for longer than usual, up to three frames more than the window
//!   are sent, whose replies show whether those before are lost; and internal ones: one IDENTIFY or read per path that proves it ignores
//!   the path's window, and once it timed out, or where nothing else gets through, goes without a credit.
//!
//! Bounds: [`REQUESTS_MAX`], [`FRAMES_MAX`], [`DEVICES_MAX`], [`PATHS_MAX`], [`CLOSED_MAX`], [`QUERIES_MAX`],
//! [`SEEN_MAX`]. Everything is allocated by [`Initiator::new`] and [`Initiator::open`]; requests allocate nothing.

mod config;
pub mod congestion;
mod credits;
mod device;
mod discover;
mod event;
mod frame;
mod path;
mod payload;
mod probe;
mod ranges;
mod receive;
mod request;
mod rtt;
mod slab;
mod sync;
mod tags;
mod timeout;
mod transmit;
mod tunables;
mod types;
mod view;

#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

pub use config::Config;
pub use credits::Credits;
pub use path::{PATHS_MAX, PathCounters, PathState};
pub use ranges::CLOSED_MAX;
pub use rtt::{RtoBounds, RttEstimator};
pub use tunables::{TUNABLES, Tunable, TunableError, Tunables};
pub use types::{
    Arrived, Completion, Counters, DeviceId, Durability, Event, Found, Op, Payload, Request, RequestId, Seen, Status,
    SubmitError, TRANSMIT_HEADER, Transmit, VolatileReason, WorkerId,
};
pub use view::{DeviceView, PathView};

use config::random;
use device::Device;
use discover::Query;
use frame::{Frame, RequestState};
use ranges::{ClosedRanges, Range};
use slab::Slab;
use tags::Tags;

use crate::port::{PortId, PortInfo};
use crate::wire::{Address, Lba, Tag};

/// Most requests of the caller's that are taken and whose completions were not polled yet.
pub const REQUESTS_MAX: usize = 4096;
/// Most frames of the caller's requests that are outstanding.
pub const FRAMES_MAX: usize = 4096;
/// Most devices that are open at a time.
pub const DEVICES_MAX: usize = 256;
/// Most config queries that wait to be sent; further ones are dropped, and come again by their timers.
pub const QUERIES_MAX: usize = 1024;
/// Most devices seen that wait to be polled; further ones are dropped and counted.
pub const SEEN_MAX: usize = 1024;
/// Most internal requests (IDENTIFY and reads that prove paths).
const INTERNAL_MAX: usize = 256;
/// Config queries whose time of sending is remembered.
const ASKED_MAX: usize = 64;
/// Numbers that a port can have.
const PORTS: usize = 1 << u8::BITS;

/// The closed ranges of one address. They outlive the device that is open under it.
struct ClosedAt {
    address: Address,
    ranges: ClosedRanges,
}

/// One worker's AoE initiator. See the module's text.
pub struct Initiator {
    worker: WorkerId,
    discovers: bool,
    tunables: Tunables,
    ports: Box<[Option<PortInfo>]>,
    devices: Vec<Device>,
    /// By [`Device::closed`]; entries are reused, never removed.
    closed: Vec<ClosedAt>,
    requests: Slab<RequestState>,
    /// How many of `requests` are internal.
    internal: usize,
    frames: Slab<Frame>,
    tags: Tags,
    /// Devices that may have something to send, each at most once.
    runnable: VecDeque<u16>,
    /// Devices that are registered for a credit.
    credit_waits: usize,
    /// A device had something to send and found no room for a frame.
    starved: bool,
    /// A device had something to send and no tag was free before this time.
    tag_wait: Option<Duration>,
    queries: VecDeque<Query>,
    /// Queries sent last, a ring.
    asked: [Option<(Tag, Duration)>; ASKED_MAX],
    asked_next: usize,
    /// Serial number of the next path.
    path_serial: u64,
    completions: VecDeque<Completion>,
    /// Devices that may have events, each at most once.
    eventful: VecDeque<u16>,
    seen: VecDeque<Seen>,
    /// Workers that were granted credits and must be woken, one bit each.
    wakes: [u64; 4],
    counters: Counters,
}

impl Initiator {
    /// An initiator without ports and devices.
    ///
    /// Panics if the tunables are out of their ranges.
    pub fn new(config: Config) -> Initiator {
        if let Err(error) = config.tunables.check() {
            panic!("{error}");
        }
        Initiator {
            worker: config.worker,
            discovers: config.discovers,
            tunables: config.tunables,
            ports: vec![None; PORTS].into_boxed_slice(),
            devices: Vec::with_capacity(DEVICES_MAX),
            closed: Vec::new(),
            requests: Slab::new(REQUESTS_MAX + INTERNAL_MAX),
            internal: 0,
            frames: Slab::new(FRAMES_MAX + INTERNAL_MAX),
            tags: Tags::new(config.worker, FRAMES_MAX + INTERNAL_MAX, random(config.seed)),
            runnable: VecDeque::with_capacity(DEVICES_MAX),
            credit_waits: 0,
            starved: false,
            tag_wait: None,
            queries: VecDeque::with_capacity(QUERIES_MAX),
            asked: [None; ASKED_MAX],
            asked_next: 0,
            path_serial: 0,
            completions: VecDeque::with_capacity(REQUESTS_MAX),
            eventful: VecDeque::with_capacity(DEVICES_MAX),
            seen: VecDeque::with_capacity(SEEN_MAX),
            wakes: [0; 4],
            counters: Counters::default(),
        }
    }

    /// The values of the tunables in force.
    pub fn tunables(&self) -> &Tunables {
        &self.tunables
    }

    /// Changes tunables. Refused as a whole if one is out of its range.
    pub fn set_tunables(&mut self, now: Duration, tunables: Tunables) -> Result<(), TunableError> {
        tunables.check()?;
        let algorithm_changed = tunables.algorithm() != self.tunables.algorithm()
            || tunables.fixed_window() != self.tunables.fixed_window();
        self.tunables = tunables;
        for at in 0..self.devices.len() as u16 {
            let device = &self.devices[at as usize];
            if !device.open || device.paths.is_empty() {
                continue;
            }
            self.apply_limit(at);
            let device = &mut self.devices[at as usize];
            let cap = device.credits.limit();
            for path in device.paths.iter_mut().filter(|_| algorithm_changed) {
                path.control = congestion::Controller::new(tunables.algorithm(), cap, tunables.fixed_window());
            }
            device.next_query = device.next_query.min(now + tunables.requery());
            self.wake(at);
        }
        Ok(())
    }

    /// A port appeared, changed its MTU or address, or (with `None`) vanished. Frames that were under way on a port that
    /// vanished are sent again elsewhere.
    pub fn set_port(&mut self, now: Duration, port: PortId, info: Option<PortInfo>) {
        let before = core::mem::replace(&mut self.ports[usize::from(port.0)], info);
        for at in 0..self.devices.len() as u16 {
            let paths = self.devices[at as usize].paths.len();
            for path in 0..paths as u8 {
                if self.path(at, path).port != port {
                    continue;
                }
                match info {
                    Some(_) => {
                        self.path_mut(at, path).set_ceiling(now, info);
                        self.probe_if_due(now, at, path);
                    }
                    None => self.vacate(now, at, path),
                }
            }
            if before.is_none() && info.is_some() {
                // At once: a target that was there before us would else be found a minute later.
                let soon = self.tunables.rediscover() / 4;
                let device = &mut self.devices[at as usize];
                (device.next_query, device.query_interval) = (now, soon);
            }
            self.wake(at);
        }
    }

    /// Opens a device: looks for it on all ports until it is found, then takes requests for it. All initiators of a
    /// process that open the same device are given the same `credits`. Opening an address that is open returns the
    /// device that there is.
    ///
    /// Panics when [`DEVICES_MAX`] devices are open or the address is a wildcard.
    pub fn open(&mut self, now: Duration, address: Address, credits: Arc<Credits>) -> DeviceId {
        assert!(!address.is_wildcard(), "a device has a shelf and a slot");
        if let Some(at) = self.device_at(address) {
            return self.device_id(at);
        }
        let closed = self.closed_entry(now, address);
        let place = self.devices.iter().position(|device| !device.open);
        let at = place.unwrap_or(self.devices.len());
        assert!(at < DEVICES_MAX, "at most {DEVICES_MAX} devices are open");
        let generation = place.map_or(0, |at| self.devices[at].generation.wrapping_add(1));
        let mut device = Device::new(address, generation, credits, closed, REQUESTS_MAX);
        device.next_query = now;
        device.query_interval = self.tunables.rediscover();
        match place {
            Some(at) => {
                // The queues may still name the slot.
                device.runnable = self.devices[at].runnable;
                device.eventful = self.devices[at].eventful;
                self.devices[at] = device;
            }
            None => self.devices.push(device),
        }
        self.device_id(at as u16)
    }

    /// Closes a device: its requests end as [`Status::Cancelled`], its paths are forgotten. What is closed to writes
    /// stays closed for whoever opens the address again.
    pub fn close(&mut self, now: Duration, device: DeviceId) {
        let Some(at) = self.index(device) else {
            return;
        };
        self.end_all(now, at, Status::Cancelled);
        for path in 0..self.devices[at as usize].paths.len() as u8 {
            self.vacate(now, at, path);
        }
        self.stop_waiting(at);
        let device = &mut self.devices[at as usize];
        assert_eq!(device.in_flight, 0, "no frame outlives its device");
        device.open = false;
    }

    /// Until when a write to these sectors would have to wait for late copies of older ones, if it would.
    pub fn closed_until(&self, now: Duration, address: Address, lba: Lba, sectors: u32) -> Option<Duration> {
        let closed = self.closed.iter().find(|closed| closed.address == address)?;
        closed.ranges.closed_until(now, Range::new(lba.0, sectors))
    }

    /// Closes sectors to writes for another reason than one that was sent again: copies of an earlier run's writes. `sectors` may be `u64::MAX` for
    /// all of the device.
    pub fn close_range(&mut self, now: Duration, address: Address, lba: Lba, sectors: u64, until: Duration) {
        let range = Range { start: lba.0, end: lba.0.saturating_add(sectors) };
        let at = self.closed_entry(now, address);
        self.closed[at].ranges.close(now, range, until);
    }

    /// The next request that ended.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Frames that were sent and not yet answered or given up.
    pub fn frames_in_flight(&self) -> usize {
        self.frames.len()
    }

    /// Counters since the initiator was made.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The slot of an open device.
    fn index(&self, id: DeviceId) -> Option<u16> {
        let device = self.devices.get(usize::from(id.index))?;
        (device.open && device.generation == id.generation).then_some(id.index)
    }

    fn device_id(&self, at: u16) -> DeviceId {
        DeviceId { index: at, generation: self.devices[at as usize].generation }
    }

    fn device_at(&self, address: Address) -> Option<u16> {
        let open = |device: &Device| device.open && device.address == address;
        Some(self.devices.iter().position(open)? as u16)
    }

    /// The closed ranges of an address, as an index: those there are, or those of an address that nobody needs any more,
    /// or new ones.
    fn closed_entry(&mut self, now: Duration, address: Address) -> usize {
        if let Some(at) = self.closed.iter().position(|closed| closed.address == address) {
            return at;
        }
        let unused = |closed: &ClosedAt| {
            let open = |device: &Device| device.open && device.address == closed.address;
            closed.ranges.is_open(now) && !self.devices.iter().any(open)
        };
        if let Some(at) = self.closed.iter().position(unused) {
            self.closed[at].address = address;
            self.closed[at].ranges.clear();
            return at;
        }
        self.closed.push(ClosedAt { address, ranges: ClosedRanges::new() });
        self.closed.len() - 1
    }

    fn path(&self, device: u16, path: u8) -> &path::Path {
        &self.devices[device as usize].paths[path as usize]
    }

    fn path_mut(&mut self, device: u16, path: u8) -> &mut path::Path {
        &mut self.devices[device as usize].paths[path as usize]
    }

    /// Puts a device on the queue of those that may have something to send.
    fn wake(&mut self, at: u16) {
        let device = &mut self.devices[at as usize];
        if device.open && !device.runnable {
            device.runnable = true;
            self.runnable.push_back(at);
        }
    }

    fn wake_all(&mut self) {
        for at in 0..self.devices.len() as u16 {
            self.wake(at);
        }
    }

    /// Notes that `worker` was granted a credit.
    fn note_grant(&mut self, worker: Option<WorkerId>) {
        // This worker sees its own grants when it polls.
        if let Some(worker) = worker.filter(|worker| *worker != self.worker) {
            self.wakes[usize::from(worker.0) / 64] |= 1 << (worker.0 % 64);
        }
    }

    /// The device no longer waits for a credit.
    fn stop_waiting(&mut self, at: u16) {
        let device = &mut self.devices[at as usize];
        if !device.waits_for_credit {
            return;
        }
        device.waits_for_credit = false;
        self.credit_waits -= 1;
        let granted = device.credits.withdraw(self.worker);
        self.note_grant(granted);
    }

    /// Puts the target's buffer count in force: as the number of credits, and as the cap of each path's window.
    fn apply_limit(&mut self, at: u16) {
        let maxout = self.tunables.maxout();
        let device = &mut self.devices[at as usize];
        let limit = u32::from(device.buffer_count).clamp(1, maxout.max(1));
        for path in &mut device.paths {
            congestion::Congestion::set_cap(&mut path.control, limit);
        }
        device.credits.set_limit(limit);
        while let Some(worker) = self.devices[at as usize].credits.hand_over() {
            self.note_grant(Some(worker));
        }
    }
}
