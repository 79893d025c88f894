//! A front end's handle on the array: submits requests, collects replies.
//!
//! One client per front-end thread. Requests are queued under a plug and cut into parts; [`Client::unplug`] posts them, sorted, to the
//! regions that they belong to. Replies come back part by part and are counted here, so no worker ever waits for another.
//!
//! Bounds: [`REQUESTS_MAX`] requests and [`PARTS_MAX`] parts in flight.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use raid_core::units::{Sector, Sectors};

use super::bufs::Bufs;
use super::turns::Turns;
use super::wake::{Spin, Wake};
use super::{Posts, Shared};
use crate::board::WorkerSet;
use crate::letters::{Bundle, Stock};
use crate::message::{ClientId, IoStatus, Part, PartOp, PartReply};
use crate::plug::{self, Memory, PART_SECTORS_MAX, Whole};
use crate::slab::{Buf, Piece};
use crate::sync::{AtomicU32, Ordering};

/// Most requests in flight.
pub const REQUESTS_MAX: usize = 1024;

/// Most parts in flight.
pub const PARTS_MAX: usize = 16384;

/// What a front end asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read into the request's buffer.
    Read,
    /// Write from the request's buffer.
    Write {
        /// Durable before the reply.
        fua: bool,
    },
    /// Write zeroes; no buffer.
    WriteZeroes {
        /// Durable before the reply.
        fua: bool,
    },
    /// Make durable what was replied to; no range, no buffer.
    Flush,
}

/// A request. `id` comes back in the reply.
#[derive(Debug)]
pub struct Request {
    /// The front end's own name for it.
    pub id: u64,
    /// What to do.
    pub op: Op,
    /// First sector.
    pub at: Sector,
    /// Length.
    pub sectors: Sectors,
    /// Memory for the data of reads and writes, at least as long.
    pub buf: Option<Buf>,
}

/// The end of a request.
#[derive(Debug)]
pub struct Reply {
    /// The request's.
    pub id: u64,
    /// How it ended.
    pub status: IoStatus,
    /// The request's buffer.
    pub buf: Option<Buf>,
}

/// What workers need of a client.
#[derive(Debug)]
pub(super) struct ClientShared {
    pub(super) replies: ArrayQueue<Vec<PartReply>>,
    /// Emptied vectors on their way back to the workers.
    pub(super) reply_spares: ArrayQueue<Vec<PartReply>>,
    pub(super) wake: Wake,
    pub(super) posts: Posts,
    /// How often what the client believes to be stored may have been lost: then its flushes in flight fail, or else its next one.
    pub(super) flush_faults: AtomicU32,
}

/// Vectors kept for use again.
const SPARES: usize = 64;

impl ClientShared {
    pub(super) fn new() -> std::io::Result<ClientShared> {
        Ok(ClientShared {
            replies: ArrayQueue::new(PARTS_MAX),
            reply_spares: ArrayQueue::new(SPARES),
            wake: Wake::new()?,
            posts: Posts::default(),
            flush_faults: AtomicU32::new(0),
        })
    }
}

#[derive(Debug)]
struct InFlight {
    id: u64,
    parts: u32,
    status: IoStatus,
    buf: Option<Buf>,
    /// Of a flush: the faults before it was submitted.
    flush: Option<u32>,
    letters: Bundle,
}

/// See the module's text.
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    shared: Arc<Shared>,
    /// Where it can take workers' turns; none in a simulation.
    turns: Option<Arc<Turns>>,
    mine: Arc<ClientShared>,
    bufs: Bufs,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u32>,
    parts_in_flight: usize,
    /// Parts under the plug.
    plug: Vec<Part>,
    letters: Stock,
    /// Something was posted since the last `unplug`, which these workers have not been woken for.
    posted: bool,
    owed: WorkerSet,
    ready: std::collections::VecDeque<Reply>,
    spin: Spin,
    /// Flush faults that a flush has failed for.
    faults_told: u32,
}

