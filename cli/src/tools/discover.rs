//! `discover`: the AoE devices on the network, a line for each path to each.

use std::process::ExitCode;

use aoe_proto::wire::Address;
use serde::Serialize;

use super::exit;
use super::network::{Network, printable};
use super::probe::{self, Fault, Identified, Seen, gigabytes};
use super::raw::{Patience, Raw};
use crate::output::{complain, print, print_json};

/// List the AoE devices on the network
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid discover -i eth1              # all devices that answer within a second
  etherraid discover -i eth1 -i eth2 -t 3 --json

A device that is reached on several ways has a line for each. PAYLOAD is what a frame carries, in bytes.")]
pub(crate) struct Args {
    #[command(flatten)]
    network: Network,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A device at the end of a path, for people and programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    device: String,
    /// Unset when it does not answer to IDENTIFY.
    size_bytes: Option<u64>,
    interface: String,
    mac: String,
    buffers: u16,
    payload_bytes: usize,
    firmware: u16,
    model: Option<String>,
    serial: Option<String>,
    config: String,
}

impl Row {
    fn new(raw: &Raw, seen: &Seen, identified: Option<&Identified>) -> Row {
        let identify = identified.map(|identified| identified.identify);
        Row {
            device: seen.address.to_string(),
            size_bytes: identify.map(|identify| identify.sectors.saturating_mul(512)),
            interface: raw.interface(seen.port).to_owned(),
            mac: seen.mac.to_string(),
            buffers: seen.buffers,
            payload_bytes: seen.payload(),
            firmware: seen.firmware,
            model: identify.map(|identify| printable(identify.model.as_str().as_bytes())),
            serial: identify.map(|identify| printable(identify.serial.as_str().as_bytes())),
            config: printable(&seen.string),
        }
    }
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut raw = args.network.open()?;
    let seen = probe::discover(&mut raw, Address::ALL, args.network.timeout);
    let results = probe::identify(&mut raw, &seen, Patience::asking_again(args.network.timeout));
    let mut rows = Vec::new();
    for (seen, result) in seen.iter().zip(&results) {
        if let Err(fault) = result {
            let which = if *fault == Fault::Silent { "no answer to IDENTIFY".to_owned() } else { fault.to_string() };
            tracing::warn!("{} at {}: {which}", seen.address, seen.mac);
        }
        rows.push(Row::new(&raw, seen, result.as_ref().ok().map(|(identified, _)| identified)));
    }
    if rows.is_empty() {
        complain(args.network.silence(&raw, None));
    }
    match args.json {
        true => print_json(&rows)?,
        false => print(&table(&rows))?,
    }
    Ok(exit(true))
}

fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text =
        String::from("    DEVICE            SIZE         IF MAC               BUFFERS PAYLOAD FIRMWARE CONFIG\n");
    for row in rows {
        let size = row.size_bytes.map_or_else(|| "(NA)".to_owned(), |bytes| gigabytes(bytes / 512));
        let Row { device, interface, mac, buffers, payload_bytes, firmware, config, .. } = row;
        let line = format!(
            "{device:>10} {size:>15} {interface:>10} {mac} {buffers:>7} {payload_bytes:>7}   {firmware:#06x} {config}"
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let row = Row {
            device: "e9.0".into(),
            size_bytes: Some(64 << 20),
            interface: "eth1".into(),
            mac: "02:00:00:00:00:01".into(),
            buffers: 256,
            payload_bytes: 8704,
            firmware: 0x4019,
            model: None,
            serial: None,
            config: "host a".into(),
        };
        let unknown = Row { size_bytes: None, config: String::new(), ..row.clone() };
        assert_eq!(
            table(&[row, unknown]),
            "    DEVICE            SIZE         IF MAC               BUFFERS PAYLOAD FIRMWARE CONFIG
      e9.0         0.067GB       eth1 02:00:00:00:00:01     256    8704   0x4019 host a
      e9.0            (NA)       eth1 02:00:00:00:00:01     256    8704   0x4019
"
        );
        assert_eq!(table(&[]), "");
    }
}
