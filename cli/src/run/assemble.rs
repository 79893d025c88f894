//! From members' names to an assembled array: found, opened, locked, decided. Nothing is written.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use raid_core::md::assemble::Options;
use raid_core::md::superblock::Support;
use raid_core::md::{Superblock, Uuid};
use raid_engine::array::Start;
use raid_engine::assembly::{Named, assemble_array};
use raid_engine::member::aoe::Links;
use raid_engine::member::devices::Device;
use raid_engine::member::spec::MemberSpec;
use raid_engine::runtime::finding::scan;
use raid_engine::runtime::opener::OpenError;
use raid_engine::tunables::Settings;

use super::Args;
use crate::members::{Found, Members};
use crate::runtime_dir::ArrayLock;
use crate::usage::usage;

/// How long shelves may take to answer a scan.
const SCAN_PATIENCE: Duration = Duration::from_secs(2);

/// An array that may be started.
#[derive(Debug)]
pub(super) struct Assembled {
    pub(super) start: Start,
    /// In the order of the handles in `start`.
    pub(super) devices: Vec<Named>,
    pub(super) uuid: Uuid,
    /// Held as long as the array runs.
    pub(super) lock: ArrayLock,
}

/// See the module's text.
pub(super) fn assemble(
    args: &Args,
    settings: &Settings,
    mut members: Members,
    links: Option<&Arc<dyn Links>>,
) -> anyhow::Result<Assembled> {
    let mut devices = match links {
        Some(links) if args.scan => find(args, &mut members, links)?,
        _ => open(args, &mut members)?,
    };
    trust(args, &mut devices)?;
    let uuid = match args.uuid {
        Some(uuid) => Some(uuid),
        None => superblocks(&mut members, &devices, |_, _| {}).first().map(|(_, superblock)| superblock.set_uuid),
    };
    let lock = match uuid {
        None => None,
        Some(uuid) => {
            let lock = ArrayLock::take(uuid)?;
            Some(lock.with_context(|| format!("array {uuid} runs on this host already: stop that first"))?)
        }
    };
    let support = Support::default();
    let options = Options { uuid, run: args.run, force: args.force, support };
    let tunables = settings.array.clone();
    let start = assemble_array(&mut members.opener, &devices, &options, args.readonly, tunables)?;
    let uuid = start.superblock.set_uuid;
    let lock = lock.context("an array was assembled of devices without superblocks")?;
    Ok(Assembled { start, devices, uuid, lock })
}

/// Opens the members that were named. One that does not answer is left to assembly, which knows whether it is needed.
fn open(args: &Args, members: &mut Members) -> anyhow::Result<Vec<Named>> {
    let mut devices = Vec::new();
    let mut silent = Vec::new();
    for member in &args.members {
        match members.opener.open(member, args.readonly) {
            Ok(device) => devices.push(Named { name: member.to_string(), device }),
            Err(error @ OpenError::NotFound { .. }) => {
                tracing::warn!("{error}");
                silent.push(error.to_string());
            }
            Err(error) => return Err(error.into()),
        }
    }
    if devices.is_empty() {
        bail!("no member can be opened: {}", silent.join("; "));
    }
    Ok(devices)
}

/// Finds the array's members on the network.
fn find(args: &Args, members: &mut Members, links: &Arc<dyn Links>) -> anyhow::Result<Vec<Named>> {
    let mut devices = Vec::new();
    for address in scan(links, SCAN_PATIENCE).context("looking for shelves")? {
        let member = MemberSpec::Aoe(address);
        match members.opener.open(&member, args.readonly) {
            Ok(device) => devices.push(Named { name: member.to_string(), device }),
            Err(error) => tracing::warn!("{error}"),
        }
    }
    let mut found = superblocks(members, &devices, |named, error| tracing::warn!("{}: {error}", named.name));
    found.retain(|(_, superblock)| match args.uuid {
        Some(uuid) => superblock.set_uuid == uuid,
        None => is_named(superblock, &args.name),
    });
    let Some((_, first)) = found.first() else {
        let what = args.uuid.map_or_else(|| format!("named {}", args.name), |uuid| format!("with UUID {uuid}"));
        bail!("no member of an array {what} among the {} AoE devices on {links}", devices.len());
    };
    if let Some((_, other)) = found.iter().find(|(_, superblock)| superblock.set_uuid != first.set_uuid) {
        bail!(
            "there are several arrays named {}: {} ({}) and {} ({}); say which one with --uuid",
            args.name,
            first.name(),
            first.set_uuid,
            other.name(),
            other.set_uuid
        );
    }
    Ok(found.into_iter().map(|(index, _)| devices[index].clone()).collect())
}

/// The superblocks on devices, each with its device's index. What cannot be read is handed to `unreadable`: assembly tells of it if it is used.
fn superblocks(
    members: &mut Members,
    devices: &[Named],
    unreadable: impl Fn(&Named, &std::io::Error),
) -> Vec<(usize, Superblock)> {
    let mut found = Vec::new();
    for (index, named) in devices.iter().enumerate() {
        match members.look(&named.device) {
            Ok(Found::Superblock(superblock)) => found.push((index, *superblock)),
            Ok(Found::None | Found::Damaged(_)) => {}
            Err(error) => unreadable(named, &error),
        }
    }
    found
}

/// Whether an array is called so, with or without its host's name before it.
fn is_named(superblock: &Superblock, name: &str) -> bool {
    let full = superblock.name();
    full == name || full.split_once(':').is_some_and(|(_, short)| short == name)
}

/// Applies `--durable`.
fn trust(args: &Args, devices: &mut [Named]) -> anyhow::Result<()> {
    for member in &args.durable {
        let name = member.to_string();
        let Some(named) = devices.iter_mut().find(|named| named.name == name) else {
            return usage(format!("--durable {name}: it is not among the members that were found"));
        };
        // The flushes of files and block devices are relied on anyway.
        if let Device::Aoe(disk) = &named.device {
            named.device = Device::Aoe(Arc::new(disk.trusted()));
        }
    }
    Ok(())
}
