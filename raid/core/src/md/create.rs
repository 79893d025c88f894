//! The superblocks of a new array, laid out as mdadm lays them out.
//!
//! Called by the `create` command, which supplies sizes, UUIDs and the time, and then writes each superblock. Same data offset, space for a bitmap, bad-block log
//! and sizes as mdadm for the same devices. Different by design: all members are active at once with a resync due (or none, with
//! `assume_clean`), where mdadm leaves the last slot empty and lets a spare be recovered into it; `logical_block_size` is 0.

use super::superblock::{ROLES_MAX, SUPERBLOCK_SIZE, Timestamp};
use super::{Features, Minor, Role, Superblock, Uuid};
use crate::geometry::{Geometry, GeometryError, Layout};
use crate::units::{MemberCount, Sector, Sectors};

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod tests_support;

/// mdadm's default chunk: 512 KiB.
pub const CHUNK_DEFAULT: Sectors = Sectors(1024);
/// The longest name, `host:` included.
pub const NAME_MAX: usize = 31;
/// Room that mdadm leaves at most for a later reshape: 128 MiB.
const HEADROOM_MAX: u64 = 1 << 18;
/// Data starts on a multiple of 1 MiB.
const DATA_ALIGN: Sectors = Sectors(2048);
/// Sectors of the bad-block log.
const BAD_BLOCK_LOG: u64 = 8;

/// What array to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewArray<'a> {
    /// The array's name.
    pub name: &'a str,
    /// The host's name, put before the array's where both fit, unless the array's name has a colon.
    pub homehost: Option<&'a str>,
    /// Format.
    pub minor: Minor,
    /// Level 4 (its layout must be parity-last) or 5.
    pub level: i32,
    /// Layout.
    pub layout: Layout,
    /// Chunk.
    pub chunk: Sectors,
    /// Members.
    pub members: MemberCount,
    /// Sectors to use on each member; as many as the smallest has if `None`.
    pub size: Option<Sectors>,
    /// Whether parity is known to match the data on the members already, as on members full of zeroes: then no resync is due.
    pub assume_clean: bool,
    /// The array's UUID: random.
    pub set_uuid: Uuid,
    /// The time now, in seconds since 1970.
    pub now: u64,
}

/// A device for a new array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewDevice {
    /// Its size.
    pub size: Sectors,
    /// Its UUID: random.
    pub uuid: Uuid,
}

/// The superblocks of a new array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The array's shape.
    pub geometry: Geometry,
    /// One superblock for each device, in their order.
    pub superblocks: Vec<Superblock>,
    /// Whether the largest device has over 1 % more room than is used: mdadm warns then.
    pub sizes_differ: bool,
}

/// Why an array cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The name does not fit.
    #[error("array name {0:?}: it must have 1 to {NAME_MAX} bytes and no control characters")]
    Name(String),
    /// A level that is not supported.
    #[error("level {0}: only levels 4 and 5 are supported")]
    Level(i32),
    /// Level 4 with a layout of its own.
    #[error("level 4 always has its parity on the last member: leave the layout out")]
    LayoutOfLevel4,
    /// Fewer devices than members.
    #[error("{devices} devices for {members} members: give as many devices as members, and spares after them")]
    TooFewDevices {
        /// Devices given.
        devices: usize,
        /// Members wanted.
        members: MemberCount,
    },
    /// More devices than a superblock can list.
    #[error("{0} devices: at most {ROLES_MAX}")]
    TooManyDevices(usize),
    /// No room for a superblock and one chunk.
    #[error("device {index} has {size} sectors: too small, at least {needed} are needed")]
    DeviceTooSmall {
        /// Which device.
        index: usize,
        /// Its size.
        size: Sectors,
        /// The size needed.
        needed: Sectors,
    },
    /// The members, chunk and size make no array.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
}

/// Sectors to reserve for a bitmap on a device with `size` sectors.
fn bitmap_space(size: Sectors) -> u64 {
    const GIB: u64 = 1 << 21;
    match size.0 {
        ..128 => 0,
        size if size - 128 >= 200 * GIB => 256,
        size if size - 8 > 8 * GIB => 128,
        _ => 8,
    }
}

