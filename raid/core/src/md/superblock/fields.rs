//! The small types of superblock fields: format, feature bits, roles, times.

use core::fmt;
use core::str::FromStr;

use super::DEVICE_MIN;
use crate::units::{MemberIndex, Sector, Sectors};

/// Which version 1 format: they differ only in where the superblock lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Minor {
    /// 1.0: 8 to 12 KiB before the end of the device.
    V0,
    /// 1.1: at the start of the device.
    V1,
    /// 1.2, the default: 4 KiB from the start.
    #[default]
    V2,
}

impl Minor {
    /// All formats, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::V0, Self::V1, Self::V2];

    /// Where the superblock lies on a device of `device` sectors; `None` when that is too small for one.
    pub fn superblock_sector(self, device: Sectors) -> Option<Sector> {
        if device < DEVICE_MIN {
            return None;
        }
        Some(Sector(match self {
            Self::V0 => (device.0 - 16) & !7,
            Self::V1 => 0,
            Self::V2 => 8,
        }))
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V0 => "1.0",
            Self::V1 => "1.1",
            Self::V2 => "1.2",
        })
    }
}

/// A metadata version that is not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metadata version {0:?} is not supported: use 1.0, 1.1 or 1.2")]
pub struct UnknownVersion(String);

impl FromStr for Minor {
    type Err = UnknownVersion;

    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        match text {
            "1.0" => Ok(Self::V0),
            "1.1" => Ok(Self::V1),
            "1.2" | "1" | "default" => Ok(Self::V2),
            _ => Err(UnknownVersion(text.to_owned())),
        }
    }
}

/// The feature bits of a superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(pub u32);

impl Features {
    /// `bitmap_offset` is valid: there is a write-intent bitmap.
    pub const BITMAP_OFFSET: Self = Self(1);
    /// `recovery_offset` is valid: the member is not in sync beyond it.
    pub const RECOVERY_OFFSET: Self = Self(2);
    /// A reshape is under way.
    pub const RESHAPE_ACTIVE: Self = Self(4);
    /// The bad-block log has entries.
    pub const BAD_BLOCKS: Self = Self(8);
    /// The member is a replacement for the one in the same slot.
    pub const REPLACEMENT: Self = Self(16);
    /// The reshape runs backwards though the number of members stays.
    pub const RESHAPE_BACKWARDS: Self = Self(32);
    /// `new_offset` is valid.
    pub const NEW_OFFSET: Self = Self(64);
    /// The recovery goes by the bitmap.
    pub const RECOVERY_BITMAP: Self = Self(128);
    /// The array is shared by a cluster.
    pub const CLUSTERED: Self = Self(256);
    /// The array has a journal device.
    pub const JOURNAL: Self = Self(512);
    /// The array has a PPL.
    pub const PPL: Self = Self(1024);
    /// The PPL area is a ring of several logs.
    pub const MULTIPLE_PPLS: Self = Self(2048);
    /// `layout` of a level 0 array has a meaning.
    pub const RAID0_LAYOUT: Self = Self(4096);
    /// Every bit that md knows.
    pub const KNOWN: Self = Self(0x1fff);

    /// Whether any bit of `other` is set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The bits of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The bits that are not in `other`.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The bits with those of `other` set or cleared.
    #[must_use]
    pub const fn put(self, other: Self, set: bool) -> Self {
        if set { self.union(other) } else { self.minus(other) }
    }
}

/// An entry of the role table: what a device does in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Holds this slot.
    Active(u16),
    /// Waits to replace a member. Also what unused entries say in tables that mdadm wrote.
    Spare,
    /// Has failed or is unknown.
    Faulty,
    /// Is the journal.
    Journal,
    /// A number without a meaning.
    Reserved(u16),
}

impl Role {
    /// Highest slot number of the format.
    const SLOT_MAX: u16 = 0xff00;

    pub(super) fn from_disk(number: u16) -> Self {
        match number {
            0xffff => Self::Spare,
            0xfffe => Self::Faulty,
            0xfffd => Self::Journal,
            0..=Self::SLOT_MAX => Self::Active(number),
            _ => Self::Reserved(number),
        }
    }

    pub(super) const fn to_disk(self) -> u16 {
        match self {
            Self::Spare => 0xffff,
            Self::Faulty => 0xfffe,
            Self::Journal => 0xfffd,
            Self::Active(number) | Self::Reserved(number) => number,
        }
    }
}

impl From<MemberIndex> for Role {
    fn from(slot: MemberIndex) -> Self {
        Self::Active(slot.0.into())
    }
}

/// A time as superblocks store it: seconds since 1970 in the low 40 bits, microseconds in the high 24.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// A time in whole seconds.
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds & ((1 << 40) - 1))
    }

    /// The seconds since 1970.
    pub const fn seconds(self) -> u64 {
        self.0 & ((1 << 40) - 1)
    }
}
