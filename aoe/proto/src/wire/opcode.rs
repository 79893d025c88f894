//! ATA opcodes that travel over AoE, and which way their data goes.
//!
//! Used by the initiator to build requests and by the shelf to check them. The table is the one of opcodes a target
//! should know; an opcode outside it is still a valid value and gets "aborted" from our shelf.

use core::fmt;

/// An ATA command's opcode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(pub u8);

/// Where a command's data travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    None,
    /// From the device to the initiator.
    In,
    /// From the initiator to the device: the W flag must be set.
    Out,
}

impl Opcode {
    /// DATA SET MANAGEMENT (TRIM).
    pub const DATA_SET_MANAGEMENT: Opcode = Opcode(0x06);
    /// READ SECTORS.
    pub const READ_SECTORS: Opcode = Opcode(0x20);
    /// READ SECTORS EXT.
    pub const READ_SECTORS_EXT: Opcode = Opcode(0x24);
    /// READ DMA EXT.
    pub const READ_DMA_EXT: Opcode = Opcode(0x25);
    /// READ NATIVE MAX ADDRESS EXT.
    pub const READ_NATIVE_MAX_EXT: Opcode = Opcode(0x27);
    /// WRITE SECTORS.
    pub const WRITE_SECTORS: Opcode = Opcode(0x30);
    /// WRITE SECTORS EXT.
    pub const WRITE_SECTORS_EXT: Opcode = Opcode(0x34);
    /// WRITE DMA EXT.
    pub const WRITE_DMA_EXT: Opcode = Opcode(0x35);
    /// WRITE DMA FUA EXT.
    pub const WRITE_DMA_FUA_EXT: Opcode = Opcode(0x3D);
    /// READ VERIFY SECTORS.
    pub const READ_VERIFY: Opcode = Opcode(0x40);
    /// READ VERIFY SECTORS EXT.
    pub const READ_VERIFY_EXT: Opcode = Opcode(0x42);
    /// SMART; the feature register says which of its functions.
    pub const SMART: Opcode = Opcode(0xB0);
    /// READ DMA.
    pub const READ_DMA: Opcode = Opcode(0xC8);
    /// WRITE DMA.
    pub const WRITE_DMA: Opcode = Opcode(0xCA);
    /// WRITE MULTIPLE FUA EXT.
    pub const WRITE_MULTIPLE_FUA_EXT: Opcode = Opcode(0xCE);
    /// STANDBY IMMEDIATE.
    pub const STANDBY_IMMEDIATE: Opcode = Opcode(0xE0);
    /// IDLE IMMEDIATE.
    pub const IDLE_IMMEDIATE: Opcode = Opcode(0xE1);
    /// STANDBY.
    pub const STANDBY: Opcode = Opcode(0xE2);
    /// IDLE.
    pub const IDLE: Opcode = Opcode(0xE3);
    /// CHECK POWER MODE.
    pub const CHECK_POWER_MODE: Opcode = Opcode(0xE5);
    /// SLEEP.
    pub const SLEEP: Opcode = Opcode(0xE6);
    /// FLUSH CACHE.
    pub const FLUSH_CACHE: Opcode = Opcode(0xE7);
    /// FLUSH CACHE EXT.
    pub const FLUSH_CACHE_EXT: Opcode = Opcode(0xEA);
    /// IDENTIFY DEVICE.
    pub const IDENTIFY: Opcode = Opcode(0xEC);
    /// SET FEATURES; the feature register says which.
    pub const SET_FEATURES: Opcode = Opcode(0xEF);
    /// READ NATIVE MAX ADDRESS.
    pub const READ_NATIVE_MAX: Opcode = Opcode(0xF8);

    /// Reads user data.
    pub fn is_read(self) -> bool {
        matches!(self, Opcode::READ_SECTORS | Opcode::READ_SECTORS_EXT | Opcode::READ_DMA | Opcode::READ_DMA_EXT)
    }

