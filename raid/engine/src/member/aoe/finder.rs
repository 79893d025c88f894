//! An initiator without requests, for whoever looks for devices.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use aoe_net::driver::Driver;
use aoe_proto::initiator::{Credits, Event, Found};
use aoe_proto::wire::Address;
use raid_core::units::Sectors;

use super::{AoeDisk, Links, NoMemory, driver};
use crate::member::Owner;

/// See the module's text. Driven by its owner: [`step`](Finder::step), then [`wait`](Finder::wait).
pub(crate) struct Finder {
    links: Arc<dyn Links>,
    driver: Driver,
    /// The device that is looked for.
    address: Option<Address>,
}

/// What a finder came upon.
#[derive(Debug)]
pub(crate) enum Sight {
    /// The device that was asked for.
    Found(AoeDisk),
    /// A device that answers.
    Seen(Address),
}

impl Finder {
    /// One that looks for this device.
    pub(crate) fn of_device(links: &Arc<dyn Links>, address: Address, now: Duration) -> io::Result<Finder> {
        let mut driver = driver(links, Owner::Opener, false, now)?;
        driver.initiator().open(now, address, Arc::new(Credits::new()));
        Ok(Finder { links: Arc::clone(links), driver, address: Some(address) })
    }

    /// One that asks all devices, each time it is told to.
    pub(crate) fn of_all(links: &Arc<dyn Links>, now: Duration) -> io::Result<Finder> {
        let driver = driver(links, Owner::Opener, true, now)?;
        Ok(Finder { links: Arc::clone(links), driver, address: None })
    }

    /// Asks all devices.
    pub(crate) fn ask(&mut self, now: Duration) {
        self.driver.initiator().discover(now);
    }

    /// Sends what is due and takes in what has come.
    pub(crate) fn step(&mut self, now: Duration, mut each: impl FnMut(Sight)) {
        self.driver.pump(now, &mut NoMemory);
        while let Some(event) = self.driver.initiator().poll_event() {
            match event {
                Event::Found(Found { identify, durability, .. }) => {
                    let address = self.address.expect("nothing else was opened");
                    let links = Arc::clone(&self.links);
                    let (sectors, boot) = (Sectors(identify.sectors), identify.boot_number());
                    each(Sight::Found(AoeDisk::known(links, address, sectors, durability, boot)));
                }
                Event::Seen(device) => each(Sight::Seen(device.address)),
                _ => {}
            }
        }
    }

    /// Waits until there may be something to do, or until the time `until`.
    pub(crate) fn wait(&self, now: Duration, until: Duration) {
        let until = self.driver.wake_at(now).min(until);
        let fds: Vec<BorrowedFd<'_>> = self.driver.fds().collect();
        aoe_net::wake::wait(&fds, Some(until.saturating_sub(now)));
    }
}
