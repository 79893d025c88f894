//! The rows of a bench, and how they are shown: a table, JSON, or comma-separated values.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use raid_core::units::Sectors;
use serde::Serialize;

use super::args::Mode;
use super::measure::Measured;

/// One row. Names and units are an interface: scripts read them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    /// What the load did.
    pub(super) mode: &'static str,
    /// Request size in bytes.
    pub(super) bs: u64,
    /// Workers per CPU; none for a bare device, and for an array that is not on this host.
    pub(super) group_thread_cnt: Option<usize>,
    /// Requests that each load thread kept outstanding.
    pub(super) qd: usize,
    /// 10^6 bytes per second.
    pub(super) mb_per_s: f64,
    /// Requests per second.
    pub(super) iops: f64,
    /// `mb_per_s` over that of the row with the same size and 0 threads.
    pub(super) ratio: Option<f64>,
    /// Mean length of a request to a member.
    pub(super) member_request_sectors: Option<f64>,
    /// Mean bytes of data that an answered AoE frame carried, either way.
    pub(super) frame_bytes_mean: Option<f64>,
    /// Processor time of the process per wall time; through NBD of the array's process as well.
    pub(super) cpu_percent: f64,
    /// Processor time per request.
    pub(super) cpu_us_per_op: f64,
    /// Latency that half of the requests did not exceed.
    pub(super) p50_us: f64,
    /// The same for 99 %.
    pub(super) p99_us: f64,
    /// The same for 99.9 %.
    pub(super) p999_us: f64,
    /// Resident size without memory members and the load's buffers; through NBD that of the array's process.
    pub(super) rss_bytes: u64,
    /// AoE frames sent again.
    pub(super) retransmits: u64,
    /// Requests that failed.
    pub(super) errors: u64,
    /// Regions that went into a queue or a list, per request: for each a worker must look there. Of arrays alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) handoffs_per_op: Option<f64>,
    /// Times per request that a region's word was changed by another thread while one did. Of arrays alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) contended_per_op: Option<f64>,
    /// Time per request that all CPUs of this host were busy, whoever used them; of devices with `--limit` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) busy_us_per_op: Option<f64>,
    /// The same for the plain loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit_busy_us_per_op: Option<f64>,
    /// Latency that half of the plain loop's frames did not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit_p50_us: Option<f64>,
    /// What the bare or plain loop does of the same; only with `--limit`, as all `limit_` fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit_mb_per_s: Option<f64>,
    /// `mb_per_s` over that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit_ratio: Option<f64>,
    /// `mb_per_s` of the earlier run; only with `--against`, and if that run has this row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) against_mb_per_s: Option<f64>,
    /// `mb_per_s` over that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) against_ratio: Option<f64>,
}

impl Row {
    /// What every row has.
    pub(super) fn new<C>(mode: Mode, size: Sectors, qd: usize, measured: &Measured<C>) -> Row {
        let bs = size.bytes().0;
        let [p50_us, p99_us, p999_us] = measured.latency.map(micros);
        Row {
            mode: mode.word(),
            bs,
            group_thread_cnt: None,
            qd,
            mb_per_s: round(measured.iops * bs as f64 / 1e6, 1),
            iops: round(measured.iops, 0),
            ratio: None,
            member_request_sectors: None,
            frame_bytes_mean: None,
            cpu_percent: round(measured.cpu_percent, 1),
            cpu_us_per_op: round(measured.cpu_us_per_op, 2),
            p50_us,
            p99_us,
            p999_us,
            rss_bytes: measured.rss,
            retransmits: 0,
            errors: measured.errors,
            handoffs_per_op: None,
            contended_per_op: None,
            busy_us_per_op: None,
            limit_busy_us_per_op: None,
            limit_p50_us: None,
            limit_mb_per_s: None,
            limit_ratio: None,
            against_mb_per_s: None,
            against_ratio: None,
        }
    }

    /// Notes how often threads had to do with each other over so many requests.
    pub(super) fn set_handed(&mut self, handoffs: u64, contended: u64, requests: u64) {
        let per_op = |count| mean(count, requests).map(|count| round(count, 4));
        self.handoffs_per_op = per_op(handoffs);
        self.contended_per_op = per_op(contended);
    }

    /// Notes how busy the host was: microseconds per request of ours and of the plain loop; and the latter's latency.
    pub(super) fn set_busy(&mut self, ours: f64, limit: f64, limit_p50: Duration) {
        self.busy_us_per_op = Some(round(ours, 2));
        self.limit_busy_us_per_op = Some(round(limit, 2));
        self.limit_p50_us = Some(micros(limit_p50));
    }

    /// Notes what the loop that is the limit does: requests per second.
    pub(super) fn set_limit(&mut self, iops: f64) {
        let limit = iops * self.bs as f64 / 1e6;
        self.limit_mb_per_s = Some(round(limit, 1));
        self.limit_ratio = (limit > 0.0).then(|| round(self.mb_per_s / limit, 3));
    }

