//! Command 0: an ATA command's registers, as sent and as answered.
//!
//! The two directions have the same twelve bytes with different meanings, so they are two types. Data follows the
//! registers at byte 36 of the frame; its length is never stated, it follows from the opcode and the sector count.

use core::fmt;

use super::{AOE_HEADER, ATA_HEADER, Header, Lba, Opcode, ParseError, SECTOR};

/// Flags of an ATA message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AFlags(pub u8);

impl AFlags {
    /// E: a 48-bit command, all six LBA bytes count.
    pub const EXTENDED: AFlags = AFlags(0x40);
    /// D: bit 4 of the device/head register, looked at only with E.
    pub const DEVICE: AFlags = AFlags(0x10);
    /// A: the write may be answered before the medium has it.
    pub const ASYNC: AFlags = AFlags(0x02);
    /// W: data travels to the device.
    pub const WRITE: AFlags = AFlags(0x01);

    /// Whether all of `flags` are set.
    pub fn contains(self, flags: AFlags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Both sets of flags.
    pub const fn with(self, flags: AFlags) -> AFlags {
        AFlags(self.0 | flags.0)
    }

    /// The E flag for a 48-bit command, nothing for a 28-bit one.
    const fn extended_if(lba48: bool) -> AFlags {
        if lba48 { AFlags::EXTENDED } else { AFlags(0) }
    }
}

/// ATA's status register.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Status(pub u8);

impl Status {
    /// Busy.
    pub const BSY: Status = Status(0x80);
    /// Device ready.
    pub const DRDY: Status = Status(0x40);
    /// Device fault.
    pub const DF: Status = Status(0x20);
    /// Data request.
    pub const DRQ: Status = Status(0x08);
    /// Error: the error register says which.
    pub const ERR: Status = Status(0x01);

    /// The status of a command that succeeded.
    pub const OK: Status = Status::DRDY;
    /// The status of a command that failed.
    pub const FAILED: Status = Status(Status::DRDY.0 | Status::ERR.0);

    /// Any of BSY, DF, DRQ, ERR: the command did not succeed. 0 passes; vblade answers a flush with it.
    pub fn is_error(self) -> bool {
        self.0 & (Status::BSY.0 | Status::DF.0 | Status::DRQ.0 | Status::ERR.0) != 0
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:#04x})", self.0)
    }
}

/// ATA's error register, valid when the status has ERR.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct AtaError(pub u8);

impl AtaError {
    /// Interface checksum error.
    pub const ICRC: AtaError = AtaError(0x80);
    /// Uncorrectable data.
    pub const UNC: AtaError = AtaError(0x40);
    /// Media changed.
    pub const MC: AtaError = AtaError(0x20);
    /// ID not found: the address is beyond the end.
    pub const IDNF: AtaError = AtaError(0x10);
    /// Media change requested.
    pub const MCR: AtaError = AtaError(0x08);
    /// Aborted: not supported, not permitted, or not possible.
    pub const ABRT: AtaError = AtaError(0x04);
    /// No media.
    pub const NM: AtaError = AtaError(0x02);

    /// Whether all of `bits` are set.
    pub fn contains(self, bits: AtaError) -> bool {
        self.0 & bits.0 == bits.0
    }
}

impl fmt::Debug for AtaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AtaError({:#04x})", self.0)
    }
}

/// The six LBA bytes, least significant first. With 28 bits the fourth also holds the device/head bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LbaBytes(pub [u8; 6]);

impl LbaBytes {
    /// Device/head bits of a 28-bit command that addresses by LBA.
    const HEAD_LBA: u8 = 0xE0;
    /// Device/head bits of a command that has no address.
    const HEAD_NONE: u8 = 0xA0;

