//! What goes over the control socket: JSON both ways. `detail --json` prints [`Detail`] as it comes.
//!
//! Words are md's and mdadm's, sizes bytes, times seconds since 1970.

use raid_engine::array;
use raid_engine::member::aoe::paths::{DevicePaths, PathLook, Way};
use raid_engine::runtime::Totals;
use raid_engine::tunables::{Settings, When, table};
use serde::{Deserialize, Serialize};

/// Names a member, for `add`, `fail` and `remove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Member {
    /// As on the command line, paths absolute.
    pub(crate) member: String,
}

/// Settings to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tune {
    /// `KEY=VALUE`, as many as wanted.
    pub(crate) set: Vec<String>,
}

/// A row of the table of tunables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tunable {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) default: String,
    pub(crate) unit: String,
    /// Its range in words.
    pub(crate) range: String,
    /// Whether a new value takes effect while the array runs.
    pub(crate) at_once: bool,
    pub(crate) doc: String,
}

/// An AoE member, and the paths to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AoeDevice {
    /// `e<shelf>.<slot>`.
    pub(crate) device: String,
    /// Unset until it was found.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) silent: bool,
    pub(crate) buffers: u16,
    pub(crate) outstanding: u32,
    pub(crate) paths: Vec<AoePath>,
}

/// A path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AoePath {
    pub(crate) interface: String,
    /// Its own address; unset while it is down.
    pub(crate) local_mac: Option<String>,
    pub(crate) mac: String,
    /// In use.
    pub(crate) up: bool,
    /// up, down, unproven, conflict.
    pub(crate) state: String,
    /// Smoothed; unset before the first sample.
    pub(crate) rtt_us: Option<f64>,
    /// Its deviation; unset likewise.
    pub(crate) rttvar_us: Option<f64>,
    /// In frames.
    pub(crate) window: u32,
    /// The window above which it grows slowly; unset before the first loss.
    pub(crate) ssthresh: Option<u32>,
    pub(crate) outstanding: u32,
    /// Timeouts and probes in a row without an answer.
    pub(crate) taint: u32,
    pub(crate) payload_bytes: u32,
    /// Frames, copies included.
    pub(crate) sent: u64,
    /// Copies after the first.
    pub(crate) retransmits: u64,
    pub(crate) answered: u64,
}

/// An interface that a running array uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// Members that are reached over it.
    pub(crate) devices: Vec<String>,
}

/// Interfaces to use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetInterfaces {
    pub(crate) interfaces: Vec<String>,
}

/// Paths to forget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FlushPaths {
    /// Of this member; of all without.
    #[serde(default)]
    pub(crate) member: Option<String>,
    /// Those in use, too.
    #[serde(default)]
    pub(crate) all: bool,
}

/// Another device that claims a member's shelf and slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Conflict {
    pub(crate) device: String,
    pub(crate) interface: String,
    /// Where the other one is.
    pub(crate) mac: String,
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// What, where, and what to try.
    pub(crate) error: String,
}

/// How an array ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stopped {
    /// Exit status of its process: 0, or 1 when superblocks were left dirty.
    pub(crate) exit: i32,
}

/// How an array stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Detail {
    pub(crate) version: String,
    pub(crate) creation_time: u64,
    pub(crate) level: i32,
    pub(crate) array_size_bytes: u64,
    pub(crate) used_dev_size_bytes: u64,
    pub(crate) raid_devices: u32,
    pub(crate) total_devices: u32,
    pub(crate) update_time: u64,
    pub(crate) state: String,
    pub(crate) active_devices: u32,
    pub(crate) working_devices: u32,
    pub(crate) failed_devices: u32,
    pub(crate) spare_devices: u32,
    pub(crate) layout: String,
    pub(crate) chunk_bytes: u64,
    pub(crate) consistency_policy: String,
    pub(crate) sync: Option<Sync>,
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) events: u64,
    pub(crate) devices: Vec<Device>,
    pub(crate) array_state: String,
    pub(crate) degraded: u32,
    pub(crate) sync_action: String,
    pub(crate) last_sync_action: Option<String>,
    pub(crate) mismatch_cnt: u64,
    /// In sectors; unset when parity is known to be right everywhere.
    pub(crate) resync_start: Option<u64>,
    pub(crate) fenced: bool,
    /// Other devices that claim members' shelves and slots: they are not used.
    #[serde(default)]
    pub(crate) conflicts: Vec<Conflict>,
}

/// Sync work under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sync {
    pub(crate) action: String,
    /// mdadm's word before `Status`.
    pub(crate) word: String,
    pub(crate) percent: u32,
    pub(crate) done_sectors: u64,
    pub(crate) total_sectors: u64,
    /// KiB/s per member.
    pub(crate) speed: u64,
}

/// A device of the array, or a slot without one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Device {
    pub(crate) number: Option<u32>,
    pub(crate) raid_device: Option<u8>,
    pub(crate) state: String,
    pub(crate) device: Option<String>,
    pub(crate) volatile: bool,
    /// Sectors that could not be read and were written anew.
    pub(crate) corrected: u32,
}

/// What the workers have done since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counters {
    pub(crate) member_requests: u64,
    pub(crate) member_sectors: u64,
    pub(crate) runs_full: u64,
    pub(crate) runs_rmw: u64,
    pub(crate) runs_rcw: u64,
    pub(crate) runs_reconstruct: u64,
    pub(crate) blocks_cached: u64,
    pub(crate) stripe_cache_bytes: u64,
    /// AoE frames that were answered, and bytes of data in them, either way.
    pub(crate) frames_answered: u64,
    pub(crate) frame_data_bytes: u64,
    /// AoE frames that were sent again.
    pub(crate) retransmits: u64,
}