    /// Notes what the row was before: 10^6 bytes per second.
    pub(super) fn set_before(&mut self, mb_per_s: f64) {
        self.against_mb_per_s = Some(mb_per_s);
        self.against_ratio = (mb_per_s > 0.0).then(|| round(self.mb_per_s / mb_per_s, 3));
    }
}

/// Sets the ratios of rows of one request size, if 0 threads are among them.
pub(super) fn set_ratios(rows: &mut [Row]) {
    let base = rows.iter().find(|row| row.group_thread_cnt == Some(0)).map(|row| row.mb_per_s);
    if let Some(base) = base.filter(|base| *base > 0.0) {
        for row in rows {
            row.ratio = Some(round(row.mb_per_s / base, 2));
        }
    }
}

/// The mean of so many with this sum; of none there is none.
pub(super) fn mean(sum: u64, count: u64) -> Option<f64> {
    (count > 0).then(|| sum as f64 / count as f64)
}

fn micros(time: Duration) -> f64 {
    round(time.as_secs_f64() * 1e6, 1)
}

fn round(value: f64, digits: i32) -> f64 {
    let unit = 10_f64.powi(digits);
    (value * unit).round() / unit
}

/// A JSON list.
pub(super) fn json(rows: &[Row]) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(rows)?)
}

/// A line of names, and a line per row. No value has a comma in it. Fields that not every row has come last, if any row has them.
pub(super) fn csv(rows: &[Row]) -> anyhow::Result<String> {
    let values = rows.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    let optional = OPTIONAL.iter().filter(|name| values.iter().any(|row| !row[**name].is_null()));
    let names: Vec<&str> = NAMES.iter().chain(optional).copied().collect();
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::Null => String::new(),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut lines = vec![names.join(",")];
    for row in &values {
        lines.push(names.iter().map(|name| text(&row[*name])).collect::<Vec<_>>().join(","));
    }
    Ok(lines.join("\n"))
}

/// Fields that only some rows have, in their order.
const OPTIONAL: [&str; 9] = [
    "handoffs_per_op",
    "contended_per_op",
    "busy_us_per_op",
    "limit_busy_us_per_op",
    "limit_p50_us",
    "limit_mb_per_s",
    "limit_ratio",
    "against_mb_per_s",
    "against_ratio",
];

/// The fields in their order.
const NAMES: [&str; 17] = [
    "mode",
    "bs",
    "group_thread_cnt",
    "qd",
    "mb_per_s",
    "iops",
    "ratio",
    "member_request_sectors",
    "frame_bytes_mean",
    "cpu_percent",
    "cpu_us_per_op",
    "p50_us",
    "p99_us",
    "p999_us",
    "rss_bytes",
    "retransmits",
    "errors",
];

