//! One thread of the shelf server: receives requests on its link, has the shelf answer them, sends the replies.
//!
//! Owns the link and the reply buffers. Bounds: a batch has [`BATCH`] replies; control replies as in the module above; a full link is
//! tried again for [`SEND_PATIENCE`], then the replies are lost, and their requests come again.

use super::requesters::Requesters;
use super::{CONTROL_REPLIES, Shared};
use crate::LINK_CHECK;
use crate::link::{BATCH, FrameRef, Link, Slots};
use crate::store::AnyStore;
use crate::wake::wait;
use aoe_proto::port::{PortId, PortInfo};
use aoe_proto::shelf::{Outcome, Shelf};
use aoe_proto::wire::ETH_HEADER;
use core::time::Duration;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How long replies wait for room in the link.
const SEND_PATIENCE: Duration = Duration::from_millis(10);
/// How long to wait before a full link is tried again.
const SEND_RETRY: Duration = Duration::from_micros(50);

/// A port and what its thread needs.
pub(super) struct ServedPort {
    shared: Arc<Shared>,
    id: PortId,
    link: Box<dyn Link>,
    /// The port as the shelf knows it.
    info: Option<PortInfo>,
    next_check: Duration,
    requesters: Requesters,
    replies: Slots,
    lengths: [usize; BATCH],
    /// Replies that do not fit the batch: answers to discovery, and beacons.
    control: Vec<Vec<u8>>,
}

impl ServedPort {
    pub(super) fn new(shared: Arc<Shared>, id: PortId, link: Box<dyn Link>) -> ServedPort {
        ServedPort {
            shared,
            id,
            link,
            info: None,
            next_check: Duration::ZERO,
            requesters: Requesters::new(),
            replies: Slots::new(0, 0),
            lengths: [0; BATCH],
            control: Vec::new(),
        }
    }

    /// Serves until the server is stopped.
    pub(super) fn run(mut self, cpu: Option<usize>) {
        if let Some(cpu) = cpu {
            let mut set = CpuSet::new();
            set.set(cpu);
            if let Err(error) = sched_setaffinity(None, &set) {
                tracing::warn!(cpu, %error, "pinning a shelf thread");
            }
        }
        while !self.shared.stop.load(Ordering::Acquire) {
            let now = self.shared.now();
            if now >= self.next_check || self.link.info() != self.info {
                self.check(now);
            }
            if self.serve() > 0 {
                continue;
            }
            let timeout = self.next_check.saturating_sub(now);
            let stopped = self.shared.stopped.as_fd();
            match self.link.fd() {
                Some(fd) => wait(&[fd, stopped], Some(timeout)),
                None => wait(&[stopped], Some(timeout.min(SEND_RETRY))),
            }
        }
    }

    /// Looks at the link's state, tells the shelf about changes, and announces the devices on a link that came up or changed.
    pub(super) fn check(&mut self, now: Duration) {
        self.next_check = now + LINK_CHECK;
        self.link.refresh();
        let forgot = self.requesters.forget(now);
        if self.link.info() != self.info {
            self.info = self.link.info();
            self.port_changed();
        } else if forgot {
            self.share_room(&mut self.shared.lock());
        }
        let mut report = self.shared.links[usize::from(self.id.0)].lock().expect("nothing panics holding counters");
        report.1 = self.link.counters();
    }

    fn port_changed(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut shelf = shared.lock();
        if let Err(error) = shelf.set_port(self.id, self.info) {
            tracing::warn!(link = self.link.name(), %error, "not served");
        }
        let Some(info) = self.info else { return };
        let longest = (info.mtu as usize + ETH_HEADER).max(shelf.reply_len(self.id));
        if longest > self.replies.capacity() {
            self.replies = Slots::new(BATCH, longest);
        }
        self.share_room(&mut shelf);
        shelf.beacon(self.id);
        poll_replies(&shared, &mut shelf, self.replies.slot_mut(0), &mut self.control);
        drop(shelf);
        self.send_control();
    }

    /// Divides what the link's receive queue holds among the stations that send to it.
    fn share_room(&self, shelf: &mut Shelf<AnyStore>) {
        let room = self.link.receive_frames() / self.requesters.count();
        self.shared.room[usize::from(self.id.0)].store(room, Ordering::Relaxed);
        self.shared.share_room(shelf);
    }

    /// Answers one batch; how many frames it had.
    fn serve(&mut self) -> usize {
        if self.info.is_none() {
            // Reads away what was queued before the link went down.
            return self.link.receive(&mut |_| {});
        }
        let ServedPort { shared, id, link, requesters, replies, lengths, control, .. } = self;
        // Locked before anything is received: how long a frame has waited is judged when its turn has come, not before the
        // wait for another port's.
        let mut shelf = shared.lock();
        let mut answered = 0;
        let room = link.receive_frames();
        let received = link.receive(&mut |frame| {
            let now = shared.now();
            if requesters.note(now, frame) {
                // Before its first answer, which may tell it the buffer count.
                shared.room[usize::from(id.0)].store(room / requesters.count(), Ordering::Relaxed);
                shared.share_room(&mut shelf);
            }
            let reply = replies.slot_mut(answered);
            lengths[answered] = match shelf.handle_frame(now, *id, frame, reply) {
                Outcome::Drop => return,
                Outcome::Many => return poll_replies(shared, &mut shelf, reply, control),
                Outcome::Reply(len) => len,
                Outcome::Save { address, len } if shared.save(&shelf, address) => len,
                Outcome::Save { address, .. } => shelf.save_failed(address, reply),
            };
            answered += 1;
        });
        drop(shelf);
        let mut frames = [FrameRef::whole(&[]); BATCH];
        for (index, frame) in frames[..answered].iter_mut().enumerate() {
            *frame = FrameRef::whole(&replies.slot(index)[..lengths[index]]);
        }
        send_all(link.as_mut(), &frames[..answered]);
        self.send_control();
        received
    }

    fn send_control(&mut self) {
        for frame in self.control.drain(..) {
            send_all(self.link.as_mut(), &[FrameRef::whole(&frame)]);
        }
    }
}

/// Moves the shelf's pending replies to `control`, as far as there is room.
fn poll_replies(shared: &Shared, shelf: &mut Shelf<AnyStore>, reply: &mut [u8], control: &mut Vec<Vec<u8>>) {
    while let Some(outcome) = shelf.poll_reply(reply) {
        let len = match outcome {
            Outcome::Drop | Outcome::Many => continue,
            Outcome::Reply(len) => len,
            Outcome::Save { address, len } if shared.save(shelf, address) => len,
            Outcome::Save { address, .. } => shelf.save_failed(address, reply),
        };
        if control.len() < CONTROL_REPLIES {
            control.push(reply[..len].to_vec());
        }
    }
}

/// Sends frames, waiting a little for a full link.
fn send_all(link: &mut dyn Link, mut frames: &[FrameRef<'_>]) {
    let mut waited = Duration::ZERO;
    while !frames.is_empty() {
        let done = link.send(frames);
        frames = &frames[done..];
        if done == 0 {
            if waited >= SEND_PATIENCE {
                return;
            }
            wait(&[], Some(SEND_RETRY));
            waited += SEND_RETRY;
        }
    }
}
