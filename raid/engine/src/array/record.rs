//! What superblocks say: the record that is to be durable, and the superblock of each device made from it.
//!
//! Pure functions of the array's state. A [`Record`] holds what changes while the array runs and must be in step with what workers
//! do; sizes, names and ids are in the superblocks that were read at assembly.

use raid_core::md::create::{NewDevice, place_on};
use raid_core::md::superblock::{DEVICE_MIN, ROLES_MAX, SUPERBLOCK_SIZE, Timestamp};
use raid_core::md::{Features, Role, Superblock, Uuid};
use raid_core::units::{MemberIndex, SECTOR_SIZE, Sector, Sectors};

use super::Array;
use super::api::Device;
use super::member::{Member, Standing};

/// What is read and written of a device's metadata at once.
pub(super) const SUPERBLOCK_SECTORS: Sectors = Sectors(SUPERBLOCK_SIZE as u64 / SECTOR_SIZE);

/// The role table grows by whole sectors.
const ROLES_PER_SECTOR: usize = SECTOR_SIZE as usize / 2;

/// `resync_offset` of an array whose rows are all right: md's MaxSector.
pub(super) const ALL_IN_SYNC: Sector = Sector(u64::MAX);

/// What a device is in superblocks. Devices that have no entry are faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// In this slot; with a sector: right only below it.
    Slot(MemberIndex, Option<Sector>),
    Spare,
}

impl Entry {
    /// In a slot, and right everywhere.
    pub(super) fn is_in_sync(self) -> bool {
        matches!(self, Entry::Slot(_, None))
    }
}

/// What all superblocks say alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Rows are known to be right below this. Zero is the dirty mark.
    pub(super) resync_offset: Sector,
    /// By device number, ascending.
    pub(super) devices: Vec<(u32, Entry)>,
}

impl Record {
    pub(super) fn entry(&self, dev_number: u32) -> Option<Entry> {
        let found = self.devices.iter().find(|(number, _)| *number == dev_number);
        found.map(|(_, entry)| *entry)
    }

    /// Whether this says of some rows that they are right which `old` did not: all covered writes must have been
    /// flushed before.
    pub(super) fn unmarks(&self, old: Option<&Record>) -> bool {
        let Some(old) = old else {
            return true;
        };
        let right_below = |entry: Entry| match entry {
            Entry::Slot(slot, below) => (Some(slot), below.unwrap_or(ALL_IN_SYNC)),
            Entry::Spare => (None, Sector::ZERO),
        };
        self.resync_offset > old.resync_offset
            || self.devices.iter().any(|(number, entry)| {
                let (slot, below) = right_below(*entry);
                match old.entry(*number).map(right_below) {
                    Some((old_slot, old_below)) if old_slot == slot => below > old_below,
                    _ => below > Sector::ZERO,
                }
            })
    }
}

/// What was read from the place of a device's superblock, if it is one.
pub(super) fn parse(member: &Member, block: &[u8]) -> Option<Superblock> {
    let block = block.try_into().ok()?;
    Superblock::parse(block, member.superblock.minor, member.device.sectors).ok()
}

impl Array {
    /// What superblocks are to say now.
    pub(super) fn target(&self) -> Record {
        let entry = |m: &Member| match m.standing {
            Standing::InSync(slot) => Some(Entry::Slot(slot, None)),
            Standing::Recovering { slot, progress, finished } => {
                Some(Entry::Slot(slot, (!finished).then_some(progress.recorded)))
            }
            Standing::Spare => Some(Entry::Spare),
            Standing::Candidate | Standing::Losing { .. } | Standing::Lost { .. } | Standing::Leaving => None,
        };
        let devices = self.members.iter().filter_map(|m| Some((m.superblock.dev_number, entry(m)?)));
        let mut devices: Vec<_> = devices.collect();
        devices.sort_unstable_by_key(|(number, _)| *number);
        assert!(devices.windows(2).all(|pair| pair[0].0 < pair[1].0), "two devices with one number: {devices:?}");
        assert!(devices.last().is_none_or(|(number, _)| (*number as usize) < ROLES_MAX), "no role: {devices:?}");
        let resync_offset = match self.resync {
            _ if self.mark.wants_dirty() => Sector::ZERO,
            Some(resync) => resync.recorded,
            None => ALL_IN_SYNC,
        };
        Record { resync_offset, devices }
    }

