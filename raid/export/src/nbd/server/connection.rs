//! One connection whose client has chosen the export: its socket, and what it has in the array.
//!
//! Runs on the connection's thread. The loop collects what the array has replied, sends, reads and submits, and then waits for whatever can change that.
//!
//! **Plug.** Requests are submitted under a plug that ends when no complete request is left to read, at [`PLUG_BYTES`], or at
//! [`PLUG_REQUESTS`]. A payload that would carry the plug over [`PLUG_BYTES`] ends it before it is read.
//!
//! Invariants: a submitted request is replied to before the thread ends, whatever the client does; a write is submitted only when its
//! payload has come whole. A short read means that the socket is empty, so no call is spent on being told so.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};

use super::Shared;
use super::metered::{Metered, MeteredBuf};
use super::outbox::Outbox;
use super::patience::Patience;
use crate::nbd::backend::{Backend, MAX_TRANSFER, Op, SECTOR_BYTES, Status};
use crate::nbd::proto::NbdError;
use crate::nbd::session::{CloseReason, Command, Event, MAX_IN_FLIGHT, Request, Session, Slot};

/// Bytes at which a plug ends.
pub(super) const PLUG_BYTES: u64 = 1 << 20;
/// Requests at which a plug ends.
pub(super) const PLUG_REQUESTS: u32 = 64;
/// How much of a TRIM or WRITE_ZEROES the array gets at a time. Large enough that whole rows dominate, small enough that one
/// such request does not hold up what other clients want.
const ZERO_PIECE: u32 = 8 << 20;
/// Pause before memory is asked for again; a reply ends it early.
const STARVED_PAUSE: Duration = Duration::from_millis(2);
/// How often a client that holds buffers is looked at.
const STALL_CHECK: Duration = Duration::from_secs(1);
/// Wanted size of a Unix socket's send buffer. The system may give less.
const SOCKET_BUFFER: usize = 2 << 20;

const _: () = assert!(ZERO_PIECE <= MAX_TRANSFER && ZERO_PIECE.is_multiple_of(65536));

/// Why reading stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// The plug is full; there may be more to read.
    PlugFull,
    /// The socket is empty.
    Empty,
    /// No buffer, or no room in the array, for the next request.
    Starved,
    /// The session's bounds are reached, or it reads no more.
    Blocked,
}

/// What is left to do of a TRIM or WRITE_ZEROES.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    offset: u64,
    left: u64,
    fua: bool,
}

impl Rest {
    /// Bytes of the next piece.
    fn piece(self) -> u32 {
        u32::try_from(self.left).map_or(ZERO_PIECE, |left| left.min(ZERO_PIECE))
    }
}

type Buf<B> = MeteredBuf<<B as Backend>::Buf>;

pub(super) struct Connection<'a, B: Backend> {
    socket: &'a OwnedFd,
    shared: &'a Shared,
    backend: Metered<B>,
    session: Session,
    outbox: Outbox<Buf<B>>,
    /// Buffer of the write whose payload is being read.
    incoming: Option<Buf<B>>,
    /// The next request, whole, that waits for memory or for room in the array; a write with its buffer.
    parked: Option<(Request, Option<Buf<B>>)>,
    /// By slot.
    rests: Box<[Rest]>,
    /// Requests whose next piece waits for room in the array.
    waiting: VecDeque<Slot>,
    /// Requests submitted and not replied to.
    in_array: usize,
    plug_requests: u32,
    plug_bytes: u64,
    /// The socket may have bytes.
    readable: bool,
    /// The socket may take bytes.
    writable: bool,
    /// Nothing can be sent any more.
    lost: bool,
    stopping: bool,
    /// The socket was looked at once more after the last reply of a stop.
    drained: bool,
    patience: Patience,
    /// End of the stop's grace.
    deadline: Option<Instant>,
}

impl<'a, B: Backend> Connection<'a, B> {
    /// A connection whose session has come to transmission.
    pub(super) fn new(socket: &'a OwnedFd, session: Session, backend: Metered<B>, shared: &'a Shared) -> Self {
        enlarge_send_buffer(socket);
        Self {
            socket,
            shared,
            backend,
            session,
            outbox: Outbox::new(),
            incoming: None,
            parked: None,
            rests: vec![Rest::default(); MAX_IN_FLIGHT].into_boxed_slice(),
            waiting: VecDeque::with_capacity(MAX_IN_FLIGHT),
            in_array: 0,
            plug_requests: 0,
            plug_bytes: 0,
            readable: true,
            writable: true,
            lost: false,
            stopping: false,
            drained: false,
            patience: Patience::new(),
            deadline: None,
        }
    }

