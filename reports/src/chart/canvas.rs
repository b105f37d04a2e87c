//! Drawing surface in logical pixels, independent of the plotters back end.
//!
//! Since plotters uses whole pixels and little anti-aliasing, all elements are drawn [`DETAIL`] times larger. SVG
//! scales the picture back by its view box, PNG by averaging.

use plotters::coord::Shift;
use plotters::element::{Circle, PathElement, Polygon, Text};
use plotters::prelude::{DrawingArea, DrawingBackend};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontDesc, FontFamily, FontStyle, IntoTextStyle, RGBColor, ShapeStyle};

use super::ChartError;
use super::font::FAMILY;
use super::palette::Marker;

/// Number of drawn pixels per logical pixel, in each direction.
pub(crate) const DETAIL: u32 = 4;

/// Width of the light border of a marker, in logical pixels.
const RIM: f64 = 0.9;
const RIM_COLOUR: RGBColor = RGBColor(255, 255, 255);

/// Position in logical pixels, from the top left.
pub(crate) type Position = (f64, f64);

/// Drawing area in logical pixels.
pub(crate) struct Canvas<DB: DrawingBackend> {
    area: DrawingArea<DB, Shift>,
    /// Downward shift of texts, in ems.
    drop: f64,
}

/// Style of a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stroke {
    pub colour: RGBColor,
    /// Width in logical pixels.
    pub width: f64,
}

/// Style of a text.
#[derive(Clone, Copy)]
pub(crate) struct TextStyle {
    pub colour: RGBColor,
    /// Size of an em in logical pixels.
    pub size: f64,
    pub weight: Weight,
    pub align: HPos,
}

/// Weight of a font.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    Regular,
    Bold,
}

impl TextStyle {
    pub(crate) fn new(colour: RGBColor, size: f64) -> Self {
        Self { colour, size, weight: Weight::Regular, align: HPos::Left }
    }

    pub(crate) fn bold(self) -> Self {
        Self { weight: Weight::Bold, ..self }
    }

    pub(crate) fn align(self, align: HPos) -> Self {
        Self { align, ..self }
    }

    fn font(&self) -> FontDesc<'static> {
        // The size that plotters expects is the height of a line, which is 1.24 em.
        let size = self.size * 1.24 * f64::from(DETAIL);
        let style = if self.weight == Weight::Bold { FontStyle::Bold } else { FontStyle::Normal };
        FontDesc::new(FontFamily::Name(FAMILY), size, style)
    }

    /// Returns the width of a text in logical pixels.
    pub(crate) fn width(&self, text: &str) -> Result<f64, ChartError> {
        let (width, _) = self.font().box_size(text).map_err(|error| ChartError::Draw(error.to_string()))?;
        Ok(f64::from(width) / f64::from(DETAIL))
    }

    /// Returns the text, truncated with an ellipsis if it is wider than `room`.
    pub(crate) fn fit(&self, text: &str, room: f64) -> Result<String, ChartError> {
        if self.width(text)? <= room {
            return Ok(text.to_owned());
        }
        let mut shown: Vec<char> = text.chars().collect();
        while shown.pop().is_some() {
            let shorter = format!("{}…", shown.iter().collect::<String>().trim_end());
            if self.width(&shorter)? <= room {
                return Ok(shorter);
            }
        }
        Ok(String::new())
    }
}

impl<DB: DrawingBackend> Canvas<DB> {
    /// Creates a canvas over a drawing area. `drop`: correction of the vertical centre of texts for the back end, in
    /// ems.
    pub(crate) fn new(area: DrawingArea<DB, Shift>, drop: f64) -> Self {
        Self { area, drop }
    }

    /// Fills the whole canvas with one colour.
    pub(crate) fn fill(&self, colour: RGBColor) -> Result<(), ChartError> {
        self.area.fill(&colour).map_err(|error| ChartError::Draw(error.to_string()))
    }

    /// Passes the complete drawing to the back end.
    pub(crate) fn finish(&self) -> Result<(), ChartError> {
        self.area.present().map_err(|error| ChartError::Draw(error.to_string()))
    }

    /// Draws a line through points. A single point draws no line.
    pub(crate) fn line(&self, points: &[Position], stroke: Stroke) -> Result<(), ChartError> {
        if points.len() < 2 {
            return Ok(());
        }
        self.draw(&PathElement::new(points.iter().copied().map(drawn).collect::<Vec<_>>(), style(stroke)))
    }

    /// Draws a dashed line (`dash_length` drawn, `gap_length` omitted) through points.
    pub(crate) fn dashes(
        &self,
        points: &[Position],
        stroke: Stroke,
        dash_length: f64,
        gap_length: f64,
    ) -> Result<(), ChartError> {
        for dash in cut_in_dashes(points, dash_length, gap_length) {
            self.line(&dash, stroke)?;
        }
        Ok(())
    }

    /// Draws a filled polygon.
    pub(crate) fn polygon(&self, corners: &[Position], colour: RGBColor) -> Result<(), ChartError> {
        self.draw(&Polygon::new(corners.iter().copied().map(drawn).collect::<Vec<_>>(), colour.filled()))
    }

