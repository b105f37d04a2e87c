//! Ribbon above the first panel, which labels ranges of the x axis.

use plotters::prelude::DrawingBackend;
use plotters::style::RGBColor;
use plotters::style::text_anchor::HPos;

use super::axis::AxisRange;
use super::canvas::{Canvas, TextStyle};
use super::figure::{Ribbon, Role};
use super::layout::Rectangle;
use super::{ChartError, palette};

/// Lightens a colour so that dark text on it is readable.
fn tint(RGBColor(r, g, b): RGBColor) -> RGBColor {
    let lighter = |c: u8| (255 - (255 - u16::from(c)) * 3 / 10) as u8;
    RGBColor(lighter(r), lighter(g), lighter(b))
}

impl Ribbon {
    pub(super) fn draw<DB: DrawingBackend>(
        &self,
        canvas: &Canvas<DB>,
        frame: Rectangle,
        x: AxisRange,
    ) -> Result<(), ChartError> {
        let label = TextStyle::new(palette::INK, 11.5);
        let middle = (frame.top + frame.bottom) / 2.0;
        let title = TextStyle::new(palette::TEXT, 11.5).align(HPos::Right);
        canvas.text(&title.fit(&self.title, frame.left - 12.0)?, (frame.left - 9.0, middle), title)?;
        let last = self.parts.len().saturating_sub(1);
        for (number, part) in self.parts.iter().enumerate() {
            if !(x.axis().shows(part.from) && x.axis().shows(part.to)) {
                continue;
            }
            // The first and the last range extend to the ends of the axis, and ranges of a single size have a minimum
            // width.
            let from = if number == 0 { 0.0 } else { x.position(part.from) };
            let to = if number == last { 1.0 } else { x.position(part.to) };
            let (left, right) = (frame.point(from, 0.0).0, frame.point(to, 0.0).0);
            let colour = match part.role {
                Role::Series(number) | Role::Points(number) | Role::Range(number) => palette::series(number).0,
                Role::Pick | Role::Other | Role::Bound | Role::Measured => palette::OTHER,
            };
            let gap = if number == last { 0.0 } else { 1.5 };
            canvas.rectangle((left, frame.top), (right - gap, frame.bottom), tint(colour))?;
            canvas.rectangle((left, frame.bottom - 3.0), (right - gap, frame.bottom), colour)?;
            let room = right - left - 12.0;
            if room >= 40.0 {
                let text = label.fit(&part.label, room)?;
                canvas.text(&text, ((left + right - gap) / 2.0, middle - 1.5), label.align(HPos::Center))?;
            }
        }
        Ok(())
    }
}
