//! `stat`: a line for each AoE device, in aoe-stat's columns, then what is known of the ways to it.
//!
//! A running array of this host knows its members' round trips, windows and losses; of other devices a few IDENTIFY round trips tell.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use aoe_proto::wire::{Address, Identify};
use serde::Serialize;

use super::network::{Network, parse_device, parse_seconds};
use super::probe::{self, Seen, gigabytes};
use super::raw::{Patience, Raw};
use super::status::{LIMIT, arrays};
use super::watch::{Watch, watch};
use super::{exit, micros};
use crate::control::messages::{AoeDevice, AoePath};
use crate::errors::one_line;
use crate::output::{complain, print, print_json};
use crate::usage::usage;

/// IDENTIFY round trips on each way.
const PROBES: u32 = 8;
/// How long each may take.
const PROBE_PATIENCE: Duration = Duration::from_millis(250);

/// Show size, interfaces, payload and state of AoE devices, with round trips, windows and losses
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid stat -i eth1                # all devices on the network
  etherraid stat -i eth1 9.0 9.1        # some of them
  etherraid stat                        # AoE members of the arrays that run on this host
  etherraid stat -w 0.5 --count 3       # each path of theirs, every half second; without --count until it is stopped

The first columns are aoe-stat's: device, size, interfaces, payload in bytes, state. Then, for a member of a running array: round trip, window
and frames out, and the share of frames that had to be sent again; for other devices: round trip and losses of a few probes.
A state of `up,conflict` means that another device claims the same shelf and slot: it is not used.")]
pub(crate) struct Args {
    #[command(flatten)]
    network: Network,

    /// SHELF.SLOT [default: all devices]
    #[arg(value_name = "SHELF.SLOT", value_parser = parse_device)]
    devices: Vec<Address>,

    /// Show each path of running arrays again and again, every so many seconds: round trip and its deviation, window, slow start threshold,
    /// frames out, retransmits, taint, payload
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = parse_seconds)]
    watch: Option<Duration>,

    /// Looks of --watch [default: without end]
    #[arg(long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    device: String,
    size_bytes: Option<u64>,
    interfaces: Vec<String>,
    /// The smallest of its ways.
    payload_bytes: Option<u64>,
    state: &'static str,
    /// The array it is a member of, on this host.
    array: Option<String>,
    rtt_us: Option<f64>,
    window: Option<u32>,
    outstanding: Option<u32>,
    lost_percent: Option<f64>,
    /// What is at the end of the first way.
    #[serde(skip)]
    identity: Option<Identity>,
}

/// What tells devices apart: serial, model, world wide name.
type Identity = (String, String, Option<u64>);

impl Row {
    fn empty(address: Address) -> Row {
        Row {
            device: address.to_string(),
            size_bytes: None,
            interfaces: Vec::new(),
            payload_bytes: None,
            state: "down",
            array: None,
            rtt_us: None,
            window: None,
            outstanding: None,
            lost_percent: None,
            identity: None,
        }
    }

    /// Somebody answers there.
    fn found(&mut self, identify: &Identify) {
        let identity = (identify.serial.as_str().to_owned(), identify.model.as_str().to_owned(), identify.wwn);
        if self.identity.get_or_insert_with(|| identity.clone()) != &identity {
            self.state = "up,conflict";
        } else if self.state == "down" {
            self.state = "up";
        }
    }

    fn add_way(&mut self, interface: &str, payload: u64) {
        if !self.interfaces.iter().any(|known| known == interface) {
            self.interfaces.push(interface.to_owned());
        }
        self.payload_bytes = Some(self.payload_bytes.map_or(payload, |known| known.min(payload)));
    }
}

