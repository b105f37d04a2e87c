//! Panel of a figure: grid, labels, bands, lines.

use plotters::prelude::DrawingBackend;
use plotters::style::text_anchor::HPos;

use super::axis::AxisRange;
use super::canvas::{Canvas, Position, Stroke, TextStyle};
use super::figure::{Band, BandColour, Line, LineChart, Role};
use super::layout::Rectangle;
use super::{ChartError, palette};

/// Maximum number of points of a line with markers. Longer lines are drawn without markers.
const MAX_MARKERS: usize = 64;

/// Width of the part of an x axis that has one label, in logical pixels.
const X_LABEL: f64 = 70.0;

/// Panel with the ranges of its axes.
pub(super) struct Panel<'a> {
    chart: &'a LineChart,
    x: AxisRange,
    y: AxisRange,
}

impl<'a> Panel<'a> {
    /// Creates a panel; `None` if no point of the chart can be drawn.
    pub(super) fn new(chart: &'a LineChart) -> Option<Self> {
        let visible = |&(x, y): &(f64, f64)| chart.x.shows(x) && chart.y.shows(y);
        let of_bands = chart.bands.iter().flat_map(|band| &band.points);
        let points: Vec<(f64, f64)> = chart
            .lines
            .iter()
            .flat_map(|line| line.points.iter().copied())
            .chain(of_bands.flat_map(|&(x, low, high)| [(x, low), (x, high)]))
            .filter(visible)
            .collect();
        let x = chart.x.span(points.iter().map(|point| point.0))?;
        let y = chart.y.span(points.iter().map(|point| point.1))?;
        Some(Self { chart, x, y })
    }

    pub(super) fn x(&self) -> AxisRange {
        self.x
    }

    /// Draws the panel. `x_title`: centre of the title of the x axis, if it is shown.
    pub(super) fn draw<DB: DrawingBackend>(
        &self,
        canvas: &Canvas<DB>,
        frame: Rectangle,
        x_title: Option<Position>,
    ) -> Result<(), ChartError> {
        let title = TextStyle::new(palette::INK, 13.0).bold();
        let text = title.fit(&self.chart.title, frame.right - frame.left)?;
        canvas.text(&text, (frame.left, frame.top - 16.0), title)?;
        if let Some(centre) = x_title {
            let style = TextStyle::new(palette::TEXT, 11.5).align(HPos::Center);
            canvas.text(&self.chart.x_title, centre, style)?;
        }
        for band in &self.chart.bands {
            self.draw_band(canvas, frame, band)?;
        }
        self.draw_grid(canvas, frame)?;
        let mut lines: Vec<&Line> = self.chart.lines.iter().collect();
        // The first series is the most important, so it is drawn on top of the others.
        lines.sort_by_key(|line| match line.role {
            Role::Pick => (0, 0),
            Role::Other => (1, 0),
            Role::Series(number) | Role::Points(number) | Role::Range(number) => (2, usize::MAX - number),
            Role::Bound => (3, 0),
            Role::Measured => (4, 0),
        });
        for line in lines {
            self.draw_line(canvas, frame, line)?;
        }
        Ok(())
    }

    fn draw_grid<DB: DrawingBackend>(&self, canvas: &Canvas<DB>, frame: Rectangle) -> Result<(), ChartError> {
        let label = TextStyle::new(palette::TEXT, 11.5);
        let colour = |labelled: bool| {
            if labelled { palette::GRID } else { palette::FINE_GRID }
        };
        let mut free_from = f64::NEG_INFINITY;
        for tick in self.x.ticks(((frame.right - frame.left) / X_LABEL) as usize) {
            let (x, bottom) = frame.point(tick.position, 0.0);
            let stroke = Stroke { colour: colour(tick.label.is_some()), width: 1.0 };
            canvas.line(&[(x, frame.top), (x, bottom)], stroke)?;
            if let Some(text) = &tick.label {
                let half = label.width(text)? / 2.0;
                if x - half >= free_from {
                    canvas.text(text, (x, bottom + 15.0), label.align(HPos::Center))?;
                    free_from = x + half + 8.0;
                }
            }
        }
        for tick in self.y.vertical_ticks() {
            let (left, y) = frame.point(0.0, tick.position);
            let stroke = Stroke { colour: colour(tick.label.is_some()), width: 1.0 };
            canvas.line(&[(left, y), (frame.right, y)], stroke)?;
            if let Some(text) = &tick.label {
                canvas.text(&label.fit(text, left - 12.0)?, (left - 9.0, y), label.align(HPos::Right))?;
            }
        }
        let axis = Stroke { colour: palette::AXIS, width: 1.0 };
        canvas.line(&[(frame.left, frame.bottom), (frame.right, frame.bottom)], axis)
    }

    fn position(&self, frame: Rectangle, x: f64, y: f64) -> Option<Position> {
        (self.x.axis().shows(x) && self.y.axis().shows(y)).then(|| frame.point(self.x.position(x), self.y.position(y)))
    }

    fn draw_band<DB: DrawingBackend>(
        &self,
        canvas: &Canvas<DB>,
        frame: Rectangle,
        band: &Band,
    ) -> Result<(), ChartError> {
        let edges = |pair: &(f64, f64, f64)| {
            let &(x, low, high) = pair;
            Some((self.position(frame, x, low)?, self.position(frame, x, high)?))
        };
        let edges: Vec<(Position, Position)> = band.points.iter().filter_map(edges).collect();
        if edges.len() < 2 {
            return Ok(());
        }
        let lower = edges.iter().map(|edge| edge.0);
        let upper = edges.iter().rev().map(|edge| edge.1);
        let colour = match band.shade {
            BandColour::Pale => palette::BAND,
            BandColour::Series(number) => palette::series(number).0,
        };
        canvas.polygon(&lower.chain(upper).collect::<Vec<_>>(), colour)
    }

    fn draw_line<DB: DrawingBackend>(
        &self,
        canvas: &Canvas<DB>,
        frame: Rectangle,
        line: &Line,
    ) -> Result<(), ChartError> {
        let points: Vec<Position> = line.points.iter().filter_map(|&(x, y)| self.position(frame, x, y)).collect();
        match line.role {
            Role::Pick => {
                canvas.line(&points, Stroke { colour: palette::PICK, width: 9.0 })?;
                points.iter().try_for_each(|&point| canvas.disc(point, 6.5, palette::PICK))
            }
            Role::Other => canvas.line(&points, Stroke { colour: palette::OTHER, width: 1.25 }),
            Role::Series(number) => {
                let (colour, marker) = palette::series(number);
                canvas.line(&points, Stroke { colour, width: 2.0 })?;
                let marked = if points.len() <= MAX_MARKERS { points.as_slice() } else { &[] };
                marked.iter().try_for_each(|&point| canvas.marker(point, 3.0, marker, colour))
            }
            Role::Points(number) => {
                let (colour, marker) = palette::series(number);
                canvas.markers(&points, 2.6, marker, colour)
            }
            Role::Range(number) => canvas.line(&points, Stroke { colour: palette::series(number).0, width: 1.25 }),
            Role::Bound => canvas.dashes(&points, Stroke { colour: palette::INK, width: 1.5 }, 6.0, 4.0),
            Role::Measured => {
                let stroke = Stroke { colour: palette::INK, width: 1.4 };
                points.iter().try_for_each(|&point| canvas.ring(point, 3.6, stroke))
            }
        }
    }
}
