//! A store in memory. Its handles share the contents, so that a shelf can be killed and another started on the same data, and a test
//! can look at them.

use aoe_proto::shelf::{BlockStore, StoreError};
use aoe_proto::wire::{Lba, SECTOR};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A store in memory; a clone is another handle of the same.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    bytes: Arc<Mutex<Vec<u8>>>,
    sectors: u64,
    read_only: bool,
}

impl MemoryStore {
    /// A store of `sectors` sectors, all zero.
    ///
    /// # Panics
    /// When the address space can't hold it.
    pub fn new(sectors: u64) -> MemoryStore {
        let len = usize::try_from(sectors * SECTOR as u64).expect("a memory store fits the address space");
        MemoryStore { bytes: Arc::new(Mutex::new(vec![0; len])), sectors, read_only: false }
    }

    /// This handle refuses writes from now on.
    pub fn set_read_only(&mut self) {
        self.read_only = true;
    }

    /// The contents.
    pub fn contents(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start(lba: Lba) -> usize {
    // Within the store, hence within the address space.
    lba.0 as usize * SECTOR
}

impl BlockStore for MemoryStore {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn read(&mut self, lba: Lba, buf: &mut [u8]) -> Result<(), StoreError> {
        buf.copy_from_slice(&self.contents()[start(lba)..][..buf.len()]);
        Ok(())
    }

    fn write(&mut self, lba: Lba, data: &[u8], _fua: bool) -> Result<(), StoreError> {
        if self.read_only {
            return Err(StoreError::ReadOnly);
        }
        self.contents()[start(lba)..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn trim(&mut self, lba: Lba, sectors: u64) -> Result<(), StoreError> {
        if self.read_only {
            return Err(StoreError::ReadOnly);
        }
        self.contents()[start(lba)..][..sectors as usize * SECTOR].fill(0);
        Ok(())
    }

    fn read_only(&self) -> bool {
        self.read_only
    }
}
