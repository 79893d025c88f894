//! md's version 1 superblock (1.0, 1.1, 1.2): parse, check and emit, byte for byte.
//!
//! [`Superblock`] holds every field of the format, so that what was parsed is emitted again with the same bytes. One block of
//! [`SUPERBLOCK_SIZE`] bytes is read and written as a whole; nothing else of md's lies in it. All fields are little-endian. The array's part is the same on all
//! members; the device's part (from `data_offset` to `bblog_offset`) is each member's own.
//!
//! Parsing checks what the kernel checks: magic, version, place, checksum, reserved bytes. What md knows and this implementation does not (yet)
//! is parsed all the same, for `examine`; [`Superblock::unsupported`] names it and assembly refuses it.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Uuid;
use crate::geometry::{Geometry, GeometryError, Layout};
use crate::units::{MemberCount, Sector, Sectors};

mod error;
mod fields;
mod support;
#[cfg(test)]
mod tests;

pub use error::SuperblockError;
pub use fields::{Features, Minor, Role, Timestamp, UnknownVersion};
pub use support::{Support, Unsupported};

/// Bytes of a superblock's block: what is read and written at once.
pub const SUPERBLOCK_SIZE: usize = 4096;
/// The most entries of the role table: as many as fit in the block.
pub const ROLES_MAX: usize = (SUPERBLOCK_SIZE - HEADER_SIZE) / 2;
/// The smallest device that can hold a superblock, in sectors.
pub const DEVICE_MIN: Sectors = Sectors(24);
/// Bytes before the role table.
const HEADER_SIZE: usize = size_of::<Header>();
/// What a superblock starts with.
const MAGIC: u32 = 0xa92b_4efc;
/// `resync_offset` of an array that needs no resync.
const ALL_ONES: u64 = u64::MAX;
/// The kernel's lower bound for `data_size`.
const DATA_SIZE_MIN: Sectors = Sectors(10);

/// The fields before the role table, as they lie on disk.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: U32,
    major_version: U32,
    feature_map: U32,
    pad0: U32,
    set_uuid: [u8; 16],
    set_name: [u8; 32],
    ctime: U64,
    level: U32,
    layout: U32,
    size: U64,
    chunksize: U32,
    raid_disks: U32,
    bitmap_or_ppl: [u8; 4],
    new_level: U32,
    reshape_position: U64,
    delta_disks: U32,
    new_layout: U32,
    new_chunk: U32,
    new_offset: U32,
    data_offset: U64,
    data_size: U64,
    super_offset: U64,
    recovery_offset: U64,
    dev_number: U32,
    cnt_corrected_read: U32,
    device_uuid: [u8; 16],
    devflags: u8,
    bblog_shift: u8,
    bblog_size: U16,
    bblog_offset: U32,
    utime: U64,
    events: U64,
    resync_offset: U64,
    sb_csum: U32,
    max_dev: U32,
    logical_block_size: U32,
    pad3: [u8; 28],
}

/// The fields of a reshape. Kept as they are; an array with one under way is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reshape {
    /// The level it leads to.
    pub new_level: i32,
    /// How far it is, in array sectors.
    pub position: Sector,
    /// Members added, or removed if negative.
    pub delta_disks: i32,
    /// The layout it leads to.
    pub new_layout: u32,
    /// The chunk it leads to, in sectors.
    pub new_chunk: u32,
    /// What is added to `data_offset` after it, in sectors.
    pub new_offset: i32,
}

