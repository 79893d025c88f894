//! Requests and heads of replies, in each of the forms that can be negotiated.

use super::{
    BadMagic, CHUNK_DONE, EXTENDED_REPLY_MAGIC, EXTENDED_REQUEST_MAGIC, MAX_PAYLOAD, NbdError, REQUEST_MAGIC,
    SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, be16, be32, be64, chunk_type, command, command_flag,
};

/// The form of messages in transmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Headers {
    /// Simple replies alone.
    Simple,
    /// READ and BLOCK_STATUS are replied to in structured chunks.
    Structured,
    /// Requests have 64-bit lengths, and every reply is a chunk.
    Extended,
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
    /// Bytes; 32 bits of them without extended headers.
    pub len: u64,
}

impl RequestHead {
    /// Bytes on the wire.
    pub const LEN: usize = 28;
    /// Bytes on the wire of an extended header.
    pub const EXTENDED_LEN: usize = 32;

    /// Bytes on the wire in this form.
    pub fn wire_len(headers: Headers) -> usize {
        match headers {
            Headers::Simple | Headers::Structured => Self::LEN,
            Headers::Extended => Self::EXTENDED_LEN,
        }
    }

    /// Parses a head from the beginning of `bytes`; `None` when it has not come whole.
    ///
    /// # Errors
    /// The magic is not that of a request in this form.
    pub fn parse(headers: Headers, bytes: &[u8]) -> Option<Result<Self, BadMagic>> {
        let bytes = bytes.get(..Self::wire_len(headers))?;
        let (magic, len) = match headers {
            Headers::Simple | Headers::Structured => (REQUEST_MAGIC, u64::from(be32(bytes, 24))),
            Headers::Extended => (EXTENDED_REQUEST_MAGIC, be64(bytes, 24)),
        };
        let found = be32(bytes, 0);
        if found != magic {
            return Some(Err(BadMagic(u64::from(found))));
        }
        let (flags, command) = (be16(bytes, 4), be16(bytes, 6));
        Some(Ok(Self { flags, command, cookie: be64(bytes, 8), offset: be64(bytes, 16), len }))
    }

    /// The bytes on the wire.
    ///
    /// # Panics
    /// When the length does not fit in the form.
    pub fn emit(self, headers: Headers) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::EXTENDED_LEN);
        let magic = if headers == Headers::Extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        bytes.extend(magic.to_be_bytes());
        bytes.extend(self.flags.to_be_bytes());
        bytes.extend(self.command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(self.offset.to_be_bytes());
        match headers {
            Headers::Extended => bytes.extend(self.len.to_be_bytes()),
            _ => bytes.extend(u32::try_from(self.len).expect("a length of 32 bits").to_be_bytes()),
        }
        bytes
    }

    /// Bytes of payload that follow the head.
    ///
    /// With extended headers the text wants PAYLOAD_LEN on every WRITE. qemu 10 sends the payload and no flag, so a WRITE has one
    /// either way.
    pub fn payload(&self, headers: Headers) -> u64 {
        let flagged = headers == Headers::Extended && self.flags & command_flag::PAYLOAD_LEN != 0;
        if flagged || self.command == command::WRITE { self.len } else { 0 }
    }
}

/// A simple reply, as clients take it; the data of a successful READ follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimpleReply {
    /// The request's cookie.
    pub cookie: u64,
    /// NBD's error number, 0 for none.
    pub error: u32,
}

impl SimpleReply {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Parses a reply.
    ///
    /// # Errors
    /// The magic is not that of a simple reply.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, BadMagic> {
        match be32(bytes, 0) {
            SIMPLE_REPLY_MAGIC => Ok(Self { cookie: be64(bytes, 8), error: be32(bytes, 4) }),
            other => Err(BadMagic(u64::from(other))),
        }
    }
}

/// What a reply answers, and in which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyTo {
    /// The form that was negotiated.
    pub headers: Headers,
    /// The request's cookie.
    pub cookie: u64,
    /// The request's offset.
    pub offset: u64,
    /// The request is one whose reply may carry something: READ or BLOCK_STATUS.
    pub carries: bool,
}

