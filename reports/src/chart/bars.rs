//! Stacked horizontal bar charts, for the composition of steps, memory and costs.

use plotters::prelude::{DrawingBackend, IntoDrawingArea};

use super::axis::{Axis, AxisRange};
use super::canvas::{Canvas, Stroke, TextStyle};
use super::output::{self, Drawing};
use super::rows::{Measures, Rows, RowsText};
use super::{ChartError, Format, palette};

/// Chart of stacked bars.
#[derive(Clone, Debug, PartialEq)]
pub struct BarChart {
    /// Title: one bold line.
    pub title: String,
    /// Line below the title; may be empty.
    pub subtitle: String,
    /// Axis of the bars, which is linear.
    pub axis: Axis,
    /// Names of the parts, in stacking order starting at the axis.
    pub parts: Vec<String>,
    /// Bars of the chart, first on top.
    pub bars: Vec<Bar>,
}

/// One stacked bar of a [`BarChart`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// Name of the bar, shown to its left.
    pub name: String,
    /// Lengths of the bar's parts in the order of [`BarChart::parts`], in the unit of the axis' quantity. Negative and
    /// non-finite values count as zero.
    pub parts: Vec<f64>,
    /// Remark after the sum, such as `does not fit`; may be empty.
    pub remark: String,
}

impl Bar {
    /// Returns the lengths of the bar's first `parts` parts, padded with zeros.
    pub(crate) fn lengths(&self, parts: usize) -> impl Iterator<Item = f64> {
        let own = self.parts.iter().map(|&part| if part.is_finite() { part.max(0.0) } else { 0.0 });
        own.chain(std::iter::repeat(0.0)).take(parts)
    }

    /// Returns the sum of the bar's first `parts` parts.
    pub(crate) fn sum(&self, parts: usize) -> f64 {
        self.lengths(parts).sum()
    }
}

impl BarChart {
    /// Returns the range of the axis; `None` if there are no bars to draw.
    pub(crate) fn span(&self) -> Option<AxisRange> {
        let count = self.parts.len();
        let sums = self.bars.iter().map(|bar| bar.sum(count));
        (count > 0).then(|| Axis::linear(self.axis.quantity).span(sums)).flatten()
    }

    /// Returns the label after a bar: the sum of its parts, and its remark.
    pub(crate) fn label(&self, bar: &Bar) -> String {
        let sum = self.axis.tooltip_value(bar.sum(self.parts.len()));
        if bar.remark.is_empty() { sum } else { format!("{sum}, {}", bar.remark) }
    }
}

const LABELS: f64 = 130.0;
const MEASURES: Measures = Measures { width: 860.0, row: 28.0, names: 210.0, labels: LABELS, remark: 13.0, ticks: 6 };

struct BarSheet<'a> {
    chart: &'a BarChart,
    rows: Rows<'a>,
}

/// Draws a bar chart in a format.
///
/// # Errors
/// [`ChartError::NoData`] if there is no bar; other variants are failures of the drawing library.
pub fn render_bars(chart: &BarChart, format: Format) -> Result<Vec<u8>, ChartError> {
    super::font::register()?;
    let span = chart.span().ok_or_else(|| ChartError::NoData { title: chart.title.clone() })?;
    let rows = Rows::new(
        RowsText { title: &chart.title, remark: &chart.subtitle },
        &chart.parts,
        chart.bars.len(),
        span,
        MEASURES,
    )?;
    output::bytes(&BarSheet { chart, rows }, format)
}

impl Drawing for BarSheet<'_> {
    fn size(&self) -> (u32, u32) {
        self.rows.size()
    }

    fn draw<DB: DrawingBackend>(&self, backend: DB, drop: f64) -> Result<(), ChartError> {
        let canvas = Canvas::new(backend.into_drawing_area(), drop);
        let Self { chart, rows } = self;
        rows.draw(&canvas)?;
        let small = TextStyle::new(palette::INK, 12.0);
        for (number, bar) in chart.bars.iter().enumerate() {
            let middle = rows.middle(number);
            rows.name(&canvas, number, &bar.name)?;
            let mut from = 0.0;
            let colours = palette::part_colours(&chart.parts);
            for (part, length) in bar.lengths(chart.parts.len()).enumerate().filter(|(_, length)| *length > 0.0) {
                let colour = palette::part(colours.get(part).copied().unwrap_or_default());
                canvas.rectangle(
                    (rows.position(from), middle - 9.0),
                    (rows.position(from + length), middle + 9.0),
                    colour,
                )?;
                from += length;
            }
            canvas.text(&small.fit(&chart.label(bar), LABELS)?, (rows.position(from) + 7.0, middle), small)?;
        }
        let left = rows.left();
        canvas.line(&[(left, rows.top()), (left, rows.bottom())], Stroke { colour: palette::AXIS, width: 1.0 })?;
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
    fn bars_are_labelled_with_their_sum() {
        let chart = chart(&[&[1e6, 2e6], &[f64::NAN, -1.0]]);
        assert_eq!(chart.label(&chart.bars[0]), "3 s");
        assert_eq!(chart.bars[1].sum(2), 0.0);
        let svg = String::from_utf8(render_bars(&chart, Format::Svg).unwrap()).unwrap();
        assert!(svg.contains("compute") && svg.contains("a &lt;b&gt;") && svg.contains("3 s"));
        assert!(render_bars(&chart, Format::Png).unwrap().starts_with(b"\x89PNG"));
    }

    #[test]
    fn empty_charts_are_errors() {
        assert!(render_bars(&chart(&[]), Format::Svg).is_err());
    }
}
