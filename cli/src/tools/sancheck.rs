//! `sancheck`: whether the network between interfaces and devices carries what its ends allow.
//!
//! On each way to each device reads of sector 0 are asked for, padded to the length of their reply, so that both directions are tried. A
//! size counts as too large when several copies went unanswered: one lost frame says nothing. Any number of interfaces, of any name, is
//! looked at, [`GROUP`] at a time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use aoe_net::link::{HostInterface, host_interfaces};
use aoe_proto::wire::{ATA_HEADER, Address, AtaRequest, Body, Command, Header, Identify, Lba, SECTOR};
use serde::Serialize;

use super::exit;
use super::network::{Network, parse_device};
use super::probe::{self, Seen};
use super::raw::{Expect, Patience, Question, Raw};
use crate::interfaces::InterfaceArgs;
use crate::output::{complain, print, print_json};

/// Interfaces that are open at a time.
const GROUP: usize = 16;
/// How long a size is tried, several times.
const TRY: Duration = Duration::from_millis(400);
/// Where the kernel shows which device an interface is.
const DEVICES: &str = "/sys/class/net";

/// Check whether the network carries frames as large as interfaces and devices allow
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid sancheck                    # all Ethernet interfaces and all devices behind them
  etherraid sancheck -i eth1 -i eth2 9.0
  etherraid sancheck --json

As aoe-sancheck: a summary of the interfaces, one of the devices, and what is wrong, such as a switch in between that drops large frames.
PAYLOAD is what a frame is known to carry on every way to the device, in bytes.")]
pub(crate) struct Args {
    #[command(flatten)]
    network: Network,

    /// SHELF.SLOT [default: all devices]
    #[arg(value_name = "SHELF.SLOT", value_parser = parse_device)]
    devices: Vec<Address>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An interface of this host.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Interface {
    name: String,
    status: &'static str,
    mtu: Option<u32>,
    /// Vendor and device, where it is one on PCI.
    pci_id: Option<String>,
}

/// A way to a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Way {
    interface: String,
    mac: String,
    /// Known to pass, both ways; 0 when no read was answered.
    payload_bytes: usize,
    /// What interface and device allow.
    allowed_bytes: usize,
    /// What the device would take.
    device_bytes: usize,
    /// Serial, model and world wide name.
    #[serde(skip)]
    identity: Option<(String, String, Option<u64>)>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Device {
    device: String,
    macs: Vec<String>,
    /// The smallest of its ways.
    payload_bytes: usize,
    local_interfaces: Vec<String>,
    ways: Vec<Way>,
}

/// All that is found.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Report {
    interfaces: Vec<Interface>,
    devices: Vec<Device>,
    warnings: Vec<String>,
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let named = &args.network.interfaces.interfaces;
    let known = host_interfaces().context("the interfaces cannot be looked at; try as root")?;
    let all = || known.iter().map(|known| known.name.clone()).collect();
    let names: Vec<String> = if named.is_empty() { all() } else { named.clone() };
    let interfaces: Vec<Interface> = names.iter().map(|name| interface(name, &known)).collect();
    // One that was named and is not there, or down, is an error; of all that there are the rest is looked at.
    let usable = |interface: &&Interface| !named.is_empty() || interface.status == "up";
    let open: Vec<String> = interfaces.iter().filter(usable).map(|interface| interface.name.clone()).collect();
    let mut ways: BTreeMap<Address, Vec<Way>> = BTreeMap::new();
    for group in open.chunks(GROUP) {
        let links = InterfaceArgs { interfaces: group.to_vec(), fault: args.network.interfaces.fault };
        let mut raw = Raw::open(&links)?;
        look(&mut raw, &args, &mut ways);
    }
    let devices: Vec<Device> = ways.into_iter().map(|(address, ways)| device(address, ways)).collect();
    if devices.is_empty() {
        let seconds = args.network.timeout.as_secs_f64();
        complain(format_args!("no AoE device answered within {seconds} s on {}", open.join(", ")));
    }
    let warnings = warnings(&interfaces, &devices, &args.devices);
    let report = Report { interfaces, devices, warnings };
    match args.json {
        true => print_json(&report)?,
        false => print(&text(&report))?,
    }
    Ok(exit(true))
}

