//! What the array's life cycle is told and what it wants done: plain data, no decisions.
//!
//! Made and consumed by whoever drives an [`Array`](super::Array): the runtime's control thread, or a simulation.

use std::time::Duration;

use raid_core::geometry::Geometry;
use raid_core::md::Superblock;
use raid_core::plan::RmwLevel;
use raid_core::units::{MemberIndex, Sector, Sectors, StripeIndex};

use crate::message::{IoStatus, MemberHandle, Report, SyncKind, ToWorker, WorkerId};

/// Names a metadata request until its [`Input::MetaDone`]; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MetaId(pub u64);

/// Names a command until its [`Effect::Answer`]; chosen by the caller, unique among commands not yet answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandId(pub u64);

/// An opened member device, as the array needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Names it in effects and inputs.
    pub handle: MemberHandle,
    /// What the user calls it, such as `e9.0` or a path.
    pub name: String,
    /// Its size.
    pub sectors: Sectors,
    /// Its flush means nothing: acknowledged counts as durable, and flushes are not sent.
    pub volatile: bool,
    /// Which start of it was found, where it tells.
    pub boot: Option<u32>,
}

/// How a device takes part in an array that is being started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartRole {
    /// In sync in this slot.
    InSync(MemberIndex),
    /// Being rebuilt in this slot, right below this sector of its data area.
    Recovering(MemberIndex, Sector),
    /// A spare.
    Spare,
    /// Had this slot but missed writes: is rebuilt there if the slot is still free, else becomes a spare.
    Stale(Option<MemberIndex>),
}

/// A device of an array that is being started.
#[derive(Clone, Debug)]
pub struct StartMember {
    /// The opened device.
    pub device: Device,
    /// The superblock read from it.
    pub superblock: Superblock,
    /// What assembly decided about it.
    pub role: StartRole,
}

/// An assembled array, ready to be started.
#[derive(Clone, Debug)]
pub struct Start {
    /// The array's shape.
    pub geometry: Geometry,
    /// The freshest superblock: what it says about the whole array counts. `resync_offset` as assembly decided.
    pub superblock: Superblock,
    /// The devices. Each slot at most once.
    pub members: Vec<StartMember>,
    /// How many workers there are: ids 0 up to this.
    pub workers: usize,
    /// Takes no writes, and its superblocks are left as they are.
    pub read_only: bool,
    /// The settings.
    pub tunables: Tunables,
}

/// Settings of the life cycle, by their names in the table of tunables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// `member_hold`: how long a silent member is waited for before it counts as missing; zero: for ever.
    pub member_hold: Duration,
    /// `safe_mode_delay`: how long without writes until the array is marked clean; zero: never while it runs.
    pub safe_mode_delay: Duration,
    /// `volatile_window`: how long a volatile member may take to store what it acknowledged; takes the place of a
    /// shorter `safe_mode_delay` in an array that has one.
    pub volatile_window: Duration,
    /// `sync_speed_min`: KiB/s per member that sync may always use; above it, it yields to clients.
    pub sync_speed_min: u64,
    /// `sync_speed_max`: KiB/s per member that sync never exceeds; zero: no limit.
    pub sync_speed_max: u64,
    /// `sync_share`: percent of the time, 1 to 100, that sync may take while clients are busy.
    pub sync_share: u8,
    /// `sync_window`: how much sync has outstanding on each member while no client is busy.
    pub sync_window: Sectors,
    /// `rmw_level`, passed on to the workers.
    pub rmw_level: RmwLevel,
}

impl Default for Tunables {
    fn default() -> Self {
        Self {
            member_hold: Duration::from_secs(30),
            safe_mode_delay: Duration::from_millis(200),
            volatile_window: Duration::from_secs(60),
            sync_speed_min: 1000,
            sync_speed_max: 200_000,
            sync_share: 33,
            sync_window: Sectors(32 * 1024),
            rmw_level: RmwLevel::default(),
        }
    }
}

/// What has become known of a member device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// A request has been unanswered for `aoe_silence`.
    Silent {
        /// When that request was first sent.
        since: Duration,
    },
    /// It answers again.
    Answers,
    /// It has been given up by whoever talks to it: as silent, with the hold time over.
    Gone,
    /// It was started anew and has lost what it had not flushed.
    Restarted,
    /// It answers, and the start that does has this boot number. If the array does not know it, the device was started anew.
    Boot(u32),
    /// It belongs to another host now (AoE error 6).
    Fenced,
    /// It aborted or ignored a flush: from now on acknowledged counts as durable, as for a [`Device`] that is volatile
    /// from the start.
    Volatile,
}

