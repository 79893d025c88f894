//! An Ethernet segment inside the process, and its ports as links between threads. Needs no privilege.
//!
//! A [`Segment`] is shared by its ports; each [`MemoryLink`] belongs to one thread. A frame goes to the port that has its destination
//! address, or to every other port when that is a group address, at once and in order.
//!
//! Bound: [`QUEUE`] frames wait at a port; more are dropped and counted there, as a switch does. Frame buffers come from a pool that
//! is filled as traffic needs it: in steady state nothing is allocated.

use crate::link::{BATCH, FrameRef, Link, LinkCounters};
use crate::wake::Waker;
use aoe_proto::port::PortInfo;
use aoe_proto::wire::{ETH_HEADER, MacAddr};
use crossbeam_queue::ArrayQueue;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Frames that wait at one port at most.
pub const QUEUE: usize = 1024;

/// An in-process Ethernet segment.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    ports: Arc<RwLock<Vec<Arc<Port>>>>,
}

#[derive(Debug)]
struct Port {
    mac: MacAddr,
    name: String,
    mtu: AtomicU32,
    up: AtomicBool,
    queue: ArrayQueue<Vec<u8>>,
    /// Empty buffers for frames to this port.
    spare: ArrayQueue<Vec<u8>>,
    /// The waker has been woken and the receiver has not seen it yet.
    woken: AtomicBool,
    waker: Waker,
    dropped: AtomicU64,
}

impl Segment {
    /// A segment without ports.
    pub fn new() -> Segment {
        Segment::default()
    }

    /// Adds a port with an address of its own and an MTU.
    ///
    /// # Panics
    /// When the address is a group address or in use.
    pub fn attach(&self, mac: MacAddr, mtu: u32) -> io::Result<MemoryLink> {
        assert!(!mac.is_multicast(), "a port can't have a group address");
        let port = Arc::new(Port {
            mac,
            name: format!("mem-{mac}"),
            mtu: AtomicU32::new(mtu),
            up: AtomicBool::new(true),
            queue: ArrayQueue::new(QUEUE),
            spare: ArrayQueue::new(QUEUE),
            woken: AtomicBool::new(false),
            waker: Waker::new()?,
            dropped: AtomicU64::new(0),
        });
        let mut ports = self.ports.write().unwrap_or_else(PoisonError::into_inner);
        assert!(ports.iter().all(|other| other.mac != mac), "address {mac} in use");
        ports.push(Arc::clone(&port));
        let info = Some(PortInfo { mac, mtu });
        Ok(MemoryLink { segment: self.clone(), port, info, counters: LinkCounters::default() })
    }

    /// Takes the link of the port with this address up or down. While down, frames to and from it are lost.
    pub fn set_link(&self, mac: MacAddr, up: bool) {
        self.with_port(mac, |port| port.up.store(up, Ordering::Release));
    }

    /// Changes the MTU of the port with this address.
    pub fn set_mtu(&self, mac: MacAddr, mtu: u32) {
        self.with_port(mac, |port| port.mtu.store(mtu, Ordering::Release));
    }

    fn with_port(&self, mac: MacAddr, change: impl Fn(&Port)) {
        let ports = self.ports.read().unwrap_or_else(PoisonError::into_inner);
        for port in ports.iter().filter(|port| port.mac == mac) {
            change(port);
            port.wake();
        }
    }
}

impl Port {
    /// Queues a frame, if the port is up and has room. The receiver is woken by [`Port::wake`].
    fn deliver(&self, frame: &FrameRef<'_>) {
        let longest = self.mtu.load(Ordering::Relaxed) as usize + ETH_HEADER;
        if !self.up.load(Ordering::Acquire) || frame.len() > longest {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        frame.copy_to(&mut buffer);
        if self.queue.push(buffer).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }
}

/// A port of a [`Segment`]. Dropping it removes the port.
#[derive(Debug)]
pub struct MemoryLink {
    segment: Segment,
    port: Arc<Port>,
    info: Option<PortInfo>,
    counters: LinkCounters,
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        let mut ports = self.segment.ports.write().unwrap_or_else(PoisonError::into_inner);
        ports.retain(|port| !Arc::ptr_eq(port, &self.port));
    }
}

impl Link for MemoryLink {
    fn name(&self) -> &str {
        &self.port.name
    }

    fn info(&self) -> Option<PortInfo> {
        self.info
    }

    fn refresh(&mut self) {
        let up = self.port.up.load(Ordering::Acquire);
        if self.info.is_some() && !up {
            self.counters.went_down += 1;
            // What waited on a link that went down is gone.
            while let Some(buffer) = self.port.queue.pop() {
                let _ = self.port.spare.push(buffer);
            }
        }
        self.info = up.then(|| PortInfo { mac: self.port.mac, mtu: self.port.mtu.load(Ordering::Acquire) });
    }

    fn send(&mut self, frames: &[FrameRef<'_>]) -> usize {
        let longest = self.port.mtu.load(Ordering::Acquire) as usize + ETH_HEADER;
        let up = self.port.up.load(Ordering::Acquire);
        let ports = self.segment.ports.read().unwrap_or_else(PoisonError::into_inner);
        for frame in frames {
            let len = frame.len();
            let Some(destination) = frame.head.first_chunk::<6>().filter(|_| up && len <= longest) else {
                self.counters.send_lost += 1;
                continue;
            };
            let destination = MacAddr(*destination);
            for port in ports.iter().filter(|port| !Arc::ptr_eq(port, &self.port)) {
                if destination.is_multicast() || destination == port.mac {
                    port.deliver(frame);
                }
            }
            self.counters.sent += 1;
            self.counters.sent_bytes += len as u64;
        }
        // One wake-up per receiver and batch.
        for port in ports.iter().filter(|port| !Arc::ptr_eq(port, &self.port) && !port.queue.is_empty()) {
            port.wake();
        }
        frames.len()
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < BATCH {
            let Some(frame) = self.port.queue.pop() else {
                // Whoever queues a frame after this point wakes again, and what came before it is looked for once more.
                self.port.waker.clear();
                self.port.woken.swap(false, Ordering::AcqRel);
                if self.port.queue.is_empty() {
                    break;
                }
                self.port.wake();
                continue;
            };
            count += 1;
            if self.info.is_some() {
                self.counters.received += 1;
                self.counters.received_bytes += frame.len() as u64;
                sink(&frame);
            }
            let _ = self.port.spare.push(frame);
        }
        count
    }

    fn receive_frames(&self) -> usize {
        QUEUE
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.port.waker.as_fd())
    }

    fn counters(&mut self) -> LinkCounters {
        LinkCounters { receive_dropped: self.port.dropped.load(Ordering::Relaxed), ..self.counters }
    }
}
