//! `examine`: the md superblocks of members, in the words and the layout of `mdadm --examine`. Writes nothing.

use std::process::ExitCode;

use anyhow::Context;
use raid_core::md::text::{self, Field};
use raid_core::md::{Features, Superblock};
use raid_core::units::Sectors;
use raid_engine::member::spec::MemberSpec;
use serde::Serialize;

use super::exit;
use crate::detail::zone_at;
use crate::errors::one_line;
use crate::interfaces::InterfaceArgs;
use crate::members::{Found, Members, parse_member, slab};
use crate::output::{complain, print, print_json};

/// Show the md superblocks of members, as mdadm --examine does
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid examine /dev/sdb /dev/sdc
  etherraid examine -i eth1 e9.0 e9.1 e9.2
  etherraid examine --json disk0.img

The exit status is 1 when a member cannot be read or has no valid superblock; the others are shown all the same.")]
pub(crate) struct Args {
    #[command(flatten)]
    interfaces: InterfaceArgs,

    /// e<shelf>.<slot>, or the path of a file or block device
    #[arg(value_name = "MEMBER", value_parser = parse_as_given, required = true)]
    members: Vec<MemberSpec>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A member under the name that was given: mdadm does not make paths absolute.
fn parse_as_given(text: &str) -> Result<MemberSpec, String> {
    parse_member(text)?;
    text.parse().map_err(|error: raid_engine::member::spec::SpecError| error.to_string())
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let links = args.interfaces.links(&aoe_proto::initiator::Tunables::default(), 1);
    let mut members = Members::new(&slab()?, links)?;
    let mut rows = Vec::new();
    let mut all = true;
    for member in &args.members {
        match examine(&mut members, member) {
            Ok((superblock, size)) if args.json => rows.push(Row::new(member, &superblock, size)),
            Ok((superblock, size)) => print(&listing(&member.to_string(), &superblock, size))?,
            Err(error) => {
                all = false;
                complain(one_line(error.as_ref()));
            }
        }
    }
    if args.json {
        print_json(&rows)?;
    }
    Ok(exit(all))
}

fn examine(members: &mut Members, member: &MemberSpec) -> anyhow::Result<(Box<Superblock>, Sectors)> {
    let device = members.opener.open(member, true)?;
    match members.look(&device).with_context(|| member.to_string())? {
        Found::Superblock(superblock) => Ok((superblock, device.sectors())),
        Found::None => anyhow::bail!("{member}: no md superblock detected: is it a member of an array?"),
        Found::Damaged(error) => {
            Err(anyhow::Error::new(error).context(format!("{member}: its md superblock cannot be used")))
        }
    }
}

/// Fields that mdadm puts a blank line after, or before.
const BLANK_AFTER: [&str; 2] = ["Raid Devices", "Device UUID"];
const BLANK_BEFORE: [&str; 2] = ["Layout", "Device Role"];

/// A member's superblock as mdadm lays it out.
fn listing(name: &str, superblock: &Superblock, size: Sectors) -> String {
    let mut text = format!("{name}:\n");
    let created = superblock.ctime.seconds();
    for Field { name, value } in text::examine(superblock, size, zone_at(superblock.utime.seconds())) {
        let value = match name {
            "Name" => local(&value),
            // Summer time may have begun or ended since.
            "Creation Time" => text::time(created, zone_at(created)),
            _ => value,
        };
        let blank_before = BLANK_BEFORE.contains(&name) || name == "Chunk Size" && superblock.level != 5;
        if blank_before {
            text.push('\n');
        }
        // mdadm's last two lines are set one column to the left.
        let width = if matches!(name, "Device Role" | "Array State") { 14 } else { 15 };
        text.push_str(&format!("{name:>width$} : {value}\n"));
        if BLANK_AFTER.contains(&name) {
            text.push('\n');
        }
    }
    text
}

/// A name with the remark that mdadm makes of this host's arrays.
fn local(name: &str) -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    match name.split_once(':') {
        Some((of, _)) if of == host => format!("{name}  (local to host {host})"),
        _ => name.to_owned(),
    }
}

/// The same for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    member: String,
    version: String,
    feature_map: u32,
    array_uuid: String,
    name: String,
    creation_time: u64,
    level: i32,
    raid_devices: u32,
    avail_dev_size_bytes: u64,
    used_dev_size_bytes: u64,
    data_offset_sectors: u64,
    super_offset_sectors: u64,
    recovery_offset_sectors: Option<u64>,
    unused_before_sectors: u64,
    unused_after_sectors: i128,
    state: &'static str,
    device_uuid: String,
    consistency_policy: &'static str,
    update_time: u64,
    bad_block_log_entries: u32,
    bad_blocks: bool,
    checksum: String,
    events: u64,
    layout: Option<String>,
    chunk_bytes: u64,
    device_role: String,
    array_state: String,
}

impl Row {
    fn new(member: &MemberSpec, sb: &Superblock, size: Sectors) -> Row {
        let (unused_before_sectors, unused_after_sectors) = text::unused_space(sb, size);
        Row {
            member: member.to_string(),
            version: sb.minor.to_string(),
            feature_map: sb.features.0,
            array_uuid: sb.set_uuid.to_string(),
            name: sb.name(),
            creation_time: sb.ctime.seconds(),
            level: sb.level,
            raid_devices: sb.raid_disks,
            avail_dev_size_bytes: sb.data_size.bytes().0,
            used_dev_size_bytes: sb.size.bytes().0,
            data_offset_sectors: sb.data_offset.0,
            super_offset_sectors: sb.super_offset.0,
            recovery_offset_sectors: sb.recovery().map(|at| at.0),
            unused_before_sectors,
            unused_after_sectors,
            state: if sb.resync_offset.is_some() { "active" } else { "clean" },
            device_uuid: sb.device_uuid.to_string(),
            consistency_policy: text::consistency_policy(sb),
            update_time: sb.utime.seconds(),
            bad_block_log_entries: u32::from(sb.bblog_size) * 64,
            bad_blocks: sb.features.intersects(Features::BAD_BLOCKS),
            checksum: format!("{:x}", sb.checksum()),
            events: sb.events,
            layout: sb.parity_layout().filter(|_| sb.level == 5).map(|layout| layout.to_string()),
            chunk_bytes: sb.chunk.bytes().0,
            device_role: text::device_role(sb),
            array_state: text::array_state(sb),
        }
    }
}