/// A version 1 superblock. Field names are md's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Which format, hence where it lies.
    pub minor: Minor,
    /// Feature bits.
    pub features: Features,
    /// The array's UUID.
    pub set_uuid: Uuid,
    /// The array's name, `host:name` or `name`, with zero bytes after it.
    pub set_name: [u8; 32],
    /// When the array was created.
    pub ctime: Timestamp,
    /// RAID level.
    pub level: i32,
    /// Layout number; its meaning depends on the level.
    pub layout: u32,
    /// Sectors used on each member.
    pub size: Sectors,
    /// Chunk.
    pub chunk: Sectors,
    /// Members of the array.
    pub raid_disks: u32,
    /// Place of the bitmap or of the PPL; see [`Self::bitmap_offset`] and [`Self::ppl`].
    pub bitmap_or_ppl: [u8; 4],
    /// Fields of a reshape.
    pub reshape: Reshape,
    /// Where data starts on this member.
    pub data_offset: Sector,
    /// Sectors usable for data on this member.
    pub data_size: Sectors,
    /// Where this superblock lies.
    pub super_offset: Sector,
    /// How far the member is recovered; valid with [`Features::RECOVERY_OFFSET`]. On a journal device: its tail.
    pub recovery_offset: Sector,
    /// The device's number: its index in the role table, its own for as long as the array knows it.
    pub dev_number: u32,
    /// Read errors that were corrected.
    pub cnt_corrected_read: u32,
    /// The device's UUID.
    pub device_uuid: Uuid,
    /// 1 write-mostly, 2 failfast.
    pub devflags: u8,
    /// Log2 of the sectors that one unit of the bad-block log stands for.
    pub bblog_shift: u8,
    /// Sectors reserved for the bad-block log.
    pub bblog_size: u16,
    /// Where the bad-block log lies, in sectors from the superblock.
    pub bblog_offset: i32,
    /// When the superblock was last written.
    pub utime: Timestamp,
    /// Counts changes of the array's state.
    pub events: u64,
    /// From where parity may not match the data, in member sectors; `None` for a clean array.
    pub resync_offset: Option<Sector>,
    /// The array's block size in bytes, written by kernels from 6.19 on; else 0. New superblocks have 0: older kernels refuse anything else.
    pub logical_block_size: u32,
    /// What each device does, by device number. Its length is `max_dev`.
    pub roles: Vec<Role>,
}

/// md's sum over a superblock whose own sum field is zero: 32-bit words, and a last half word, folded to 32 bits.
fn checksum(header: &Header, roles: &[u8]) -> u32 {
    let mut header = header.clone();
    header.sb_csum = U32::new(0);
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let sum: u64 = header.as_bytes().chunks(4).chain(roles.chunks(4)).map(word).sum();
    (sum as u32).wrapping_add((sum >> 32) as u32)
}

impl Superblock {
    /// Parses the block that was read from [`Minor::superblock_sector`] of a device of `device` sectors.
    ///
    /// Checks the format alone; [`Self::check_device`] and [`Self::unsupported`] come before use.
    pub fn parse(block: &[u8; SUPERBLOCK_SIZE], minor: Minor, device: Sectors) -> Result<Self, SuperblockError> {
        let found = minor.superblock_sector(device).ok_or(SuperblockError::DeviceTooSmall(device))?;
        let (header, table) = Header::ref_from_prefix(block).expect("the block is larger than the header");
        if header.magic.get() != MAGIC {
            return Err(SuperblockError::Magic(header.magic.get()));
        }
        if header.major_version.get() != 1 {
            return Err(SuperblockError::MajorVersion(header.major_version.get()));
        }
        let says = Sector(header.super_offset.get());
        if says != found {
            return Err(SuperblockError::Place { found, says });
        }
        let max_dev = header.max_dev.get();
        let table = usize::try_from(max_dev)
            .ok()
            .filter(|&entries| entries <= ROLES_MAX)
            .map(|entries| &table[..2 * entries])
            .ok_or(SuperblockError::Roles(max_dev))?;
        let expected = checksum(header, table);
        if header.sb_csum.get() != expected {
            return Err(SuperblockError::Checksum { found: header.sb_csum.get(), expected });
        }
        if header.pad0.get() != 0 || header.pad3 != [0; 28] {
            return Err(SuperblockError::Reserved);
        }
        Ok(Self::from_disk(header, table, minor))
    }

