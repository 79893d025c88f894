//! From the superblocks found on some devices to an array, or to the reason why it must not start.
//!
//! Pure decision, called by the engine at start-up and by `examine`-like commands: [`assemble`] takes what was read from each device and says which
//! device has which slot, what is left out and why, and what has to be done (resync, recovery). It writes nothing.
//!
//! Rules, md's unless said otherwise:
//! - The *freshest* superblock has the highest event count among devices that hold a slot by their own word; a spare never counts.
//! - Roles come from the freshest's table alone. A device whose count lags by one is taken (a crash between two superblock writes), by the
//!   role the freshest gives it; one that lags by more is stale. A device's own word never makes it a member that others have recorded as failed.
//! - Two devices that each record the other as failed have been run apart: both may hold writes that the other lacks. That is refused, forced or not:
//!   only the user can say which half to keep, by naming its devices alone. (md looks at event counts only, and mixes the halves when
//!   they are equal.)
//! - A member that the freshest counts on and that is not there makes the array start only with `run`: its writes would be missed by it.
//! - Dirty and degraded is refused, as a row being written at the crash may have lost its missing block. `force` starts it, and takes stale members
//!   where too few fresh ones are there.

use core::fmt::Display;

use super::superblock::{Support, Unsupported};
use super::{Features, Role, Superblock, SuperblockError, Uuid};
use crate::geometry::Geometry;
use crate::units::{MemberIndex, MemberSet, Sector, Sectors};

#[cfg(test)]
mod tests;

/// A device and what was read from it. `D` names the device towards the caller.
#[derive(Clone, Debug)]
pub struct Candidate<D> {
    /// The device.
    pub device: D,
    /// Its size.
    pub size: Sectors,
    /// Its superblock, or why there is none.
    pub superblock: Result<Superblock, SuperblockError>,
}

/// What the caller wants and can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The array to assemble; devices of others are left out. Without it all devices must be of one array.
    pub uuid: Option<Uuid>,
    /// Start though members are missing that were there last time.
    pub run: bool,
    /// Start dirty and degraded, and take stale members where too few are fresh.
    pub force: bool,
    /// Optional features that the caller handles.
    pub support: Support,
}

/// A member in its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat<D> {
    /// The device.
    pub device: D,
    /// Its superblock, as found.
    pub superblock: Superblock,
    /// How far it is recovered, in member sectors; `None` when it is in sync.
    pub recovered: Option<Sector>,
    /// Whether it is stale and was taken by force.
    pub forced: bool,
}

/// Why a device has no part in the array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeftOut {
    /// No valid superblock.
    #[error("{0}")]
    Superblock(SuperblockError),
    /// It belongs to another array.
    #[error("it belongs to array {0}")]
    OtherArray(Uuid),
    /// It missed changes of the array.
    #[error("it is out of date: event count {events}, the array's is {freshest}")]
    Stale {
        /// Its event count.
        events: u64,
        /// The freshest count.
        freshest: u64,
    },
    /// The freshest superblock records it as failed or removed.
    #[error("the array has recorded it as failed or removed")]
    Failed,
    /// It records the freshest device as failed, with an older event count.
    #[error("it records the freshest member as failed, yet is older")]
    DisagreesWithFreshest,
    /// It is a replacement for a member that is there: it holds that member's slot once it is complete.
    #[error("it is an unfinished replacement for the member in slot {0}")]
    Replacement(MemberIndex),
}

/// An array that can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembly<D> {
    /// The freshest superblock: the array's part of it holds for all.
    pub freshest: Superblock,
    /// The shape.
    pub geometry: Geometry,
    /// The member in each slot.
    pub slots: Vec<Option<Seat<D>>>,
    /// Spares.
    pub spares: Vec<(D, Superblock)>,
    /// Devices without a part.
    pub left_out: Vec<(D, LeftOut)>,
    /// From where parity may not match the data; `None` when the array is clean. With too few members in sync there is nothing to resync
    /// with: parity then defines the missing data.
    pub resync_from: Option<Sector>,
}

