//! A worker: owns regions, makes runs of the parts that are sent to it, and sees each through to its reply.
//!
//! A value: [`Worker::turn`] takes the time and what has arrived, and fills [`Effects`] with what is to be done. It touches data only
//! in the slab's memory. One thread of the runtime, or a simulation, drives it.
//!
//! The life of a part: a read of a block that can be read goes straight to the member and into the caller's memory. Everything
//! else waits at its stripe ([`forming`]), becomes part of a [`run`] ([`running`]), and ends with it ([`ending`]). Flushes are gathered in
//! [`flush`]; what the array says is carried out in [`view`].
//!
//! Invariants:
//! - Ranges of active runs of one stripe never overlap, so nobody sees a row half written. Plain reads need no lock: a read beside
//!   a write of the same sectors may return either.
//! - Each part gets exactly one reply.
//! - A client's write or a repair leaves only under a view with `write_ok`, and no write under one that is suspended or fenced: what has
//!   been sent is called back. Resync,
//!   recovery and mending need no dirty mark: were it needed, a crash during a rebuild would leave an array that is dirty and
//!   degraded, which nothing may assemble.
//! - No read or write is sent to a member that is absent or silent in the newest view.
//! - Once a run's writes have left, what it writes does not change: a member that drops out is only left out.
//!
//! Bounds: parts by what the clients have in flight; pages by the stripe cache; runs by parts.

mod cache;
mod ending;
mod flush;
mod forming;
mod io;
mod pages;
mod pool;
mod run;
mod running;
mod view;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Duration;

use raid_core::geometry::Geometry;
use raid_core::units::{MemberIndex, MemberSet, Sectors, StripeIndex};

use crate::board::Holder;
use crate::member::{Done, MemberOp, MemberRequest, MemberRequestId};
use crate::message::{
    IoStatus, MemberHandle, MemberState, Part, PartOp, PartReply, Report, SyncKind, ToWorker, View, WorkerId,
};
use crate::region::{RegionIndex, Regions};
use crate::slab::{Arena, PAGE, PAGE_SECTORS, Piece, Slab};
use cache::Cache;
use flush::Flushes;
use forming::{Scratch, Stripe};
use io::{Io, Ios, NONE, Whose};
use pages::Pages;
use pool::Pool;
use run::{Run, Sources};
use view::Stand;

/// Longest run, in sectors: 512 KiB on each member.
pub const RUN_SECTORS_MAX: u32 = 1024;

/// Pages of each member that only runs for readers may use, at most; a quarter of the cache if that is less. Writes that are stuck
/// at a silent member keep their pages, and reads of its blocks are to go on.
const READER_PAGES_MAX: usize = 16;

/// What a worker is made of.
#[derive(Debug)]
pub struct Config {
    /// Which worker of the array it is.
    pub id: WorkerId,
    /// The array's shape.
    pub geometry: Geometry,
    /// Who owns what, shared with the front ends.
    pub regions: Arc<Regions>,
    /// Memory for its share of the stripe cache.
    pub arena: Arena,
    /// Pages of it to use: its share of `stripe_cache_size` times members. At least one page per member.
    pub pages: usize,
    /// The state to begin with.
    pub view: Arc<View>,
}

/// What has arrived since the last turn. The worker empties the lists.
#[derive(Debug, Default)]
pub struct Inputs {
    /// Work.
    pub parts: Vec<Part>,
    /// Ends of member requests.
    pub done: Vec<Done>,
    /// From the array.
    pub control: Vec<ToWorker>,
}

/// A request that the worker no longer wants; it still ends with a `Done`, soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// The device it was sent to.
    pub handle: MemberHandle,
    /// The request.
    pub id: MemberRequestId,
}

/// What is to be done after a turn. Lists are appended to; the driver empties them.
#[derive(Debug, Default)]
pub struct Effects {
    /// Requests to members; their segments lie in `segs`.
    pub requests: Vec<MemberRequest>,
    /// Memory of the requests.
    pub segs: Vec<Piece>,
    /// Requests to give up.
    pub cancels: Vec<Cancel>,
    /// Ended parts.
    pub replies: Vec<PartReply>,
    /// To the array.
    pub reports: Vec<Report>,
}

impl Effects {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.cancels.is_empty() && self.replies.is_empty() && self.reports.is_empty()
    }
}

/// What a worker has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Member requests sent, flushes not counted.
    pub member_requests: u64,
    /// Sectors in them.
    pub member_sectors: u64,
    /// Runs by method, as the planner names them: full, rmw, rcw, and with a rebuilt block.
    pub runs_full: u64,
    /// Read-modify-write runs.
    pub runs_rmw: u64,
    /// Reconstruct-write runs.
    pub runs_rcw: u64,
    /// Runs that rebuilt a block.
    pub runs_reconstruct: u64,
    /// Blocks that runs did not have to read, as the cache had them.
    pub blocks_cached: u64,
}

