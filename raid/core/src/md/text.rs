//! Superblocks in mdadm's words: the fields of `mdadm --examine` and `--detail`, sizes and times as it prints them.
//!
//! Called by `examine` and `detail`. A field is a name and a value; alignment, JSON and the like are the caller's work.

use super::{Features, Role, Superblock};
use crate::units::{Bytes, Sectors};

mod detail;
#[cfg(test)]
mod tests;

pub use detail::{Activity, Detail, DeviceRow, DeviceState, consistency_policy};

/// Seconds in a day.
const DAY: i64 = 86_400;

/// A field of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, such as `Array UUID`.
    pub name: &'static str,
    /// Its value.
    pub value: String,
}

/// A size in both units, as ` (15.00 MiB 15.73 MB)`; empty below 5000 KiB.
pub fn human_size(size: Bytes) -> String {
    const UNITS: [(&str, u32, &str, u64); 3] =
        [("MiB", 20, "MB", 1_000_000), ("GiB", 30, "GB", 1_000_000_000), ("TiB", 40, "TB", 1_000_000_000_000)];
    if size.0 < 5000 * 1024 {
        return String::new();
    }
    // Each unit is used up to 2048 of it.
    let (binary, shift, decimal, unit) =
        UNITS.into_iter().find(|(_, shift, ..)| size.0 < 2048 << shift).unwrap_or(UNITS[2]);
    let hundredths = |unit: u64| (u128::from(size.0) * 200 / u128::from(unit)).div_ceil(2) as u64;
    let (b, d) = (hundredths(1 << shift), hundredths(unit));
    format!(" ({}.{:02} {binary} {}.{:02} {decimal})", b / 100, b % 100, d / 100, d % 100)
}