    /// The bytes of a 48-bit command. Bits above 47 must be 0.
    pub fn lba48(lba: Lba) -> LbaBytes {
        debug_assert!(lba.0 < super::LBA48_END, "the LBA has 48 bits");
        let bytes = lba.0.to_le_bytes();
        LbaBytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]])
    }

    /// The bytes of a 28-bit command. Bits above 27 must be 0.
    pub fn lba28(lba: Lba) -> LbaBytes {
        debug_assert!(lba.0 < super::LBA28_END, "the LBA has 28 bits");
        let bytes = lba.0.to_le_bytes();
        LbaBytes([bytes[0], bytes[1], bytes[2], bytes[3] & 0x0F | LbaBytes::HEAD_LBA, 0, 0])
    }

    /// The bytes of a 28-bit command without an address.
    pub fn no_address() -> LbaBytes {
        LbaBytes([0, 0, 0, LbaBytes::HEAD_NONE, 0, 0])
    }

    /// The LBA that the bytes mean with or without the E flag.
    pub fn lba(self, extended: bool) -> Lba {
        let [a, b, c, d, e, f] = self.0;
        if extended {
            Lba(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
        } else {
            Lba(u64::from_le_bytes([a, b, c, d & 0x0F, 0, 0, 0, 0]))
        }
    }
}

/// The registers of an ATA request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtaRequest {
    /// Flags.
    pub flags: AFlags,
    /// Feature register.
    pub feature: u8,
    /// Sectors to transfer; 0 never means 256 here.
    pub sectors: u8,
    /// The command.
    pub opcode: Opcode,
    /// LBA registers.
    pub lba: LbaBytes,
}

impl AtaRequest {
    /// DATA SET MANAGEMENT's TRIM bit in the feature register.
    pub const FEATURE_TRIM: u8 = 0x01;

    /// READ SECTORS (EXT).
    pub fn read(lba: Lba, sectors: u8, lba48: bool) -> AtaRequest {
        let (opcode, lba) = match lba48 {
            true => (Opcode::READ_SECTORS_EXT, LbaBytes::lba48(lba)),
            false => (Opcode::READ_SECTORS, LbaBytes::lba28(lba)),
        };
        AtaRequest { flags: AFlags::extended_if(lba48), feature: 0, sectors, opcode, lba }
    }

    /// WRITE SECTORS (EXT). The data follow in the frame.
    pub fn write(lba: Lba, sectors: u8, lba48: bool) -> AtaRequest {
        let (opcode, lba) = match lba48 {
            true => (Opcode::WRITE_SECTORS_EXT, LbaBytes::lba48(lba)),
            false => (Opcode::WRITE_SECTORS, LbaBytes::lba28(lba)),
        };
        AtaRequest { flags: AFlags::extended_if(lba48).with(AFlags::WRITE), feature: 0, sectors, opcode, lba }
    }

    /// WRITE DMA FUA EXT. The data follow in the frame. There is no 28-bit form.
    pub fn write_fua(lba: Lba, sectors: u8) -> AtaRequest {
        AtaRequest { opcode: Opcode::WRITE_DMA_FUA_EXT, ..AtaRequest::write(lba, sectors, true) }
    }

    /// READ VERIFY SECTORS (EXT).
    pub fn verify(lba: Lba, sectors: u8, lba48: bool) -> AtaRequest {
        let opcode = if lba48 { Opcode::READ_VERIFY_EXT } else { Opcode::READ_VERIFY };
        AtaRequest { opcode, ..AtaRequest::read(lba, sectors, lba48) }
    }

    /// FLUSH CACHE (EXT).
    pub fn flush(lba48: bool) -> AtaRequest {
        let (opcode, lba) = match lba48 {
            true => (Opcode::FLUSH_CACHE_EXT, LbaBytes::default()),
            false => (Opcode::FLUSH_CACHE, LbaBytes::no_address()),
        };
        AtaRequest { flags: AFlags::extended_if(lba48), feature: 0, sectors: 0, opcode, lba }
    }

    /// IDENTIFY DEVICE.
    pub fn identify() -> AtaRequest {
        AtaRequest {
            flags: AFlags::default(),
            feature: 0,
            sectors: 1,
            opcode: Opcode::IDENTIFY,
            lba: LbaBytes::no_address(),
        }
    }

    /// DATA SET MANAGEMENT with TRIM. `blocks` blocks of 512 bytes of ranges follow in the frame: eight bytes each,
    /// little-endian, 48 bits of LBA and 16 bits of length; length 0 is an unused entry.
    pub fn trim(blocks: u8) -> AtaRequest {
        AtaRequest {
            flags: AFlags::EXTENDED.with(AFlags::WRITE),
            feature: AtaRequest::FEATURE_TRIM,
            sectors: blocks,
            opcode: Opcode::DATA_SET_MANAGEMENT,
            lba: LbaBytes::default(),
        }
    }

