//! What `detail`, `status` and the sysfs-like files show of an array: values in mdadm's and md's words, no formatting.
//!
//! Made by [`Array::detail`] from the state as it is; nothing here changes anything.

use std::fmt;
use std::time::Duration;

use raid_core::geometry::Layout;
use raid_core::md::{Minor, Uuid};
use raid_core::units::{MemberIndex, Sector, Sectors};

use super::Array;
use super::mark::Mark;
use super::member::{Loss, Member, Standing};

/// `array_state`, in md's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayState {
    /// No writes, and superblocks say so.
    Clean,
    /// A write waits for the dirty mark.
    WritePending,
    /// Writes are or were under way.
    Active,
    /// As active, but none for a while.
    ActiveIdle,
    /// More members are gone than parity covers: writes wait.
    Suspended,
    /// More members have failed than parity covers: writes, and reads that need them, end with errors.
    Broken,
    /// Writes are refused.
    Readonly,
    /// The array has ended.
    Clear,
}

impl ArrayState {
    /// md's word.
    pub fn word(self) -> &'static str {
        match self {
            ArrayState::Clean => "clean",
            ArrayState::WritePending => "write-pending",
            ArrayState::Active => "active",
            ArrayState::ActiveIdle => "active-idle",
            ArrayState::Suspended => "suspended",
            ArrayState::Broken => "broken",
            ArrayState::Readonly => "readonly",
            ArrayState::Clear => "clear",
        }
    }
}

impl fmt::Display for ArrayState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// How far sync work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncProgress {
    /// `sync_action`: resync, recover, check or repair.
    pub action: &'static str,
    /// Sectors of each member that are done.
    pub done: Sectors,
    /// Out of these.
    pub total: Sectors,
    /// KiB/s per member.
    pub speed: u64,
}

impl SyncProgress {
    /// In whole percent, rounded down.
    pub fn percent(&self) -> u32 {
        (u128::from(self.done.0) * 100 / u128::from(self.total.0.max(1))) as u32
    }

    /// mdadm's word before `Status`.
    pub fn status_word(&self) -> &'static str {
        match self.action {
            "recover" => "Rebuild",
            "resync" => "Resync",
            _ => "Check",
        }
    }
}

/// A line of the table of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRow {
    /// Device number; unset for a slot without a device.
    pub number: Option<u32>,
    /// Slot; unset for devices that have none.
    pub raid_device: Option<MemberIndex>,
    /// mdadm's words: `active sync`, `spare rebuilding`, `spare`, `faulty`, `removed`; and ours, `silent` and `missing`.
    pub state: String,
    /// The device's name.
    pub device: Option<String>,
    /// Its flush means nothing.
    pub volatile: bool,
    /// Read errors corrected on it, in sectors.
    pub corrected: u32,
    /// Where its data area begins; 0 for a slot without a device.
    pub data_offset: Sector,
    /// Length of its data area; 0 for a slot without a device.
    pub data_size: Sectors,
}

/// All values of `mdadm --detail`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail {
    /// Version.
    pub version: Minor,
    /// Creation Time, in seconds since 1970.
    pub creation_time: u64,
    /// Raid Level.
    pub level: i32,
    /// Array Size.
    pub array_size: Sectors,
    /// Used Dev Size.
    pub used_dev_size: Sectors,
    /// Raid Devices.
    pub raid_devices: u32,
    /// Total Devices.
    pub total_devices: u32,
    /// Update Time, in seconds since 1970.
    pub update_time: u64,
    /// State, as `clean, degraded, recovering`.
    pub state: String,
    /// Active Devices.
    pub active_devices: u32,
    /// Working Devices.
    pub working_devices: u32,
    /// Failed Devices.
    pub failed_devices: u32,
    /// Spare Devices.
    pub spare_devices: u32,
    /// Layout.
    pub layout: Layout,
    /// Chunk Size.
    pub chunk: Sectors,
    /// Consistency Policy.
    pub consistency_policy: &'static str,
    /// Rebuild, Resync or Check Status.
    pub sync: Option<SyncProgress>,
    /// Name.
    pub name: String,
    /// UUID.
    pub uuid: Uuid,
    /// Events.
    pub events: u64,
    /// The table: slots in order, then all other devices.
    pub devices: Vec<DeviceRow>,
    /// `array_state`.
    pub array_state: ArrayState,
    /// `degraded`: slots without a device in sync.
    pub degraded: u32,
    /// `sync_action`: idle, frozen, or what is under way.
    pub sync_action: &'static str,
    /// `last_sync_action`; none if there was none.
    pub last_sync_action: Option<&'static str>,
    /// `mismatch_cnt`, in sectors.
    pub mismatch_cnt: u64,
    /// `resync_start`: rows are known to be right below this; unset when all are.
    pub resync_start: Option<Sector>,
    /// Another host has reserved the members.
    pub fenced: bool,
}

/// How a device stands, in mdadm's words.
pub(super) fn state_words(member: &Member) -> &'static str {
    let silent = member.silence.is_some();
    match member.standing {
        Standing::InSync(_) if silent => "active sync silent",
        Standing::InSync(_) => "active sync",
        Standing::Recovering { .. } if silent => "spare rebuilding silent",
        Standing::Recovering { .. } => "spare rebuilding",
        Standing::Spare | Standing::Candidate | Standing::Leaving => "spare",
        Standing::Losing { loss: Loss::Faulty, .. } | Standing::Lost { loss: Loss::Faulty, .. } => "faulty",
        Standing::Losing { loss: Loss::Missing, .. } | Standing::Lost { loss: Loss::Missing, .. } => "missing",
    }
}

