//! In-process Ethernet: ports for the initiators of an array, and shelves.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use aoe_net::link::Link;
use aoe_net::link::memory::Segment;
use aoe_net::shelf_server::{ServedDevice, ServerConfig, ShelfHandle, ShelfServer};
use aoe_net::store::{AnyStore, MemoryStore};
use aoe_proto::initiator::{Tunables as AoeTunables, WorkerId};
use aoe_proto::shelf::DeviceConfig;
use aoe_proto::wire::{Address, MacAddr, Shelf, Slot};
use raid_engine::member::aoe::Links;

/// Ports on one segment for any number of initiators and shelves.
#[derive(Debug)]
pub(crate) struct Ports {
    pub(crate) segment: Segment,
    next: AtomicU8,
    tunables: AoeTunables,
}

impl Ports {
    pub(crate) fn new(aoe_deadsecs: u64) -> Arc<Ports> {
        let tunables = AoeTunables { aoe_silence: 300, aoe_deadsecs, ..AoeTunables::default() };
        Arc::new(Ports { segment: Segment::new(), next: AtomicU8::new(1), tunables })
    }

    /// The address that the next port will have.
    pub(crate) fn next_mac(&self) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, self.next.load(Ordering::Relaxed)])
    }

    fn port(&self) -> io::Result<Box<dyn Link>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(self.segment.attach(MacAddr([2, 0, 0, 0, 0, number]), 9000)?))
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the segment")
    }
}

impl Links for Ports {
    fn open(&self, _: WorkerId, _: bool) -> io::Result<Vec<Box<dyn Link>>> {
        Ok(vec![self.port()?])
    }

    fn tunables(&self) -> AoeTunables {
        self.tunables
    }
}

pub(crate) fn shelf(ports: &Ports, slot: u8, sectors: u64) -> ShelfHandle {
    shelf_with(ports, slot, sectors, &format!("serial-{slot}"))
}

pub(crate) fn shelf_with(ports: &Ports, slot: u8, sectors: u64, serial: &str) -> ShelfHandle {
    let address = Address { shelf: Shelf(7), slot: Slot(slot) };
    let config = DeviceConfig::new(address, 32, serial);
    let device = ServedDevice { config, store: AnyStore::new(MemoryStore::new(sectors)) };
    let config = ServerConfig { settle: false, ..ServerConfig::new(vec![device]) };
    ShelfServer::spawn(config, vec![ports.port().expect("a port")]).expect("starts")
}