impl<D> Assembly<D> {
    /// Members in sync.
    pub fn in_sync(&self) -> MemberSet {
        self.members_where(|seat| seat.recovered.is_none())
    }

    /// Members that are there and not in sync: recovery has to go on.
    pub fn recovering(&self) -> MemberSet {
        self.members_where(|seat| seat.recovered.is_some())
    }

    /// Slots without a member.
    pub fn missing(&self) -> MemberSet {
        self.geometry.all_members().minus(self.members_where(|_| true))
    }

    /// How many members are not in sync or missing: md's `degraded`.
    pub fn degraded(&self) -> usize {
        self.slots.len() - self.in_sync().len()
    }

    /// Whether the array was not shut down cleanly.
    pub fn dirty(&self) -> bool {
        self.resync_from.is_some()
    }

    fn members_where(&self, wanted: impl Fn(&Seat<D>) -> bool) -> MemberSet {
        let slots = self.slots.iter().zip(self.geometry.members().indices());
        slots.filter(|(seat, _)| seat.as_ref().is_some_and(&wanted)).map(|(_, slot)| slot).collect()
    }
}

/// Why the array must not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal<D: Display> {
    /// No device has a valid superblock with a slot.
    #[error("no device holds a member of an array{}: check the device names", reasons(.left_out))]
    NoMembers {
        /// Why each device does not count.
        left_out: Vec<(D, LeftOut)>,
    },
    /// Devices of several arrays.
    #[error(
        "{first} belongs to array {first_uuid}, {second} to array {second_uuid}: give the devices of one array, or its UUID"
    )]
    SeveralArrays {
        /// A device.
        first: D,
        /// Its array.
        first_uuid: Uuid,
        /// A device of another array.
        second: D,
        /// That array.
        second_uuid: Uuid,
    },
    /// One device twice, or a copy of it.
    #[error(
        "{first} and {second} have the same device UUID {uuid}: they are one device under two names, or one is a copy; give only one"
    )]
    Duplicate {
        /// A device.
        first: D,
        /// The same again.
        second: D,
        /// Their UUID.
        uuid: Uuid,
    },
    /// Two devices for one slot.
    #[error("{first} and {second} both hold slot {slot}: give only one of them")]
    SlotTwice {
        /// A device.
        first: D,
        /// Another.
        second: D,
        /// The slot.
        slot: MemberIndex,
    },
    /// A superblock needs what is not supported.
    #[error("{device}: {what}")]
    Unsupported {
        /// The device.
        device: D,
        /// What it is.
        what: Unsupported,
    },
    /// Fresh superblocks of one array describe it differently.
    #[error(
        "{device} and {freshest} disagree about the array's {field}: their superblocks are not of one array's history; leave one of them out"
    )]
    Disagree {
        /// A device.
        device: D,
        /// The freshest.
        freshest: D,
        /// The field's name.
        field: &'static str,
    },
    /// Two halves of the array were run apart.
    #[error(
        "{first} and {second} each record the other as failed: the array was run in two halves that may both hold new data; give only the devices of the half to keep"
    )]
    RunApart {
        /// A device of one half.
        first: D,
        /// A device of the other.
        second: D,
    },
    /// Not enough members.
    #[error("{in_sync} of {members} members are there and up to date, {needed} are needed (slots missing: {missing}){}: attach the others{}",
        reasons(.left_out), if *.stale { "; --force takes members that are out of date, their data may be old" } else { "" })]
    TooFew {
        /// Members in sync.
        in_sync: usize,
        /// Members of the array.
        members: usize,
        /// Members needed.
        needed: usize,
        /// Slots without a member in sync.
        missing: MemberSet,
        /// Why devices were left out.
        left_out: Vec<(D, LeftOut)>,
        /// Whether stale members are among these.
        stale: bool,
    },
    /// Members are missing that were there last time.
    #[error("slots {missing} are missing that were there last time{}: attach them, or use --run to start without them", reasons(.left_out))]
    Missing {
        /// The slots.
        missing: MemberSet,
        /// Why devices were left out.
        left_out: Vec<(D, LeftOut)>,
    },
    /// Dirty and degraded.
    #[error(
        "the array is dirty and slots {missing} are missing or not recovered: data there that was not being written may be lost; attach them, or use --force to start regardless and then check the data"
    )]
    DirtyDegraded {
        /// The slots.
        missing: MemberSet,
    },
}

