//! Opens members by name and reads and writes them one request at a time: for whoever makes, examines or assembles arrays.
//!
//! Blocks its thread. Not on any data path. Bound: [`TRANSFER_MAX`] bytes a request.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raid_core::units::{Sector, Sectors};

use super::finding::{FIND_PATIENCE, find};
use crate::member::aoe::Links;
use crate::member::devices::{Device, Devices};
use crate::member::file::FileDisk;
use crate::member::mem::MemoryDisk;
use crate::member::spec::MemberSpec;
use crate::member::{Done, MemberOp, MemberRequest, MemberRequestId, Owner};
use crate::message::{IoStatus, MemberHandle};
use crate::slab::{Arena, Slab};

/// Longest transfer.
pub const TRANSFER_MAX: usize = 1 << 20;

/// How long a request may take before the member counts as dead.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why a member cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file or block device that cannot be opened.
    #[error("{member}: {source}{}", hint(source.kind()))]
    Io {
        /// The member.
        member: MemberSpec,
        /// Why.
        source: io::Error,
    },
    /// An AoE device, but no interface.
    #[error("{0}: an AoE member needs an interface: name those that lead to the shelves with -i")]
    NoInterface(MemberSpec),
    /// An AoE device that did not answer.
    #[error("{member}: no answer within {seconds} s on {interfaces}: is the shelf up, and on this network?")]
    NotFound {
        /// The member.
        member: MemberSpec,
        /// How long it was asked.
        seconds: u64,
        /// Where.
        interfaces: String,
    },
    /// More memory than the slab has.
    #[error("{0}: more memory than can be had")]
    NoMemory(MemberSpec),
}

/// What to try when a file or block device cannot be opened.
fn hint(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::NotFound => ": check the name",
        io::ErrorKind::PermissionDenied => ": try as root, or as the owner",
        io::ErrorKind::ResourceBusy => ": it is mounted, or another program uses it",
        io::ErrorKind::ReadOnlyFilesystem => ": use --readonly to read alone",
        _ => "",
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Opener {
    slab: Arc<Slab>,
    links: Option<Arc<dyn Links>>,
    devices: Devices,
    /// Devices that requests were made to; a device's handle is its place here.
    attached: Vec<Device>,
    arena: Arena,
    next: u64,
    start: Instant,
}

impl Opener {
    /// An opener that finds AoE devices over `links`.
    pub fn new(slab: &Arc<Slab>, links: Option<Arc<dyn Links>>) -> io::Result<Opener> {
        let arena = slab.arena(TRANSFER_MAX).ok_or(io::ErrorKind::OutOfMemory)?;
        let devices = Devices::new(slab, Owner::Opener);
        Ok(Opener {
            slab: Arc::clone(slab),
            links,
            devices,
            attached: Vec::new(),
            arena,
            next: 0,
            start: Instant::now(),
        })
    }

    /// Opens a member.
    pub fn open(&mut self, member: &MemberSpec, read_only: bool) -> Result<Device, OpenError> {
        let io = |source| OpenError::Io { member: member.clone(), source };
        match member {
            MemberSpec::Path(path) => Ok(Device::File(Arc::new(FileDisk::open(path, read_only).map_err(io)?))),
            MemberSpec::Memory(sectors) => {
                let bytes = usize::try_from(sectors.bytes().0).ok();
                let arena = bytes.and_then(|bytes| self.slab.huge_arena(bytes));
                let arena = arena.ok_or_else(|| OpenError::NoMemory(member.clone()))?;
                Ok(Device::Memory(Arc::new(MemoryDisk::new(arena, *sectors))))
            }
            MemberSpec::Aoe(address) => {
                let links = self.links.as_ref().ok_or_else(|| OpenError::NoInterface(member.clone()))?;
                match find(links, *address).map_err(io)? {
                    Some(disk) => Ok(Device::Aoe(Arc::new(disk))),
                    None => Err(OpenError::NotFound {
                        member: member.clone(),
                        seconds: FIND_PATIENCE.as_secs(),
                        interfaces: links.to_string(),
                    }),
                }
            }
        }
    }

    /// Reads sectors of a device.
    pub fn read(&mut self, device: &Device, lba: Sector, sectors: Sectors) -> io::Result<Vec<u8>> {
        let mut data = vec![0; sectors.bytes().0 as usize];
        self.request(device, MemberOp::Read, lba, sectors)?;
        let piece = self.arena.piece().sub(0, sectors.0 as u32);
        self.slab.read_out(piece, 0, &mut data);
        Ok(data)
    }

    /// Writes whole sectors to a device.
    pub fn write(&mut self, device: &Device, lba: Sector, data: &[u8]) -> io::Result<()> {
        let sectors = Sectors(data.len() as u64 / 512);
        self.slab.fill(self.arena.piece().sub(0, sectors.0 as u32), 0, data);
        self.request(device, MemberOp::Write, lba, sectors)
    }

    /// Makes durable what was written.
    pub fn flush(&mut self, device: &Device) -> io::Result<()> {
        self.request(device, MemberOp::Flush, Sector::ZERO, Sectors::ZERO)
    }

    /// The device's handle; attaches it the first time.
    fn handle(&mut self, device: &Device) -> io::Result<MemberHandle> {
        let known = self.attached.iter().position(|attached| attached.is(device));
        let handle = MemberHandle(known.unwrap_or(self.attached.len()) as u16);
        if known.is_none() {
            self.devices.attach(handle, device, self.start.elapsed())?;
            self.attached.push(device.clone());
        }
        Ok(handle)
    }

    fn request(&mut self, device: &Device, op: MemberOp, lba: Sector, sectors: Sectors) -> io::Result<()> {
        assert!(sectors.bytes().0 as usize <= TRANSFER_MAX, "longer than an opener's transfer");
        let handle = self.handle(device)?;
        let id = MemberRequestId(self.next);
        self.next += 1;
        let seg = self.arena.piece().sub(0, sectors.0 as u32);
        let segs = if op == MemberOp::Flush { &[][..] } else { std::slice::from_ref(&seg) };
        let request = MemberRequest {
            id,
            handle,
            op,
            lba,
            sectors: sectors.0 as u32,
            segs_from: 0,
            segs: segs.len() as u32,
            warm: false,
        };
        let mut done: Vec<Done> = Vec::new();
        self.devices.submit(self.start.elapsed(), &request, segs, &mut done);
        let deadline = self.start.elapsed() + PATIENCE;
        let mut cancelled = false;
        while done.is_empty() {
            let now = self.start.elapsed();
            if now > deadline && !cancelled {
                cancelled = true;
                self.devices.cancel(now, handle, id);
            }
            self.devices.pump(now, &mut done);
            if done.is_empty() {
                self.devices.wait(now, deadline);
            }
        }
        match done[0].status {
            IoStatus::Ok => Ok(()),
            IoStatus::Fenced => {
                let text = "reserved by another host: `etherraid reserve` shows which, `run --takeover` takes it over";
                Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
            }
            IoStatus::Gone | IoStatus::Cancelled => Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer")),
            status => Err(io::Error::other(format!("{op:?} of {sectors} sectors at {lba} failed: {status:?}"))),
        }
    }
}
