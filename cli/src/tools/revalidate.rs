//! `revalidate`: has a running array ask members anew what they are, as aoe-revalidate has it.

use std::process::ExitCode;

use aoe_proto::wire::Address;

use super::network::parse_device;
use crate::control::client::ControlArgs;
use crate::control::messages::Member;
use crate::output::print;

/// Have a running array ask AoE members for their size
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid revalidate r5 9.0    # after its disk was made larger; `etherraid stat` shows the size

A change is logged by `run`. The array itself stays as large as it is.")]
pub(crate) struct Args {
    #[command(flatten)]
    array: ControlArgs,

    /// SHELF.SLOT of AoE members
    #[arg(value_name = "SHELF.SLOT", required = true, value_parser = parse_device)]
    devices: Vec<Address>,
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    for device in &args.devices {
        let _: serde_json::Value = args.array.post("/revalidate", &Member { member: device.to_string() })?;
        print(&format!("{}: {device} is asked\n", args.array.name()))?;
    }
    Ok(ExitCode::SUCCESS)
}
