//! Tests of the shelf: a memory store that can fail and keeps a log, and a bench that sends frames and decodes replies.

mod ata;
mod captures;
mod control;
mod discovery;
mod malformed;
mod repeats;

use std::collections::VecDeque;

use super::{Shelf, *};
use crate::wire::*;

const HOST: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 1]);
const OTHER: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 2]);
const TARGET: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0x14]);
const PORT: PortId = PortId(0);
const E7_0: Address = Address::new(7, 0);
const BOOT: u32 = 0xB007_1234;
/// Sectors of the store.
const SECTORS: u64 = 1000;

/// What a store was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Read(u64, usize),
    Write(u64, usize, bool),
    Flush,
    Trim(u64, u64),
}

/// A store in memory.
struct Memory {
    bytes: Vec<u8>,
    sectors: u64,
    log: Vec<Asked>,
    read_only: bool,
    /// Outcomes of the next calls; success when empty.
    script: VecDeque<Result<(), StoreError>>,
}

impl Memory {
    fn new(sectors: u64) -> Memory {
        let bytes = (0..sectors as usize * SECTOR).map(|at| (at / SECTOR * 7 + at) as u8 | 1).collect();
        Memory { bytes, sectors, log: Vec::new(), read_only: false, script: VecDeque::new() }
    }

    fn range(&self, lba: Lba, len: usize) -> core::ops::Range<usize> {
        assert!(len > 0 && len.is_multiple_of(SECTOR), "whole sectors");
        assert!(lba.0 + (len / SECTOR) as u64 <= self.sectors, "inside the store");
        let start = lba.0 as usize * SECTOR;
        start..start + len
    }

    fn ask(&mut self, asked: Asked) -> Result<(), StoreError> {
        self.log.push(asked);
        self.script.pop_front().unwrap_or(Ok(()))
    }
}

impl BlockStore for Memory {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn read(&mut self, lba: Lba, buf: &mut [u8]) -> Result<(), StoreError> {
        let range = self.range(lba, buf.len());
        // Half-filled buffers of failed reads must not reach the wire.
        buf.fill(0xBD);
        self.ask(Asked::Read(lba.0, buf.len() / SECTOR))?;
        buf.copy_from_slice(&self.bytes[range]);
        Ok(())
    }

    fn write(&mut self, lba: Lba, data: &[u8], fua: bool) -> Result<(), StoreError> {
        assert!(!self.read_only);
        let range = self.range(lba, data.len());
        self.ask(Asked::Write(lba.0, data.len() / SECTOR, fua))?;
        self.bytes[range].copy_from_slice(data);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.ask(Asked::Flush)
    }

    fn trim(&mut self, lba: Lba, sectors: u64) -> Result<(), StoreError> {
        assert!(!self.read_only);
        let range = self.range(lba, sectors as usize * SECTOR);
        self.ask(Asked::Trim(lba.0, sectors))?;
        self.bytes[range].fill(0);
        Ok(())
    }

    fn read_only(&self) -> bool {
        self.read_only
    }
}

/// A shelf with its time and its reply buffer, which is full of rubbish before each frame.
struct Bench {
    shelf: Shelf<Memory>,
    now: Duration,
    tag: u32,
    source: MacAddr,
    reply: Vec<u8>,
}

impl Bench {
    /// A shelf with e7.0 on one port of MTU 1500.
    fn new() -> Bench {
        Bench::with(ShelfConfig { duplicate_entries: 1000, ..ShelfConfig::new(BOOT) }, |_| {})
    }

    fn with(config: ShelfConfig, adapt: impl FnOnce(&mut DeviceConfig)) -> Bench {
        let mut shelf = Shelf::new(config);
        shelf.set_port(PORT, Some(PortInfo { mac: TARGET, mtu: 1500 })).unwrap();
        let mut device = DeviceConfig { trim: true, ..DeviceConfig::new(E7_0, 16, "S1") };
        adapt(&mut device);
        shelf.add_device(device, DeviceState::default(), Memory::new(SECTORS)).unwrap();
        Bench { shelf, now: Duration::ZERO, tag: 0x8000_0000, source: HOST, reply: Vec::new() }
    }

    fn store(&mut self) -> &mut Memory {
        self.shelf.store_mut(E7_0).unwrap()
    }

    /// What the store was asked since the last call.
    fn log(&mut self) -> Vec<Asked> {
        std::mem::take(&mut self.store().log)
    }

    fn counters(&self) -> DeviceCounters {
        self.shelf.device_counters(E7_0).unwrap()
    }

