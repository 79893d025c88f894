//! One client's session as a value: bytes in, requests out, reply heads back.
//!
//! The connection shell calls it and moves the bytes; the session has no clock and no descriptor. The shell reads into
//! [`Session::room`], tells [`Session::received`], and calls [`Session::poll`] until it answers [`Event::Read`]; bytes of
//! [`Session::output`] are to be sent before any reply.
//!
//! ```text
//!   handshake ── EXPORT_NAME, GO ──> transmission ── DISC, end of stream, fault, stop ──> closing
//! ```
//!
//! **Payload without a copy.** When a good WRITE's head has been read, `poll` answers [`Event::Payload`]: the shell gives the request a
//! buffer, takes what was read ahead ([`Session::take_payload`], under two kilobytes) and reads the rest straight into the
//! buffer ([`Session::payload_received`]). A refused WRITE's payload is swallowed here before it is refused.
//!
//! **Slots.** Each request holds a [`Slot`] from its head until its reply has left ([`Session::release`]), so replies that a client
//! does not read count too. [`MAX_IN_FLIGHT`] slots and [`MAX_IN_FLIGHT_BYTES`] bound what a client can hold; when they are
//! used up `poll` answers [`Event::Full`] and nothing more is read.
//!
//! Invariants, asserted in release builds: a slot is submitted once, replied to once, released once. Any order of replies is
//! good. Whatever the client sends, the session neither panics nor keeps more than the bounds below.

mod check;
mod handshake;
mod slots;

use super::backend::ExportInfo;
use super::proto::{self, Headers, NbdError, ReplyHead, ReplyTo, RequestHead, command, transmission_flag};
pub use slots::Slot;
use slots::{Carries, Slots};

/// Requests that one connection may have accepted and not yet answered.
pub const MAX_IN_FLIGHT: usize = 128;
/// Data bytes of those requests. Two of the largest transfers, so that one can be read while another is under way.
pub const MAX_IN_FLIGHT_BYTES: u64 = 2 * proto::MAX_PAYLOAD as u64;
/// Longest option that is looked at, in bytes of data: a name and a list of information types.
pub const MAX_OPTION_DATA: usize = 8192;
/// Longest option that is swallowed and answered with ERR_TOO_BIG; beyond it the session ends.
pub const MAX_OPTION_SWALLOW: u32 = 1 << 20;
/// Options that a client may send before it starts.
pub const MAX_OPTIONS: u32 = 1024;

/// Room for read-ahead: the longest option, or many request heads.
const INPUT_BYTES: usize = MAX_OPTION_DATA + proto::OptionHead::LEN;
/// Heads to read ahead after a request that had no payload: one plug.
const HEADS_AHEAD: usize = 64;
/// The server's name for the context `base:allocation`.
const BASE_ALLOCATION_ID: u32 = 1;
/// Its status of all extents: data, neither a hole nor known to be zero.
const ALLOCATED: u32 = 0;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Read.
    Read,
    /// Write, payload in the buffer.
    Write,
    /// Flush; no range.
    Flush,
    /// The range is no longer needed.
    Trim,
    /// Make the range read as zeroes.
    WriteZeroes,
    /// Read soon. Nothing is read ahead.
    Cache,
    /// Tell what is allocated. All is.
    BlockStatus,
}

/// A request that passed every check: aligned to the minimum block, within the export, READ and WRITE at most
/// [`proto::MAX_PAYLOAD`] long. TRIM and WRITE_ZEROES may be as long as the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Its place in the table, unique until released.
    pub slot: Slot,
    /// What to do.
    pub command: Command,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 for FLUSH alone.
    pub len: u64,
    /// Durable before the reply.
    pub fua: bool,
}

/// What the session wants of its shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// More bytes: read into [`Session::room`].
    Read,
    /// The payload of this write is next, `left` bytes of it. Repeated until all has been taken.
    Payload {
        /// The write; not to be submitted yet.
        request: Request,
        /// Bytes still to come.
        left: u32,
    },
    /// The client has chosen the export, and requests may follow. Told once.
    Started,
    /// A whole request for the array. Told once.
    Submit(Request),
    /// A request that needs nothing of the array, one that failed its checks among them: reply with this. Told once.
    Answer(Slot, Result<(), NbdError>),
    /// A bound is reached: release a slot, or send output, first.
    Full,
    /// Nothing more will be read. What is in flight is still to be replied to.
    Close(CloseReason),
}

