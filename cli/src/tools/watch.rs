//! `stat -w`: the paths of the arrays that run on this host, again and again.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use aoe_proto::wire::Address;
use serde::Serialize;

use super::status::{LIMIT, arrays};
use crate::control::messages::{AoeDevice, AoePath};
use crate::errors::one_line;
use crate::output::tell;

/// Clears a terminal, and goes to its top.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// What to show, and how often.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch<'a> {
    /// Between two looks.
    pub(super) every: Duration,
    /// How many looks; without end if unset.
    pub(super) count: Option<u32>,
    /// These devices; all if there are none.
    pub(super) devices: &'a [Address],
    pub(super) json: bool,
}

/// A path as JSON has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    array: String,
    device: String,
    silent: bool,
    #[serde(flatten)]
    path: AoePath,
}

/// Shows it until the looks are done, nobody reads, or a signal comes.
pub(super) fn watch(watch: &Watch<'_>) -> anyhow::Result<ExitCode> {
    let clear = std::io::stdout().is_terminal() && !watch.json;
    let start = Instant::now();
    for look in 1.. {
        let rows = rows(watch)?;
        let text = match watch.json {
            true => serde_json::to_string(&rows)?,
            false => table(&rows),
        };
        tell(format_args!("{}{text}", if clear { CLEAR } else { "" }))?;
        if watch.count.is_some_and(|count| look >= count) {
            break;
        }
        std::thread::sleep((watch.every * look).saturating_sub(start.elapsed()));
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(watch: &Watch<'_>) -> anyhow::Result<Vec<Row>> {
    let (arrays, _) = arrays()?;
    if arrays.is_empty() {
        bail!("no array runs on this host; without -w other devices can be looked at, with -i");
    }
    let mut rows = Vec::new();
    for array in arrays {
        match array.get_within::<Vec<AoeDevice>>("/paths", LIMIT) {
            Ok(devices) => rows.extend(devices.into_iter().flat_map(|device| rows_of(array.name(), device, watch))),
            Err(_) if !array.is_there() => {}
            Err(error) => tracing::warn!("{}", one_line(error.as_ref())),
        }
    }
    Ok(rows)
}

fn rows_of(array: &str, device: AoeDevice, watch: &Watch<'_>) -> Vec<Row> {
    let AoeDevice { device, silent, paths, .. } = device;
    let wanted = watch.devices.is_empty() || watch.devices.iter().any(|wanted| wanted.to_string() == device);
    let row = |path| Row { array: array.to_owned(), device: device.clone(), silent, path };
    paths.into_iter().filter(|_| wanted).map(row).collect()
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "    DEVICE         IF MAC               STATE      SRTT ms RTTVAR ms CWND SSTHRESH NOUT    RETRANS TAINT PAYLOAD ARRAY",
    );
    for row in rows {
        let Row { array, device, silent, path } = row;
        let ms = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{:.3}", us / 1000.0));
        let ssthresh = path.ssthresh.map_or("-".to_owned(), |frames| frames.to_string());
        let state = if *silent { "silent" } else { path.state.as_str() };
        text.push_str(&format!(
            "\n{device:>10} {:>10} {} {state:<10} {:>7} {:>9} {:>4} {ssthresh:>8} {:>4} {:>10} {:>5} {:>7} {array}",
            path.interface,
            path.mac,
            ms(path.rtt_us),
            ms(path.rttvar_us),
            path.window,
            path.outstanding,
            path.retransmits,
            path.taint,
            path.payload_bytes,
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_path_under_its_heads() {
        let path = AoePath {
            interface: "eth1".into(),
            local_mac: None,
            mac: "02:00:00:00:00:01".into(),
            up: true,
            state: "up".into(),
            rtt_us: Some(422.5),
            rttvar_us: Some(17.0),
            window: 12,
            ssthresh: None,
            outstanding: 3,
            taint: 0,
            payload_bytes: 8704,
            sent: 9,
            retransmits: 1,
            answered: 8,
        };
        let worse = AoePath { rtt_us: None, rttvar_us: None, ssthresh: Some(6), taint: 2, ..path.clone() };
        let device = AoeDevice {
            device: "e9.0".into(),
            size_bytes: None,
            silent: false,
            buffers: 9,
            outstanding: 3,
            paths: vec![path, worse],
        };
        let all = Watch { every: Duration::ZERO, count: None, devices: &[], json: false };
        let rows = rows_of("r5", device.clone(), &all);
        assert_eq!(
            table(&rows),
            "    DEVICE         IF MAC               STATE      SRTT ms RTTVAR ms CWND SSTHRESH NOUT    RETRANS TAINT PAYLOAD ARRAY
      e9.0       eth1 02:00:00:00:00:01 up           0.422     0.017   12        -    3          1     0    8704 r5
      e9.0       eth1 02:00:00:00:00:01 up               -         -   12        6    3          1     2    8704 r5"
        );
        let other = Watch { devices: &[Address::new(9, 1)], ..all };
        assert_eq!(rows_of("r5", device, &other), []);
    }
}