/// The reasons for devices being left out, as a clause.
fn reasons<D: Display>(left_out: &[(D, LeftOut)]) -> String {
    let reasons: Vec<String> = left_out.iter().map(|(device, why)| format!("{device}: {why}")).collect();
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
}

/// A device with a valid superblock of the array.
struct Valid<D> {
    device: D,
    superblock: Superblock,
}

impl<D> Valid<D> {
    /// The slot it holds by its own word.
    fn own_slot(&self) -> Option<u16> {
        match self.superblock.role() {
            Role::Active(slot) => Some(slot),
            _ => None,
        }
    }
}

/// Decides; see the module's text for the rules.
pub fn assemble<D: Clone + Display>(
    candidates: Vec<Candidate<D>>,
    options: &Options,
) -> Result<Assembly<D>, Refusal<D>> {
    let (valid, mut left_out) = sift(candidates, options.uuid)?;
    let members = valid.iter().filter(|device| device.own_slot().is_some());
    let Some(freshest) =
        members.reduce(|best, next| if next.superblock.events > best.superblock.events { next } else { best })
    else {
        return Err(Refusal::NoMembers { left_out });
    };
    let name = freshest.device.clone();
    let freshest = freshest.superblock.clone();
    let unsupported = |device: &D, what| Refusal::Unsupported { device: device.clone(), what };
    if let Some(what) = freshest.unsupported(options.support) {
        return Err(unsupported(&name, what));
    }
    let geometry = freshest.geometry().and_then(Result::ok).expect("an unsupported geometry was refused");
    refuse_run_apart(&valid, &name, &freshest)?;

    let mut places = Places { slots: vec![None; geometry.members().len()], spares: Vec::new(), stale: Vec::new() };
    for device in valid {
        match judge(&device, &name, &freshest)? {
            Verdict::Out(why) if matches!(why, LeftOut::Replacement(_)) => left_out.push((device.device, why)),
            Verdict::Out(why) => places.stale.push((device, why)),
            Verdict::Spare => places.spares.push((device.device, device.superblock)),
            Verdict::Member(slot) => {
                if let Some(what) = device.superblock.unsupported(options.support) {
                    return Err(unsupported(&device.device, what));
                }
                places.seat(device, slot, false)?;
            }
        }
    }
    let needed = geometry.data_count();
    if options.force {
        places.take_stale(needed, &freshest, options.support);
    }
    let Places { slots, spares, stale } = places;
    left_out.extend(stale.into_iter().map(|(device, why)| (device.device, why)));
    let resync_from = resync_from(&slots, &freshest);
    check(Assembly { freshest, geometry, slots, spares, left_out, resync_from }, needed, options)
}

type Sifted<D> = (Vec<Valid<D>>, Vec<(D, LeftOut)>);

/// Takes out what has no valid superblock of the one array.
fn sift<D: Clone + Display>(candidates: Vec<Candidate<D>>, uuid: Option<Uuid>) -> Result<Sifted<D>, Refusal<D>> {
    let mut valid: Vec<Valid<D>> = Vec::new();
    let mut left_out = Vec::new();
    for Candidate { device, size, superblock } in candidates {
        let superblock = match superblock {
            Ok(superblock) => superblock,
            Err(error) => {
                left_out.push((device, LeftOut::Superblock(error)));
                continue;
            }
        };
        let set_uuid = superblock.set_uuid;
        if uuid.is_some_and(|uuid| uuid != set_uuid) {
            left_out.push((device, LeftOut::OtherArray(set_uuid)));
            continue;
        }
        if let Some(first) = valid.iter().find(|other| other.superblock.set_uuid != set_uuid) {
            let (first, first_uuid) = (first.device.clone(), first.superblock.set_uuid);
            return Err(Refusal::SeveralArrays { first, first_uuid, second: device, second_uuid: set_uuid });
        }
        let twin = valid.iter().find(|other| other.superblock.device_uuid == superblock.device_uuid);
        if let Some(first) = twin {
            let (first, uuid) = (first.device.clone(), superblock.device_uuid);
            return Err(Refusal::Duplicate { first, second: device, uuid });
        }
        match superblock.check_device(size) {
            Ok(()) => valid.push(Valid { device, superblock }),
            Err(error) => left_out.push((device, LeftOut::Superblock(error))),
        }
    }
    Ok((valid, left_out))
}

