//! A host with an initiator: the real one, and a load that keeps a number of requests outstanding at each device.
//!
//! Request `n` of a device uses every depth-th place of it from `n` on, so that no two that are outstanding overlap, and a frame's LBA tells its request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aoe_proto::initiator::{
    Config, Counters, Credits, DeviceId, Event, Initiator, Op, PathView, Request, RequestId, Status, Transmit, WorkerId,
};
use aoe_proto::port::{PortId, PortInfo};
use aoe_proto::wire::{Address, Body, Frame, Lba, SECTOR};
use aoe_sim::{Ppm, Rng};

use super::scenario::{self, Scenario};
use super::target::{DEVICE_SECTORS, address, fill, is_right};

/// A request that ended.
pub(super) struct Done {
    /// The device, by its place in the host's list.
    pub(super) device: usize,
    pub(super) submitted: Duration,
    pub(super) first_sent: Duration,
}

struct Slot {
    lba: Lba,
    write: bool,
    busy: bool,
    submitted: Duration,
    first_sent: Option<Duration>,
    buffer: Vec<u8>,
}

struct Device {
    id: DeviceId,
    address: Address,
    found: bool,
    slots: Vec<Slot>,
}

/// A host with an initiator and its load.
pub(super) struct Station {
    initiator: Initiator,
    devices: Vec<Device>,
    places: BTreeMap<Address, usize>,
    rng: Rng,
    read: Ppm,
    sectors: u32,
    /// Requests that ended otherwise than well, and reads that brought wrong data.
    errors: u64,
    frame: Vec<u8>,
}

impl Station {
    /// Opens all devices of an initiator of the scenario.
    pub(super) fn new(scenario: &Scenario, mine: &scenario::Initiator, seed: u64, ports: &[PortInfo]) -> Station {
        let mut rng = Rng::new(seed);
        let config = Config { tunables: scenario.tunables, ..Config::new(WorkerId(0), rng.next_u64()) };
        let mut initiator = Initiator::new(config);
        for (port, info) in (0..).zip(ports) {
            initiator.set_port(Duration::ZERO, PortId(port), Some(*info));
        }
        let slot = || Slot {
            lba: Lba(0),
            write: false,
            busy: false,
            submitted: Duration::ZERO,
            first_sent: None,
            buffer: vec![0; mine.sectors as usize * SECTOR],
        };
        let devices: Vec<Device> = mine
            .devices
            .iter()
            .map(|&place| {
                let address = address(place);
                let id = initiator.open(Duration::ZERO, address, Arc::new(Credits::new()));
                Device { id, address, found: false, slots: (0..mine.depth).map(|_| slot()).collect() }
            })
            .collect();
        let places = devices.iter().enumerate().map(|(at, device)| (device.address, at)).collect();
        let read = Ppm(mine.read_ppm);
        Station { initiator, devices, places, rng, read, sectors: mine.sectors, errors: 0, frame: Vec::new() }
    }

    /// Takes a frame that arrived at a port.
    pub(super) fn receive(&mut self, now: Duration, port: PortId, frame: &[u8]) {
        if let Some(arrived) = self.initiator.handle_frame(now, port, frame) {
            let (device, slot) = split(arrived.id);
            let buffer = &mut self.devices[device].slots[slot].buffer;
            buffer[arrived.offset..][..arrived.data.len()].copy_from_slice(arrived.data);
        }
    }

    /// When the host must be looked at again, if nothing arrives before.
    pub(super) fn wake_at(&self) -> Duration {
        self.initiator.poll_timeout().unwrap_or(Duration::MAX)
    }

