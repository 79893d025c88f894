//! Finding devices and paths: config queries and their replies, IDENTIFY over each path, beacons, restarts.
//!
//! An open device is queried by broadcast at its address on every port: when it is opened, once in `aoe_requery` while it
//! answers, and from `aoe_rediscover` on with back-off while it is silent or not found; a silent one by unicast over each of its
//! paths too. When a port appears that is asked at once, and again at growing intervals: what is behind it may need a moment. A config reply brings the buffer count, and a path if its source is new.
//! It proves nothing about data, so each path is proven by IDENTIFY, and only an ATA reply makes a path good again.

use core::time::Duration;

use super::device::{Device, pending};
use super::frame::{Owner, Place, Queue, RequestState};
use super::path::{Path, PathState};
use super::slab::NONE;
use super::types::{DeviceId, Op, Seen, Status, TRANSMIT_HEADER, Transmit};
use super::{ASKED_MAX, INTERNAL_MAX, Initiator, QUERIES_MAX, SEEN_MAX};
use crate::port::PortId;
use crate::wire::{
    Address, CCmd, Command, ConfigInfo, Header, Identify, IdentifyError, Lba, MIN_FRAME, MacAddr, SECTOR, Tag,
};

/// How long a path with another device at its end is not looked at again.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// Beacons that follow one that was told within this time are repetitions of it.
const BEACON_QUIET: Duration = Duration::from_secs(1);
/// Copies of an IDENTIFY without an answer after which a new path is given up, until the next config reply.
pub(super) const PROVE_COPIES: u32 = 8;

/// A config query that waits to be sent.
#[derive(Clone, Copy)]
pub(super) struct Query {
    port: PortId,
    dst: MacAddr,
    address: Address,
}

impl Initiator {
    /// Asks for all devices on all ports; replies of those that are not open come as
    /// [`Event::Seen`](super::Event::Seen). Open devices that are not found or silent are looked for at once, too. Does
    /// nothing unless the initiator discovers.
    pub fn discover(&mut self, now: Duration) {
        if !self.discovers {
            return;
        }
        self.query_all_ports(Address::ALL);
        for device in self.devices.iter_mut().filter(|device| device.open) {
            if device.silent || device.identity.is_none() {
                device.next_query = now;
            }
        }
    }

    /// Asks a device anew what it is, over each path in use: it may have another size. What comes of it is told by
    /// [`Event::SizeChanged`](super::Event::SizeChanged).
    pub fn revalidate(&mut self, now: Duration, device: DeviceId) {
        let Some(at) = self.index(device) else { return };
        for path in 0..self.devices[at as usize].paths.len() as u8 {
            if self.path(at, path).state == PathState::Up {
                self.prove(now, at, path);
            }
        }
        self.devices[at as usize].next_query = now;
    }

    /// Forgets the paths of a device that are not in use, or `all` of them, and looks for the device at once. Requests go on over the paths
    /// that are left, or found.
    pub fn flush_paths(&mut self, now: Duration, device: DeviceId, all: bool) {
        let Some(at) = self.index(device) else { return };
        for path in 0..self.devices[at as usize].paths.len() as u8 {
            if all || self.path(at, path).state != PathState::Up {
                self.vacate(now, at, path);
            }
        }
        let soon = self.tunables.rediscover() / 4;
        let device = &mut self.devices[at as usize];
        (device.next_query, device.query_interval) = (now, soon);
        self.wake(at);
    }

    fn query_all_ports(&mut self, address: Address) {
        for port in 0..=u8::MAX {
            if self.ports[usize::from(port)].is_some() {
                self.queue_query(PortId(port), MacAddr::BROADCAST, address);
            }
        }
    }

    fn queue_query(&mut self, port: PortId, dst: MacAddr, address: Address) {
        if self.queries.len() == QUERIES_MAX {
            self.counters.queries_dropped += 1;
            return;
        }
        self.queries.push_back(Query { port, dst, address });
    }

    /// The time for a device's queries has come.
    pub(super) fn query_device(&mut self, now: Duration, at: u16) {
        let device = &mut self.devices[at as usize];
        // A device that has no path would not be noticed to be silent before it is asked for something.
        let lost = device.silent || device.identity.is_none() || device.has_no_path();
        let longest = if lost { self.tunables.rediscover_max() } else { self.tunables.requery() };
        let interval = device.query_interval.min(longest);
        device.query_interval = interval * 2;
        device.next_query = now + interval;
        let address = device.address;
        self.query_all_ports(address);
        if !lost {
            return;
        }
        for path in 0..self.devices[at as usize].paths.len() as u8 {
            let path = self.path(at, path);
            if path.state != PathState::Vacant {
                let (port, mac) = (path.port, path.mac);
                self.queue_query(port, mac, address);
            }
        }
    }

