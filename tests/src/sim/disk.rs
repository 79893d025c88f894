//! A member's disk: sectors on stable storage, a volatile write cache in front, and checks of what the engine writes.
//!
//! Shared by the target that serves it, which may be restarted, and the world. What is in the cache is lost when the world says so, any subset
//! of it. A disk without a cache stores at once. The superblock is followed as it is written and as it gets durable.
//!
//! Offences against the order that the engine promises are noted in the run's [`Findings`]; the world looks there after each step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use aoe_proto::shelf::{BlockStore, StoreError};
use aoe_proto::wire::Lba;
use aoe_sim::Rng;
use raid_core::md::superblock::SUPERBLOCK_SIZE;
use raid_core::md::{Minor, Role, Superblock, SuperblockError};
use raid_core::units::{Sector, Sectors};

use super::model::SECTOR;

/// Where version 1.2 has its superblock.
pub const SUPERBLOCK_AT: u64 = 8;

/// Sectors of a superblock.
pub const SUPERBLOCK_SECTORS: u64 = (SUPERBLOCK_SIZE / SECTOR) as u64;

/// What was found to be wrong in a run, and what disks count together.
#[derive(Debug, Default)]
pub struct Findings {
    /// The first offences.
    pub offences: Vec<String>,
    /// Whose frame is being executed, and when.
    pub frame: String,
    /// For the run's events.
    pub notes: Vec<String>,
    /// Superblocks written to all disks.
    pub superblocks: u64,
    /// While set, no superblock with more events may be written.
    pub events_max: Option<u64>,
}

/// A superblock as it was read, or why there is none.
pub type Found = Result<Superblock, SuperblockError>;

/// A disk; a clone is another handle of the same.
#[derive(Clone, Debug)]
pub struct Disk(Arc<Mutex<State>>);

/// What a disk holds.
#[derive(Debug)]
pub struct State {
    name: String,
    stable: Vec<u8>,
    cache: BTreeMap<u64, [u8; SECTOR]>,
    /// Writes go to the cache first.
    pub cached: bool,
    /// Sectors that cannot be read until they are written.
    pub bad: BTreeSet<u64>,
    rng: Rng,
    findings: Arc<Mutex<Findings>>,
    /// As on stable storage.
    pub durable: Found,
    /// As a read finds it.
    pub visible: Found,
}

impl Disk {
    /// A disk full of zeroes.
    pub fn new(name: &str, sectors: u64, cached: bool, rng: Rng, findings: &Arc<Mutex<Findings>>) -> Disk {
        let none = Err(SuperblockError::Magic(0));
        Disk(Arc::new(Mutex::new(State {
            name: name.to_owned(),
            stable: vec![0; sectors as usize * SECTOR],
            cache: BTreeMap::new(),
            cached,
            bad: BTreeSet::new(),
            rng,
            findings: Arc::clone(findings),
            durable: none.clone(),
            visible: none,
        })))
    }

    /// What it holds.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("one thread")
    }
}

impl State {
    /// Its size.
    pub fn sectors(&self) -> Sectors {
        Sectors((self.stable.len() / SECTOR) as u64)
    }

    /// A sector as a read finds it.
    pub fn sector(&self, at: u64) -> &[u8] {
        let stable = || &self.stable[at as usize * SECTOR..][..SECTOR];
        self.cache.get(&at).map_or_else(stable, |data| &data[..])
    }

    /// Puts a sector onto stable storage behind everybody's back.
    pub fn put(&mut self, at: u64, data: &[u8]) {
        self.stable[at as usize * SECTOR..][..SECTOR].copy_from_slice(data);
    }

    /// Writes a superblock as `create` does: durable at once.
    pub fn put_superblock(&mut self, superblock: &Superblock) {
        let mut block = [0; SUPERBLOCK_SIZE];
        superblock.emit(&mut block);
        for (at, data) in (SUPERBLOCK_AT..).zip(block.chunks(SECTOR)) {
            self.cache.remove(&at);
            self.put(at, data);
        }
        self.visible = Ok(superblock.clone());
        self.durable = Ok(superblock.clone());
    }

    /// The power goes: each sector in the cache may or may not have reached the disk.
    pub fn lose_cache(&mut self) {
        for (at, data) in std::mem::take(&mut self.cache) {
            if self.rng.below(2) == 0 {
                self.put(at, &data);
            }
        }
        self.visible = self.parse();
        self.durable = self.visible.clone();
    }

    /// Sectors that would be at risk now.
    pub fn unflushed(&self) -> usize {
        self.cache.len()
    }