/// A table for people. Columns that would be empty are left out.
pub(super) fn table(rows: &[Row]) -> Table {
    type Column = (&'static str, fn(&Row) -> Option<String>);
    let columns: [Column; 22] = [
        ("size", |row| Some(size_text(row.bs))),
        ("threads", |row| row.group_thread_cnt.map(|count| count.to_string())),
        ("MB/s", |row| Some(format!("{:.0}", row.mb_per_s))),
        ("IOPS", |row| Some(format!("{:.0}", row.iops))),
        ("limit MB/s", |row| row.limit_mb_per_s.map(|rate| format!("{rate:.0}"))),
        ("of limit", |row| row.limit_ratio.map(|ratio| format!("{ratio:.2}"))),
        ("before MB/s", |row| row.against_mb_per_s.map(|rate| format!("{rate:.0}"))),
        ("change", |row| row.against_ratio.map(|ratio| format!("{:+.1} %", (ratio - 1.0) * 100.0))),
        ("ratio", |row| row.ratio.map(|ratio| format!("{ratio:.2}"))),
        ("member request", |row| row.member_request_sectors.map(|sectors| format!("{sectors:.1} sectors"))),
        ("frame data", |row| row.frame_bytes_mean.map(|bytes| format!("{bytes:.0} bytes"))),
        ("CPU", |row| Some(format!("{:.0} %", row.cpu_percent))),
        ("CPU us/op", |row| Some(format!("{:.2}", row.cpu_us_per_op))),
        ("busy us/op", |row| row.busy_us_per_op.map(|time| format!("{time:.2}"))),
        ("limit busy", |row| row.limit_busy_us_per_op.map(|time| format!("{time:.2}"))),
        ("p50 us", |row| Some(format!("{:.0}", row.p50_us))),
        ("limit p50", |row| row.limit_p50_us.map(|time| format!("{time:.0}"))),
        ("p99 us", |row| Some(format!("{:.0}", row.p99_us))),
        ("p99.9 us", |row| Some(format!("{:.0}", row.p999_us))),
        ("memory", |row| Some(format!("{:.1} MiB", row.rss_bytes as f64 / (1 << 20) as f64))),
        ("resent", |row| (row.retransmits > 0).then(|| row.retransmits.to_string())),
        ("errors", |row| (row.errors > 0).then(|| row.errors.to_string())),
    ];
    let shown: Vec<_> = columns.into_iter().filter(|(_, text)| rows.iter().any(|row| text(row).is_some())).collect();
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(shown.iter().map(|(name, _)| *name));
    for row in rows {
        table.add_row(shown.iter().map(|(_, text)| text(row).unwrap_or_default()));
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A size in bytes as on the command line.
pub(super) fn size_text(bytes: u64) -> String {
    match bytes {
        b if b.is_multiple_of(1 << 20) => format!("{}m", b >> 20),
        b if b.is_multiple_of(1 << 10) => format!("{}k", b >> 10),
        b => b.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(iops: f64) -> Measured<()> {
        let latency = [10, 200, 3000].map(Duration::from_micros);
        Measured {
            iops,
            errors: 0,
            cpu_percent: 99.96,
            cpu_us_per_op: 1.234,
            latency,
            rss: 1 << 20,
            counters: ((), ()),
            wall: Duration::from_secs(1),
            ops: iops as u64,
        }
    }

    fn row(count: usize, iops: f64) -> Row {
        let row = Row::new(Mode::Randwrite, Sectors(8), 64, &measured(iops));
        Row { group_thread_cnt: Some(count), member_request_sectors: Some(8.5), ..row }
    }

    #[test]
    fn ratios_are_to_0_threads_if_they_are_there() {
        let mut rows = [row(1, 3000.0), row(0, 2000.0)];
        set_ratios(&mut rows);
        assert_eq!(rows.map(|row| row.ratio), [Some(1.5), Some(1.0)]);
        let mut rows = [row(1, 3000.0), row(2, 2000.0)];
        set_ratios(&mut rows);
        assert_eq!(rows.map(|row| row.ratio), [None, None]);
    }

    #[test]
    fn json_has_the_fields_in_their_order() {
        let text = json(&[row(1, 1000.0)]).expect("valid");
        let at: Vec<_> = NAMES.iter().map(|name| text.find(&format!("\"{name}\"")).expect("there")).collect();
        assert!(at.is_sorted());
        let value: serde_json::Value = serde_json::from_str(&text).expect("valid");
        assert_eq!(value[0].as_object().expect("an object").len(), NAMES.len());
        assert_eq!(value[0]["mb_per_s"], 4.1);
        assert_eq!(value[0]["bs"], 4096);
        assert_eq!(value[0]["ratio"], serde_json::Value::Null);
        assert_eq!(value[0]["cpu_percent"], 100.0);
    }

    #[test]
    fn csv_has_a_line_of_names_and_a_line_per_row() {
        let text = csv(&[row(0, 1000.0), row(1, 1000.0)]).expect("valid");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], NAMES.join(","));
        assert_eq!(lines[1], "randwrite,4096,0,64,4.1,1000.0,,8.5,,100.0,1.23,10.0,200.0,3000.0,1048576,0,0");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn options_bring_fields_of_their_own() {
        let mut rows = [row(0, 1000.0), row(1, 1000.0)];
        rows[0].set_limit(2000.0);
        rows[1].set_before(5.0);
        let text = csv(&rows).expect("valid");
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with(",errors,limit_mb_per_s,limit_ratio,against_mb_per_s,against_ratio"), "{text}");
        assert!(lines[1].ends_with(",0,8.2,0.5,,") && lines[2].ends_with(",0,,,5.0,0.82"), "{text}");
        let text = table(&rows).to_string();
        assert!(text.contains("of limit") && text.contains("0.50") && text.contains("-18.0 %"), "{text}");
    }

    #[test]
    fn rows_are_compared_with_their_like() {
        let path = std::env::temp_dir().join(format!("etherraid-against-{}.json", std::process::id()));
        std::fs::write(&path, json(&[row(1, 500.0), row(0, 1000.0)]).expect("valid")).expect("room");
        let against = super::super::against::Against::read(&path).expect("a list");
        std::fs::remove_file(&path).expect("there");
        let mut rows = [row(0, 1500.0), row(2, 1500.0)];
        against.compare(&mut rows);
        assert_eq!(rows.map(|row| row.against_ratio), [Some(1.488), None]);
    }

    #[test]
    fn the_table_leaves_empty_columns_out() {
        let text = table(&[row(1, 1000.0)]).to_string();
        assert!(text.contains("threads") && text.contains("8.5 sectors") && text.contains("1.0 MiB"), "{text}");
        assert!(!text.contains("ratio") && !text.contains("resent") && !text.contains("errors"), "{text}");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([512, 4096, 6144, 1 << 20].map(size_text), ["512", "4k", "6k", "1m"]);
    }
}
