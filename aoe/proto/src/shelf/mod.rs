//! The target: a shelf of devices that answers AoE frames from block stores.
//!
//! A value: frames and the time come in, replies go out, built in place in a buffer of the caller's; read data go from
//! the store straight into it. The shell owns sockets, clock and files, and calls [`Shelf::handle_frame`] for each
//! frame.
//!
//! What holds:
//! - A message is executed whole or not at all. A malformed one gets error 2 and changes nothing.
//! - A repeat of a write, TRIM or flush gets the first one's answer and is not executed, as long as a copy of its frame
//!   can still arrive (see `duplicates.rs`).
//! - Every reply is at least 60 bytes long, and what is not data or registers in it is zero.
//! - Wildcard addresses are answered for query config only, by each device that they cover.
//! - A frame gets no reply when it is a reply itself, when it comes from an address that is not on the mask list, or
//!   when it is for somebody else.
//! - A change of config string, mask list or reservation is saved before its reply leaves.
//!
//! Bounds: the duplicate cache has a fixed number of entries; lists and strings are bounded by `state.rs`; answering a
//! data command allocates nothing.
//!
//! ```text
//! handle_frame ─ Drop                 nothing to send
//!              ├ Reply(len)           send reply[..len]
//!              ├ Save{address, len}   save state(address), then send; save_failed() if it can't be saved
//!              └ Many                 poll_reply() until None, each of these again Reply or Save
//! ```

mod ata;
mod control;
mod counters;
mod device;
mod duplicates;
mod state;
mod store;

use core::time::Duration;

pub use counters::{DeviceCounters, ShelfCounters};
pub use device::DeviceConfig;
pub use state::{DeviceState, MASK_MAX, RESERVE_MAX, StateError};
pub use store::{BlockStore, StoreError};

use crate::port::{PortId, PortInfo};
use crate::wire::{
    AOE_HEADER, Address, AoeError, AtaString, CCmd, CONFIG_HEADER, CONFIG_STRING_MAX, Command, ETH_HEADER, Header,
    MIN_FRAME, Tag, pad,
};
use device::{Device, ShelfIdentity};
use duplicates::Duplicates;

/// Smallest MTU a port can be served at: one sector must fit.
pub const MTU_MIN: u32 = 548;

/// Settings of a shelf.
#[derive(Clone, Debug)]
pub struct ShelfConfig {
    /// A number that differs from that of the last start; initiators recognise a restart by it.
    pub boot: u32,
    /// How long a frame can be under way. Answers are remembered for twice that.
    pub frame_lifetime: Duration,
    /// Answers that can be remembered. Writes beyond this many within two frame lifetimes are dropped (and repeated by
    /// their initiators). An entry takes about 64 bytes, touched only when needed.
    pub duplicate_entries: usize,
    /// Writes and TRIMs are dropped until then. A frame sent before a restart can arrive after it, when the answers
    /// from before are forgotten: set this to one frame lifetime after the start, unless nobody can have sent any.
    pub changes_from: Duration,
    /// Firmware version in config replies.
    pub firmware: u16,
    /// Firmware version in IDENTIFY data, up to 8 characters.
    pub firmware_text: String,
}

impl ShelfConfig {
    /// A shelf with this boot number, a frame lifetime of one second, room for half a million writes per second, and
    /// no waiting at the start.
    pub fn new(boot: u32) -> ShelfConfig {
        ShelfConfig {
            boot,
            frame_lifetime: Duration::from_secs(1),
            duplicate_entries: 1 << 20,
            changes_from: Duration::ZERO,
            firmware: 1,
            firmware_text: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// What is to be done after a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Nothing.
    Drop,
    /// Send this many bytes of the reply.
    Reply(usize),
    /// Save the device's state ([`Shelf::state`]), then send this many bytes of the reply. If it can't be saved, call
    /// [`Shelf::save_failed`].
    Save {
        /// The device.
        address: Address,
        /// Bytes of the reply.
        len: usize,
    },
    /// Call [`Shelf::poll_reply`] until it returns `None`.
    Many,
}

/// Why a device can't be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddDeviceError {
    /// Shelf 65535 and slot 255 are wildcards.
    #[error("shelf 65535 and slot 255 mean all shelves and all slots: no device can be called that")]
    Wildcard,
    /// There is a device of this name.
    #[error("there is a device of this name already")]
    Present,
    /// The store has no sectors, or more than 48 bits can count.
    #[error("the store has no sectors, or more than 2^48")]
    Size,
    /// The state exceeds its bounds.
    #[error("the state exceeds its bounds")]
    State,
}

/// A port's MTU is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an MTU of {0} holds no sector; 548 is the least")]
pub struct MtuTooSmall(pub u32);

/// A request on its way through the handlers.
struct Call<'a> {
    now: Duration,
    info: PortInfo,
    header: Header,
    arg: &'a [u8],
}

