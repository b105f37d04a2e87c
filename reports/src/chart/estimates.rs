//! Picture of a calibration: a table of parameters, with a value and a bar for the interval of each.

use plotters::prelude::{DrawingBackend, IntoDrawingArea};
use plotters::style::RGBColor;
use plotters::style::text_anchor::HPos;

use super::canvas::{Canvas, Stroke, TextStyle};
use super::output::{self, Drawing};
use super::{ChartError, Format, palette};

/// Picture of a calibration: the estimated parameters and the errors of the predictions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EstimatesTable {
    /// Title of the picture: one bold line.
    pub title: String,
    /// Line below the title; may be empty.
    pub subtitle: String,
    /// Rows above the parameters: the name of a predicted quantity, and three figures on its errors.
    pub errors: Vec<[String; 4]>,
    /// Column headings of [`EstimatesTable::errors`].
    pub error_heads: [String; 4],
    /// Parameters, grouped by protocol or launch mode.
    pub estimates: Vec<ParameterEstimate>,
}

/// Parameter of a profile, with its estimate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParameterEstimate {
    /// Name of the parameter in profile files.
    pub name: String,
    /// Unit of the parameter; empty for fractions.
    pub unit: String,
    /// Estimated value, in `unit`.
    pub value: f64,
    /// Lower end of the estimate's interval, in `unit`.
    pub low: f64,
    /// Upper end of the estimate's interval, in `unit`.
    pub high: f64,
}

const WIDTH: f64 = 1120.0;
const MARGIN: f64 = 28.0;
const ROW: f64 = 21.0;
/// Right edges of the value and interval columns, and of the three error columns, in logical pixels.
const FIGURES: [f64; 3] = [430.0, 520.0, 610.0];
/// Left and right end of the area of the bars, in logical pixels.
const BARS: (f64, f64) = (660.0, WIDTH - MARGIN);
const STRIPE: RGBColor = palette::FINE_GRID;

impl EstimatesTable {
    /// Renders the picture.
    ///
    /// # Errors
    /// [`ChartError::NoData`] without parameters; other variants are failures of the drawing library.
    pub fn render(&self, format: Format) -> Result<Vec<u8>, ChartError> {
        if self.estimates.is_empty() {
            return Err(ChartError::NoData { title: self.title.clone() });
        }
        output::bytes(self, format)
    }

    fn top(&self) -> f64 {
        MARGIN + if self.subtitle.is_empty() { 34.0 } else { 58.0 }
    }

    /// Returns the top edge of the table of parameters, in logical pixels.
    fn middle(&self) -> f64 {
        self.top() + if self.errors.is_empty() { 0.0 } else { (self.errors.len() as f64 + 1.0) * ROW + 26.0 }
    }
}

/// Bar for the interval of an estimate. Its ends are fractions (0 to 1) of the largest end among the parameters with
/// the same unit in the same table.
#[derive(Clone, Copy, Debug, PartialEq)]
struct IntervalBar {
    low: f64,
    value: f64,
    high: f64,
}

/// Returns the bar for an estimate; `None` if all ends are 0.
fn bar(estimate: &ParameterEstimate, estimates: &[ParameterEstimate]) -> Option<IntervalBar> {
    let table_of = |name: &str| name.rsplit_once('.').map_or(String::new(), |(table, _)| table.replace(".pass", ""));
    let same_table = estimates
        .iter()
        .filter(|other| other.unit == estimate.unit && table_of(&other.name) == table_of(&estimate.name));
    let ends = same_table.flat_map(|other| [other.high.abs(), other.low.abs()]).filter(|end| end.is_finite());
    let largest = ends.fold(0.0, f64::max);
    let part = |value: f64| (value / largest).clamp(0.0, 1.0);
    (largest > 0.0).then(|| IntervalBar {
        low: part(estimate.low),
        value: part(estimate.value),
        high: part(estimate.high),
    })
}

impl Drawing for EstimatesTable {
    fn size(&self) -> (u32, u32) {
        let height = self.middle() + (self.estimates.len() as f64 + 1.0) * ROW + MARGIN;
        (WIDTH as u32, height as u32)
    }

