//! One worker's access to all member devices, by handle.
//!
//! Owned by the worker's thread (the array's control thread has one too). [`submit`](Devices::submit) hands a request over,
//! [`pump`](Devices::pump) collects what has ended. Bound: [`HANDLES_MAX`] devices over the array's life.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use aoe_proto::initiator::Tunables as AoeTunables;
use raid_core::units::Sectors;

use super::aoe::paths::DevicePaths;
use super::aoe::{Aoe, AoeDisk, Care, Traffic};
use super::file::{FileDisk, Files};
use super::mem::MemoryDisk;
use super::{Done, MemberRequest, MemberRequestId, Owner};
use crate::array::MemberEvent;
use crate::message::{IoStatus, MemberHandle};
use crate::slab::{Piece, Slab};

/// Devices that one array may have seen in its life.
pub const HANDLES_MAX: usize = 4096;

/// An opened member device. Cloned to every worker.
#[derive(Clone, Debug)]
pub enum Device {
    /// Memory of this process.
    Memory(Arc<MemoryDisk>),
    /// A file or block device.
    File(Arc<FileDisk>),
    /// An AoE device.
    Aoe(Arc<AoeDisk>),
}

/// What has become known outside of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// About a member.
    Member(MemberHandle, MemberEvent),
    /// This owner waits for a device's buffer, and one is free: wake it.
    Wake(Owner),
}