    /// The next config query to send.
    pub(super) fn send_query(&mut self, now: Duration) -> Option<Transmit> {
        while let Some(query) = self.queries.front().copied() {
            let Some(port) = self.ports[usize::from(query.port.0)] else {
                self.queries.pop_front();
                continue;
            };
            let lifetime = self.tunables.frame_lifetime();
            let tag = match self.tags.allocate(now, lifetime, NONE) {
                Ok(tag) => tag,
                Err(until) => {
                    self.tag_wait = Some(until);
                    return None;
                }
            };
            self.queries.pop_front();
            self.tags.sent(now, tag);
            self.asked[self.asked_next] = Some((tag, now));
            self.asked_next = (self.asked_next + 1) % ASKED_MAX;
            self.counters.frames_sent += 1;
            let header = Header::request(query.dst, port.mac, query.address, Command::CONFIG, tag);
            let mut bytes = [0; TRANSMIT_HEADER];
            let header_len = ConfigInfo::request(CCmd::READ, &[]).emit(&header, &mut bytes);
            return Some(Transmit {
                port: query.port,
                header: bytes,
                header_len,
                payload: None,
                pad: MIN_FRAME - header_len,
            });
        }
        None
    }

    pub(super) fn handle_config(&mut self, now: Duration, port: PortId, header: &Header, arg: &[u8]) {
        let beacon = header.tag == Tag::UNSOLICITED;
        if !beacon && !self.tags.is_ours(header.tag) {
            self.counters.stray += 1;
            return;
        }
        let Ok(info) = ConfigInfo::parse(arg) else {
            self.counters.malformed += 1;
            return;
        };
        let usable = header.error.is_none()
            && info.ccmd == CCmd::READ
            && !header.address.is_wildcard()
            && !header.src.is_multicast()
            && self.ports[usize::from(port.0)].is_some();
        if !usable {
            self.counters.malformed += 1;
            return;
        }
        match self.device_at(header.address) {
            Some(at) => self.device_told(now, at, port, header, &info),
            None if self.discovers => self.see(port, header, &info),
            None => {}
        }
    }

    /// A device that is not open showed itself.
    fn see(&mut self, port: PortId, header: &Header, info: &ConfigInfo<'_>) {
        if self.seen.len() == SEEN_MAX {
            self.counters.seen_dropped += 1;
            return;
        }
        self.seen.push_back(Seen {
            address: header.address,
            port,
            mac: header.src,
            buffer_count: info.buffer_count,
            firmware: info.firmware,
            sectors_max: info.sectors_max(),
            config_len: info.string.len() as u16,
            beacon: header.tag == Tag::UNSOLICITED,
        });
    }

    /// A config reply or beacon of an open device.
    fn device_told(&mut self, now: Duration, at: u16, port: PortId, header: &Header, info: &ConfigInfo<'_>) {
        let known = self.devices[at as usize].find_path(port, header.src);
        if known.is_some_and(|known| self.path(at, known).is_refused(now)) {
            return;
        }
        // First, so that a new path's window starts below the right cap.
        self.devices[at as usize].buffer_count = info.buffer_count;
        self.apply_limit(at);
        let Some(path_index) = known.or_else(|| self.add_path(now, at, port, header.src)) else {
            self.counters.paths_dropped += 1;
            return;
        };
        let beacon = header.tag == Tag::UNSOLICITED;
        let asked = self.asked.iter().flatten().find(|(tag, _)| *tag == header.tag);
        let rtt = asked.map(|(_, sent)| now.saturating_sub(*sent));
        let info_port = self.ports[usize::from(port.0)];
        let path = self.path_mut(at, path_index);
        path.target_sectors = info.sectors_max();
        path.set_ceiling(now, info_port);
        path.after_beacon |= beacon && known.is_none();
        if let Some(rtt) = rtt.filter(|_| !path.rtt.is_sampled()) {
            path.rtt.sample(rtt);
        }
        let state = path.state;
        if matches!(state, PathState::Refused { .. }) {
            path.state = PathState::Unproven;
        }
        let restarted = beacon && known.is_some() && self.heard_beacon(now, at);
        let device = &self.devices[at as usize];
        let unproven = !matches!(state, PathState::Up | PathState::Down);
        if unproven || device.silent || beacon {
            self.prove(now, at, path_index);
        }
        if restarted {
            self.tell(at, pending::RESTARTED);
        }
        self.wake(at);
    }

