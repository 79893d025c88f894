//! A link over a packet socket: AoE frames on one interface of this host. Needs CAP_NET_RAW.
//!
//! Owns the socket, its receive ring or slots, and its filter. Used by the driver and the shelf server, one thread each.
//!
//! What it takes care of: frames are sent in batches of [`BATCH`] with one system call, and arrive in a ring without any, or in batches where the
//! kernel gives no ring (said in the log) or none is wanted; the kernel filters by [`Role`], so a worker is not woken by another's
//! replies; socket buffers are sized for jumbo frames, of which a queued one is charged more than it is
//! long ([`Link::receive_frames`] says how many fit); an interface that goes down, vanishes, or comes back under the same
//! name with another index is followed. Bound: ring and socket buffers. What each way of moving frames costs is in docs/decisions/0014.

mod filter;
#[expect(unsafe_code, reason = "memory that the kernel writes to")]
mod ring;
#[expect(unsafe_code, reason = "system calls that take pointers")]
mod sys;

use crate::clock::coarse_time;
use crate::link::{BATCH, FrameRef, Link, LinkCounters};
use aoe_proto::port::PortInfo;
use aoe_proto::wire::{Address, ETHERTYPE, MacAddr};
use ring::{Ring, Shape};
use rustix::time::ClockId;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use sys::{Arrival, Buffer, Interface, ReceiveBatch, SendBatch};

/// Bytes that a frame may have beyond the MTU: the Ethernet header and a VLAN tag.
const HEADER_MAX: usize = 18;
/// The least MTU that carries one sector.
const MTU_MIN: u32 = 36 + 512;
/// Frames in a ring, unless something else is asked for.
pub const RING: usize = 256;
/// A ring that is empty this often in a row is looked at for an error of the socket, which else nothing would notice.
const EMPTY_MAX: u32 = 4;

/// Whose frames a socket is to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Replies whose tag carries this worker's number.
    Initiator {
        /// The worker's number, tag bits 30 to 23.
        worker: u8,
        /// All config replies and beacons, too.
        discovers: bool,
    },
    /// Requests.
    Shelf,
    /// All AoE frames.
    Everything,
}

/// How to open a packet socket.
#[derive(Clone, Debug)]
pub struct PacketConfig {
    /// Name of the interface.
    pub interface: String,
    /// Which frames to receive.
    pub role: Role,
    /// The devices that a shelf serves: requests to others do not take room from theirs. Empty: requests to any are received.
    pub devices: Vec<Address>,
    /// Frames that the ring which they arrive in holds: as many as may be under way at a time, and few more, as its memory is gone through again
    /// and again and should stay in the caches. Without one, and where the kernel refuses it, frames are queued in the receive buffer and read in batches.
    pub receive_ring: Option<usize>,
    /// Receive buffer to ask for, in bytes; the kernel counts memory, not frame lengths.
    pub receive_buffer: usize,
    /// Send buffer to ask for, in bytes, counted alike.
    pub send_buffer: usize,
    /// Skip the interface's queueing discipline when sending.
    pub qdisc_bypass: bool,
    /// Drop frames that have waited longer than this in the receive queue. A shelf that was stopped for a while, or is slow, must not
    /// execute requests that are older than a frame can be.
    pub longest_wait: Option<Duration>,
    /// Receive what this host sends on the interface, too, as far as it does not bypass the queueing discipline.
    pub outgoing: bool,
    /// Open an interface that is set down and wait for it to come up, instead of failing. One that merely has no carrier is always
    /// waited for.
    pub allow_down: bool,
}

impl PacketConfig {
    /// A ring of [`RING`] frames, 16 MiB of buffer each way, no queueing discipline, an interface that is up; a shelf's frames wait for a
    /// second at most.
    pub fn new(interface: &str, role: Role) -> PacketConfig {
        PacketConfig {
            interface: interface.to_owned(),
            role,
            devices: Vec::new(),
            receive_ring: Some(RING),
            receive_buffer: 16 << 20,
            send_buffer: 16 << 20,
            qdisc_bypass: true,
            longest_wait: (role == Role::Shelf).then_some(Duration::from_secs(1)),
            outgoing: false,
            allow_down: false,
        }
    }
}

