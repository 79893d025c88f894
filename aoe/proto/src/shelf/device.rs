//! One device of a shelf: its settings, its store, its state, and the ATA commands executed on it.
//!
//! Called by the shelf for requests that are well formed and admitted. Registers of every reply are set, whatever the
//! command did. Nothing here allocates.

use super::counters::DeviceCounters;
use super::state::DeviceState;
use super::store::{BlockStore, StoreError};
use crate::wire::{
    ATA_HEADER, Address, AtaError, AtaReply, AtaRequest, AtaString, Identify, LBA28_END, LBA48_END, Lba, LbaBytes,
    MODEL, Opcode, SECTOR, Status,
};

/// SMART's signature in the middle and high LBA bytes.
const SMART_SIGNATURE: [u8; 2] = [0x4F, 0xC2];
/// Bytes of one entry of a TRIM's ranges.
const TRIM_ENTRY: usize = 8;

/// Features of SET FEATURES and SMART that are known here.
mod feature {
    pub(super) const WRITE_CACHE_ON: u8 = 0x02;
    pub(super) const TRANSFER_MODE: u8 = 0x03;
    pub(super) const LOOK_AHEAD_OFF: u8 = 0x55;
    pub(super) const WRITE_CACHE_OFF: u8 = 0x82;
    pub(super) const LOOK_AHEAD_ON: u8 = 0xAA;
    pub(super) const SMART_ENABLE: u8 = 0xD8;
    pub(super) const SMART_DISABLE: u8 = 0xD9;
    pub(super) const SMART_STATUS: u8 = 0xDA;
}

/// What a device is to look like.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Its name; not a wildcard.
    pub address: Address,
    /// Requests that may be outstanding, as told to initiators. The caller makes sure that the receive queue holds
    /// what all devices promise.
    pub buffer_count: u16,
    /// Serial number, up to 20 characters. Initiators tell devices apart by it.
    pub serial: String,
    /// World wide name.
    pub wwn: Option<u64>,
    /// Writes without FUA may be lost until they are flushed.
    pub write_cache: bool,
    /// The store can trim.
    pub trim: bool,
    /// Trimmed sectors read zeros.
    pub trim_zeroes: bool,
    /// A physical sector is 2 to this power sectors.
    pub physical_exponent: u8,
    /// The medium does not rotate.
    pub solid_state: bool,
}

impl DeviceConfig {
    /// A solid-state device with a write cache, physical sectors of 4 KiB and no TRIM.
    pub fn new(address: Address, buffer_count: u16, serial: &str) -> DeviceConfig {
        DeviceConfig {
            address,
            buffer_count,
            serial: serial.to_owned(),
            wwn: None,
            write_cache: true,
            trim: false,
            trim_zeroes: false,
            physical_exponent: 3,
            solid_state: true,
        }
    }
}

/// What the shelf adds to a device's IDENTIFY data.
#[derive(Clone, Copy)]
pub(super) struct ShelfIdentity {
    pub(super) boot: u32,
    pub(super) firmware: AtaString<8>,
}

/// A device.
pub(super) struct Device<S> {
    pub(super) config: DeviceConfig,
    pub(super) store: S,
    pub(super) state: DeviceState,
    /// The state before the last change, for when that can't be saved.
    pub(super) before: DeviceState,
    pub(super) counters: DeviceCounters,
    /// False after SET FEATURES turned the write cache off: then every write is a FUA write.
    pub(super) write_cache_on: bool,
}

/// Registers of a reply, and how many bytes of data go with them.
pub(super) type Executed = (AtaReply, usize);

impl<S: BlockStore> Device<S> {
    /// Reads into `reply` from byte 36 on.
    pub(super) fn read(&mut self, request: &AtaRequest, reply: &mut [u8]) -> Executed {
        let Some(lba) = self.range(request) else {
            return (failed(request, AtaError::IDNF), 0);
        };
        let len = request.data_len();
        match self.store.read(lba, &mut reply[ATA_HEADER..ATA_HEADER + len]) {
            Ok(()) => {
                self.counters.reads += 1;
                self.counters.read_sectors += u64::from(request.sectors);
                (done(request), len)
            }
            Err(error) => (failed(request, error_bits(error)), 0),
        }
    }