/// Why a session reads no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client said DISC.
    #[error("client disconnected")]
    Disconnect,
    /// The client said ABORT.
    #[error("client aborted the negotiation")]
    Abort,
    /// The stream ended without DISC.
    #[error("client closed the connection without a disconnect request")]
    Eof,
    /// The server is stopping and negotiation had not ended.
    #[error("server is stopping")]
    Stopped,
    /// The client asked for an export that does not exist, in the way that has no error reply.
    #[error("client asked for an unknown export")]
    UnknownExport,
    /// Client flags that were not offered.
    #[error("client sent unknown flags {0:#x}")]
    ClientFlags(u32),
    /// A message with the wrong magic.
    #[error("client sent garbage: {0}")]
    BadMagic(proto::BadMagic),
    /// An option longer than [`MAX_OPTION_SWALLOW`].
    #[error("client sent an option of {0} bytes")]
    OptionLength(u32),
    /// More than [`MAX_OPTIONS`] options, or an option that the style which was negotiated lacks.
    #[error("client sent an option out of turn")]
    OptionOutOfTurn,
    /// An extended request with a payload longer than [`proto::MAX_PAYLOAD`].
    #[error("client announced a payload of {0} bytes")]
    PayloadLength(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The four bytes of client flags are next.
    ClientFlags,
    /// An option's head is next.
    OptionHead,
    /// An option's data are next.
    OptionData(proto::OptionHead),
    /// An option that is too long is being swallowed.
    OptionSwallow { code: u32, left: u32 },
    /// The start of transmission is to be told.
    Started,
    /// A request's head is next.
    Head,
    /// A good write's payload is next.
    Payload { request: Request, left: u32 },
    /// A refused write's payload is being swallowed.
    Swallow { slot: Slot, error: NbdError, left: u32 },
    /// Nothing is next.
    Closing(CloseReason),
}

/// One client's session.
#[derive(Debug)]
pub struct Session {
    export: ExportInfo,
    phase: Phase,
    /// Bytes read and not yet used: `input[start..end]`.
    input: Box<[u8]>,
    start: usize,
    end: usize,
    /// How far [`Session::room`] reaches.
    lookahead: usize,
    /// Handshake bytes to send; empty in transmission once they have left.
    output: Vec<u8>,
    /// Options seen so far.
    options: u32,
    /// The client set the fixed newstyle flag.
    fixed: bool,
    /// The client wants no padding after EXPORT_NAME.
    no_zeroes: bool,
    /// The form of requests and replies.
    headers: Headers,
    /// BLOCK_STATUS tells of `base:allocation`.
    allocation: bool,
    /// New requests are refused.
    stopping: bool,
    slots: Slots,
}

impl Session {
    /// A session that begins with the greeting in [`Session::output`].
    ///
    /// # Panics
    /// When `export` does not pass [`ExportInfo::check`].
    pub fn new(export: ExportInfo) -> Self {
        assert_eq!(export.check(), Ok(()), "the server checks what it exports");
        let flags = proto::handshake_flag::FIXED_NEWSTYLE | proto::handshake_flag::NO_ZEROES;
        Self {
            export,
            phase: Phase::ClientFlags,
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            lookahead: INPUT_BYTES,
            output: proto::greeting(flags).to_vec(),
            options: 0,
            fixed: false,
            no_zeroes: false,
            headers: Headers::Simple,
            allocation: false,
            stopping: false,
            slots: Slots::new(),
        }
    }

