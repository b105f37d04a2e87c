//! Legend at the side of the panels: one entry per named line, in order of importance.

use plotters::prelude::DrawingBackend;

use super::canvas::{Canvas, Position, Stroke, TextStyle};
use super::figure::{BandColour, Figure, Role};
use super::{ChartError, palette};

/// Maximum width of the legend in logical pixels; longer names are truncated.
const MAX_WIDTH: f64 = 290.0;
const MIN_WIDTH: f64 = 120.0;
const SAMPLE: f64 = 30.0;
const ROW: f64 = 21.0;
const GAP: f64 = 9.0;

/// Sample of a line or band, which is drawn before its name in the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineSample {
    Line(Role),
    Band,
}

/// Entries of a figure, and the width of the legend.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FigureLegend {
    entries: Vec<(LineSample, String)>,
    pub width: f64,
}

fn lettering() -> TextStyle {
    TextStyle::new(palette::INK, 12.0)
}

impl FigureLegend {
    pub(super) fn new(figure: &Figure) -> Result<Self, ChartError> {
        let mut series: Vec<(LineSample, String)> = Vec::new();
        let mut marks: Vec<(LineSample, String)> = Vec::new();
        let mut others: Vec<&str> = Vec::new();
        for line in figure.panels.iter().flat_map(|panel| &panel.lines) {
            let entry = (LineSample::Line(line.role), line.name.clone());
            match line.role {
                Role::Series(_) | Role::Points(_) if !series.contains(&entry) => series.push(entry),
                Role::Other if !others.contains(&line.name.as_str()) => others.push(&line.name),
                Role::Pick | Role::Bound | Role::Measured if !marks.contains(&entry) => {
                    marks.push(entry);
                }
                _ => {}
            }
        }
        match others.as_slice() {
            [] => {}
            [name] => series.push((LineSample::Line(Role::Other), (*name).to_owned())),
            names => series.push((LineSample::Line(Role::Other), format!("{} others", names.len()))),
        }
        let bands = figure.panels.iter().flat_map(|panel| &panel.bands);
        for band in bands.filter(|band| band.shade == BandColour::Pale) {
            let entry = (LineSample::Band, band.name.clone());
            if !marks.contains(&entry) {
                marks.push(entry);
            }
        }
        let entries = series.into_iter().chain(marks).collect::<Vec<_>>();
        let mut width = MIN_WIDTH;
        for (_, name) in &entries {
            width = f64::max(width, SAMPLE + GAP + lettering().width(name)?);
        }
        Ok(Self { entries, width: width.min(MAX_WIDTH).ceil() })
    }

    pub(super) fn draw<DB: DrawingBackend>(
        &self,
        canvas: &Canvas<DB>,
        (left, top): Position,
    ) -> Result<(), ChartError> {
        let mut y = top + 8.0;
        let mut previous: Option<bool> = None;
        for (sample, name) in &self.entries {
            let is_series = matches!(sample, LineSample::Line(Role::Series(_) | Role::Points(_) | Role::Other));
            if previous.is_some_and(|before| before != is_series) {
                y += GAP;
            }
            previous = Some(is_series);
            draw_sample(canvas, *sample, left, y)?;
            let text = lettering().fit(name, self.width - SAMPLE - GAP)?;
            canvas.text(&text, (left + SAMPLE + GAP, y), lettering())?;
            y += ROW;
        }
        Ok(())
    }
}

fn draw_sample<DB: DrawingBackend>(canvas: &Canvas<DB>, sample: LineSample, x: f64, y: f64) -> Result<(), ChartError> {
    let ends = [(x, y), (x + SAMPLE, y)];
    let middle = (x + SAMPLE / 2.0, y);
    match sample {
        LineSample::Band => canvas.rectangle((x, y - 6.0), (x + SAMPLE, y + 6.0), palette::BAND),
        LineSample::Line(Role::Pick) => canvas.line(&ends, Stroke { colour: palette::PICK, width: 9.0 }),
        LineSample::Line(Role::Other) => canvas.line(&ends, Stroke { colour: palette::OTHER, width: 1.25 }),
        LineSample::Line(Role::Series(number)) => {
            let (colour, marker) = palette::series(number);
            canvas.line(&ends, Stroke { colour, width: 2.0 })?;
            canvas.marker(middle, 3.4, marker, colour)
        }
        LineSample::Line(Role::Points(number)) => {
            let (colour, marker) = palette::series(number);
            canvas.marker(middle, 3.4, marker, colour)
        }
        LineSample::Line(Role::Range(number)) => {
            canvas.line(&ends, Stroke { colour: palette::series(number).0, width: 1.25 })
        }
        LineSample::Line(Role::Bound) => canvas.dashes(&ends, Stroke { colour: palette::INK, width: 1.5 }, 6.0, 4.0),
        LineSample::Line(Role::Measured) => canvas.ring(middle, 3.6, Stroke { colour: palette::INK, width: 1.4 }),
    }
}
