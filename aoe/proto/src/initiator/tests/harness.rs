//! A host that drives an initiator by hand, and a target that answers from memory with the faults it is told.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::super::*;
use crate::wire::{
    AFlags, AoeError, AtaError, AtaReply, AtaRequest, AtaString, Body, CCmd, Command, ConfigInfo, Header, Identify,
    LbaBytes, MacAddr, Opcode, SECTOR, pad,
};
use crate::wire::{Frame as WireFrame, Status as AtaStatus};

pub(super) const PORT: PortId = PortId(0);
pub(super) const PORT_B: PortId = PortId(1);
pub(super) const ADDRESS: Address = Address::new(7, 1);
pub(super) const TARGET: MacAddr = MacAddr([2, 0, 0, 0, 9, 1]);
pub(super) const TARGET_B: MacAddr = MacAddr([2, 0, 0, 0, 9, 2]);

pub(super) fn host_mac(port: PortId) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, port.0])
}

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A frame that a host sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) at: Duration,
    pub(super) port: PortId,
    pub(super) bytes: Vec<u8>,
}

impl Sent {
    pub(super) fn frame(&self) -> WireFrame<'_> {
        WireFrame::parse(&self.bytes).expect("the initiator sends whole frames")
    }

    /// The registers, if it is an ATA command.
    pub(super) fn ata(&self) -> Option<AtaRequest> {
        match self.frame().body {
            Body::AtaRequest(request, _) => Some(request),
            _ => None,
        }
    }

    /// Whether it is a read that is padded to find out what its path carries.
    pub(super) fn is_probe(&self) -> bool {
        let read = |ata: AtaRequest| ata.opcode == Opcode::READ_SECTORS_EXT;
        self.bytes.len() > crate::wire::MIN_FRAME && self.ata().is_some_and(read)
    }
}

/// The registers of the ATA commands among frames, those of probes left out.
pub(super) fn commands(sent: &[Sent]) -> Vec<AtaRequest> {
    sent.iter().filter(|frame| !frame.is_probe()).filter_map(Sent::ata).collect()
}

/// An initiator with its buffers and its clock.
pub(super) struct Host {
    pub(super) initiator: Initiator,
    pub(super) now: Duration,
    pub(super) buffers: BTreeMap<u64, Vec<u8>>,
    pub(super) completions: Vec<(u64, Status)>,
    boots: BTreeMap<u64, Option<u32>>,
    pub(super) events: Vec<Event>,
    next_id: u64,
}

impl Host {
    pub(super) fn new(tunables: Tunables) -> Host {
        Host::with_config(Config { tunables, ..Config::new(WorkerId(5), 42) })
    }

    pub(super) fn with_config(config: Config) -> Host {
        let mut host = Host {
            initiator: Initiator::new(config),
            now: ms(1000),
            buffers: BTreeMap::new(),
            completions: Vec::new(),
            boots: BTreeMap::new(),
            events: Vec::new(),
            next_id: 0,
        };
        host.port(PORT, Some(9000));
        host
    }

    pub(super) fn port(&mut self, port: PortId, mtu: Option<u32>) {
        let mac = host_mac(port);
        let info = mtu.map(|mtu| PortInfo { mac, mtu });
        self.initiator.set_port(self.now, port, info);
    }

    pub(super) fn open(&mut self) -> DeviceId {
        let credits = Arc::new(Credits::new());
        self.initiator.open(self.now, ADDRESS, credits)
    }

    /// Submits with a fresh buffer; writes are of bytes that tell the request.
    pub(super) fn try_submit(&mut self, device: DeviceId, op: Op, lba: u64, sectors: u32) -> Result<u64, SubmitError> {
        let id = self.next_id;
        self.next_id += 1;
        let len = match op {
            Op::Identify => SECTOR,
            Op::Flush => 0,
            _ => sectors as usize * SECTOR,
        };
        let fill = if op.is_write() { (id % 255) as u8 + 1 } else { 0 };
        self.buffers.insert(id, vec![fill; len]);
        let request = Request { id: RequestId(id), device, op, lba: Lba(lba), sectors };
        self.initiator.submit(self.now, request).map(|()| id)
    }

