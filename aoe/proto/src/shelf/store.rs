//! What a shelf serves: a block store.
//!
//! Implemented by the shell (files, block devices, memory) and by tests. The shelf calls it only with ranges inside
//! [`BlockStore::sectors`] and with buffers of whole sectors, and never calls a method that writes on a read-only one.

use crate::wire::Lba;

/// Why a store could not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The medium can't give the data back; answered as uncorrectable, so that the initiator may repair by writing.
    #[error("medium error")]
    Medium,
    /// Anything else that failed.
    #[error("input/output error")]
    Io,
    /// The store turned out to be read-only.
    #[error("read-only")]
    ReadOnly,
}

/// A store of 512-byte sectors.
pub trait BlockStore {
    /// Its size in sectors. May change between calls: initiators learn of it by their next IDENTIFY.
    fn sectors(&self) -> u64;

    /// Fills `buf` (whole sectors) from `lba` on. On an error the contents of `buf` do not matter.
    fn read(&mut self, lba: Lba, buf: &mut [u8]) -> Result<(), StoreError>;

    /// Writes `data` (whole sectors) from `lba` on; with `fua` it is on stable storage when this returns.
    fn write(&mut self, lba: Lba, data: &[u8], fua: bool) -> Result<(), StoreError>;

    /// All that was written before is on stable storage when this returns.
    fn flush(&mut self) -> Result<(), StoreError>;

    /// The sectors' contents are no longer needed.
    fn trim(&mut self, lba: Lba, sectors: u64) -> Result<(), StoreError>;

    /// Whether nothing may be written.
    fn read_only(&self) -> bool;
}
