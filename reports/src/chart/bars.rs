//! Bars, one under another, each of parts that add up: what steps, memories and costs are made of.

use plotters::prelude::{DrawingBackend, IntoDrawingArea};
use plotters::style::RGBColor;
use plotters::style::text_anchor::HPos;

use super::axis::{Axis, Span};
use super::canvas::{Canvas, Lettering, Stroke};
use super::output::{self, Drawing};
use super::{ChartError, Format, palette};

/// Bars and what their parts are called.
#[derive(Clone, Debug, PartialEq)]
pub struct BarChart {
    /// One line, bold.
    pub title: String,
    /// One line under it. May be empty.
    pub subtitle: String,
    /// What the bars count; linear.
    pub axis: Axis,
    /// Names of the parts, in the order in which they stand, from the axis on.
    pub parts: Vec<String>,
    /// The bars, first on top.
    pub bars: Vec<Bar>,
}

/// A bar.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// What it is of.
    pub name: String,
    /// Its parts, in the unit of the axis' quantity; what is negative or no number counts as none.
    pub parts: Vec<f64>,
    /// A word behind the sum: `does not fit`. May be empty.
    pub remark: String,
}

impl Bar {
    /// The lengths of its parts, as many as there are names.
    pub(crate) fn lengths(&self, parts: usize) -> impl Iterator<Item = f64> {
        let own = self.parts.iter().map(|&part| if part.is_finite() { part.max(0.0) } else { 0.0 });
        own.chain(std::iter::repeat(0.0)).take(parts)
    }

    /// What its parts add up to.
    pub(crate) fn sum(&self, parts: usize) -> f64 {
        self.lengths(parts).sum()
    }
}

impl BarChart {
    /// The range of the axis; `None` where there is nothing to draw.
    pub(crate) fn span(&self) -> Option<Span> {
        let count = self.parts.len();
        let sums = self.bars.iter().map(|bar| bar.sum(count));
        (count > 0).then(|| Axis::linear(self.axis.quantity).span(sums)).flatten()
    }

    /// What stands behind a bar.
    pub(crate) fn label(&self, bar: &Bar) -> String {
        let sum = self.axis.said(bar.sum(self.parts.len()));
        if bar.remark.is_empty() { sum } else { format!("{sum}, {}", bar.remark) }
    }
}

const WIDTH: f64 = 860.0;
const MARGIN: f64 = 24.0;
const TOP: f64 = 84.0;
const ROW: f64 = 28.0;
const NAMES: f64 = 210.0;
const LABELS: f64 = 130.0;
const KEYS: f64 = 22.0;

struct Sheet<'a> {
    chart: &'a BarChart,
    span: Span,
    /// Where each entry of the legend begins, and its row.
    keys: Vec<(f64, usize)>,
}

/// Draws bars as SVG or PNG.
///
/// # Errors
/// [`ChartError::NoData`] where there is no bar; the others are defects of the drawing library.
pub fn render_bars(chart: &BarChart, format: Format) -> Result<Vec<u8>, ChartError> {
    super::font::register()?;
    let span = chart.span().ok_or_else(|| ChartError::NoData { title: chart.title.clone() })?;
    let keys = places_of_keys(&chart.parts, (MARGIN, WIDTH))?;
    output::bytes(&Sheet { chart, span, keys }, format)
}

/// Where the entries of a legend begin in a sheet with such margins and so wide, and their rows.
pub(super) fn places_of_keys(names: &[String], (margin, width): (f64, f64)) -> Result<Vec<(f64, usize)>, ChartError> {
    let (mut x, mut row) = (margin, 0);
    let mut keys = Vec::with_capacity(names.len());
    for name in names {
        let wide = 22.0 + Lettering::new(palette::INK, 12.0).width(name)? + 20.0;
        if x > margin && x + wide > width - margin {
            (x, row) = (margin, row + 1);
        }
        keys.push((x, row));
        x += wide;
    }
    Ok(keys)
}

/// Draws a legend of areas whose entries stand there, from `top` on.
pub(super) fn draw_keys<DB: DrawingBackend>(
    canvas: &Canvas<DB>,
    names: &[String],
    keys: &[(f64, usize)],
    top: f64,
) -> Result<(), ChartError> {
    for ((number, name), &(x, row)) in names.iter().enumerate().zip(keys) {
        let y = top + row as f64 * KEYS;
        canvas.rectangle((x, y - 6.0), (x + 14.0, y + 6.0), palette::series(number).0)?;
        canvas.text(name, (x + 20.0, y), Lettering::new(palette::INK, 12.0))?;
    }
    Ok(())
}