    /// Does all that is to be done now.
    pub(super) fn work(&mut self, now: Duration, send: &mut impl FnMut(PortId, &[u8]), done: &mut impl FnMut(Done)) {
        if self.wake_at() <= now {
            self.initiator.handle_timeout(now);
        }
        loop {
            let mut moved = false;
            while let Some(event) = self.initiator.poll_event() {
                if let Event::Found(found) = event
                    && let Some(at) = self.devices.iter().position(|device| device.id == found.device)
                {
                    self.start(now, at);
                }
            }
            while let Some(completion) = self.initiator.poll_completion() {
                self.ended(now, completion.id, completion.status, done);
                moved = true;
            }
            while let Some(transmit) = self.initiator.poll_transmit(now) {
                self.transmit(now, &transmit, send);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    /// A device was found: its load begins.
    fn start(&mut self, now: Duration, at: usize) {
        self.devices[at].found = true;
        for slot in 0..self.devices[at].slots.len() {
            if !self.devices[at].slots[slot].busy {
                self.submit(now, at, slot);
            }
        }
    }

    fn submit(&mut self, now: Duration, at: usize, index: usize) {
        let device = &mut self.devices[at];
        let (sectors, depth) = (u64::from(self.sectors), device.slots.len() as u64);
        let place = self.rng.below(DEVICE_SECTORS / sectors / depth) * depth + index as u64;
        let slot = &mut device.slots[index];
        slot.lba = Lba(place * sectors);
        slot.write = !self.rng.chance(self.read);
        (slot.submitted, slot.first_sent) = (now, None);
        match slot.write {
            true => fill(device.address, slot.lba, &mut slot.buffer),
            // So that data that never came are seen to be wrong.
            false => slot.buffer.fill(0),
        }
        let op = if slot.write { Op::Write { fua: false } } else { Op::Read };
        let id = RequestId((at as u64) << 32 | index as u64);
        let request = Request { id, device: device.id, op, lba: slot.lba, sectors: self.sectors };
        slot.busy = self.initiator.submit(now, request).is_ok();
        if !slot.busy {
            // It was given up; when it is found again its load begins anew.
            device.found = false;
        }
    }

    fn ended(&mut self, now: Duration, id: RequestId, status: Status, done: &mut impl FnMut(Done)) {
        let (at, index) = split(id);
        let device = &mut self.devices[at];
        let slot = &mut device.slots[index];
        slot.busy = false;
        let right = slot.write || is_right(device.address, slot.lba, &slot.buffer);
        match slot.first_sent {
            Some(first_sent) if status == Status::Ok && right => {
                done(Done { device: at, submitted: slot.submitted, first_sent });
            }
            _ => self.errors += 1,
        }
        if self.devices[at].found {
            self.submit(now, at, index);
        }
    }

    fn transmit(&mut self, now: Duration, transmit: &Transmit, send: &mut impl FnMut(PortId, &[u8])) {
        let frame = &mut self.frame;
        frame.clear();
        frame.extend_from_slice(&transmit.header[..transmit.header_len]);
        if let Some(payload) = transmit.payload {
            let (device, slot) = split(payload.id);
            frame.extend_from_slice(&self.devices[device].slots[slot].buffer[payload.offset..][..payload.len]);
        }
        frame.resize(frame.len() + transmit.pad, 0);
        if let Ok(Frame { header, body: Body::AtaRequest(request, _) }) = Frame::parse(frame)
            && let Some(&at) = self.places.get(&header.address)
        {
            let slots = &mut self.devices[at].slots;
            let index = (request.lba().0 / u64::from(self.sectors)) as usize % slots.len();
            // IDENTIFY has no place; reads that probe a path are not the load's.
            let slot = &mut slots[index];
            if slot.busy && slot.lba == request.lba() {
                slot.first_sent.get_or_insert(now);
            }
        }
        send(transmit.port, frame);
    }

    /// The initiator's counters.
    pub(super) fn counters(&self) -> &Counters {
        self.initiator.counters()
    }

    /// Requests that ended otherwise than well, and reads that brought wrong data.
    pub(super) fn errors(&self) -> u64 {
        self.errors
    }

    /// When the oldest request that is outstanding was submitted.
    pub(super) fn oldest(&self) -> Option<Duration> {
        let slots = self.devices.iter().flat_map(|device| &device.slots);
        slots.filter(|slot| slot.busy).map(|slot| slot.submitted).min()
    }

    /// The paths of each device, in the order of the host's list.
    pub(super) fn paths(&self) -> impl Iterator<Item = (Address, PathView)> {
        self.devices.iter().flat_map(|device| {
            let view = self.initiator.device(device.id);
            let paths = view.into_iter().flat_map(|view| view.paths().collect::<Vec<_>>());
            paths.map(|path| (device.address, path))
        })
    }
}

/// Device and slot of a request.
fn split(id: RequestId) -> (usize, usize) {
    ((id.0 >> 32) as usize, (id.0 & 0xFFFF_FFFF) as usize)
}
