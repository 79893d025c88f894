//! A store that stores nothing: writes are forgotten, reads are zeros. For measuring what the network and both ends of it can do.
//!
//! The first [`KEPT`] bytes are stored, so that arrays can be made of such devices: that is where their superblocks and bitmaps are. Bound: that.

use aoe_proto::shelf::{BlockStore, StoreError};
use aoe_proto::wire::{Lba, SECTOR};

/// Bytes at the start that are stored.
const KEPT: usize = 1 << 20;

/// A store of some size almost without contents.
#[derive(Debug)]
pub struct NullStore {
    sectors: u64,
    /// What the first sectors hold.
    kept: Vec<u8>,
}

impl NullStore {
    /// A store of `sectors` sectors.
    pub fn new(sectors: u64) -> NullStore {
        NullStore { sectors, kept: vec![0; KEPT] }
    }

    /// The bytes that are stored of the `len` from `lba` on.
    fn kept(&mut self, lba: Lba, len: usize) -> &mut [u8] {
        let start = usize::try_from(lba.0).map_or(KEPT, |lba| lba.saturating_mul(SECTOR).min(KEPT));
        &mut self.kept[start..(start + len).min(KEPT)]
    }
}

impl BlockStore for NullStore {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn read(&mut self, lba: Lba, buf: &mut [u8]) -> Result<(), StoreError> {
        let kept = self.kept(lba, buf.len());
        let (first, rest) = buf.split_at_mut(kept.len());
        first.copy_from_slice(kept);
        // The buffer may hold what another device was read for.
        rest.fill(0);
        Ok(())
    }

    fn write(&mut self, lba: Lba, data: &[u8], _fua: bool) -> Result<(), StoreError> {
        let kept = self.kept(lba, data.len());
        kept.copy_from_slice(&data[..kept.len()]);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn trim(&mut self, lba: Lba, sectors: u64) -> Result<(), StoreError> {
        let len = usize::try_from(sectors).map_or(KEPT, |sectors| sectors.saturating_mul(SECTOR).min(KEPT));
        self.kept(lba, len).fill(0);
        Ok(())
    }

    fn read_only(&self) -> bool {
        false
    }
}
