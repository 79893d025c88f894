//! AoE devices as members: the one place where the engine meets the network.
//!
//! Each owner (worker, control thread, opener) has an initiator of its own with its own sockets, made with its first AoE member; initiators
//! share a device's [`Credits`] and nothing else. Data go between frames and the slab without another copy.
//!
//! A request to a device that is not found yet, or that finds the initiator full, waits here in order. Bound: what the owner has
//! outstanding.

mod care;
pub(crate) mod finder;
pub mod paths;

pub use care::Care;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use aoe_net::driver::{Driver, Memory};
use aoe_net::link::{Link, LinkWatch};
use aoe_proto::initiator::{
    Config, Credits, DeviceId, Durability, Event, Found, Initiator, Op, Request, RequestId, Status, SubmitError,
    Tunables, WorkerId,
};
use aoe_proto::wire::{Address, Lba};
use raid_core::units::Sectors;

use super::devices::DeviceEvent;
use super::{Done, MemberOp, MemberRequest, MemberRequestId, Owner};
use crate::array::MemberEvent;
use crate::message::{IoStatus, MemberHandle};
use crate::slab::{Piece, Slab};

/// Makes an owner's links: one per interface.
pub trait Links: fmt::Debug + fmt::Display + Send + Sync {
    /// Opens the links of an initiator with this number; with `discovers` they also pass what is not addressed to it alone.
    fn open(&self, worker: WorkerId, discovers: bool) -> io::Result<Vec<Box<dyn Link>>>;

    /// The initiators' settings.
    fn tunables(&self) -> Tunables;

    /// What tells of changes of the interfaces, where they are this host's.
    fn watch(&self) -> Option<LinkWatch> {
        None
    }

    /// Where an initiator's tags start: different at each call, and in each run of the program.
    fn seed(&self) -> u64 {
        uuid::Uuid::new_v4().as_u64_pair().0
    }
}

/// An AoE device that was found.
#[derive(Debug)]
pub struct AoeDisk {
    links: Arc<dyn Links>,
    address: Address,
    credits: Arc<Credits>,
    sectors: Sectors,
    durability: Durability,
    /// The start of our shelf that was found.
    boot: Option<u32>,
    /// Taken at its word that a flush is one, whatever it shows.
    trusted: bool,
}

impl AoeDisk {
    /// A device whose properties are known without asking, as in a simulation; elsewhere the runtime asks.
    pub fn known(
        links: Arc<dyn Links>,
        address: Address,
        sectors: Sectors,
        durability: Durability,
        boot: Option<u32>,
    ) -> AoeDisk {
        AoeDisk { links, address, credits: Arc::new(Credits::new()), sectors, durability, boot, trusted: false }
    }

    /// Which start of it was found, if it is our shelf.
    pub fn boot(&self) -> Option<u32> {
        self.boot
    }

    /// Its size.
    pub fn sectors(&self) -> Sectors {
        self.sectors
    }

    /// Its shelf and slot.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Whether its flushes can't be relied on.
    pub fn volatile(&self) -> bool {
        self.durability != Durability::Durable
    }

    /// The same device, taken at its word that a flush is one (`--durable`).
    pub fn trusted(&self) -> AoeDisk {
        AoeDisk {
            links: Arc::clone(&self.links),
            credits: Arc::clone(&self.credits),
            durability: Durability::Durable,
            trusted: true,
            ..*self
        }
    }
}

/// What initiators have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames answered.
    pub frames_answered: u64,
    /// Bytes of data read and written in them.
    pub data_bytes: u64,
    /// Copies of frames sent after the first.
    pub retransmits: u64,
}

/// The initiator's number of an owner.
fn number(owner: Owner) -> WorkerId {
    match owner {
        Owner::Worker(id) => WorkerId(id.0),
        Owner::Control => WorkerId(254),
        Owner::Opener => WorkerId(255),
    }
}

/// Whether beacons come to an owner: to the control thread, which is there as long as the array.
fn discovers(owner: Owner) -> bool {
    owner == Owner::Control
}