/// The table, with the values of `settings`.
pub(crate) fn tunables(settings: &Settings) -> Vec<Tunable> {
    let row = |row: raid_engine::tunables::Tunable| Tunable {
        name: row.name.to_owned(),
        value: settings.get(row.name).expect("a row of the table"),
        default: row.default_text(),
        unit: row.unit.to_owned(),
        range: row.range_text(),
        at_once: row.when == When::AtOnce,
        doc: row.doc.to_owned(),
    };
    table().map(row).collect()
}

impl From<DevicePaths> for AoeDevice {
    fn from(device: DevicePaths) -> AoeDevice {
        AoeDevice {
            device: device.address.to_string(),
            size_bytes: device.sectors.map(|sectors| sectors.bytes().0),
            silent: device.silent,
            buffers: device.buffer_count,
            outstanding: device.outstanding,
            paths: device.paths.into_iter().map(AoePath::from).collect(),
        }
    }
}

/// The conflicts among paths.
pub(crate) fn conflicts(devices: &[DevicePaths]) -> Vec<Conflict> {
    let of = |device: &DevicePaths| {
        let name = device.address.to_string();
        let other = |path: &&PathLook| path.state == Way::Conflict;
        let conflict = move |path: &PathLook| Conflict {
            device: name.clone(),
            interface: path.interface.clone(),
            mac: path.mac.to_string(),
        };
        device.paths.iter().filter(other).map(conflict).collect::<Vec<_>>()
    };
    devices.iter().flat_map(of).collect()
}

impl From<PathLook> for AoePath {
    fn from(path: PathLook) -> AoePath {
        let sampled = !path.srtt.is_zero();
        let micros = |time: std::time::Duration| sampled.then_some(time.as_nanos() as f64 / 1000.0);
        AoePath {
            interface: path.interface,
            local_mac: path.local.map(|mac| mac.to_string()),
            mac: path.mac.to_string(),
            up: path.state == Way::Up,
            state: path.state.word().to_owned(),
            rtt_us: micros(path.srtt),
            rttvar_us: micros(path.rttvar),
            window: path.cwnd,
            ssthresh: (path.ssthresh != u32::MAX).then_some(path.ssthresh),
            taint: path.taint,
            outstanding: path.outstanding,
            payload_bytes: u32::from(path.payload) * 512,
            sent: path.sent,
            retransmits: path.retransmits,
            answered: path.answered,
        }
    }
}

impl From<array::Detail> for Detail {
    fn from(detail: array::Detail) -> Detail {
        Detail {
            version: detail.version.to_string(),
            creation_time: detail.creation_time,
            level: detail.level,
            array_size_bytes: detail.array_size.bytes().0,
            used_dev_size_bytes: detail.used_dev_size.bytes().0,
            raid_devices: detail.raid_devices,
            total_devices: detail.total_devices,
            update_time: detail.update_time,
            state: detail.state,
            active_devices: detail.active_devices,
            working_devices: detail.working_devices,
            failed_devices: detail.failed_devices,
            spare_devices: detail.spare_devices,
            layout: detail.layout.to_string(),
            chunk_bytes: detail.chunk.bytes().0,
            consistency_policy: detail.consistency_policy.to_owned(),
            sync: detail.sync.map(Sync::from),
            name: detail.name,
            uuid: detail.uuid.to_string(),
            events: detail.events,
            devices: detail.devices.into_iter().map(Device::from).collect(),
            array_state: detail.array_state.to_string(),
            degraded: detail.degraded,
            sync_action: detail.sync_action.to_owned(),
            last_sync_action: detail.last_sync_action.map(str::to_owned),
            mismatch_cnt: detail.mismatch_cnt,
            resync_start: detail.resync_start.map(|at| at.0),
            fenced: detail.fenced,
            conflicts: Vec::new(),
        }
    }
}

impl From<array::SyncProgress> for Sync {
    fn from(sync: array::SyncProgress) -> Sync {
        Sync {
            action: sync.action.to_owned(),
            word: sync.status_word().to_owned(),
            percent: sync.percent(),
            done_sectors: sync.done.0,
            total_sectors: sync.total.0,
            speed: sync.speed,
        }
    }
}

impl From<array::DeviceRow> for Device {
    fn from(row: array::DeviceRow) -> Device {
        Device {
            number: row.number,
            raid_device: row.raid_device.map(|slot| slot.0),
            state: row.state,
            device: row.device,
            volatile: row.volatile,
            corrected: row.corrected,
        }
    }
}

impl From<Totals> for Counters {
    fn from(totals: Totals) -> Counters {
        let counters = totals.counters;
        Counters {
            member_requests: counters.member_requests,
            member_sectors: counters.member_sectors,
            runs_full: counters.runs_full,
            runs_rmw: counters.runs_rmw,
            runs_rcw: counters.runs_rcw,
            runs_reconstruct: counters.runs_reconstruct,
            blocks_cached: counters.blocks_cached,
            stripe_cache_bytes: totals.cache_bytes,
            frames_answered: totals.traffic.frames_answered,
            frame_data_bytes: totals.traffic.data_bytes,
            retransmits: totals.traffic.retransmits,
        }
    }
}
