//! The simulated Ethernet as the engine sees it: a link for each initiator, on a port of its own.
//!
//! The network and the time are shared by the links and the world, which moves both on. Frames that arrived at an engine's port wait there
//! until its link asks for them. A port outlives the engine that uses it: the next one gets the same address, as a host does that boots again,
//! and with it whatever the network still carries for it.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aoe_net::link::{BATCH, FrameRef, Link, LinkCounters};
use aoe_proto::initiator::{Tunables, WorkerId};
use aoe_proto::port::PortInfo;
use aoe_proto::wire::MacAddr;
use aoe_sim::{Network, PortId};
use raid_engine::member::aoe::Links;

/// The network, its time, and what has arrived at the engine's ports.
#[derive(Debug)]
pub struct Ether {
    /// The network.
    pub network: Network,
    /// The time.
    pub now: Duration,
    /// Ports see that the switch is off.
    pub carrier: bool,
    /// Frames that engines sent or took in.
    pub moved: u64,
    ports: Vec<Port>,
}

/// A port of the engine's host.
#[derive(Debug)]
struct Port {
    id: PortId,
    waiting: VecDeque<Vec<u8>>,
    /// Also takes what is not addressed to it alone.
    discovers: bool,
    open: bool,
}

/// Shared by the world and the links; all on one thread.
pub type SharedEther = Arc<Mutex<Ether>>;

impl Ether {
    /// A network with these ports for engines.
    pub fn new(network: Network, ports: &[PortId]) -> Ether {
        let port = |id: &PortId| Port { id: *id, waiting: VecDeque::new(), discovers: false, open: false };
        Ether { network, now: Duration::ZERO, carrier: true, moved: 0, ports: ports.iter().map(port).collect() }
    }

    /// Takes a frame that arrived at an engine's port; gives it back if it is for somebody else.
    pub fn arrived(&mut self, port: PortId, frame: Vec<u8>) -> Option<Vec<u8>> {
        let Some(place) = self.ports.iter_mut().find(|place| place.id == port) else {
            return Some(frame);
        };
        if place.open && (place.discovers || frame[0] & 1 == 0) {
            place.waiting.push_back(frame);
        } else {
            self.network.recycle(frame);
        }
        None
    }

    /// The engine is gone, and what waited at its ports with it.
    pub fn close(&mut self) {
        for port in &mut self.ports {
            (port.open, port.discovers) = (false, false);
            port.waiting.clear();
        }
    }
}

/// A port as a link.
struct SimLink {
    ether: SharedEther,
    index: usize,
    id: PortId,
    info: PortInfo,
    buffer: Vec<u8>,
}

impl Link for SimLink {
    fn name(&self) -> &str {
        "sim"
    }

    fn info(&self) -> Option<PortInfo> {
        self.ether.lock().expect("one thread").carrier.then_some(self.info)
    }

    fn refresh(&mut self) {}

    fn send(&mut self, frames: &[FrameRef<'_>]) -> usize {
        let ether = &mut *self.ether.lock().expect("one thread");
        for frame in frames {
            frame.copy_to(&mut self.buffer);
            ether.network.send(ether.now, self.id, &self.buffer);
        }
        ether.moved += frames.len() as u64;
        frames.len()
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let ether = &mut *self.ether.lock().expect("one thread");
        let waiting = &mut ether.ports[self.index].waiting;
        let count = waiting.len().min(BATCH);
        for frame in waiting.drain(..count) {
            sink(&frame);
            ether.network.recycle(frame);
        }
        ether.moved += count as u64;
        count
    }

    fn receive_frames(&self) -> usize {
        usize::MAX
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&mut self) -> LinkCounters {
        LinkCounters::default()
    }
}

/// The links of one engine.
#[derive(Debug)]
pub struct Ports {
    /// The network.
    pub ether: SharedEther,
    /// Settings of the initiators.
    pub tunables: Tunables,
    /// Where tags start; moves on with each initiator.
    pub seed: AtomicU64,
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the simulated network")
    }
}

impl Links for Ports {
    fn open(&self, worker: WorkerId, discovers: bool) -> io::Result<Vec<Box<dyn Link>>> {
        let mut ether = self.ether.lock().expect("one thread");
        // The last port is the control thread's.
        let last = ether.ports.len() - 1;
        let index = usize::from(worker.0).min(last);
        let port = &mut ether.ports[index];
        (port.open, port.discovers) = (true, discovers);
        let id = port.id;
        let mac = MacAddr(ether.network.mac(id));
        let mtu = u32::try_from(ether.network.mtu(id)).expect("an MTU is small");
        let info = PortInfo { mac, mtu };
        Ok(vec![Box::new(SimLink { ether: Arc::clone(&self.ether), index, id, info, buffer: Vec::new() })])
    }

    fn tunables(&self) -> Tunables {
        self.tunables
    }

    fn seed(&self) -> u64 {
        self.seed.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed)
    }
}
