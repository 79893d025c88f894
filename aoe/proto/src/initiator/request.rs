//! The life of a request: submitting, holding back, ending; and the closing of sectors behind it.

use core::time::Duration;

use super::frame::{Owner, Place, Queue, RequestState};
use super::slab::NONE;
use super::types::{Completion, Durability, Op, Request, RequestId, Status, SubmitError, VolatileReason};
use super::{Initiator, REQUESTS_MAX};
use crate::wire::{Identify, LBA28_END, Lba};

impl Initiator {
    /// Takes a request of any size; it is cut into frames as windows allow. The request's buffer must stay as it is (a
    /// write) or writable (a read) until the completion. An error means that it was not taken.
    ///
    /// A flush of a device that has none ends as [`Status::Volatile`] without being sent.
    pub fn submit(&mut self, now: Duration, request: Request) -> Result<(), SubmitError> {
        let at = self.index(request.device).ok_or(SubmitError::NoDevice)?;
        if self.requests.len() - self.internal + self.completions.len() >= REQUESTS_MAX {
            return Err(SubmitError::Full);
        }
        let device = &self.devices[at as usize];
        let identity = device.identity.as_ref().ok_or(SubmitError::NotFound)?;
        let sectors = match request.op {
            Op::Read | Op::Write { .. } => check_range(identity, request)?,
            Op::Flush => 0,
            Op::Identify => 1,
        };
        if request.op == Op::Flush && device.durability == Durability::Volatile(VolatileReason::NoFlush) {
            self.complete(request.id, Status::Volatile, None);
            return Ok(());
        }
        let owner = Owner::Caller(request.id);
        let state = RequestState::new(owner, at, request.op, request.lba, sectors);
        let index = self.requests.insert(state);
        if request.op.is_write() && self.must_wait(now, index) {
            self.counters.writes_held += 1;
            self.requests[index].queue = Queue::Held;
            let device = &mut self.devices[at as usize];
            device.held.push_back(&mut self.requests, index);
            self.note_held_until(now, index);
        } else {
            self.start(index);
        }
        Ok(())
    }

    /// Ends a request at once as [`Status::Cancelled`], if it is outstanding. It may have been executed, or still be:
    /// the sectors of a write that was sent are closed to other writes for a while. Every frame that was polled before
    /// must have been sent or dropped before the buffer is used for something else.
    pub fn cancel(&mut self, now: Duration, id: RequestId) {
        let ours = |(_, request): &(u32, &RequestState)| request.owner == Owner::Caller(id);
        let found = self.requests.iter().find(ours).map(|(index, _)| index);
        if let Some(index) = found {
            self.finish(now, index, Status::Cancelled);
        }
    }

    /// Lets a request go: from now on its frames may be sent.
    fn start(&mut self, index: u32) {
        let request = &mut self.requests[index];
        let at = request.device;
        request.queue = Queue::Ready;
        let device = &mut self.devices[at as usize];
        if request.op.is_write() {
            request.active = true;
            device.active.insert(request.range());
        }
        device.ready.push_back(&mut self.requests, index);
        self.wake(at);
    }

    /// Whether a write must wait for one in flight, for closed sectors, or for an earlier one that waits itself.
    fn must_wait(&self, now: Duration, index: u32) -> bool {
        let request = &self.requests[index];
        let device = &self.devices[request.device as usize];
        let range = request.range();
        if device.active.overlaps(range) {
            return true;
        }
        let closed = &self.closed[device.closed].ranges;
        if closed.closed_until(now, range).is_some() {
            return true;
        }
        let mut at = device.held.front();
        while let Some(earlier) = at.filter(|earlier| *earlier != index) {
            if self.requests[earlier].range().overlaps(range) {
                return true;
            }
            at = device.held.after(&self.requests, earlier);
        }
        false
    }

    /// Sees to it that a held write is looked at again when the sectors that it waits for open.
    fn note_held_until(&mut self, now: Duration, index: u32) {
        let request = &self.requests[index];
        let device = &mut self.devices[request.device as usize];
        let closed = &self.closed[device.closed].ranges;
        if let Some(until) = closed.closed_until(now, request.range()) {
            let earlier = device.held_until.map_or(until, |other| other.min(until));
            device.held_until = Some(earlier);
        }
    }

    /// Lets those held writes go that need wait no longer.
    pub(super) fn release_held(&mut self, now: Duration, at: u16) {
        self.devices[at as usize].held_until = None;
        let mut next = self.devices[at as usize].held.front();
        while let Some(index) = next {
            next = self.devices[at as usize].held.after(&self.requests, index);
            if self.must_wait(now, index) {
                self.note_held_until(now, index);
                continue;
            }
            let device = &mut self.devices[at as usize];
            device.held.remove(&mut self.requests, index);
            self.start(index);
        }
    }

