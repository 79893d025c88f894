//! The fields of `mdadm --detail` for a running array.

use super::{Field, human_size, level_name, time};
use crate::md::{Features, Superblock};
use crate::units::{Bytes, MemberIndex};

/// What a device does now, in the words of the table under `--detail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceState {
    /// A member in sync.
    InSync,
    /// A member being recovered.
    Rebuilding,
    /// A spare.
    Spare,
    /// Failed, and not removed yet.
    Faulty,
    /// A slot without a device.
    Removed,
}

impl DeviceState {
    /// The words in column `State`.
    pub const fn words(self) -> &'static str {
        match self {
            Self::InSync => "active sync",
            Self::Rebuilding => "spare rebuilding",
            Self::Spare => "spare",
            Self::Faulty => "faulty",
            Self::Removed => "removed",
        }
    }
}

/// A row of the table of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRow {
    /// The device's number; `None` for an empty slot.
    pub number: Option<u32>,
    /// The slot it holds.
    pub slot: Option<MemberIndex>,
    /// What it does.
    pub state: DeviceState,
    /// Its name; empty for an empty slot.
    pub device: String,
}

/// A sync under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activity {
    /// Parity is made right after a crash, or by `repair`.
    Resync,
    /// A member is rebuilt.
    Recovery,
    /// Parity is checked.
    Check,
}

impl Activity {
    /// The word in `State`, and the name of the status field.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Resync => ("resyncing", "Resync Status"),
            Self::Recovery => ("recovering", "Rebuild Status"),
            Self::Check => ("checking", "Check Status"),
        }
    }
}

/// A running array, as `detail` shows it.
#[derive(Clone, Copy, Debug)]
pub struct Detail<'a> {
    /// A superblock of it, up to date.
    pub superblock: &'a Superblock,
    /// Its state in a word: `clean`, `active`, `suspended` and so on.
    pub state: &'a str,
    /// The sync under way, and how much of it is done in percent.
    pub activity: Option<(Activity, u8)>,
    /// Its devices: one row for each slot, in slot order, then those without a slot.
    pub devices: &'a [DeviceRow],
}

impl Detail<'_> {
    fn count(&self, states: &[DeviceState]) -> usize {
        self.devices.iter().filter(|row| states.contains(&row.state)).count()
    }

    /// The field `State`: the word, then what is wrong or under way.
    pub fn state_words(&self) -> String {
        let in_sync = self.count(&[DeviceState::InSync]) as u32;
        let missing = self.superblock.raid_disks.saturating_sub(in_sync);
        let mut words = self.state.to_owned();
        words.push_str(match missing {
            0 => "",
            1 => ", degraded",
            _ => ", FAILED",
        });
        if let Some((activity, _)) = self.activity {
            words.push_str(", ");
            words.push_str(activity.words().0);
        }
        words
    }

    /// The fields in mdadm's order; times in a zone `zone` seconds east of Greenwich.
    pub fn fields(&self, zone: i32) -> Vec<Field> {
        use DeviceState::{Faulty, InSync, Rebuilding, Spare};
        let sb = self.superblock;
        let size = Bytes(sb.size.0.saturating_mul(512));
        let array = Bytes(size.0.saturating_mul(u64::from(sb.raid_disks.saturating_sub(1))));
        let kib = |size: Bytes| format!("{}{}", size.0 / 1024, human_size(size));
        let count = |states: &[DeviceState]| self.count(states).to_string();
        let mut fields = Vec::with_capacity(24);
        let mut put = |name, value| fields.push(Field { name, value });
        put("Version", sb.minor.to_string());
        put("Creation Time", time(sb.ctime.seconds(), zone));
        put("Raid Level", level_name(sb.level));
        put("Array Size", kib(array));
        put("Used Dev Size", kib(size));
        put("Raid Devices", sb.raid_disks.to_string());
        put("Total Devices", count(&[InSync, Rebuilding, Spare, Faulty]));
        put("Persistence", "Superblock is persistent".to_owned());
        if sb.bitmap_offset().is_some() {
            put("Intent Bitmap", "Internal".to_owned());
        }
        put("Update Time", time(sb.utime.seconds(), zone));
        put("State", self.state_words());
        put("Active Devices", count(&[InSync]));
        put("Working Devices", count(&[InSync, Rebuilding, Spare]));
        put("Failed Devices", count(&[Faulty]));
        put("Spare Devices", count(&[Rebuilding, Spare]));
        if let (5, Some(layout)) = (sb.level, sb.parity_layout()) {
            put("Layout", layout.to_string());
        }
        put("Chunk Size", format!("{}K", sb.chunk.0 / 2));
        put("Consistency Policy", consistency_policy(sb).to_owned());
        if let Some((activity, percent)) = self.activity {
            put(activity.words().1, format!("{percent}% complete"));
        }
        put("Name", sb.name());
        put("UUID", sb.set_uuid.to_string());
        put("Events", sb.events.to_string());
        fields
    }
}

/// How the array keeps data and parity consistent: md's `consistency_policy`.
pub fn consistency_policy(superblock: &Superblock) -> &'static str {
    if superblock.features.intersects(Features::JOURNAL) {
        "journal"
    } else if superblock.ppl().is_some() {
        "ppl"
    } else if superblock.bitmap_offset().is_some() {
        "bitmap"
    } else {
        "resync"
    }
}