    /// One eight-byte entry of a TRIM's ranges.
    pub fn trim_entry(lba: Lba, sectors: u16) -> [u8; 8] {
        let [a, b, c, d, e, f] = LbaBytes::lba48(lba).0;
        let [low, high] = sectors.to_le_bytes();
        [a, b, c, d, e, f, low, high]
    }

    /// The LBA addressed.
    pub fn lba(&self) -> Lba {
        self.lba.lba(self.flags.contains(AFlags::EXTENDED))
    }

    /// Bytes of data that the sector count stands for.
    pub fn data_len(&self) -> usize {
        usize::from(self.sectors) * SECTOR
    }

    /// The registers, and the bytes after them. Those are not judged: padding is legal, and probes pad requests to
    /// full frames.
    pub fn parse(arg: &[u8]) -> Result<(AtaRequest, &[u8]), ParseError> {
        let (raw, data) = split_registers(arg)?;
        let [flags, feature, sectors, opcode] = [raw[0], raw[1], raw[2], raw[3]];
        let request = AtaRequest {
            flags: AFlags(flags),
            feature,
            sectors,
            opcode: Opcode(opcode),
            lba: LbaBytes([raw[4], raw[5], raw[6], raw[7], raw[8], raw[9]]),
        };
        Ok((request, data))
    }

    /// Writes header and registers; returns 36, where the data start.
    pub fn emit(&self, header: &Header, buf: &mut [u8]) -> usize {
        emit_registers(header, buf, [self.flags.0, self.feature, self.sectors, self.opcode.0], self.lba)
    }
}

/// The registers of an ATA reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtaReply {
    /// Flags, as in the request.
    pub flags: AFlags,
    /// Error register.
    pub error: AtaError,
    /// Sector count register after the command: sectors not transferred.
    pub sectors: u8,
    /// Status register.
    pub status: Status,
    /// LBA registers after the command. Not to be relied on, except where the command returns an address.
    pub lba: LbaBytes,
}

impl AtaReply {
    /// The registers, and the bytes after them: data, padding, or both.
    pub fn parse(arg: &[u8]) -> Result<(AtaReply, &[u8]), ParseError> {
        let (raw, data) = split_registers(arg)?;
        let reply = AtaReply {
            flags: AFlags(raw[0]),
            error: AtaError(raw[1]),
            sectors: raw[2],
            status: Status(raw[3]),
            lba: LbaBytes([raw[4], raw[5], raw[6], raw[7], raw[8], raw[9]]),
        };
        Ok((reply, data))
    }

    /// Writes header and registers; returns 36, where the data start.
    pub fn emit(&self, header: &Header, buf: &mut [u8]) -> usize {
        emit_registers(header, buf, [self.flags.0, self.error.0, self.sectors, self.status.0], self.lba)
    }

    /// The boot number that our shelf puts into the LBA bytes of its replies to flushes and, where its IDENTIFY data say so, to reads
    /// and writes: nobody needs the address back. Meaningless from other targets, which repeat or advance it.
    pub fn boot_number(&self) -> u32 {
        let [a, b, c, d, ..] = self.lba.0;
        u32::from_le_bytes([a, b, c, d])
    }

    /// The LBA bytes that carry a boot number.
    pub fn boot_number_lba(boot: u32) -> LbaBytes {
        let [a, b, c, d] = boot.to_le_bytes();
        LbaBytes([a, b, c, d, 0, 0])
    }
}

/// Bytes of registers, the two reserved ones included.
const REGISTERS: usize = ATA_HEADER - AOE_HEADER;

fn split_registers(arg: &[u8]) -> Result<(&[u8; REGISTERS], &[u8]), ParseError> {
    arg.split_first_chunk::<REGISTERS>().ok_or(ParseError::Short)
}

fn emit_registers(header: &Header, buf: &mut [u8], first: [u8; 4], lba: LbaBytes) -> usize {
    header.emit(buf);
    buf[24..28].copy_from_slice(&first);
    buf[28..34].copy_from_slice(&lba.0);
    buf[34..36].fill(0);
    ATA_HEADER
}
