//! The NBD wire format: constants, and the parse and emit of each message that a server reads or writes.
//!
//! Called by the session. Everything is big endian and of fixed layout; nothing here keeps state, and nothing here allocates
//! except [`option_reply`], which appends to the caller's buffer. Numbers and names are those of the protocol text.

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

/// Largest payload of one READ or WRITE in bytes: the maximum block size that we advertise, and the one that the protocol lets a
/// client assume when it was told nothing.
pub const MAX_PAYLOAD: u32 = 32 << 20;
/// Longest string of the protocol, in bytes.
pub const MAX_STRING: usize = 4096;
/// Zero bytes that follow the answer to EXPORT_NAME unless both sides agreed to leave them out.
pub const EXPORT_NAME_PADDING: usize = 124;

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
    /// FLUSH and FUA reach over all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
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
}

/// Option reply types.
pub mod option_reply_type {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One piece of information.
    pub const INFO: u32 = 3;
    /// Option unknown.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// Option malformed.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// Option data longer than the server takes.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
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
    /// Make the range read as zeroes.
    pub const WRITE_ZEROES: u16 = 6;
}

/// Command flags of a request.
pub mod command_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES must not make a hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Reply to READ in one chunk.
    pub const DF: u16 = 1 << 2;
}

/// Structured reply chunk types.
pub mod chunk_type {
    /// Data with their offset.
    pub const OFFSET_DATA: u16 = 1;
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
        let (len, rest) = data.split_first_chunk::<4>()?;
        let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
        let (name, rest) = rest.split_at_checked(len)?;
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

/// Head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHead {
    /// Bits of [`command_flag`].
    pub flags: u16,
    /// One of [`command`], or unknown.
    pub command: u16,
    /// The client's name for the request; returned in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes; for a WRITE also the payload that follows.
    pub len: u32,
}

impl RequestHead {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Parses a head.
    ///
    /// # Errors
    /// The magic is not that of a request.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, BadMagic> {
        match be32(bytes, 0) {
            REQUEST_MAGIC => Ok(Self {
                flags: be16(bytes, 4),
                command: be16(bytes, 6),
                cookie: be64(bytes, 8),
                offset: be64(bytes, 16),
                len: be32(bytes, 24),
            }),
            other => Err(BadMagic(u64::from(other))),
        }
    }

    /// The bytes on the wire.
    pub fn emit(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

/// Head of a reply, ready to be sent; the data of a successful READ follow it from the request's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHead {
    bytes: [u8; Self::MAX_LEN],
    len: u8,
}

impl ReplyHead {
    /// Bytes of the longest head: a data chunk with its offset.
    pub const MAX_LEN: usize = 28;

    fn new(parts: &[&[u8]]) -> Self {
        let mut head = Self { bytes: [0; Self::MAX_LEN], len: 0 };
        let mut at = 0;
        for part in parts {
            head.bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        head.len = u8::try_from(at).expect("MAX_LEN fits in a byte");
        head
    }

    /// A simple reply; `None` is success.
    pub fn simple(cookie: u64, error: Option<NbdError>) -> Self {
        let code = error.map_or(0, NbdError::code);
        Self::new(&[&SIMPLE_REPLY_MAGIC.to_be_bytes(), &code.to_be_bytes(), &cookie.to_be_bytes()])
    }

    fn chunk(chunk_type: u16, cookie: u64, len: u32, payload: [&[u8]; 2]) -> Self {
        Self::new(&[
            &STRUCTURED_REPLY_MAGIC.to_be_bytes(),
            &CHUNK_DONE.to_be_bytes(),
            &chunk_type.to_be_bytes(),
            &cookie.to_be_bytes(),
            &len.to_be_bytes(),
            payload[0],
            payload[1],
        ])
    }

    /// The only chunk of a successful structured READ: `len` data bytes follow. `len` is at most [`MAX_PAYLOAD`].
    pub fn data(cookie: u64, offset: u64, len: u32) -> Self {
        assert!(len <= MAX_PAYLOAD, "a READ is bounded");
        Self::chunk(chunk_type::OFFSET_DATA, cookie, len + 8, [&offset.to_be_bytes(), &[]])
    }

    /// The only chunk of a failed structured READ, with an empty message.
    pub fn error(cookie: u64, error: NbdError) -> Self {
        Self::chunk(chunk_type::ERROR, cookie, 6, [&error.code().to_be_bytes(), &0u16.to_be_bytes()])
    }

    /// The bytes to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests;
