//! The NBD wire format: constants, and the parse and emit of each message that a server reads or writes.
//!
//! Called by the session. Everything is big endian and of fixed layout; nothing here keeps state, and nothing here allocates
//! except [`option_reply`], which appends to the caller's buffer. Numbers and names are those of the protocol text, extended headers
//! those of its extension of that name. Here are constants and negotiation; requests and replies are in `message`.

mod message;

pub use message::{Headers, ReplyHead, ReplyTo, RequestHead, SimpleReply};

/// First eight bytes of the server's greeting: `NBDMAGIC`.
pub const NBDMAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Second eight bytes of the greeting, and the magic of each option: `IHAVEOPT`.
pub const IHAVEOPT: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// Magic of each option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Magic of a request with an extended header.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Magic of a reply chunk with an extended header.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Largest payload of one READ or WRITE in bytes: the maximum block size that we advertise, and the one that the protocol lets a
/// client assume when it was told nothing.
pub const MAX_PAYLOAD: u32 = 32 << 20;
/// Longest string of the protocol, in bytes.
pub const MAX_STRING: usize = 4096;
/// Zero bytes that follow the answer to EXPORT_NAME unless both sides agreed to leave them out.
pub const EXPORT_NAME_PADDING: usize = 124;
/// The one metadata context: what is allocated and what reads as zeroes.
pub const BASE_ALLOCATION: &[u8] = b"base:allocation";
/// Its namespace: a query for everything in it.
pub const BASE_NAMESPACE: &[u8] = b"base:";

/// Handshake flags, server to client.
pub mod handshake_flag {
    /// The server speaks fixed newstyle.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The server can leave out the padding after EXPORT_NAME.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Client flags, the answer to the handshake flags.
pub mod client_flag {
    /// The client speaks fixed newstyle.
    pub const FIXED_NEWSTYLE: u32 = 1 << 0;
    /// The client wants no padding after EXPORT_NAME.
    pub const NO_ZEROES: u32 = 1 << 1;
}

/// Transmission flags: what the export can do.
pub mod transmission_flag {
    /// The other flags mean something.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is known.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA command flag is known.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is known.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES is known.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF command flag is known.
    pub const SEND_DF: u16 = 1 << 7;
    /// FLUSH and FUA reach over all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is known.
    pub const SEND_CACHE: u16 = 1 << 10;
}

/// Option codes.
pub mod option {
    /// Choose the export and start, old way: no error reply is possible.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and start.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose the metadata contexts that BLOCK_STATUS tells of.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use extended headers: 64-bit lengths, every reply in chunks.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Option reply types.
pub mod option_reply_type {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One piece of information.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Option unknown.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// Option malformed.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// Option data longer than the server takes.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
    /// Extended headers have been agreed on, and take precedence.
    pub const ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;
}

/// Information types of INFO and GO.
pub mod info {
    /// Size and transmission flags; always sent.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// Text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Request types.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the payload follows the request.
    pub const WRITE: u16 = 1;
    /// Disconnect; has no reply.
    pub const DISC: u16 = 2;
    /// Flush.
    pub const FLUSH: u16 = 3;
    /// The data are no longer needed.
    pub const TRIM: u16 = 4;
    /// The data will be read soon.
    pub const CACHE: u16 = 5;
    /// Make the range read as zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Tell of the metadata contexts that were chosen.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags of a request.
pub mod command_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES must not make a hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Reply to READ in one chunk.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS: tell of one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// With extended headers: a payload of as many bytes as the length says follows.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Structured reply chunk types.
pub mod chunk_type {
    /// Nothing: success without data.
    pub const NONE: u16 = 0;
    /// Data with their offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents of a metadata context, with 32-bit lengths.
    pub const BLOCK_STATUS: u16 = 5;
    /// Extents of a metadata context, with 64-bit lengths.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// Error without an offset.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// Chunk flag: the last chunk of a reply.
pub const CHUNK_DONE: u16 = 1 << 0;

/// Errors of the protocol. The discriminant is the number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum NbdError {
    /// Write to a read-only export.
    Perm = 1,
    /// Input or output error.
    Io = 5,
    /// Malformed or out of range.
    Invalid = 22,
    /// Write beyond the end, or no room.
    NoSpace = 28,
    /// The server is stopping.
    Shutdown = 108,
}

impl NbdError {
    /// The number on the wire.
    pub fn code(self) -> u32 {
        self as u32
    }
}

/// A message began with the wrong magic: the stream is out of step and cannot be used further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("wrong magic {0:#x}")]
pub struct BadMagic(pub u64);

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

/// The server's first message: 18 bytes.
pub fn greeting(flags: u16) -> [u8; 18] {
    let mut bytes = [0; 18];
    bytes[0..8].copy_from_slice(&NBDMAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&IHAVEOPT.to_be_bytes());
    bytes[16..18].copy_from_slice(&flags.to_be_bytes());
    bytes
}

/// Head of an option: code and length of the data that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHead {
    /// One of [`option`], or unknown.
    pub code: u32,
    /// Data bytes that follow.
    pub len: u32,
}

impl OptionHead {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Parses a head.
    ///
    /// # Errors
    /// The magic is not `IHAVEOPT`.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, BadMagic> {
        match be64(bytes, 0) {
            IHAVEOPT => Ok(Self { code: be32(bytes, 8), len: be32(bytes, 12) }),
            other => Err(BadMagic(other)),
        }
    }

    /// The bytes on the wire.
    pub fn emit(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..8].copy_from_slice(&IHAVEOPT.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.code.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

/// Data of INFO and GO, borrowed from the option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// The export's name as sent; any bytes.
    pub name: &'a [u8],
    /// The wanted information types, two bytes each.
    types: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// Parses the data of the option; `None` when lengths and counts do not add up.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let (name, rest) = string(data)?;
        let (count, types) = rest.split_first_chunk::<2>()?;
        if types.len() != usize::from(u16::from_be_bytes(*count)) * 2 {
            return None;
        }
        Some(Self { name, types })
    }

    /// Whether the client asked for this information type.
    pub fn wants(&self, wanted: u16) -> bool {
        self.types.chunks_exact(2).any(|t| be16(t, 0) == wanted)
    }
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT, borrowed from the option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// The export's name as sent; any bytes.
    pub name: &'a [u8],
    /// Length and bytes of each query; checked.
    queries: &'a [u8],
}

impl<'a> MetaRequest<'a> {
    /// Parses the data of the option; `None` when lengths and counts do not add up.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let (name, rest) = string(data)?;
        let (count, queries) = rest.split_first_chunk::<4>()?;
        let mut rest = queries;
        // Each query takes four bytes at least, so a count that is too large ends soon.
        for _ in 0..u32::from_be_bytes(*count) {
            (_, rest) = string(rest)?;
        }
        rest.is_empty().then_some(Self { name, queries })
    }

    /// The queries in the order sent; any bytes.
    pub fn queries(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.queries;
        std::iter::from_fn(move || {
            let (query, after) = string(rest)?;
            rest = after;
            Some(query)
        })
    }
}

/// A string with its length before it, and what follows.
fn string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = data.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_be_bytes(*len)).ok()?)
}

/// Appends an option reply whose data are the concatenation of `parts`.
pub fn option_reply(out: &mut Vec<u8>, code: u32, reply_type: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let len = u32::try_from(len).expect("option replies carry at most two bounded strings");
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(&reply_type.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests;
