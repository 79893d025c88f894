//! The demo's network: a veth pair where that is possible, else an Ethernet segment within the process. And the shelves on it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::Context;
use aoe_net::link::{Link, PacketConfig, Role, Segment};
use aoe_net::shelf_server::{ServedDevice, ServerConfig, ShelfHandle, ShelfServer};
use aoe_net::store::{AnyStore, MemoryStore};
use aoe_proto::initiator::{Tunables, WorkerId};
use aoe_proto::shelf::DeviceConfig;
use aoe_proto::wire::{Address, MacAddr, Shelf, Slot};
use raid_core::units::Sectors;
use raid_engine::member::aoe::Links;

use super::{MEMBERS, veth};
use crate::interfaces::InterfaceArgs;

/// Frames of two pages of data.
const MTU: u32 = 9000;

/// Requests that a device takes at once.
const BUFFERS: u16 = 64;

/// See the module's text.
#[derive(Debug)]
pub(super) enum Network {
    /// Packet sockets on a veth pair in a namespace of this process.
    Veth,
    /// Queues between threads, and why.
    Segment(Arc<Ports>, String),
}

impl Network {
    /// A network, real if possible and not told otherwise. To be called before any thread is started.
    pub(super) fn new(in_process: bool) -> Network {
        let why = match in_process {
            true => "as asked for".to_owned(),
            false if !rustix::process::geteuid().is_root() => "root gets a veth pair".to_owned(),
            false => match veth::make(MTU) {
                Ok(()) => return Network::Veth,
                Err(error) => format!("no veth pair: {error:#}"),
            },
        };
        Network::Segment(Arc::new(Ports { segment: Segment::new(), next: AtomicU16::new(1) }), why)
    }

    /// Links for the array's initiators.
    pub(super) fn links(&self, tunables: Tunables) -> Arc<dyn Links> {
        match self {
            Network::Veth => interface(veth::ENDS[0]).links(&tunables, MEMBERS.into()).expect("an interface is named"),
            Network::Segment(ports, _) => Arc::new(SegmentLinks { ports: Arc::clone(ports), tunables }),
        }
    }

    /// Starts a shelf with one device in memory.
    pub(super) fn shelf(&self, address: Address, sectors: Sectors) -> anyhow::Result<ShelfHandle> {
        let links = match self {
            Network::Veth => interface(veth::ENDS[1])
                .open(0, |name| PacketConfig { devices: vec![address], ..PacketConfig::new(name, Role::Shelf) })?,
            Network::Segment(ports, _) => vec![ports.port().context("a port for a shelf")?],
        };
        let config = DeviceConfig::new(address, BUFFERS, &format!("demo-{}", address.slot.0));
        let device = ServedDevice { config, store: AnyStore::new(MemoryStore::new(sectors.0)) };
        // The network is as new as the shelf: nothing can be under way.
        let config = ServerConfig { settle: false, ..ServerConfig::new(vec![device]) };
        Ok(ShelfServer::spawn(config, links)?)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Network::Veth => write!(f, "a veth pair in a network namespace of this process, MTU {MTU}"),
            Network::Segment(_, why) => write!(f, "an Ethernet segment inside this process ({why}), MTU {MTU}"),
        }
    }
}

/// The address of slot `slot`.
pub(super) fn address(slot: u8) -> Address {
    Address { shelf: Shelf(7), slot: Slot(slot) }
}

fn interface(name: &str) -> InterfaceArgs {
    InterfaceArgs { interfaces: vec![name.to_owned()], ..InterfaceArgs::default() }
}

/// The ports of a segment.
#[derive(Debug)]
pub(super) struct Ports {
    segment: Segment,
    next: AtomicU16,
}

impl Ports {
    fn port(&self) -> io::Result<Box<dyn Link>> {
        let [high, low] = self.next.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        Ok(Box::new(self.segment.attach(MacAddr([2, 0, 0, 0, high, low]), MTU)?))
    }
}

/// Links of initiators on a segment.
#[derive(Debug)]
struct SegmentLinks {
    ports: Arc<Ports>,
    tunables: Tunables,
}

impl fmt::Display for SegmentLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the segment")
    }
}

impl Links for SegmentLinks {
    fn open(&self, _: WorkerId, _: bool) -> io::Result<Vec<Box<dyn Link>>> {
        Ok(vec![self.ports.port()?])
    }

    fn tunables(&self) -> Tunables {
        self.tunables
    }
}
