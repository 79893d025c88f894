//! A store with a volatile cache in front, as a disk has: what was not flushed when it is dropped may be lost. For crash tests.
//!
//! Unbounded: it keeps each sector written since the last flush.

use aoe_proto::shelf::{BlockStore, StoreError};
use aoe_proto::wire::{Lba, SECTOR};
use std::collections::BTreeMap;

/// Which unflushed sectors reach the inner store when the cache is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// None of them.
    None,
    /// Each with even odds, by this seed.
    Seeded(u64),
    /// All of them, as when the cache was written back just in time.
    All,
}

/// A store whose writes are volatile until they are flushed. Dropping it is the power cut.
pub struct VolatileStore<S: BlockStore> {
    inner: S,
    unflushed: BTreeMap<u64, [u8; SECTOR]>,
    survivors: Survivors,
}

impl<S: BlockStore> VolatileStore<S> {
    /// A volatile cache in front of `inner`.
    pub fn new(inner: S, survivors: Survivors) -> VolatileStore<S> {
        VolatileStore { inner, unflushed: BTreeMap::new(), survivors }
    }

    /// Sectors that would be at risk now.
    pub fn unflushed(&self) -> usize {
        self.unflushed.len()
    }

    fn end(lba: Lba, sectors: u64) -> core::ops::Range<u64> {
        lba.0..lba.0 + sectors
    }
}

impl<S: BlockStore> Drop for VolatileStore<S> {
    fn drop(&mut self) {
        let mut state = match self.survivors {
            Survivors::None => return,
            Survivors::All | Survivors::Seeded(0) => 1,
            Survivors::Seeded(seed) => seed,
        };
        for (&sector, data) in &self.unflushed {
            // xorshift64: one bit a sector is all that is asked for.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if self.survivors == Survivors::All || state >> 63 == 1 {
                // A store that fails at a power cut loses the sector: one of the outcomes that may be.
                let _ = self.inner.write(Lba(sector), data, false);
            }
        }
    }
}

impl<S: BlockStore> BlockStore for VolatileStore<S> {
    fn sectors(&self) -> u64 {
        self.inner.sectors()
    }

    fn read(&mut self, lba: Lba, buf: &mut [u8]) -> Result<(), StoreError> {
        self.inner.read(lba, buf)?;
        let sectors = (buf.len() / SECTOR) as u64;
        for (&sector, data) in self.unflushed.range(Self::end(lba, sectors)) {
            let at = (sector - lba.0) as usize * SECTOR;
            buf[at..at + SECTOR].copy_from_slice(data);
        }
        Ok(())
    }

    fn write(&mut self, lba: Lba, data: &[u8], fua: bool) -> Result<(), StoreError> {
        if fua {
            self.inner.write(lba, data, true)?;
            let sectors = (data.len() / SECTOR) as u64;
            self.unflushed.retain(|sector, _| !Self::end(lba, sectors).contains(sector));
            return Ok(());
        }
        for (sector, data) in (lba.0..).zip(data.as_chunks::<SECTOR>().0) {
            self.unflushed.insert(sector, *data);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        for (&sector, data) in &self.unflushed {
            self.inner.write(Lba(sector), data, false)?;
        }
        self.inner.flush()?;
        self.unflushed.clear();
        Ok(())
    }

    fn trim(&mut self, lba: Lba, sectors: u64) -> Result<(), StoreError> {
        self.unflushed.retain(|sector, _| !Self::end(lba, sectors).contains(sector));
        self.inner.trim(lba, sectors)
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }
}