    pub(super) fn submit(&mut self, device: DeviceId, op: Op, lba: u64, sectors: u32) -> u64 {
        let submitted = self.try_submit(device, op, lba, sectors);
        submitted.expect("the request is taken")
    }

    pub(super) fn read(&mut self, device: DeviceId, lba: u64, sectors: u32) -> u64 {
        self.submit(device, Op::Read, lba, sectors)
    }

    pub(super) fn write(&mut self, device: DeviceId, lba: u64, sectors: u32) -> u64 {
        self.submit(device, Op::Write { fua: false }, lba, sectors)
    }

    /// Which start of the target carried a request out.
    pub(super) fn boot(&self, id: u64) -> Option<u32> {
        self.boots[&id]
    }

    pub(super) fn cancel(&mut self, id: u64) {
        self.initiator.cancel(self.now, RequestId(id));
    }

    /// Everything that is to be sent now; takes completions and events on the way.
    pub(super) fn sent(&mut self) -> Vec<Sent> {
        let mut sent = Vec::new();
        while let Some(transmit) = self.initiator.poll_transmit(self.now) {
            let mut bytes = transmit.header[..transmit.header_len].to_vec();
            if let Some(payload) = transmit.payload {
                let buffer = &self.buffers[&payload.id.0];
                bytes.extend(&buffer[payload.offset..payload.offset + payload.len]);
            }
            bytes.resize(bytes.len() + transmit.pad, 0);
            assert!(bytes.len() >= 60, "padded to the smallest frame");
            sent.push(Sent { at: self.now, port: transmit.port, bytes });
            assert!(sent.len() < 100_000, "the initiator sends without end");
        }
        self.collect();
        sent
    }

    fn collect(&mut self) {
        while let Some(Completion { id, status, boot }) = self.initiator.poll_completion() {
            let before = self.completions.iter().any(|(other, _)| *other == id.0);
            assert!(!before, "request {} completed twice", id.0);
            self.completions.push((id.0, status));
            self.boots.insert(id.0, boot);
        }
        while let Some(event) = self.initiator.poll_event() {
            self.events.push(event);
        }
    }

    pub(super) fn receive(&mut self, port: PortId, frame: &[u8]) {
        if let Some(arrived) = self.initiator.handle_frame(self.now, port, frame) {
            let buffer = self.buffers.get_mut(&arrived.id.0).expect("a known request");
            buffer[arrived.offset..arrived.offset + arrived.data.len()].copy_from_slice(arrived.data);
        }
        self.collect();
    }

    /// Moves the clock, with every timer on the way; returns what was sent besides probes, nothing of it answered.
    pub(super) fn advance(&mut self, by: Duration) -> Vec<Sent> {
        let mut sent = self.advance_all(by);
        sent.retain(|frame| !frame.is_probe());
        sent
    }

