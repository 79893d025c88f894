//! `detail`: how a running array stands, in the words and the order of `mdadm --detail`.
//!
//! Devices have no major and minor numbers here: those columns show `-`.

use std::fmt::Write as _;
use std::process::{Command, ExitCode};

use raid_core::md::text::{Field, human_size, level_name, time};
use raid_core::units::Bytes;

use crate::control::client::ControlArgs;
use crate::control::messages::{self, Detail, Device};
use crate::output::{print, print_json};

/// Show how a running array stands
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid detail r5
  etherraid detail r5 --json    # the same for programs: docs/CONTROL.md")]
pub(crate) struct Args {
    #[command(flatten)]
    array: ControlArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let detail: Detail = args.array.get("/detail")?;
    if args.json {
        print_json(&detail)?;
    } else {
        let fields = fields_text(&fields(&detail, zone_at));
        print(&format!("{}:\n{fields}\n{}", args.array.name(), table(&detail.devices)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Fields as mdadm aligns them, a line each.
pub(crate) fn fields_text(fields: &[Field]) -> String {
    fields.iter().map(|Field { name, value }| format!("{name:>18} : {value}\n")).collect()
}

/// Seconds that local time is ahead of Greenwich at that time; 0 where nobody knows.
pub(crate) fn zone_at(seconds: u64) -> i32 {
    let output = Command::new("date").arg("-d").arg(format!("@{seconds}")).arg("+%z").output();
    let text = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    text.and_then(|text| parse_zone(text.trim())).unwrap_or(0)
}

/// `+hhmm` in seconds.
fn parse_zone(text: &str) -> Option<i32> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        _ => return None,
    };
    let number: i32 = digits.parse().ok().filter(|_| digits.len() == 4)?;
    Some(sign * (number / 100 * 3600 + number % 100 * 60))
}

fn fields(detail: &Detail, zone_at: impl Fn(u64) -> i32) -> Vec<Field> {
    let kib = |bytes: u64| format!("{}{}", bytes / 1024, human_size(Bytes(bytes)));
    let date = |seconds: u64| time(seconds, zone_at(seconds));
    let mut fields = Vec::with_capacity(24);
    let mut put = |name, value| fields.push(Field { name, value });
    put("Version", detail.version.clone());
    put("Creation Time", date(detail.creation_time));
    put("Raid Level", level_name(detail.level));
    put("Array Size", kib(detail.array_size_bytes));
    put("Used Dev Size", kib(detail.used_dev_size_bytes));
    put("Raid Devices", detail.raid_devices.to_string());
    put("Total Devices", detail.total_devices.to_string());
    put("Persistence", "Superblock is persistent".to_owned());
    put("Update Time", date(detail.update_time));
    put("State", detail.state.clone());
    put("Active Devices", detail.active_devices.to_string());
    put("Working Devices", detail.working_devices.to_string());
    put("Failed Devices", detail.failed_devices.to_string());
    put("Spare Devices", detail.spare_devices.to_string());
    put("Layout", detail.layout.clone());
    put("Chunk Size", format!("{}K", detail.chunk_bytes / 1024));
    put("Consistency Policy", detail.consistency_policy.clone());
    if let Some(sync) = &detail.sync {
        let name = match sync.word.as_str() {
            "Rebuild" => "Rebuild Status",
            "Resync" => "Resync Status",
            _ => "Check Status",
        };
        put(name, format!("{}% complete", sync.percent));
    }
    put("Name", detail.name.clone());
    put("UUID", detail.uuid.clone());
    put("Events", detail.events.to_string());
    for conflict in &detail.conflicts {
        let messages::Conflict { device, interface, mac } = conflict;
        put("Conflict", format!("another device claims {device}, at {mac} on {interface}: it is not used"));
    }
    fields
}

fn table(devices: &[Device]) -> String {
    let mut text = String::from("    Number   Major   Minor   RaidDevice State\n");
    for device in devices {
        let or_none = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
        let (number, slot) = (or_none(device.number), or_none(device.raid_device.map(u32::from)));
        let also = if device.volatile { " volatile" } else { "" };
        let name = device.device.as_ref().map(|name| format!("   {name}")).unwrap_or_default();
        // Writing to a string does not fail.
        let _ = writeln!(text, "   {number:>5}       -        -    {slot:>5}      {}{also}{name}", device.state);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::messages::Sync;

    fn device(number: Option<u32>, slot: Option<u8>, state: &str, name: &str) -> Device {
        let device = (!name.is_empty()).then(|| name.to_owned());
        Device { number, raid_device: slot, state: state.into(), device, volatile: name == "e9.1", corrected: 0 }
    }

    fn detail() -> Detail {
        Detail {
            version: "1.2".into(),
            creation_time: 0,
            level: 5,
            array_size_bytes: 12 << 20,
            used_dev_size_bytes: 6 << 20,
            raid_devices: 3,
            total_devices: 3,
            update_time: 86_400,
            state: "clean, degraded, recovering".into(),
            active_devices: 2,
            working_devices: 3,
            failed_devices: 0,
            spare_devices: 1,
            layout: "left-symmetric".into(),
            chunk_bytes: 64 << 10,
            consistency_policy: "resync".into(),
            sync: Some(Sync {
                action: "recover".into(),
                word: "Rebuild".into(),
                percent: 12,
                done_sectors: 12,
                total_sectors: 100,
                speed: 1,
            }),
            name: "host:r5".into(),
            uuid: "0:0:0:0".into(),
            events: 7,
            devices: Vec::new(),
            array_state: "clean".into(),
            degraded: 1,
            sync_action: "recover".into(),
            last_sync_action: None,
            mismatch_cnt: 0,
            resync_start: None,
            fenced: false,
            conflicts: Vec::new(),
        }
    }

    #[test]
    fn fields_are_mdadms() {
        let fields = fields(&detail(), |_| 3600);
        let lines: Vec<String> = fields.iter().map(|field| format!("{} : {}", field.name, field.value)).collect();
        assert_eq!(
            lines,
            [
                "Version : 1.2",
                "Creation Time : Thu Jan  1 01:00:00 1970",
                "Raid Level : raid5",
                "Array Size : 12288 (12.00 MiB 12.58 MB)",
                "Used Dev Size : 6144 (6.00 MiB 6.29 MB)",
                "Raid Devices : 3",
                "Total Devices : 3",
                "Persistence : Superblock is persistent",
                "Update Time : Fri Jan  2 01:00:00 1970",
                "State : clean, degraded, recovering",
                "Active Devices : 2",
                "Working Devices : 3",
                "Failed Devices : 0",
                "Spare Devices : 1",
                "Layout : left-symmetric",
                "Chunk Size : 64K",
                "Consistency Policy : resync",
                "Rebuild Status : 12% complete",
                "Name : host:r5",
                "UUID : 0:0:0:0",
                "Events : 7",
            ]
        );
    }

    #[test]
    fn the_table_has_a_line_for_each_device() {
        let devices = [
            device(Some(0), Some(0), "active sync", "/disk"),
            device(Some(3), Some(1), "spare rebuilding", "e9.1"),
            device(None, Some(2), "removed", ""),
            device(Some(2), None, "faulty", "e9.2"),
        ];
        assert_eq!(
            table(&devices),
            "    Number   Major   Minor   RaidDevice State\n       \
             0       -        -        0      active sync   /disk\n       \
             3       -        -        1      spare rebuilding volatile   e9.1\n       \
             -       -        -        2      removed\n       \
             2       -        -        -      faulty   e9.2\n"
        );
    }

    #[test]
    fn zones() {
        assert_eq!(parse_zone("+0000"), Some(0));
        assert_eq!(parse_zone("-0330"), Some(-12_600));
        assert_eq!(parse_zone("+0545"), Some(20_700));
        for text in ["", "0000", "+1", "+ab00", "UTC"] {
            assert_eq!(parse_zone(text), None, "{text}");
        }
    }
}