/// What the kernel tells of an interface, and which device it is.
fn interface(name: &str, known: &[HostInterface]) -> Interface {
    let hex = |what: &str| {
        let text = std::fs::read_to_string(Path::new(DEVICES).join(name).join("device").join(what)).ok()?;
        Some(text.trim().trim_start_matches("0x").to_owned())
    };
    let pci_id = hex("vendor").zip(hex("device")).map(|(vendor, device)| format!("{vendor}:{device}"));
    let known = known.iter().find(|known| known.name == name);
    let status = match known {
        Some(HostInterface { running: true, .. }) => "up",
        Some(HostInterface { up: true, .. }) => "no carrier",
        _ => "down",
    };
    Interface { name: name.to_owned(), status, mtu: known.map(|known| known.mtu), pci_id }
}

/// Finds the devices behind some interfaces, and what each way to them carries.
fn look(raw: &mut Raw, args: &Args, ways: &mut BTreeMap<Address, Vec<Way>>) {
    let seen = probe::discover(raw, Address::ALL, args.network.timeout);
    let wanted = |seen: &Seen| args.devices.is_empty() || args.devices.contains(&seen.address);
    let seen: Vec<Seen> = seen.into_iter().filter(wanted).collect();
    let identities = probe::identify(raw, &seen, Patience::asking_again(TRY));
    let identities: Vec<Option<Identify>> =
        identities.into_iter().map(|told| told.ok().map(|(identified, _)| identified.identify)).collect();
    let carried = measure(raw, &seen, &identities);
    for ((seen, identify), sectors) in seen.iter().zip(&identities).zip(carried) {
        let text = |identify: &Identify| {
            (identify.serial.as_str().to_owned(), identify.model.as_str().to_owned(), identify.wwn)
        };
        ways.entry(seen.address).or_default().push(Way {
            interface: raw.interface(seen.port).to_owned(),
            mac: seen.mac.to_string(),
            payload_bytes: usize::from(sectors) * SECTOR,
            allowed_bytes: seen.payload(),
            device_bytes: usize::from(seen.device_sectors) * SECTOR,
            identity: identify.as_ref().map(text),
        });
    }
}

/// The search on one way: what passes, and what does not.
#[derive(Clone, Copy, Debug)]
struct Search {
    passes: u8,
    too_large: u8,
    /// The device refuses reads: IDENTIFY is asked for instead, whose reply is short, so that one direction is tried.
    refuses: bool,
    /// All that is allowed was not tried yet.
    fresh: bool,
}

impl Search {
    /// Passes nothing yet; a way that carries all is done after one try.
    fn new(allowed: u8) -> Search {
        Search { passes: 0, too_large: allowed.saturating_add(1), refuses: false, fresh: true }
    }

    /// The next size, unless the answer is known.
    fn next(&self) -> Option<u8> {
        let open = self.too_large - self.passes;
        (open > 1).then(|| if self.fresh { self.too_large - 1 } else { self.passes + open / 2 })
    }

    fn tried(&mut self, size: u8, passed: bool) {
        self.fresh = false;
        match passed {
            true => self.passes = size,
            false => self.too_large = size,
        }
    }
}

/// Sectors that each way carries, 0 for one on which no read is answered.
fn measure(raw: &mut Raw, seen: &[Seen], identities: &[Option<Identify>]) -> Vec<u8> {
    let mut searches: Vec<Search> = seen.iter().map(|seen| Search::new(seen.sectors)).collect();
    loop {
        let tries: Vec<(usize, u8)> =
            searches.iter().enumerate().filter_map(|(way, search)| Some((way, search.next()?))).collect();
        if tries.is_empty() {
            return searches.iter().map(|search| search.passes).collect();
        }
        let answers = ask(raw, seen, identities, &searches, &tries);
        for ((way, size), answer) in tries.into_iter().zip(answers) {
            match answer {
                // Asked again in another way.
                Answer::Refused if !searches[way].refuses => searches[way].refuses = true,
                answer => searches[way].tried(size, answer != Answer::None),
            }
        }
    }
}

/// What came of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    None,
    Refused,
    Data,
}

