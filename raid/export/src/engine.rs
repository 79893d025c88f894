//! The array behind a front end: an engine client per connection.
//!
//! Made by whoever runs the array, called by [`nbd::server`](crate::nbd::server) on its connections' threads. Data stay where they are: a
//! buffer that the server fills or sends is memory of the engine's slab.
//!
//! A request that the client has no room for waits here in order, and goes when replies have made room. Bound: what the server has
//! in flight on one connection.
//!
//! Waking: a worker makes the client's descriptor readable only after the client has announced that it is about to sleep. That is done in
//! [`Backend::wake_fd`], which the server calls each time it builds the list that it polls; where a reply is there already, it gets a
//! descriptor that is always readable instead.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use raid_core::geometry::Geometry;
use raid_core::units::{Sector, Sectors};
use raid_engine::message::IoStatus;
use raid_engine::runtime::client::{self, Client};
use raid_engine::runtime::running::Running;
use raid_engine::slab::Buf;
use rustix::event::EventfdFlags;

use crate::nbd::backend::{Backend, Backends, ExportInfo, MAX_TRANSFER, Op, Reply, SECTOR_BYTES, Status};

/// Opens a client of a running array for each connection.
#[derive(Debug)]
pub struct EngineBackends {
    running: Arc<Running>,
    info: ExportInfo,
}

impl EngineBackends {
    /// The array under the export name `name`.
    pub fn new(running: Arc<Running>, name: &str, read_only: bool) -> EngineBackends {
        let geometry = running.geometry();
        let info = ExportInfo {
            name: name.to_owned(),
            size_bytes: running.sectors().bytes().0,
            read_only,
            min_block: SECTOR_BYTES,
            preferred_block: preferred_block(geometry),
            description: format!("RAID5 array {name}: {} members, chunk {}K", geometry.members(), geometry.chunk().0 / 2),
        };
        EngineBackends { running, info }
    }
}

/// A row of data where that is a power of two, else a chunk: writes of whole rows read nothing.
fn preferred_block(geometry: &Geometry) -> u32 {
    let chunk = geometry.chunk().bytes().0;
    let row = chunk * geometry.data_members() as u64;
    let block = if row.is_power_of_two() { row } else { 1 << chunk.trailing_zeros() };
    u32::try_from(block).unwrap_or(MAX_TRANSFER).min(MAX_TRANSFER)
}

impl Backends for EngineBackends {
    type B = EngineBackend;

    fn open(&self) -> io::Result<EngineBackend> {
        let full = || io::Error::other("the array has too many clients, or no memory for another");
        let client = self.running.client()?.ok_or_else(full)?;
        let wake = client.wake_fd().try_clone_to_owned()?;
        let ready = rustix::event::eventfd(1, EventfdFlags::CLOEXEC)?;
        Ok(EngineBackend { client: Rc::new(RefCell::new(client)), waiting: VecDeque::new(), wake, ready })
    }

    fn info(&self) -> ExportInfo {
        self.info.clone()
    }
}

/// One connection's client. See the module's text.
#[derive(Debug)]
pub struct EngineBackend {
    client: Rc<RefCell<Client>>,
    /// Requests that the client had no room for.
    waiting: VecDeque<client::Request>,
    /// The client's own descriptor.
    wake: OwnedFd,
    /// Readable for ever.
    ready: OwnedFd,
}

/// A buffer of a client; goes back to it when dropped.
#[derive(Debug)]
pub struct EngineBuf {
    /// Unset once it has gone into a request.
    buf: Option<Buf>,
    /// Keeps the memory's owner alive.
    client: Rc<RefCell<Client>>,
}

impl AsRef<[u8]> for EngineBuf {
    fn as_ref(&self) -> &[u8] {
        self.buf.as_deref().unwrap_or_default()
    }
}

impl AsMut<[u8]> for EngineBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self.buf.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for EngineBuf {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take() {
            self.client.borrow_mut().free(buf);
        }
    }
}

impl EngineBackend {
    fn own(&self, buf: Buf) -> EngineBuf {
        EngineBuf { buf: Some(buf), client: Rc::clone(&self.client) }
    }

    /// Submits what waits, as far as there is room.
    fn submit_waiting(&mut self) {
        let mut client = self.client.borrow_mut();
        let mut any = false;
        while let Some(request) = self.waiting.pop_front_if(|request| client.has_room(request.sectors)) {
            client.submit(request);
            any = true;
        }
        if any {
            client.unplug();
        }
    }
}

impl Backend for EngineBackend {
    type Buf = EngineBuf;

    fn alloc(&mut self, bytes: usize) -> Option<EngineBuf> {
        let buf = self.client.borrow_mut().alloc(bytes)?;
        Some(self.own(buf))
    }

    fn submit(&mut self, id: u64, op: Op, sector: u64, sectors: u32, buf: Option<EngineBuf>) {
        let op = match op {
            Op::Read => client::Op::Read,
            Op::Write { fua } => client::Op::Write { fua },
            Op::WriteZeroes { fua } => client::Op::WriteZeroes { fua },
            Op::Flush => client::Op::Flush,
        };
        let buf = buf.and_then(|mut buf| buf.buf.take());
        let request = client::Request { id, op, at: Sector(sector), sectors: Sectors(sectors.into()), buf };
        let mut client = self.client.borrow_mut();
        if self.waiting.is_empty() && client.has_room(request.sectors) {
            client.submit(request);
        } else {
            self.waiting.push_back(request);
        }
    }

    fn unplug(&mut self) {
        self.client.borrow_mut().unplug();
    }

    fn poll(&mut self) -> Option<Reply<EngineBuf>> {
        let reply = self.client.borrow_mut().poll()?;
        if !self.waiting.is_empty() {
            self.submit_waiting();
        }
        let buf = reply.buf.map(|buf| self.own(buf));
        Some(Reply { id: reply.id, status: status(reply.status), buf })
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        // Without a reply under way nothing would come for what waits; but what waits does so only while others are in flight.
        if self.client.borrow().announce() { self.wake.as_fd() } else { self.ready.as_fd() }
    }

    fn clear_wake(&mut self) {
        self.client.borrow().awake();
    }
}

/// What a client is told. A request that a stop has cut off was not carried out, or not durably: an I/O error, as from a disk that is pulled.
fn status(status: IoStatus) -> Status {
    match status {
        IoStatus::Ok => Status::Ok,
        IoStatus::ReadOnly => Status::ReadOnly,
        IoStatus::OutOfRange => Status::NoSpace,
        IoStatus::Medium
        | IoStatus::Failed
        | IoStatus::Gone
        | IoStatus::Restarted
        | IoStatus::Fenced
        | IoStatus::Cancelled
        | IoStatus::Stopped => Status::Io,
    }
}

#[cfg(test)]
mod tests;
