//! `--plot FILE.svg`: windows above and goodput below, over time.

use super::measure::Report;
use crate::drawing::{Area, COLOURS, Line, builder, draw, draw_names, failed};

/// The report's course as SVG.
pub(super) fn svg(name: &str, report: &Report) -> anyhow::Result<String> {
    let samples = &report.samples;
    let mut windows = Vec::new();
    for (index, (name, points)) in samples.paths.iter().zip(&samples.windows).enumerate() {
        let (colour, broken) = (COLOURS[index % COLOURS.len()], index >= COLOURS.len());
        windows.push(Line { name: name.clone(), colour, broken, points: points.clone() });
    }
    let goodput = [Line { name: String::new(), colour: COLOURS[0], broken: false, points: samples.goodput.clone() }];
    crate::drawing::svg(
        &format!("{name}: windows and goodput over virtual time"),
        |area| chart(area, "window, frames", &windows),
        |area| chart(area, "goodput, MB/s", &goodput),
    )
}

fn chart(area: &Area<'_>, what: &str, lines: &[Line]) -> anyhow::Result<()> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (end, top) = points().fold((0.001, 1.0), |(end, top), point| (point.0.max(end), point.1.max(top)));
    let area = draw_names(area, lines)?;
    let chart = builder(&area).build_cartesian_2d(0.0..end, 0.0..top * 1.06).map_err(failed)?;
    draw(chart, ("seconds", what), lines)
}
