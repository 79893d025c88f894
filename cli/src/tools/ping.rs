//! `ping`: round trips to an AoE device, by config query and by IDENTIFY.
//!
//! Each round asks once and waits for the answer or the time-out, so a lost frame is counted and not hidden by a repetition.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use aoe_proto::wire::{Address, Body, CCmd, Command, ConfigInfo, Identify};
use raid_core::md::text::human_size;
use raid_core::units::Bytes;
use serde::Serialize;

use super::network::{Network, parse_device, printable};
use super::probe::{self, Fault, Seen};
use super::raw::{Patience, Raw};
use super::{exit, micros};
use crate::output::{complain, print, print_json};

/// Ask an AoE device for its config and its IDENTIFY data, and show the round trips
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid ping -i eth1 9.0
  etherraid ping -i eth1 -i eth2 -c 100 -t 0.2 9.0     # each way to the device

The exit status is 0 when on some way both a config query and an IDENTIFY were answered, else 1. The times include those of the target's
disk, if it has to ask that.")]
pub(crate) struct Args {
    #[command(flatten)]
    network: Network,

    /// Rounds
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,

    /// SHELF.SLOT
    #[arg(value_name = "SHELF.SLOT", value_parser = parse_device)]
    device: Address,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Round trips of one kind of request.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Trips {
    sent: u32,
    answered: u32,
    min_us: Option<f64>,
    avg_us: Option<f64>,
    max_us: Option<f64>,
    #[serde(skip)]
    sum: Duration,
}

impl Trips {
    fn add(&mut self, rtt: Option<Duration>) {
        self.sent += 1;
        let Some(rtt) = rtt else { return };
        let us = micros(rtt);
        self.answered += 1;
        self.sum += rtt;
        self.min_us = Some(self.min_us.map_or(us, |min| min.min(us)));
        self.max_us = Some(self.max_us.map_or(us, |max| max.max(us)));
        self.avg_us = Some(micros(self.sum / self.answered));
    }

    fn line(&self, name: &str) -> String {
        let Trips { sent, answered, .. } = self;
        let lost = 100.0 * f64::from(sent - answered) / f64::from((*sent).max(1));
        let mut line = format!("{name}: {sent} sent, {answered} answered, {lost:.0}% lost");
        if let (Some(min), Some(avg), Some(max)) = (self.min_us, self.avg_us, self.max_us) {
            let ms = |us: f64| us / 1000.0;
            line.push_str(&format!(", min/avg/max {:.3}/{:.3}/{:.3} ms", ms(min), ms(avg), ms(max)));
        }
        line
    }
}

/// What is found on one way to the device.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Way {
    device: String,
    interface: String,
    mac: String,
    buffers: u16,
    firmware: u16,
    payload_bytes: usize,
    string: String,
    size_bytes: Option<u64>,
    model: Option<String>,
    serial: Option<String>,
    config: Trips,
    identify: Trips,
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut raw = args.network.open()?;
    let several = raw.ports().len() > 1;
    let seen = match several {
        true => probe::discover(&mut raw, args.device, args.network.timeout),
        // One interface may still lead to a device with several; the first to answer will do.
        false => probe::find(&mut raw, args.device, args.network.timeout).into_iter().collect(),
    };
    if seen.is_empty() {
        bail!("{}", args.network.silence(&raw, Some(args.device)));
    }
    let mut ways: Vec<Way> = seen.iter().map(|seen| way(&raw, seen)).collect();
    if !args.json {
        print(&ways.iter().map(|way| way.first_line() + "\n").collect::<String>())?;
    }
    for _ in 0..args.count {
        for (seen, way) in seen.iter().zip(&mut ways) {
            round(&mut raw, seen, way, args.network.timeout);
        }
    }
    let answered = ways.iter().any(|way| way.config.answered > 0 && way.identify.answered > 0);
    match args.json {
        true => print_json(&ways)?,
        false => print(&ways.iter().map(|way| way.last_lines() + "\n").collect::<String>())?,
    }
    Ok(exit(answered))
}

fn way(raw: &Raw, seen: &Seen) -> Way {
    Way {
        device: seen.address.to_string(),
        interface: raw.interface(seen.port).to_owned(),
        mac: seen.mac.to_string(),
        buffers: seen.buffers,
        firmware: seen.firmware,
        payload_bytes: seen.payload(),
        string: printable(&seen.string),
        size_bytes: None,
        model: None,
        serial: None,
        config: Trips::default(),
        identify: Trips::default(),
    }
}

fn round(raw: &mut Raw, seen: &Seen, way: &mut Way, timeout: Duration) {
    way.config.add(query(raw, seen, timeout));
    let identified = probe::identify(raw, std::slice::from_ref(seen), Patience::once(timeout)).pop();
    match identified {
        Some(Ok((identified, rtt))) => {
            way.learn(&identified.identify);
            way.identify.add(rtt);
        }
        Some(Err(fault)) => {
            if fault != Fault::Silent {
                complain(format_args!("{}: IDENTIFY: {fault}", seen.address));
            }
            way.identify.add(None);
        }
        None => {}
    }
}

/// The round trip of one config query to one station.
fn query(raw: &mut Raw, seen: &Seen, timeout: Duration) -> Option<Duration> {
    let emit = |header: &_, buf: &mut [u8]| ConfigInfo::request(CCmd::READ, b"").emit(header, buf);
    let read = |body: Body<'_>| if let Body::Config(_) = body { Ok(()) } else { Err(Fault::Nonsense) };
    let told = probe::ask(raw, seen, Command::CONFIG, &emit, Patience::once(timeout), read);
    told.what.ok().and(told.rtt)
}

impl Way {
    fn learn(&mut self, identify: &Identify) {
        self.size_bytes = Some(identify.sectors.saturating_mul(512));
        self.model = Some(printable(identify.model.as_str().as_bytes()));
        self.serial = Some(printable(identify.serial.as_str().as_bytes()));
    }

    fn first_line(&self) -> String {
        let Way { device, interface, mac, buffers, firmware, payload_bytes, string, .. } = self;
        format!(
            "{device} at {mac} on {interface}: {buffers} buffers, firmware {firmware:#06x}, {payload_bytes} bytes in a frame, config string \"{string}\""
        )
    }

    fn last_lines(&self) -> String {
        let mut lines = format!("--- {} at {} on {} ---", self.device, self.mac, self.interface);
        if let (Some(size), Some(model), Some(serial)) = (self.size_bytes, &self.model, &self.serial) {
            lines.push_str(&format!("\n{} sectors{}, {model}, serial {serial}", size / 512, human_size(Bytes(size))));
        }
        format!("{lines}\n{}\n{}", self.config.line("config query"), self.identify.line("IDENTIFY"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trips_are_counted_and_averaged() {
        let mut trips = Trips::default();
        assert_eq!(trips.line("x"), "x: 0 sent, 0 answered, 0% lost");
        for us in [Some(100), None, Some(300), Some(500)] {
            trips.add(us.map(Duration::from_micros));
        }
        assert_eq!(trips.line("x"), "x: 4 sent, 3 answered, 25% lost, min/avg/max 0.100/0.300/0.500 ms");
        let mut none = Trips::default();
        none.add(None);
        assert_eq!(none.line("x"), "x: 1 sent, 0 answered, 100% lost");
    }
}
