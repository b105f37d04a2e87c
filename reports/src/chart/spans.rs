//! Spans of time in rows: who did what from when to when.

use plotters::prelude::{DrawingBackend, IntoDrawingArea};
use plotters::style::RGBColor;
use plotters::style::text_anchor::HPos;

use super::axis::{self, Axis, Quantity};
use super::canvas::{Canvas, Lettering, Stroke};
use super::output::{self, Drawing};
use super::{ChartError, Format, palette};

/// Spans of time in rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spans {
    /// What is shown.
    pub title: String,
    /// Names of the rows, first on top.
    pub rows: Vec<String>,
    /// Names of the kinds, which have a colour each.
    pub kinds: Vec<String>,
    /// The spans.
    pub spans: Vec<Span>,
    /// Where the last one ends, µs.
    pub end: f64,
    /// A line under it. May be empty.
    pub remark: String,
}

/// A span of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Span {
    /// Number of its row.
    pub row: usize,
    /// Number of its kind.
    pub kind: usize,
    /// When it begins, µs.
    pub from: f64,
    /// When it ends, µs.
    pub to: f64,
    /// What it is.
    pub name: String,
}

impl Spans {
    /// The range of the axis; `None` where there is nothing to draw.
    pub(crate) fn extent(&self) -> Option<axis::Span> {
        let end = [self.end].into_iter().filter(|_| !self.spans.is_empty());
        Axis::linear(Quantity::Time).span(end)
    }
}

const WIDTH: f64 = 900.0;
const MARGIN: f64 = 24.0;
const TOP: f64 = 84.0;
const ROW: f64 = 22.0;
const NAMES: f64 = 130.0;
const KEYS: f64 = 22.0;

struct Sheet<'a> {
    chart: &'a Spans,
    extent: axis::Span,
    /// Where each entry of the legend begins, and its row.
    keys: Vec<(f64, usize)>,
}

/// Draws spans as SVG or PNG.
///
/// # Errors
/// [`ChartError::NoData`] where there is no span; the others are defects of the drawing library.
pub fn render_spans(chart: &Spans, format: Format) -> Result<Vec<u8>, ChartError> {
    super::font::register()?;
    let extent = chart.extent().ok_or_else(|| ChartError::NoData { title: chart.title.clone() })?;
    let keys = super::bars::places_of_keys(&chart.kinds, (MARGIN, WIDTH))?;
    output::bytes(&Sheet { chart, extent, keys }, format)
}

impl Sheet<'_> {
    /// Under the legend.
    fn top(&self) -> f64 {
        TOP + (self.keys.last().map_or(0, |key| key.1) + 1) as f64 * KEYS
    }

    fn bottom(&self) -> f64 {
        self.top() + self.chart.rows.len() as f64 * ROW
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
        let remark = Lettering::new(palette::TEXT, 12.0);
        canvas.text(&remark.fit(&chart.remark, WIDTH - 2.0 * MARGIN)?, (MARGIN, 57.0), remark)?;
        super::bars::draw_keys(&canvas, &chart.kinds, &self.keys, TOP)?;
        let (left, right) = (MARGIN + NAMES, WIDTH - MARGIN);
        let tick = Lettering::new(palette::TEXT, 11.5).align(HPos::Center);
        for one in self.extent.ticks(7) {
            let x = left + one.at * (right - left);
            canvas.line(&[(x, self.top()), (x, self.bottom())], Stroke { colour: palette::GRID, width: 1.0 })?;
            if let Some(text) = &one.label {
                canvas.text(text, (x, self.bottom() + 15.0), tick)?;
            }
        }
        let small = Lettering::new(palette::INK, 12.0);
        for (row, name) in chart.rows.iter().enumerate() {
            let middle = self.top() + (row as f64 + 0.5) * ROW;
            canvas.text(&small.fit(name, NAMES - 12.0)?, (left - 9.0, middle), small.align(HPos::Right))?;
        }
        let at = |us: f64| left + self.extent.place(us) * (right - left);
        for span in &chart.spans {
            let middle = self.top() + (span.row as f64 + 0.5) * ROW;
            let to = at(span.to).max(at(span.from) + 0.6);
            canvas.rectangle((at(span.from), middle - 8.0), (to, middle + 8.0), palette::series(span.kind).0)?;
        }
        canvas.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_drawn_and_nothing_is_no_chart() {
        let span = Span { row: 1, kind: 0, from: 10.0, to: 30.0, name: "forward".into() };
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
