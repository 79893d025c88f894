//! `interfaces`: which interfaces a running array uses, as aoe-interfaces has it: without names it prints them, with names it sets them.

use std::process::ExitCode;

use crate::control::client::ControlArgs;
use crate::control::messages::{Interface, SetInterfaces};
use crate::output::{print, print_json};

/// Show or set the network interfaces that a running array uses
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid interfaces r5               # those in use, and which members are reached over each
  etherraid interfaces r5 eth1 eth2     # these and no others from now on
  etherraid interfaces r5 --json

What is under way on an interface that is left out is sent again over the others. One that goes down and comes back need not be set again.")]
pub(crate) struct Args {
    #[command(flatten)]
    array: ControlArgs,

    /// The interfaces to use [default: show those in use]
    #[arg(value_name = "IF")]
    interfaces: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let interfaces: Vec<Interface> = match args.interfaces.is_empty() {
        true => args.array.get("/interfaces")?,
        false => args.array.post("/interfaces", &SetInterfaces { interfaces: args.interfaces })?,
    };
    match args.json {
        true => print_json(&interfaces)?,
        false => print(&interfaces.iter().map(line).collect::<String>())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn line(interface: &Interface) -> String {
    let Interface { name, devices } = interface;
    format!("{name}\t{}\n", if devices.is_empty() { "none".to_owned() } else { devices.join(" ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let interface = |devices: &[&str]| Interface {
            name: "eth1".into(),
            devices: devices.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(line(&interface(&["e9.0", "e9.1"])), "eth1\te9.0 e9.1\n");
        assert_eq!(line(&interface(&[])), "eth1\tnone\n");
    }
}