    fn from_disk(header: &Header, table: &[u8], minor: Minor) -> Self {
        let resync = header.resync_offset.get();
        Self {
            minor,
            features: Features(header.feature_map.get()),
            set_uuid: Uuid(header.set_uuid),
            set_name: header.set_name,
            ctime: Timestamp(header.ctime.get()),
            level: header.level.get() as i32,
            layout: header.layout.get(),
            size: Sectors(header.size.get()),
            chunk: Sectors(header.chunksize.get().into()),
            raid_disks: header.raid_disks.get(),
            bitmap_or_ppl: header.bitmap_or_ppl,
            reshape: Reshape {
                new_level: header.new_level.get() as i32,
                position: Sector(header.reshape_position.get()),
                delta_disks: header.delta_disks.get() as i32,
                new_layout: header.new_layout.get(),
                new_chunk: header.new_chunk.get(),
                new_offset: header.new_offset.get() as i32,
            },
            data_offset: Sector(header.data_offset.get()),
            data_size: Sectors(header.data_size.get()),
            super_offset: Sector(header.super_offset.get()),
            recovery_offset: Sector(header.recovery_offset.get()),
            dev_number: header.dev_number.get(),
            cnt_corrected_read: header.cnt_corrected_read.get(),
            device_uuid: Uuid(header.device_uuid),
            devflags: header.devflags,
            bblog_shift: header.bblog_shift,
            bblog_size: header.bblog_size.get(),
            bblog_offset: header.bblog_offset.get() as i32,
            utime: Timestamp(header.utime.get()),
            events: header.events.get(),
            resync_offset: (resync != ALL_ONES).then_some(Sector(resync)),
            logical_block_size: header.logical_block_size.get(),
            roles: table.chunks_exact(2).map(|pair| Role::from_disk(u16::from_le_bytes([pair[0], pair[1]]))).collect(),
        }
    }

    /// Writes the superblock and its checksum to `block`, zeroes after it.
    ///
    /// The role table must not have more than [`ROLES_MAX`] entries, nor the chunk more sectors than 32 bits hold.
    pub fn emit(&self, block: &mut [u8; SUPERBLOCK_SIZE]) {
        assert!(self.roles.len() <= ROLES_MAX, "a role table of {} entries", self.roles.len());
        block.fill(0);
        let mut header = self.to_disk();
        let table = &mut block[HEADER_SIZE..][..2 * self.roles.len()];
        for (entry, role) in table.chunks_exact_mut(2).zip(&self.roles) {
            entry.copy_from_slice(&role.to_disk().to_le_bytes());
        }
        header.sb_csum = checksum(&header, table).into();
        block[..HEADER_SIZE].copy_from_slice(header.as_bytes());
    }

    fn to_disk(&self) -> Header {
        let mut header = Header::new_zeroed();
        header.magic = MAGIC.into();
        header.major_version = 1.into();
        header.feature_map = self.features.0.into();
        header.set_uuid = self.set_uuid.0;
        header.set_name = self.set_name;
        header.ctime = self.ctime.0.into();
        header.level = (self.level as u32).into();
        header.layout = self.layout.into();
        header.size = self.size.0.into();
        header.chunksize = u32::try_from(self.chunk.0).expect("a chunk is below 2^32 sectors").into();
        header.raid_disks = self.raid_disks.into();
        header.bitmap_or_ppl = self.bitmap_or_ppl;
        header.new_level = (self.reshape.new_level as u32).into();
        header.reshape_position = self.reshape.position.0.into();
        header.delta_disks = (self.reshape.delta_disks as u32).into();
        header.new_layout = self.reshape.new_layout.into();
        header.new_chunk = self.reshape.new_chunk.into();
        header.new_offset = (self.reshape.new_offset as u32).into();
        header.data_offset = self.data_offset.0.into();
        header.data_size = self.data_size.0.into();
        header.super_offset = self.super_offset.0.into();
        header.recovery_offset = self.recovery_offset.0.into();
        header.dev_number = self.dev_number.into();
        header.cnt_corrected_read = self.cnt_corrected_read.into();
        header.device_uuid = self.device_uuid.0;
        header.devflags = self.devflags;
        header.bblog_shift = self.bblog_shift;
        header.bblog_size = self.bblog_size.into();
        header.bblog_offset = (self.bblog_offset as u32).into();
        header.utime = self.utime.0.into();
        header.events = self.events.into();
        header.resync_offset = self.resync_offset.map_or(ALL_ONES, |from| from.0).into();
        header.max_dev = (self.roles.len() as u32).into();
        header.logical_block_size = self.logical_block_size.into();
        header
    }