impl Array {
    /// `array_state`.
    pub fn array_state(&self) -> ArrayState {
        if self.ended {
            return ArrayState::Clear;
        }
        if self.broken {
            return ArrayState::Broken;
        }
        if self.suspended {
            return ArrayState::Suspended;
        }
        if self.read_only || self.fenced {
            return ArrayState::Readonly;
        }
        match self.mark {
            Mark::Quiet => ArrayState::Clean,
            Mark::Wanted => ArrayState::WritePending,
            Mark::Dirty { .. } => ArrayState::Active,
            Mark::Asking { .. } | Mark::Unmarking { .. } => ArrayState::ActiveIdle,
        }
    }

    /// How many slots have no device in sync.
    pub fn degraded(&self) -> u32 {
        let in_sync = self.members.iter().filter(|m| matches!(m.standing, Standing::InSync(_))).count();
        (self.geometry.members().len() - in_sync) as u32
    }

    /// `sync_action`.
    pub fn sync_action(&self) -> &'static str {
        match self.sync.running() {
            Some(running) => running.action.word(),
            None if self.sync.is_frozen() => "frozen",
            None => "idle",
        }
    }

    /// How far sync work is, if any is under way.
    pub fn sync_progress(&self, now: Duration) -> Option<SyncProgress> {
        let running = self.sync.running()?;
        Some(SyncProgress {
            action: running.action.word(),
            done: running.done() - Sector::ZERO,
            total: self.geometry.component_size(),
            speed: running.speed(now),
        })
    }

    /// Everything that is shown of the array.
    pub fn detail(&self, now: Duration) -> Detail {
        let count = |wanted: fn(&Member) -> bool| self.members.iter().filter(|m| wanted(m)).count() as u32;
        let active = count(|m| matches!(m.standing, Standing::InSync(_)));
        let spare = count(|m| matches!(m.standing, Standing::Spare | Standing::Recovering { .. }));
        let failed = count(|m| m.loss().is_some());
        let sync = self.sync_progress(now);
        Detail {
            version: self.head.minor,
            creation_time: self.head.ctime.seconds(),
            level: self.head.level,
            array_size: self.geometry.array_sectors(),
            used_dev_size: self.geometry.component_size(),
            raid_devices: self.geometry.members().0.into(),
            total_devices: self.members.len() as u32,
            update_time: self.updated_at,
            state: self.state_line(sync),
            active_devices: active,
            working_devices: active + spare,
            failed_devices: failed,
            spare_devices: spare,
            layout: self.geometry.layout(),
            chunk: self.geometry.chunk(),
            consistency_policy: "resync",
            sync,
            name: self.head.name(),
            uuid: self.head.set_uuid,
            events: self.events,
            devices: self.device_rows(),
            array_state: self.array_state(),
            degraded: self.degraded(),
            sync_action: self.sync_action(),
            last_sync_action: self.sync.last_action,
            mismatch_cnt: self.sync.mismatches,
            resync_start: self.resync.map(|resync| resync.done),
            fenced: self.fenced,
        }
    }

    fn state_line(&self, sync: Option<SyncProgress>) -> String {
        let clean = !self.mark.wants_dirty();
        let mut line = String::from(if clean { "clean" } else { "active" });
        let mut also = |word: &str| {
            line.push_str(", ");
            line.push_str(word);
        };
        if self.broken {
            also("FAILED");
        } else if self.degraded() > 0 {
            also("degraded");
        }
        if self.suspended && !self.broken {
            also("suspended");
        }
        if self.fenced {
            also("fenced");
        }
        match sync.map(|sync| sync.action) {
            Some("recover") => also("recovering"),
            Some("resync") => also("resyncing"),
            Some(_) => also("checking"),
            None => {}
        }
        line
    }

    fn device_rows(&self) -> Vec<DeviceRow> {
        let row = |member: &Member, slot| DeviceRow {
            number: Some(member.superblock.dev_number),
            raid_device: slot,
            state: state_words(member).into(),
            device: Some(member.device.name.clone()),
            volatile: member.device.volatile,
            corrected: member.superblock.cnt_corrected_read,
            data_offset: member.superblock.data_offset,
            data_size: member.superblock.data_size,
        };
        let slots = self.geometry.members().indices().map(|slot| {
            let member = self.members.iter().find(|m| m.is_active() && m.slot() == Some(slot));
            member.map_or_else(|| DeviceRow::removed(slot), |member| row(member, Some(slot)))
        });
        let others = self.members.iter().filter(|m| !m.is_active()).map(|member| row(member, None));
        slots.chain(others).collect()
    }
}

impl DeviceRow {
    /// A slot without a device.
    fn removed(slot: MemberIndex) -> Self {
        Self {
            number: None,
            raid_device: Some(slot),
            state: "removed".into(),
            device: None,
            volatile: false,
            corrected: 0,
            data_offset: Sector::ZERO,
            data_size: Sectors(0),
        }
    }
}
