//! What goes in and out of the initiator: requests, completions, events, frames to send.
//!
//! All are small values. Data never pass through here: a request names its buffer by [`RequestId`], and the initiator
//! speaks of byte offsets in it.

use crate::port::PortId;
use crate::wire::{Address, AoeError, Identify, Lba, MacAddr};

/// Number of a worker, of which each has an initiator of its own. It is in bits 30 to 23 of the initiator's tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u8);

/// A device that was opened. It stays unique: a closed device's name is not used again before 2^32 others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    pub(super) index: u16,
    pub(super) generation: u32,
}

/// The caller's name for a request and for its buffer. Unique among the caller's outstanding requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads sectors into the request's buffer.
    Read,
    /// Writes sectors from the request's buffer.
    Write {
        /// The medium has the data before the reply. Only where the device offers it.
        fua: bool,
    },
    /// Makes durable what was written and answered before.
    Flush,
    /// Reads the 512 bytes of IDENTIFY data into the request's buffer.
    Identify,
}

impl Op {
    pub(super) fn is_write(self) -> bool {
        matches!(self, Op::Write { .. })
    }
}

/// A request for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's name for it.
    pub id: RequestId,
    /// The device.
    pub device: DeviceId,
    /// What to do.
    pub op: Op,
    /// First sector; ignored by flush and identify.
    pub lba: Lba,
    /// Sectors, as many as the caller likes; ignored by flush and identify.
    pub sectors: u32,
}

/// Why a request was not taken. It will not be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The device is not open.
    #[error("the device is not open")]
    NoDevice,
    /// The device was not found yet, or was given up.
    #[error("the device was not found yet, or did not answer for aoe_deadsecs")]
    NotFound,
    /// As many requests are outstanding as the initiator has room for.
    #[error("too many requests are outstanding")]
    Full,
    /// No sector, or sectors beyond the device's end.
    #[error("the sectors are not on the device")]
    OutOfRange,
    /// The device has no FUA writes: write, then flush.
    #[error("the device has no FUA writes")]
    NoFua,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok,
    /// A flush that the device can't do: no failure, but nothing was made durable. The device is volatile.
    Volatile,
    /// A flush that was done by a target which had restarted since, so that what was written before may be lost; or a read or write of
    /// which parts were done by different starts of the target, so that what was written may be lost and what was read may be older.
    Restarted,
    /// The medium can't read (or write) some of the sectors.
    Medium,
    /// The device aborted the command.
    Aborted,
    /// The device says that the sectors are beyond its end.
    OutOfRange,
    /// The device reports a fault of its own.
    Fault,
    /// The device is reserved by somebody else. Nothing more must be written to it.
    Fenced,
    /// The target does not accept the message: AoE error 1, 2, 4, 5 or an unknown one.
    Refused(AoeError),
    /// No answer for `aoe_deadsecs`. The request may have been executed.
    DeviceGone,
    /// The caller cancelled it, or closed the device. The request may have been executed.
    Cancelled,
}

/// A request that ended. Each request that was taken ends exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request.
    pub id: RequestId,
    /// How it ended.
    pub status: Status,
    /// Which start of the target did it, where that is our shelf and tells: the boot number in its replies, the last one heard if they
    /// differ. What one start acknowledged and did not flush, another may lack.
    pub boot: Option<u32>,
}

/// Whether a flush of a device can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// As far as we know.
    Durable,
    /// No, and why.
    Volatile(VolatileReason),
}

/// Why a device is volatile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolatileReason {
    /// IDENTIFY says that there is no flush.
    NoFlush,
    /// It aborted its first flush.
    FlushAborted,
    /// It answered a flush with the opcode in the status register, without having looked at it (ggaoed).
    FlushIgnored,
    /// Its model is known to answer flushes without doing them (vblade, kvblade).
    KnownLiar,
}

/// What a target told about itself in a config reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The device.
    pub address: Address,
    /// The port on which the reply came.
    pub port: PortId,
    /// Where it came from.
    pub mac: MacAddr,
    /// Messages that the target can queue, as told.
    pub buffer_count: u16,
    /// Firmware version.
    pub firmware: u16,
    /// Most sectors per message.
    pub sectors_max: u8,
    /// Bytes of config string.
    pub config_len: u16,
    /// Whether the target spoke unasked.
    pub beacon: bool,
}

/// What was found out about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The device.
    pub device: DeviceId,
    /// Its IDENTIFY data.
    pub identify: Identify,
    /// Messages that it can queue, as told.
    pub buffer_count: u16,
    /// Most sectors per message that port and target allow; whether the network between does is found out later.
    pub sectors_max: u8,
    /// Whether its flushes can be relied on.
    pub durability: Durability,
}