    /// Serves the client until both sides are done with each other.
    pub(super) fn run(mut self) {
        loop {
            if !self.stopping && self.shared.is_stopping() {
                self.begin_stop();
            }
            self.collect();
            self.send();
            let pause = self.read();
            self.unplug();
            if self.is_finished(pause) {
                break;
            }
            let can_send = self.writable && self.has_output();
            // Where a stop wants the socket looked at once more, there is nothing to wait for.
            let looks_again = pause == Pause::Empty && self.readable;
            let waits = pause != Pause::PlugFull && !can_send && !looks_again;
            // In a stop the limits hold for a client that never lets it come to a wait, too.
            if waits || self.stopping {
                let limit = self.enforce_limits();
                if waits {
                    self.wait(pause, limit);
                }
            }
        }
        match self.session.closing() {
            Some(reason @ (CloseReason::Disconnect | CloseReason::Abort | CloseReason::Stopped)) => {
                tracing::debug!(%reason, "NBD connection ended");
            }
            Some(reason) => tracing::info!(%reason, "NBD connection ended"),
            None => tracing::debug!("NBD connection ended by stop"),
        }
    }

    fn has_output(&self) -> bool {
        let empty = self.outbox.is_empty() && self.session.output().is_empty();
        !self.lost && !empty
    }

    fn is_finished(&mut self, pause: Pause) -> bool {
        if self.in_array > 0 || self.parked.is_some() || !self.waiting.is_empty() || self.has_output() {
            return false;
        }
        if self.session.closing().is_some() {
            return true;
        }
        if !self.stopping || pause != Pause::Empty {
            return false;
        }
        // What came while the last replies were under way is still to be refused: look once more.
        self.readable = !self.drained;
        std::mem::replace(&mut self.drained, true)
    }

    /// Takes the array's replies.
    fn collect(&mut self) {
        while let Some(reply) = self.backend.poll() {
            let slot = Slot::from_index(reply.id).expect("the array replies to ids that it was given");
            let result = match reply.status {
                Status::Ok => Ok(()),
                Status::Io => Err(NbdError::Io),
                Status::NoSpace => Err(NbdError::NoSpace),
                Status::ReadOnly => Err(NbdError::Perm),
                Status::ShuttingDown => Err(NbdError::Shutdown),
            };
            self.in_array -= 1;
            let rest = self.rests[slot.index()];
            if result.is_ok() && rest.left > 0 && !self.lost {
                self.waiting.push_back(slot);
            } else {
                self.answer(slot, result, reply.buf);
            }
        }
        while let Some(slot) = self.waiting.front().copied()
            && self.backend.has_room(self.rests[slot.index()].piece() / SECTOR_BYTES)
        {
            self.waiting.pop_front();
            self.submit_piece(slot);
        }
    }

    fn answer(&mut self, slot: Slot, result: Result<(), NbdError>, buf: Option<Buf<B>>) {
        let (head, len) = self.session.reply(slot, result);
        if self.lost {
            self.session.release(slot);
            self.free(buf);
        } else if len > 0 {
            let buf = buf.expect("a read comes back with its buffer");
            self.outbox.push(slot, head, Some((buf, len as usize)));
        } else {
            self.outbox.push(slot, head, None);
            self.free(buf);
        }
    }

    fn free(&mut self, buf: Option<Buf<B>>) {
        if let Some(buf) = buf {
            self.backend.free(buf);
        }
    }

    /// Sends what the client takes.
    fn send(&mut self) {
        while self.writable && self.has_output() {
            let free = |buf| self.backend.free(buf);
            match self.outbox.send_some(self.socket.as_fd(), &mut self.session, free) {
                Ok(n) => self.patience.moved(n),
                Err(Errno::AGAIN) => self.writable = false,
                Err(errno) => {
                    tracing::debug!(error = %errno, "NBD client is gone");
                    self.lose();
                }
            }
        }
    }

    /// Nothing more is read or sent; what is in the array comes back to nobody.
    fn lose(&mut self) {
        self.lost = true;
        self.end_of_stream();
        self.outbox.clear(&mut self.session, |buf| self.backend.free(buf));
        self.refuse_parked(NbdError::Io);
        while let Some(slot) = self.waiting.pop_front() {
            self.answer(slot, Err(NbdError::Io), None);
        }
    }

    fn end_of_stream(&mut self) {
        self.session.end_of_stream();
        self.forget_incoming();
    }