    /// Reads without giving the data away; `reply` from byte 36 on is scratch space of at least one sector.
    pub(super) fn verify(&mut self, request: &AtaRequest, reply: &mut [u8]) -> Executed {
        let Some(lba) = self.range(request) else {
            return (failed(request, AtaError::IDNF), 0);
        };
        self.counters.others += 1;
        let room = (reply.len() - ATA_HEADER) / SECTOR;
        let end = lba.0 + u64::from(request.sectors);
        let mut at = lba.0;
        while at < end {
            let step = (end - at).min(room as u64);
            let scratch = &mut reply[ATA_HEADER..ATA_HEADER + step as usize * SECTOR];
            if let Err(error) = self.store.read(Lba(at), scratch) {
                return (failed(request, error_bits(error)), 0);
            }
            at += step;
        }
        (done(request), 0)
    }

    /// Writes `data`.
    pub(super) fn write(&mut self, request: &AtaRequest, data: &[u8]) -> AtaReply {
        if self.store.read_only() {
            return failed(request, AtaError::ABRT);
        }
        let Some(lba) = self.range(request) else {
            return failed(request, AtaError::IDNF);
        };
        let fua = request.opcode.is_fua() || !self.write_cache_on;
        self.counters.writes += 1;
        self.counters.write_sectors += u64::from(request.sectors);
        match self.store.write(lba, data, fua) {
            Ok(()) => done(request),
            Err(error) => failed(request, write_error_bits(error)),
        }
    }

    /// Flushes, by itself or as a part of another command.
    pub(super) fn flush(&mut self, request: &AtaRequest) -> AtaReply {
        self.counters.flushes += 1;
        match self.store.flush() {
            Ok(()) => done(request),
            Err(_) => failed(request, AtaError::ABRT),
        }
    }

    /// Trims the ranges in `data`: all of them, or none when one is beyond the end.
    pub(super) fn trim(&mut self, request: &AtaRequest, data: &[u8]) -> AtaReply {
        if request.feature & AtaRequest::FEATURE_TRIM == 0 || !self.config.trim || self.store.read_only() {
            return failed(request, AtaError::ABRT);
        }
        let size = self.sectors();
        let ranges = || data.as_chunks::<TRIM_ENTRY>().0.iter().map(trim_range).filter(|(_, sectors)| *sectors > 0);
        if ranges().any(|(lba, sectors)| lba + sectors > size) {
            return failed(request, AtaError::IDNF);
        }
        self.counters.trims += 1;
        for (lba, sectors) in ranges() {
            if let Err(error) = self.store.trim(Lba(lba), sectors) {
                return failed(request, write_error_bits(error));
            }
        }
        done(request)
    }

    /// STANDBY IMMEDIATE, STANDBY, SLEEP: nothing but a flush happens.
    pub(super) fn standby(&mut self, request: &AtaRequest) -> AtaReply {
        self.flush(request)
    }

    /// SET FEATURES.
    pub(super) fn set_features(&mut self, request: &AtaRequest) -> AtaReply {
        match request.feature {
            feature::WRITE_CACHE_ON => {
                self.write_cache_on = true;
                done(request)
            }
            // What was written so far must be as durable as what is written from now on.
            feature::WRITE_CACHE_OFF => {
                let reply = self.flush(request);
                self.write_cache_on &= reply.status.is_error();
                reply
            }
            feature::TRANSFER_MODE | feature::LOOK_AHEAD_OFF | feature::LOOK_AHEAD_ON => done(request),
            _ => failed(request, AtaError::ABRT),
        }
    }