    /// The same with the probes.
    pub(super) fn advance_all(&mut self, by: Duration) -> Vec<Sent> {
        let end = self.now + by;
        let mut sent = self.sent();
        while let Some(at) = self.initiator.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.initiator.handle_timeout(self.now);
            sent.extend(self.sent());
            assert!(sent.len() < 100_000, "the initiator sends without end");
        }
        self.now = end;
        sent
    }

    /// The same, where `target` answers at once.
    pub(super) fn advance_with(&mut self, by: Duration, target: &mut Target) -> Vec<Sent> {
        let end = self.now + by;
        let mut sent = self.exchange(target);
        while let Some(at) = self.initiator.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.initiator.handle_timeout(self.now);
            sent.extend(self.exchange(target));
        }
        self.now = end;
        sent
    }

    /// Sends and answers until nothing more is to be sent now.
    pub(super) fn exchange(&mut self, target: &mut Target) -> Vec<Sent> {
        let mut all = Vec::new();
        loop {
            let sent = self.sent();
            if sent.is_empty() {
                return all;
            }
            for frame in &sent {
                self.answer(target, frame);
            }
            all.extend(sent);
            assert!(all.len() < 100_000, "the exchange has no end");
        }
    }

    /// Has `target` answer one frame.
    pub(super) fn answer(&mut self, target: &mut Target, frame: &Sent) {
        if let Some(reply) = target.answer(&frame.bytes) {
            self.receive(frame.port, &reply);
        }
    }

    pub(super) fn status(&self, id: u64) -> Option<Status> {
        let mut all = self.completions.iter();
        all.find(|(other, _)| *other == id).map(|(_, status)| *status)
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        self.collect();
        core::mem::take(&mut self.events)
    }
}

/// What a target answers to a command instead of doing it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// An AoE error.
    Aoe(AoeError),
    /// Status and error registers.
    Ata(u8, AtaError),
    /// Nothing, and the command is not done.
    Lost,
    /// A reply with this many bytes of data less.
    Short(usize),
}

/// A disk that speaks AoE.
pub(super) struct Target {
    pub(super) address: Address,
    pub(super) mac: MacAddr,
    pub(super) buffer_count: u16,
    pub(super) sectors_max: u8,
    pub(super) identify: Identify,
    pub(super) disk: Vec<u8>,
    /// Faults for the next ATA commands, one each, in order.
    pub(super) faults: VecDeque<Option<Fault>>,
    /// Whether it answers anything.
    pub(super) up: bool,
    /// Frames that it executed: opcode, first sector, sectors.
    pub(super) done: Vec<(Opcode, u64, u8)>,
    /// Replies to the writes that were executed, if the target recognises repetitions.
    remembered: BTreeMap<(Tag, Opcode, u64, u8), Vec<u8>>,
}

impl Target {
    pub(super) fn new(sectors: u64) -> Target {
        Target {
            address: ADDRESS,
            mac: TARGET,
            buffer_count: 16,
            sectors_max: 17,
            identify: Identify {
                serial: AtaString::new("one"),
                model: AtaString::new("a disk"),
                ..Identify::disk(sectors)
            },
            disk: vec![0; sectors as usize * SECTOR],
            faults: VecDeque::new(),
            up: true,
            done: Vec::new(),
            remembered: BTreeMap::new(),
        }
    }

    /// Our own shelf.
    pub(super) fn ours(sectors: u64) -> Target {
        let mut target = Target::new(sectors);
        target.identify.model = AtaString::new(crate::wire::MODEL);
        target.identify.dedupe_flag = true;
        target.identify.boot_flag = true;
        target.identify.fua = true;
        target.identify.boot = 77;
        target
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        self.faults.push_back(Some(fault));
    }

    pub(super) fn config(&self, header: &Header) -> Vec<u8> {
        let mut reply = vec![0; 60];
        let info = ConfigInfo::reply(self.buffer_count, 0x4019, self.sectors_max, CCmd::READ, b"");
        info.emit(&header.reply(self.mac, self.address, None), &mut reply);
        reply
    }

    /// What vblade sends at its start, version 0 included.
    pub(super) fn beacon(&self) -> Vec<u8> {
        let header = Header {
            version: 0,
            ..Header::request(self.mac, MacAddr::BROADCAST, self.address, Command::CONFIG, Tag::UNSOLICITED)
        };
        let mut beacon = self.config(&header);
        beacon[..6].fill(0xFF);
        beacon.truncate(32);
        beacon
    }