    fn parse(&self) -> Found {
        let mut block = [0; SUPERBLOCK_SIZE];
        for (at, sector) in (SUPERBLOCK_AT..).zip(block.chunks_mut(SECTOR)) {
            sector.copy_from_slice(self.sector(at));
        }
        Superblock::parse(&block, Minor::V2, self.sectors())
    }

    fn offence(&self, what: String) {
        let mut findings = self.findings.lock().expect("one thread");
        if findings.offences.len() < 10 {
            let text = format!("{}: {what}, by {}", self.name, findings.frame);
            findings.offences.push(text);
        }
    }

    fn store(&mut self, at: u64, data: &[u8; SECTOR], through: bool) {
        self.bad.remove(&at);
        if through {
            self.cache.remove(&at);
            self.put(at, data);
            return;
        }
        if let Some(older) = self.cache.insert(at, *data)
            && self.rng.below(2) == 0
        {
            // A cache may write back whenever it likes.
            self.put(at, &older);
        }
    }

    /// Notes what a write of the superblock says, and whether it may.
    fn superblock_written(&mut self, through: bool) {
        let now = self.parse();
        let before = std::mem::replace(&mut self.visible, now);
        if through {
            self.durable = self.visible.clone();
        }
        let Ok(now) = &self.visible else {
            return self.offence(format!("a superblock was written that is none: {:?}", self.visible));
        };
        if let Ok(before) = &before
            && before.set_uuid == now.set_uuid
            && before.device_uuid == now.device_uuid
            && before.events > now.events
        {
            self.offence(format!("events went back from {} to {}", before.events, now.events));
        }
        let mut findings = self.findings.lock().expect("one thread");
        findings.superblocks += 1;
        findings.notes.push(format!(
            "{}: superblock, events {}, {:?}, resync {:?}, recovery {:?}",
            self.name,
            now.events,
            now.role(),
            now.resync_offset,
            now.recovery()
        ));
        if let Some(most) = findings.events_max.filter(|most| now.events > *most) {
            let text = format!("{}: superblock with {} events while suspended at {most}", self.name, now.events);
            findings.offences.push(text);
        }
    }

    /// A write to the data area of a member that its superblock calls in sync needs a durable dirty mark.
    fn data_written(&self, lba: u64, data: &[u8]) {
        let Ok(superblock) = &self.durable else {
            return;
        };
        if lba < superblock.data_offset.0 || !matches!(superblock.role(), Role::Active(_)) {
            return;
        }
        let at = Sector(lba - superblock.data_offset.0);
        let covered = |mark: Option<Sector>| mark.is_some_and(|mark| mark <= at);
        if covered(superblock.resync_offset) || covered(superblock.recovery()) {
            return;
        }
        // A late copy of a write that is there already does no harm, nor does writing an unreadable sector anew.
        let same = (lba..).zip(data.chunks(SECTOR)).all(|(lba, data)| self.sector(lba) == data);
        if !same {
            let (marks, events) = ((superblock.resync_offset, superblock.recovery()), superblock.events);
            self.offence(format!(
                "sector {lba} written, not covered by its durable marks {marks:?} of events {events}"
            ));
        }
    }
}

impl BlockStore for Disk {
    fn sectors(&self) -> u64 {
        self.lock().sectors().0
    }

    fn read(&mut self, lba: Lba, buf: &mut [u8]) -> Result<(), StoreError> {
        let state = self.lock();
        for (at, sector) in (lba.0..).zip(buf.chunks_mut(SECTOR)) {
            if state.bad.contains(&at) {
                return Err(StoreError::Medium);
            }
            sector.copy_from_slice(state.sector(at));
        }
        Ok(())
    }

    fn write(&mut self, lba: Lba, data: &[u8], fua: bool) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.data_written(lba.0, data);
        let through = fua || !state.cached;
        for (at, data) in (lba.0..).zip(data.as_chunks::<SECTOR>().0) {
            state.store(at, data, through);
        }
        // All that matters is in the first sector; the others may come in frames of their own.
        if (lba.0..lba.0 + (data.len() / SECTOR) as u64).contains(&SUPERBLOCK_AT) {
            state.superblock_written(through);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        let mut state = self.lock();
        for (at, data) in std::mem::take(&mut state.cache) {
            state.put(at, &data);
        }
        state.durable = state.visible.clone();
        Ok(())
    }

    fn trim(&mut self, _: Lba, _: u64) -> Result<(), StoreError> {
        Err(StoreError::Io)
    }

    fn read_only(&self) -> bool {
        false
    }
}