    /// The superblock of one device, with the event count of the commit under way.
    pub(super) fn superblock_of(&self, member: &Member, record: &Record) -> Vec<u8> {
        let mut own = member.superblock.clone();
        own.events = self.events;
        own.utime = Timestamp::from_seconds(self.wall);
        own.resync_offset = (record.resync_offset != ALL_IN_SYNC).then_some(record.resync_offset);
        own.roles = self.roles(record);
        own.features = own.features.minus(Features::RECOVERY_BITMAP);
        own.set_recovery(match record.entry(own.dev_number) {
            Some(Entry::Slot(_, below)) => below,
            // For when others say that it has a slot before it does.
            Some(Entry::Spare) => Some(Sector::ZERO),
            None => None,
        });
        let mut block = [0; SUPERBLOCK_SIZE];
        own.emit(&mut block);
        block.to_vec()
    }

    /// The role table: as the kernel does, numbers that nobody has say faulty.
    fn roles(&self, record: &Record) -> Vec<Role> {
        let highest = record.devices.last().map_or(0, |(number, _)| *number as usize + 1);
        let mut entries = self.head.roles.len();
        while entries < highest {
            entries += ROLES_PER_SECTOR;
        }
        let mut roles = vec![Role::Faulty; entries.min(ROLES_MAX)];
        for (number, entry) in &record.devices {
            roles[*number as usize] = match entry {
                Entry::Slot(slot, _) => Role::from(*slot),
                Entry::Spare => Role::Spare,
            };
        }
        roles
    }

    /// Whether a device's superblock, as it was read, says what `record` says.
    pub(super) fn says(&self, member: &Member, record: &Record) -> bool {
        let own = &member.superblock;
        let recovery = match record.entry(own.dev_number) {
            Some(Entry::Slot(_, below)) => below,
            Some(Entry::Spare) => Some(Sector::ZERO),
            None => own.recovery(),
        };
        let numbers = own.roles.len().max(record.devices.last().map_or(0, |(number, _)| *number as usize + 1));
        let agrees = |number: u32| match (own.role_of(number), record.entry(number)) {
            (Role::Active(found), Some(Entry::Slot(slot, _))) => found == u16::from(slot.0),
            (Role::Spare, Some(Entry::Spare)) => true,
            // mdadm calls numbers that nobody has spare, the kernel faulty.
            (Role::Spare | Role::Faulty, None) => true,
            _ => false,
        };
        own.resync_offset.unwrap_or(ALL_IN_SYNC) == record.resync_offset
            && own.recovery() == recovery
            && (0..numbers as u32).all(agrees)
    }

    /// A device number that no known device has, and until the table is full none that has been known.
    pub(super) fn free_dev_number(&self) -> u32 {
        let known = |number: &u32| self.members.iter().any(|m| m.superblock.dev_number == *number);
        let lowest = u32::from(self.geometry.members().0);
        let mut numbers = (self.dev_number_next..ROLES_MAX as u32).chain(lowest..);
        numbers.find(|number| !known(number)).expect("fewer devices are known than there are numbers")
    }

    /// Gives devices without a slot other numbers where theirs do not fit in the role table or belong to others: numbers are used
    /// again once a device is forgotten, and it may turn up later. Whether there were any.
    pub(super) fn renumber(&mut self) -> bool {
        let mut changed = false;
        for index in 0..self.members.len() {
            let number = self.members[index].superblock.dev_number;
            let mut others = self.members.iter().enumerate().filter(|(other, _)| *other != index);
            let held = others.any(|(other, m)| m.superblock.dev_number == number && (m.is_active() || other < index));
            if self.members[index].is_active() || (number as usize) < ROLES_MAX && !held {
                continue;
            }
            let free = self.free_dev_number();
            self.members[index].superblock.dev_number = free;
            self.dev_number_next = free + 1;
            changed = true;
        }
        changed
    }

    /// The superblock of a device that is new to the array, or why it does not fit.
    pub(super) fn superblock_for_new(
        &self,
        device: &Device,
        uuid: [u8; 16],
        number: u32,
    ) -> Result<Superblock, String> {
        let template = self.members.iter().find(|m| m.is_active()).map_or(&self.head, |m| &m.superblock);
        let new = NewDevice { size: device.sectors, uuid: Uuid(uuid) };
        place_on(template, number, &new).ok_or_else(|| {
            let needed = (template.data_offset.bytes().0 / SECTOR_SIZE + self.head.size.0).max(DEVICE_MIN.0);
            let name = &device.name;
            format!("{name}: has {} sectors, the array needs {needed} on each member", device.sectors)
        })
    }
}
