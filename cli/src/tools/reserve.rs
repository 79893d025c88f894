//! `reserve`: reads, sets and takes over the reservations of AoE devices.
//!
//! A reserved device answers ATA commands of others with an error. What is reserved for others can still be taken over by `--force`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use aoe_proto::wire::{Address, AoeError, Body, Command, MacAddr, RCmd, RESERVE_HEADER, Reserve};

use super::lists::{Shown, show_lists};
use super::network::{Network, Station, parse_device, stations};
use super::probe::{self, Fault, Seen, Told};
use super::raw::{Patience, Raw};
use crate::usage::usage;

/// Bytes of an address in a message.
const MAC: usize = 6;

/// Read, set or release the reservations of AoE devices
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid reserve -i eth1                     # who has reserved which device
  etherraid reserve -i eth1 9.0 --set self      # reserve a device for this host: all its addresses on the interfaces named
  etherraid reserve -i eth1 9.0 --release
  etherraid reserve -i eth1 9.0 --set self --force    # take it over from who holds it

A host with several interfaces must list the addresses of all of them, so name them all with -i.")]
pub(crate) struct Args {
    #[command(flatten)]
    network: Network,

    /// SHELF.SLOT [default: all devices]
    #[arg(value_name = "SHELF.SLOT", value_parser = parse_device)]
    device: Option<Address>,

    /// Reserve it for these addresses; self is this host's own
    #[arg(long, value_name = "MAC,..", value_delimiter = ',')]
    set: Vec<Station>,

    /// Let everyone in again
    #[arg(long, conflicts_with = "set")]
    release: bool,

    /// Even if others have reserved it
    #[arg(long)]
    force: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let changes = args.release || !args.set.is_empty();
    if changes && args.device.is_none() {
        return usage("name the device whose reservation is to be changed, as SHELF.SLOT");
    }
    if args.force && !changes {
        return usage("--force goes with --set or --release");
    }
    let shown = Shown { none: "none", json: args.json };
    let timeout = args.network.timeout;
    show_lists(&args.network, args.device, shown, |raw, seen| match changes {
        true => change(raw, &args, seen).map(Ok),
        false => Ok(read(raw, seen, timeout).map_err(|fault| fault.to_string())),
    })
}

fn change(raw: &mut Raw, args: &Args, seen: &Seen) -> anyhow::Result<Vec<MacAddr>> {
    let macs = stations(raw, &args.set);
    let timeout = args.network.timeout;
    let Told { what, copies, .. } = set(raw, seen, args.force, &macs, timeout)?;
    match what {
        Ok(macs) => Ok(macs),
        Err(Fault::Aoe(AoeError::RESERVED)) => {
            let holders = read(raw, seen, timeout).unwrap_or_default();
            // A first copy may have reserved it for others, and so made its repetition fail.
            if copies > 1 && holders == macs {
                return Ok(holders);
            }
            let list: Vec<String> = holders.iter().map(ToString::to_string).collect();
            let by = if list.is_empty() { "others".to_owned() } else { list.join(", ") };
            bail!("{}: reserved by {by}: --force takes it over, and ends what they do there", seen.address)
        }
        Err(fault) => bail!("{}: {fault}", seen.address),
    }
}

/// Who has reserved a device.
pub(super) fn read(raw: &mut Raw, seen: &Seen, timeout: Duration) -> Result<Vec<MacAddr>, Fault> {
    ask(raw, seen, RCmd::READ, &[], timeout).what
}

/// Reserves a device for these stations, and with `force` even if others have; for none: releases it. Fails only when there are too many.
pub(super) fn set(
    raw: &mut Raw,
    seen: &Seen,
    force: bool,
    macs: &[MacAddr],
    timeout: Duration,
) -> anyhow::Result<Told<Vec<MacAddr>>> {
    let fit = ((raw.frame_bytes(seen.port) - RESERVE_HEADER) / MAC).min(usize::from(u8::MAX));
    if macs.len() > fit {
        bail!("{}: {} addresses do not fit a message, which holds {fit}", seen.address, macs.len());
    }
    Ok(ask(raw, seen, if force { RCmd::FORCE_SET } else { RCmd::SET }, macs, timeout))
}

fn ask(raw: &mut Raw, seen: &Seen, rcmd: RCmd, macs: &[MacAddr], timeout: Duration) -> Told<Vec<MacAddr>> {
    let emit = |header: &_, buf: &mut [u8]| Reserve::emit(header, rcmd, macs.iter().copied(), buf);
    probe::ask(raw, seen, Command::RESERVE, &emit, Patience::asking_again(timeout), |body| match body {
        Body::Reserve(reserve) => Ok(reserve.macs.iter().collect()),
        _ => Err(Fault::Nonsense),
    })
}
