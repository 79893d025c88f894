//! A host with a shelf: the real one, over a store that holds nothing but knows what each sector has.

use std::collections::VecDeque;
use std::time::Duration;

use aoe_proto::port::{PortId, PortInfo};
use aoe_proto::shelf::{BlockStore, DeviceConfig, DeviceState, Outcome, Shelf, ShelfConfig, StoreError};
use aoe_proto::wire::{Address, Lba, SECTOR};

use aoe_sim::{Rng, Span};

use super::scenario;

/// Sectors of a device: 1 TiB.
pub(super) const DEVICE_SECTORS: u64 = 1 << 31;

/// Answers that all shelves together remember.
const DUPLICATES: usize = 1 << 23;

/// What a sector of a device holds always: writes write the same, so that every byte can be checked without a store.
pub(super) fn fill(address: Address, lba: Lba, buffer: &mut [u8]) {
    for (index, sector) in buffer.chunks_exact_mut(SECTOR).enumerate() {
        let word = stamp(address, lba.0 + index as u64).to_le_bytes();
        for bytes in sector.chunks_exact_mut(8) {
            bytes.copy_from_slice(&word);
        }
    }
}

/// Whether data are what the sectors hold.
pub(super) fn is_right(address: Address, lba: Lba, data: &[u8]) -> bool {
    data.chunks_exact(SECTOR).enumerate().all(|(index, sector)| {
        let word = stamp(address, lba.0 + index as u64).to_le_bytes();
        sector.chunks_exact(8).all(|bytes| bytes == word)
    })
}

fn stamp(address: Address, lba: u64) -> u64 {
    let name = u64::from(address.shelf.0) << 8 | u64::from(address.slot.0);
    (lba << 24 ^ name).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ lba
}

/// A device without memory.
struct Stamped {
    address: Address,
    /// Sectors written with other data than they hold.
    wrong: u64,
}

impl BlockStore for Stamped {
    fn sectors(&self) -> u64 {
        DEVICE_SECTORS
    }
    fn read(&mut self, lba: Lba, buf: &mut [u8]) -> Result<(), StoreError> {
        fill(self.address, lba, buf);
        Ok(())
    }
    fn write(&mut self, lba: Lba, data: &[u8], _fua: bool) -> Result<(), StoreError> {
        self.wrong += u64::from(!is_right(self.address, lba, data));
        Ok(())
    }
    fn flush(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
    fn trim(&mut self, _lba: Lba, _sectors: u64) -> Result<(), StoreError> {
        Ok(())
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// A reply that leaves when its turn in the shelf's work is over.
struct Reply {
    at: Duration,
    port: PortId,
    frame: Vec<u8>,
}

/// A shelf on its ports, one message after the other.
pub(super) struct Target {
    shelf: Shelf<Stamped>,
    service: Span,
    rng: Rng,
    free_at: Duration,
    replies: VecDeque<Reply>,
    spare: Vec<Vec<u8>>,
}

impl Target {
    /// Shelf number `place` of `count`, with its ports up.
    pub(super) fn new(seed: u64, count: usize, scenario: &scenario::Shelf, place: usize, ports: &[PortInfo]) -> Target {
        let entries = (DUPLICATES / count).clamp(1 << 14, 1 << 20);
        let mut shelf = Shelf::new(ShelfConfig { duplicate_entries: entries, ..ShelfConfig::new(1) });
        for (port, info) in (0..).zip(ports) {
            shelf.set_port(PortId(port), Some(*info)).expect("the scenario's MTUs are large enough");
        }
        for slot in 0..scenario.devices {
            let address = address((place, slot));
            let config = DeviceConfig::new(address, scenario.buffers, &format!("{}.{slot}", scenario.name));
            let store = Stamped { address, wrong: 0 };
            shelf.add_device(config, DeviceState::default(), store).expect("each device has an address of its own");
        }
        let service = Span::new(scenario.service / 2, scenario.service * 3 / 2);
        let (rng, free_at) = (Rng::new(seed), Duration::ZERO);
        Target { shelf, service, rng, free_at, replies: VecDeque::new(), spare: Vec::new() }
    }

    /// Takes a frame that arrived at a port.
    pub(super) fn receive(&mut self, now: Duration, port: PortId, frame: &[u8]) {
        let len = self.shelf.reply_len(port);
        let mut buffer = self.buffer(len);
        let mut outcome = Some(self.shelf.handle_frame(now, port, frame, &mut buffer));
        let many = outcome == Some(Outcome::Many);
        while let Some(done) = outcome {
            if let Outcome::Reply(len) | Outcome::Save { len, .. } = done {
                self.free_at = self.free_at.max(now) + self.rng.within(self.service);
                buffer.truncate(len);
                self.replies.push_back(Reply { at: self.free_at, port, frame: buffer });
                buffer = self.buffer(self.shelf.reply_len(port));
            }
            outcome = if many { self.shelf.poll_reply(&mut buffer) } else { None };
        }
        self.spare.push(buffer);
    }

    fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    /// When the next reply leaves.
    pub(super) fn next_reply(&self) -> Option<Duration> {
        self.replies.front().map(|reply| reply.at)
    }

    /// Sends what leaves by now.
    pub(super) fn send(&mut self, now: Duration, mut send: impl FnMut(PortId, &[u8])) {
        while self.next_reply().is_some_and(|at| at <= now) {
            let Reply { port, frame, .. } = self.replies.pop_front().expect("looked at just now");
            send(port, &frame);
            self.spare.push(frame);
        }
    }

    /// Writes whose data were not what was sent.
    pub(super) fn wrong(&self) -> u64 {
        let stores = self.shelf.addresses().filter_map(|address| self.shelf.store(address));
        stores.map(|store| store.wrong).sum()
    }
}

/// The address of a device of the scenario: shelves count from 1.
pub(super) fn address((shelf, slot): (usize, usize)) -> Address {
    Address::new(shelf as u16 + 1, slot as u8)
}