/// A part and how far it is.
#[derive(Clone, Copy, Debug)]
struct PartSlot {
    part: Part,
    region: RegionIndex,
    /// The member that holds its data.
    member: MemberIndex,
    /// The run that it was tied to last.
    last_run: u32,
    /// Runs that must end before it does.
    runs_left: u32,
    status: IoStatus,
    mismatches: u32,
    /// A FUA write whose data is written; only the flush is left.
    written: bool,
    /// As the worker has it, when the part was put at its stripe.
    restarts: u32,
}

impl PartSlot {
    fn new(part: Part, region: RegionIndex, member: MemberIndex) -> PartSlot {
        let status = IoStatus::Ok;
        PartSlot {
            part,
            region,
            member,
            last_run: NONE,
            runs_left: 0,
            status,
            mismatches: 0,
            written: false,
            restarts: 0,
        }
    }
}

/// Whether what the part asks for needs the dirty mark first; see [`Run::needs_mark`].
fn needs_mark(op: PartOp) -> bool {
    matches!(op, PartOp::Write { .. } | PartOp::Sync(SyncKind::Repair))
}

/// What the worker knows of a region that it owns.
#[derive(Debug, Default)]
struct Owned {
    /// Parts here and not replied to.
    pending: u64,
    /// Copies of a write may be in the network until then: the region stays ours.
    closed_until: Duration,
    /// The cache keeps rows of it, maybe.
    cached: bool,
}

/// Hashes one integer by multiplication: rows and regions are not chosen by an enemy who could choose collisions worth
/// more than he can do by asking for those rows.
#[derive(Debug, Default)]
struct IndexHasher(u64);

impl Hasher for IndexHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

type IndexMap<V> = HashMap<u64, V, BuildHasherDefault<IndexHasher>>;

/// What follows from the number of pages.
struct Limits {
    /// Pages for readers alone.
    kept: usize,
    run_sectors_max: u32,
    rebuild_sectors_max: u32,
}