impl Device {
    /// Whether both are the same opened device.
    pub(crate) fn is(&self, other: &Device) -> bool {
        match (self, other) {
            (Device::Memory(a), Device::Memory(b)) => Arc::ptr_eq(a, b),
            (Device::File(a), Device::File(b)) => Arc::ptr_eq(a, b),
            (Device::Aoe(a), Device::Aoe(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Its size.
    pub fn sectors(&self) -> Sectors {
        match self {
            Device::Memory(disk) => disk.sectors(),
            Device::File(disk) => disk.sectors(),
            Device::Aoe(disk) => disk.sectors(),
        }
    }

    /// Which start of it was found, where it tells.
    pub fn boot(&self) -> Option<u32> {
        match self {
            Device::Memory(_) | Device::File(_) => None,
            Device::Aoe(disk) => disk.boot(),
        }
    }

    /// Whether what it acknowledges may be lost although flushed.
    pub fn volatile(&self) -> bool {
        match self {
            Device::Memory(_) | Device::File(_) => false,
            Device::Aoe(disk) => disk.volatile(),
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Devices {
    slab: Arc<Slab>,
    owner: Owner,
    slots: Vec<Option<Device>>,
    /// Opened with the first file member.
    files: Option<Files>,
    /// Opened with the first AoE member.
    aoe: Option<Aoe>,
    /// The initiator's settings, where they differ from those that its links came with.
    tuned: Option<AoeTunables>,
}

impl Devices {
    /// No devices yet.
    pub fn new(slab: &Arc<Slab>, owner: Owner) -> Devices {
        Devices { slab: Arc::clone(slab), owner, slots: Vec::new(), files: None, aoe: None, tuned: None }
    }

    /// Makes a device known. Fails when the system has no ring or socket left for it.
    pub fn attach(&mut self, handle: MemberHandle, device: &Device, now: Duration) -> io::Result<()> {
        let index = usize::from(handle.0);
        assert!(index < HANDLES_MAX, "more devices than one array can see in its life");
        match device {
            Device::Memory(_) => {}
            Device::File(_) if self.files.is_none() => self.files = Some(Files::new(Arc::clone(&self.slab))?),
            Device::File(_) => {}
            Device::Aoe(disk) => {
                if self.aoe.is_none() {
                    let mut aoe = Aoe::new(&self.slab, disk, self.owner, now)?;
                    if let Some(tunables) = self.tuned {
                        aoe.tune(now, tunables);
                    }
                    self.aoe = Some(aoe);
                }
                self.aoe.as_mut().expect("just made").attach(handle, disk, now);
            }
        }
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(device.clone());
        Ok(())
    }

    /// Forgets a device; nothing is outstanding there.
    pub fn detach(&mut self, handle: MemberHandle, now: Duration) {
        if let Some(aoe) = &mut self.aoe {
            aoe.detach(handle, now);
        }
        if let Some(slot) = self.slots.get_mut(usize::from(handle.0)) {
            *slot = None;
        }
    }

    /// Hands a request over; it ends with one `Done`, in `done` at once or from a later [`pump`](Devices::pump).
    pub fn submit(&mut self, now: Duration, request: &MemberRequest, segs: &[Piece], done: &mut Vec<Done>) {
        let id = request.id;
        let device = self.slots.get(usize::from(request.handle.0)).and_then(Option::as_ref);
        match (device, &mut self.files, &mut self.aoe) {
            (Some(Device::Memory(disk)), ..) => {
                let status = disk.run(request, segs);
                done.push(Done { id, status, boot: None, closed_until: None });
            }
            (Some(Device::File(disk)), Some(files), _) => files.submit(disk, request, segs),
            (Some(Device::Aoe(_)), _, Some(aoe)) => aoe.submit(now, request, segs),
            _ => done.push(Done { id, status: IoStatus::Gone, boot: None, closed_until: None }),
        }
    }

    /// Gives a request up; it ends soon, as `Cancelled` unless it has ended otherwise. Files end by themselves.
    pub fn cancel(&mut self, now: Duration, handle: MemberHandle, id: MemberRequestId) {
        if let Some(aoe) = &mut self.aoe {
            aoe.cancel(now, handle, id);
        }
    }

    /// Sends what was submitted, and collects what has ended.
    pub fn pump(&mut self, now: Duration, done: &mut Vec<Done>) {
        if let Some(files) = &mut self.files {
            files.pump(done);
        }
        if let Some(aoe) = &mut self.aoe {
            aoe.pump(now, done);
        }
    }

    /// What the initiator has done, if there is one.
    pub fn traffic(&mut self) -> Traffic {
        self.aoe.as_mut().map_or_else(Traffic::default, Aoe::traffic)
    }

    /// New settings of the initiator, at once; also of one that is made later.
    ///
    /// # Panics
    /// With a value out of its range.
    pub fn tune(&mut self, now: Duration, tunables: AoeTunables) {
        self.tuned = Some(tunables);
        if let Some(aoe) = &mut self.aoe {
            aoe.tune(now, tunables);
        }
    }

    /// The AoE devices, and the paths to them.
    pub fn paths(&mut self) -> Vec<DevicePaths> {
        self.aoe.as_mut().map_or_else(Vec::new, Aoe::look)
    }

    /// Uses the links to AoE devices that there are now. Fails when one can't be opened: then all stays as it was.
    pub fn relink(&mut self, now: Duration) -> io::Result<()> {
        self.aoe.as_mut().map_or(Ok(()), |aoe| aoe.relink(now))
    }

    /// Carries out what an operator wants of the paths to an AoE device, or to all.
    pub fn care(&mut self, now: Duration, handle: Option<MemberHandle>, care: Care) {
        if let Some(aoe) = &mut self.aoe {
            aoe.care(now, handle, care);
        }
    }

    /// What has become known of devices since the last call.
    pub fn events(&mut self, now: Duration, events: &mut Vec<DeviceEvent>) {
        if let Some(aoe) = &mut self.aoe {
            aoe.events(now, events);
        }
    }

    /// When to pump though nothing is readable.
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        let files = self.files.as_ref().and_then(|files| files.wake_at(now));
        let aoe = self.aoe.as_ref().map(|aoe| aoe.wake_at(now));
        [files, aoe].into_iter().flatten().min()
    }

    /// Waits until there may be something to pump, or until `deadline`.
    pub fn wait(&self, now: Duration, deadline: Duration) {
        let until = self.wake_at(now).unwrap_or(deadline).min(deadline).max(now);
        let fds: Vec<BorrowedFd<'_>> = self.fds().collect();
        super::aoe::wait(&fds, until - now);
    }

    /// Whether all calls should come from one thread: the kernel gives up what a thread has put into a ring when that thread ends.
    pub fn need_one_thread(&self) -> bool {
        self.files.is_some()
    }

    /// For how long at most a thread should sleep without listening to descriptors; `None`: it should listen.
    pub fn rest(&self) -> Option<Duration> {
        self.aoe.as_ref().and_then(Aoe::rest)
    }

    /// Readable when there may be something to pump.
    ///
    /// They change only with the devices that are attached and with [`Devices::relink`].
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.files.iter().map(Files::fd).chain(self.aoe.iter().flat_map(Aoe::fds))
    }
}