    /// Draws a filled rectangle between two corners.
    pub(crate) fn rectangle(&self, (x0, y0): Position, (x1, y1): Position, colour: RGBColor) -> Result<(), ChartError> {
        self.polygon(&[(x0, y0), (x1, y0), (x1, y1), (x0, y1)], colour)
    }

    /// Draws a filled disc.
    pub(crate) fn disc(&self, centre: Position, radius: f64, colour: RGBColor) -> Result<(), ChartError> {
        self.draw(&Circle::new(drawn(centre), scaled(radius).max(1), colour.filled()))
    }

    /// Draws a marker with a thin light border, which separates it from the lines behind it.
    pub(crate) fn marker(
        &self,
        centre: Position,
        radius: f64,
        marker: Marker,
        colour: RGBColor,
    ) -> Result<(), ChartError> {
        self.shape(centre, radius + RIM, marker, RIM_COLOUR)?;
        self.shape(centre, radius, marker, colour)
    }

    /// Draws many markers. All borders are drawn before the markers, so that no border covers a marker.
    pub(crate) fn markers(
        &self,
        centres: &[Position],
        radius: f64,
        marker: Marker,
        colour: RGBColor,
    ) -> Result<(), ChartError> {
        centres.iter().try_for_each(|&centre| self.shape(centre, radius + RIM, marker, RIM_COLOUR))?;
        centres.iter().try_for_each(|&centre| self.shape(centre, radius, marker, colour))
    }

    fn shape(&self, centre: Position, radius: f64, marker: Marker, colour: RGBColor) -> Result<(), ChartError> {
        let corners: Vec<Position> =
            marker.corners().iter().map(|&(x, y)| (centre.0 + x * radius, centre.1 + y * radius)).collect();
        if corners.is_empty() { self.disc(centre, radius, colour) } else { self.polygon(&corners, colour) }
    }

    /// Draws an open circle.
    pub(crate) fn ring(&self, centre: Position, radius: f64, stroke: Stroke) -> Result<(), ChartError> {
        self.disc(centre, radius + stroke.width / 2.0, stroke.colour)?;
        self.disc(centre, radius - stroke.width / 2.0, RGBColor(255, 255, 255))
    }

    /// Draws a line of text, centred vertically at the point.
    pub(crate) fn text(&self, text: &str, (x, y): Position, lettering: TextStyle) -> Result<(), ChartError> {
        if text.is_empty() {
            return Ok(());
        }
        let style = lettering.font().color(&lettering.colour).pos(Pos::new(lettering.align, VPos::Center));
        self.draw(&Text::new(
            text.to_owned(),
            drawn((x, y + self.drop * lettering.size)),
            style.into_text_style(&self.area),
        ))
    }

    fn draw<'a, E>(&self, element: &'a E) -> Result<(), ChartError>
    where
        &'a E: plotters::element::PointCollection<'a, (i32, i32)>,
        E: plotters::element::Drawable<DB>,
    {
        self.area.draw(element).map_err(|error| ChartError::Draw(error.to_string()))
    }
}

fn drawn((x, y): Position) -> (i32, i32) {
    let detail = f64::from(DETAIL);
    ((x * detail).round() as i32, (y * detail).round() as i32)
}

fn scaled(length: f64) -> u32 {
    (length * f64::from(DETAIL)).round() as u32
}

fn style(stroke: Stroke) -> ShapeStyle {
    stroke.colour.stroke_width(scaled(stroke.width).max(1))
}

/// Divides a line into dashes, which bend around corners.
fn cut_in_dashes(points: &[Position], dash_length: f64, gap_length: f64) -> Vec<Vec<Position>> {
    let mut dashes = Vec::new();
    let mut dash: Vec<Position> = points.first().copied().into_iter().collect();
    let (mut drawing, mut left) = (true, dash_length);
    for (&from, &to) in points.iter().zip(points.iter().skip(1)) {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy);
        let mut distance = 0.0;
        while length - distance > left {
            distance += left;
            let point = (from.0 + dx * distance / length, from.1 + dy * distance / length);
            if drawing {
                dash.push(point);
                dashes.push(std::mem::take(&mut dash));
            } else {
                dash = vec![point];
            }
            drawing = !drawing;
            left = if drawing { dash_length } else { gap_length };
        }
        left -= length - distance;
        if drawing {
            dash.push(to);
        }
    }
    if drawing && dash.len() > 1 {
        dashes.push(dash);
    }
    dashes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashes_cover_their_share() {
        let dashes = cut_in_dashes(&[(0.0, 0.0), (60.0, 0.0), (60.0, 40.0)], 6.0, 4.0);
        let length = |dash: &Vec<Position>| -> f64 {
            dash.windows(2).map(|pair| (pair[1].0 - pair[0].0).hypot(pair[1].1 - pair[0].1)).sum()
        };
        assert_eq!(dashes.len(), 10);
        assert!(dashes.iter().all(|dash| (length(dash) - 6.0).abs() < 1e-9));
    }
}