/// Whose initiator has this number.
fn owner_of(worker: WorkerId) -> Owner {
    match worker.0 {
        254 => Owner::Control,
        255 => Owner::Opener,
        id => Owner::Worker(crate::message::WorkerId(id)),
    }
}

/// Where nothing is read or written.
struct NoMemory;

impl Memory for NoMemory {
    fn write(&mut self, _: RequestId, _: usize, _: &[u8]) {}
    fn slices<'a>(&'a self, _: RequestId, _: usize, _: usize, _: &mut dyn FnMut(&'a [u8])) {}
}

/// An initiator that knows its links.
fn driver(links: &Arc<dyn Links>, owner: Owner, discovers: bool, now: Duration) -> io::Result<Driver> {
    let config = Config { discovers, tunables: links.tunables(), ..Config::new(number(owner), links.seed()) };
    let mut driver = Driver::new(Initiator::new(config), links.open(number(owner), discovers)?);
    if let Some(watch) = links.watch() {
        driver.watch(watch);
    }
    // The first pump tells the initiator of its links: what it asks before that goes nowhere.
    driver.pump(now, &mut NoMemory);
    Ok(driver)
}

/// A request at the initiator, or on its way there.
#[derive(Debug)]
struct Slot {
    id: MemberRequestId,
    handle: MemberHandle,
    request: Request,
    /// The request's memory: where each piece starts, in bytes, and the piece.
    segs: Vec<(usize, Piece)>,
    live: bool,
    serial: u32,
}

/// The memory of all requests, as the driver sees it.
#[derive(Debug)]
struct Slots {
    slab: Arc<Slab>,
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    fn index(id: RequestId) -> usize {
        (id.0 & 0xffff_ffff) as usize
    }

    fn get(&self, id: RequestId) -> &Slot {
        let slot = &self.slots[Slots::index(id)];
        assert!(slot.live && slot.request.id == id, "the initiator speaks of a request that it has");
        slot
    }

    /// Calls `each` with the slab's pieces for `len` bytes from `offset` of the request, in order.
    fn pieces(&self, id: RequestId, offset: usize, len: usize, mut each: impl FnMut(Piece, usize, usize)) {
        let segs = &self.get(id).segs;
        let mut at = segs.partition_point(|(start, _)| *start <= offset) - 1;
        let (mut offset, end) = (offset, offset + len);
        while offset < end {
            let (start, piece) = segs[at];
            let within = offset - start;
            let bytes = (piece.bytes() - within).min(end - offset);
            each(piece, within, bytes);
            offset += bytes;
            at += 1;
        }
    }
}

impl Memory for Slots {
    fn write(&mut self, id: RequestId, offset: usize, data: &[u8]) {
        let mut from = 0;
        self.pieces(id, offset, data.len(), |piece, within, bytes| {
            self.slab.fill(piece, within, &data[from..from + bytes]);
            from += bytes;
        });
    }

    fn slices<'a>(&'a self, id: RequestId, offset: usize, len: usize, each: &mut dyn FnMut(&'a [u8])) {
        self.pieces(id, offset, len, |piece, within, bytes| {
            // SAFETY: the data of a write: front ends leave a request's memory alone until the reply, and runs theirs until their writes
            // have ended, which is after the last frame that carries them has left. Frames are asked for one at a time, and not kept.
            each(unsafe { self.slab.bytes(piece, within, bytes) });
        });
    }
}

/// A device of this owner.
#[derive(Debug)]
struct Open {
    handle: MemberHandle,
    address: Address,
    device: DeviceId,
    found: bool,
    /// Told as silent because it was not found when asked for.
    told_silent: bool,
    /// Since when a request waits for it to be found.
    wanted: Option<Duration>,
    /// Its flushes are flushes, as the operator says.
    trusted: bool,
}

/// One owner's initiator and what it has outstanding.
pub(super) struct Aoe {
    driver: Driver,
    links: Arc<dyn Links>,
    owner: Owner,
    slots: Slots,
    open: Vec<Open>,
    /// Requests not taken by the initiator yet.
    backlog: VecDeque<RequestId>,
    /// Ended without the initiator.
    ended: Vec<Done>,
    serial: u32,
    silence: Duration,
    /// Copies of writes of an earlier run of the array may be in the network until then: nothing is written.
    quiet_until: Duration,
    /// The time of the last pump.
    now: Duration,
}

impl Drop for Aoe {
    /// Gives back what credits the initiator holds: other owners of the devices live on.
    fn drop(&mut self) {
        for open in &self.open {
            self.driver.initiator().close(self.now, open.device);
        }
    }
}

impl fmt::Debug for Aoe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aoe").field("open", &self.open).field("backlog", &self.backlog.len()).finish_non_exhaustive()
    }
}

