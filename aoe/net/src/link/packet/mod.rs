//! A link over a packet socket: AoE frames on one interface of this host. Needs CAP_NET_RAW.
//!
//! Owns the socket, its receive slots and its filter. Used by the driver and the shelf server, one thread each.
//!
//! What it takes care of: frames move in batches of [`BATCH`] with one system call; the kernel filters by [`Role`], so a worker is
//! not woken by another's replies; socket buffers are sized for jumbo frames, of which a queued one is charged more than it is
//! long ([`Link::receive_frames`] says how many fit); an interface that goes down, vanishes, or comes back under the same
//! name with another index is followed. Bound: the socket buffers.

mod filter;
#[expect(unsafe_code, reason = "system calls that take pointers")]
mod sys;

use crate::link::{BATCH, FrameRef, Link, LinkCounters, Slots};
use aoe_proto::port::PortInfo;
use aoe_proto::wire::{ETHERTYPE, MacAddr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};
use sys::{Batch, Buffer, Interface, Received};

/// Bytes that a frame may have beyond the MTU: the Ethernet header and a VLAN tag.
const HEADER_MAX: usize = 18;
/// The least MTU that carries one sector.
const MTU_MIN: u32 = 36 + 512;

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
    /// Receive buffer to ask for, in bytes; the kernel counts memory, not frame lengths.
    pub receive_buffer: usize,
    /// Send buffer to ask for, in bytes, counted alike.
    pub send_buffer: usize,
    /// Skip the interface's queueing discipline when sending.
    pub qdisc_bypass: bool,
    /// Drop frames that have waited longer than this in the receive queue. A shelf that was stopped for a while, or is slow, must not
    /// execute requests that are older than a frame can be.
    pub longest_wait: Option<Duration>,
    /// Open an interface that is set down and wait for it to come up, instead of failing. One that merely has no carrier is always
    /// waited for.
    pub allow_down: bool,
}

impl PacketConfig {
    /// 16 MiB of buffer each way, no queueing discipline, an interface that is up; a shelf's frames wait for a second at most.
    pub fn new(interface: &str, role: Role) -> PacketConfig {
        PacketConfig {
            interface: interface.to_owned(),
            role,
            receive_buffer: 16 << 20,
            send_buffer: 16 << 20,
            qdisc_bypass: true,
            longest_wait: (role == Role::Shelf).then_some(Duration::from_secs(1)),
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
    slots: Slots,
    received: [Received; BATCH],
    batch: Batch,
    counters: LinkCounters,
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
        if let Some(program) = filter::program(config.role) {
            sys::attach_filter(fd, &program).map_err(os("attaching a filter"))?;
        }
        sys::ignore_outgoing(fd).map_err(os("ignoring outgoing frames"))?;
        if config.longest_wait.is_some() {
            sys::stamp_arrivals(fd).map_err(os("asking for arrival times"))?;
        }
        if config.qdisc_bypass {
            sys::bypass_qdisc(fd).map_err(os("bypassing the queueing discipline"))?;
        }
        let receive_buffer =
            sys::set_buffer(fd, Buffer::Receive, config.receive_buffer).map_err(os("setting the receive buffer"))?;
        sys::set_buffer(fd, Buffer::Send, config.send_buffer).map_err(os("setting the send buffer"))?;
        sys::bind(fd, interface.index, ETHERTYPE).map_err(os("binding a packet socket"))?;
        Ok(PacketLink {
            name: name.to_owned(),
            socket,
            info: info(interface),
            bound: Some(interface.index),
            receive_buffer,
            longest_wait: config.longest_wait,
            slots: Slots::new(BATCH, interface.mtu as usize + HEADER_MAX),
            received: [Received::default(); BATCH],
            batch: Batch::new(),
            counters: LinkCounters::default(),
        })
    }

    /// Frames that arrived before this have waited too long; since 1970.
    fn oldest_arrival(&self) -> Option<Duration> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        now.checked_sub(self.longest_wait?)
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
        let capacity = interface.mtu as usize + HEADER_MAX;
        if capacity > self.slots.capacity() {
            self.slots = Slots::new(BATCH, capacity);
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

impl Link for PacketLink {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> Option<PortInfo> {
        self.info
    }

    fn refresh(&mut self) {
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
        let mut received = self.received;
        let count = loop {
            match self.batch.receive(self.socket.as_fd(), &mut self.slots, &mut received, self.longest_wait.is_some()) {
                Ok(count) => break count,
                Err(error) => match self.sort_out(&error) {
                    Verdict::Again => {}
                    Verdict::Full | Verdict::Down | Verdict::Refused => return 0,
                },
            }
        };
        for (index, &Received { len, truncated, arrived }) in received[..count].iter().enumerate() {
            if truncated {
                self.counters.receive_too_long += 1;
                continue;
            }
            // Looked at anew for each frame: the one before may have kept the sink for long.
            if arrived.is_some() && arrived < self.oldest_arrival() {
                self.counters.receive_stale += 1;
                continue;
            }
            self.counters.received += 1;
            self.counters.received_bytes += len as u64;
            sink(&self.slots.slot(index)[..len]);
        }
        self.received = received;
        count
    }

    fn receive_frames(&self) -> usize {
        let mtu = self.info.map_or(self.slots.capacity() - HEADER_MAX, |info| info.mtu as usize);
        self.receive_buffer / charge(mtu)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn counters(&mut self) -> LinkCounters {
        self.counters
    }
}
