//! `flush`: has a running array forget paths, as aoe-flush forgets devices.

use std::process::ExitCode;

use aoe_proto::wire::Address;

use super::network::parse_device;
use crate::control::client::ControlArgs;
use crate::control::messages::FlushPaths;
use crate::output::print;

/// Have a running array forget paths that are down, and look for its AoE members anew
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid flush r5             # paths that are not in use, of all members
  etherraid flush r5 9.0         # of one
  etherraid flush r5 --all       # those in use, too: they are found again at once

As aoe-flush does for devices. No request fails by it; data are made durable by a FLUSH of the array's clients, not by this.")]
pub(crate) struct Args {
    #[command(flatten)]
    array: ControlArgs,

    /// SHELF.SLOT of AoE members [default: all]
    #[arg(value_name = "SHELF.SLOT", value_parser = parse_device)]
    devices: Vec<Address>,

    /// Paths in use, too
    #[arg(short, long)]
    all: bool,
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let which = if args.all { "all paths" } else { "paths not in use" };
    let mut members: Vec<Option<String>> = args.devices.iter().map(|device| Some(device.to_string())).collect();
    if members.is_empty() {
        members.push(None);
    }
    for member in members {
        let of = member.clone().unwrap_or_else(|| "all members".to_owned());
        let _: serde_json::Value = args.array.post("/flush", &FlushPaths { member, all: args.all })?;
        print(&format!("{}: {which} of {of} forgotten\n", args.array.name()))?;
    }
    Ok(ExitCode::SUCCESS)
}