    /// Whether a beacon from a known address means that the target restarted. Our shelf has a boot number for that, and
    /// IDENTIFY will tell.
    fn heard_beacon(&mut self, now: Duration, at: u16) -> bool {
        let device = &mut self.devices[at as usize];
        let foreign = device.identity.as_ref().is_some_and(|known| !known.is_ours());
        if !foreign || now < device.beacon_quiet_until {
            return false;
        }
        device.beacon_quiet_until = now + BEACON_QUIET;
        true
    }

    fn add_path(&mut self, now: Duration, at: u16, port: PortId, mac: MacAddr) -> Option<u8> {
        let mut place = self.devices[at as usize].place_for_path();
        if place.is_none() {
            // One that is down, or leads elsewhere, makes room.
            let idle = |path: &Path| !matches!(path.state, PathState::Up | PathState::Unproven) && path.in_flight == 0;
            let useless = self.devices[at as usize].paths.iter().position(idle)?;
            self.vacate(now, at, useless as u8);
            place = Some(useless);
        }
        let cap = self.devices[at as usize].credits.limit();
        let path = Path::new(self.path_serial, port, mac, cap, &self.tunables);
        self.path_serial += 1;
        let paths = &mut self.devices[at as usize].paths;
        let place = place?;
        if place == paths.len() {
            paths.push(path);
        } else {
            paths[place] = path;
        }
        Some(place as u8)
    }

    /// Starts IDENTIFY over a path, unless it is under way; a probe gives way to it.
    pub(super) fn prove(&mut self, now: Duration, at: u16, path: u8) {
        if let Some(request) = self.path(at, path).pinned
            && matches!(self.requests[request].owner, Owner::Probe { .. })
        {
            self.finish(now, request, Status::Cancelled);
        }
        self.start_internal(at, path, Owner::Prove { path }, Op::Identify, 1);
    }

    /// Starts an internal request, unless there is one on this path or there are too many: whether it did.
    pub(super) fn start_internal(&mut self, at: u16, path: u8, owner: Owner, op: Op, sectors: u32) -> bool {
        if self.internal == INTERNAL_MAX || self.path(at, path).pinned.is_some() {
            return false;
        }
        let mut state = RequestState::new(owner, at, op, Lba(0), sectors);
        state.queue = Queue::Ready;
        let index = self.requests.insert(state);
        self.internal += 1;
        self.path_mut(at, path).pinned = Some(index);
        let device = &mut self.devices[at as usize];
        device.pinned.push_back(&mut self.requests, index);
        self.wake(at);
        true
    }

    /// IDENTIFY data came over a path.
    pub(super) fn proven(&mut self, now: Duration, at: u16, path_index: u8, data: Result<Identify, IdentifyError>) {
        let Ok(identify) = data else {
            self.not_proven(now, at, path_index);
            return;
        };
        if identify.logical_sector != SECTOR as u32 {
            let device = &mut self.devices[at as usize];
            if device.logical_sector != identify.logical_sector {
                device.logical_sector = identify.logical_sector;
                self.tell(at, pending::UNUSABLE);
            }
            self.not_proven(now, at, path_index);
            return;
        }
        match self.devices[at as usize].identity {
            None => self.found(now, at, identify),
            Some(known) if Device::is_same(&known, &identify) => {
                self.found_again(now, at, path_index, &known, identify);
            }
            Some(_) => {
                self.refuse(now, at, path_index);
                return;
            }
        }
        self.path_up(now, at, path_index);
        self.probe_if_due(now, at, path_index);
        self.retire_lossy(now, at);
    }

    fn found(&mut self, now: Duration, at: u16, identify: Identify) {
        let interval = self.tunables.requery();
        // It may have been given up and be back.
        self.heard_boot(at, identify.boot_number());
        let device = &mut self.devices[at as usize];
        // A beacon that it was found by, and copies of that, are of this start.
        for path in &mut device.paths {
            if core::mem::take(&mut path.after_beacon) {
                device.beacon_quiet_until = now + BEACON_QUIET;
            }
        }
        device.durability = Device::judge_durability(&identify);
        device.identity = Some(identify);
        device.flush_worked = false;
        device.logical_sector = identify.logical_sector;
        (device.next_query, device.query_interval) = (now + interval, interval);
        self.tell(at, pending::FOUND);
    }

    fn found_again(&mut self, now: Duration, at: u16, path_index: u8, known: &Identify, identify: Identify) {
        self.heard_boot(at, identify.boot_number());
        let after_beacon = core::mem::take(&mut self.path_mut(at, path_index).after_beacon);
        if after_beacon && self.heard_beacon(now, at) {
            self.tell(at, pending::RESTARTED);
        }
        if known.sectors != identify.sectors {
            self.tell(at, pending::SIZE);
        }
        self.devices[at as usize].identity = Some(identify);
    }