impl Aoe {
    pub(super) fn new(slab: &Arc<Slab>, disk: &AoeDisk, owner: Owner, now: Duration) -> io::Result<Aoe> {
        let driver = driver(&disk.links, owner, discovers(owner), now)?;
        let slots = Slots { slab: Arc::clone(slab), slots: Vec::new(), free: Vec::new() };
        let silence = Duration::from_millis(disk.links.tunables().aoe_silence);
        let lifetime = Duration::from_millis(disk.links.tunables().aoe_frame_lifetime);
        // An opener writes before there is an array; whoever runs one begins after that.
        let quiet_until = if owner == Owner::Opener { now } else { now + lifetime };
        Ok(Aoe {
            driver,
            links: Arc::clone(&disk.links),
            owner,
            slots,
            open: Vec::new(),
            backlog: VecDeque::new(),
            ended: Vec::new(),
            serial: 0,
            silence,
            quiet_until,
            now,
        })
    }

    /// New settings, at once.
    pub(super) fn tune(&mut self, now: Duration, tunables: Tunables) {
        self.driver.initiator().set_tunables(now, tunables).expect("who sets them checks them against the table");
        self.silence = Duration::from_millis(tunables.aoe_silence);
    }

    pub(super) fn attach(&mut self, handle: MemberHandle, disk: &AoeDisk, now: Duration) {
        if self.open.iter().any(|open| open.handle == handle) {
            self.detach(handle, now);
        }
        let (address, credits) = (disk.address, Arc::clone(&disk.credits));
        // Another disk may be at the address of one that was lost: the initiator is to learn anew who is there.
        for lost in self.open.iter().filter(|open| open.address == address) {
            self.driver.initiator().close(now, lost.device);
        }
        let device = self.driver.initiator().open(now, address, credits);
        if now < self.quiet_until {
            self.driver.initiator().close_range(now, address, Lba(0), u64::MAX, self.quiet_until);
        }
        self.open.push(Open {
            handle,
            address,
            device,
            found: false,
            told_silent: false,
            wanted: None,
            trusted: disk.trusted,
        });
    }

    pub(super) fn detach(&mut self, handle: MemberHandle, now: Duration) {
        if let Some(at) = self.open.iter().position(|open| open.handle == handle) {
            let open = self.open.swap_remove(at);
            // Closing a device that was closed already does nothing: its name is not used again.
            self.driver.initiator().close(now, open.device);
        }
    }

    pub(super) fn submit(&mut self, now: Duration, request: &MemberRequest, segs: &[Piece]) {
        let MemberRequest { id, handle, op, lba, sectors, .. } = *request;
        let Some(device) = self.open.iter().find(|open| open.handle == handle).map(|open| open.device) else {
            self.ended.push(Done { id, status: IoStatus::Gone, boot: None, closed_until: None });
            return;
        };
        let index = self.slots.free.pop().unwrap_or(self.slots.slots.len() as u32);
        self.serial = self.serial.wrapping_add(1);
        let name = RequestId(u64::from(self.serial) << 32 | u64::from(index));
        let op = match op {
            MemberOp::Read => Op::Read,
            MemberOp::Write => Op::Write { fua: false },
            MemberOp::Flush => Op::Flush,
        };
        let request = Request { id: name, device, op, lba: Lba(lba.0), sectors };
        if index as usize == self.slots.slots.len() {
            self.slots.slots.push(Slot { id, handle, request, segs: Vec::new(), live: true, serial: self.serial });
        }
        let slot = &mut self.slots.slots[index as usize];
        (slot.id, slot.handle, slot.request, slot.live, slot.serial) = (id, handle, request, true, self.serial);
        slot.segs.clear();
        let mut start = 0;
        slot.segs.extend(segs.iter().map(|piece| {
            let seg = (start, *piece);
            start += piece.bytes();
            seg
        }));
        self.backlog.push_back(name);
        self.pass_on(now);
    }

