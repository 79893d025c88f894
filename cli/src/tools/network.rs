//! Options of the tools that use the network, and what they take: devices, MAC addresses, seconds.

use std::time::Duration;

use aoe_proto::wire::{Address, MacAddr};

use super::raw::Raw;
use crate::interfaces::InterfaceArgs;

/// Where to ask, and how long to wait.
#[derive(Debug, clap::Args)]
pub(super) struct Network {
    #[command(flatten)]
    pub(super) interfaces: InterfaceArgs,

    /// How long to wait for answers, in seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    pub(super) timeout: Duration,
}

impl Network {
    /// Opens the interfaces.
    pub(super) fn open(&self) -> anyhow::Result<Raw> {
        Raw::open(&self.interfaces)
    }

    /// That nobody answered, and what to try.
    pub(super) fn silence(&self, raw: &Raw, device: Option<Address>) -> String {
        let who = device.map_or_else(|| "no AoE device answered".to_owned(), |device| format!("{device}: no answer"));
        let (seconds, interfaces) = (self.timeout.as_secs_f64(), raw.interfaces());
        format!(
            "{who} within {seconds} s on {interfaces}: is the shelf up, on this network, and does its MAC mask let us in?"
        )
    }
}

/// SHELF.SLOT on the command line, with or without the `e`.
pub(super) fn parse_device(text: &str) -> Result<Address, String> {
    let text = text.strip_prefix('e').unwrap_or(text);
    format!("e{text}").parse().map_err(|_| "a device is SHELF.SLOT, such as 9.0 or e9.0".to_owned())
}

/// Seconds, with decimals if need be, up to an hour.
pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|seconds| (0.001..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "seconds are 0.001 to 3600".to_owned())
}

/// A MAC address on the command line, or the interfaces' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Station {
    /// `self`.
    Own,
    /// An address.
    Mac(MacAddr),
}

impl std::str::FromStr for Station {
    type Err = String;

    fn from_str(text: &str) -> Result<Station, String> {
        if text == "self" {
            return Ok(Station::Own);
        }
        let mac: MacAddr = text.parse().map_err(|error| format!("{error}; or self, for this host's own"))?;
        if mac.is_multicast() {
            return Err(format!("{mac} is the address of a group: a list has those of single stations"));
        }
        Ok(Station::Mac(mac))
    }
}

/// The addresses meant, each once, in their order.
pub(super) fn stations(raw: &Raw, stations: &[Station]) -> Vec<MacAddr> {
    let own: Vec<MacAddr> = raw.ports().filter_map(|port| raw.mac(port)).collect();
    let mut macs = Vec::new();
    for station in stations {
        let of_this = match station {
            Station::Own => own.as_slice(),
            Station::Mac(mac) => std::slice::from_ref(mac),
        };
        for mac in of_this {
            if !macs.contains(mac) {
                macs.push(*mac);
            }
        }
    }
    macs
}

/// Bytes from the network as text: what is not printable is written `\xNN`.
pub(super) fn printable(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if c.is_control() => c.to_string().bytes().for_each(|byte| push_hex(&mut text, byte)),
                c => text.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_hex(&mut text, *byte));
    }
    text
}

fn push_hex(text: &mut String, byte: u8) {
    text.push_str(&format!("\\x{byte:02x}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices() {
        assert_eq!(parse_device("9.0"), Ok(Address::new(9, 0)));
        assert_eq!(parse_device("e9.3"), Ok(Address::new(9, 3)));
        for text in ["", "9", "9.", "ee9.0", "9.255", "65535.0", "9.0.0", "-1.0", "a.b"] {
            assert!(parse_device(text).is_err(), "{text}");
        }
    }

    #[test]
    fn seconds() {
        assert_eq!(parse_seconds("1"), Ok(Duration::from_secs(1)));
        assert_eq!(parse_seconds("0.25"), Ok(Duration::from_millis(250)));
        for text in ["", "0", "-1", "nan", "inf", "3601", "1s"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn stations_are_parsed() {
        assert_eq!("self".parse(), Ok(Station::Own));
        assert_eq!("02:00:00:00:00:01".parse(), Ok(Station::Mac(MacAddr([2, 0, 0, 0, 0, 1]))));
        for text in ["", "me", "02:00", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01"] {
            assert!(text.parse::<Station>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_not_printable_is_escaped() {
        assert_eq!(printable(b"plain text"), "plain text");
        assert_eq!(printable("grün".as_bytes()), "grün");
        assert_eq!(printable(b"a\x1b[31m\n\\\xff\xc3"), "a\\x1b[31m\\x0a\\\\\\xff\\xc3");
    }
}
