//! The members of the array under load: opened, checked to be empty, made into an array, and cleared of its superblocks at the end.
//!
//! Nothing is written before every member was checked. Memory members are written over once, so that all of their memory is there before
//! anything is measured.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use raid_core::geometry::Layout;
use raid_core::md::create::NewArray;
use raid_core::md::superblock::SUPERBLOCK_SIZE;
use raid_core::md::{Minor, Superblock};
use raid_core::units::{MemberCount, SECTOR_SIZE, Sector, Sectors};
use raid_engine::assembly::{Named, create_array, random_uuid, read_superblock};
use raid_engine::member::devices::Device;
use raid_engine::member::spec::MemberSpec;
use raid_engine::runtime::opener::Opener;

/// What must be zero at the start of a member that is taken without `--overwrite`.
pub(super) const LOOKED_AT: Sectors = Sectors(2048);

/// Name of the array in its superblocks.
const NAME: &str = "bench";

/// The members, and the superblocks on them.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) named: Vec<Named>,
    superblocks: Vec<Superblock>,
}

impl Members {
    /// Opens and checks the members, and makes the array.
    pub(super) fn make(
        access: &mut crate::members::Members,
        specs: &[MemberSpec],
        chunk: Sectors,
        overwrite: bool,
    ) -> anyhow::Result<Members> {
        let opener = &mut access.opener;
        let mut named = Vec::new();
        for spec in specs {
            named.push(Named { name: spec.to_string(), device: opener.open(spec, false)? });
        }
        for member in &named {
            if !overwrite {
                check_empty(opener, &member.name, &member.device)?;
            }
        }
        for member in &named {
            if let Device::Memory(_) = member.device {
                touch(opener, &member.device).with_context(|| format!("filling {}", member.name))?;
            }
        }
        let members = u8::try_from(named.len()).context("too many members")?;
        let new = NewArray {
            name: NAME,
            homehost: None,
            minor: Minor::V2,
            level: 5,
            layout: Layout::LeftSymmetric,
            chunk,
            members: MemberCount(members),
            size: None,
            // What they hold does not matter, and a resync would be measured, too.
            assume_clean: true,
            set_uuid: random_uuid(),
            now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        };
        access.settle();
        let created = create_array(&mut access.opener, &new, &named)?;
        Ok(Members { named, superblocks: created.superblocks })
    }

    /// Bytes of this process's memory that are members.
    pub(super) fn memory(&self) -> u64 {
        let memory = self.named.iter().filter(|member| matches!(member.device, Device::Memory(_)));
        memory.map(|member| member.device.sectors().bytes().0).sum()
    }

    /// Takes the superblocks away again, so that no array is found that nobody wants.
    pub(super) fn clear(&self, opener: &mut Opener) -> anyhow::Result<()> {
        for (member, superblock) in self.named.iter().zip(&self.superblocks) {
            let cleared = opener.write(&member.device, superblock.super_offset, &[0; SUPERBLOCK_SIZE]);
            let flushed = cleared.and_then(|()| opener.flush(&member.device));
            flushed.with_context(|| format!("clearing the superblock of {}", member.name))?;
        }
        Ok(())
    }
}

/// Refuses a device that may hold something.
pub(super) fn check_empty(opener: &mut Opener, name: &str, device: &Device) -> anyhow::Result<()> {
    if let Device::Memory(_) = device {
        return Ok(());
    }
    let why = match read_superblock(opener, device).with_context(|| format!("reading {name}"))? {
        Ok(superblock) => format!("is a member of the array {:?}", superblock.name()),
        Err(_) => {
            let look = Sectors(LOOKED_AT.0.min(device.sectors().0));
            let start = opener.read(device, Sector::ZERO, look).with_context(|| format!("reading {name}"))?;
            if start.iter().all(|byte| *byte == 0) {
                return Ok(());
            }
            "is not empty".into()
        }
    };
    bail!(destroys(name, &why))
}

/// Why something is left alone.
pub(super) fn destroys(name: &str, why: &str) -> String {
    format!("{name} {why}, and a bench destroys what it holds: to use it nevertheless, add --overwrite")
}

/// Writes zeroes over all of it.
fn touch(opener: &mut Opener, device: &Device) -> std::io::Result<()> {
    let zeroes = vec![0; LOOKED_AT.bytes().0 as usize];
    let mut at = Sector::ZERO;
    while at.0 < device.sectors().0 {
        let sectors = LOOKED_AT.0.min(device.sectors().0 - at.0);
        opener.write(device, at, &zeroes[..sectors as usize * SECTOR_SIZE as usize])?;
        at = Sector(at.0 + sectors);
    }
    Ok(())
}