/// Why a packet socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// There is no such interface.
    #[error("no interface named {name}; there are: {}", existing.join(", "))]
    NoInterface {
        /// The name asked for.
        name: String,
        /// Those that exist.
        existing: Vec<String>,
    },
    /// The interface is set down.
    #[error("interface {0} is down; try: ip link set {0} up")]
    Down(String),
    /// The MTU is too small for a sector.
    #[error("interface {name} has MTU {mtu}, one sector needs {MTU_MIN}; try: ip link set {name} mtu 1500")]
    MtuTooSmall {
        /// The interface.
        name: String,
        /// Its MTU in bytes.
        mtu: u32,
    },
    /// Packet sockets are not permitted.
    #[error("a packet socket on {0} needs CAP_NET_RAW; try as root")]
    Permission(String),
    /// Anything else.
    #[error("{operation} on {interface}")]
    Os {
        /// The interface.
        interface: String,
        /// The step that failed.
        operation: &'static str,
        /// The error.
        source: io::Error,
    },
}

/// An interface of this host, as the kernel tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInterface {
    /// Its name.
    pub name: String,
    /// Set up.
    pub up: bool,
    /// Set up, and with a carrier.
    pub running: bool,
    /// In bytes.
    pub mtu: u32,
}

/// The Ethernet interfaces of this thread's network namespace, by name. Takes the right to packet sockets.
pub fn host_interfaces() -> io::Result<Vec<HostInterface>> {
    let socket = sys::open()?;
    let mut names = sys::interface_names();
    names.sort();
    // One that vanishes meanwhile is left out.
    let found = names.into_iter().filter_map(|name| Some((sys::interface(socket.as_fd(), &name).ok()?, name)));
    let ethernet = found.filter(|(interface, _)| interface.ethernet);
    let told = |(Interface { up, running, mtu, .. }, name)| HostInterface { name, up, running, mtu };
    Ok(ethernet.map(told).collect())
}

/// A packet socket on one interface.
pub struct PacketLink {
    name: String,
    socket: OwnedFd,
    /// The interface as last seen up; `None` while it is down or gone.
    info: Option<PortInfo>,
    /// Index of the interface that the socket is bound to; `None` when the socket must be bound anew.
    bound: Option<i32>,
    receive_buffer: usize,
    longest_wait: Option<Duration>,
    /// Longest frame that there is room for, in bytes.
    longest: usize,
    reception: Reception,
    /// Times in a row that the ring was empty.
    empty: u32,
    batch: SendBatch,
    counters: LinkCounters,
}

/// How frames arrive.
enum Reception {
    /// In a ring that was asked for with so many frames.
    Ring { ring: Ring, frames: usize },
    /// Read in batches.
    Batches(ReceiveBatch),
}

impl Reception {
    /// A ring as wanted if the kernel gives one, else batches.
    fn open(fd: BorrowedFd<'_>, name: &str, longest: usize, ring: Option<usize>) -> Reception {
        let Some(frames) = ring else { return Reception::Batches(ReceiveBatch::new(longest)) };
        match Ring::new(fd, Shape::new(longest, frames)) {
            Ok(ring) => Reception::Ring { ring, frames },
            Err(error) => {
                tracing::warn!(interface = %name, %error, "no receive ring: frames are read in batches, which is slower");
                Reception::Batches(ReceiveBatch::new(longest))
            }
        }
    }

    /// Has frames' times of arrival told; those in a ring always are.
    fn stamp(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Reception::Ring { .. } => Ok(()),
            Reception::Batches(_) => sys::stamp_arrivals(fd),
        }
    }

    /// The same with room for longer frames. Frames that wait in a ring are lost.
    fn grow(self, fd: BorrowedFd<'_>, name: &str, longest: usize) -> Reception {
        let Reception::Ring { ring, frames } = self else {
            return Reception::Batches(ReceiveBatch::new(longest));
        };
        drop(ring);
        if let Err(error) = Ring::remove(fd) {
            tracing::debug!(interface = %name, %error, "taking a receive ring away");
        }
        Reception::open(fd, name, longest, Some(frames))
    }
}