impl Client {
    pub(super) fn new(
        id: ClientId,
        shared: Arc<Shared>,
        turns: Option<Arc<Turns>>,
        mine: Arc<ClientShared>,
    ) -> Option<Client> {
        let bufs = Bufs::new(&shared.slab)?;
        Some(Client {
            id,
            turns,
            mine,
            bufs,
            in_flight: (0..REQUESTS_MAX).map(|_| None).collect(),
            free: (0..REQUESTS_MAX as u32).rev().collect(),
            parts_in_flight: 0,
            plug: Vec::new(),
            letters: Stock::default(),
            posted: false,
            owed: WorkerSet::default(),
            ready: std::collections::VecDeque::new(),
            spin: Spin::default(),
            faults_told: 0,
            shared,
        })
    }

    /// Size of the array.
    pub fn sectors(&self) -> Sectors {
        self.shared.geometry.array_sectors()
    }

    /// A buffer of `bytes`, at most [`super::bufs::BUF_BYTES_MAX`]; `None` while too much memory is in use: ask again after a reply.
    pub fn alloc(&mut self, bytes: usize) -> Option<Buf> {
        self.bufs.take(bytes)
    }

    /// Takes a buffer back that [`alloc`](Client::alloc) gave.
    pub fn free(&mut self, buf: Buf) {
        self.bufs.give(buf);
    }

    /// Whether a request of this length may be submitted now; if not, after a reply.
    pub fn has_room(&self, sectors: Sectors) -> bool {
        let parts = (sectors.0 / self.part_sectors() + 2) as usize;
        !self.free.is_empty() && (self.parts_in_flight == 0 || self.parts_in_flight + parts <= PARTS_MAX)
    }

    fn part_sectors(&self) -> u64 {
        self.shared.geometry.chunk().0.min(PART_SECTORS_MAX)
    }

    /// Requests submitted and not yet polled.
    pub fn in_flight(&self) -> usize {
        REQUESTS_MAX - self.free.len() + self.ready.len()
    }

    /// Queues a request under the plug. Ask [`has_room`](Client::has_room) first.
    pub fn submit(&mut self, request: Request) {
        let Request { id, op, at, sectors, buf } = request;
        if op != Op::Flush && !self.in_range(at, sectors) {
            self.ready.push_back(Reply { id, status: IoStatus::OutOfRange, buf });
            return;
        }
        if sectors.0 == 0 && op != Op::Flush {
            self.ready.push_back(Reply { id, status: IoStatus::Ok, buf });
            return;
        }
        let slot = self.free.pop().expect("the caller asked for room");
        let piece = buf.as_ref().map_or(Piece::NONE, Buf::piece);
        let (op, memory) = match op {
            Op::Read => (PartOp::Read, Memory::Piece(piece)),
            Op::Write { fua } => (PartOp::Write { fua }, Memory::Piece(piece)),
            Op::WriteZeroes { fua } => {
                let zeroes = self.shared.slab.zeroes(self.part_sectors().min(sectors.0) as u32);
                (PartOp::Write { fua }, Memory::Zeroes(zeroes))
            }
            Op::Flush => (PartOp::Flush, Memory::Piece(piece)),
        };
        let whole = Whole { client: self.id, request: slot, op, at, sectors, memory };
        let parts = if op == PartOp::Flush {
            self.plug.push(plug::flush(self.id, slot));
            1
        } else {
            plug::split(&self.shared.geometry, &whole, &mut self.plug)
        };
        self.parts_in_flight += parts as usize;
        let flush = (op == PartOp::Flush).then(|| self.mine.flush_faults.load(Ordering::Acquire));
        let (status, letters) = (IoStatus::Ok, Bundle::default());
        self.in_flight[slot as usize] = Some(InFlight { id, parts, status, buf, flush, letters });
    }

    fn in_range(&self, at: Sector, sectors: Sectors) -> bool {
        at.checked_add(sectors).is_some_and(|end| end.0 <= self.sectors().0)
    }

    /// Hands what is under the plug to the workers. The calling thread may carry some of it out itself: replies may be there at once.
    pub fn unplug(&mut self) {
        self.post();
        let owed = std::mem::take(&mut self.owed);
        match &self.turns {
            Some(turns) if std::mem::take(&mut self.posted) => turns.take(self.shared.home(self.id), owed),
            _ => {}
        }
    }

