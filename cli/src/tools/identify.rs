//! `identify`: what a device tells of itself by IDENTIFY DEVICE, decoded or as a dump.

use std::process::ExitCode;

use anyhow::bail;
use aoe_proto::wire::{Address, Identify};
use raid_core::md::text::{Field, human_size};
use raid_core::units::Bytes;
use serde::Serialize;

use super::exit;
use super::network::{Network, parse_device, printable};
use super::probe::{self, Identified, Seen};
use super::raw::{Patience, Raw};
use crate::output::{complain, print, print_json};

/// Show what AoE devices say they are (ATA IDENTIFY DEVICE)
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid identify -i eth1 9.0          # one device
  etherraid identify -i eth1              # all of them
  etherraid identify -i eth1 9.0 --hex    # the 512 bytes, as `aoeping -i` shows them")]
pub(crate) struct Args {
    #[command(flatten)]
    network: Network,

    /// SHELF.SLOT [default: all devices]
    #[arg(value_name = "SHELF.SLOT", value_parser = parse_device)]
    device: Option<Address>,

    /// Print the data as they are, in hexadecimal
    #[arg(long)]
    hex: bool,

    /// Print JSON
    #[arg(long, conflicts_with = "hex")]
    json: bool,
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut raw = args.network.open()?;
    let seen = devices(&mut raw, &args.network, args.device)?;
    let results = probe::identify(&mut raw, &seen, Patience::asking_again(args.network.timeout));
    let mut all = true;
    let mut rows = Vec::new();
    for (seen, result) in seen.iter().zip(results) {
        match result {
            Ok((identified, _)) if args.json => rows.push(Row::new(seen, &identified.identify)),
            Ok((identified, _)) => print(&listing(seen, &identified, args.hex))?,
            Err(fault) => {
                all = false;
                complain(format_args!("{}: IDENTIFY: {fault}", seen.address));
            }
        }
    }
    if args.json {
        print_json(&rows)?;
    }
    Ok(exit(all))
}

/// The device that is named, or all, each on the first path to it.
pub(super) fn devices(raw: &mut Raw, network: &Network, device: Option<Address>) -> anyhow::Result<Vec<Seen>> {
    let mut seen = match device {
        Some(address) => probe::find(raw, address, network.timeout).into_iter().collect(),
        None => probe::discover(raw, Address::ALL, network.timeout),
    };
    seen.dedup_by_key(|seen| seen.address);
    if seen.is_empty() {
        bail!("{}", network.silence(raw, device));
    }
    Ok(seen)
}

fn listing(seen: &Seen, identified: &Identified, hex: bool) -> String {
    let line = |field: Field| format!("{:>18} : {}\n", field.name, field.value);
    let text = match hex {
        true => dump(&identified.data),
        false => fields(&identified.identify).into_iter().map(line).collect(),
    };
    format!("{}:\n{text}", seen.address)
}

/// Sixteen bytes a line, as aoeping prints them.
fn dump(data: &[u8]) -> String {
    let mut text = String::new();
    for line in data.chunks(16) {
        line.iter().for_each(|byte| text.push_str(&format!("{byte:02x} ")));
        text.push('\n');
    }
    text
}

/// The features that there are, by name.
fn features(identify: &Identify) -> Vec<&'static str> {
    let all = [
        (identify.lba48, "48-bit"),
        (identify.flush, "FLUSH CACHE"),
        (identify.flush_ext, "FLUSH CACHE EXT"),
        (identify.fua, "FUA"),
        (identify.trim, "TRIM"),
        (identify.trim_zeroes, "TRIM zeroes"),
    ];
    all.into_iter().filter_map(|(there, name)| there.then_some(name)).collect()
}

/// How the write cache is.
fn write_cache(identify: &Identify) -> &'static str {
    match (identify.write_cache_supported, identify.write_cache) {
        (_, true) => "on",
        (true, false) => "off",
        (false, false) => "none",
    }
}