type Rows = BTreeMap<Address, Row>;

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let network = &args.network.interfaces.interfaces;
    if let Some(every) = args.watch {
        if !network.is_empty() {
            return usage("--watch shows the paths of running arrays, which know their interfaces: leave out -i");
        }
        return watch(&Watch { every, count: args.count, devices: &args.devices, json: args.json });
    }
    if network.is_empty() && !args.devices.is_empty() {
        return usage("name the interface that leads to the devices with -i");
    }
    let mut rows = Rows::new();
    let mut local = Vec::new();
    if !network.is_empty() {
        let mut raw = args.network.open()?;
        local
            .extend(raw.ports().map(|port| (raw.interface(port).to_owned(), raw.mac(port).map(|mac| mac.to_string()))));
        probe_all(&mut raw, &args, &mut rows);
        if rows.is_empty() && args.devices.is_empty() {
            complain(args.network.silence(&raw, None));
        }
    }
    let (arrays, all) = arrays()?;
    if network.is_empty() && arrays.is_empty() {
        complain("no array runs on this host; name the interfaces to look on with -i");
    }
    for array in arrays {
        match array.get_within::<Vec<AoeDevice>>("/paths", LIMIT) {
            Ok(devices) => devices.iter().for_each(|device| member(&mut rows, array.name(), device, &local)),
            Err(_) if !array.is_there() => {}
            Err(error) => tracing::warn!("{}", one_line(error.as_ref())),
        }
    }
    for address in &args.devices {
        rows.entry(*address).or_insert_with(|| Row::empty(*address));
    }
    rows.retain(|address, _| args.devices.is_empty() || args.devices.contains(address));
    let rows: Vec<Row> = rows.into_values().collect();
    let up = args.devices.is_empty() || rows.iter().all(|row| row.state != "down");
    match args.json {
        true => print_json(&rows)?,
        false => print(&rows.iter().map(|row| line(row) + "\n").collect::<String>())?,
    }
    Ok(exit(up && all))
}

fn probe_all(raw: &mut Raw, args: &Args, rows: &mut Rows) {
    let seen = probe::discover(raw, Address::ALL, args.network.timeout);
    let wanted = |seen: &Seen| args.devices.is_empty() || args.devices.contains(&seen.address);
    let seen: Vec<Seen> = seen.into_iter().filter(wanted).collect();
    let mut answered: BTreeMap<Address, (u32, u32, Duration)> = BTreeMap::new();
    for _ in 0..PROBES {
        let results = probe::identify(raw, &seen, Patience::once(PROBE_PATIENCE));
        for (seen, result) in seen.iter().zip(results) {
            let row = rows.entry(seen.address).or_insert_with(|| Row::empty(seen.address));
            let (sent, came, sum) = answered.entry(seen.address).or_default();
            *sent += 1;
            if let Ok((identified, rtt)) = result {
                row.found(&identified.identify);
                row.size_bytes = Some(identified.identify.sectors.saturating_mul(512));
                *came += 1;
                *sum += rtt.unwrap_or_default();
            }
        }
    }
    for seen in &seen {
        let Some(row) = rows.get_mut(&seen.address) else { continue };
        row.add_way(raw.interface(seen.port), seen.payload() as u64);
        if let Some((sent, came, sum)) = answered.get(&seen.address) {
            row.lost_percent = Some(percent(u64::from(sent - came), u64::from(*sent)));
            row.rtt_us = (*came > 0).then(|| micros(*sum / *came));
        }
    }
}

/// An interface: its name, and its address while it is up.
type Local = (String, Option<String>);