    /// Writes user data.
    pub fn is_write(self) -> bool {
        matches!(self, Opcode::WRITE_SECTORS | Opcode::WRITE_SECTORS_EXT | Opcode::WRITE_DMA | Opcode::WRITE_DMA_EXT)
            || self.is_fua()
    }

    /// Writes user data and answers when it is on stable storage.
    pub fn is_fua(self) -> bool {
        matches!(self, Opcode::WRITE_DMA_FUA_EXT | Opcode::WRITE_MULTIPLE_FUA_EXT)
    }

    /// Flushes the write cache.
    pub fn is_flush(self) -> bool {
        matches!(self, Opcode::FLUSH_CACHE | Opcode::FLUSH_CACHE_EXT)
    }

    /// A 48-bit command: the E flag must be set.
    pub fn is_extended(self) -> bool {
        matches!(
            self,
            Opcode::DATA_SET_MANAGEMENT
                | Opcode::READ_SECTORS_EXT
                | Opcode::READ_DMA_EXT
                | Opcode::READ_NATIVE_MAX_EXT
                | Opcode::WRITE_SECTORS_EXT
                | Opcode::WRITE_DMA_EXT
                | Opcode::WRITE_DMA_FUA_EXT
                | Opcode::WRITE_MULTIPLE_FUA_EXT
                | Opcode::READ_VERIFY_EXT
                | Opcode::FLUSH_CACHE_EXT
        )
    }

    /// Where the data goes, `None` for an opcode outside the table.
    ///
    /// SMART counts as a command without data; those of its functions that have some are the shelf's to refuse.
    pub fn direction(self) -> Option<Direction> {
        if self == Opcode::IDENTIFY || self.is_read() {
            return Some(Direction::In);
        }
        if self == Opcode::DATA_SET_MANAGEMENT || self.is_write() {
            return Some(Direction::Out);
        }
        self.name().map(|_| Direction::None)
    }

    /// ATA's name of the command, `None` for an opcode outside the table.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Opcode::DATA_SET_MANAGEMENT => "DATA SET MANAGEMENT",
            Opcode::READ_SECTORS => "READ SECTORS",
            Opcode::READ_SECTORS_EXT => "READ SECTORS EXT",
            Opcode::READ_DMA_EXT => "READ DMA EXT",
            Opcode::READ_NATIVE_MAX_EXT => "READ NATIVE MAX ADDRESS EXT",
            Opcode::WRITE_SECTORS => "WRITE SECTORS",
            Opcode::WRITE_SECTORS_EXT => "WRITE SECTORS EXT",
            Opcode::WRITE_DMA_EXT => "WRITE DMA EXT",
            Opcode::WRITE_DMA_FUA_EXT => "WRITE DMA FUA EXT",
            Opcode::READ_VERIFY => "READ VERIFY SECTORS",
            Opcode::READ_VERIFY_EXT => "READ VERIFY SECTORS EXT",
            Opcode::SMART => "SMART",
            Opcode::READ_DMA => "READ DMA",
            Opcode::WRITE_DMA => "WRITE DMA",
            Opcode::WRITE_MULTIPLE_FUA_EXT => "WRITE MULTIPLE FUA EXT",
            Opcode::STANDBY_IMMEDIATE => "STANDBY IMMEDIATE",
            Opcode::IDLE_IMMEDIATE => "IDLE IMMEDIATE",
            Opcode::STANDBY => "STANDBY",
            Opcode::IDLE => "IDLE",
            Opcode::CHECK_POWER_MODE => "CHECK POWER MODE",
            Opcode::SLEEP => "SLEEP",
            Opcode::FLUSH_CACHE => "FLUSH CACHE",
            Opcode::FLUSH_CACHE_EXT => "FLUSH CACHE EXT",
            Opcode::IDENTIFY => "IDENTIFY DEVICE",
            Opcode::SET_FEATURES => "SET FEATURES",
            Opcode::READ_NATIVE_MAX => "READ NATIVE MAX ADDRESS",
            _ => return None,
        })
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Opcode({:#04x})", self.0),
        }
    }
}