    /// Ends a request: its frames under way become ghosts, those that wait are dropped, and the caller is told.
    pub(super) fn finish(&mut self, now: Duration, index: u32, status: Status) {
        while let Some(frame) = self.requests[index].frames.front() {
            let sent = self.frames[frame].last_copy_sent();
            self.close_behind(now, frame, sent);
            if self.frames[frame].place == Place::Resend {
                self.free_frame(frame);
            } else {
                self.requests[index].frames.remove(&mut self.frames, frame);
                self.frames[frame].request = NONE;
            }
        }
        let request = &self.requests[index];
        let (at, owner) = (request.device, request.owner);
        let (queue, active, range) = (request.queue, request.active, request.range());
        let aged = request.first_sent.is_some();
        let (boots_differ, newest) = (request.boots_differ, self.devices[at as usize].boots.newest());
        let boot = if boots_differ { newest } else { request.boot };
        let device = &mut self.devices[at as usize];
        match (queue, owner) {
            (Queue::Ready, Owner::Caller(_)) => device.ready.remove(&mut self.requests, index),
            (Queue::Ready, _) => device.pinned.remove(&mut self.requests, index),
            (Queue::Held, _) => device.held.remove(&mut self.requests, index),
            (Queue::None, _) => {}
        }
        if active {
            device.active.remove(range);
        }
        match owner {
            Owner::Caller(id) => {
                if aged {
                    device.unanswered.remove(&mut self.requests, index);
                }
                let differ = status == Status::Ok && boots_differ;
                self.complete(id, if differ { Status::Restarted } else { status }, boot);
            }
            Owner::Prove { path } | Owner::Probe { path, .. } => {
                device.paths[path as usize].pinned = None;
                self.internal -= 1;
            }
        }
        self.requests.remove(index);
        if !self.devices[at as usize].held.is_empty() {
            self.release_held(now, at);
        }
    }

    /// Ends all requests of the caller's for a device.
    pub(super) fn end_all(&mut self, now: Duration, at: u16, status: Status) {
        loop {
            let device = &self.devices[at as usize];
            // Held ones first, lest they be let go by the end of others.
            let next = device.held.front();
            let next = next.or(device.ready.front());
            match next.or(device.unanswered.front()) {
                Some(index) => self.finish(now, index, status),
                None => return,
            }
        }
    }

    fn complete(&mut self, id: RequestId, status: Status, boot: Option<u32>) {
        self.completions.push_back(Completion { id, status, boot });
    }

    /// Closes the sectors of a write's frame of which a copy may still arrive: the last of those left at `sent`.
    pub(super) fn close_behind(&mut self, now: Duration, frame: u32, sent: Option<Duration>) {
        let frame = &self.frames[frame];
        let Some(sent) = sent.filter(|_| frame.is_write()) else {
            return;
        };
        let until = sent + self.tunables.frame_lifetime();
        if until > now {
            let closed = self.devices[frame.device as usize].closed;
            self.closed[closed].ranges.close(now, frame.range(), until);
            self.counters.ranges_closed += 1;
        }
    }

    /// Forgets a frame: gives back its tag, its place in the windows and its credit.
    pub(super) fn free_frame(&mut self, index: u32) {
        self.land(index);
        let request = self.frames[index].request;
        if request != NONE {
            self.requests[request].frames.remove(&mut self.frames, index);
        }
        self.give_credit_back(index);
        let frame = self.frames.remove(index);
        self.tags.release(frame.tag);
        if core::mem::take(&mut self.starved) {
            self.wake_all();
        }
        self.wake(frame.device);
    }

    fn give_credit_back(&mut self, index: u32) {
        let frame = &mut self.frames[index];
        if core::mem::take(&mut frame.credit) {
            let granted = self.devices[frame.device as usize].credits.give_back();
            self.note_grant(granted);
        }
    }

    /// Takes a frame off the list that it is on, so that it is neither under way nor waiting.
    pub(super) fn land(&mut self, index: u32) {
        let frame = &mut self.frames[index];
        let (at, path, pinned) = (frame.device, frame.path, frame.pinned);
        let place = core::mem::replace(&mut frame.place, Place::Nowhere);
        let device = &mut self.devices[at as usize];
        let frames = &mut self.frames;
        match place {
            Place::Nowhere => {}
            Place::Resend if pinned => device.resend_pinned.remove(frames, index),
            Place::Resend => device.resend.remove(frames, index),
            Place::Flying | Place::FlyingSlow => {
                let path = &mut device.paths[path as usize];
                match place {
                    Place::Flying => {
                        path.flying.remove(frames, index);
                        if !pinned {
                            path.sent.remove(frames, index);
                        }
                    }
                    _ => path.flying_slow.remove(frames, index),
                }
                path.in_flight -= u32::from(!pinned);
                device.in_flight -= u32::from(!pinned);
            }
        }
    }

    /// Puts a frame that was under way, and belongs to a request, among those to be sent again.
    pub(super) fn resend(&mut self, index: u32) {
        self.land(index);
        let frame = &mut self.frames[index];
        frame.place = Place::Resend;
        let at = frame.device;
        if frame.pinned {
            // Its path may be dead: the requests must not lack the credit meanwhile.
            self.give_credit_back(index);
            let device = &mut self.devices[at as usize];
            device.resend_pinned.push_back(&mut self.frames, index);
        } else {
            let device = &mut self.devices[at as usize];
            device.resend.push_back(&mut self.frames, index);
        }
        self.wake(at);
    }
}

/// The sectors of a read or write that is within the device.
fn check_range(identity: &Identify, request: Request) -> Result<u32, SubmitError> {
    let Lba(lba) = request.lba;
    let end = lba.checked_add(u64::from(request.sectors));
    let size = match identity.lba48 {
        true => identity.sectors,
        false => identity.sectors.min(LBA28_END),
    };
    if request.sectors == 0 || end.is_none_or(|end| end > size) {
        return Err(SubmitError::OutOfRange);
    }
    let fua = request.op == Op::Write { fua: true };
    if fua && !(identity.fua && identity.lba48) {
        return Err(SubmitError::NoFua);
    }
    Ok(request.sectors)
}