    /// Where to read the next bytes. Never empty after [`Event::Read`] or [`Event::Payload`].
    ///
    /// After a WRITE it holds only one head, so that the payload that follows goes straight into its buffer.
    pub fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let end = match self.phase {
            Phase::Swallow { .. } => self.input.len(),
            _ => self.lookahead.max(self.end),
        };
        &mut self.input[self.end..end]
    }

    /// `n` bytes were read into [`Session::room`].
    ///
    /// # Panics
    /// When `n` exceeds the room that was given.
    pub fn received(&mut self, n: usize) {
        assert!(n <= self.input.len() - self.end, "no more was read than there was room");
        self.end += n;
    }

    /// Handshake bytes to send, before any reply.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// The first `n` bytes of [`Session::output`] have left.
    pub fn output_sent(&mut self, n: usize) {
        self.output.drain(..n);
    }

    /// Whether requests may come.
    pub fn is_transmission(&self) -> bool {
        matches!(self.phase, Phase::Started | Phase::Head | Phase::Payload { .. } | Phase::Swallow { .. })
    }

    /// Why nothing more is read, once that is so.
    pub fn closing(&self) -> Option<CloseReason> {
        match self.phase {
            Phase::Closing(reason) => Some(reason),
            _ => None,
        }
    }

    /// Requests that hold a slot.
    pub fn in_use(&self) -> usize {
        self.slots.in_use()
    }

    /// What to do next.
    pub fn poll(&mut self) -> Event {
        loop {
            let event = match self.phase {
                Phase::ClientFlags | Phase::OptionHead | Phase::OptionData(_) | Phase::OptionSwallow { .. } => {
                    self.poll_handshake()
                }
                Phase::Started => {
                    self.phase = Phase::Head;
                    Some(Event::Started)
                }
                Phase::Head => self.poll_head(),
                Phase::Payload { request, left: 0 } => {
                    self.phase = Phase::Head;
                    self.slots.submit(request.slot);
                    Some(Event::Submit(request))
                }
                Phase::Payload { request, left } => Some(Event::Payload { request, left }),
                Phase::Swallow { slot, error, left } => self.poll_swallow(slot, error, left),
                Phase::Closing(reason) => Some(Event::Close(reason)),
            };
            if let Some(event) = event {
                return event;
            }
        }
    }

    /// Moves payload that was read ahead into `buf`, the part of the buffer that is still to be filled; returns the bytes moved.
    pub fn take_payload(&mut self, buf: &mut [u8]) -> usize {
        let Phase::Payload { left, .. } = &mut self.phase else {
            return 0;
        };
        let n = buf.len().min(self.end - self.start).min(*left as usize);
        buf[..n].copy_from_slice(&self.input[self.start..self.start + n]);
        self.start += n;
        // `n` is at most `left`, so it fits.
        *left -= n as u32;
        n
    }

    /// `n` bytes of payload were read straight into the buffer. Only after [`Session::take_payload`] has left nothing behind.
    ///
    /// # Panics
    /// When no payload, or less of it, was expected, or bytes that came earlier are still here.
    pub fn payload_received(&mut self, n: u32) {
        assert_eq!(self.start, self.end, "bytes that came earlier go first");
        match &mut self.phase {
            Phase::Payload { left, .. } if n <= *left => *left -= n,
            phase => panic!("{n} bytes of payload in {phase:?}"),
        }
    }

    /// The stream has ended or broken. A request that had not been read whole is forgotten; its buffer is the shell's to drop.
    pub fn end_of_stream(&mut self) {
        self.close(CloseReason::Eof);
    }

    /// From now on requests are refused with [`NbdError::Shutdown`]. A write whose payload had not been read whole is among
    /// them: its buffer is the shell's to drop. A session that had not reached transmission closes.
    pub fn stop(&mut self) {
        self.stopping = true;
        match self.phase {
            Phase::Started | Phase::Head | Phase::Swallow { .. } | Phase::Closing(_) => {}
            Phase::Payload { request, left } => {
                self.phase = Phase::Swallow { slot: request.slot, error: NbdError::Shutdown, left };
            }
            _ => self.close(CloseReason::Stopped),
        }
    }

    /// The head of the reply, and how many bytes of the request's buffer follow it.
    ///
    /// # Panics
    /// When the slot was not submitted or refused, or was replied to before.
    pub fn reply(&mut self, slot: Slot, result: Result<(), NbdError>) -> (ReplyHead, u32) {
        let entry = self.slots.reply(slot, result.is_ok());
        let carries = entry.carries != Carries::Nothing;
        let to = ReplyTo { headers: self.headers, cookie: entry.cookie, offset: entry.offset, carries };
        match (result, entry.carries) {
            (Err(error), _) => (ReplyHead::error(to, error), 0),
            (Ok(()), Carries::Nothing) => (ReplyHead::done(to), 0),
            (Ok(()), Carries::Extent) => (ReplyHead::extent(to, BASE_ALLOCATION_ID, entry.len, ALLOCATED), 0),
            (Ok(()), Carries::Data) => {
                let len = u32::try_from(entry.len).expect("a READ is bounded");
                (ReplyHead::data(to, len), len)
            }
        }
    }

    /// The reply has left, or never will.
    ///
    /// # Panics
    /// When the slot was not replied to, or was released before.
    pub fn release(&mut self, slot: Slot) {
        self.slots.release(slot);
    }

    fn close(&mut self, reason: CloseReason) {
        match self.phase {
            Phase::Closing(_) => return,
            Phase::Payload { request, .. } => self.slots.abandon(request.slot),
            Phase::Swallow { slot, .. } => self.slots.abandon(slot),
            _ => {}
        }
        self.phase = Phase::Closing(reason);
    }

    /// The next `N` bytes, if that many have come; they stay.
    fn peek<const N: usize>(&self) -> Option<[u8; N]> {
        self.input[self.start..self.end].first_chunk::<N>().copied()
    }

    /// Uses up to `left` bytes for nothing; returns what is left then.
    fn swallow(&mut self, left: u32) -> u32 {
        let n = (self.end - self.start).min(left as usize);
        self.start += n;
        // `n` is at most `left`, so it fits.
        left - n as u32
    }

    fn poll_swallow(&mut self, slot: Slot, error: NbdError, left: u32) -> Option<Event> {
        let left = self.swallow(left);
        if left > 0 {
            self.phase = Phase::Swallow { slot, error, left };
            return Some(Event::Read);
        }
        self.phase = Phase::Head;
        self.slots.submit(slot);
        Some(Event::Answer(slot, Err(error)))
    }

    fn poll_head(&mut self) -> Option<Event> {
        let head = match RequestHead::parse(self.headers, &self.input[self.start..self.end]) {
            None => return Some(Event::Read),
            Some(Ok(head)) => head,
            Some(Err(magic)) => {
                self.close(CloseReason::BadMagic(magic));
                return None;
            }
        };
        if head.command == command::DISC {
            self.close(CloseReason::Disconnect);
            return None;
        }
        let payload = head.payload(self.headers);
        if self.headers == Headers::Extended && payload > u64::from(proto::MAX_PAYLOAD) {
            self.close(CloseReason::PayloadLength(payload));
            return None;
        }
        let payload = u32::try_from(payload).expect("32 bits on the wire, or just checked");
        let checked = if self.stopping { Err(NbdError::Shutdown) } else { self.check(&head) };
        let moved = match checked {
            Ok((Command::Read | Command::Write, _)) => u32::try_from(head.len).expect("checked to be bounded"),
            _ => 0,
        };
        // The head stays in the buffer while there is no slot for it.
        let Some(slot) = self.slots.accept(&head, moved) else {
            return Some(Event::Full);
        };
        self.start += RequestHead::wire_len(self.headers);
        self.lookahead = if payload > 0 { RequestHead::wire_len(self.headers) } else { self.heads_ahead() };
        match checked {
            Ok((command, fua)) => self.accepted(slot, command, &head, fua),
            Err(error) => {
                self.phase = Phase::Swallow { slot, error, left: payload };
                None
            }
        }
    }

    /// A request that passed its checks.
    fn accepted(&mut self, slot: Slot, command: Command, head: &RequestHead, fua: bool) -> Option<Event> {
        // A flush has no range: what the fields hold means nothing.
        let (offset, len) = if command == Command::Flush { (0, 0) } else { (head.offset, head.len) };
        let request = Request { slot, command, offset, len, fua };
        if command == Command::Write {
            let left = u32::try_from(len).expect("checked to be bounded");
            self.phase = Phase::Payload { request, left };
            return None;
        }
        self.slots.submit(slot);
        Some(match command {
            Command::Cache | Command::BlockStatus => Event::Answer(slot, Ok(())),
            _ => Event::Submit(request),
        })
    }

    fn heads_ahead(&self) -> usize {
        HEADS_AHEAD * RequestHead::wire_len(self.headers)
    }

    fn transmission_flags(&self) -> u16 {
        let mut flags = transmission_flag::HAS_FLAGS
            | transmission_flag::SEND_FLUSH
            | transmission_flag::SEND_FUA
            | transmission_flag::SEND_TRIM
            | transmission_flag::SEND_WRITE_ZEROES
            | transmission_flag::CAN_MULTI_CONN
            | transmission_flag::SEND_CACHE;
        if self.headers != Headers::Simple {
            // A READ has one chunk anyway.
            flags |= transmission_flag::SEND_DF;
        }
        if self.export.read_only {
            flags |= transmission_flag::READ_ONLY;
        }
        flags
    }
}

#[cfg(test)]
mod tests;