    /// The checksum that [`Self::emit`] writes.
    pub fn checksum(&self) -> u32 {
        let table: Vec<u8> = self.roles.iter().flat_map(|role| role.to_disk().to_le_bytes()).collect();
        checksum(&self.to_disk(), &table)
    }

    /// Checks that a device of `device` sectors holds the data area that the superblock describes.
    pub fn check_device(&self, device: Sectors) -> Result<(), SuperblockError> {
        let Self { data_offset, data_size, super_offset, size, .. } = *self;
        if data_size < DATA_SIZE_MIN || data_size < size {
            return Err(SuperblockError::DataSize { data_size, size });
        }
        let end = data_offset.checked_add(data_size).map_or(u64::MAX, |end| end.0);
        let after = self.minor != Minor::V0;
        // The superblock's own 4 KiB must be free of data, whichever side of it data lies on.
        if if after { data_offset.0 < super_offset.0 + 8 } else { end > super_offset.0 } {
            return Err(SuperblockError::DataOverlaps { data_offset, super_offset });
        }
        if end > device.0 {
            return Err(SuperblockError::Truncated { needed: Sectors(end), device });
        }
        Ok(())
    }

    /// The array's name without the zero bytes, for people: bytes that are no UTF-8 are replaced, and so are control characters, because whoever
    /// wrote the disk must not speak to the terminal or the log of who looks at it.
    pub fn name(&self) -> String {
        let end = self.set_name.iter().position(|&byte| byte == 0).unwrap_or(self.set_name.len());
        String::from_utf8_lossy(&self.set_name[..end]).replace(char::is_control, "\u{fffd}")
    }

    /// What device `number` does, by this superblock's table; [`Role::Faulty`] for one that is not in it.
    pub fn role_of(&self, number: u32) -> Role {
        let entry = usize::try_from(number).ok().and_then(|number| self.roles.get(number));
        entry.copied().unwrap_or(Role::Faulty)
    }

    /// What this device does, by its own table.
    pub fn role(&self) -> Role {
        self.role_of(self.dev_number)
    }

    /// How far this member is recovered; `None` when it is in sync.
    pub fn recovery(&self) -> Option<Sector> {
        self.features.intersects(Features::RECOVERY_OFFSET).then_some(self.recovery_offset)
    }

    /// Sets how far this member is recovered; `None` for a member in sync.
    pub fn set_recovery(&mut self, recovered: Option<Sector>) {
        self.features = self.features.put(Features::RECOVERY_OFFSET, recovered.is_some());
        self.recovery_offset = recovered.unwrap_or(Sector::ZERO);
    }

    /// Where the write-intent bitmap lies, in sectors from the superblock.
    pub fn bitmap_offset(&self) -> Option<i32> {
        self.features.intersects(Features::BITMAP_OFFSET).then_some(i32::from_le_bytes(self.bitmap_or_ppl))
    }

    /// Where the PPL lies, in sectors from the superblock, and how many sectors it has.
    pub fn ppl(&self) -> Option<(i16, u16)> {
        let [a, b, c, d] = self.bitmap_or_ppl;
        let ppl = Features::PPL.union(Features::MULTIPLE_PPLS);
        self.features.intersects(ppl).then_some((i16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])))
    }

    /// The level 5 layout: of level 4 always parity-last, `None` for other levels and unknown numbers.
    pub fn parity_layout(&self) -> Option<Layout> {
        match self.level {
            4 => Some(Layout::ParityLast),
            5 => Layout::from_number(self.layout),
            _ => None,
        }
    }

    /// The shape of the array; the outer `None` where [`Self::parity_layout`] has none.
    pub fn geometry(&self) -> Option<Result<Geometry, GeometryError>> {
        let members = MemberCount(u8::try_from(self.raid_disks).unwrap_or(u8::MAX));
        Some(Geometry::new(members, self.chunk, self.size, self.parity_layout()?))
    }
}

/// Of the superblocks found on one device in the places of several formats, the one that counts: the latest created. A device that was
/// used before in another format may still have that superblock.
pub fn latest(found: impl IntoIterator<Item = Superblock>) -> Option<Superblock> {
    found.into_iter().reduce(|best, next| if next.ctime > best.ctime { next } else { best })
}