impl Call<'_> {
    fn reply_header(&self, device: Address, error: Option<AoeError>) -> Header {
        self.header.reply(self.info.mac, device, error)
    }

    /// Whether a reply of this length can leave by the port.
    fn fits(&self, len: usize) -> bool {
        len <= reply_len(&self.info)
    }
}

/// Largest frame of a port.
fn reply_len(info: &PortInfo) -> usize {
    ETH_HEADER + info.mtu as usize
}

/// What a handler decided.
enum Verdict {
    /// No reply.
    Silent,
    /// A reply of this length, to be padded.
    Reply(usize),
    /// The same, and the device's state has changed.
    Changed(usize),
    /// An AoE error.
    Refuse(AoeError),
}

/// Replies that are still to be made, one at a time.
enum Pending {
    None,
    /// A config request to a wildcard address; the frame is in `Shelf::query`.
    Query {
        now: Duration,
        port: PortId,
        next: usize,
    },
    /// Beacons: the next device, and the next on its mask list.
    Beacons {
        port: PortId,
        next: usize,
        to: usize,
    },
}

/// A shelf of devices over stores of type `S`.
pub struct Shelf<S> {
    config: ShelfConfig,
    identity: ShelfIdentity,
    /// By port number.
    ports: Vec<Option<PortInfo>>,
    /// In the order of their addresses.
    devices: Vec<Device<S>>,
    duplicates: Duplicates,
    counters: ShelfCounters,
    pending: Pending,
    /// The frame that [`Pending::Query`] answers: a config message and nothing behind it.
    query: Vec<u8>,
}

impl<S: BlockStore> Shelf<S> {
    /// A shelf without devices and ports.
    pub fn new(config: ShelfConfig) -> Shelf<S> {
        let identity = ShelfIdentity { boot: config.boot, firmware: AtaString::new(&config.firmware_text) };
        let duplicates = Duplicates::new(config.duplicate_entries, config.frame_lifetime, config.boot);
        Shelf {
            config,
            identity,
            ports: Vec::new(),
            devices: Vec::new(),
            duplicates,
            counters: ShelfCounters::default(),
            pending: Pending::None,
            query: Vec::with_capacity(CONFIG_HEADER + CONFIG_STRING_MAX),
        }
    }

    /// A port appears, changes its address or MTU, or vanishes. A port that is refused is gone.
    pub fn set_port(&mut self, port: PortId, info: Option<PortInfo>) -> Result<(), MtuTooSmall> {
        let index = usize::from(port.0);
        if self.ports.len() <= index {
            self.ports.resize(index + 1, None);
        }
        self.ports[index] = info.filter(|info| info.mtu >= MTU_MIN);
        match info {
            Some(info) if info.mtu < MTU_MIN => Err(MtuTooSmall(info.mtu)),
            _ => Ok(()),
        }
    }

    /// Adds a device with the state that was saved for it.
    pub fn add_device(&mut self, config: DeviceConfig, state: DeviceState, store: S) -> Result<(), AddDeviceError> {
        if config.address.is_wildcard() {
            return Err(AddDeviceError::Wildcard);
        }
        let Err(index) = self.find(config.address) else {
            return Err(AddDeviceError::Present);
        };
        if store.sectors() == 0 || store.sectors() > crate::wire::LBA48_END {
            return Err(AddDeviceError::Size);
        }
        if !state.is_bounded() {
            return Err(AddDeviceError::State);
        }
        let before = state.clone();
        let counters = DeviceCounters::default();
        let device = Device { config, store, state, before, counters, write_cache_on: true };
        self.devices.insert(index, device);
        Ok(())
    }

    /// Takes a device away and returns its store.
    pub fn remove_device(&mut self, address: Address) -> Option<S> {
        let index = self.find(address).ok()?;
        self.pending = Pending::None;
        Some(self.devices.remove(index).store)
    }