    /// Hands the backlog to the initiator, in order, as far as it takes it; whether it took any. What waits for a device to be found lets others
    /// pass.
    fn pass_on(&mut self, now: Duration) -> bool {
        let mut taken = false;
        for _ in 0..self.backlog.len() {
            let Some(name) = self.backlog.pop_front() else { break };
            let slot = self.slots.get(name);
            let (request, handle) = (slot.request, slot.handle);
            match self.driver.initiator().submit(now, request) {
                Ok(()) => taken = true,
                Err(SubmitError::Full) => {
                    self.backlog.push_front(name);
                    break;
                }
                Err(SubmitError::NotFound) => {
                    self.backlog.push_back(name);
                    if let Some(open) = self.open.iter_mut().find(|open| open.handle == handle) {
                        open.wanted.get_or_insert(now);
                    }
                }
                Err(SubmitError::NoDevice) => self.end(name, IoStatus::Gone, None, None),
                Err(SubmitError::OutOfRange | SubmitError::NoFua) => self.end(name, IoStatus::Failed, None, None),
            }
        }
        taken
    }

    fn end(&mut self, name: RequestId, status: IoStatus, boot: Option<u32>, closed_until: Option<Duration>) {
        let index = Slots::index(name);
        let slot = &mut self.slots.slots[index];
        slot.live = false;
        self.slots.free.push(index as u32);
        self.ended.push(Done { id: slot.id, status, boot, closed_until });
    }

    pub(super) fn cancel(&mut self, now: Duration, handle: MemberHandle, id: MemberRequestId) {
        let slot = self.slots.slots.iter().find(|slot| slot.live && slot.id == id && slot.handle == handle);
        let Some(name) = slot.map(|slot| slot.request.id) else { return };
        if let Some(at) = self.backlog.iter().position(|waiting| *waiting == name) {
            self.backlog.remove(at);
            self.end(name, IoStatus::Cancelled, None, None);
        } else {
            self.driver.initiator().cancel(now, name);
        }
    }

    pub(super) fn traffic(&mut self) -> Traffic {
        let counters = self.driver.initiator().counters();
        Traffic {
            frames_answered: counters.frames_answered,
            data_bytes: counters.bytes_read + counters.bytes_written,
            retransmits: counters.retransmits,
        }
    }

    /// Receives, sends, and collects what has ended.
    pub(super) fn pump(&mut self, now: Duration, done: &mut Vec<Done>) {
        self.now = now;
        loop {
            self.driver.pump(now, &mut self.slots);
            self.collect(now);
            // What the initiator takes now leaves with another pump, not when something next arrives.
            if !self.pass_on(now) {
                break;
            }
        }
        done.append(&mut self.ended);
    }

    fn collect(&mut self, now: Duration) {
        while let Some(completion) = self.driver.initiator().poll_completion() {
            let slot = self.slots.get(completion.id);
            let (request, handle) = (slot.request, slot.handle);
            let closed = match (request.op, self.open.iter().find(|open| open.handle == handle)) {
                (Op::Write { .. }, Some(open)) => {
                    let address = open.address;
                    self.driver.initiator().closed_until(now, address, request.lba, request.sectors)
                }
                _ => None,
            };
            // A flush was carried out by the start that it names; what that means is for whoever knows which one the array goes on.
            let flushed = request.op == Op::Flush && completion.status == Status::Restarted;
            let status = if flushed { IoStatus::Ok } else { io_status(completion.status) };
            self.end(completion.id, status, completion.boot, closed);
        }
    }

