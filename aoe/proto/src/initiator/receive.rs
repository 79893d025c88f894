//! What a received frame does: matching by tag and address, replies to ATA commands, errors.
//!
//! Where a reply came from is not looked at: a target with several ports answers from any of them. A reply that does not
//! match an outstanding frame in full is counted and ignored, so that whatever the network delivers (late, doubled, cut
//! short, somebody else's) at worst leads to a retransmission.

use core::time::Duration;

use super::Initiator;
use super::congestion::{Congestion, Reply};
use super::device::pending;
use super::frame::{Owner, Place};
use super::path::PathState;
use super::slab::NONE;
use super::types::{Arrived, Durability, Op, Status, VolatileReason};
use crate::port::PortId;
use crate::wire::{self, AoeError, AtaError, AtaReply, Command, Header, Identify, Opcode};

impl Initiator {
    /// Takes a received frame, from the Ethernet header on. Read data that it brings must be copied to the request's
    /// buffer before any other call: the request may be complete with them.
    pub fn handle_frame<'a>(&mut self, now: Duration, port: PortId, frame: &'a [u8]) -> Option<Arrived<'a>> {
        let parsed = Header::parse(frame);
        let Ok((header, arg)) = parsed else {
            self.counters.malformed += 1;
            return None;
        };
        if header.check_version().is_err() || !header.response {
            self.counters.malformed += 1;
            return None;
        }
        if header.command == Command::CONFIG {
            self.handle_config(now, port, &header, arg);
            return None;
        }
        let index = self.find_frame(port, &header)?;
        if let Some(error) = header.error {
            self.handle_aoe_error(now, index, error);
            return None;
        }
        let Ok((reply, data)) = AtaReply::parse(arg) else {
            self.counters.malformed += 1;
            return None;
        };
        let (at, path) = (self.frames[index].device, self.frames[index].path);
        let arrived = self.handle_reply(now, index, &reply, data);
        self.find_overtaken(now, at, path);
        arrived
    }

    /// The outstanding frame that a reply is for.
    fn find_frame(&mut self, port: PortId, header: &Header) -> Option<u32> {
        let found = self.tags.find(header.tag).filter(|_| self.tags.is_ours(header.tag));
        let Some(index) = found.filter(|index| self.frames[*index].tag == header.tag) else {
            self.counters.stray += 1;
            self.note_stray(port, header);
            return None;
        };
        let address = self.devices[self.frames[index].device as usize].address;
        if header.address != address || header.command != Command::ATA {
            self.counters.foreign += 1;
            return None;
        }
        // A frame that was split and not sent since has a tag that nobody knows.
        if self.frames[index].copies == 0 {
            self.counters.stray += 1;
            return None;
        }
        Some(index)
    }

    fn handle_reply<'a>(&mut self, now: Duration, index: u32, reply: &AtaReply, data: &'a [u8]) -> Option<Arrived<'a>> {
        let frame = &self.frames[index];
        let (at, request) = (frame.device, frame.request);
        let boot = self.boot_in(index, reply);
        if request == NONE {
            self.heard_boot(at, boot);
            self.counters.late += 1;
            self.count_reply(now, index);
            self.free_frame(index);
            self.device_answered(now, at);
            return None;
        }
        let (owner, op) = (self.requests[request].owner, self.requests[request].op);
        let status = judge(reply);
        let is_read = matches!(op, Op::Read | Op::Identify);
        if status == Status::Ok && is_read && data.len() < frame.len() {
            self.counters.truncated += 1;
            return None;
        }
        self.count_reply(now, index);
        let restarted = self.heard_boot(at, boot);
        let state = &mut self.requests[request];
        state.boots_differ |= state.boot.is_some() && state.boot != boot;
        state.boot = boot;
        if op == Op::Flush {
            return self.flush_answered(now, index, reply, (status, restarted));
        }
        if status != Status::Ok {
            self.end_frame_with_error(now, index, status);
            return None;
        }
        let (offset, len) = (self.frames[index].byte_offset(), self.frames[index].len());
        let data = if is_read { &data[..len] } else { &[] };
        self.close_behind_reply(now, index);
        self.free_frame(index);
        match owner {
            Owner::Prove { path } => {
                self.finish(now, request, Status::Ok);
                self.proven(now, at, path, Identify::parse(data));
            }
            Owner::Probe { path, sectors } => {
                self.finish_if_done(now, request);
                self.probe_passed(now, at, path, sectors);
            }
            Owner::Caller(_) => self.finish_if_done(now, request),
        }
        self.device_answered(now, at);
        let id = owner.id()?;
        self.counters.bytes_read += data.len() as u64;
        is_read.then_some(Arrived { id, offset, data })
    }

    /// Ends a request as done when all of it was cut and answered.
    fn finish_if_done(&mut self, now: Duration, request: u32) {
        let state = &self.requests[request];
        if state.is_cut() && state.frames.is_empty() {
            self.finish(now, request, Status::Ok);
        }
    }

    /// What every reply does to its path, whatever it says.
    fn count_reply(&mut self, now: Duration, index: u32) {
        self.counters.frames_answered += 1;
        let frame = &self.frames[index];
        let sent_once = frame.copies == 1;
        let (at, path_index) = (frame.device, frame.path);
        let path = &mut self.devices[at as usize].paths[path_index as usize];
        if path.serial != frame.path_serial {
            return;
        }
        path.on_reply(now, frame);
        if frame.place != Place::FlyingSlow && sent_once {
            path.rtt.sample(now.saturating_sub(frame.last_sent));
        }
        if frame.place == Place::Flying {
            let rtt = sent_once.then(|| now.saturating_sub(frame.last_sent));
            path.control.on_reply(Reply { in_flight: path.in_flight, rtt, data: !frame.pinned });
            path.answered_number = path.answered_number.max(frame.send_number);
        }
        // Which path answered is certain only for a frame that was sent once.
        if path.state == PathState::Down && sent_once {
            self.path_up(now, at, path_index);
        }
    }

    /// A reply to a frame that nobody waits for: the path that it took learns from it.
    fn note_stray(&mut self, port: PortId, header: &Header) {
        if !self.tags.is_ours(header.tag) {
            return;
        }
        let found = self.device_at(header.address).and_then(|at| {
            let path = self.devices[at as usize].find_path(port, header.src)?;
            Some((at, path))
        });
        if let Some((at, path)) = found {
            self.path_mut(at, path).reordering.on_stray();
        }
    }

    /// Whether the target will know a late copy of this answered frame for what it is: a shelf of ours that saw all
    /// copies come the same way.
    fn late_copies_are_harmless(&self, index: u32) -> bool {
        let frame = &self.frames[index];
        self.devices[frame.device as usize].dedupes() && !frame.several_paths
    }

    /// Closes the sectors of an answered write that has, or may have, another copy in the network.
    fn close_behind_reply(&mut self, now: Duration, index: u32) {
        let frame = &self.frames[index];
        let again = frame.copies > 1 && !self.late_copies_are_harmless(index);
        let sent = again.then_some(frame.last_sent);
        self.close_behind(now, index, sent.max(frame.orphan_sent));
    }

    /// A reply reports that a frame's command failed: so does its request.
    fn end_frame_with_error(&mut self, now: Duration, index: u32, status: Status) {
        let frame = &self.frames[index];
        let (at, request) = (frame.device, frame.request);
        let sent = (!self.late_copies_are_harmless(index)).then_some(frame.last_sent);
        self.close_behind(now, index, sent.max(frame.orphan_sent));
        self.free_frame(index);
        let owner = self.requests[request].owner;
        self.finish(now, request, status);
        match owner {
            Owner::Prove { path } => self.not_proven(now, at, path),
            Owner::Probe { path, sectors } => self.probe_refused(now, at, path, sectors),
            Owner::Caller(_) => {}
        }
        self.device_answered(now, at);
    }

    fn handle_aoe_error(&mut self, now: Duration, index: u32, error: AoeError) {
        let at = self.frames[index].device;
        let ghost = self.frames[index].is_ghost();
        if error == AoeError::UNAVAILABLE {
            // Not an answer of the device: its clocks run on.
            self.path_unavailable(now, index);
            return;
        }
        self.count_reply(now, index);
        if error == AoeError::RESERVED {
            self.tell(at, pending::FENCED);
        }
        if ghost {
            self.counters.late += 1;
            self.free_frame(index);
            self.device_answered(now, at);
            return;
        }
        let status = match error {
            AoeError::RESERVED => Status::Fenced,
            error => Status::Refused(error),
        };
        self.end_frame_with_error(now, index, status);
    }

    /// Ends a flush, and learns from it whether the device has flushes. `restarted`: this reply is the first of a new start.
    fn flush_answered<'a>(
        &mut self,
        now: Duration,
        index: u32,
        reply: &AtaReply,
        (status, restarted): (Status, bool),
    ) -> Option<Arrived<'a>> {
        let frame = &self.frames[index];
        let (at, request, opcode) = (frame.device, frame.request, frame.ata.opcode);
        let device = &mut self.devices[at as usize];
        let mut status = status;
        if reply.status.0 == opcode.0 {
            status = Status::Volatile;
            self.now_volatile(at, VolatileReason::FlushIgnored);
        } else if status == Status::Aborted
            && !device.flush_worked
            && !device.identity.as_ref().is_some_and(Identify::is_ours)
        {
            status = Status::Volatile;
            self.now_volatile(at, VolatileReason::FlushAborted);
        } else if status == Status::Ok {
            device.flush_worked = true;
            if restarted {
                status = Status::Restarted;
            }
        }
        self.free_frame(index);
        self.finish(now, request, status);
        self.device_answered(now, at);
        None
    }

    fn now_volatile(&mut self, at: u16, reason: VolatileReason) {
        let device = &mut self.devices[at as usize];
        if device.durability == Durability::Durable {
            device.durability = Durability::Volatile(reason);
            self.tell(at, pending::DURABILITY);
        }
    }

    /// The boot number in a reply, if there is one.
    fn boot_in(&self, index: u32, reply: &AtaReply) -> Option<u32> {
        let frame = &self.frames[index];
        let identity = self.devices[frame.device as usize].identity.as_ref()?;
        let tells = match frame.ata.opcode {
            opcode if opcode.is_flush() => identity.is_ours(),
            Opcode::IDENTIFY => false,
            _ => identity.tells_boot(),
        };
        tells.then(|| reply.boot_number())
    }

    /// Notes a boot number of our shelf, if there is one; true if it is that of a restart.
    pub(super) fn heard_boot(&mut self, at: u16, boot: Option<u32>) -> bool {
        let restarted = boot.is_some_and(|boot| self.devices[at as usize].boots.heard(boot));
        if restarted {
            self.tell(at, pending::RESTARTED);
        }
        restarted
    }

    /// A reply of the device itself came: it is no longer silent, unless some request is still overdue.
    fn device_answered(&mut self, now: Duration, at: u16) {
        let device = &self.devices[at as usize];
        if !device.silent || self.is_overdue(now, at) {
            return;
        }
        self.set_silent(now, at, false);
        // Somebody else may be there by now, or the same after a restart.
        let up = |path: &super::path::Path| path.state == PathState::Up;
        if let Some(path) = self.devices[at as usize].paths.iter().position(up) {
            self.prove(now, at, path as u8);
        }
    }
}

/// How a reply ends its command.
fn judge(reply: &AtaReply) -> Status {
    if !reply.status.is_error() {
        return Status::Ok;
    }
    let has = |bit: wire::Status| reply.status.0 & bit.0 != 0;
    if has(wire::Status::ERR) && reply.error.contains(AtaError::UNC) {
        Status::Medium
    } else if has(wire::Status::ERR) && reply.error.contains(AtaError::IDNF) {
        Status::OutOfRange
    } else if has(wire::Status::ERR) && !has(wire::Status::DF) {
        Status::Aborted
    } else {
        Status::Fault
    }
}