impl Sheet<'_> {
    /// Under the legend.
    fn top(&self) -> f64 {
        TOP + (self.keys.last().map_or(0, |key| key.1) + 1) as f64 * KEYS
    }

    fn bottom(&self) -> f64 {
        self.top() + self.chart.bars.len() as f64 * ROW
    }
}

impl Drawing for Sheet<'_> {
    fn size(&self) -> (u32, u32) {
        (WIDTH as u32, (self.bottom() + 36.0) as u32)
    }

    fn draw<DB: DrawingBackend>(&self, backend: DB, drop: f64) -> Result<(), ChartError> {
        let canvas = Canvas::new(backend.into_drawing_area(), drop);
        canvas.fill(RGBColor(255, 255, 255))?;
        let chart = self.chart;
        let title = Lettering::new(palette::INK, 19.0).bold();
        canvas.text(&title.fit(&chart.title, WIDTH - 2.0 * MARGIN)?, (MARGIN, 32.0), title)?;
        let subtitle = Lettering::new(palette::TEXT, 13.0);
        canvas.text(&subtitle.fit(&chart.subtitle, WIDTH - 2.0 * MARGIN)?, (MARGIN, 57.0), subtitle)?;
        draw_keys(&canvas, &chart.parts, &self.keys, TOP)?;
        let small = Lettering::new(palette::INK, 12.0);
        let (left, right) = (MARGIN + NAMES, WIDTH - MARGIN - LABELS);
        let at = |value: f64| left + self.span.place(value) * (right - left);
        let tick = Lettering::new(palette::TEXT, 11.5).align(HPos::Center);
        for one in self.span.ticks(6) {
            let x = left + one.at * (right - left);
            canvas.line(&[(x, self.top()), (x, self.bottom())], Stroke { colour: palette::GRID, width: 1.0 })?;
            if let Some(text) = &one.label {
                canvas.text(text, (x, self.bottom() + 15.0), tick)?;
            }
        }
        for (number, bar) in chart.bars.iter().enumerate() {
            let middle = self.top() + (number as f64 + 0.5) * ROW;
            canvas.text(&small.fit(&bar.name, NAMES - 12.0)?, (left - 9.0, middle), small.align(HPos::Right))?;
            let mut from = 0.0;
            for (part, length) in bar.lengths(chart.parts.len()).enumerate().filter(|(_, length)| *length > 0.0) {
                let colour = palette::series(part).0;
                canvas.rectangle((at(from), middle - 9.0), (at(from + length), middle + 9.0), colour)?;
                from += length;
            }
            canvas.text(&small.fit(&chart.label(bar), LABELS)?, (at(from) + 7.0, middle), small)?;
        }
        canvas.line(&[(left, self.top()), (left, self.bottom())], Stroke { colour: palette::AXIS, width: 1.0 })?;
        canvas.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::Quantity;

    fn chart(bars: &[&[f64]]) -> BarChart {
        let bar = |parts: &&[f64]| Bar { name: "a <b>".into(), parts: parts.to_vec(), remark: String::new() };
        BarChart {
            title: "Step".into(),
            subtitle: String::new(),
            axis: Axis::linear(Quantity::Time),
            parts: vec!["compute".into(), "data".into()],
            bars: bars.iter().map(bar).collect(),
        }
    }

    #[test]
    fn bars_add_up_and_say_so() {
        let chart = chart(&[&[1e6, 2e6], &[f64::NAN, -1.0]]);
        assert_eq!(chart.label(&chart.bars[0]), "3 s");
        assert_eq!(chart.bars[1].sum(2), 0.0);
        let svg = String::from_utf8(render_bars(&chart, Format::Svg).unwrap()).unwrap();
        assert!(svg.contains("compute") && svg.contains("a &lt;b&gt;") && svg.contains("3 s"));
        assert!(render_bars(&chart, Format::Png).unwrap().starts_with(b"\x89PNG"));
    }

    #[test]
    fn nothing_is_no_chart() {
        assert!(render_bars(&chart(&[]), Format::Svg).is_err());
    }
}
