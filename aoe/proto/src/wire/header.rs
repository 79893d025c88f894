//! The common header: everything up to byte 24 of a frame.
//!
//! A frame with a whole header can always be answered, whatever follows, so this is parsed apart from the command's
//! own part.

use core::fmt;

use super::{AOE_HEADER, Address, ETHERTYPE, MIN_FRAME, MacAddr, Shelf, Slot, Tag, VERSION, be16};

/// Flag bit of a reply.
const FLAG_RESPONSE: u8 = 0x08;
/// Flag bit of a reply that reports an error.
const FLAG_ERROR: u8 = 0x04;

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The frame ends before the fixed part that its kind must have.
    #[error("frame too short")]
    Short,
    /// Another protocol's frame.
    #[error("not an AoE frame")]
    EtherType,
    /// A version that we do not speak.
    #[error("AoE version {0} not supported")]
    Version(u8),
    /// A count in the message says more than the frame holds, or more than the format allows.
    #[error("a count in the message exceeds the frame or the format")]
    Count,
}

/// An AoE command's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Command(pub u8);

impl Command {
    /// Issue an ATA command.
    pub const ATA: Command = Command(0);
    /// Query config information.
    pub const CONFIG: Command = Command(1);
    /// MAC mask list.
    pub const MASK: Command = Command(2);
    /// Reserve/release.
    pub const RESERVE: Command = Command(3);
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Command::ATA => f.write_str("ATA"),
            Command::CONFIG => f.write_str("CONFIG"),
            Command::MASK => f.write_str("MASK"),
            Command::RESERVE => f.write_str("RESERVE"),
            Command(other) => write!(f, "Command({other:#04x})"),
        }
    }
}

/// An AoE error code (not to be confused with ATA's error register).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AoeError(pub u8);

impl AoeError {
    /// Unrecognised command code.
    pub const COMMAND: AoeError = AoeError(1);
    /// Bad argument parameter.
    pub const ARGUMENT: AoeError = AoeError(2);
    /// Device unavailable.
    pub const UNAVAILABLE: AoeError = AoeError(3);
    /// Config string present: it was not set.
    pub const CONFIG_PRESENT: AoeError = AoeError(4);
    /// Unsupported version.
    pub const VERSION: AoeError = AoeError(5);
    /// The target is reserved by somebody else.
    pub const RESERVED: AoeError = AoeError(6);
}

impl fmt::Display for AoeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            AoeError::COMMAND => f.write_str("unrecognised command code"),
            AoeError::ARGUMENT => f.write_str("bad argument parameter"),
            AoeError::UNAVAILABLE => f.write_str("device unavailable"),
            AoeError::CONFIG_PRESENT => f.write_str("config string present"),
            AoeError::VERSION => f.write_str("unsupported version"),
            AoeError::RESERVED => f.write_str("target is reserved"),
            AoeError(other) => write!(f, "AoE error {other}"),
        }
    }
}

/// The common header of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Destination of the frame.
    pub dst: MacAddr,
    /// Source of the frame.
    pub src: MacAddr,
    /// Protocol version, 4 bits. 1 in all that we send; some targets say 0 in replies.
    pub version: u8,
    /// Set in replies.
    pub response: bool,
    /// The error that a reply reports.
    pub error: Option<AoeError>,
    /// The device; wildcards in requests only.
    pub address: Address,
    /// The command.
    pub command: Command,
    /// Copied from request to reply.
    pub tag: Tag,
}

impl Header {
    /// The header of a request.
    pub fn request(dst: MacAddr, src: MacAddr, address: Address, command: Command, tag: Tag) -> Header {
        Header { dst, src, version: VERSION, response: false, error: None, address, command, tag }
    }

    /// The header of the reply to `self` by the device `address` at the port `src`.
    pub fn reply(&self, src: MacAddr, address: Address, error: Option<AoeError>) -> Header {
        Header { dst: self.src, src, version: VERSION, response: true, error, address, ..*self }
    }

    /// The header, and what follows it.
    ///
    /// The version is not judged here, see [`Header::check_version`]; flag bits without a meaning are ignored.
    pub fn parse(frame: &[u8]) -> Result<(Header, &[u8]), ParseError> {
        let Some((head, arg)) = frame.split_first_chunk::<AOE_HEADER>() else {
            return Err(ParseError::Short);
        };
        if be16(head, 12) != ETHERTYPE {
            return Err(ParseError::EtherType);
        }
        let flags = head[14];
        let header = Header {
            dst: MacAddr([head[0], head[1], head[2], head[3], head[4], head[5]]),
            src: MacAddr([head[6], head[7], head[8], head[9], head[10], head[11]]),
            version: flags >> 4,
            response: flags & FLAG_RESPONSE != 0,
            error: (flags & FLAG_ERROR != 0).then_some(AoeError(head[15])),
            address: Address { shelf: Shelf(be16(head, 16)), slot: Slot(head[18]) },
            command: Command(head[19]),
            tag: Tag(u32::from_be_bytes([head[20], head[21], head[22], head[23]])),
        };
        Ok((header, arg))
    }

    /// Version 1 is spoken; version 0 passes in replies, because vblade's beacons have it.
    pub fn check_version(&self) -> Result<(), ParseError> {
        match self.version {
            VERSION => Ok(()),
            0 if self.response => Ok(()),
            other => Err(ParseError::Version(other)),
        }
    }

    /// Writes the 24 bytes of header and returns their number.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        buf[0..6].copy_from_slice(&self.dst.0);
        buf[6..12].copy_from_slice(&self.src.0);
        buf[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
        let response = if self.response { FLAG_RESPONSE } else { 0 };
        let error = if self.error.is_some() { FLAG_ERROR } else { 0 };
        buf[14] = self.version << 4 | response | error;
        buf[15] = self.error.map_or(0, |error| error.0);
        buf[16..18].copy_from_slice(&self.address.shelf.0.to_be_bytes());
        buf[18] = self.address.slot.0;
        buf[19] = self.command.0;
        buf[20..24].copy_from_slice(&self.tag.0.to_be_bytes());
        AOE_HEADER
    }
}

/// Fills up a frame of `len` bytes with zeros to the smallest Ethernet frame and returns the new length.
pub fn pad(buf: &mut [u8], len: usize) -> usize {
    if len < MIN_FRAME {
        buf[len..MIN_FRAME].fill(0);
    }
    len.max(MIN_FRAME)
}