    /// The devices' addresses, in order.
    pub fn addresses(&self) -> impl Iterator<Item = Address> + '_ {
        self.devices.iter().map(|device| device.config.address)
    }

    /// A device's store.
    pub fn store(&self, address: Address) -> Option<&S> {
        self.find(address).ok().map(|index| &self.devices[index].store)
    }

    /// A device's store, for instance to resize it.
    pub fn store_mut(&mut self, address: Address) -> Option<&mut S> {
        self.find(address).ok().map(|index| &mut self.devices[index].store)
    }

    /// A device's state, to be saved.
    pub fn state(&self, address: Address) -> Option<&DeviceState> {
        self.find(address).ok().map(|index| &self.devices[index].state)
    }

    /// Tells initiators another buffer count from the next config reply on.
    pub fn set_buffer_count(&mut self, address: Address, buffer_count: u16) {
        if let Ok(index) = self.find(address) {
            self.devices[index].config.buffer_count = buffer_count;
        }
    }

    /// What was counted for a device.
    pub fn device_counters(&self, address: Address) -> Option<DeviceCounters> {
        self.find(address).ok().map(|index| self.devices[index].counters)
    }

    /// What was counted for the shelf.
    pub fn counters(&self) -> ShelfCounters {
        self.counters
    }

    /// Answers that are remembered at the moment.
    pub fn remembered(&self) -> usize {
        self.duplicates.len()
    }

    /// Bytes that a reply buffer must have for frames of a port: its largest frame.
    pub fn reply_len(&self, port: PortId) -> usize {
        self.port(port).map_or(MIN_FRAME, |info| reply_len(&info))
    }

    /// Takes a frame that arrived at a port, and builds the reply in place.
    ///
    /// `reply` must have [`Shelf::reply_len`] bytes. `now` must not go back. Replies of the frame before that were not
    /// polled are forgotten.
    pub fn handle_frame(&mut self, now: Duration, port: PortId, frame: &[u8], reply: &mut [u8]) -> Outcome {
        self.counters.frames += 1;
        self.pending = Pending::None;
        let Some((info, header, arg)) = self.addressed_to_us(port, frame) else {
            self.counters.ignored += 1;
            return Outcome::Drop;
        };
        if header.address.is_wildcard() {
            return self.take_query(now, port, &header, frame);
        }
        match self.find(header.address) {
            Ok(index) => self.answer(index, &Call { now, info, header, arg }, reply),
            Err(_) => {
                self.counters.no_device += 1;
                Outcome::Drop
            }
        }
    }

    /// Makes the next of several replies; `None` when there are no more.
    pub fn poll_reply(&mut self, reply: &mut [u8]) -> Option<Outcome> {
        loop {
            let outcome = match self.pending {
                Pending::None => return None,
                Pending::Query { now, port, next } => self.poll_query(now, port, next, reply)?,
                Pending::Beacons { port, next, to } => self.poll_beacon(port, next, to, reply)?,
            };
            if outcome != Outcome::Drop {
                return Some(outcome);
            }
        }
    }

    /// Announces all devices at a port: at the start, when its link comes up, when its MTU or a device changes. The
    /// frames come from [`Shelf::poll_reply`].
    pub fn beacon(&mut self, port: PortId) {
        self.pending = Pending::Beacons { port, next: 0, to: 0 };
    }

    /// The state of an [`Outcome::Save`] could not be saved: takes the change back, and turns the reply into "device
    /// unavailable". Returns its length.
    pub fn save_failed(&mut self, address: Address, reply: &mut [u8]) -> usize {
        if let Ok(index) = self.find(address) {
            let device = &mut self.devices[index];
            device.state.clone_from(&device.before);
            device.counters.protocol_errors += 1;
        }
        let (header, _) = Header::parse(reply).expect("the reply was built by us");
        emit_error(&Header { error: Some(AoeError::UNAVAILABLE), ..header }, reply)
    }

    fn port(&self, port: PortId) -> Option<PortInfo> {
        self.ports.get(usize::from(port.0)).copied().flatten()
    }

    fn find(&self, address: Address) -> Result<usize, usize> {
        self.devices.binary_search_by_key(&address, |device| device.config.address)
    }

    /// The frame, if it is an AoE request that somebody may have sent to us.
    fn addressed_to_us<'a>(&self, port: PortId, frame: &'a [u8]) -> Option<(PortInfo, Header, &'a [u8])> {
        let info = self.port(port)?;
        let (header, arg) = Header::parse(frame).ok()?;
        // In promiscuous mode frames to other stations come by, perhaps to another target with the same address.
        let to_us = header.dst == info.mac || header.dst.is_multicast();
        let answerable = !header.response && !header.src.is_multicast();
        (to_us && answerable).then_some((info, header, arg))
    }

    /// Notes a request to a wildcard address for [`Shelf::poll_reply`].
    fn take_query(&mut self, now: Duration, port: PortId, header: &Header, frame: &[u8]) -> Outcome {
        if header.command != Command::CONFIG {
            self.counters.wildcards_refused += 1;
            return Outcome::Drop;
        }
        self.query.clear();
        self.query.extend_from_slice(&frame[..frame.len().min(CONFIG_HEADER + CONFIG_STRING_MAX)]);
        self.pending = Pending::Query { now, port, next: 0 };
        Outcome::Many
    }

    fn poll_query(&mut self, now: Duration, port: PortId, next: usize, reply: &mut [u8]) -> Option<Outcome> {
        let query = core::mem::take(&mut self.query);
        let outcome = self.poll_query_frame(now, port, next, &query, reply);
        self.query = query;
        if outcome.is_none() {
            self.pending = Pending::None;
        }
        outcome
    }

    fn poll_query_frame(
        &mut self,
        now: Duration,
        port: PortId,
        next: usize,
        frame: &[u8],
        reply: &mut [u8],
    ) -> Option<Outcome> {
        let (info, header, arg) = self.addressed_to_us(port, frame)?;
        let covered = |device: &Device<S>| header.address.covers(device.config.address);
        let index = next + self.devices.get(next..)?.iter().position(covered)?;
        self.pending = Pending::Query { now, port, next: index + 1 };
        Some(self.answer(index, &Call { now, info, header, arg }, reply))
    }

    fn poll_beacon(&mut self, port: PortId, next: usize, to: usize, reply: &mut [u8]) -> Option<Outcome> {
        let Some((info, device)) = self.port(port).zip(self.devices.get(next)) else {
            self.pending = Pending::None;
            return None;
        };
        let Some(dst) = device.beacon_to(to) else {
            self.pending = Pending::Beacons { port, next: next + 1, to: 0 };
            return Some(Outcome::Drop);
        };
        self.pending = Pending::Beacons { port, next, to: to + 1 };
        // A beacon is the answer to a question that nobody asked: `dst` with tag 0.
        let header = Header::request(info.mac, dst, device.config.address, Command::CONFIG, Tag::UNSOLICITED);
        let call = Call { now: Duration::ZERO, info, header, arg: &[] };
        if !call.fits(CONFIG_HEADER + device.state.config.len()) {
            return Some(Outcome::Drop);
        }
        let len = device.emit_config(&call, self.config.firmware, CCmd::READ, reply);
        self.counters.beacons += 1;
        Some(Outcome::Reply(pad(reply, len)))
    }

    /// Answers a request to device `index`.
    fn answer(&mut self, index: usize, call: &Call<'_>, reply: &mut [u8]) -> Outcome {
        assert!(reply.len() >= reply_len(&call.info), "the reply buffer holds the port's largest frame");
        let device = &mut self.devices[index];
        let address = device.config.address;
        if !device.state.listens_to(call.header.src) {
            device.counters.masked += 1;
            return Outcome::Drop;
        }
        let verdict = match call.header.command {
            _ if call.header.check_version().is_err() => Verdict::Refuse(AoeError::VERSION),
            Command::ATA => self.answer_ata(index, call, reply),
            Command::CONFIG => device.answer_config(call, self.config.firmware, reply),
            Command::MASK => device.answer_mask(call, reply),
            Command::RESERVE => device.answer_reserve(call, reply),
            _ => Verdict::Refuse(AoeError::COMMAND),
        };
        let counters = &mut self.devices[index].counters;
        if call.header.command != Command::ATA && matches!(verdict, Verdict::Reply(_) | Verdict::Changed(_)) {
            counters.controls += 1;
        }
        match verdict {
            Verdict::Silent => Outcome::Drop,
            Verdict::Reply(len) => Outcome::Reply(pad(reply, len)),
            Verdict::Changed(len) => Outcome::Save { address, len: pad(reply, len) },
            Verdict::Refuse(error) => {
                match error {
                    AoeError::RESERVED => counters.reserved += 1,
                    _ => counters.protocol_errors += 1,
                }
                Outcome::Reply(emit_error(&call.reply_header(address, Some(error)), reply))
            }
        }
    }
}

/// Writes an error reply: the header and zeros.
fn emit_error(header: &Header, reply: &mut [u8]) -> usize {
    header.emit(reply);
    pad(reply, AOE_HEADER)
}

#[cfg(test)]
mod tests;
