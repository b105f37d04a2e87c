//! Gantt charts, which show spans of time in rows.

use plotters::prelude::{DrawingBackend, IntoDrawingArea};

use super::axis::{self, Axis, Quantity};
use super::canvas::Canvas;
use super::output::{self, Drawing};
use super::rows::{Measures, Rows, RowsText};
use super::{ChartError, Format, palette};

/// Chart of spans of time in rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spans {
    /// Title of the chart.
    pub title: String,
    /// Names of the rows, first row on top.
    pub rows: Vec<String>,
    /// Names of the kinds of spans. Each kind has a colour.
    pub kinds: Vec<String>,
    /// Spans of the chart, in any order.
    pub spans: Vec<TimeSpan>,
    /// End of the axis, which is the end of the last span, in µs.
    pub end: f64,
    /// Line below the title; may be empty.
    pub remark: String,
}

/// Span of time in a row of a [`Spans`] chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimeSpan {
    /// Index of the span's row in [`Spans::rows`].
    pub row: usize,
    /// Index of the span's kind in [`Spans::kinds`].
    pub kind: usize,
    /// Start of the span, in µs.
    pub from: f64,
    /// End of the span, in µs.
    pub to: f64,
    /// Name of the span, shown in its tooltip.
    pub name: String,
}

impl Spans {
    /// Returns the range of the axis; `None` if there are no spans to draw.
    pub(crate) fn extent(&self) -> Option<axis::AxisRange> {
        let end = [self.end].into_iter().filter(|_| !self.spans.is_empty());
        Axis::linear(Quantity::Time).span(end)
    }
}

const MEASURES: Measures = Measures { width: 900.0, row: 22.0, names: 130.0, labels: 0.0, remark: 12.0, ticks: 7 };

struct SpanSheet<'a> {
    chart: &'a Spans,
    rows: Rows<'a>,
}

/// Draws a chart of spans in a format.
///
/// # Errors
/// [`ChartError::NoData`] if there is no span; other variants are failures of the drawing library.
pub fn render_spans(chart: &Spans, format: Format) -> Result<Vec<u8>, ChartError> {
    super::font::register()?;
    let extent = chart.extent().ok_or_else(|| ChartError::NoData { title: chart.title.clone() })?;
    let rows = Rows::new(
        RowsText { title: &chart.title, remark: &chart.remark },
        &chart.kinds,
        chart.rows.len(),
        extent,
        MEASURES,
    )?;
    output::bytes(&SpanSheet { chart, rows }, format)
}

impl Drawing for SpanSheet<'_> {
    fn size(&self) -> (u32, u32) {
        self.rows.size()
    }

    fn draw<DB: DrawingBackend>(&self, backend: DB, drop: f64) -> Result<(), ChartError> {
        let canvas = Canvas::new(backend.into_drawing_area(), drop);
        let Self { chart, rows } = self;
        rows.draw(&canvas)?;
        for (row, name) in chart.rows.iter().enumerate() {
            rows.name(&canvas, row, name)?;
        }
        let colours = palette::part_colours(&chart.kinds);
        for span in &chart.spans {
            let middle = rows.middle(span.row);
            let to = rows.position(span.to).max(rows.position(span.from) + 0.6);
            canvas.rectangle(
                (rows.position(span.from), middle - 8.0),
                (to, middle + 8.0),
                palette::part(colours.get(span.kind).copied().unwrap_or_default()),
            )?;
        }
        canvas.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_drawn_and_empty_charts_are_errors() {
        let span = TimeSpan { row: 1, kind: 0, from: 10.0, to: 30.0, name: "forward".into() };
        let chart = Spans {
            title: "a <b>".into(),
            rows: vec!["stage 0".into(), "stage 1".into()],
            kinds: vec!["forward".into()],
            spans: vec![span],
            end: 30.0,
            remark: "one copy".into(),
        };
        let svg = String::from_utf8(render_spans(&chart, Format::Svg).unwrap()).unwrap();
        assert!(svg.contains("a &lt;b&gt;") && svg.contains("stage 1") && svg.contains("one copy"));
        assert!(render_spans(&chart, Format::Png).unwrap().starts_with(b"\x89PNG"));
        assert!(render_spans(&Spans::default(), Format::Svg).is_err());
    }
}
