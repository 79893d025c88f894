//! One worker's access to all member devices, by handle.
//!
//! Owned by the worker's thread (the array's control thread has one too). [`submit`](Devices::submit) hands a request over,
//! [`pump`](Devices::pump) collects what has ended. Bound: [`HANDLES_MAX`] devices over the array's life.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use raid_core::units::Sectors;

use super::mem::MemoryDisk;
use super::{Done, MemberRequest, MemberRequestId};
use crate::array::MemberEvent;
use crate::message::{IoStatus, MemberHandle};
use crate::slab::Piece;

/// Devices that one array may have seen in its life.
pub const HANDLES_MAX: usize = 4096;

/// An opened member device. Cloned to every worker.
#[derive(Clone, Debug)]
pub enum Device {
    /// Memory of this process.
    Memory(Arc<MemoryDisk>),
}

impl Device {
    /// Its size.
    pub fn sectors(&self) -> Sectors {
        match self {
            Device::Memory(disk) => disk.sectors(),
        }
    }

    /// Whether what it acknowledges may be lost although flushed.
    pub fn volatile(&self) -> bool {
        match self {
            Device::Memory(_) => false,
        }
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Devices {
    slots: Vec<Option<Device>>,
}

impl Devices {
    /// Makes a device known.
    pub fn attach(&mut self, handle: MemberHandle, device: &Device, _now: Duration) {
        let index = usize::from(handle.0);
        assert!(index < HANDLES_MAX, "more devices than one array can see in its life");
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(device.clone());
    }

    /// Forgets a device; nothing is outstanding there.
    pub fn detach(&mut self, handle: MemberHandle) {
        if let Some(slot) = self.slots.get_mut(usize::from(handle.0)) {
            *slot = None;
        }
    }

    /// Hands a request over; it ends with one `Done`, in `done` at once or from a later [`pump`](Devices::pump).
    pub fn submit(&mut self, _now: Duration, request: &MemberRequest, segs: &[Piece], done: &mut Vec<Done>) {
        let MemberRequest { id, op, lba, sectors, .. } = *request;
        match self.slots.get(usize::from(request.handle.0)) {
            Some(Some(Device::Memory(disk))) => {
                let status = disk.run(op, lba, sectors, segs);
                done.push(Done { id, status, closed_until: None });
            }
            _ => done.push(Done { id, status: IoStatus::Gone, closed_until: None }),
        }
    }

    /// Gives a request up; it ends soon, as `Cancelled` unless it has ended otherwise.
    pub fn cancel(&mut self, _now: Duration, _handle: MemberHandle, _id: MemberRequestId) {}

    /// Sends what was submitted since the last call.
    pub fn send(&mut self, _now: Duration) {}

    /// Collects what has ended.
    pub fn pump(&mut self, _now: Duration, _done: &mut Vec<Done>) {}

    /// What has become known of devices since the last call.
    pub fn events(&mut self) -> impl Iterator<Item = (MemberHandle, MemberEvent)> {
        std::iter::empty()
    }

    /// When to pump though nothing is readable.
    pub fn wake_at(&self) -> Option<Duration> {
        None
    }

    /// Readable when there may be something to pump.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::empty()
    }
}
