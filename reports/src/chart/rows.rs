//! Common parts of charts that consist of rows (bars, spans of time): title and subtitle, legend of areas, row names,
//! and an axis with vertical lines.

use plotters::prelude::DrawingBackend;
use plotters::style::RGBColor;
use plotters::style::text_anchor::HPos;

use super::axis::AxisRange;
use super::canvas::{Canvas, Stroke, TextStyle};
use super::{ChartError, palette};

const MARGIN: f64 = 24.0;
const TOP: f64 = 84.0;
const KEYS: f64 = 22.0;

/// Dimensions of a kind of chart, in logical pixels.
pub(super) struct Measures {
    /// Width of the whole picture.
    pub width: f64,
    /// Height of a row.
    pub row: f64,
    /// Width of the row names.
    pub names: f64,
    /// Width reserved at the right, for the labels after the rows.
    pub labels: f64,
    /// Font size of the line below the title.
    pub remark: f64,
    /// Approximate number of axis lines.
    pub ticks: usize,
}

/// Rows of a chart, without their content.
pub(super) struct Rows<'a> {
    title: &'a str,
    remark: &'a str,
    kinds: &'a [String],
    count: usize,
    span: AxisRange,
    measures: Measures,
    /// Left edge in logical pixels and row of each legend entry.
    keys: Vec<(f64, usize)>,
}

/// Title of a chart of rows, and the line below it.
#[derive(Clone, Copy)]
pub(super) struct RowsText<'a> {
    pub title: &'a str,
    pub remark: &'a str,
}

impl<'a> Rows<'a> {
    /// Creates `count` rows over a span, with a title, a line below it, and the names of the coloured areas.
    pub(super) fn new(
        text: RowsText<'a>,
        kinds: &'a [String],
        count: usize,
        span: AxisRange,
        measures: Measures,
    ) -> Result<Self, ChartError> {
        let RowsText { title, remark } = text;
        let keys = key_positions(kinds, measures.width)?;
        Ok(Self { title, remark, kinds, count, span, measures, keys })
    }

    /// Returns the top edge of the rows, below the legend, in logical pixels.
    pub(super) fn top(&self) -> f64 {
        TOP + (self.keys.last().map_or(0, |key| key.1) + 1) as f64 * KEYS
    }

    pub(super) fn bottom(&self) -> f64 {
        self.top() + self.count as f64 * self.measures.row
    }

    /// Returns width and height of the picture, in logical pixels.
    pub(super) fn size(&self) -> (u32, u32) {
        (self.measures.width as u32, (self.bottom() + 36.0) as u32)
    }

    /// Returns the left edge of the rows, in logical pixels.
    pub(super) fn left(&self) -> f64 {
        MARGIN + self.measures.names
    }

    fn right(&self) -> f64 {
        self.measures.width - MARGIN - self.measures.labels
    }

    /// Returns the x coordinate of a value, in logical pixels.
    pub(super) fn position(&self, value: f64) -> f64 {
        self.left() + self.span.position(value) * (self.right() - self.left())
    }

    /// Returns the vertical centre of a row, in logical pixels.
    pub(super) fn middle(&self, row: usize) -> f64 {
        self.top() + (row as f64 + 0.5) * self.measures.row
    }

    /// Draws the background, title, legend and axis; the rows are drawn separately.
    pub(super) fn draw<DB: DrawingBackend>(&self, canvas: &Canvas<DB>) -> Result<(), ChartError> {
        canvas.fill(RGBColor(255, 255, 255))?;
        let wide = self.measures.width - 2.0 * MARGIN;
        let title = TextStyle::new(palette::INK, 19.0).bold();
        canvas.text(&title.fit(self.title, wide)?, (MARGIN, 32.0), title)?;
        let remark = TextStyle::new(palette::TEXT, self.measures.remark);
        canvas.text(&remark.fit(self.remark, wide)?, (MARGIN, 57.0), remark)?;
        let colours = palette::part_colours(self.kinds);
        for ((colour, name), &(x, row)) in colours.into_iter().zip(self.kinds).zip(&self.keys) {
            let y = TOP + row as f64 * KEYS;
            canvas.rectangle((x, y - 6.0), (x + 14.0, y + 6.0), palette::part(colour))?;
            canvas.text(name, (x + 20.0, y), TextStyle::new(palette::INK, 12.0))?;
        }
        let tick = TextStyle::new(palette::TEXT, 11.5).align(HPos::Center);
        for one in self.span.ticks(self.measures.ticks) {
            let x = self.left() + one.position * (self.right() - self.left());
            canvas.line(&[(x, self.top()), (x, self.bottom())], Stroke { colour: palette::GRID, width: 1.0 })?;
            if let Some(text) = &one.label {
                canvas.text(text, (x, self.bottom() + 15.0), tick)?;
            }
        }
        Ok(())
    }

    /// Draws the name of a row.
    pub(super) fn name<DB: DrawingBackend>(
        &self,
        canvas: &Canvas<DB>,
        row: usize,
        name: &str,
    ) -> Result<(), ChartError> {
        let small = TextStyle::new(palette::INK, 12.0);
        let name = small.fit(name, self.measures.names - 12.0)?;
        canvas.text(&name, (self.left() - 9.0, self.middle(row)), small.align(HPos::Right))
    }
}

/// Returns the left edges and rows of the entries of a legend in a picture of this width.
fn key_positions(names: &[String], width: f64) -> Result<Vec<(f64, usize)>, ChartError> {
    let (mut x, mut row) = (MARGIN, 0);
    let mut keys = Vec::with_capacity(names.len());
    for name in names {
        let wide = 22.0 + TextStyle::new(palette::INK, 12.0).width(name)? + 20.0;
        if x > MARGIN && x + wide > width - MARGIN {
            (x, row) = (MARGIN, row + 1);
        }
        keys.push((x, row));
        x += wide;
    }
    Ok(keys)
}