/// Whether `table` records the device of `member` as holding no slot, though it says itself that it does.
///
/// A device that joined after the table was written is not excluded by it. Tables have the same entry for a device that failed and for one not
/// known yet; one not known yet has a higher number than any in use, as numbers are not given twice, and the table has another device in its slot.
fn excludes(table: &Superblock, member: &Superblock) -> bool {
    let (number, role) = (member.dev_number, member.role());
    if matches!(table.role_of(number), Role::Active(_)) {
        return false;
    }
    let mut active = (0..).zip(&table.roles).filter(|(_, role)| matches!(role, Role::Active(_)));
    let taken = active.clone().any(|(_, other)| *other == role);
    !(taken && active.all(|(other, _)| other < number))
}

/// Refuses devices that hold slots by their own word and exclude each other: each of the two went on without the other. With equal
/// event counts one that excludes the other is enough, as then neither is the older.
fn refuse_run_apart<D: Clone + Display>(valid: &[Valid<D>], name: &D, freshest: &Superblock) -> Result<(), Refusal<D>> {
    for device in valid.iter().filter(|device| device.own_slot().is_some()) {
        let superblock = &device.superblock;
        let same = superblock.events == freshest.events;
        let (out, back) = (excludes(freshest, superblock), excludes(superblock, freshest));
        if out && back || same && (out || back) {
            return Err(Refusal::RunApart { first: name.clone(), second: device.device.clone() });
        }
    }
    Ok(())
}

enum Verdict {
    Member(MemberIndex),
    Spare,
    Out(LeftOut),
}

/// What a device is to the array.
fn judge<D: Clone + Display>(device: &Valid<D>, name: &D, freshest: &Superblock) -> Result<Verdict, Refusal<D>> {
    let superblock = &device.superblock;
    let stale = LeftOut::Stale { events: superblock.events, freshest: freshest.events };
    let lags = superblock.events.checked_add(1).is_some_and(|next| next < freshest.events);
    if device.own_slot().is_none() {
        return Ok(match (superblock.role(), disagreement(superblock, freshest)) {
            (Role::Spare, None) => Verdict::Spare,
            // A spare from before a reshape, say: it holds no data, so it is no reason to refuse the array.
            (Role::Spare, Some(_)) => Verdict::Out(stale),
            _ => Verdict::Out(LeftOut::Failed),
        });
    }
    if lags {
        return Ok(Verdict::Out(stale));
    }
    if let Some(field) = disagreement(superblock, freshest) {
        return Err(Refusal::Disagree { device: device.device.clone(), freshest: name.clone(), field });
    }
    let slot = match freshest.role_of(superblock.dev_number) {
        Role::Active(slot) if u32::from(slot) < freshest.raid_disks => MemberIndex(slot as u8),
        _ => return Ok(Verdict::Out(LeftOut::Failed)),
    };
    if excludes(superblock, freshest) {
        return Ok(Verdict::Out(LeftOut::DisagreesWithFreshest));
    }
    if superblock.features.intersects(Features::REPLACEMENT) {
        return Ok(Verdict::Out(LeftOut::Replacement(slot)));
    }
    Ok(Verdict::Member(slot))
}

