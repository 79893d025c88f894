//! A report as text.

use comfy_table::{CellAlignment, Table, presets};

use super::measure::{Latency, Report, Share};

/// Most hosts that are listed.
const LISTED_MAX: usize = 16;

/// The report as it is printed.
pub(super) fn text(report: &Report) -> String {
    let mut lines = vec![
        format!(
            "goodput      {:.1} MB/s, {:.0} requests/s, over {} s of virtual time",
            report.mb_per_s, report.iops, report.seconds
        ),
        format!(
            "frames       {} sent, {} of them again ({:.3} %)",
            report.frames_sent, report.retransmits, report.retransmits_percent
        ),
        format!(
            "lost         {} in full queues, {} on lossy links, {} on links that were down",
            report.lost_queue_full, report.lost_fault, report.lost_link_down
        ),
        format!(
            "fairness     {:.4} between devices, {:.4} between initiators",
            report.jain_devices, report.jain_initiators
        ),
        format!("in turn      {:.0} us from submission if all requests were served in turn", report.fair_us),
        format!("oldest       {:.0} us, of the requests that were outstanding at the end", report.oldest_us),
        format!("errors       {}", report.errors),
        String::new(),
        latencies(report).to_string(),
    ];
    for (what, shares) in [("initiator", &report.initiators), ("shelf", &report.shelves)] {
        if shares.len() <= LISTED_MAX {
            lines.push(String::new());
            lines.push(hosts(what, shares).to_string());
        }
    }
    lines.join("\n") + "\n"
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn latencies(report: &Report) -> Table {
    let mut table = table(["latency, us", "p50", "p99", "p99.9", "max"]);
    let mut row = |name: &str, Latency { p50_us, p99_us, p999_us, max_us }: Latency| {
        let numbers = [p50_us, p99_us, p999_us, max_us].map(|value| format!("{value:.0}"));
        table.add_row(std::iter::once(name.to_owned()).chain(numbers));
    };
    row("from first send", report.from_first_send);
    row("from submission", report.from_submission);
    table
}

fn hosts(what: &str, shares: &[Share]) -> Table {
    let mut table = table([what, "MB/s"]);
    for share in shares {
        table.add_row([share.name.clone(), format!("{:.1}", share.mb_per_s)]);
    }
    table
}
