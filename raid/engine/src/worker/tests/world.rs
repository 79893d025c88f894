//! One or two workers on fake devices under a fake array, driven by a seed: requests come, take effect, are answered, and faults
//! strike in an order that the seed decides. Everything that must hold at all times is asserted on the way.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use raid_core::geometry::{Geometry, Layout};
use raid_core::parity::Kernels;
use raid_core::plan::RmwLevel;
use raid_core::units::{DataIndex, MemberCount, MemberIndex, SECTOR_SIZE, Sector, Sectors, StripeIndex};

use super::disk::{Disk, Mode};
use super::fake_array::FakeArray;
use super::model::{self, Model, Rng};
use crate::board::{Board, Desk, Traffic};
use crate::member::{MemberOp, MemberRequest};
use crate::message::{
    Boots, ClientId, IoStatus, MemberHandle, MemberState, MemberView, Part, PartOp, PartReply, Report, SyncKind,
    ToWorker, View, WorkerId,
};
use crate::plug::{self, Memory, Whole};
use crate::region::{RegionIndex, Regions};
use crate::slab::{Arena, Piece, Slab};
use crate::worker::{Config, Effects, Inputs, Worker};

mod checks;
mod steps;

pub(super) const SECTOR: usize = SECTOR_SIZE as usize;
const CLIENT: ClientId = ClientId(1);
const SYNC: ClientId = ClientId(2);
/// Most requests in flight.
pub(super) const SLOTS: usize = 80;
const SLOT_SECTORS: u32 = 2048;

/// What a world is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) members: u8,
    pub(super) layout: Layout,
    pub(super) chunk: u64,
    /// Rows that requests go to, around the border of the first two regions.
    pub(super) rows: u64,
    pub(super) workers: usize,
    /// Cache pages of each worker.
    pub(super) pages: usize,
    pub(super) rmw_level: RmwLevel,
}

/// A client's request that is not finished.
#[derive(Debug)]
pub(super) struct Outstanding {
    op: PartOp,
    at: u64,
    sectors: u32,
    slot: usize,
    started: u64,
    parts: u32,
    status: IoStatus,
    /// Flush: what each device had written when it was submitted.
    written: Vec<u64>,
}

/// A worker and what lies in front of it.
#[derive(Debug)]
struct Station {
    worker: Worker,
    desk: Desk,
    /// Pages that it is to have once it is drained.
    resize: Option<usize>,
    inputs: Inputs,
    wake: Option<Duration>,
    view: Arc<View>,
    may_write: bool,
}

impl Station {
    fn new(
        id: u8,
        shape: &Shape,
        geometry: Geometry,
        board: &Arc<Board>,
        slab: &Arc<Slab>,
        view: &Arc<View>,
    ) -> Station {
        let worker = Worker::new(Config {
            id: WorkerId(id),
            geometry,
            regions: Arc::clone(board.regions()),
            arena: slab.arena(shape.pages * crate::slab::PAGE).expect("room"),
            pages: shape.pages,
            view: Arc::clone(view),
        });
        Station {
            worker,
            desk: Desk::new(board, WorkerId(id)),
            resize: None,
            inputs: Inputs::default(),
            wake: Some(Duration::ZERO),
            view: Arc::clone(view),
            may_write: false,
        }
    }

