//! `reserve`: reads, sets and takes over the reservations of AoE devices.
//!
//! A reserved device answers ATA commands of others with an error. What is reserved for others can still be taken over by `--force`.

use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::bail;
use aoe_proto::wire::{Address, AoeError, Body, Command, MacAddr, RCmd, RESERVE_HEADER, Reserve};

use super::exit;
use super::identify::devices;
use super::mask::show;
use super::network::{Network, Station, parse_device, stations};
use super::probe::{Fault, Seen};
use super::raw::{Answer, Expect, Patience, Question, Raw};
use crate::output::complain;
use crate::usage::usage;

/// Bytes of an address in a message.
const MAC: usize = 6;

/// Read, set or release the reservations of AoE devices
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid reserve -i eth1                     who has reserved which device
  etherraid reserve -i eth1 9.0 --set self      reserve a device for this host: all its addresses on the interfaces named
  etherraid reserve -i eth1 9.0 --release
  etherraid reserve -i eth1 9.0 --set self --force    take it over from who holds it

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
    let mut raw = args.network.open()?;
    let seen = devices(&mut raw, &args.network, args.device)?;
    let mut rows = Vec::new();
    let mut all = true;
    for seen in &seen {
        let macs = match changes {
            true => change(&mut raw, &args, seen)?,
            false => match ask(&mut raw, &args, seen, RCmd::READ, &[]).0 {
                Ok(macs) => macs,
                Err(fault) => {
                    all = false;
                    complain(format_args!("{}: {fault}", seen.address));
                    continue;
                }
            },
        };
        rows.push((seen.address, macs));
    }
    show(&rows, "none", args.json)?;
    Ok(exit(all))
}

fn change(raw: &mut Raw, args: &Args, seen: &Seen) -> anyhow::Result<Vec<MacAddr>> {
    let macs = stations(raw, &args.set);
    let fit = ((raw.frame_bytes(seen.port) - RESERVE_HEADER) / MAC).min(usize::from(u8::MAX));
    if macs.len() > fit {
        bail!("{}: {} addresses do not fit a message, which holds {fit}", seen.address, macs.len());
    }
    let rcmd = if args.force { RCmd::FORCE_SET } else { RCmd::SET };
    let (result, copies) = ask(raw, args, seen, rcmd, &macs);
    match result {
        Ok(macs) => Ok(macs),
        Err(Fault::Aoe(AoeError::RESERVED)) => {
            let holders = ask(raw, args, seen, RCmd::READ, &[]).0.unwrap_or_default();
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

/// Asks; answers with the list, and how often it was asked.
fn ask(raw: &mut Raw, args: &Args, seen: &Seen, rcmd: RCmd, macs: &[MacAddr]) -> (Result<Vec<MacAddr>, Fault>, u32) {
    let emit = |header: &_, buf: &mut [u8]| Reserve::emit(header, rcmd, macs.iter().copied(), buf);
    let question = Question {
        port: seen.port,
        to: seen.mac,
        address: seen.address,
        command: Command::RESERVE,
        emit: &emit,
        expect: Expect::One,
    };
    let mut result = (Err(Fault::Silent), 0);
    raw.ask(&[question], Patience::asking_again(args.network.timeout), &mut |answer| {
        result = (list(&answer), answer.copies);
        ControlFlow::Break(())
    });
    result
}

fn list(answer: &Answer<'_>) -> Result<Vec<MacAddr>, Fault> {
    match (answer.frame.header.error, answer.frame.body) {
        (Some(error), _) => Err(Fault::Aoe(error)),
        (None, Body::Reserve(reserve)) => Ok(reserve.macs.iter().collect()),
        (None, _) => Err(Fault::Nonsense),
    }
}