impl PacketLink {
    /// Opens a socket as `config` says.
    pub fn open(config: &PacketConfig) -> Result<PacketLink, LinkError> {
        let name = config.interface.as_str();
        let os = |operation| move |source: io::Error| LinkError::Os { interface: name.to_owned(), operation, source };
        let socket = sys::open().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => LinkError::Permission(name.to_owned()),
            _ => os("opening a packet socket")(error),
        })?;
        let fd = socket.as_fd();
        let interface = sys::interface(fd, name)
            .map_err(|_| LinkError::NoInterface { name: name.to_owned(), existing: sys::interface_names() })?;
        if !interface.up && !config.allow_down {
            return Err(LinkError::Down(name.to_owned()));
        }
        if interface.mtu < MTU_MIN {
            return Err(LinkError::MtuTooSmall { name: name.to_owned(), mtu: interface.mtu });
        }
        // All of this before the socket is bound, so that no frame of another role is ever queued.
        if let Some(program) = filter::program(config.role, &config.devices) {
            sys::attach_filter(fd, &program).map_err(os("attaching a filter"))?;
        }
        if !config.outgoing {
            sys::ignore_outgoing(fd).map_err(os("ignoring outgoing frames"))?;
        }
        if config.qdisc_bypass {
            sys::bypass_qdisc(fd).map_err(os("bypassing the queueing discipline"))?;
        }
        let receive_buffer =
            sys::set_buffer(fd, Buffer::Receive, config.receive_buffer).map_err(os("setting the receive buffer"))?;
        sys::set_buffer(fd, Buffer::Send, config.send_buffer).map_err(os("setting the send buffer"))?;
        let longest = interface.mtu as usize + HEADER_MAX;
        let reception = Reception::open(fd, name, longest, config.receive_ring);
        if config.longest_wait.is_some() {
            reception.stamp(fd).map_err(os("asking for arrival times"))?;
        }
        sys::bind(fd, interface.index, ETHERTYPE).map_err(os("binding a packet socket"))?;
        Ok(PacketLink {
            name: name.to_owned(),
            socket,
            info: info(interface),
            bound: Some(interface.index),
            receive_buffer,
            longest_wait: config.longest_wait,
            longest,
            reception,
            empty: 0,
            batch: SendBatch::new(),
            counters: LinkCounters::default(),
        })
    }

    /// Whether frames arrive in a ring.
    pub fn has_ring(&self) -> bool {
        matches!(self.reception, Reception::Ring { .. })
    }

    /// As [`Link::receive`], with the time that each frame arrived by the system's clock, since 1970, where that is known: in a ring always.
    pub fn receive_timed(&mut self, sink: &mut dyn FnMut(&[u8], Option<Duration>)) -> usize {
        let PacketLink { reception, counters, longest_wait, .. } = self;
        let mut take = |arrival: Arrival<'_>| take(counters, *longest_wait, arrival, sink);
        match reception {
            Reception::Ring { ring, .. } => {
                let count = ring.receive(BATCH, &mut take);
                self.empty = if count > 0 { 0 } else { self.empty + 1 };
                if self.empty >= EMPTY_MAX {
                    self.empty = 0;
                    self.take_error();
                }
                count
            }
            Reception::Batches(batch) => match batch.receive(self.socket.as_fd(), longest_wait.is_some()) {
                Ok(count) => {
                    (0..count).for_each(|index| take(batch.arrival(index)));
                    count
                }
                Err(error) => match self.sort_out(&error) {
                    Verdict::Again => self.receive_timed(sink),
                    Verdict::Full | Verdict::Down | Verdict::Refused => 0,
                },
            },
        }
    }

    /// Takes an error away that waits at the socket, which would keep it readable though nothing can be read.
    fn take_error(&mut self) {
        if let Ok(Some(error)) = sys::take_error(self.socket.as_fd()) {
            self.sort_out(&error);
        }
    }

    fn went_down(&mut self) {
        self.bound = None;
        if self.info.take().is_some() {
            self.counters.went_down += 1;
            tracing::warn!(interface = %self.name, "link down");
        }
    }

    fn came_up(&mut self, interface: Interface) {
        let Some(now) = info(interface) else {
            return self.went_down();
        };
        if self.bound != Some(interface.index) {
            if let Err(error) = sys::bind(self.socket.as_fd(), interface.index, ETHERTYPE) {
                // It vanished again, or is not ready; the next refresh tries anew.
                tracing::debug!(interface = %self.name, %error, "binding");
                return self.went_down();
            }
            self.bound = Some(interface.index);
        }
        let longest = interface.mtu as usize + HEADER_MAX;
        if longest > self.longest {
            self.longest = longest;
            let before = mem::replace(&mut self.reception, Reception::Batches(ReceiveBatch::new(0)));
            self.reception = before.grow(self.socket.as_fd(), &self.name, longest);
            if let (Some(_), Err(error)) = (self.longest_wait, self.reception.stamp(self.socket.as_fd())) {
                tracing::warn!(interface = %self.name, %error, "asking for arrival times");
            }
        }
        if self.info != Some(now) {
            tracing::info!(interface = %self.name, mac = %now.mac, mtu = now.mtu, "link up");
            self.info = Some(now);
        }
    }

    /// Sorts out an error of the socket; whether the call is worth repeating at once.
    fn sort_out(&mut self, error: &io::Error) -> Verdict {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS) => Verdict::Full,
            Some(libc::EINTR) => Verdict::Again,
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                self.went_down();
                Verdict::Down
            }
            _ => {
                self.counters.errors += 1;
                tracing::debug!(interface = %self.name, %error, "packet socket");
                Verdict::Refused
            }
        }
    }
}