fn ask(
    raw: &mut Raw,
    seen: &[Seen],
    identities: &[Option<Identify>],
    searches: &[Search],
    tries: &[(usize, u8)],
) -> Vec<Answer> {
    let emits: Vec<_> =
        tries.iter().map(|&(way, size)| emit(size, searches[way].refuses, identities[way].as_ref())).collect();
    let question = |(&(way, _), emit): (&(usize, u8), _)| {
        let Seen { port, mac: to, address, .. } = seen[way];
        Question { port, to, address, command: Command::ATA, emit, expect: Expect::One }
    };
    let emits: Vec<probe::Emit<'_>> = emits.iter().map(|emit| emit as _).collect();
    let questions: Vec<Question<'_>> = tries.iter().zip(emits).map(question).collect();
    let mut answers = vec![Answer::None; tries.len()];
    raw.ask(&questions, Patience::asking_again(TRY), &mut |answer| {
        let (way, size) = tries[answer.question];
        let sectors = identities[way].as_ref().map_or(1, |identify| u64::from(size).min(identify.sectors)) as usize;
        let least = if searches[way].refuses { SECTOR } else { sectors * SECTOR };
        answers[answer.question] = match answer.frame.body {
            Body::AtaReply(reply, data) if !reply.status.is_error() && data.len() >= least => Answer::Data,
            _ => Answer::Refused,
        };
        ControlFlow::Continue(())
    });
    answers
}

/// Writes a request that is as long as a reply with so many sectors.
fn emit(size: u8, identify: bool, identity: Option<&Identify>) -> impl Fn(&Header, &mut [u8]) -> usize + use<> {
    let (sectors, lba48) =
        identity.map_or((1, false), |identity| (u64::from(size).min(identity.sectors) as u8, identity.lba48));
    move |header, buf| {
        let request = if identify { AtaRequest::identify() } else { AtaRequest::read(Lba(0), sectors, lba48) };
        request.emit(header, buf);
        ATA_HEADER + usize::from(size) * SECTOR
    }
}

fn device(address: Address, ways: Vec<Way>) -> Device {
    let mut macs: Vec<String> = ways.iter().map(|way| way.mac.clone()).collect();
    macs.sort();
    macs.dedup();
    let mut local_interfaces: Vec<String> = ways.iter().map(|way| way.interface.clone()).collect();
    local_interfaces.dedup();
    let payload_bytes = ways.iter().map(|way| way.payload_bytes).min().unwrap_or(0);
    Device { device: address.to_string(), macs, payload_bytes, local_interfaces, ways }
}

/// What is wrong, a line each.
fn warnings(interfaces: &[Interface], devices: &[Device], wanted: &[Address]) -> Vec<String> {
    let mut warnings = Vec::new();
    for device in devices {
        let name = &device.device;
        for way in &device.ways {
            of_way(name, way, interfaces, &mut warnings);
        }
        let mtu =
            |name: &String| interfaces.iter().find(|interface| interface.name == *name).and_then(|found| found.mtu);
        let mtus: Vec<String> = device
            .local_interfaces
            .iter()
            .map(|name| format!("{name} {}", mtu(name).map_or("?".to_owned(), |mtu| mtu.to_string())))
            .collect();
        if device.local_interfaces.iter().any(|other| mtu(other) != mtu(&device.local_interfaces[0])) {
            warnings.push(format!("{name}: its interfaces have different MTUs: {}", mtus.join(", ")));
        }
        let (local, remote) = (device.local_interfaces.len(), device.macs.len());
        if local != remote {
            warnings.push(format!("{name}: {local} local interfaces lead to {remote} remote ones"));
        }
        let mut identities: Vec<_> = device.ways.iter().filter_map(|way| way.identity.as_ref()).collect();
        identities.dedup();
        if identities.len() > 1 {
            warnings.push(format!("{name}: different devices claim this shelf and slot: give one of them another"));
        }
    }
    for address in wanted.iter().map(ToString::to_string) {
        if !devices.iter().any(|device| device.device == address) {
            warnings.push(format!("{address}: no answer"));
        }
    }
    warnings
}