    pub(super) fn answer(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let frame = WireFrame::parse(bytes).expect("the initiator sends whole frames");
        let for_us = frame.header.dst == MacAddr::BROADCAST || frame.header.dst == self.mac;
        if !self.up || !for_us || !frame.header.address.covers(self.address) {
            return None;
        }
        match frame.body {
            Body::Config(_) => Some(self.config(&frame.header)),
            Body::AtaRequest(request, data) => self.ata(&frame.header, &request, data),
            _ => panic!("not sent by the initiator: {frame:?}"),
        }
    }

    fn ata(&mut self, header: &Header, request: &AtaRequest, data: &[u8]) -> Option<Vec<u8>> {
        let key = (header.tag, request.opcode, request.lba().0, request.sectors);
        if let Some(reply) = self.remembered.get(&key) {
            return Some(reply.clone());
        }
        let fault = self.faults.pop_front().flatten();
        let mut reply = vec![0; 36 + request.data_len()];
        if let Some(Fault::Aoe(error)) = fault {
            header.reply(self.mac, self.address, Some(error)).emit(&mut reply);
            reply.resize(60, 0);
            return Some(reply);
        }
        let header = header.reply(self.mac, self.address, None);
        let mut registers =
            AtaReply { flags: request.flags, error: AtaError(0), sectors: 0, status: AtaStatus::OK, lba: request.lba };
        if self.identify.tells_boot() && request.opcode != Opcode::IDENTIFY {
            registers.lba = AtaReply::boot_number_lba(self.identify.boot);
        }
        match fault {
            Some(Fault::Ata(status, error)) => {
                registers.status = AtaStatus(status);
                registers.error = error;
                reply.truncate(36);
            }
            Some(Fault::Lost) => return None,
            _ => self.execute(request, data, &mut registers, &mut reply),
        }
        registers.emit(&header, &mut reply);
        if let Some(Fault::Short(bytes)) = fault {
            reply.truncate(reply.len() - bytes);
            return Some(reply);
        }
        let len = reply.len();
        reply.resize(len.max(60), 0);
        pad(&mut reply, len);
        if self.identify.dedupes() && request.flags.contains(AFlags::WRITE) {
            self.remembered.insert(key, reply.clone());
        }
        Some(reply)
    }

    fn execute(&mut self, request: &AtaRequest, data: &[u8], registers: &mut AtaReply, reply: &mut Vec<u8>) {
        let Lba(lba) = request.lba();
        self.done.push((request.opcode, lba, request.sectors));
        let bytes = lba as usize * SECTOR..lba as usize * SECTOR + request.data_len();
        match request.opcode {
            Opcode::IDENTIFY => {
                let block = reply[36..].first_chunk_mut().expect("one sector is asked for");
                self.identify.emit(block);
            }
            Opcode::READ_SECTORS | Opcode::READ_SECTORS_EXT => {
                reply[36..].copy_from_slice(&self.disk[bytes]);
            }
            Opcode::FLUSH_CACHE | Opcode::FLUSH_CACHE_EXT => {
                registers.lba = match self.identify.boot_number() {
                    Some(boot) => AtaReply::boot_number_lba(boot),
                    None => LbaBytes::default(),
                };
            }
            _ => {
                assert!(request.flags.contains(AFlags::WRITE), "{request:?}");
                self.disk[bytes].copy_from_slice(&data[..request.data_len()]);
                reply.truncate(36);
            }
        }
    }
}

/// A host that has found its device.
pub(super) fn found(target: &mut Target) -> (Host, DeviceId) {
    found_with(target, Tunables::default())
}

pub(super) fn found_with(target: &mut Target, tunables: Tunables) -> (Host, DeviceId) {
    let mut host = Host::new(tunables);
    let device = host.open();
    host.initiator.handle_timeout(host.now);
    host.exchange(target);
    let events = host.take_events();
    assert!(matches!(events[0], Event::Found(_)), "{events:?}");
    assert!(matches!(events[1], Event::PathUp { .. }), "{events:?}");
    target.done.clear();
    (host, device)
}
