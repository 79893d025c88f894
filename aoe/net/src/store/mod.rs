//! Block stores for the shelf server: a file or block device, memory, nothing at all, and a wrapper that loses what was not flushed.
//!
//! Owned by the shelf, called under its lock by whichever thread has a request. Offsets are in bytes inside, in sectors outside.

mod file;
mod memory;
mod null;
mod volatile;

pub use file::{FileOptions, FileStore, OpenError};
pub use memory::MemoryStore;
pub use null::NullStore;
pub use volatile::{Survivors, VolatileStore};

use aoe_proto::shelf::{BlockStore, StoreError};
use aoe_proto::wire::Lba;
use core::fmt;

/// A store of any kind.
pub struct AnyStore(Box<dyn BlockStore + Send>);

impl AnyStore {
    /// Hides the kind of `store`.
    pub fn new(store: impl BlockStore + Send + 'static) -> AnyStore {
        AnyStore(Box::new(store))
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyStore({} sectors)", self.0.sectors())
    }
}

impl BlockStore for AnyStore {
    fn sectors(&self) -> u64 {
        self.0.sectors()
    }

    fn read(&mut self, lba: Lba, buf: &mut [u8]) -> Result<(), StoreError> {
        self.0.read(lba, buf)
    }

    fn write(&mut self, lba: Lba, data: &[u8], fua: bool) -> Result<(), StoreError> {
        self.0.write(lba, data, fua)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.0.flush()
    }

    fn trim(&mut self, lba: Lba, sectors: u64) -> Result<(), StoreError> {
        self.0.trim(lba, sectors)
    }

    fn read_only(&self) -> bool {
        self.0.read_only()
    }
}