    fn forget_incoming(&mut self) {
        let incoming = self.incoming.take();
        self.free(incoming);
        // A request that is parked asks for memory again.
        self.backend.cancel();
    }

    fn begin_stop(&mut self) {
        self.stopping = true;
        self.session.stop();
        self.forget_incoming();
        self.refuse_parked(NbdError::Shutdown);
    }

    fn refuse_parked(&mut self, error: NbdError) {
        if let Some((request, buf)) = self.parked.take() {
            self.answer(request.slot, Err(error), buf);
        }
    }

    /// Reads and submits until something is in the way.
    fn read(&mut self) -> Pause {
        loop {
            if self.plug_requests >= PLUG_REQUESTS || self.plug_bytes >= PLUG_BYTES {
                return Pause::PlugFull;
            }
            if let Some((request, buf)) = self.parked.take()
                && !self.start(request, buf)
            {
                return Pause::Starved;
            }
            match self.session.poll() {
                Event::Read => {
                    if !self.readable {
                        return Pause::Empty;
                    }
                    self.receive(0..0);
                }
                Event::Payload { request, left } => match self.read_payload(request, left) {
                    Some(pause) => return pause,
                    None => continue,
                },
                Event::Submit(request) => {
                    let payload = self.incoming.take();
                    if !self.start(request, payload) {
                        return Pause::Starved;
                    }
                }
                Event::Answer(slot, result) => self.answer(slot, result, None),
                Event::Started => {}
                Event::Full | Event::Close(_) => return Pause::Blocked,
            }
        }
    }

    fn read_payload(&mut self, request: Request, left: u32) -> Option<Pause> {
        let buf = match &mut self.incoming {
            Some(buf) => buf,
            None => {
                if self.plug_requests > 0 && self.plug_bytes + request.len > PLUG_BYTES {
                    return Some(Pause::PlugFull);
                }
                let Some(buf) = self.backend.alloc(bytes(request.len) as usize) else { return Some(Pause::Starved) };
                self.incoming.insert(buf)
            }
        };
        let end = bytes(request.len) as usize;
        let at = end - left as usize;
        let taken = self.session.take_payload(&mut buf.as_mut()[at..end]);
        if at + taken < end {
            if !self.readable {
                return Some(Pause::Empty);
            }
            self.receive(at + taken..end);
        }
        None
    }

