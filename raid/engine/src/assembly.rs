//! Making and assembling arrays: superblocks written to and read from devices, and what the decision in `raid_core::md` says
//! turned into a [`Start`].
//!
//! Called by the commands, and by nothing on the data path. Reads everything before it writes anything, so a refusal changes nothing.

use std::fmt;
use std::io;

use raid_core::md::assemble::{self, Candidate, LeftOut, Options, Refusal};
use raid_core::md::create::{CreateError, Created, NewArray, NewDevice, create};
use raid_core::md::superblock::{SUPERBLOCK_SIZE, latest};
use raid_core::md::{Minor, Role, Superblock, SuperblockError, Uuid};
use raid_core::units::{MemberIndex, Sector, Sectors};

use crate::array::{self, Start, StartMember, StartRole, Tunables};
use crate::member::devices::Device;
use crate::message::MemberHandle;
use crate::runtime::opener::Opener;

/// An opened member and what the user calls it.
#[derive(Clone, Debug)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// The device.
    pub device: Device,
}

/// Why an array cannot be made or assembled.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// The description makes no array.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The members make no array that may start.
    #[error(transparent)]
    Refused(#[from] Refusal<Label>),
    /// A member cannot be read or written.
    #[error("{member}: {source}")]
    Io {
        /// Its name.
        member: String,
        /// Why.
        source: io::Error,
    },
}

/// A device in the decision: which of those given, and its name for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    index: usize,
    name: String,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The newest superblock on a device, of whichever minor version.
pub fn read_superblock(opener: &mut Opener, device: &Device) -> io::Result<Result<Superblock, SuperblockError>> {
    let size = device.sectors();
    let mut first_error = None;
    let mut found = Vec::new();
    for minor in [Minor::V2, Minor::V1, Minor::V0] {
        let Some(sector) = minor.superblock_sector(size) else {
            return Ok(Err(SuperblockError::DeviceTooSmall(size)));
        };
        let data = opener.read(device, sector, Sectors((SUPERBLOCK_SIZE / 512) as u64))?;
        let block = <&[u8; SUPERBLOCK_SIZE]>::try_from(&data[..]).expect("read as long as a superblock");
        match Superblock::parse(block, minor, size) {
            Ok(superblock) => found.push(superblock),
            // A damaged superblock tells more than no superblock at another place.
            Err(SuperblockError::Magic(magic)) => {
                first_error.get_or_insert(SuperblockError::Magic(magic));
            }
            Err(error) => first_error = Some(error),
        }
    }
    Ok(latest(found).ok_or_else(|| first_error.expect("no superblock was found for a reason")))
}

/// Writes the superblocks of a new array to its members, and makes them durable.
pub fn create_array(opener: &mut Opener, new: &NewArray<'_>, members: &[Named]) -> Result<Created, AssemblyError> {
    let devices: Vec<NewDevice> =
        members.iter().map(|m| NewDevice { size: m.device.sectors(), uuid: random_uuid() }).collect();
    let created = create(new, &devices)?;
    for (member, superblock) in members.iter().zip(&created.superblocks) {
        let io = |source| AssemblyError::Io { member: member.name.clone(), source };
        erase_others(opener, &member.device, superblock.minor).map_err(io)?;
        write_superblock(opener, &member.device, superblock).map_err(io)?;
    }
    for member in members {
        let io = |source| AssemblyError::Io { member: member.name.clone(), source };
        opener.flush(&member.device).map_err(io)?;
    }
    Ok(created)
}

/// Superblocks at the places of other minor versions would be found beside the new one: they go first.
fn erase_others(opener: &mut Opener, device: &Device, keep: Minor) -> io::Result<()> {
    for minor in [Minor::V2, Minor::V1, Minor::V0] {
        let Some(sector) = minor.superblock_sector(device.sectors()).filter(|_| minor != keep) else { continue };
        let data = opener.read(device, sector, Sectors((SUPERBLOCK_SIZE / 512) as u64))?;
        let block = <&[u8; SUPERBLOCK_SIZE]>::try_from(&data[..]).expect("read as long as a superblock");
        if Superblock::parse(block, minor, device.sectors()).is_ok() {
            opener.write(device, sector, &[0; SUPERBLOCK_SIZE])?;
        }
    }
    Ok(())
}

fn write_superblock(opener: &mut Opener, device: &Device, superblock: &Superblock) -> io::Result<()> {
    let mut block = [0; SUPERBLOCK_SIZE];
    superblock.emit(&mut block);
    opener.write(device, superblock.super_offset, &block)
}

/// Reads the members' superblocks and decides; the answer says what to start, with device `i` under handle `i`.
pub fn assemble_array(
    opener: &mut Opener,
    members: &[Named],
    options: &Options,
    read_only: bool,
    tunables: Tunables,
) -> Result<Start, AssemblyError> {
    let mut found = Vec::new();
    for (index, member) in members.iter().enumerate() {
        let io = |source| AssemblyError::Io { member: member.name.clone(), source };
        let superblock = read_superblock(opener, &member.device).map_err(io)?;
        let (handle, name) = (MemberHandle(index as u16), member.name.clone());
        let (sectors, volatile, boot) = (member.device.sectors(), member.device.volatile(), member.device.boot());
        found.push((array::Device { handle, name, sectors, volatile, boot }, superblock));
    }
    Ok(decide(&found, options, read_only, tunables)?)
}

/// Decides from what was read from each device.
pub fn decide(
    found: &[(array::Device, Result<Superblock, SuperblockError>)],
    options: &Options,
    read_only: bool,
    tunables: Tunables,
) -> Result<Start, Refusal<Label>> {
    let candidate = |(index, (device, superblock)): (usize, &(array::Device, Result<Superblock, SuperblockError>))| {
        let label = Label { index, name: device.name.clone() };
        Candidate { device: label, size: device.sectors, superblock: superblock.clone() }
    };
    let assembly = assemble::assemble(found.iter().enumerate().map(candidate).collect(), options)?;
    for (label, why) in &assembly.left_out {
        tracing::warn!("{label} is left out: {why}");
    }
    let open = |label: &Label, role| {
        let (device, superblock) = found[label.index].clone();
        let superblock = superblock.expect("assembly gives a part only to devices with a superblock");
        StartMember { device, superblock, role }
    };
    let mut started = Vec::new();
    let mut forced = false;
    for (slot, seat) in assembly.geometry.members().indices().zip(&assembly.slots) {
        let Some(seat) = seat else { continue };
        forced |= seat.forced;
        let role = seat.recovered.map_or(StartRole::InSync(slot), |at| StartRole::Recovering(slot, at));
        started.push(open(&seat.device, role));
    }
    started.extend(assembly.spares.iter().map(|(label, _)| open(label, StartRole::Spare)));
    for (label, why) in &assembly.left_out {
        // What missed changes of the array returns by itself.
        if matches!(why, LeftOut::Stale { .. } | LeftOut::Failed) {
            let role = found[label.index].1.as_ref().map(Superblock::role);
            let slot = match role {
                Ok(Role::Active(slot)) => Some(MemberIndex(slot as u8)),
                _ => None,
            };
            started.push(open(label, StartRole::Stale(slot)));
        }
    }
    let mut superblock = assembly.freshest;
    // A member that was taken by force though it missed writes makes no row trustworthy.
    superblock.resync_offset = if forced { Some(Sector::ZERO) } else { assembly.resync_from };
    Ok(Start { geometry: assembly.geometry, superblock, members: started, workers: 1, read_only, tunables })
}

/// A random UUID.
pub fn random_uuid() -> Uuid {
    Uuid(uuid::Uuid::new_v4().into_bytes())
}