    fn header(&mut self, command: Command) -> Header {
        self.tag += 1;
        Header::request(TARGET, self.source, E7_0, command, Tag(self.tag))
    }

    fn ata_frame(&mut self, request: &AtaRequest, data: &[u8]) -> Vec<u8> {
        let header = self.header(Command::ATA);
        let mut frame = vec![0; ATA_HEADER];
        request.emit(&header, &mut frame);
        frame.extend_from_slice(data);
        frame
    }

    fn handle(&mut self, frame: &[u8]) -> Outcome {
        self.reply.clear();
        self.reply.resize(self.shelf.reply_len(PORT), 0xEE);
        self.shelf.handle_frame(self.now, PORT, frame, &mut self.reply)
    }

    /// The reply to a frame, if there is one. Every reply is checked for what holds for all of them.
    fn send(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let len = match self.handle(frame) {
            Outcome::Drop => return None,
            Outcome::Reply(len) => len,
            other => panic!("{other:?}"),
        };
        Some(self.checked_reply(frame, len))
    }

    fn checked_reply(&self, frame: &[u8], len: usize) -> Vec<u8> {
        let reply = self.reply[..len].to_vec();
        let (asked, _) = Header::parse(frame).unwrap();
        let (header, _) = Header::parse(&reply).unwrap();
        assert!(len >= MIN_FRAME);
        assert!(header.response && header.version == 1);
        assert_eq!((header.dst, header.src), (asked.src, TARGET));
        assert_eq!((header.tag, header.command), (asked.tag, asked.command));
        assert!(!header.address.is_wildcard());
        assert_eq!(Frame::parse(&reply).map(|frame| frame.header), Ok(header));
        if header.error.is_some() {
            assert!(reply[AOE_HEADER..].iter().all(|byte| *byte == 0) && len == MIN_FRAME);
        }
        reply
    }

    /// Registers and data of an ATA request's reply. Whatever is behind them is checked to be zero.
    fn ata(&mut self, request: AtaRequest, data: &[u8]) -> Result<(AtaReply, Vec<u8>), AoeError> {
        let frame = self.ata_frame(&request, data);
        let reply = self.send(&frame).expect("a reply");
        ata_reply(&request, &reply)
    }

    /// The reply to an ATA request that has no data in its reply.
    fn registers(&mut self, request: AtaRequest, data: &[u8]) -> Result<AtaReply, AoeError> {
        self.ata(request, data).map(|(registers, data)| {
            assert!(data.is_empty());
            registers
        })
    }
}

/// Decodes the reply to an ATA request.
fn ata_reply(request: &AtaRequest, reply: &[u8]) -> Result<(AtaReply, Vec<u8>), AoeError> {
    let frame = Frame::parse(reply).unwrap();
    if let Some(error) = frame.header.error {
        return Err(error);
    }
    let Body::AtaReply(registers, rest) = frame.body else { panic!("{frame:?}") };
    assert_eq!(registers.flags, request.flags);
    let carries = request.opcode.direction() == Some(Direction::In) && !registers.status.is_error();
    let len = if carries { request.data_len() } else { 0 };
    assert_eq!(reply.len(), (ATA_HEADER + len).max(MIN_FRAME));
    assert!(rest[len..].iter().all(|byte| *byte == 0));
    Ok((registers, rest[..len].to_vec()))
}

/// What is in the place of the request's address: the boot number, where the reply tells it.
fn told(request: &AtaRequest) -> LbaBytes {
    let verify = [Opcode::READ_VERIFY, Opcode::READ_VERIFY_EXT].contains(&request.opcode);
    let trim = request.opcode == Opcode::DATA_SET_MANAGEMENT;
    let data = request.opcode.is_read() || request.opcode.is_write() || request.opcode.is_flush();
    if verify || trim || data { AtaReply::boot_number_lba(BOOT) } else { request.lba }
}

/// The registers of a success.
fn ok(request: &AtaRequest) -> AtaReply {
    AtaReply { flags: request.flags, error: AtaError(0), sectors: 0, status: Status(0x40), lba: told(request) }
}

/// The registers of a failure.
fn failure(request: &AtaRequest, error: u8) -> AtaReply {
    AtaReply {
        flags: request.flags,
        error: AtaError(error),
        sectors: request.sectors,
        status: Status(0x41),
        lba: told(request),
    }
}

/// `sectors` sectors of recognisable data.
fn pattern(sectors: usize, seed: u8) -> Vec<u8> {
    (0..sectors * SECTOR).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}