/// The first field in which two superblocks describe different arrays.
fn disagreement(one: &Superblock, other: &Superblock) -> Option<&'static str> {
    let fields = [
        ("metadata version", one.minor == other.minor),
        ("level", one.level == other.level),
        ("layout", one.layout == other.layout),
        ("chunk size", one.chunk == other.chunk),
        ("component size", one.size == other.size),
        ("number of members", one.raid_disks == other.raid_disks),
        ("creation time", one.ctime == other.ctime),
    ];
    fields.into_iter().find_map(|(name, same)| (!same).then_some(name))
}

/// Devices as they find their places.
struct Places<D> {
    slots: Vec<Option<Seat<D>>>,
    spares: Vec<(D, Superblock)>,
    stale: Vec<(Valid<D>, LeftOut)>,
}

impl<D: Clone + Display> Places<D> {
    fn seat(&mut self, device: Valid<D>, slot: MemberIndex, forced: bool) -> Result<(), Refusal<D>> {
        let place = &mut self.slots[slot.index()];
        if let Some(first) = place {
            return Err(Refusal::SlotTwice { first: first.device.clone(), second: device.device, slot });
        }
        let Valid { device, superblock } = device;
        let recovered = superblock.recovery();
        *place = Some(Seat { device, superblock, recovered, forced });
        Ok(())
    }

    fn in_sync(&self) -> usize {
        self.slots.iter().flatten().filter(|seat| seat.recovered.is_none()).count()
    }

    /// Seats stale members, the least stale first, until `needed` are in sync. Never one that was being recovered: it has holes.
    fn take_stale(&mut self, needed: usize, freshest: &Superblock, support: Support) {
        self.stale.sort_by_key(|(device, _)| core::cmp::Reverse(device.superblock.events));
        let (mut rest, missing) = (Vec::new(), needed.saturating_sub(self.in_sync()));
        let mut taken = 0;
        for (device, why) in core::mem::take(&mut self.stale) {
            let slot = device.own_slot().map(usize::from);
            let vacant = slot.is_some_and(|slot| self.slots.get(slot).is_some_and(Option::is_none));
            let superblock = &device.superblock;
            let usable = superblock.recovery().is_none()
                && disagreement(superblock, freshest).is_none()
                && superblock.unsupported(support).is_none();
            match slot {
                Some(slot) if taken < missing && vacant && usable => {
                    let Valid { device, superblock } = device;
                    self.slots[slot] = Some(Seat { device, superblock, recovered: None, forced: true });
                    taken += 1;
                }
                _ => rest.push((device, why)),
            }
        }
        self.stale = rest;
    }
}

/// From where to resync: the lowest mark of the members that are as fresh as the freshest. One that lags was marked earlier.
fn resync_from<D>(slots: &[Option<Seat<D>>], freshest: &Superblock) -> Option<Sector> {
    let fresh = slots.iter().flatten().filter(|seat| seat.superblock.events == freshest.events);
    fresh.filter_map(|seat| seat.superblock.resync_offset).min()
}

/// Refuses an array that must not start.
fn check<D: Display>(assembly: Assembly<D>, needed: usize, options: &Options) -> Result<Assembly<D>, Refusal<D>> {
    let in_sync = assembly.in_sync();
    let missing = assembly.geometry.all_members().minus(in_sync);
    if in_sync.len() < needed {
        return Err(Refusal::TooFew {
            in_sync: in_sync.len(),
            members: assembly.slots.len(),
            needed,
            missing,
            stale: assembly.left_out.iter().any(|(_, why)| matches!(why, LeftOut::Stale { .. } | LeftOut::Failed)),
            left_out: assembly.left_out,
        });
    }
    let expected: MemberSet = assembly
        .freshest
        .roles
        .iter()
        .filter_map(|role| match role {
            Role::Active(slot) if u32::from(*slot) < assembly.freshest.raid_disks => Some(MemberIndex(*slot as u8)),
            _ => None,
        })
        .collect();
    let absent = expected.intersection(assembly.missing());
    if !absent.is_empty() && !options.run && !options.force {
        return Err(Refusal::Missing { missing: absent, left_out: assembly.left_out });
    }
    if assembly.dirty() && !missing.is_empty() && !options.force {
        return Err(Refusal::DirtyDegraded { missing });
    }
    Ok(assembly)
}