/// What happened that is not a request's end.
///
/// Events about a device are states rather than a log: what changed back before it was polled is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A device that is not open answered a discovery, or announced itself. Only from an initiator that discovers.
    Seen(Seen),
    /// An open device answered IDENTIFY: requests are taken from now on.
    Found(Found),
    /// An open device can't be used, as its sectors have this many bytes and not 512.
    Unusable {
        /// The device.
        device: DeviceId,
        /// Bytes of its logical sectors.
        logical_sector: u32,
    },
    /// A request has gone unanswered for `aoe_silence`.
    Silent {
        /// The device.
        device: DeviceId,
    },
    /// A silent device answers again.
    Answers {
        /// The device.
        device: DeviceId,
    },
    /// A request has gone unanswered for `aoe_deadsecs`: all requests were ended, none is taken until the device is
    /// found again.
    Gone {
        /// The device.
        device: DeviceId,
    },
    /// The target restarted: what it had not flushed may be lost.
    Restarted {
        /// The device.
        device: DeviceId,
        /// Its new boot number, if it has such a number.
        boot: Option<u32>,
    },
    /// The target is reserved by somebody else.
    Fenced {
        /// The device.
        device: DeviceId,
    },
    /// The device's capacity is another one.
    SizeChanged {
        /// The device.
        device: DeviceId,
        /// Its capacity in sectors now.
        sectors: u64,
    },
    /// A flush showed that the device is volatile.
    DurabilityChanged {
        /// The device.
        device: DeviceId,
        /// What is known now.
        durability: Durability,
    },
    /// Another device, by its serial number, model or world wide name, claims the same shelf and slot. It is not used.
    Conflict {
        /// The device.
        device: DeviceId,
        /// The port on which the other one is.
        port: PortId,
        /// The other one's address.
        mac: MacAddr,
    },
    /// A path to a device is in use.
    PathUp {
        /// The device.
        device: DeviceId,
        /// The local end.
        port: PortId,
        /// The remote end.
        mac: MacAddr,
    },
    /// A path to a device is no longer used.
    PathDown {
        /// The device.
        device: DeviceId,
        /// The local end.
        port: PortId,
        /// The remote end.
        mac: MacAddr,
    },
    /// Another worker waits for a credit and was given one: wake it, so that it polls its initiator.
    CreditsFreed {
        /// The worker to wake.
        worker: WorkerId,
    },
}

/// Most bytes of header in a [`Transmit`].
pub const TRANSMIT_HEADER: usize = crate::wire::ATA_HEADER;

/// A frame to send: the header's bytes, then the payload's, then zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The port to send it on.
    pub port: PortId,
    /// The header, of which `header_len` bytes count.
    pub header: [u8; TRANSMIT_HEADER],
    /// Bytes of header.
    pub header_len: usize,
    /// Data to append.
    pub payload: Option<Payload>,
    /// Zeros to append after that, up to the smallest Ethernet frame.
    pub pad: usize,
}

/// Data of a write request to append to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The request, whose buffer has the data.
    pub id: RequestId,
    /// Bytes from the start of the buffer.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

/// Data that arrived for a request: to be copied to its buffer before any other call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived<'a> {
    /// The request, whose buffer gets the data.
    pub id: RequestId,
    /// Bytes from the start of the buffer.
    pub offset: usize,
    /// The data.
    pub data: &'a [u8],
}

/// Counters of one initiator, since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Frames sent, all copies and queries included.
    pub frames_sent: u64,
    /// Of those, copies after the first.
    pub retransmits: u64,
    /// Frames answered.
    pub frames_answered: u64,
    /// Bytes of data read.
    pub bytes_read: u64,
    /// Bytes of data written.
    pub bytes_written: u64,
    /// Replies whose tag is not outstanding: late, duplicated, or somebody else's.
    pub stray: u64,
    /// Replies whose tag is outstanding for another device or command.
    pub foreign: u64,
    /// Replies with fewer data than the request asked for.
    pub truncated: u64,
    /// Frames that are no AoE replies.
    pub malformed: u64,
    /// Replies to requests that had ended already (cancelled).
    pub late: u64,
    /// Writes that had to wait for an overlapping one or for closed sectors.
    pub writes_held: u64,
    /// Ranges of sectors that were closed.
    pub ranges_closed: u64,
    /// Config replies of devices that are not open, dropped because nobody polled for them.
    pub seen_dropped: u64,
    /// Config queries that were dropped because too many waited to be sent.
    pub queries_dropped: u64,
    /// Paths that were ignored because a device had too many.
    pub paths_dropped: u64,
}
