//! Links: ways to send and receive raw frames. One trait, [`Link`], and three kinds: [`PacketLink`] (a packet socket on an
//! interface), [`MemoryLink`] (a port of an in-process Ethernet) and [`FaultLink`] (any of them, with faults added).
//!
//! Called by the initiator's driver and by the shelf server, from one thread per link. A link never fails for good: an interface
//! that goes down or vanishes is a state ([`Link::info`] is `None`), what can't be sent is counted, and the link works again when
//! the interface does.
//!
//! Bounds: a batch is [`BATCH`] frames; each kind names the bound of its queue.

pub mod fault;
pub mod memory;
pub mod packet;
mod slots;
mod watch;

pub use fault::{FaultConfig, FaultLink, Faults};
pub use memory::{MemoryLink, Segment};
pub use packet::{HostInterface, LinkError, PacketConfig, PacketLink, RING, Role, host_interfaces};
pub use slots::Slots;
pub use watch::LinkWatch;

use aoe_proto::port::PortInfo;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

/// Frames that one call sends or receives at most.
pub const BATCH: usize = 64;

/// A frame to send: header bytes, then data from wherever they are, then zeros.
#[derive(Clone, Copy, Debug)]
pub struct FrameRef<'a> {
    /// The first bytes, from the destination address on.
    pub head: &'a [u8],
    /// The bytes after `head`, in pieces.
    pub data: &'a [IoSlice<'a>],
    /// Zeros after the data.
    pub pad: usize,
}

impl<'a> FrameRef<'a> {
    /// A frame that is all in one piece.
    pub const fn whole(frame: &'a [u8]) -> FrameRef<'a> {
        FrameRef { head: frame, data: &[], pad: 0 }
    }

    /// Bytes of the frame.
    pub fn len(&self) -> usize {
        self.head.len() + self.data.iter().map(|piece| piece.len()).sum::<usize>() + self.pad
    }

    /// Whether it has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces what is in `frame` by the bytes of this one.
    pub fn copy_to(&self, frame: &mut Vec<u8>) {
        frame.clear();
        frame.extend_from_slice(self.head);
        for piece in self.data {
            frame.extend_from_slice(piece);
        }
        frame.resize(frame.len() + self.pad, 0);
    }
}

/// What a link has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames handed to the network.
    pub sent: u64,
    /// Bytes of those frames.
    pub sent_bytes: u64,
    /// Frames received.
    pub received: u64,
    /// Bytes of those frames.
    pub received_bytes: u64,
    /// Frames that could not be sent and are lost: the link was down, or refused them.
    pub send_lost: u64,
    /// Times that the link was full (EAGAIN, ENOBUFS); the frames stay with the caller.
    pub send_full: u64,
    /// Frames that arrived and found the receive queue full.
    pub receive_dropped: u64,
    /// Frames that arrived longer than the MTU allows, and were dropped.
    pub receive_too_long: u64,
    /// Frames that had waited too long in the receive queue, and were dropped.
    pub receive_stale: u64,
    /// Times that the link went down.
    pub went_down: u64,
    /// Errors of the socket other than those above.
    pub errors: u64,
}

/// A way to send and receive raw frames.
pub trait Link: Send {
    /// Name for messages: the interface, or what stands for one.
    fn name(&self) -> &str;

    /// Address and MTU as last seen, or `None` while the link is down.
    fn info(&self) -> Option<PortInfo>;

    /// Looks whether the link went up or down or changed its MTU, and updates [`Link::info`]. To be called every
    /// [`crate::LINK_CHECK`]; a few system calls at most.
    fn refresh(&mut self);

    /// Sends frames in their order, and tells how many are done with: sent, or lost for good and counted (as when the link is
    /// down). The rest stays with the caller, who may try it again a little later: the link is full.
    fn send(&mut self, frames: &[FrameRef<'_>]) -> usize;

    /// Hands up to [`BATCH`] arrived frames to `sink`, without waiting; how many they were. Less than [`BATCH`] says that no more
    /// were there. A frame that has waited too long by the time that it is handed over is dropped, if the link was told to.
    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize;

    /// Full-sized frames that its receive queue holds. What a shelf tells its initiators must not exceed it.
    fn receive_frames(&self) -> usize;

    /// A descriptor that polls readable when frames have arrived or the link's state changed.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// What it has done so far.
    fn counters(&mut self) -> LinkCounters;
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn info(&self) -> Option<PortInfo> {
        (**self).info()
    }

    fn refresh(&mut self) {
        (**self).refresh();
    }

    fn send(&mut self, frames: &[FrameRef<'_>]) -> usize {
        (**self).send(frames)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        (**self).receive(sink)
    }

    fn receive_frames(&self) -> usize {
        (**self).receive_frames()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).fd()
    }

    fn counters(&mut self) -> LinkCounters {
        (**self).counters()
    }
}
