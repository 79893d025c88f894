//! `status`: the arrays that run on this host, as /proc/mdstat shows md's.
//!
//! An array is found by its lock, whose file names its control socket; one that a killed process left behind is passed over.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use raid_core::md::text::level_name;
use serde::Serialize;

use super::exit;
use crate::control::client::{ControlArgs, NotServing};
use crate::control::messages::{Detail, Device, Sync};
use crate::errors::one_line;
use crate::output::{complain, print, print_json};
use crate::runtime_dir::announced;

/// How long an array may take to say how it stands.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// Cells of the progress bar.
const BAR: u64 = 20;

/// Show all arrays that run on this host, as /proc/mdstat does
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid status
  etherraid status --json

(F) is a device that failed or is missing, (S) a spare.")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An array by the name that it runs under.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Named {
    array: String,
    #[serde(flatten)]
    detail: Detail,
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (arrays, mut all) = arrays()?;
    let mut found = Vec::new();
    for array in arrays {
        match array.get_within("/detail", LIMIT) {
            Ok(detail) => found.push(Named { array: array.name().to_owned(), detail }),
            // It is not there yet, or has ended since it was found.
            Err(error) if error.is::<NotServing>() || !array.is_there() => {}
            Err(error) => {
                all = false;
                complain(one_line(error.as_ref()));
            }
        }
    }
    match args.json {
        true => print_json(&found)?,
        false => print(&mdstat(&found))?,
    }
    Ok(exit(all))
}

/// The arrays of this host, by name, and whether all could be reached.
pub(super) fn arrays() -> anyhow::Result<(Vec<ControlArgs>, bool)> {
    let (mut arrays, mut all) = (Vec::new(), true);
    for (name, path) in announced()? {
        match UnixStream::connect(&path) {
            Ok(_) => arrays.push(ControlArgs::at(name, path)),
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {}
            Err(error) => {
                all = false;
                complain(format_args!("array {name} at {}: {error}", path.display()));
            }
        }
    }
    Ok((arrays, all))
}

/// What is printed when this array is the only one, or none is there.
pub(crate) fn mdstat_of(array: &str, detail: Option<Detail>) -> String {
    let named = detail.map(|detail| Named { array: array.to_owned(), detail });
    mdstat(named.as_slice())
}

fn mdstat(arrays: &[Named]) -> String {
    let mut text = String::from("Personalities : [raid5] [raid4]\n");
    for Named { array, detail } in arrays {
        text.push_str(&lines(array, detail));
        text.push('\n');
    }
    text.push_str("unused devices: <none>\n");
    text
}

/// An array's lines.
fn lines(array: &str, detail: &Detail) -> String {
    let state = match detail.array_state.as_str() {
        "readonly" => "active (read-only)",
        "suspended" => "active (suspended)",
        "clear" => "inactive",
        _ => "active",
    };
    let mut text = format!("{array} : {state} {}", level_name(detail.level));
    // The one that came last is first, as in md.
    let mut devices: Vec<&Device> = detail.devices.iter().filter(|device| device.device.is_some()).collect();
    devices.sort_by_key(|device| std::cmp::Reverse(device.number));
    for device in devices {
        text.push_str(&format!(" {}", member(device)));
    }
    let letters: String = detail.devices.iter().filter(|row| row.raid_device.is_some()).map(letter).collect();
    text.push_str(&format!(
        "\n      {} blocks super {} level {}, {}k chunk, algorithm {} [{}/{}] [{letters}]\n",
        detail.array_size_bytes / 1024,
        detail.version,
        detail.level,
        detail.chunk_bytes / 1024,
        algorithm(&detail.layout),
        detail.raid_devices,
        detail.raid_devices - detail.degraded.min(detail.raid_devices),
    ));
    if let Some(sync) = &detail.sync {
        text.push_str(&progress(sync));
    }
    text
}

/// A device as `NAME[NUMBER]` and what is wrong with it.
fn member(device: &Device) -> String {
    let number = device.number.map_or_else(String::new, |number| number.to_string());
    let suffix = match device.state.as_str() {
        "faulty" | "missing" => "(F)",
        "spare" => "(S)",
        _ => "",
    };
    format!("{}[{number}]{suffix}", device.device.as_deref().unwrap_or_default())
}

fn letter(device: &Device) -> char {
    if device.state.starts_with("active sync") { 'U' } else { '_' }
}

/// md's number of a layout.
fn algorithm(layout: &str) -> &'static str {
    match layout {
        "left-asymmetric" => "0",
        "right-asymmetric" => "1",
        "left-symmetric" => "2",
        "right-symmetric" => "3",
        "parity-first" => "4",
        "parity-last" => "5",
        _ => "?",
    }
}

