//! The care of paths to AoE devices: other interfaces, what operators want of paths, and what they are told of them.
//!
//! Not on the data path: it allocates and logs.

use std::io;
use std::time::Duration;

use aoe_proto::initiator::DeviceId;
use aoe_proto::port::PortId;
use aoe_proto::wire::MacAddr;

use super::{Aoe, discovers, number};
use crate::message::MemberHandle;

/// What an operator wants of the paths to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// The device is read from, so that it tells if somebody else has reserved it. By the control thread alone.
    Ask,
    /// The device is asked for its size.
    Revalidate,
    /// Paths that are down are forgotten, or all of them, and the device is looked for.
    Flush {
        /// Those in use, too.
        all: bool,
    },
}

impl Aoe {
    /// Uses the links that there are now.
    pub(in crate::member) fn relink(&mut self, now: Duration) -> io::Result<()> {
        let links = self.links.open(number(self.owner), discovers(self.owner))?;
        self.driver.set_links(now, links);
        Ok(())
    }

    /// Carries out what an operator wants of the devices' paths: of one device, or all.
    pub(in crate::member) fn care(&mut self, now: Duration, handle: Option<MemberHandle>, care: Care) {
        let Aoe { open, driver, .. } = self;
        for open in open.iter().filter(|open| handle.is_none_or(|handle| handle == open.handle)) {
            match care {
                Care::Ask => driver.initiator().ask(now, open.device),
                Care::Revalidate => driver.initiator().revalidate(now, open.device),
                Care::Flush { all } => driver.initiator().flush_paths(now, open.device, all),
            }
        }
    }

    /// Raises the alarm over another device at a member's address. One of the owners does: all see it.
    pub(super) fn conflict(&mut self, device: DeviceId, port: PortId, mac: MacAddr) {
        if let (true, Some(open)) = (discovers(self.owner), self.of(device)) {
            let address = open.address;
            let interface = self.interface(port);
            tracing::error!(
                "{address}: another device claims this shelf and slot, at {mac} on {interface}: it is not used; give one of them another address"
            );
        }
    }

    /// Tells of a path that went or came, where there are others: of an only one the member's own silence tells.
    pub(super) fn path_changed(&mut self, device: DeviceId, port: PortId, mac: MacAddr, state: &str) {
        let others = self.driver.initiator().device(device).is_some_and(|view| view.paths().count() > 1);
        if let (true, true, Some(open)) = (others, discovers(self.owner), self.of(device)) {
            let address = open.address;
            let interface = self.interface(port);
            tracing::info!("{address}: path {interface} to {mac} is {state}");
        }
    }

    fn interface(&mut self, port: PortId) -> String {
        let name = self.driver.links().nth(usize::from(port.0)).map(|(name, ..)| name.to_owned());
        name.unwrap_or_default()
    }
}
