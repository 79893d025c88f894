//! Looks for AoE devices, for whoever opens members: blocks its thread.
//!
//! Bounds: [`FIND_PATIENCE`], and a scan as long as its caller says.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aoe_proto::wire::{Address, Shelf, Slot};

use crate::member::aoe::finder::{Finder, Sight};
use crate::member::aoe::{AoeDisk, Links};

/// How long a device is looked for before it counts as not there.
pub const FIND_PATIENCE: Duration = Duration::from_secs(5);

/// How often a scan asks again: the question or an answer may be lost.
const SCAN_AGAIN: Duration = Duration::from_millis(250);

/// Looks for one device; `None` when it does not answer.
pub fn find(links: &Arc<dyn Links>, address: Address) -> io::Result<Option<AoeDisk>> {
    let start = Instant::now();
    let mut finder = Finder::of_device(links, address, Duration::ZERO)?;
    let mut found = None;
    loop {
        let now = start.elapsed();
        finder.step(now, |sight| {
            if let Sight::Found(disk) = sight {
                found = Some(disk);
            }
        });
        if found.is_some() || now >= FIND_PATIENCE {
            return Ok(found);
        }
        finder.wait(start.elapsed(), FIND_PATIENCE);
    }
}

/// All devices that answer within `patience`.
pub fn scan(links: &Arc<dyn Links>, patience: Duration) -> io::Result<Vec<Address>> {
    let start = Instant::now();
    let mut finder = Finder::of_all(links, Duration::ZERO)?;
    let mut seen = BTreeSet::new();
    let mut ask_at = Duration::ZERO;
    loop {
        let now = start.elapsed();
        if now >= ask_at {
            finder.ask(now);
            ask_at = now + SCAN_AGAIN;
        }
        finder.step(now, |sight| {
            if let Sight::Seen(Address { shelf, slot }) = sight {
                seen.insert((shelf.0, slot.0));
            }
        });
        if now >= patience {
            return Ok(seen
                .into_iter()
                .map(|(shelf, slot)| Address { shelf: Shelf(shelf), slot: Slot(slot) })
                .collect());
        }
        finder.wait(start.elapsed(), patience.min(ask_at));
    }
}