/// A time in the C library's format, `Mon Nov 30 11:34:58 2026`, in a zone `zone` seconds east of Greenwich.
pub fn time(seconds: u64, zone: i32) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let local = seconds as i64 + i64::from(zone);
    let (days, second) = (local.div_euclid(DAY), local.rem_euclid(DAY));
    let (year, month, day) = civil(days);
    format!(
        "{} {} {day:2} {:02}:{:02}:{:02} {year}",
        DAYS[days.rem_euclid(7) as usize],
        MONTHS[month],
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Year, month (from 0) and day of the month of the day `days` after 1970-01-01, in the Gregorian calendar.
fn civil(days: i64) -> (i64, usize, i64) {
    // Years are counted from March, so that the leap day comes last and month lengths repeat every five months.
    const DAYS_TO_1970: i64 = 719_468;
    const ERA: i64 = 146_097;
    let from_march = days + DAYS_TO_1970;
    let (era, day) = (from_march.div_euclid(ERA), from_march.rem_euclid(ERA));
    let year = (day - day / 1460 + day / 36_524 - day / (ERA - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 2, 0) } else { (month - 10, 1) };
    (era * 400 + year + carry, month as usize, day_of_month)
}

/// The name of a level.
pub fn level_name(level: i32) -> String {
    match level {
        -1 => "linear".to_owned(),
        0 | 1 | 4 | 5 | 6 | 10 => format!("raid{level}"),
        _ => "-unknown-".to_owned(),
    }
}

/// What a device does in the array, as `--examine` says it.
pub fn device_role(superblock: &Superblock) -> String {
    match superblock.role() {
        Role::Active(slot) if superblock.features.intersects(Features::REPLACEMENT) => {
            format!("Replacement device {slot}")
        }
        Role::Active(slot) => format!("Active device {slot}"),
        Role::Journal => "Journal".to_owned(),
        Role::Spare | Role::Faulty | Role::Reserved(_) => "spare".to_owned(),
    }
}

/// The members as letters in slot order: `A` active, `.` missing, `R` being replaced.
pub fn array_state(superblock: &Superblock) -> String {
    // A table has at most 1920 entries, so neither does a sane array have more slots.
    let slots = superblock.raid_disks.min(superblock.roles.len() as u32);
    let holders = |slot| {
        superblock.roles.iter().filter(|role| matches!(role, Role::Active(held) if u32::from(*held) == slot)).count()
    };
    (0..slots)
        .map(|slot| match holders(slot) {
            0 => '.',
            1 => 'A',
            2 => 'R',
            _ => '?',
        })
        .collect()
}

/// Sectors between the metadata and the data, and after the data, that are not used.
pub fn unused_space(superblock: &Superblock, device: Sectors) -> (u64, i128) {
    let at = |offset: i64| superblock.super_offset.0 as i128 + i128::from(offset);
    let log = (superblock.bblog_size > 0 && superblock.bblog_offset != 0).then_some(at(superblock.bblog_offset.into()));
    let ppl = superblock.ppl().filter(|_| superblock.bitmap_offset().is_none());
    let data_offset = i128::from(superblock.data_offset.0);
    let data_end = data_offset + i128::from(superblock.size.0);
    if superblock.data_offset < superblock.super_offset {
        let other = superblock.bitmap_offset().map_or_else(|| ppl.map_or(0, |(offset, _)| offset.into()), i64::from);
        let end = at(0).min(at(other)).min(log.unwrap_or(i128::MAX));
        return (superblock.data_offset.0, (end - data_end).max(0));
    }
    // The kernel keeps 36 KiB from the superblock on for itself.
    let ppl_end = ppl.map_or(0, |(offset, size)| i128::from(offset) + i128::from(size));
    let log_end = log.map_or(0, |log| log + i128::from(superblock.bblog_size));
    let metadata_end = at(72).max(ppl_end).max(log_end);
    ((data_offset - metadata_end).max(0) as u64, i128::from(device.0) - data_end)
}

/// The fields of `mdadm --examine`, in its order, for a superblock on a device of `device` sectors; times in a zone `zone` seconds east of Greenwich.
pub fn examine(superblock: &Superblock, device: Sectors, zone: i32) -> Vec<Field> {
    let sb = superblock;
    let mut fields = Vec::with_capacity(32);
    let mut put = |name, value| fields.push(Field { name, value });
    let sectors = |length: Sectors| format!("{length} sectors");
    put("Magic", "a92b4efc".to_owned());
    put("Version", sb.minor.to_string());
    put("Feature Map", format!("{:#x}", sb.features.0));
    put("Array UUID", sb.set_uuid.to_string());
    put("Name", sb.name());
    put("Creation Time", time(sb.ctime.seconds(), zone));
    put("Raid Level", level_name(sb.level));
    put("Raid Devices", sb.raid_disks.to_string());
    put("Avail Dev Size", sectors(sb.data_size) + &human_size_of(sb.data_size));
    if let Some(data) = data_devices(sb) {
        let bytes = Bytes(sb.size.0.saturating_mul(512).saturating_mul(data));
        put("Array Size", format!("{} KiB{}", bytes.0 / 1024, human_size(bytes)));
    }
    if sb.level > 0 && sb.size != sb.data_size {
        put("Used Dev Size", sectors(sb.size) + &human_size_of(sb.size));
    }
    if sb.data_offset.0 != 0 {
        put("Data Offset", format!("{} sectors", sb.data_offset));
    }
    put("Super Offset", format!("{} sectors", sb.super_offset));
    if let Some(recovered) = sb.recovery() {
        put("Recovery Offset", format!("{recovered} sectors"));
    }
    let (before, after) = unused_space(sb, device);
    let too_small = if after < 0 { " DEVICE TOO SMALL" } else { "" };
    put("Unused Space", format!("before={before} sectors, after={after} sectors{too_small}"));
    let state = if sb.resync_offset.is_some() { "active" } else { "clean" };
    put("State", format!("{state}{}", if after < 0 { " TRUNCATED DEVICE" } else { "" }));
    put("Device UUID", sb.device_uuid.to_string());
    if let Some(offset) = sb.bitmap_offset() {
        put("Internal Bitmap", format!("{offset} sectors from superblock"));
    } else if let Some((offset, size)) = sb.ppl() {
        put("PPL", format!("{size} sectors at offset {offset} sectors from superblock"));
    }
    put("Update Time", time(sb.utime.seconds(), zone));
    if sb.bblog_size > 0 && sb.bblog_offset != 0 {
        let entries = u32::from(sb.bblog_size) * 64;
        let present = if sb.features.intersects(Features::BAD_BLOCKS) { " - bad blocks present." } else { "" };
        put("Bad Block Log", format!("{entries} entries available at offset {} sectors{present}", sb.bblog_offset));
    }
    put("Checksum", format!("{:x} - correct", sb.checksum()));
    put("Events", sb.events.to_string());
    if let (5, Some(layout)) = (sb.level, sb.parity_layout()) {
        put("Layout", layout.to_string());
    }
    if matches!(sb.level, 0 | 4 | 5 | 6 | 10) {
        put("Chunk Size", format!("{}K", sb.chunk.0 / 2));
    }
    put("Device Role", device_role(sb));
    put("Array State", format!("{} ('A' == active, '.' == missing, 'R' == replacing)", array_state(sb)));
    fields
}

fn human_size_of(length: Sectors) -> String {
    human_size(Bytes(length.0.saturating_mul(512)))
}

/// Members that hold data in a row, for levels where that is a simple number.
fn data_devices(superblock: &Superblock) -> Option<u64> {
    let members = u64::from(superblock.raid_disks);
    match superblock.level {
        1 => Some(1),
        4 | 5 => members.checked_sub(1),
        6 => members.checked_sub(2),
        _ => None,
    }
}