impl Limits {
    fn new(geometry: &Geometry, pages: usize) -> Limits {
        let members = geometry.members().len();
        let rows = pages / members;
        assert!(rows >= 1, "at least one page per member");
        let kept = (rows / 4).min(READER_PAGES_MAX);
        let chunk = u32::try_from(geometry.chunk().0).unwrap_or(u32::MAX);
        let longest = |rows: usize| (rows as u32).saturating_mul(PAGE_SECTORS).min(RUN_SECTORS_MAX).min(chunk);
        // A cache too small to keep pages for readers serves all alike.
        let rebuild_sectors_max = longest(if kept > 0 { kept } else { rows });
        Limits { kept: kept * members, run_sectors_max: longest(rows - kept), rebuild_sectors_max }
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Worker {
    id: WorkerId,
    geometry: Geometry,
    regions: Arc<Regions>,
    slab: Arc<Slab>,
    view: Arc<View>,
    /// How the members stand in it.
    stand: Stand,
    /// Longest run that the pages allow, and longest that rebuilds for a reader.
    run_sectors_max: u32,
    rebuild_sectors_max: u32,
    parts: Pool<PartSlot>,
    runs: Pool<Run>,
    ios: Ios,
    pages: Pages,
    cache: Cache,
    /// Stripes with active runs or waiting parts, by row.
    stripes: IndexMap<u32>,
    stripe_pool: Pool<Stripe>,
    /// Stripes, by their place in the pool, whose waiting parts may now form runs.
    touched: Vec<u32>,
    scratch: Scratch,
    /// Runs formed and not yet started.
    fresh: Vec<u32>,
    /// Runs that wait for a view.
    held: Vec<u32>,
    /// Runs that wait for pages, in order: for readers, where pages are kept for them, and all others.
    starved_readers: VecDeque<u32>,
    starved: VecDeque<u32>,
    flushes: Flushes,
    owned: IndexMap<Owned>,
    /// Regions to be given up once their closed ranges are open again.
    closed: Vec<(Duration, RegionIndex)>,
    /// Parts that need the dirty mark and wait, or whose runs have not ended.
    writes_pending: usize,
    last_write: Duration,
    /// `write_ok` of the view, until the worker has agreed to be quiet.
    may_write: bool,
    want_write_sent: bool,
    view_done_due: bool,
    /// A view came in this turn.
    resume_due: bool,
    /// Views that have members which were restarted and stay: what those had not flushed before may be lost.
    restarts: u32,
    sources: Sources,
    counters: Counters,
    now: Duration,
}

impl Worker {
    /// A worker that owns nothing yet.
    pub fn new(config: Config) -> Worker {
        let Limits { kept, run_sectors_max, rebuild_sectors_max } = Limits::new(&config.geometry, config.pages);
        Worker {
            id: config.id,
            geometry: config.geometry,
            regions: config.regions,
            slab: Arc::clone(config.arena.slab()),
            may_write: config.view.write_ok,
            stand: Stand::of(&config.view),
            view: config.view,
            run_sectors_max,
            rebuild_sectors_max,
            parts: Pool::default(),
            runs: Pool::default(),
            ios: Ios::default(),
            pages: Pages::new(config.arena, config.pages, kept),
            cache: Cache::new(config.geometry.chunk().0),
            stripes: IndexMap::default(),
            stripe_pool: Pool::default(),
            touched: Vec::new(),
            scratch: Scratch::default(),
            fresh: Vec::new(),
            held: Vec::new(),
            starved_readers: VecDeque::new(),
            starved: VecDeque::new(),
            flushes: Flushes::default(),
            owned: IndexMap::default(),
            closed: Vec::new(),
            writes_pending: 0,
            last_write: Duration::ZERO,
            want_write_sent: false,
            view_done_due: true,
            resume_due: false,
            restarts: 0,
            sources: Sources::default(),
            counters: Counters::default(),
            now: Duration::ZERO,
        }
    }

    /// Takes what has arrived and says what is to be done. The answer is when to call again though nothing arrives.
    pub fn turn(&mut self, now: Duration, inputs: &mut Inputs, effects: &mut Effects) -> Option<Duration> {
        self.now = now;
        self.count(&inputs.parts);
        for control in inputs.control.drain(..) {
            self.control(control, effects);
        }
        self.resume_all(effects);
        for done in inputs.done.drain(..) {
            self.member_done(done, effects);
        }
        for part in inputs.parts.drain(..) {
            self.accept(part, effects);
        }
        // Who waits for pages comes first.
        self.start_starved(effects);
        // Forming can end runs at once (nothing to read, member absent), which lets further parts form: the list grows while it
        // is walked, by at most one entry per run ended.
        while let Some(stripe) = self.touched.pop() {
            self.form(stripe, effects);
        }
        self.start_flush(effects);
        self.report_view_done(effects);
        self.ios.take_out(effects);
        self.counters.member_requests = self.ios.requests;
        self.counters.member_sectors = self.ios.request_sectors;
        self.open_regions()
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes other memory for its cache, so many pages of it; the answer is what it had. It [`is_drained`](Worker::is_drained).
    pub fn resize(&mut self, arena: Arena, pages: usize) -> Arena {
        assert!(self.is_drained(), "what runs use is where it is");
        self.cache.clear(&mut self.pages);
        let Limits { kept, run_sectors_max, rebuild_sectors_max } = Limits::new(&self.geometry, pages);
        (self.run_sectors_max, self.rebuild_sectors_max) = (run_sectors_max, rebuild_sectors_max);
        std::mem::replace(&mut self.pages, Pages::new(arena, pages, kept)).into_arena()
    }

    /// Whether requests may wait for members longer than members take: some are silent, or too many are gone.
    pub fn may_be_held(&self) -> bool {
        self.view.suspended || self.view.members.iter().any(|member| member.state == MemberState::Silent)
    }

    /// Cache pages that runs use.
    #[cfg(test)]
    fn pages_used(&self) -> usize {
        self.pages.used() - self.cache.pages()
    }

    /// Bytes of cache in use or kept.
    pub fn cache_bytes(&self) -> usize {
        self.pages.used() * PAGE
    }

    /// Whether nothing is here: no part, no io, no region.
    pub fn is_idle(&self) -> bool {
        self.parts.is_empty() && self.ios.is_empty() && self.owned.is_empty()
    }

    /// Whether every part that came has been replied to.
    pub fn is_drained(&self) -> bool {
        self.parts.is_empty()
    }

    /// Counts what has come of each region, before any part ends, one of this turn or an earlier one: the region is ours until the last has.
    fn count(&mut self, parts: &[Part]) {
        for alike in parts.chunk_by(|a, b| self.regions.of_part(a) == self.regions.of_part(b)) {
            let region = self.regions.of_part(&alike[0]);
            self.owned.entry(u64::from(region.0)).or_default().pending += alike.len() as u64;
        }
    }

    fn accept(&mut self, part: Part, effects: &mut Effects) {
        let region = self.regions.of_part(&part);
        if part.op == PartOp::Flush {
            let id = self.parts.put(PartSlot::new(part, region, MemberIndex(0)));
            self.flushes.waiting.push(id);
            return;
        }
        assert!(part.sectors > 0 && part.stripe.0 < self.geometry.stripes(), "a part lies within the array");
        assert!(
            u64::from(part.from) + u64::from(part.sectors) <= self.geometry.chunk().0,
            "a part lies within its chunk"
        );
        let member = self.geometry.data_member(part.stripe, part.data);
        let id = self.parts.put(PartSlot::new(part, region, member));
        match part.op {
            _ if self.view.abandon => {
                self.parts[id].status = IoStatus::Stopped;
                self.end_part(id, effects);
            }
            PartOp::Read => self.accept_read(id),
            PartOp::Write { .. } if self.view.read_only => {
                self.parts[id].status = IoStatus::ReadOnly;
                self.end_part(id, effects);
            }
            _ => self.enqueue(id),
        }
    }

    /// A read goes to its member if that can be read, and into the caller's memory; else it waits to be rebuilt.
    fn accept_read(&mut self, id: u32) {
        let PartSlot { part, member, .. } = self.parts[id];
        let (readable, _, _) = self.standing(part.stripe, part.from + part.sectors);
        if !readable.contains(member) {
            return self.enqueue(id);
        }
        let place = self.view.members[member.index()];
        let lba = self.geometry.member_sector(part.stripe) + Sectors(place.data_offset.0 + u64::from(part.from));
        let io = Io::new(Whose::PartRead(id), place.handle, MemberOp::Read, lba, part.sectors);
        self.ios.send(io, std::iter::once(part.piece));
    }

    /// The part has ended: a FUA write goes on to the flush, everything else is replied to.
    fn end_part(&mut self, id: u32, effects: &mut Effects) {
        let slot = &mut self.parts[id];
        let fua = matches!(slot.part.op, PartOp::Write { fua: true });
        if fua && slot.status.is_ok() && slot.restarts != self.restarts {
            // A member that took them may have lost them since, and the flush would be of nothing.
            (slot.written, slot.last_run) = (false, NONE);
            return self.enqueue(id);
        }
        if fua && slot.status.is_ok() && !slot.written {
            slot.written = true;
            self.flushes.waiting.push(id);
            return;
        }
        self.reply(id, effects);
    }

    /// Sends the part's one reply and lets its region go if it was the last there.
    fn reply(&mut self, id: u32, effects: &mut Effects) {
        let PartSlot { part, region, status, mismatches, .. } = self.parts.take(id);
        effects.replies.push(PartReply { client: part.client, request: part.request, status, mismatches });
        let owned = self.owned.get_mut(&u64::from(region.0)).expect("the part was counted when it came");
        owned.pending -= 1;
        if owned.pending == 0 {
            self.let_go(region);
        }
    }

    /// Gives an idle region up, unless copies of its writes may still be in the network.
    fn let_go(&mut self, region: RegionIndex) {
        let key = u64::from(region.0);
        let Owned { closed_until: until, cached, .. } = self.owned[&key];
        if until > self.now {
            if !self.closed.iter().any(|(_, r)| *r == region) {
                self.closed.push((until, region));
            }
            return;
        }
        let left = if cached { self.regions.park(region, self.id) } else { self.regions.release(region, self.id) };
        if left {
            self.owned.remove(&key);
        }
    }

    /// Gives up the regions whose closed ranges are open again; answers when the next ones are.
    fn open_regions(&mut self) -> Option<Duration> {
        let mut i = 0;
        while i < self.closed.len() {
            let (until, region) = self.closed[i];
            if until > self.now {
                i += 1;
                continue;
            }
            self.closed.swap_remove(i);
            if self.owned.get(&u64::from(region.0)).is_some_and(|o| o.pending == 0) {
                self.let_go(region);
            }
        }
        self.closed.iter().map(|(until, _)| *until).min()
    }

    /// Which members can be read, written, and are silent, in a chunk row up to sector `end` of its chunks.
    fn standing(&self, stripe: StripeIndex, end: u32) -> Standing {
        self.stand.at(self.geometry.member_sector(stripe) + Sectors(u64::from(end)))
    }
}

impl Holder for Worker {
    fn may_give_up(&self, region: RegionIndex) -> bool {
        self.owned.get(&u64::from(region.0)).is_some_and(|o| o.pending == 0 && o.closed_until <= self.now)
    }

    fn must_keep(&self, region: RegionIndex) -> bool {
        self.owned.get(&u64::from(region.0)).is_some_and(|o| o.pending == 0 && o.closed_until > self.now)
    }

    fn taken(&mut self, region: RegionIndex, was_last: bool) {
        if was_last {
            self.owned.entry(u64::from(region.0)).or_default().cached = true;
        } else {
            self.cache.forget_region(region);
        }
    }

    fn give_up(&mut self, region: RegionIndex) {
        assert!(self.may_give_up(region), "a region is given up with nothing left of it");
        self.owned.remove(&u64::from(region.0));
    }
}

/// Readable, writable, and silent members.
type Standing = (MemberSet, MemberSet, MemberSet);

#[cfg(test)]
mod tests;
