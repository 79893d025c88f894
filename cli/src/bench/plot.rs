//! `--plot FILE.svg`: the rows as a drawing, rates above and latencies below, over the request size.
//!
//! A line per thread count, in the order of the rows; the bare loop's and an earlier run's rates stand beside as broken lines. Sizes are evenly
//! spaced, as each doubles the one before in most benches.

use std::ops::Range;

use anyhow::Context;
use plotters::coord::combinators::IntoLogRange;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::report::{Row, size_text};
use crate::drawing::{Area, COLOURS, Line, builder, draw, draw_names, failed};

/// The axis of request sizes: a mark for each, evenly spaced.
#[derive(Clone, Debug)]
struct Sizes(Vec<u64>);

impl Ranged for Sizes {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let range = self.range();
        let part = (value - range.start) / (range.end - range.start);
        limit.0 + (part * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        (0..self.0.len()).map(|at| at as f64).collect()
    }

    fn range(&self) -> Range<f64> {
        -0.25..self.0.len() as f64 - 0.75
    }
}

impl ValueFormatter<f64> for Sizes {
    fn format_ext(&self, at: &f64) -> String {
        self.0.get(at.round() as usize).map_or_else(String::new, |bytes| size_text(*bytes))
    }
}

/// The rows as SVG.
pub(super) fn svg(rows: &[Row]) -> anyhow::Result<String> {
    let first = rows.first().context("drawing the plot: no rows")?;
    let mut depths: Vec<usize> = rows.iter().map(|row| row.qd).collect();
    depths.sort_unstable();
    let (least, most) = (depths[0], depths[depths.len() - 1]);
    let depth = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let title = format!("{}, {depth} requests outstanding per load thread", first.mode);
    crate::drawing::svg(&title, |area| draw_rates(area, rows), |area| draw_latencies(area, rows))
}

impl Sizes {
    /// In the order of the rows.
    fn of(rows: &[Row]) -> Sizes {
        let mut sizes: Vec<u64> = Vec::new();
        for row in rows {
            if !sizes.contains(&row.bs) {
                sizes.push(row.bs);
            }
        }
        Sizes(sizes)
    }

    /// Where a size is.
    fn at(&self, bytes: u64) -> f64 {
        self.0.iter().position(|size| *size == bytes).unwrap_or_default() as f64
    }
}

/// A line of each thread count for what `value` says of a row.
fn lines(rows: &[Row], name: &str, broken: bool, value: impl Fn(&Row) -> Option<f64>) -> Vec<Line> {
    let sizes = Sizes::of(rows);
    let mut lines: Vec<(Option<usize>, Line)> = Vec::new();
    for row in rows {
        let place = lines.iter().position(|(count, _)| *count == row.group_thread_cnt).unwrap_or_else(|| {
            let colour = COLOURS[lines.len() % COLOURS.len()];
            let name = match row.group_thread_cnt {
                None => name.to_owned(),
                Some(1) => format!("1 thread{}{name}", if name.is_empty() { "" } else { ", " }),
                Some(count) => format!("{count} threads{}{name}", if name.is_empty() { "" } else { ", " }),
            };
            lines.push((row.group_thread_cnt, Line { name, colour, broken, points: Vec::new() }));
            lines.len() - 1
        });
        if let Some(value) = value(row).filter(|value| *value > 0.0) {
            lines[place].1.points.push((sizes.at(row.bs), value));
        }
    }
    let lines = lines.into_iter().map(|(_, line)| line);
    lines.filter(|line| !line.points.is_empty()).collect()
}

fn draw_rates(area: &Area<'_>, rows: &[Row]) -> anyhow::Result<()> {
    let mut all = lines(rows, "", false, |row| Some(row.mb_per_s));
    all.extend(lines(rows, "bare loop", true, |row| row.limit_mb_per_s));
    all.extend(lines(rows, "before", true, |row| row.against_mb_per_s));
    let top = all.iter().flat_map(|line| &line.points).map(|point| point.1).fold(1.0, f64::max);
    let area = draw_names(area, &all)?;
    let chart = builder(&area).build_cartesian_2d(Sizes::of(rows), 0.0..top * 1.06);
    let chart = chart.map_err(failed)?;
    draw(chart, ("request size", "MB/s"), &all)
}

fn draw_latencies(area: &Area<'_>, rows: &[Row]) -> anyhow::Result<()> {
    let mut all = lines(rows, "p50", false, |row| Some(row.p50_us));
    all.extend(lines(rows, "p99", true, |row| Some(row.p99_us)));
    let values = all.iter().flat_map(|line| &line.points).map(|point| point.1);
    let (low, high) = values.fold((f64::MAX, 1.0), |(low, high), value| (value.min(low), value.max(high)));
    // Whole decades.
    let range = 10_f64.powf(low.min(high).log10().floor())..10_f64.powf((high * 1.01).log10().ceil());
    let area = draw_names(area, &all)?;
    let chart = builder(&area).build_cartesian_2d(Sizes::of(rows), range.log_scale());
    let chart = chart.map_err(failed)?;
    draw(chart, ("request size", "latency, us"), &all)
}