/// What an error of the socket means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// No room, or nothing there.
    Full,
    /// Interrupted.
    Again,
    /// The interface is down or gone.
    Down,
    /// This frame is not accepted.
    Refused,
}

/// The port that `interface` is, if it can carry frames.
fn info(interface: Interface) -> Option<PortInfo> {
    (interface.running && interface.mtu >= MTU_MIN)
        .then_some(PortInfo { mac: MacAddr(interface.mac), mtu: interface.mtu })
}

/// Socket buffer memory that a queued frame of full MTU is charged: the data come from a power-of-two allocation, with the kernel's
/// own structures beside them.
fn charge(mtu: usize) -> usize {
    const SHARED_INFO: usize = 320;
    const SKB: usize = 512;
    (mtu + HEADER_MAX + SHARED_INFO).next_power_of_two() + SKB
}

/// Hands a frame on, unless it was cut or has waited too long.
fn take(
    counters: &mut LinkCounters,
    longest_wait: Option<Duration>,
    arrival: Arrival<'_>,
    sink: &mut dyn FnMut(&[u8], Option<Duration>),
) {
    if arrival.truncated {
        counters.receive_too_long += 1;
        return;
    }
    // The time is looked at anew for each frame: the one before may have kept the sink for long.
    let oldest = longest_wait.and_then(|wait| coarse_time(ClockId::RealtimeCoarse).checked_sub(wait));
    if oldest.is_some() && arrival.arrived.is_some() && arrival.arrived < oldest {
        counters.receive_stale += 1;
        return;
    }
    counters.received += 1;
    counters.received_bytes += arrival.bytes.len() as u64;
    sink(arrival.bytes, arrival.arrived);
}

impl Link for PacketLink {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> Option<PortInfo> {
        self.info
    }

    fn refresh(&mut self) {
        self.take_error();
        match sys::interface(self.socket.as_fd(), &self.name) {
            Ok(interface) => self.came_up(interface),
            Err(_) => self.went_down(),
        }
        if let Ok(drops) = sys::take_drops(self.socket.as_fd()) {
            self.counters.receive_dropped += drops;
        }
    }

    fn send(&mut self, frames: &[FrameRef<'_>]) -> usize {
        let mut done = 0;
        while done < frames.len() {
            if self.info.is_none() {
                self.counters.send_lost += (frames.len() - done) as u64;
                return frames.len();
            }
            match self.batch.send(self.socket.as_fd(), &frames[done..]) {
                Ok(count) => {
                    let bytes: usize = frames[done..done + count].iter().map(FrameRef::len).sum();
                    self.counters.sent += count as u64;
                    self.counters.sent_bytes += bytes as u64;
                    done += count;
                }
                Err(error) => match self.sort_out(&error) {
                    Verdict::Full => {
                        self.counters.send_full += 1;
                        return done;
                    }
                    Verdict::Again | Verdict::Down => {}
                    Verdict::Refused => {
                        self.counters.send_lost += 1;
                        done += 1;
                    }
                },
            }
        }
        done
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        self.receive_timed(&mut |frame, _| sink(frame))
    }

    fn receive_frames(&self) -> usize {
        match &self.reception {
            Reception::Ring { ring, .. } => ring.slots(),
            Reception::Batches(_) => {
                let mtu = self.info.map_or(self.longest - HEADER_MAX, |info| info.mtu as usize);
                self.receive_buffer / charge(mtu)
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn counters(&mut self) -> LinkCounters {
        self.counters
    }
}
