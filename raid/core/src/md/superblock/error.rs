//! Why a superblock is not valid, in words for the user.

use super::{DEVICE_MIN, ROLES_MAX};
use crate::units::{Sector, Sectors};

/// Why a block is no valid superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// Something else, or nothing, is there.
    #[error("no md superblock: expected magic a92b4efc, got {0:08x}")]
    Magic(u32),
    /// Another version of the format.
    #[error("superblock of major version {0}: only version 1 is supported")]
    MajorVersion(u32),
    /// It says that it belongs elsewhere: a copy, or the device was resized.
    #[error(
        "superblock lies at sector {found} but says it belongs at sector {says}: was the device copied or resized?"
    )]
    Place {
        /// Where it was found.
        found: Sector,
        /// Where it says it belongs.
        says: Sector,
    },
    /// Its bytes have changed since it was written.
    #[error("superblock checksum is {found:08x}, expected {expected:08x}: the superblock is damaged")]
    Checksum {
        /// The sum in the superblock.
        found: u32,
        /// The sum of its bytes.
        expected: u32,
    },
    /// The role table is larger than its block.
    #[error("superblock has a role table of {0} entries: at most {ROLES_MAX} fit")]
    Roles(u32),
    /// Bytes that must be zero are not: a newer format.
    #[error("superblock has non-zero reserved bytes: it was written by a newer md")]
    Reserved,
    /// The device is too small for any superblock.
    #[error("device of {0} sectors is too small for a superblock: at least {DEVICE_MIN} are needed")]
    DeviceTooSmall(Sectors),
    /// The data area is smaller than md allows or than the array uses.
    #[error("superblock gives {data_size} sectors for data where the array uses {size}")]
    DataSize {
        /// Sectors usable.
        data_size: Sectors,
        /// Sectors used.
        size: Sectors,
    },
    /// Data would overwrite the superblock.
    #[error("superblock at sector {super_offset} lies within the data area from sector {data_offset}")]
    DataOverlaps {
        /// Where data starts.
        data_offset: Sector,
        /// Where the superblock lies.
        super_offset: Sector,
    },
    /// The device is smaller than when the superblock was written.
    #[error(
        "device of {device} sectors is too small for the data it should hold: {needed} sectors are needed (truncated device)"
    )]
    Truncated {
        /// Sectors needed.
        needed: Sectors,
        /// Sectors there are.
        device: Sectors,
    },
}
