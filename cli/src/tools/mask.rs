//! `mask`: reads and edits the lists of stations that AoE devices listen to.
//!
//! A device with a list is silent to all others, so who edits it without being on it can't undo that: refused unless `--force`.

use std::process::ExitCode;

use anyhow::bail;
use aoe_proto::wire::{Address, Body, Command, DCmd, Directive, MASK_HEADER, MCmd, MError, MacAddr, MaskList};

use super::lists::{Shown, show_lists};
use super::network::{Network, Station, parse_device, stations};
use super::probe::{self, Fault, Seen};
use super::raw::{Patience, Raw};
use crate::usage::usage;

/// Bytes of a directive in a message.
const DIRECTIVE: usize = 8;

/// Read or edit the lists of MAC addresses that AoE devices listen to
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid mask -i eth1                                    # the lists of all devices
  etherraid mask -i eth1 9.0 --add self,02:00:00:00:00:02   # let this host and another one in, and nobody else
  etherraid mask -i eth1 9.0 --delete 02:00:00:00:00:02
  etherraid mask -i eth1 9.0 --clear                        # let everyone in

An empty list lets everyone in. The lists of devices that do not let this host in can't be seen from here.")]
pub(crate) struct Args {
    #[command(flatten)]
    network: Network,

    /// SHELF.SLOT [default: all devices]
    #[arg(value_name = "SHELF.SLOT", value_parser = parse_device)]
    device: Option<Address>,

    /// Add these addresses; self is this host's own
    #[arg(long, value_name = "MAC,..", value_delimiter = ',')]
    add: Vec<Station>,

    /// Delete these addresses
    #[arg(long, value_name = "MAC,..", value_delimiter = ',')]
    delete: Vec<Station>,

    /// Delete all addresses
    #[arg(long, conflicts_with_all = ["add", "delete"])]
    clear: bool,

    /// Edit the list even if this host can't reach the device any more afterwards
    #[arg(long)]
    force: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let edits = args.clear || !args.add.is_empty() || !args.delete.is_empty();
    if edits && args.device.is_none() {
        return usage("name the device whose list is to be edited, as SHELF.SLOT");
    }
    let shown = Shown { none: "any", json: args.json };
    show_lists(&args.network, args.device, shown, |raw, seen| match edits {
        true => edit(raw, &args, seen).map(Ok),
        false => Ok(match ask(raw, &args, seen, MCmd::READ, &[]) {
            Ok(List::Macs(macs)) => Ok(macs),
            other => Err(refusal(other)),
        }),
    })
}

/// What a device answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum List {
    Macs(Vec<MacAddr>),
    /// An edit stopped after so many directives.
    Stopped(MError, u8),
}

fn refusal(result: Result<List, Fault>) -> String {
    match result {
        Ok(List::Stopped(MError::LIST_FULL, _)) => "its list is full".to_owned(),
        Ok(List::Stopped(MError::BAD_DIRECTIVE, _)) => "it does not know what to do with the list".to_owned(),
        Ok(List::Stopped(..)) => "it refuses to edit its list".to_owned(),
        Ok(List::Macs(_)) => "done".to_owned(),
        Err(fault) => fault.to_string(),
    }
}

fn edit(raw: &mut Raw, args: &Args, seen: &Seen) -> anyhow::Result<Vec<MacAddr>> {
    let read = |raw: &mut Raw| match ask(raw, args, seen, MCmd::READ, &[]) {
        Ok(List::Macs(macs)) => Ok(macs),
        other => bail!("{}: reading its list: {}", seen.address, refusal(other)),
    };
    let now = read(raw)?;
    let own = raw.mac(seen.port);
    let add = stations(raw, &args.add);
    let delete = if args.clear { now.clone() } else { stations(raw, &args.delete) };
    let directives = directives(&add, &delete, own);
    let after = outcome(&now, &directives);
    let locked_out = !after.is_empty() && own.is_some_and(|own| !after.contains(&own));
    if locked_out && !args.force {
        let (own, device) = (own.unwrap_or_default(), seen.address);
        bail!(
            "{device}: this host's own address {own} would not be on the list, so it could not be edited from here again: --add self, or --force"
        );
    }
    let per_message = ((raw.frame_bytes(seen.port) - MASK_HEADER) / DIRECTIVE).min(usize::from(u8::MAX));
    let mut macs = now;
    for part in directives.chunks(per_message) {
        match ask(raw, args, seen, MCmd::EDIT, part) {
            Ok(List::Macs(list)) => macs = list,
            // Who locks himself out may get no answer to what did it.
            Err(Fault::Silent) if locked_out => return Ok(after),
            other => bail!(
                "{}: {}; its list may have been edited in part: see it without --add and --delete",
                seen.address,
                refusal(other)
            ),
        }
    }
    Ok(macs)
}

/// What to do, in an order that keeps this host's own address on the list as long as possible.
fn directives(add: &[MacAddr], delete: &[MacAddr], own: Option<MacAddr>) -> Vec<Directive> {
    let of = |dcmd, macs: &[MacAddr]| macs.iter().map(|&mac| Directive { dcmd, mac }).collect::<Vec<_>>();
    let (mut add, mut delete) = (of(DCmd::ADD, add), of(DCmd::DELETE, delete));
    add.sort_by_key(|directive| Some(directive.mac) != own);
    delete.sort_by_key(|directive| Some(directive.mac) == own);
    [add, delete].concat()
}

/// The list that directives leave.
fn outcome(now: &[MacAddr], directives: &[Directive]) -> Vec<MacAddr> {
    let mut macs = now.to_vec();
    for directive in directives {
        match directive.dcmd {
            DCmd::ADD if !macs.contains(&directive.mac) => macs.push(directive.mac),
            DCmd::DELETE => macs.retain(|mac| *mac != directive.mac),
            _ => {}
        }
    }
    macs
}

fn ask(raw: &mut Raw, args: &Args, seen: &Seen, mcmd: MCmd, directives: &[Directive]) -> Result<List, Fault> {
    let emit = |header: &_, buf: &mut [u8]| MaskList::emit(header, mcmd, directives.iter().copied(), buf);
    let patience = Patience::asking_again(args.network.timeout);
    probe::ask(raw, seen, Command::MASK, &emit, patience, list).what
}

fn list(body: Body<'_>) -> Result<List, Fault> {
    match body {
        Body::Mask(mask) if mask.merror == MError::NONE => {
            Ok(List::Macs(mask.directives.iter().map(|directive| directive.mac).collect()))
        }
        Body::Mask(mask) => Ok(List::Stopped(mask.merror, mask.count)),
        _ => Err(Fault::Nonsense),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(n: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, n])
    }

    #[test]
    fn own_address_is_added_first_and_deleted_last() {
        let all = directives(&[mac(1), mac(2)], &[mac(2), mac(3)], Some(mac(2)));
        let order: Vec<(u8, u8)> = all.iter().map(|directive| (directive.dcmd.0, directive.mac.0[5])).collect();
        assert_eq!(order, [(1, 2), (1, 1), (2, 3), (2, 2)]);
        assert!(directives(&[], &[], None).is_empty());
    }

    #[test]
    fn what_an_edit_leaves() {
        let add = |n| Directive { dcmd: DCmd::ADD, mac: mac(n) };
        let delete = |n| Directive { dcmd: DCmd::DELETE, mac: mac(n) };
        assert_eq!(outcome(&[mac(1)], &[add(2), add(1), delete(1), delete(9)]), [mac(2)]);
        assert_eq!(outcome(&[mac(1)], &[delete(1)]), []);
    }
}