/// What an operator asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Take a device in: as a spare, which goes into a free slot by itself. A faulty or missing device of the same name
    /// is let go of.
    Add {
        /// The opened device.
        device: Device,
        /// A random id for its superblock.
        device_uuid: [u8; 16],
    },
    /// Mark a device faulty.
    Fail(MemberHandle),
    /// Let go of a spare, faulty or missing device.
    Remove(MemberHandle),
    /// Start or stop sync work.
    Action(SyncAction),
    /// End the array: front ends have stopped sending. A second one with `abandon` hurries a first.
    Stop {
        /// Do not wait for silent members: end held requests with an error and leave the superblocks dirty.
        abandon: bool,
    },
}

/// `sync_action` as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncAction {
    /// Compare parity with data and count what differs.
    Check,
    /// Compare, and write parity anew where it differs.
    Repair,
    /// Stop a check or repair, and end `frozen`.
    Idle,
    /// Stop all sync work and start none.
    Frozen,
}

/// What happened. Handed to [`Array::turn`](super::Array::turn) one at a time.
#[derive(Clone, Debug)]
pub enum Input {
    /// A worker says something.
    Report(WorkerId, Report),
    /// Something is known of a member.
    Member(MemberHandle, MemberEvent),
    /// A metadata request ended.
    MetaDone {
        /// The request.
        id: MetaId,
        /// How.
        status: IoStatus,
        /// Which start of the device answered, where it tells.
        boot: Option<u32>,
        /// What was read, for reads that ended well.
        data: Vec<u8>,
    },
    /// An operator wants something.
    Command(CommandId, Command),
    /// A piece of sync work ended.
    SyncDone {
        /// Its [`SyncRun::request`].
        request: u32,
        /// How.
        status: IoStatus,
        /// Sectors of parity that did not match.
        mismatches: u32,
    },
    /// Whether clients have I/O outstanding: sync above `sync_speed_min` yields to it.
    Busy(bool),
    /// New settings.
    Tune(Tunables),
    /// The time from [`Array::wake_at`](super::Array::wake_at) has come. Also sent once to begin.
    Timer,
}

/// A metadata request to one device. Sectors count from the start of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaOp {
    /// Read.
    Read {
        /// From here.
        lba: Sector,
        /// So many.
        sectors: Sectors,
    },
    /// Write.
    Write {
        /// From here.
        lba: Sector,
        /// Whole 4 KiB blocks.
        data: Vec<u8>,
    },
    /// Make durable all that was acknowledged.
    Flush,
}

/// A piece of sync work for whoever owns the row: becomes a part without a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncRun {
    /// Comes back in [`Input::SyncDone`].
    pub request: u32,
    /// What to do.
    pub kind: SyncKind,
    /// The chunk row.
    pub stripe: StripeIndex,
    /// First sector within the chunk.
    pub from: u32,
    /// Length in sectors.
    pub sectors: u32,
}

/// How bad news is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// A state change that an operator acts on or wants to see.
    Info,
    /// Redundancy is less than it should be.
    Warn,
    /// Something was lost, or cannot be done.
    Error,
}

/// Why a command was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandErrorKind {
    /// Not in this state of the array or member (EBUSY).
    Busy,
    /// The array does not know the device (ENODEV).
    NoDevice,
    /// A value that cannot be (EINVAL).
    Invalid,
    /// The device does not fit the array (ENOSPC).
    TooSmall,
    /// The device failed on the way (EIO).
    Io,
    /// The array takes no writes (EROFS).
    ReadOnly,
    /// The array has ended or is about to (ESHUTDOWN).
    Stopping,
}

/// A refused or failed command: what, where, and what to try.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct CommandError {
    /// For matching.
    pub kind: CommandErrorKind,
    /// For people.
    pub text: String,
}

impl CommandError {
    pub(super) fn new(kind: CommandErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

/// What is to be done, in this order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send a metadata request on the control thread's own channel, never through a worker. Requests to one device
    /// may be outstanding side by side, but never two writes. Each ends with one [`Input::MetaDone`].
    Meta {
        /// Its name.
        id: MetaId,
        /// The device.
        handle: MemberHandle,
        /// What to do.
        op: MetaOp,
    },
    /// Give a metadata request up: nobody waits for it any more. It ends with its [`Input::MetaDone`] all the same, soon.
    CancelMeta {
        /// Its name.
        id: MetaId,
        /// The device.
        handle: MemberHandle,
    },
    /// Tell every worker.
    ToWorkers(ToWorker),
    /// Give these to the owners of their rows.
    Sync(Vec<SyncRun>),
    /// The end of a command.
    Answer(CommandId, Result<(), CommandError>),
    /// The array no longer knows this device: its channels may be closed.
    Released(MemberHandle),
    /// More members restarted than parity covers: each client's next flush fails once with an I/O error.
    FlushFault,
    /// The array has ended. Nothing follows but refusals of later commands.
    Stopped {
        /// For the process: 0, or 1 when the superblocks were left dirty.
        exit: i32,
    },
    /// For the log.
    Log(LogLevel, String),
}
