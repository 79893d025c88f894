//! `--plot FILE.svg`: the rows as a drawing, rates above and latencies below, over the request size.
//!
//! A line per thread count, in the order of the rows; the bare loop's and an earlier run's rates stand beside as broken lines. Sizes are evenly
//! spaced, as each doubles the one before in most benches. The file is opened before anything is measured, and written when all is.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::{
    BLACK, Cartesian2d, Circle, Color, DashedLineSeries, DrawingArea, IntoDrawingArea, IntoFont, LineSeries,
    PathElement, RGBColor, SVGBackend, ShapeStyle, Text, WHITE,
};

use super::report::{Row, size_text};

/// Width and height in pixels.
const SIZE: (u32, u32) = (920, 720);

/// What the title and the chart of rates take of the height; the rest is for latencies.
const TITLE: u32 = 44;
const RATES: u32 = 370;

/// What a chart takes of the width; the rest is for the names of its lines, beside it, where they hide none.
const CHART: u32 = 740;

/// Height of a name.
const NAME: i32 = 22;

/// Colours of the lines, told apart by most eyes.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x1f, 0x6f, 0xb4),
    RGBColor(0xd9, 0x5f, 0x02),
    RGBColor(0x1b, 0x9e, 0x77),
    RGBColor(0x75, 0x70, 0xb3),
    RGBColor(0xe7, 0x29, 0x8a),
    RGBColor(0x66, 0x66, 0x66),
];
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
const QUIET: RGBColor = RGBColor(0x55, 0x55, 0x55);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

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

/// Where the drawing goes.
#[derive(Debug)]
pub(super) struct Plot {
    path: PathBuf,
    file: File,
}

impl Plot {
    /// Opens the file; what it held is lost.
    pub(super) fn create(path: &Path) -> anyhow::Result<Plot> {
        let file = File::create(path).with_context(|| format!("--plot {}", path.display()))?;
        Ok(Plot { path: path.to_owned(), file })
    }

    /// Draws the rows.
    pub(super) fn write(mut self, rows: &[Row]) -> anyhow::Result<()> {
        let svg = svg(rows)?;
        self.file.write_all(svg.as_bytes()).with_context(|| format!("--plot {}", self.path.display()))
    }
}

/// One line: a name, and a value for each size that has one.
struct Line {
    name: String,
    colour: RGBColor,
    broken: bool,
    points: Vec<(f64, f64)>,
}

/// The rows as SVG.
fn svg(rows: &[Row]) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|error| failed(&error))?;
        let (title, rest) = root.split_vertically(TITLE);
        let (rates, latencies) = rest.split_vertically(RATES);
        draw_title(&title, rows).map_err(|error| failed(&error))?;
        draw_rates(&rates, rows)?;
        draw_latencies(&latencies, rows)?;
        root.present().map_err(|error| failed(&error))?;
    }
    Ok(text)
}

fn failed(error: &dyn std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing the plot: {error}")
}

fn draw_title(area: &Area<'_>, rows: &[Row]) -> Result<(), Box<dyn std::error::Error>> {
    let first = rows.first().ok_or("no rows")?;
    let mut depths: Vec<usize> = rows.iter().map(|row| row.qd).collect();
    depths.sort_unstable();
    let (least, most) = (depths[0], depths[depths.len() - 1]);
    let depth = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let text = format!("{}, {depth} requests outstanding per load thread", first.mode);
    area.draw(&Text::new(text, (24, 16), ("sans-serif", 20).into_font().color(&BLACK)))?;
    Ok(())
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
    let chart = chart.map_err(|error| failed(&error))?;
    draw(chart, "MB/s", &|value| thousands(*value), &all)
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
    let chart = chart.map_err(|error| failed(&error))?;
    draw(chart, "latency, us", &|value| thousands(*value), &all)
}

/// The lines' names at the right; answers with the area that is left for the chart.
fn draw_names<'a>(area: &Area<'a>, lines: &[Line]) -> anyhow::Result<Area<'a>> {
    let (chart, names) = area.split_horizontally(CHART);
    for (index, line) in lines.iter().filter(|line| !line.name.is_empty()).enumerate() {
        let y = 18 + index as i32 * NAME;
        let style = ShapeStyle::from(&line.colour).stroke_width(2);
        let dashes = if line.broken { &[(0, 6), (10, 16), (20, 26)][..] } else { &[(0, 26)] };
        for (from, to) in dashes {
            names.draw(&PathElement::new([(*from, y), (*to, y)], style)).map_err(|error| failed(&error))?;
        }
        let font = ("sans-serif", 14).into_font().color(&BLACK);
        names.draw(&Text::new(line.name.as_str(), (34, y - 7), font)).map_err(|error| failed(&error))?;
    }
    Ok(chart)
}

fn builder<'a, 'b>(area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.margin_left(12).margin_right(12).margin_top(8).x_label_area_size(44).y_label_area_size(78);
    builder
}

fn draw<'a, 'b: 'a, Y>(
    mut chart: ChartContext<'a, SVGBackend<'b>, Cartesian2d<Sizes, Y>>,
    what: &str,
    value_text: &dyn Fn(&f64) -> String,
    lines: &[Line],
) -> anyhow::Result<()>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut mesh = chart.configure_mesh();
    mesh.bold_line_style(GRID).light_line_style(WHITE.mix(0.0)).axis_style(QUIET);
    mesh.x_labels(32).y_labels(8).y_label_formatter(value_text);
    mesh.label_style(("sans-serif", 14).into_font().color(&QUIET)).axis_desc_style(("sans-serif", 15));
    mesh.x_desc("request size").y_desc(what).draw().map_err(|error| failed(&error))?;
    for line in lines {
        let style = ShapeStyle::from(&line.colour).stroke_width(2);
        let points = line.points.iter().copied();
        let drawn = match line.broken {
            false => chart.draw_series(LineSeries::new(points, style)),
            true => chart.draw_series(DashedLineSeries::new(points, 6, 4, style)),
        };
        drawn.map_err(|error| failed(&error))?;
        let marks = line.points.iter().map(|point| Circle::new(*point, 3, line.colour.filled()));
        chart.draw_series(marks).map_err(|error| failed(&error))?;
    }
    Ok(())
}

/// A number with commas between thousands.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_commas() {
        assert_eq!([0.4, 12.0, 123.0, 1234.0, 1_234_567.0].map(thousands), ["0", "12", "123", "1,234", "1,234,567"]);
    }
}
