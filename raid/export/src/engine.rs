//! The array behind a front end: an engine client per connection.
//!
//! Made by whoever runs the array, called by [`nbd::server`](crate::nbd::server) on its connections' threads. It translates words and
//! nothing else: bounds, buffers and waking are the client's own. Data stay where they are: a buffer that the server fills or
//! sends is memory of the engine's slab.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use raid_engine::message::IoStatus;
use raid_engine::runtime::client::{self, Client};
use raid_engine::runtime::running::Running;
use raid_engine::slab::Buf;
use raid_engine::units::{Sector, Sectors};

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
        let chunk = geometry.chunk().bytes().0;
        let info = ExportInfo {
            name: name.to_owned(),
            size_bytes: running.sectors().bytes().0,
            read_only,
            min_block: SECTOR_BYTES,
            preferred_block: preferred_block(chunk, geometry.data_count() as u64),
            description: format!("array {name}: {} members, chunk {}K", geometry.members(), chunk >> 10),
        };
        EngineBackends { running, info }
    }
}

/// A row of data in bytes where that is a power of two, else a chunk: writes of whole rows read nothing.
fn preferred_block(chunk: u64, data_chunks: u64) -> u32 {
    let row = chunk * data_chunks;
    let block = if row.is_power_of_two() { row } else { 1 << chunk.trailing_zeros() };
    u32::try_from(block).unwrap_or(MAX_TRANSFER).min(MAX_TRANSFER)
}

impl Backends for EngineBackends {
    type B = EngineBackend;

    fn open(&self) -> io::Result<EngineBackend> {
        let full = || io::Error::other("the array has too many clients, or no memory for another");
        Ok(EngineBackend { client: self.running.client()?.ok_or_else(full)? })
    }

    fn info(&self) -> ExportInfo {
        self.info.clone()
    }
}

/// One connection's client.
#[derive(Debug)]
pub struct EngineBackend {
    client: Client,
}

impl Backend for EngineBackend {
    type Buf = Buf;

    fn alloc(&mut self, bytes: usize) -> Option<Buf> {
        self.client.alloc(bytes)
    }

    fn free(&mut self, buf: Buf) {
        self.client.free(buf);
    }

    fn has_room(&self, sectors: u32) -> bool {
        self.client.has_room(Sectors(sectors.into()))
    }

    fn submit(&mut self, id: u64, op: Op, sector: u64, sectors: u32, buf: Option<Buf>) {
        let op = match op {
            Op::Read => client::Op::Read,
            Op::Write { fua } => client::Op::Write { fua },
            Op::WriteZeroes { fua } => client::Op::WriteZeroes { fua },
            Op::Flush => client::Op::Flush,
        };
        let (at, sectors) = (Sector(sector), Sectors(sectors.into()));
        self.client.submit(client::Request { id, op, at, sectors, buf });
    }

    fn unplug(&mut self) {
        self.client.unplug();
    }

    fn poll(&mut self) -> Option<Reply<Buf>> {
        let client::Reply { id, status: ended, buf } = self.client.poll()?;
        Some(Reply { id, status: status(ended), buf })
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.client.wake_fd()
    }

    fn announce(&mut self) -> bool {
        self.client.announce()
    }

    fn awake(&mut self) {
        self.client.awake();
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
