//! Local Ethernet ports: what both ends of the protocol know about an interface.
//!
//! The shell that owns the sockets numbers its interfaces and tells the state machines about changes. Nothing here
//! has a bound of its own; the number of ports is bounded by [`PortId`]'s width.

use crate::wire::{MacAddr, sectors_per_frame};

/// Number of a local port, chosen by the shell that owns the interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u8);

/// What is known about a local port that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The port's own address, which is the source of every frame it sends.
    pub mac: MacAddr,
    /// Largest frame in bytes, without the 14 bytes of Ethernet header.
    pub mtu: u32,
}

impl PortInfo {
    /// Sectors of data that fit into one frame of this port, 0 when not even one does.
    pub fn sectors_per_frame(&self) -> u8 {
        sectors_per_frame(self.mtu)
    }
}