    fn draw<DB: DrawingBackend>(&self, backend: DB, drop: f64) -> Result<(), ChartError> {
        let canvas = Canvas::new(backend.into_drawing_area(), drop);
        canvas.fill(RGBColor(255, 255, 255))?;
        let (head, label) = (TextStyle::new(palette::TEXT, 11.5), TextStyle::new(palette::INK, 12.0));
        let title = TextStyle::new(palette::INK, 19.0).bold();
        let room = WIDTH - 2.0 * MARGIN;
        canvas.text(&title.fit(&self.title, room)?, (MARGIN, MARGIN + 10.0), title)?;
        let subtitle = TextStyle::new(palette::TEXT, 13.0);
        canvas.text(&subtitle.fit(&self.subtitle, room)?, (MARGIN, MARGIN + 35.0), subtitle)?;
        let figure = |text: &str, right: f64, y: f64, lettering: TextStyle| {
            canvas.text(text, (right, y), lettering.align(HPos::Right))
        };
        if !self.errors.is_empty() {
            let lines = std::iter::once((&self.error_heads, head)).chain(self.errors.iter().map(|line| (line, label)));
            for (number, ([name, figures @ ..], lettering)) in lines.enumerate() {
                let y = self.top() + (number as f64 + 0.5) * ROW;
                canvas.text(&lettering.fit(name, FIGURES[0] - MARGIN - 70.0)?, (MARGIN, y), lettering)?;
                for (text, right) in figures.iter().zip(FIGURES) {
                    figure(text, right, y, lettering)?;
                }
            }
        }
        let heads = ["value", "80 % from", "to"];
        let y = self.middle() + 0.5 * ROW;
        canvas.text("parameter", (MARGIN, y), head)?;
        canvas.text("interval (of the largest of its kind and table)", (BARS.0, y), head)?;
        for (text, right) in heads.iter().zip(FIGURES) {
            figure(text, right, y, head)?;
        }
        for (number, estimate) in self.estimates.iter().enumerate() {
            let top = self.middle() + (number as f64 + 1.0) * ROW;
            let y = top + ROW / 2.0;
            if number % 2 == 0 {
                canvas.rectangle((MARGIN - 6.0, top), (WIDTH - MARGIN + 6.0, top + ROW), STRIPE)?;
            }
            canvas.text(&label.fit(&estimate.name, FIGURES[0] - MARGIN - 90.0)?, (MARGIN, y), label)?;
            for (value, right) in [estimate.value, estimate.low, estimate.high].into_iter().zip(FIGURES) {
                figure(&format!("{value:.3}"), right, y, label)?;
            }
            canvas.text(&estimate.unit, (FIGURES[2] + 8.0, y), head)?;
            if let Some(IntervalBar { low, value, high }) = bar(estimate, &self.estimates) {
                let x = |part: f64| BARS.0 + part * (BARS.1 - BARS.0);
                let stroke = Stroke { colour: palette::series(0).0, width: 3.0 };
                canvas.line(&[(x(low), y), (x(high), y)], stroke)?;
                canvas.disc((x(value), y), 3.6, palette::INK)?;
            }
        }
        canvas.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_for_each_parameter() {
        let estimate = |name: &str, value: f64| ParameterEstimate {
            name: name.into(),
            unit: "us".into(),
            value,
            low: value / 2.0,
            high: value * 2.0,
        };
        let table = EstimatesTable {
            title: "t".into(),
            estimates: vec![
                estimate("protocol.ll.step", 1.0),
                estimate("protocol.ll.pass.send", 2.0),
                estimate("links.nvlink", 4.0),
            ],
            ..EstimatesTable::default()
        };
        // The largest end in this table is 4.
        assert_eq!(
            bar(&table.estimates[0], &table.estimates),
            Some(IntervalBar { low: 0.125, value: 0.25, high: 0.5 })
        );
        assert_eq!(bar(&table.estimates[2], &table.estimates), Some(IntervalBar { low: 0.25, value: 0.5, high: 1.0 }));
        let svg = String::from_utf8(table.render(Format::Svg).unwrap()).unwrap();
        assert!(svg.contains("protocol.ll.pass.send") && svg.contains("2.000"));
        assert!(EstimatesTable::default().render(Format::Svg).is_err());
    }
}