/// Where data starts, for an array whose first device has `device` sectors.
fn data_offset(minor: Minor, device: Sectors, chunk: Sectors) -> Sector {
    if minor == Minor::V0 {
        return Sector::ZERO;
    }
    // About a thousandth of the device, and two chunks at least.
    let mut headroom = HEADROOM_MAX;
    while headroom << 10 > device.0 && headroom / 2 >= chunk.0 * 2 {
        headroom /= 2;
    }
    Sector(Sectors(24 + bitmap_space(device) + headroom).round_up(DATA_ALIGN).0)
}

/// Sectors usable on a device with `device` sectors.
fn usable(minor: Minor, device: Sectors, data_offset: Sector) -> Option<Sectors> {
    let (size, overhead) = match minor {
        Minor::V0 => (device.round_down(Sectors(8)), 16 + BAD_BLOCK_LOG + bitmap_space(device)),
        Minor::V1 | Minor::V2 => (device, data_offset.0),
    };
    size.0.checked_sub(overhead).map(Sectors)
}

/// The smallest device with `wanted` usable sectors.
fn smallest_device(minor: Minor, data_offset: Sector, wanted: Sectors) -> Sectors {
    let mut device = wanted + Sectors(data_offset.0);
    // What is missing is added until nothing is: a few times at most, as the space for a bitmap grows with the size in three steps.
    while let Some(lacking) = wanted.0.checked_sub(usable(minor, device, data_offset).map_or(0, |usable| usable.0))
        && lacking > 0
    {
        device += Sectors(lacking).round_up(Sectors(8));
    }
    device
}

/// The stored name: `host:name` where that fits.
fn stored_name(array: &NewArray<'_>) -> Result<[u8; 32], CreateError> {
    let valid = |name: &str| !name.is_empty() && name.len() <= NAME_MAX && !name.contains(char::is_control);
    if !valid(array.name) {
        return Err(CreateError::Name(array.name.to_owned()));
    }
    let long = array.homehost.filter(|_| !array.name.contains(':')).map(|host| format!("{host}:{}", array.name));
    let long = long.filter(|name| valid(name) && !name.starts_with(':'));
    let name = long.as_deref().unwrap_or(array.name).as_bytes();
    let mut stored = [0; 32];
    stored[..name.len()].copy_from_slice(name);
    Ok(stored)
}

/// Makes the superblocks of `array` on `devices`: the members in slot order, then spares.
pub fn create(array: &NewArray<'_>, devices: &[NewDevice]) -> Result<Created, CreateError> {
    let set_name = stored_name(array)?;
    match (array.level, array.layout) {
        (4, Layout::ParityLast) | (5, _) => {}
        (4, _) => return Err(CreateError::LayoutOfLevel4),
        (level, _) => return Err(CreateError::Level(level)),
    }
    let Some(first) = devices.first().filter(|_| devices.len() >= array.members.len()) else {
        return Err(CreateError::TooFewDevices { devices: devices.len(), members: array.members });
    };
    if devices.len() > ROLES_MAX {
        return Err(CreateError::TooManyDevices(devices.len()));
    }
    let data_offset = data_offset(array.minor, first.size, array.chunk);
    // Checked before any device, so that a size that makes no array is told as such.
    let shape = |size| Geometry::new(array.members, array.chunk, size, array.layout);
    let wanted = shape(array.size.unwrap_or(array.chunk))?.component_size();
    let mut room = Vec::with_capacity(devices.len());
    for (index, device) in devices.iter().enumerate() {
        let usable = usable(array.minor, device.size, data_offset);
        let Some(usable) = usable.filter(|&usable| usable >= wanted) else {
            let needed = smallest_device(array.minor, data_offset, wanted);
            return Err(CreateError::DeviceTooSmall { index, size: device.size, needed });
        };
        room.push(usable);
    }
    let smallest = room.iter().copied().min().unwrap_or_default();
    let largest = room.iter().copied().max().unwrap_or_default();
    let geometry = shape(array.size.unwrap_or(smallest))?;
    let template = template(array, set_name, &geometry, devices.len(), data_offset);
    let superblocks =
        devices.iter().enumerate().map(|(number, device)| for_device(&template, number as u32, device)).collect();
    let size = geometry.component_size();
    Ok(Created { geometry, superblocks, sizes_differ: (largest.0 - size.0) as u128 * 100 > u128::from(size.0) })
}

