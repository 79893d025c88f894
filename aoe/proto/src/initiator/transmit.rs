//! What to send next: queries, internal requests, frames to be sent again, new frames, in this order.
//!
//! Devices that may have something to send take turns, one frame each. A device that finds nothing leaves the queue; what
//! changes that (a reply, a submit, a timeout, a grant of credit) puts it back. All checks that may refuse come before
//! the credit is taken, so that a credit is never taken in vain.

use core::time::Duration;

use super::congestion::Congestion;
use super::frame::{Frame, Owner, Place, Queue, cut_len};
use super::slab::NONE;
use super::types::{Op, Payload, TRANSMIT_HEADER, Transmit};
use super::{FRAMES_MAX, INTERNAL_MAX, Initiator};
use crate::wire::{ATA_HEADER, AtaRequest, Command, Header, Lba, MIN_FRAME, SECTOR};

/// Why a device sends nothing now.
enum Idle {
    /// It has nothing, or waits for a reply or a timer.
    Blocked,
    /// It waits for a credit, and is registered for one.
    NoCredit,
}

impl Initiator {
    /// The next frame to send. Its payload must be read before the next call that may end the request.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Transmit> {
        if let Some(query) = self.send_query(now) {
            return Some(query);
        }
        if self.credit_waits > 0 {
            self.wake_granted();
        }
        while let Some(at) = self.runnable.pop_front() {
            if self.devices[at as usize].open {
                match self.next_frame(now, at) {
                    Ok(transmit) => {
                        self.runnable.push_back(at);
                        return Some(transmit);
                    }
                    Err(Idle::Blocked) => self.stop_waiting(at),
                    Err(Idle::NoCredit) => {}
                }
            }
            self.devices[at as usize].runnable = false;
        }
        None
    }

    /// Wakes the devices that were granted a credit since.
    fn wake_granted(&mut self) {
        for at in 0..self.devices.len() as u16 {
            let device = &self.devices[at as usize];
            if device.waits_for_credit && device.credits.is_granted(self.worker) {
                self.wake(at);
            }
        }
    }

    fn next_frame(&mut self, now: Duration, at: u16) -> Result<Transmit, Idle> {
        if let Some(transmit) = self.resend_pinned(now, at) {
            return Ok(transmit);
        }
        if let Some(request) = self.devices[at as usize].pinned.front() {
            match self.start_pinned(now, request) {
                Err(Idle::NoCredit) => return Err(Idle::NoCredit),
                Err(Idle::Blocked) => {}
                Ok(transmit) => return Ok(transmit),
            }
        }
        let device = &self.devices[at as usize];
        if device.in_flight >= device.credits.limit() {
            return Err(Idle::Blocked);
        }
        if let Some(frame) = device.resend.front() {
            return self.send_again(now, at, frame);
        }
        let Some(request) = device.ready.front() else {
            return Err(Idle::Blocked);
        };
        let Some(path) = device.choose_path(now, None) else {
            if device.has_no_path() {
                // Nothing will be sent for it, so its clock runs from here.
                self.start_clock(now, request);
            }
            return Err(Idle::Blocked);
        };
        if self.frames.len() >= FRAMES_MAX {
            self.starved = true;
            return Err(Idle::Blocked);
        }
        let payload = self.path(at, path).payload.sectors();
        self.send_new(now, request, path, payload)
    }

    /// A frame of an internal request that timed out. These ignore windows: there is at most one per path.
    fn resend_pinned(&mut self, now: Duration, at: u16) -> Option<Transmit> {
        let device = &self.devices[at as usize];
        let mut next = device.resend_pinned.front();
        while let Some(frame) = next {
            let path = self.frames[frame].path;
            if !self.path(at, path).is_held(now) {
                return Some(self.send(now, frame, path));
            }
            next = device.resend_pinned.after(&self.frames, frame);
        }
        None
    }

    fn start_pinned(&mut self, now: Duration, request: u32) -> Result<Transmit, Idle> {
        if self.frames.len() >= FRAMES_MAX + INTERNAL_MAX {
            self.starved = true;
            return Err(Idle::Blocked);
        }
        let owner = self.requests[request].owner;
        let path = owner.pinned().expect("internal requests have a path");
        // In one frame: what it carries is what is to be found out.
        let payload = self.requests[request].sectors.max(1) as u8;
        self.send_new(now, request, path, payload)
    }

    /// Sends a frame that timed out, when a path has room. Where the path carries less than the frame has, the frame is
    /// split.
    fn send_again(&mut self, now: Duration, at: u16, frame: u32) -> Result<Transmit, Idle> {
        let last = Some(self.frames[frame].path);
        let path = self.devices[at as usize].choose_path(now, last);
        let path = path.ok_or(Idle::Blocked)?;
        let payload = self.path(at, path).payload.sectors();
        if self.frames[frame].has_data() && self.frames[frame].sectors > payload {
            return self.send_split(now, frame, path, payload);
        }
        Ok(self.send(now, frame, path))
    }

    /// Cuts the next frame off a request and sends it. On the error nothing has changed.
    fn send_new(&mut self, now: Duration, request: u32, path: u8, payload: u8) -> Result<Transmit, Idle> {
        let state = &self.requests[request];
        let at = state.device;
        let lba = state.lba + u64::from(state.cut);
        let sectors = match state.op {
            Op::Flush => 0,
            Op::Identify => 1,
            Op::Read | Op::Write { .. } => cut_len(lba, state.sectors - state.cut, payload),
        };
        let ata = self.ata_request(at, state.op, lba, sectors);
        let mut frame = Frame::new(request, at, ata, sectors, state.cut);
        frame.pinned = state.owner.pinned().is_some();
        let index = self.frames.insert(frame);
        let lifetime = self.tunables.frame_lifetime();
        match self.tags.allocate(now, lifetime, index) {
            Ok(tag) => self.frames[index].tag = tag,
            Err(until) => {
                self.frames.remove(index);
                self.tag_wait = Some(until);
                return Err(Idle::Blocked);
            }
        }
        if self.take_credit(at) {
            self.frames[index].credit = true;
        } else if !self.may_go_without_credit(request) {
            let frame = self.frames.remove(index);
            self.tags.release(frame.tag);
            return Err(Idle::NoCredit);
        }
        self.note_cut(request, sectors);
        self.requests[request].frames.push_back(&mut self.frames, index);
        Ok(self.send(now, index, path))
    }

    /// Notes that `sectors` more of a request are in frames.
    fn note_cut(&mut self, request: u32, sectors: u8) {
        let state = &mut self.requests[request];
        state.started = true;
        state.cut += u32::from(sectors);
        if state.is_cut() {
            state.queue = Queue::None;
            let device = &mut self.devices[state.device as usize];
            match state.owner.pinned() {
                None => device.ready.remove(&mut self.requests, request),
                Some(_) => device.pinned.remove(&mut self.requests, request),
            }
        }
    }

    /// Takes a credit of the device, or registers for one.
    fn take_credit(&mut self, at: u16) -> bool {
        loop {
            let device = &mut self.devices[at as usize];
            if device.credits.try_take(self.worker) {
                return true;
            }
            if !device.waits_for_credit {
                device.waits_for_credit = true;
                self.credit_waits += 1;
            }
            let granted = device.credits.wait(self.worker);
            self.note_grant(granted);
            if granted != Some(self.worker) {
                return false;
            }
        }
    }

    /// An internal request goes without a credit where credits may be stuck with frames that get no answer: it is what
    /// finds the way out.
    fn may_go_without_credit(&self, request: u32) -> bool {
        let request = &self.requests[request];
        let device = &self.devices[request.device as usize];
        request.owner.pinned().is_some() && (device.silent || device.identity.is_none() || !device.resend.is_empty())
    }

    /// Splits a frame that waits to be sent again in two, and sends the first part over `path`. Both parts get new tags;
    /// late copies of the whole are remembered.
    fn send_split(&mut self, now: Duration, index: u32, path: u8, payload: u8) -> Result<Transmit, Idle> {
        if self.frames.len() >= FRAMES_MAX + INTERNAL_MAX {
            self.starved = true;
            return Err(Idle::Blocked);
        }
        let whole = &self.frames[index];
        let (request, at, offset) = (whole.request, whole.device, whole.offset);
        let (op, lba) = (self.requests[request].op, self.frames[index].range().start);
        let sectors = whole.sectors;
        let first = cut_len(lba, u32::from(sectors), payload);
        let orphan_sent = whole.last_copy_sent();
        let lifetime = self.tunables.frame_lifetime();
        let rest_tag = self.tags.allocate(now, lifetime, index);
        let ata = self.ata_request(at, op, lba, first);
        let mut part = Frame::new(request, at, ata, first, offset);
        part.orphan_sent = orphan_sent;
        let part = self.frames.insert(part);
        let part_tag = self.tags.allocate(now, lifetime, part);
        let (rest_tag, part_tag) = match (rest_tag, part_tag) {
            (Ok(rest_tag), Ok(part_tag)) => (rest_tag, part_tag),
            (rest_tag, part_tag) => {
                for tag in [rest_tag, part_tag] {
                    match tag {
                        Ok(tag) => self.tags.release(tag),
                        Err(until) => self.tag_wait = Some(until),
                    }
                }
                self.frames.remove(part);
                return Err(Idle::Blocked);
            }
        };
        let rest_lba = lba + u64::from(first);
        let rest_ata = self.ata_request(at, op, rest_lba, sectors - first);
        let rest = &mut self.frames[index];
        self.tags.release(rest.tag);
        // The part that leaves takes the credit along; the rest is bounded by the windows alone.
        let credit = core::mem::take(&mut rest.credit);
        rest.tag = rest_tag;
        rest.ata = rest_ata;
        rest.sectors -= first;
        rest.offset += u32::from(first);
        rest.copies = 0;
        rest.orphan_sent = orphan_sent;
        let frame = &mut self.frames[part];
        frame.tag = part_tag;
        frame.credit = credit;
        self.requests[request].frames.push_back(&mut self.frames, part);
        Ok(self.send(now, part, path))
    }

    /// The registers for a piece of a request.
    fn ata_request(&self, at: u16, op: Op, lba: u64, sectors: u8) -> AtaRequest {
        let identity = self.devices[at as usize].identity.as_ref();
        // Before IDENTIFY only IDENTIFY is sent, which has one form.
        let lba48 = identity.is_some_and(|identity| identity.lba48);
        let lba = Lba(lba);
        match op {
            Op::Read => AtaRequest::read(lba, sectors, lba48),
            Op::Write { fua: false } => AtaRequest::write(lba, sectors, lba48),
            Op::Write { fua: true } => AtaRequest::write_fua(lba, sectors),
            Op::Flush => AtaRequest::flush(identity.is_some_and(|identity| identity.flush_ext)),
            Op::Identify => AtaRequest::identify(),
        }
    }

    /// Sends one copy of a frame over `path`: all of its books, and the bytes.
    fn send(&mut self, now: Duration, index: u32, path_index: u8) -> Transmit {
        self.land(index);
        let frame = &mut self.frames[index];
        let (at, request, pinned) = (frame.device, frame.request, frame.pinned);
        assert_ne!(request, NONE, "a ghost is not sent again");
        let bounds = self.tunables.rto_bounds();
        let device = &mut self.devices[at as usize];
        let path = &mut device.paths[path_index as usize];
        // A probe says nothing about congestion, and is not slowed down by it.
        let probe = matches!(self.requests[request].owner, Owner::Probe { .. });
        let mut rto = if probe { path.rtt.rto_at_first(bounds) } else { path.rtt.rto(bounds) };
        let slow = self.requests[request].op == Op::Flush;
        if slow {
            let doubled = self.tunables.rto_flush().saturating_mul(1 << frame.copies.min(16));
            rto = rto.max(doubled.min(bounds.max.max(self.tunables.rto_flush())));
        }
        frame.several_paths |= frame.copies > 0 && frame.path_serial != path.serial;
        frame.path = path_index;
        frame.path_serial = path.serial;
        frame.copies += 1;
        if frame.copies == 1 {
            frame.first_sent = now;
        }
        frame.last_sent = now;
        frame.deadline = now + rto;
        frame.send_number = path.send_number;
        frame.place = if slow { Place::FlyingSlow } else { Place::Flying };
        let again = u64::from(frame.copies > 1 || frame.orphan_sent.is_some());
        let (tag, written) = (frame.tag, if frame.is_write() { frame.len() as u64 } else { 0 });
        path.send_number += 1;
        path.in_flight += u32::from(!pinned);
        path.counters.sent += 1;
        path.counters.retransmits += again;
        let list = if slow { &mut path.flying_slow } else { &mut path.flying };
        list.insert_sorted(&mut self.frames, index, |frame| frame.deadline);
        if !slow && !pinned {
            path.sent.push_back(&mut self.frames, index);
            if path.suspect.is_none() && path.in_flight >= path.control.window() {
                path.suspect = Some(now + 2 * path.patience(bounds));
            }
            path.paced = path.control.pause().map(|pause| now + pause);
        }
        device.in_flight += u32::from(!pinned);
        device.turn = path_index + 1;
        self.counters.frames_sent += 1;
        self.counters.retransmits += again;
        if again == 0 {
            self.counters.bytes_written += written;
        }
        self.tags.sent(now, tag);
        self.start_clock(now, request);
        self.emit(index)
    }

    /// Starts the clock of a request of the caller's, if it does not run.
    fn start_clock(&mut self, now: Duration, request: u32) {
        let state = &mut self.requests[request];
        if state.first_sent.is_none() && state.owner.pinned().is_none() {
            state.first_sent = Some(now);
            let device = &mut self.devices[state.device as usize];
            device.unanswered.push_back(&mut self.requests, request);
        }
    }

    /// The bytes of a frame that is under way.
    fn emit(&self, index: u32) -> Transmit {
        let frame = &self.frames[index];
        let device = &self.devices[frame.device as usize];
        let path = &device.paths[frame.path as usize];
        let port = self.ports[usize::from(path.port.0)].expect("a path in use has a port");
        let header = Header::request(path.mac, port.mac, device.address, Command::ATA, frame.tag);
        let mut bytes = [0; TRANSMIT_HEADER];
        let header_len = frame.ata.emit(&header, &mut bytes);
        let payload = frame.is_write().then(|| Payload {
            id: self.requests[frame.request].owner.id().expect("writes are the caller's"),
            offset: frame.byte_offset(),
            len: frame.len(),
        });
        let len = header_len + payload.map_or(0, |payload| payload.len);
        let least = match self.requests[frame.request].owner {
            Owner::Probe { sectors, .. } => ATA_HEADER + usize::from(sectors) * SECTOR,
            _ => MIN_FRAME,
        };
        Transmit { port: path.port, header: bytes, header_len, payload, pad: least.saturating_sub(len) }
    }
}

// A frame with data is never padded: one sector is longer than the smallest Ethernet frame.
const _: () = assert!(SECTOR >= MIN_FRAME);