/// The line of sync work under way.
fn progress(sync: &Sync) -> String {
    let total = sync.total_sectors.max(1);
    let done = sync.done_sectors.min(total);
    let per_mille = (u128::from(done) * 1000 / u128::from(total)) as u64;
    let cells = (u128::from(done) * u128::from(BAR) / u128::from(total)) as u64;
    let bar: String = (0..BAR)
        .map(|cell| {
            if cell < cells {
                '='
            } else if cell == cells {
                '>'
            } else {
                '.'
            }
        })
        .collect();
    let word = match sync.action.as_str() {
        "recover" => "recovery",
        "check" => "check",
        _ => "resync",
    };
    let seconds = (total - done) / 2 / sync.speed.max(1);
    format!(
        "      [{bar}]  {word} = {:2}.{}% ({}/{}) finish={}.{}min speed={}K/sec\n",
        per_mille / 10,
        per_mille % 10,
        done / 2,
        total / 2,
        seconds / 60,
        seconds % 60 / 6,
        sync.speed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(number: Option<u32>, slot: Option<u8>, state: &str, name: Option<&str>) -> Device {
        let device = name.map(str::to_owned);
        Device { number, raid_device: slot, state: state.into(), device, volatile: false, corrected: 0 }
    }

    fn detail(devices: Vec<Device>, degraded: u32, array_state: &str, sync: Option<Sync>) -> Named {
        let detail = Detail {
            version: "1.2".into(),
            creation_time: 0,
            level: 5,
            array_size_bytes: 3_139_584 * 1024,
            used_dev_size_bytes: 1_046_528 * 1024,
            raid_devices: 4,
            total_devices: 4,
            update_time: 0,
            state: String::new(),
            active_devices: 0,
            working_devices: 0,
            failed_devices: 0,
            spare_devices: 0,
            layout: "left-symmetric".into(),
            chunk_bytes: 512 << 10,
            consistency_policy: "resync".into(),
            sync,
            name: "host:r5".into(),
            uuid: String::new(),
            events: 0,
            devices,
            array_state: array_state.into(),
            degraded,
            sync_action: String::new(),
            last_sync_action: None,
            mismatch_cnt: 0,
            resync_start: None,
            fenced: false,
            conflicts: Vec::new(),
        };
        Named { array: "md0".into(), detail }
    }

    fn sync(action: &str, done: u64, total: u64, speed: u64) -> Sync {
        let (done_sectors, total_sectors) = (done * 2, total * 2);
        Sync { action: action.into(), word: String::new(), percent: 0, done_sectors, total_sectors, speed }
    }

    #[test]
    fn lines_are_mdstats() {
        let rebuilding = detail(
            vec![
                device(Some(0), Some(0), "active sync", Some("sda")),
                device(Some(1), Some(1), "active sync silent", Some("sdb")),
                device(Some(2), Some(2), "active sync", Some("sdc")),
                device(Some(4), Some(3), "spare rebuilding", Some("sdd")),
            ],
            1,
            "active",
            Some(sync("recover", 132_480, 1_046_528, 33_120)),
        );
        assert_eq!(
            mdstat(&[rebuilding]),
            "Personalities : [raid5] [raid4]
md0 : active raid5 sdd[4] sdc[2] sdb[1] sda[0]
      3139584 blocks super 1.2 level 5, 512k chunk, algorithm 2 [4/3] [UUU_]
      [==>.................]  recovery = 12.6% (132480/1046528) finish=0.4min speed=33120K/sec

unused devices: <none>
"
        );
        assert_eq!(mdstat(&[]), "Personalities : [raid5] [raid4]\nunused devices: <none>\n");
    }

    #[test]
    fn what_is_wrong_is_marked() {
        let bad = detail(
            vec![
                device(Some(0), Some(0), "active sync", Some("e9.0")),
                device(None, Some(1), "removed", None),
                device(None, Some(2), "removed", None),
                device(Some(3), Some(3), "active sync", Some("e9.3")),
                device(Some(1), None, "faulty", Some("e9.1")),
                device(Some(2), None, "missing", Some("e9.2")),
                device(Some(4), None, "spare", Some("e9.4")),
            ],
            2,
            "suspended",
            None,
        );
        let text = lines("md0", &bad.detail);
        assert!(text.starts_with("md0 : active (suspended) raid5 e9.4[4](S) e9.3[3] e9.2[2](F) e9.1[1](F) e9.0[0]\n"));
        assert!(text.ends_with("[4/2] [U__U]\n"), "{text}");
        assert!(lines("md0", &detail(Vec::new(), 0, "readonly", None).detail).contains("active (read-only) raid5\n"));
        assert!(lines("md0", &detail(Vec::new(), 0, "clear", None).detail).contains(" : inactive raid5\n"));
    }

    #[test]
    fn progress_at_both_ends() {
        assert!(
            progress(&sync("resync", 0, 100, 0))
                .contains("[>...................]  resync =  0.0% (0/100) finish=1.6min")
        );
        assert!(
            progress(&sync("check", 100, 100, 5))
                .contains("[====================]  check = 100.0% (100/100) finish=0.0min")
        );
        assert!(progress(&sync("repair", 50, 100, 5)).contains("[==========>.........]  resync = 50.0%"));
    }
}