/// The part that all devices share.
fn template(
    array: &NewArray<'_>,
    set_name: [u8; 32],
    geometry: &Geometry,
    devices: usize,
    data_offset: Sector,
) -> Superblock {
    let now = Timestamp::from_seconds(array.now);
    // The table fills its last sector, and says spare where no device is.
    let max_dev = ((256 + 2 * devices).next_multiple_of(512).min(SUPERBLOCK_SIZE) - 256) / 2;
    let mut roles = vec![Role::Spare; max_dev];
    for slot in array.members.indices() {
        roles[slot.index()] = slot.into();
    }
    Superblock {
        minor: array.minor,
        features: Features::default(),
        set_uuid: array.set_uuid,
        set_name,
        ctime: now,
        level: array.level,
        layout: if array.level == 4 { 0 } else { array.layout.number() },
        size: geometry.component_size(),
        chunk: array.chunk,
        raid_disks: array.members.0.into(),
        bitmap_or_ppl: [0; 4],
        reshape: Default::default(),
        data_offset,
        data_size: Sectors::ZERO,
        super_offset: Sector::ZERO,
        recovery_offset: Sector::ZERO,
        dev_number: 0,
        cnt_corrected_read: 0,
        device_uuid: Uuid::default(),
        devflags: 0,
        bblog_shift: 0,
        bblog_size: 0,
        bblog_offset: 0,
        utime: now,
        events: 0,
        resync_offset: (!array.assume_clean).then_some(Sector::ZERO),
        logical_block_size: 0,
        roles,
    }
}

/// The superblock of one device of a new array.
fn for_device(template: &Superblock, number: u32, device: &NewDevice) -> Superblock {
    place_on(template, number, device).expect("every device was found large enough")
}

/// A superblock like `array`'s for a device that joins it as number `number`: a spare until the role table says otherwise.
///
/// Data starts where it does on the other members. `None` when the device is too small for the array. The device has no bad blocks and no recovery
/// behind it: nothing of another member's own part is taken over.
pub fn place_on(array: &Superblock, number: u32, device: &NewDevice) -> Option<Superblock> {
    let super_offset = array.minor.superblock_sector(device.size)?;
    let mut own = array.clone();
    own.features =
        own.features.minus(Features::BAD_BLOCKS.union(Features::REPLACEMENT).union(Features::RECOVERY_OFFSET));
    own.recovery_offset = Sector::ZERO;
    own.dev_number = number;
    own.cnt_corrected_read = 0;
    own.device_uuid = device.uuid;
    own.devflags = 0;
    own.super_offset = super_offset;
    own.bblog_shift = 0;
    let reserved = array.ppl().map_or_else(|| bitmap_space(array.size), |(_, size)| size.into());
    (own.bblog_size, own.bblog_offset) = (0, 0);
    match array.minor {
        Minor::V0 => {
            let room = super_offset.0.checked_sub(array.data_offset.0 + array.size.0)?;
            let reserved = (reserved + BAD_BLOCK_LOG).min(room);
            own.data_size = Sectors(super_offset.0 - reserved - array.data_offset.0);
            if reserved >= BAD_BLOCK_LOG {
                (own.bblog_size, own.bblog_offset) = (BAD_BLOCK_LOG as u16, -(BAD_BLOCK_LOG as i32));
            }
        }
        Minor::V1 | Minor::V2 => {
            own.data_size = Sectors(device.size.0.checked_sub(array.data_offset.0)?);
            let room = array.data_offset.0.checked_sub(super_offset.0)?;
            let after_bitmap = 8 + reserved;
            if room >= after_bitmap + BAD_BLOCK_LOG {
                (own.bblog_size, own.bblog_offset) = (BAD_BLOCK_LOG as u16, after_bitmap as i32);
            } else if room >= 8 + BAD_BLOCK_LOG {
                (own.bblog_size, own.bblog_offset) = (BAD_BLOCK_LOG as u16, (room - BAD_BLOCK_LOG) as i32);
            }
        }
    }
    (own.data_size >= array.size).then_some(own)
}