fn of_way(name: &str, way: &Way, interfaces: &[Interface], warnings: &mut Vec<String>) {
    let Way { interface, mac, payload_bytes, allowed_bytes, device_bytes, .. } = way;
    if *payload_bytes == 0 {
        warnings.push(format!("{name}: answers at {mac} on {interface}, but not when it is read"));
    } else if payload_bytes < allowed_bytes {
        let (carried, allowed) = (payload_bytes / SECTOR, allowed_bytes / SECTOR);
        warnings.push(format!(
            "{name}: the way from {interface} to {mac} carries {carried} sectors in a frame, both ends allow {allowed}: a switch \
             in between drops large frames"
        ));
    }
    if allowed_bytes < device_bytes {
        let mtu = interfaces.iter().find(|found| found.name == *interface).and_then(|found| found.mtu).unwrap_or(0);
        let best = device_bytes + ATA_HEADER - aoe_proto::wire::ETH_HEADER;
        warnings.push(format!(
            "{name}: the MTU of {interface}, {mtu}, is not optimal: the device takes {} sectors in a frame, which need {best}",
            device_bytes / SECTOR
        ));
    }
}

fn text(report: &Report) -> String {
    let mut text = String::from("INTERFACE SUMMARY\nName             Status          MTU  PCI ID\n");
    // Writing to a string does not fail.
    for Interface { name, status, mtu, pci_id } in &report.interfaces {
        let mtu = mtu.map_or("(NA)".to_owned(), |mtu| mtu.to_string());
        let _ = writeln!(text, "{name:<16} {status:<10} {mtu:>8}  {}", pci_id.as_deref().unwrap_or("-"));
    }
    text.push_str("DEVICE SUMMARY\nDevice       Macs   Payload  Local Interfaces\n");
    for Device { device, macs, payload_bytes, local_interfaces, .. } in &report.devices {
        let (macs, interfaces) = (macs.len(), local_interfaces.join(" "));
        let _ = writeln!(text, "{device:<12} {macs:>4}  {payload_bytes:>8}  {interfaces}");
    }
    for warning in &report.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_size_is_found_whatever_it_is() {
        for allowed in [1, 2, 17, 127, 255] {
            for passes in 0..=allowed.min(254) {
                let mut search = Search::new(allowed);
                let mut tries = 0;
                while let Some(size) = search.next() {
                    search.tried(size, size <= passes);
                    tries += 1;
                }
                assert_eq!(search.passes, passes, "{allowed}");
                assert!(tries <= 9);
            }
        }
    }

    fn way(interface: &str, mac: u8, carried: usize, allowed: usize, serial: &str) -> Way {
        Way {
            interface: interface.into(),
            mac: format!("02:00:00:00:00:{mac:02x}"),
            payload_bytes: carried * SECTOR,
            allowed_bytes: allowed * SECTOR,
            device_bytes: 17 * SECTOR,
            identity: Some((serial.into(), "disk".into(), None)),
        }
    }

    fn port(name: &str, mtu: u32) -> Interface {
        Interface { name: name.into(), status: "up", mtu: Some(mtu), pci_id: None }
    }

    #[test]
    fn what_is_wrong_is_told() {
        let interfaces = [port("storage-net", 9000), port("enp3s0f1", 1500)];
        let address = Address::new(9, 0);
        let good = device(address, vec![way("storage-net", 1, 17, 17, "a")]);
        assert!(warnings(&interfaces, &[good], &[address]).is_empty());
        let ways = vec![way("storage-net", 1, 2, 17, "a"), way("enp3s0f1", 1, 2, 2, "b")];
        let bad = device(address, ways);
        let told = warnings(&interfaces, &[bad], &[address, Address::new(9, 1)]);
        for words in [
            "carries 2 sectors in a frame, both ends allow 17",
            "the MTU of enp3s0f1, 1500, is not optimal: the device takes 17 sectors in a frame, which need 8726",
            "different MTUs: storage-net 9000, enp3s0f1 1500",
            "2 local interfaces lead to 1 remote ones",
            "different devices claim",
            "e9.1: no answer",
        ] {
            assert_eq!(told.iter().filter(|told| told.contains(words)).count(), 1, "{words}: {told:?}");
        }
        assert_eq!(told.len(), 6);
    }

    #[test]
    fn summaries_line_up() {
        let devices = vec![device(Address::new(9, 0), vec![way("eth1", 1, 17, 17, "a")])];
        let report = Report { interfaces: vec![port("eth1", 9000)], devices, warnings: vec!["w".into()] };
        assert_eq!(
            text(&report),
            "INTERFACE SUMMARY
Name             Status          MTU  PCI ID
eth1             up             9000  -
DEVICE SUMMARY
Device       Macs   Payload  Local Interfaces
e9.0            1      8704  eth1
warning: w
"
        );
    }
}