    /// What has become known of the devices, and whom to wake.
    pub(super) fn events(&mut self, now: Duration, events: &mut Vec<DeviceEvent>) {
        while let Some(event) = self.driver.initiator().poll_event() {
            let silence = self.silence;
            let since = now.saturating_sub(silence);
            match event {
                Event::CreditsFreed { worker } => events.push(DeviceEvent::Wake(owner_of(worker))),
                Event::Found(Found { device, identify, .. }) => {
                    if let Some(open) = self.of(device) {
                        if let Some(boot) = identify.boot_number() {
                            events.push(DeviceEvent::Member(open.handle, MemberEvent::Boot(boot)));
                        }
                        let told = std::mem::take(&mut open.told_silent);
                        (open.found, open.wanted) = (true, None);
                        if told {
                            events.push(DeviceEvent::Member(open.handle, MemberEvent::Answers));
                        }
                    }
                }
                Event::Silent { device } => self.tell(device, MemberEvent::Silent { since }, events),
                Event::Answers { device } => self.tell(device, MemberEvent::Answers, events),
                Event::Gone { device } => {
                    if let Some(open) = self.of(device) {
                        // Its being found again is what ends the silence.
                        (open.found, open.told_silent) = (false, true);
                    }
                    self.tell(device, MemberEvent::Gone, events);
                }
                Event::Restarted { device, boot } => {
                    self.tell(device, boot.map_or(MemberEvent::Restarted, MemberEvent::Boot), events);
                }
                Event::Fenced { device } => self.tell(device, MemberEvent::Fenced, events),
                Event::DurabilityChanged { device, durability: Durability::Volatile(_) } => {
                    if self.of(device).is_some_and(|open| !open.trusted) {
                        self.tell(device, MemberEvent::Volatile, events);
                    }
                }
                Event::Conflict { device, port, mac } => self.conflict(device, port, mac),
                Event::SizeChanged { device, sectors } => {
                    if let Some(open) = self.of(device) {
                        tracing::warn!("{}: it has {sectors} sectors now", open.address);
                    }
                }
                Event::Unusable { device, .. } | Event::DurabilityChanged { device, .. } => {
                    if let Some(open) = self.of(device) {
                        tracing::warn!(device = %open.address, ?event, "AoE device");
                    }
                }
                Event::PathUp { device, port, mac } => self.path_changed(device, port, mac, "up"),
                Event::PathDown { device, port, mac } => self.path_changed(device, port, mac, "down"),
                Event::Seen(_) => tracing::debug!(?event, "AoE"),
            }
        }
        for open in &mut self.open {
            let late = open.wanted.filter(|since| now >= *since + self.silence);
            if let (Some(since), false, false) = (late, open.found, open.told_silent) {
                open.told_silent = true;
                events.push(DeviceEvent::Member(open.handle, MemberEvent::Silent { since }));
            }
        }
    }

    fn of(&mut self, device: DeviceId) -> Option<&mut Open> {
        self.open.iter_mut().find(|open| open.device == device)
    }

    fn tell(&mut self, device: DeviceId, event: MemberEvent, events: &mut Vec<DeviceEvent>) {
        if let Some(open) = self.of(device) {
            events.push(DeviceEvent::Member(open.handle, event));
        }
    }

    pub(super) fn wake_at(&self, now: Duration) -> Duration {
        let unfound = self.open.iter().filter(|open| !open.found && !open.told_silent);
        let silent = unfound.filter_map(|open| open.wanted).map(|since| since + self.silence).min();
        let wake = self.driver.wake_at(now);
        silent.map_or(wake, |at| at.min(wake))
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.driver.fds()
    }

    pub(super) fn rest(&self) -> Option<Duration> {
        self.driver.rest()
    }
}

/// Waits for descriptors.
pub(super) fn wait(fds: &[BorrowedFd<'_>], timeout: Duration) {
    aoe_net::wake::wait(fds, Some(timeout.max(Duration::from_millis(1))));
}

fn io_status(status: Status) -> IoStatus {
    match status {
        // A volatile device makes nothing durable, and the array counts on that.
        Status::Ok | Status::Volatile => IoStatus::Ok,
        Status::Restarted => IoStatus::Restarted,
        Status::Medium => IoStatus::Medium,
        Status::Fenced => IoStatus::Fenced,
        Status::DeviceGone => IoStatus::Gone,
        Status::Cancelled => IoStatus::Cancelled,
        Status::Aborted | Status::OutOfRange | Status::Fault | Status::Refused(_) => IoStatus::Failed,
    }
}