fn fields(identify: &Identify) -> Vec<Field> {
    let mut fields = Vec::with_capacity(16);
    let mut put = |name, value| fields.push(Field { name, value });
    let text = |text: &str| printable(text.as_bytes());
    let bytes = Bytes(identify.sectors.saturating_mul(512));
    put("Model", text(identify.model.as_str()));
    put("Serial Number", text(identify.serial.as_str()));
    put("Firmware", text(identify.firmware.as_str()));
    put("Size", format!("{} sectors{}", identify.sectors, human_size(bytes)));
    let logical = identify.logical_sector;
    let physical = u64::from(logical) << identify.physical_exponent;
    put("Sector Size", format!("{logical} logical, {physical} physical"));
    put("Features", features(identify).join(", "));
    put("Write Cache", write_cache(identify).to_owned());
    put("Medium", if identify.solid_state { "does not rotate" } else { "rotates, or does not say" }.to_owned());
    if let Some(wwn) = identify.wwn {
        put("WWN", format!("{wwn:016x}"));
    }
    if let Some(boot) = identify.boot_number() {
        put("Boot Number", format!("{boot:08x}"));
        put("Repeated Requests", if identify.dedupes() { "recognised" } else { "carried out again" }.to_owned());
    }
    fields
}

/// The same for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    device: String,
    mac: String,
    model: String,
    serial: String,
    firmware: String,
    sectors: u64,
    size_bytes: u64,
    logical_sector_bytes: u32,
    physical_sector_bytes: u64,
    features: Vec<&'static str>,
    write_cache: &'static str,
    solid_state: bool,
    wwn: Option<String>,
    boot_number: Option<u32>,
    dedupes: bool,
}

impl Row {
    fn new(seen: &Seen, identify: &Identify) -> Row {
        let text = |text: &str| printable(text.as_bytes());
        Row {
            device: seen.address.to_string(),
            mac: seen.mac.to_string(),
            model: text(identify.model.as_str()),
            serial: text(identify.serial.as_str()),
            firmware: text(identify.firmware.as_str()),
            sectors: identify.sectors,
            size_bytes: identify.sectors.saturating_mul(512),
            logical_sector_bytes: identify.logical_sector,
            physical_sector_bytes: u64::from(identify.logical_sector) << identify.physical_exponent,
            features: features(identify),
            write_cache: write_cache(identify),
            solid_state: identify.solid_state,
            wwn: identify.wwn.map(|wwn| format!("{wwn:016x}")),
            boot_number: identify.boot_number(),
            dedupes: identify.dedupes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aoe_proto::wire::{AtaString, MODEL};

    #[test]
    fn a_dump_has_sixteen_bytes_a_line() {
        assert_eq!(dump(&[0x40; 17]), format!("{}\n40 \n", "40 ".repeat(16)));
    }

    #[test]
    fn fields_of_a_plain_disk() {
        let disk = Identify { model: AtaString::new("Some Disk"), physical_exponent: 3, ..Identify::disk(131_072) };
        let lines: Vec<String> = fields(&disk).iter().map(|field| format!("{}: {}", field.name, field.value)).collect();
        assert_eq!(
            lines,
            [
                "Model: Some Disk",
                "Serial Number: ",
                "Firmware: ",
                "Size: 131072 sectors (64.00 MiB 67.11 MB)",
                "Sector Size: 512 logical, 4096 physical",
                "Features: 48-bit, FLUSH CACHE, FLUSH CACHE EXT",
                "Write Cache: none",
                "Medium: rotates, or does not say",
            ]
        );
    }

    #[test]
    fn fields_of_our_shelf() {
        let disk = Identify {
            model: AtaString::new(MODEL),
            write_cache_supported: true,
            write_cache: true,
            fua: true,
            trim: true,
            trim_zeroes: true,
            solid_state: true,
            wwn: Some(0x5000_1234),
            boot: 0xAB,
            dedupe_flag: true,
            ..Identify::disk(1)
        };
        let value = |name| fields(&disk).into_iter().find(|field| field.name == name).map(|field| field.value);
        assert_eq!(value("Write Cache").as_deref(), Some("on"));
        assert_eq!(value("Features").as_deref(), Some("48-bit, FLUSH CACHE, FLUSH CACHE EXT, FUA, TRIM, TRIM zeroes"));
        assert_eq!(value("WWN").as_deref(), Some("0000000050001234"));
        assert_eq!(value("Boot Number").as_deref(), Some("000000ab"));
        assert_eq!(value("Repeated Requests").as_deref(), Some("recognised"));
        assert_eq!(write_cache(&Identify { write_cache: false, ..disk }), "off");
    }
}