    /// Other memory, as soon as no run uses what it has; and whether it is idle now.
    fn take_shape(&mut self, slab: &Arc<Slab>) {
        let ready = self.worker.is_drained();
        self.desk.pause(self.resize.is_some() && !ready && !self.worker.may_be_held());
        if ready && let Some(pages) = self.resize.take() {
            let arena = slab.arena(pages * crate::slab::PAGE).expect("room");
            drop(self.worker.resize(arena, pages));
        }
        if !self.desk.has_work(&self.worker) {
            self.desk.idle();
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct World {
    pub(super) shape: Shape,
    pub(super) rng: Rng,
    pub(super) now: Duration,
    geometry: Geometry,
    regions: Arc<Regions>,
    board: Arc<Board>,
    /// Letters written so far.
    letters: u32,
    slab: Arc<Slab>,
    memory: Arena,
    stations: Vec<Station>,
    pub(super) disks: Vec<Disk>,
    pub(super) array: FakeArray,
    model: Model,
    pub(super) outstanding: HashMap<u32, Outstanding>,
    free_slots: Vec<usize>,
    next_request: u32,
    /// Sync pieces that are out: request, and sectors of the data area where they write without the dirty mark.
    syncing: HashMap<u32, (u64, u64)>,
    /// Regions that must keep their owner until then.
    closed: Vec<(RegionIndex, WorkerId, Duration)>,
    first_row: u64,
    /// Answers to writes may say that copies are still in the network.
    pub(super) closes: bool,
    /// Requests may end with `Failed`, `ReadOnly` or `Stopped`.
    pub(super) may_fail: bool,
    pub(super) statuses: HashMap<IoStatus, u64>,
    /// Requests to members so far, flushes not among them.
    pub(super) log: Vec<MemberRequest>,
    /// Turns get all that has arrived, not a random share.
    pub(super) whole_turns: bool,
    /// What workers said.
    pub(super) reports: Vec<Report>,
}

fn border(geometry: &Geometry, regions: &Regions) -> u64 {
    let (mut low, mut high) = (0, geometry.stripes() - 1);
    while low < high {
        let middle = u64::midpoint(low, high);
        if regions.of(StripeIndex(middle)) == regions.of(StripeIndex(0)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

impl World {
    pub(super) fn new(seed: u64, shape: Shape) -> World {
        let rng = Rng::new(seed);
        let big = (40 << 20) / SECTOR_SIZE / u64::from(shape.members - 1);
        let component = Sectors(big.max(shape.chunk * 2 * shape.rows));
        let count = MemberCount(shape.members);
        let geometry = Geometry::new(count, Sectors(shape.chunk), component, shape.layout).expect("a valid shape");
        let regions = Arc::new(Regions::new(&geometry));
        let board = Arc::new(Board::new(Arc::clone(&regions), 3, shape.workers, shape.workers));
        let first_row = border(&geometry, &regions) - shape.rows / 2;
        let window = (first_row * shape.chunk, (first_row + shape.rows) * shape.chunk);
        let members: Vec<MemberView> = (0..shape.members)
            .map(|i| MemberView {
                state: MemberState::InSync,
                handle: MemberHandle(u16::from(i)),
                data_offset: Sector(2048 + 8 * u64::from(i)),
                boots: Boots::default(),
            })
            .collect();
        let array = FakeArray::new(members, shape.workers, window, shape.chunk, shape.rmw_level);
        let slab = Slab::with_bytes(Kernels::detect(), 256 << 20).expect("address space");
        let memory = slab.arena(SLOTS * SLOT_SECTORS as usize * SECTOR).expect("room");
        let view = Arc::new(array.view.clone());
        let stations = (0..shape.workers as u8).map(|id| Station::new(id, &shape, geometry, &board, &slab, &view));
        let stations = stations.collect();
        let stripe = geometry.stripe_sectors().0;
        let mut world = World {
            shape,
            rng,
            now: Duration::ZERO,
            geometry,
            regions,
            board,
            letters: 0,
            slab,
            memory,
            stations,
            disks: Vec::new(),
            array,
            model: Model::new(first_row * stripe, shape.rows * stripe),
            outstanding: HashMap::new(),
            free_slots: (0..SLOTS).rev().collect(),
            next_request: 1,
            syncing: HashMap::new(),
            closed: Vec::new(),
            first_row,
            closes: false,
            may_fail: false,
            statuses: HashMap::new(),
            log: Vec::new(),
            whole_turns: false,
            reports: Vec::new(),
        };
        for member in count.indices() {
            world.add_disk(member);
        }
        world.lay_out();
        world.seat(&vec![true; world.shape.workers]);
        world
    }

    /// These workers work, each a group of its own.
    pub(super) fn seat(&mut self, works: &[bool]) {
        let groups: Vec<Option<usize>> = works.iter().enumerate().map(|(i, works)| works.then_some(i)).collect();
        // Nobody sleeps here: whoever has work is runnable.
        let _ = self.board.seat(&groups);
        for (station, group) in self.stations.iter_mut().zip(groups) {
            station.desk.sit(group);
        }
    }

    /// Other workers work from now on, or one is to have another cache.
    pub(super) fn reshape(&mut self) {
        let worker = self.rng.index(self.stations.len());
        if self.rng.percent(50) {
            let rows = 1 + self.rng.index(40);
            self.stations[worker].resize = Some(rows * usize::from(self.shape.members));
            return;
        }
        let mut works: Vec<bool> = (0..self.stations.len()).map(|_| self.rng.percent(50)).collect();
        works[worker] = true;
        self.seat(&works);
    }

    /// Array sectors of the window.
    pub(super) fn span(&self) -> (u64, u64) {
        let stripe = self.geometry.stripe_sectors().0;
        (self.first_row * stripe, self.shape.rows * stripe)
    }

    /// A new device, full of rubbish, that can take this role.
    pub(super) fn add_disk(&mut self, role: MemberIndex) -> MemberHandle {
        let base = self.array.view.members[role.index()].data_offset.0 + self.first_row * self.shape.chunk;
        let bytes = vec![0x5a; (self.shape.rows * self.shape.chunk) as usize * SECTOR];
        self.disks.push(Disk::new(base, bytes));
        MemberHandle((self.disks.len() - 1) as u16)
    }

    fn place(&self, sector: u64) -> (MemberIndex, u64) {
        let place = self.geometry.locate(Sector(sector));
        let offset = self.array.view.members[place.member.index()].data_offset;
        (place.member, place.member_sector.0 + offset.0)
    }

    /// The first content: data that the model knows, and its parity.
    fn lay_out(&mut self) {
        let (first, count) = self.span();
        for sector in first..first + count {
            let (member, lba) = self.place(sector);
            let disk = &mut self.disks[member.index()];
            let at = (lba - disk.base) as usize * SECTOR;
            model::fill(&mut disk.bytes[at..at + SECTOR], 0, sector);
        }
        for row in 0..self.shape.rows {
            let parity = self.geometry.parity_member(StripeIndex(self.first_row + row));
            let range = (row * self.shape.chunk) as usize * SECTOR..((row + 1) * self.shape.chunk) as usize * SECTOR;
            let sum = self.xor_of_others(parity.index(), range.clone());
            self.disks[parity.index()].bytes[range].copy_from_slice(&sum);
        }
    }

    /// The XOR of all roles' bytes but one's.
    fn xor_of_others(&self, but: usize, range: std::ops::Range<usize>) -> Vec<u8> {
        let mut sum = vec![0; range.len()];
        for (role, member) in self.array.view.members.iter().enumerate() {
            if role != but {
                let bytes = &self.disks[member.handle.0 as usize].bytes[range.clone()];
                for (s, b) in sum.iter_mut().zip(bytes) {
                    *s ^= b;
                }
            }
        }
        sum
    }

    fn slot(&self, slot: usize, sectors: u32) -> Piece {
        self.memory.piece().sub(slot as u32 * SLOT_SECTORS, sectors)
    }

    pub(super) fn can_submit(&self) -> bool {
        !self.free_slots.is_empty()
    }

    /// Submits requests under one plug: operation, first sector of the array, length.
    pub(super) fn submit(&mut self, requests: &[(PartOp, u64, u32)]) {
        let mut parts = Vec::new();
        for &(op, at, sectors) in requests {
            let slot = self.free_slots.pop().expect("the caller asked can_submit");
            let request = self.next_request;
            self.next_request += 1;
            let started = self.model.tick();
            let piece = self.slot(slot, sectors.max(1));
            if matches!(op, PartOp::Write { .. }) {
                let mut bytes = vec![0; piece.bytes()];
                model::fill(&mut bytes, u64::from(request), at);
                self.slab.fill(piece, 0, &bytes);
                self.model.write_begins(u64::from(request), at, u64::from(sectors));
            } else {
                self.slab.fill(piece, 0, &vec![0xdd; piece.bytes()]);
            }
            let count = if op == PartOp::Flush {
                self.submit_flush(request);
                1
            } else {
                let (at, sectors) = (Sector(at), Sectors(u64::from(sectors)));
                let (client, memory) = (CLIENT, Memory::Piece(piece));
                let whole = Whole { client, request, op, at, sectors, memory };
                plug::split(&self.geometry, &whole, &mut parts)
            };
            let written = self.disks.iter().map(|d| d.writes).collect();
            let status = IoStatus::Ok;
            self.outstanding
                .insert(request, Outstanding { op, at, sectors, slot, started, parts: count, status, written });
        }
        plug::sort(&mut parts);
        self.post(&parts);
    }

    fn submit_flush(&mut self, request: u32) {
        let part = Part {
            client: CLIENT,
            op: PartOp::Flush,
            request,
            stripe: StripeIndex(0),
            data: DataIndex(0),
            from: 0,
            sectors: 0,
            piece: Piece::NONE,
        };
        self.post(&[part]);
    }

    fn post(&mut self, parts: &[Part]) {
        let home = self.rng.index(self.stations.len());
        let next = &mut self.letters;
        let slot_of = |_: &Part| {
            *next += 1;
            *next
        };
        let _ = self.board.post(parts, home, slot_of, &mut Traffic::default());
    }

    /// What a worker takes must not be in a region that another has to keep.
    fn check_owner(&self, worker: usize, parts: &[Part]) {
        for (closed, by, until) in &self.closed {
            let theirs = |part: &Part| part.op != PartOp::Flush && self.regions.of(part.stripe) == *closed;
            assert!(
                usize::from(by.0) == worker || *until <= self.now || !parts.iter().any(theirs),
                "a region with closed ranges changed its owner"
            );
        }
    }

    /// Hands the next piece of the array's sync to its worker; false when there is none.
    pub(super) fn sync_step(&mut self) -> bool {
        let Some(piece) = self.array.next_piece(&mut self.rng) else {
            return false;
        };
        let from = self.geometry.member_sector(piece.stripe).0 + u64::from(piece.from);
        let unmarked = matches!(piece.kind, SyncKind::Recovery(_) | SyncKind::Resync);
        let end = if unmarked { from + u64::from(piece.sectors) } else { from };
        self.syncing.insert(piece.request, (from, end));
        self.post(&[Part {
            client: SYNC,
            op: PartOp::Sync(piece.kind),
            request: piece.request,
            stripe: piece.stripe,
            data: DataIndex(0),
            from: piece.from,
            sectors: piece.sectors,
            piece: Piece::NONE,
        }]);
        true
    }

    /// Workers that have a reason to run.
    pub(super) fn runnable(&self) -> Vec<usize> {
        (0..self.stations.len())
            .filter(|&i| {
                let s = &self.stations[i];
                s.desk.has_work(&s.worker)
                    || !s.inputs.done.is_empty()
                    || !self.array.control[i].is_empty()
                    || s.wake.is_some_and(|w| w <= self.now)
            })
            .collect()
    }

    /// The next time at which something happens by itself.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        let wakes = self.stations.iter().filter_map(|s| s.wake);
        wakes.chain(self.array.tasks.iter().map(|t| t.0)).min()
    }

    /// One turn of a worker on some of what has arrived for it.
    pub(super) fn turn(&mut self, index: usize) {
        let station = &mut self.stations[index];
        if self.whole_turns || self.rng.percent(80) {
            let _ = station.desk.collect(&mut station.worker, &mut station.inputs.parts);
        }
        let parts = station.inputs.parts.len();
        let control = &mut self.array.control[index];
        // A part comes after the views that were sent before it.
        let controls = match parts {
            0 if !self.whole_turns => self.rng.index(control.len() + 1).max(control.len().min(1)),
            _ => control.len(),
        };
        station.inputs.control.extend(control.drain(..controls));
        let taken = std::mem::take(&mut station.inputs.parts);
        self.check_owner(index, &taken);
        let station = &mut self.stations[index];
        station.inputs.parts = taken;
        let mut asked_last = false;
        for control in &station.inputs.control {
            asked_last = matches!(control, ToWorker::Quiesce { .. });
            if let ToWorker::View(view) = control {
                station.view = Arc::clone(view);
                station.may_write = view.write_ok;
            }
        }
        let mut effects = Effects::default();
        station.wake = station.worker.turn(self.now, &mut station.inputs, &mut effects);
        station.take_shape(&self.slab);
        let inputs = &station.inputs;
        assert!(inputs.parts.is_empty() && inputs.done.is_empty() && inputs.control.is_empty());
        let quiet = |r: &Report| matches!(r, Report::Quiet { idle: true, .. });
        if asked_last && effects.reports.iter().any(quiet) {
            station.may_write = false;
        }
        self.carry_out(index, &effects);
    }

    fn carry_out(&mut self, index: usize, effects: &Effects) {
        for report in &effects.reports {
            self.hear(index, *report);
        }
        for cancel in &effects.cancels {
            self.disks[cancel.handle.0 as usize].cancel(index, cancel.id);
        }
        for request in &effects.requests {
            let segs = &effects.segs[request.segs_from as usize..][..request.segs as usize];
            self.check_allowed(index, request);
            if request.op != MemberOp::Flush {
                self.log.push(*request);
            }
            let disk = &mut self.disks[request.handle.0 as usize];
            disk.submit(index, *request, segs.to_vec());
        }
        for reply in &effects.replies {
            self.replied(*reply);
        }
    }

    fn hear(&mut self, index: usize, report: Report) {
        if let Report::ViewDone { generation } = report {
            self.check_in_force(index, generation);
        }
        self.reports.push(report);
        let after = self.now + Duration::from_micros(self.rng.below(200));
        self.array.report(index, report, after);
    }

    fn replied(&mut self, reply: PartReply) {
        if reply.client == SYNC {
            let piece = self.syncing.remove(&reply.request);
            piece.expect("one reply for each piece of sync");
            if self.array.sync.is_some() {
                self.array.piece_done(reply.request, reply.status, reply.mismatches);
            }
            return;
        }
        let request = self.outstanding.get_mut(&reply.request);
        let request = request.expect("no reply after the last");
        request.parts -= 1;
        request.status = request.status.and(reply.status);
        if request.parts > 0 {
            return;
        }
        let request = self.outstanding.remove(&reply.request).expect("just seen");
        *self.statuses.entry(request.status).or_default() += 1;
        assert!(request.status.is_ok() || self.may_fail, "{request:?} failed");
        self.check_released(&request);
        self.check_content(reply.request, &request);
        // Whoever still uses the memory finds rubbish.
        let piece = self.slot(request.slot, SLOT_SECTORS.min(request.sectors.max(1)));
        self.slab.fill(piece, 0, &vec![0xcc; piece.bytes()]);
        self.free_slots.push(request.slot);
    }

    pub(super) fn apply(&mut self, disk: usize) {
        let nth = self.rng.index(1 << 16);
        self.disks[disk].apply(nth, &self.slab);
    }

    pub(super) fn answer(&mut self, disk: usize) {
        let nth = self.rng.index(1 << 16);
        let closes = self.closes && self.rng.percent(10);
        let until = self.now + Duration::from_micros(self.rng.below(3000));
        let (pending, done) = self.disks[disk].answer(nth, closes.then_some(until));
        if let Some(until) = done.closed_until {
            let row = (pending.request.lba.0 - self.disks[disk].base) / self.shape.chunk;
            let region = self.regions.of(StripeIndex(self.first_row + row));
            let worker = WorkerId(pending.worker as u8);
            self.closed.push((region, worker, until));
        }
        self.stations[pending.worker].inputs.done.push(done);
    }

    /// Carries out array tasks that are due.
    pub(super) fn array_step(&mut self) {
        let tasks = &mut self.array.tasks;
        let first = (0..tasks.len()).min_by_key(|i| tasks[*i].0);
        let Some(first) = first.filter(|i| tasks[*i].0 <= self.now) else {
            return;
        };
        let (_, task) = tasks.swap_remove(first);
        if !self.array.carry_out(task) {
            self.array.plan(self.now + Duration::from_micros(100), task);
        }
    }

    /// Makes some sectors of one in-sync member unreadable, at most one per row.
    pub(super) fn make_bad(&mut self) {
        if !self.array.is_whole() || self.disks.iter().any(|d| d.mode != Mode::Works) {
            return;
        }
        let role = self.rng.index(self.shape.members as usize);
        let handle = self.array.view.members[role].handle.0 as usize;
        let rows = self.shape.rows * self.shape.chunk;
        let from = self.rng.below(rows);
        let taken: HashSet<u64> = self.disks.iter().flat_map(|d| d.bad.iter().map(|s| s - d.base)).collect();
        for row in from..(from + 1 + self.rng.below(4)).min(rows) {
            if !taken.contains(&row) {
                let disk = &mut self.disks[handle];
                disk.bad.insert(disk.base + row);
            }
        }
    }

    /// All bad sectors can be read again: another member is about to fail.
    pub(super) fn mend_all(&mut self) {
        for disk in &mut self.disks {
            disk.bad.clear();
        }
    }

    /// Parity of the window's rows from `from` on is rubbish, and the array knows.
    pub(super) fn distrust(&mut self, from: u64) {
        let start = (self.first_row + from) * self.shape.chunk;
        for row in from..self.shape.rows {
            let parity = self.geometry.parity_member(StripeIndex(self.first_row + row));
            let range = (row * self.shape.chunk) as usize * SECTOR..((row + 1) * self.shape.chunk) as usize * SECTOR;
            self.disks[parity.index()].bytes[range].fill(0x77);
        }
        self.array.view.parity_trusted_below = Sector(start);
        self.array.publish();
        self.array.start_sync(SyncKind::Resync, start);
    }

    /// What the device was sent before it was dropped need not be on it any more.
    pub(super) fn forget_written(&mut self, handle: MemberHandle) {
        for request in self.outstanding.values_mut() {
            if let Some(written) = request.written.get_mut(handle.0 as usize) {
                *written = 0;
            }
        }
    }

    /// Cancels and ends everything: the array is abandoned.
    pub(super) fn abandon(&mut self) {
        self.may_fail = true;
        self.array.view.abandon = true;
        self.array.publish();
    }

    pub(super) fn counters(&self, worker: usize) -> super::super::Counters {
        self.stations[worker].worker.counters()
    }
}