    /// Writes IDENTIFY data into `reply` from byte 36 on; `sectors_max` is what one frame holds.
    pub(super) fn identify(
        &mut self,
        request: &AtaRequest,
        shelf: ShelfIdentity,
        sectors_max: u8,
        reply: &mut [u8],
    ) -> Executed {
        let config = &self.config;
        let identify = Identify {
            serial: AtaString::new(&config.serial),
            firmware: shelf.firmware,
            model: AtaString::new(MODEL),
            write_cache: config.write_cache && self.write_cache_on,
            write_cache_supported: config.write_cache,
            fua: true,
            trim: config.trim,
            trim_zeroes: config.trim && config.trim_zeroes,
            trim_blocks: if config.trim { u16::from(sectors_max) } else { 0 },
            physical_exponent: config.physical_exponent,
            solid_state: config.solid_state,
            wwn: config.wwn,
            boot: shelf.boot,
            dedupe_flag: true,
            boot_flag: true,
            ..Identify::disk(self.sectors())
        };
        let data = reply[ATA_HEADER..].first_chunk_mut::<SECTOR>().expect("a reply buffer holds a sector");
        identify.emit(data);
        self.counters.others += 1;
        (done(request), SECTOR)
    }

    /// Commands that neither touch the store nor carry data.
    pub(super) fn other(&mut self, request: &AtaRequest) -> AtaReply {
        let last = self.sectors().saturating_sub(1);
        let reply = match request.opcode {
            Opcode::IDLE_IMMEDIATE | Opcode::IDLE => done(request),
            Opcode::CHECK_POWER_MODE => AtaReply { sectors: 0xFF, ..done(request) },
            Opcode::READ_NATIVE_MAX => AtaReply { lba: LbaBytes::lba28(Lba(last.min(LBA28_END - 1))), ..done(request) },
            Opcode::READ_NATIVE_MAX_EXT => AtaReply { lba: LbaBytes::lba48(Lba(last)), ..done(request) },
            Opcode::SMART => smart(request),
            _ => failed(request, AtaError::ABRT),
        };
        self.counters.others += 1;
        reply
    }

    /// Size in sectors, as far as an LBA reaches.
    fn sectors(&self) -> u64 {
        self.store.sectors().min(LBA48_END)
    }

    /// Where the request starts, if all of it is on the device.
    fn range(&self, request: &AtaRequest) -> Option<Lba> {
        let lba = request.lba();
        (lba.0 + u64::from(request.sectors) <= self.sectors()).then_some(lba)
    }
}

/// SMART as far as it makes sense for a device without a mechanism: on, off, and always in good health.
fn smart(request: &AtaRequest) -> AtaReply {
    if request.lba.0[1..3] != SMART_SIGNATURE {
        return failed(request, AtaError::ABRT);
    }
    match request.feature {
        // Good health is told by the signature coming back unchanged.
        feature::SMART_ENABLE | feature::SMART_DISABLE | feature::SMART_STATUS => done(request),
        _ => failed(request, AtaError::ABRT),
    }
}

/// The registers after a success: no sector left, the address as it came.
fn done(request: &AtaRequest) -> AtaReply {
    AtaReply { flags: request.flags, error: AtaError(0), sectors: 0, status: Status::OK, lba: request.lba }
}

/// The registers after a failure: nothing transferred, the address as it came.
pub(super) fn failed(request: &AtaRequest, error: AtaError) -> AtaReply {
    AtaReply { flags: request.flags, error, sectors: request.sectors, status: Status::FAILED, lba: request.lba }
}

fn error_bits(error: StoreError) -> AtaError {
    match error {
        StoreError::Medium => AtaError::UNC,
        StoreError::Io | StoreError::ReadOnly => AtaError::ABRT,
    }
}

/// "Uncorrectable" is about reading: a write that fails is aborted, whatever the reason, so that nobody tries to
/// repair it by writing.
fn write_error_bits(error: StoreError) -> AtaError {
    match error {
        StoreError::Medium | StoreError::Io | StoreError::ReadOnly => AtaError::ABRT,
    }
}

/// The range of one TRIM entry: first sector and number of sectors.
fn trim_range(&[a, b, c, d, e, f, low, high]: &[u8; TRIM_ENTRY]) -> (u64, u64) {
    let sectors = u16::from_le_bytes([low, high]);
    (LbaBytes([a, b, c, d, e, f]).lba(true).0, u64::from(sectors))
}