/// Head of a reply, ready to be sent; the data of a successful READ follow it from the request's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHead {
    bytes: [u8; Self::MAX_LEN],
    len: u8,
}

impl ReplyHead {
    /// Bytes of the longest head: an extended one with an extent.
    pub const MAX_LEN: usize = 56;

    fn empty() -> Self {
        Self { bytes: [0; Self::MAX_LEN], len: 0 }
    }

    fn push(&mut self, part: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + part.len()].copy_from_slice(part);
        self.len = u8::try_from(at + part.len()).expect("MAX_LEN fits in a byte");
    }

    fn simple(cookie: u64, code: u32) -> Self {
        let mut head = Self::empty();
        head.push(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        head.push(&code.to_be_bytes());
        head.push(&cookie.to_be_bytes());
        head
    }

    /// The only chunk of a reply; `len` bytes of payload follow what is here.
    fn chunk(to: ReplyTo, chunk_type: u16, len: u32) -> Self {
        let mut head = Self::empty();
        let extended = to.headers == Headers::Extended;
        let magic = if extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
        head.push(&magic.to_be_bytes());
        head.push(&CHUNK_DONE.to_be_bytes());
        head.push(&chunk_type.to_be_bytes());
        head.push(&to.cookie.to_be_bytes());
        if extended {
            head.push(&to.offset.to_be_bytes());
            head.push(&u64::from(len).to_be_bytes());
        } else {
            head.push(&len.to_be_bytes());
        }
        head
    }

    /// Success of a request whose reply carries nothing.
    pub fn done(to: ReplyTo) -> Self {
        match to.headers {
            Headers::Simple | Headers::Structured => Self::simple(to.cookie, 0),
            Headers::Extended => Self::chunk(to, chunk_type::NONE, 0),
        }
    }

    /// A failure, with an empty message where there is room for one.
    pub fn error(to: ReplyTo, error: NbdError) -> Self {
        if to.headers == Headers::Simple || (to.headers == Headers::Structured && !to.carries) {
            return Self::simple(to.cookie, error.code());
        }
        let mut head = Self::chunk(to, chunk_type::ERROR, 6);
        head.push(&error.code().to_be_bytes());
        head.push(&0u16.to_be_bytes());
        head
    }

    /// Success of a READ: `len` data bytes follow, at most [`MAX_PAYLOAD`].
    pub fn data(to: ReplyTo, len: u32) -> Self {
        assert!(len <= MAX_PAYLOAD, "a READ is bounded");
        if to.headers == Headers::Simple {
            return Self::simple(to.cookie, 0);
        }
        let mut head = Self::chunk(to, chunk_type::OFFSET_DATA, len + 8);
        head.push(&to.offset.to_be_bytes());
        head
    }

    /// Success of a BLOCK_STATUS: one extent that begins at the request's offset, with these status flags.
    ///
    /// # Panics
    /// When only simple replies were negotiated, or the length does not fit in the form: such requests are refused.
    pub fn extent(to: ReplyTo, context: u32, len: u64, status: u32) -> Self {
        let mut head;
        match to.headers {
            Headers::Simple => panic!("BLOCK_STATUS needs chunks"),
            Headers::Structured => {
                head = Self::chunk(to, chunk_type::BLOCK_STATUS, 12);
                head.push(&context.to_be_bytes());
                head.push(&u32::try_from(len).expect("a length of 32 bits").to_be_bytes());
                head.push(&status.to_be_bytes());
            }
            Headers::Extended => {
                head = Self::chunk(to, chunk_type::BLOCK_STATUS_EXT, 24);
                head.push(&context.to_be_bytes());
                head.push(&1u32.to_be_bytes());
                head.push(&len.to_be_bytes());
                head.push(&u64::from(status).to_be_bytes());
            }
        }
        head
    }

    /// The bytes to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}
