//! Member devices: what carries member requests out.
//!
//! A worker's requests go to its own [`devices::Devices`], which routes them by handle: memory members are served on the spot,
//! files and block devices through one io_uring, AoE devices through the worker's own initiator. Nothing is
//! shared between workers but memory members' bytes and, for AoE, each device's credits.
//!
//! Bound: what a worker has outstanding, which its stripe cache and its clients' requests bound.

pub mod aoe;
pub mod devices;
pub mod file;
pub mod mem;
pub mod spec;

use raid_core::units::Sector;

use crate::message::{IoStatus, MemberHandle, WorkerId};
use std::time::Duration;

/// Names a member request until its [`Done`]; never reused while outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberRequestId(pub u64);

/// What a member is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberOp {
    /// Read into the segments.
    Read,
    /// Write from the segments.
    Write,
    /// Make durable what was acknowledged; a volatile member answers at once.
    Flush,
}

/// One request to a member device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRequest {
    /// Comes back in its [`Done`].
    pub id: MemberRequestId,
    /// Which device.
    pub handle: MemberHandle,
    /// What to do.
    pub op: MemberOp,
    /// First sector on the device.
    pub lba: Sector,
    /// Length in sectors; 0 for a flush.
    pub sectors: u32,
    /// First of its segments in the effects' list.
    pub segs_from: u32,
    /// How many segments; together they are `sectors` long.
    pub segs: u32,
    /// A write of sectors some of which were read a moment ago, to be changed: where they lie in memory, they are in the CPU's caches.
    pub warm: bool,
}

/// The end of a member request. Exactly one for each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The request's.
    pub id: MemberRequestId,
    /// How it ended.
    pub status: IoStatus,
    /// Which start of the device answered, where it tells.
    pub boot: Option<u32>,
    /// Copies of a write may still be in the network until then: its sectors are closed, and the region must keep its owner.
    pub closed_until: Option<Duration>,
}

/// Whose channels they are: each owner has its own rings, sockets and tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A worker's.
    Worker(WorkerId),
    /// The array's control thread's: metadata.
    Control,
    /// Whoever opens members and looks at them before there is an array.
    Opener,
}