/// What a running array knows of a member; nothing if it is reached on none of the interfaces asked for. The array may run in another network
/// namespace, with interfaces of the same names.
fn member(rows: &mut Rows, array: &str, device: &AoeDevice, network: &[Local]) {
    let is_ours = |path: &AoePath| network.iter().any(|(name, mac)| (name, mac) == (&path.interface, &path.local_mac));
    let there = network.is_empty() || device.paths.iter().any(is_ours);
    let Some(address) = device.device.parse::<Address>().ok().filter(|_| there) else { return };
    let row = rows.entry(address).or_insert_with(|| Row::empty(address));
    row.array = Some(array.to_owned());
    row.size_bytes = row.size_bytes.or(device.size_bytes);
    let paths = || device.paths.iter().filter(|path| path.up);
    if row.state == "down" && !device.silent && paths().next().is_some() {
        row.state = "up";
    }
    if device.paths.iter().any(|path| path.state == "conflict") {
        row.state = "up,conflict";
    }
    for path in paths() {
        row.add_way(&path.interface, u64::from(path.payload_bytes));
    }
    let answered: u64 = device.paths.iter().map(|path| path.answered).sum();
    if answered == 0 {
        return;
    }
    let measured = || paths().filter_map(|path| path.rtt_us.map(|rtt| (rtt, path.answered.max(1) as f64)));
    let weight: f64 = measured().map(|(_, weight)| weight).sum();
    if weight > 0.0 {
        row.rtt_us = Some(measured().map(|(rtt, weight)| rtt * weight).sum::<f64>() / weight);
    }
    let sent: u64 = device.paths.iter().map(|path| path.sent).sum();
    let again: u64 = device.paths.iter().map(|path| path.retransmits).sum();
    row.lost_percent = Some(percent(again, sent));
    row.window = Some(paths().map(|path| path.window).sum());
    row.outstanding = Some(device.outstanding);
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

fn line(row: &Row) -> String {
    let size = row.size_bytes.map_or_else(|| "(NA)".to_owned(), |bytes| gigabytes(bytes / 512));
    let interfaces = if row.interfaces.is_empty() { "(NA)".to_owned() } else { row.interfaces.join(",") };
    let payload = row.payload_bytes.map_or_else(|| "(NA)".to_owned(), |bytes| bytes.to_string());
    let mut line = format!("{:>10} {size:>15} {interfaces:>10} {payload:<5} {:<14}", row.device, row.state);
    if let Some(rtt) = row.rtt_us {
        line.push_str(&format!(" rtt={:.3}ms", rtt / 1000.0));
    }
    if let Some(window) = row.window {
        line.push_str(&format!(" window={window}"));
    }
    if let Some(outstanding) = row.outstanding {
        line.push_str(&format!(" nout={outstanding}"));
    }
    if let Some(lost) = row.lost_percent {
        line.push_str(&format!(" lost={lost:.2}%"));
    }
    if let Some(array) = &row.array {
        line.push_str(&format!(" array={array}"));
    }
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(interface: &str, up: bool, rtt_us: Option<f64>, answered: u64) -> AoePath {
        AoePath {
            interface: interface.into(),
            local_mac: up.then(|| format!("02:00:00:00:01:{}", interface.len())),
            mac: "02:00:00:00:00:01".into(),
            up,
            state: if up { "up" } else { "down" }.into(),
            rtt_us,
            rttvar_us: rtt_us,
            window: 8,
            ssthresh: None,
            taint: 0,
            outstanding: 1,
            payload_bytes: 8192,
            sent: answered + answered / 4,
            retransmits: answered / 4,
            answered,
        }
    }

    fn device(paths: Vec<AoePath>, silent: bool) -> AoeDevice {
        AoeDevice {
            device: "e9.0".into(),
            size_bytes: Some(10_995_116_277_760),
            silent,
            buffers: 64,
            outstanding: 2,
            paths,
        }
    }

    fn rows_of(device: &AoeDevice, network: &[Local]) -> Vec<Row> {
        let mut rows = Rows::new();
        member(&mut rows, "r5", device, network);
        rows.into_values().collect()
    }

    #[test]
    fn columns_are_aoe_stats() {
        let row = Row {
            size_bytes: Some(10_995_116_277_760),
            interfaces: vec!["eth3".into()],
            payload_bytes: Some(1024),
            state: "up",
            ..Row::empty(Address::new(0, 0))
        };
        assert_eq!(line(&row), "      e0.0     10995.116GB       eth3 1024  up");
        assert_eq!(line(&Row::empty(Address::new(7, 1))), "      e7.1            (NA)       (NA) (NA)  down");
    }

    #[test]
    fn a_running_array_tells_of_its_members() {
        let two = device(vec![path("eth0", true, Some(100.0), 100), path("eth1", true, Some(400.0), 300)], false);
        let rows = rows_of(&two, &[]);
        assert_eq!(
            line(&rows[0]),
            "      e9.0     10995.116GB  eth0,eth1 8192  up             rtt=0.325ms window=16 nout=2 lost=20.00% array=r5"
        );
        let mac = Some("02:00:00:00:01:4".to_owned());
        assert!(rows_of(&two, &[("eth9".into(), mac.clone())]).is_empty(), "on other interfaces");
        assert!(rows_of(&two, &[("eth1".into(), None)]).is_empty(), "in another namespace");
        assert_eq!(rows_of(&two, &[("eth1".into(), mac)]).len(), 1);
        let silent = rows_of(&device(vec![path("eth0", true, Some(1.0), 1)], true), &[]);
        assert_eq!(silent[0].state, "down");
        let unused = rows_of(&device(vec![path("eth0", false, None, 0)], false), &[]);
        assert_eq!((unused[0].state, unused[0].rtt_us, unused[0].lost_percent), ("down", None, None));
    }

    #[test]
    fn what_a_probe_found_up_stays_up() {
        let mut rows = Rows::new();
        let address = Address::new(9, 0);
        rows.insert(address, Row { state: "up", ..Row::empty(address) });
        member(&mut rows, "r5", &device(Vec::new(), true), &[]);
        assert_eq!(rows[&address].state, "up");
        assert_eq!(rows[&address].array.as_deref(), Some("r5"));
    }
}