    /// Reads into that part of the incoming buffer and, behind it, into the session's room.
    fn receive(&mut self, part: std::ops::Range<usize>) {
        let wanted = part.len();
        let payload: &mut [u8] = match &mut self.incoming {
            Some(buf) => &mut buf.as_mut()[part],
            None => &mut [],
        };
        let room = self.session.room();
        let whole = wanted + room.len();
        let mut pieces = [IoSliceMut::new(payload), IoSliceMut::new(room)];
        // The session's own bytes need no empty piece in front.
        let pieces = if wanted == 0 { &mut pieces[1..] } else { &mut pieces[..] };
        match rustix::io::readv(self.socket, pieces) {
            Ok(0) => self.end_of_stream(),
            Ok(n) => {
                let direct = n.min(wanted);
                if direct > 0 {
                    self.session.payload_received(u32::try_from(direct).expect("a payload is at most 32 MiB"));
                }
                self.session.received(n - direct);
                self.patience.moved(n);
                self.readable = n == whole;
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => self.readable = false,
            Err(errno) => {
                tracing::debug!(error = %errno, "NBD client is gone");
                self.end_of_stream();
            }
        }
    }

    /// Submits a request, a write with its payload. One for which there is no buffer or room is parked, and `false` returned.
    fn start(&mut self, request: Request, payload: Option<Buf<B>>) -> bool {
        let Request { slot, command, offset, len, fua } = request;
        let rest = match command {
            Command::Trim | Command::WriteZeroes => Rest { offset, left: len, fua },
            _ => Rest::default(),
        };
        let size = if rest.left > 0 { rest.piece() } else { bytes(len) };
        if !self.waiting.is_empty() || !self.backend.has_room(size / SECTOR_BYTES) {
            self.parked = Some((request, payload));
            return false;
        }
        self.rests[slot.index()] = rest;
        match command {
            Command::Read => {
                let Some(buf) = self.backend.alloc(size as usize) else {
                    self.parked = Some((request, None));
                    return false;
                };
                self.submit(slot, Op::Read, offset, size, Some(buf));
            }
            Command::Write => self.submit(slot, Op::Write { fua }, offset, size, payload),
            Command::Flush => self.submit(slot, Op::Flush, 0, 0, None),
            // Reading zeroes after a TRIM is one of the outcomes that the protocol allows.
            Command::Trim | Command::WriteZeroes => self.submit_piece(slot),
            Command::Cache | Command::BlockStatus => unreachable!("answered by the session"),
        }
        true
    }

    fn submit_piece(&mut self, slot: Slot) {
        let rest = &mut self.rests[slot.index()];
        let (offset, len, fua) = (rest.offset, rest.piece(), rest.fua);
        rest.offset += u64::from(len);
        rest.left -= u64::from(len);
        self.submit(slot, Op::WriteZeroes { fua }, offset, len, None);
    }

    fn submit(&mut self, slot: Slot, op: Op, offset: u64, len: u32, buf: Option<Buf<B>>) {
        let sector = u64::from(SECTOR_BYTES);
        self.backend.submit(slot.index() as u64, op, offset / sector, len / SECTOR_BYTES, buf);
        self.in_array += 1;
        self.plug_requests += 1;
        self.plug_bytes += u64::from(len);
    }

    fn unplug(&mut self) {
        if self.plug_requests > 0 {
            self.plug_requests = 0;
            self.plug_bytes = 0;
            self.backend.unplug();
        }
    }

    /// Waits for the socket, the array, the stop, or the limit.
    fn wait(&mut self, pause: Pause, limit: Option<Duration>) {
        if !self.backend.announce() {
            return;
        }
        let starved = (pause == Pause::Starved).then_some(STARVED_PAUSE);
        let timeout = limit.into_iter().chain(starved).min().map(timespec);
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, pause == Pause::Empty);
        interest.set(PollFlags::OUT, self.has_output());
        let mut fds = [
            PollFd::from_borrowed_fd(self.backend.wake_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.shared.stop_fd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.socket.as_fd(), interest),
        ];
        if self.stopping {
            // Readable for ever: it has been seen.
            fds[1] = PollFd::from_borrowed_fd(self.shared.stop_fd.as_fd(), PollFlags::empty());
        }
        // A socket that nothing is wanted of would tell of its hang-up again and again.
        let watched = if interest.is_empty() { 2 } else { 3 };
        // An interruption is a wake like any other: nothing is known then, and the loop comes back here.
        let polled = rustix::event::poll(&mut fds[..watched], timeout.as_ref());
        let [_, _, socket] = fds.map(|fd| fd.revents());
        if polled.is_ok() {
            let broken = PollFlags::HUP | PollFlags::ERR;
            self.readable |= socket.intersects(PollFlags::IN | broken);
            self.writable |= socket.intersects(PollFlags::OUT | broken);
        }
        self.backend.awake();
    }

    /// Holds buffers that only the client can free.
    fn holds(&self) -> bool {
        self.incoming.is_some() || !self.outbox.is_empty()
    }

    /// Cuts the client off when a limit has passed. Returns when to look again: at once after a cut, `None` when
    /// no limit applies.
    fn enforce_limits(&mut self) -> Option<Duration> {
        let in_grace = self.stopping && self.in_array == 0;
        let holds = self.holds();
        if !holds {
            self.patience.reset();
        }
        if self.lost || !(holds || in_grace) {
            return None;
        }
        let now = Instant::now();
        if in_grace && self.deadline.is_none() {
            self.deadline = Some(now + self.shared.limits.stop_grace);
        }
        let late = self.deadline.is_some_and(|deadline| now >= deadline);
        let limits = &self.shared.limits;
        let limit = if self.backend.is_pressed() { limits.pressed_stall } else { limits.stall };
        let stalled = holds && self.patience.is_over(now, limit);
        if late || stalled {
            tracing::warn!(late, stalled, "NBD client does not answer, cut off");
            self.lose();
            return Some(Duration::ZERO);
        }
        let deadline = self.deadline.map(|deadline| deadline - now);
        deadline.into_iter().chain(holds.then_some(STALL_CHECK)).min()
    }
}

/// Bytes of a request that moves data: bounded by the session.
fn bytes(len: u64) -> u32 {
    u32::try_from(len).expect("a READ or WRITE is at most 32 MiB")
}

/// For large replies. TCP finds a good size by itself, unless it is told one.
fn enlarge_send_buffer(socket: &OwnedFd) {
    if sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX) {
        // A larger buffer only saves wake-ups, so a refusal does not matter.
        let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER);
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).expect("limits are minutes at most")
}