    /// Another device is at a path's end: the first one stays.
    fn refuse(&mut self, now: Duration, at: u16, path_index: u8) {
        let path = self.path_mut(at, path_index);
        let conflict = (path.port, path.mac);
        self.vacate(now, at, path_index);
        let until = now + REFUSED_FOR;
        self.path_mut(at, path_index).state = PathState::Refused { until };
        self.devices[at as usize].conflict = conflict;
        self.tell(at, pending::CONFLICT);
    }

    /// IDENTIFY over a path failed or got no answer. A new path is forgotten until the next config reply; one in use
    /// stays, as its requests show what it is good for.
    pub(super) fn not_proven(&mut self, now: Duration, at: u16, path_index: u8) {
        if self.path(at, path_index).state == PathState::Unproven {
            self.vacate(now, at, path_index);
        }
    }

    /// A path is good: an ATA reply came over it.
    pub(super) fn path_up(&mut self, now: Duration, at: u16, path_index: u8) {
        let path = self.path_mut(at, path_index);
        if matches!(path.state, PathState::Up | PathState::Vacant) {
            return;
        }
        path.state = PathState::Up;
        path.timeouts = 0;
        self.note_events(at);
        self.probe_if_due(now, at, path_index);
        self.wake(at);
    }

    /// Takes paths out of use that had too many timeouts while there was no other.
    fn retire_lossy(&mut self, now: Duration, at: u16) {
        for path in 0..self.devices[at as usize].paths.len() as u8 {
            self.retire_if_lossy(now, at, path);
        }
    }

    /// Takes a path out of use that had too many timeouts in a row, if there is another.
    pub(super) fn retire_if_lossy(&mut self, now: Duration, at: u16, path_index: u8) {
        let limit = self.tunables.aoe_path_losses;
        let path = self.path(at, path_index);
        if path.state == PathState::Up
            && u64::from(path.timeouts) >= limit
            && self.devices[at as usize].has_other_path(now, path_index)
        {
            self.take_down(now, at, path_index);
        }
    }

    /// A path is no longer used; what is under way on it is sent again elsewhere, and a read probes it.
    pub(super) fn take_down(&mut self, now: Duration, at: u16, path_index: u8) {
        let path = self.path_mut(at, path_index);
        path.state = PathState::Down;
        path.payload.doubt(now);
        self.note_events(at);
        self.reroute(at, path_index, None);
        self.probe_if_due(now, at, path_index);
    }

    /// Sends again, elsewhere or cut up, what is under way on a path: all of it, or what has more sectors than these. Not what belongs to
    /// the path.
    pub(super) fn reroute(&mut self, at: u16, path_index: u8, larger_than: Option<u8>) {
        for slow in [false, true] {
            let path = self.path(at, path_index);
            let list = if slow { path.flying_slow } else { path.flying };
            let mut next = list.front();
            while let Some(index) = next {
                next = list.after(&self.frames, index);
                let frame = &self.frames[index];
                let meant = larger_than.is_none_or(|sectors| frame.sectors > sectors);
                if meant && !frame.is_ghost() && !frame.pinned {
                    self.resend(index);
                }
            }
        }
    }

    /// Forgets a path and all that belongs to it.
    pub(super) fn vacate(&mut self, now: Duration, at: u16, path_index: u8) {
        if self.path(at, path_index).state == PathState::Vacant {
            return;
        }
        if let Some(request) = self.path(at, path_index).pinned {
            self.finish(now, request, Status::Cancelled);
        }
        self.path_mut(at, path_index).state = PathState::Vacant;
        self.reroute(at, path_index, None);
        loop {
            let path = self.path(at, path_index);
            match path.flying.front().or(path.flying_slow.front()) {
                Some(ghost) => self.free_frame(ghost),
                None => break,
            }
        }
        self.note_events(at);
    }

    /// The target said "device unavailable": another path if there is one, else a pause.
    pub(super) fn path_unavailable(&mut self, now: Duration, index: u32) {
        let frame = &self.frames[index];
        let (at, path_index) = (frame.device, frame.path);
        if frame.is_ghost() {
            self.counters.late += 1;
            self.free_frame(index);
            return;
        }
        if frame.place == Place::Resend {
            return;
        }
        self.resend(index);
        let max = self.tunables.rto_bounds().max;
        let path = self.path_mut(at, path_index);
        if !path.is_held(now) {
            path.hold_on(now, max);
        }
        let up = path.state == PathState::Up;
        if up && self.devices[at as usize].has_other_path(now, path_index) {
            self.take_down(now, at, path_index);
        }
    }
}
