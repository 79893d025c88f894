//! Charts as SVG: what `bench --plot` and `simulate --plot` share. Lines over an axis, their names beside the chart, where they hide none.
//!
//! The file is opened before anything is measured, and written when all is.

use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::{
    BLACK, Cartesian2d, Circle, Color, DashedLineSeries, DrawingArea, IntoDrawingArea, IntoFont, LineSeries,
    PathElement, RGBColor, SVGBackend, ShapeStyle, Text, WHITE,
};

/// Width and height in pixels.
const SIZE: (u32, u32) = (920, 720);

/// What the title and the upper chart take of the height; the rest is for the lower one.
const TITLE: u32 = 44;
const UPPER: u32 = 370;

/// What a chart takes of the width; the rest is for the names of its lines.
const CHART: u32 = 740;

/// Height of a name.
const NAME: i32 = 22;

/// Most points of a line that are marked.
const MARKED_MAX: usize = 40;

/// Colours of the lines, told apart by most eyes.
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(0x1f, 0x6f, 0xb4),
    RGBColor(0xd9, 0x5f, 0x02),
    RGBColor(0x1b, 0x9e, 0x77),
    RGBColor(0x75, 0x70, 0xb3),
    RGBColor(0xe7, 0x29, 0x8a),
    RGBColor(0x66, 0x66, 0x66),
];
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
const QUIET: RGBColor = RGBColor(0x55, 0x55, 0x55);

/// A part of the drawing.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Where the drawing goes.
#[derive(Debug)]
pub(crate) struct Plot {
    path: PathBuf,
    file: File,
}

impl Plot {
    /// Opens the file; what it held is lost.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Plot> {
        let file = File::create(path).with_context(|| format!("--plot {}", path.display()))?;
        Ok(Plot { path: path.to_owned(), file })
    }

    /// Writes what [`svg`] has made.
    pub(crate) fn write(mut self, svg: &str) -> anyhow::Result<()> {
        self.file.write_all(svg.as_bytes()).with_context(|| format!("--plot {}", self.path.display()))
    }
}

/// One line: a name, and its points. Lines without a name are not listed.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) colour: RGBColor,
    pub(crate) broken: bool,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A drawing of two charts below a title.
pub(crate) fn svg(
    title: &str,
    upper: impl FnOnce(&Area<'_>) -> anyhow::Result<()>,
    lower: impl FnOnce(&Area<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let (top, rest) = root.split_vertically(TITLE);
        let font = ("sans-serif", 20).into_font().color(&BLACK);
        top.draw(&Text::new(title, (24, 16), font)).map_err(failed)?;
        let (first, second) = rest.split_vertically(UPPER);
        upper(&first)?;
        lower(&second)?;
        root.present().map_err(failed)?;
    }
    Ok(text)
}

/// What the drawing library complains of.
pub(crate) fn failed(error: impl Display) -> anyhow::Error {
    anyhow!("drawing the plot: {error}")
}

/// The lines' names at the right; answers with the area that is left for the chart.
pub(crate) fn draw_names<'a>(area: &Area<'a>, lines: &[Line]) -> anyhow::Result<Area<'a>> {
    let (chart, names) = area.split_horizontally(CHART);
    for (index, line) in lines.iter().filter(|line| !line.name.is_empty()).enumerate() {
        let y = 18 + index as i32 * NAME;
        let style = ShapeStyle::from(&line.colour).stroke_width(2);
        let dashes = if line.broken { &[(0, 6), (10, 16), (20, 26)][..] } else { &[(0, 26)] };
        for (from, to) in dashes {
            names.draw(&PathElement::new([(*from, y), (*to, y)], style)).map_err(failed)?;
        }
        let font = ("sans-serif", 14).into_font().color(&BLACK);
        names.draw(&Text::new(line.name.as_str(), (34, y - 7), font)).map_err(failed)?;
    }
    Ok(chart)
}

/// A chart with room for its labels.
pub(crate) fn builder<'a, 'b>(area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.margin_left(12).margin_right(12).margin_top(8).x_label_area_size(44).y_label_area_size(78);
    builder
}

/// Draws lines; `axes` say what x and y are.
pub(crate) fn draw<'a, 'b: 'a, X, Y>(
    mut chart: ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>,
    axes: (&str, &str),
    lines: &[Line],
) -> anyhow::Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut mesh = chart.configure_mesh();
    mesh.bold_line_style(GRID).light_line_style(WHITE.mix(0.0)).axis_style(QUIET);
    mesh.x_labels(32).y_labels(8).y_label_formatter(&|value| thousands(*value));
    mesh.label_style(("sans-serif", 14).into_font().color(&QUIET)).axis_desc_style(("sans-serif", 15));
    mesh.x_desc(axes.0).y_desc(axes.1).draw().map_err(failed)?;
    for line in lines {
        let style = ShapeStyle::from(&line.colour).stroke_width(2);
        let points = line.points.iter().copied();
        let drawn = match line.broken {
            false => chart.draw_series(LineSeries::new(points, style)),
            true => chart.draw_series(DashedLineSeries::new(points, 6, 4, style)),
        };
        drawn.map_err(failed)?;
        if line.points.len() <= MARKED_MAX {
            let marks = line.points.iter().map(|point| Circle::new(*point, 3, line.colour.filled()));
            chart.draw_series(marks).map_err(failed)?;
        }
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