    /// As [`unplug`](Client::unplug), where more requests follow at once: workers of this CPU are not woken for it before `unplug`, which must follow
    /// without a wait.
    pub fn post(&mut self) {
        if self.plug.is_empty() {
            return;
        }
        plug::sort(&mut self.plug);
        let home = self.shared.home(self.id);
        let Client { shared, plug, letters, in_flight, mine, .. } = self;
        let slot_of = |part: &Part| {
            let request = in_flight[part.request as usize].as_mut().expect("a part belongs to a request in flight");
            letters.take(&mut request.letters)
        };
        let mut kicks = shared.post(plug, home, slot_of, &mine.posts);
        plug.clear();
        if self.turns.is_some() {
            self.posted = true;
            self.owed = self.owed.with(kicks.take(shared.board.members(home)));
        }
        self.shared.kick(kicks);
    }

    /// The next reply, if one is there.
    pub fn poll(&mut self) -> Option<Reply> {
        while self.ready.is_empty() {
            let mut batch = self.mine.replies.pop()?;
            for reply in batch.drain(..) {
                self.count(reply);
            }
            // A full list of spares only means that this one is freed.
            let _ = self.mine.reply_spares.push(batch);
        }
        self.ready.pop_front()
    }

    fn count(&mut self, reply: PartReply) {
        self.parts_in_flight -= 1;
        let slot = &mut self.in_flight[reply.request as usize];
        let request = slot.as_mut().expect("a reply belongs to a request in flight");
        request.status = request.status.and(reply.status);
        request.parts -= 1;
        if request.parts == 0 {
            let InFlight { id, mut status, buf, flush, letters, .. } = slot.take().expect("just seen");
            self.letters.give(letters);
            let faults = self.mine.flush_faults.load(Ordering::Acquire);
            if let Some(before) = flush
                && (before != faults || self.faults_told != faults)
            {
                self.faults_told = faults;
                status = status.and(IoStatus::Failed);
            }
            self.free.push(reply.request);
            self.ready.push_back(Reply { id, status, buf });
        }
    }

    /// Forgets what is in flight: the workers are gone, so nobody uses the buffers any more.
    pub(super) fn abandon(mut self) {
        self.plug.clear();
        self.ready.clear();
        self.in_flight.fill_with(|| None);
        self.free.clear();
        self.free.extend(0..REQUESTS_MAX as u32);
    }

    /// Waits until [`poll`](Client::poll) may have something, or for `timeout`.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        let most = self.shared.spin();
        let start = Instant::now();
        let allowed = most.min(timeout.unwrap_or(Duration::MAX));
        let mut spin = std::mem::take(&mut self.spin);
        let found = spin.look(allowed, || {
            self.help();
            self.has_reply()
        });
        self.spin = spin;
        if !found {
            self.mine.wake.announce();
            if self.has_reply() {
                self.mine.wake.stay_awake();
            } else {
                self.mine.wake.sleep(std::iter::empty(), timeout);
            }
        }
        self.spin.waited(start.elapsed(), most);
    }

    /// Before it waits, the thread does what waits for a worker of its CPU, or elsewhere.
    fn help(&self) {
        if let Some(turns) = &self.turns
            && !self.has_reply()
        {
            turns.help(self.shared.home(self.id));
        }
    }

    fn has_reply(&self) -> bool {
        !self.ready.is_empty() || !self.mine.replies.is_empty()
    }

    /// For a front end with its own poll(2): announces that it is about to sleep on [`wake_fd`](Client::wake_fd). Answers false when there is
    /// something to poll already.
    pub fn announce(&self) -> bool {
        self.help();
        self.mine.wake.announce();
        let empty = !self.has_reply();
        if !empty {
            self.mine.wake.stay_awake();
        }
        empty
    }

    /// After that poll(2).
    pub fn awake(&self) {
        self.mine.wake.awake();
    }

    /// Readable after [`announce`](Client::announce) when there may be something to poll.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.mine.wake.as_fd()
    }
}

impl Drop for Client {
    /// Waits for what is in flight: the workers use the buffers until then.
    fn drop(&mut self) {
        self.unplug();
        while self.in_flight() > 0 {
            if self.poll().is_none() {
                self.wait(None);
            }
        }
        self.shared.forget(self.id);
    }
}
