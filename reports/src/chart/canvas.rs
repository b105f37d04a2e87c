//! A sheet to draw on in logical pixels, whichever plotters back end lies under it.
//!
//! plotters counts in whole pixels and smooths little, so everything is drawn [`DETAIL`] times larger: SVG scales it
//! back by its view box, PNG by averaging.

use plotters::coord::Shift;
use plotters::element::{Circle, PathElement, Polygon, Text};
use plotters::prelude::{DrawingArea, DrawingBackend};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontDesc, FontFamily, FontStyle, IntoTextStyle, RGBColor, ShapeStyle};

use super::ChartError;
use super::font::FAMILY;
use super::palette::Marker;

/// Drawn pixels per logical pixel.
pub(crate) const DETAIL: u32 = 4;

/// The rim of a marker, in logical pixels.
const RIM: f64 = 0.9;
const RIM_COLOUR: RGBColor = RGBColor(255, 255, 255);

/// A place in logical pixels, from the top left.
pub(crate) type At = (f64, f64);

/// A drawing area that speaks logical pixels.
pub(crate) struct Canvas<DB: DrawingBackend> {
    area: DrawingArea<DB, Shift>,
    /// How far texts are moved down, in ems.
    drop: f64,
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stroke {
    pub colour: RGBColor,
    /// In logical pixels.
    pub width: f64,
}

/// How a text is set.
#[derive(Clone, Copy)]
pub(crate) struct Lettering {
    pub colour: RGBColor,
    /// Size of an em in logical pixels.
    pub size: f64,
    pub weight: Weight,
    pub align: HPos,
}

/// Weight of the letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    Regular,
    Bold,
}

impl Lettering {
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
        // plotters' size is the height of a line, 1.24 em.
        let size = self.size * 1.24 * f64::from(DETAIL);
        let style = if self.weight == Weight::Bold { FontStyle::Bold } else { FontStyle::Normal };
        FontDesc::new(FontFamily::Name(FAMILY), size, style)
    }

    /// Width of a text in logical pixels.
    pub(crate) fn width(&self, text: &str) -> Result<f64, ChartError> {
        let (width, _) = self.font().box_size(text).map_err(|error| ChartError::Draw(error.to_string()))?;
        Ok(f64::from(width) / f64::from(DETAIL))
    }

    /// The text, cut with an ellipsis where it is wider than `room`.
    pub(crate) fn fit(&self, text: &str, room: f64) -> Result<String, ChartError> {
        if self.width(text)? <= room {
            return Ok(text.to_owned());
        }
        let mut kept: Vec<char> = text.chars().collect();
        while kept.pop().is_some() {
            let shorter = format!("{}…", kept.iter().collect::<String>().trim_end());
            if self.width(&shorter)? <= room {
                return Ok(shorter);
            }
        }
        Ok(String::new())
    }
}

impl<DB: DrawingBackend> Canvas<DB> {
    /// A sheet over a drawing area. `drop` corrects where the back end puts the middle line of a text, in ems.
    pub(crate) fn new(area: DrawingArea<DB, Shift>, drop: f64) -> Self {
        Self { area, drop }
    }

    /// Paints the whole sheet.
    pub(crate) fn fill(&self, colour: RGBColor) -> Result<(), ChartError> {
        self.area.fill(&colour).map_err(|error| ChartError::Draw(error.to_string()))
    }

    /// Finishes the drawing.
    pub(crate) fn finish(&self) -> Result<(), ChartError> {
        self.area.present().map_err(|error| ChartError::Draw(error.to_string()))
    }

    /// A line through points; a single point makes none.
    pub(crate) fn line(&self, points: &[At], stroke: Stroke) -> Result<(), ChartError> {
        if points.len() < 2 {
            return Ok(());
        }
        self.draw(&PathElement::new(points.iter().copied().map(drawn).collect::<Vec<_>>(), style(stroke)))
    }

    /// A line of dashes (`on` drawn, `off` left out) through points.
    pub(crate) fn dashes(&self, points: &[At], stroke: Stroke, on: f64, off: f64) -> Result<(), ChartError> {
        for dash in cut_in_dashes(points, on, off) {
            self.line(&dash, stroke)?;
        }
        Ok(())
    }

    /// A filled shape.
    pub(crate) fn polygon(&self, corners: &[At], colour: RGBColor) -> Result<(), ChartError> {
        self.draw(&Polygon::new(corners.iter().copied().map(drawn).collect::<Vec<_>>(), colour.filled()))
    }

    /// A filled rectangle between two corners.
    pub(crate) fn rectangle(&self, (x0, y0): At, (x1, y1): At, colour: RGBColor) -> Result<(), ChartError> {
        self.polygon(&[(x0, y0), (x1, y0), (x1, y1), (x0, y1)], colour)
    }

    /// A filled disc.
    pub(crate) fn disc(&self, centre: At, radius: f64, colour: RGBColor) -> Result<(), ChartError> {
        self.draw(&Circle::new(drawn(centre), scaled(radius).max(1), colour.filled()))
    }

    /// A marker with a thin light rim that keeps it apart from the lines behind it.
    pub(crate) fn marker(&self, centre: At, radius: f64, marker: Marker, colour: RGBColor) -> Result<(), ChartError> {
        self.shape(centre, radius + RIM, marker, RIM_COLOUR)?;
        self.shape(centre, radius, marker, colour)
    }

    /// Many markers; the rims lie under all of them, so that none hides another.
    pub(crate) fn markers(
        &self,
        centres: &[At],
        radius: f64,
        marker: Marker,
        colour: RGBColor,
    ) -> Result<(), ChartError> {
        centres.iter().try_for_each(|&centre| self.shape(centre, radius + RIM, marker, RIM_COLOUR))?;
        centres.iter().try_for_each(|&centre| self.shape(centre, radius, marker, colour))
    }

    fn shape(&self, centre: At, radius: f64, marker: Marker, colour: RGBColor) -> Result<(), ChartError> {
        let corners: Vec<At> =
            marker.corners().iter().map(|&(x, y)| (centre.0 + x * radius, centre.1 + y * radius)).collect();
        if corners.is_empty() { self.disc(centre, radius, colour) } else { self.polygon(&corners, colour) }
    }

    /// An open circle.
    pub(crate) fn ring(&self, centre: At, radius: f64, stroke: Stroke) -> Result<(), ChartError> {
        self.disc(centre, radius + stroke.width / 2.0, stroke.colour)?;
        self.disc(centre, radius - stroke.width / 2.0, RGBColor(255, 255, 255))
    }

    /// A line of text whose middle line runs through `at`.
    pub(crate) fn text(&self, text: &str, (x, y): At, lettering: Lettering) -> Result<(), ChartError> {
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

fn drawn((x, y): At) -> (i32, i32) {
    let detail = f64::from(DETAIL);
    ((x * detail).round() as i32, (y * detail).round() as i32)
}

fn scaled(length: f64) -> u32 {
    (length * f64::from(DETAIL)).round() as u32
}

fn style(stroke: Stroke) -> ShapeStyle {
    stroke.colour.stroke_width(scaled(stroke.width).max(1))
}

/// The drawn pieces of a dashed line; dashes bend round corners.
fn cut_in_dashes(points: &[At], on: f64, off: f64) -> Vec<Vec<At>> {
    let mut dashes = Vec::new();
    let mut dash: Vec<At> = points.first().copied().into_iter().collect();
    let (mut drawing, mut left) = (true, on);
    for (&from, &to) in points.iter().zip(points.iter().skip(1)) {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy);
        let mut gone = 0.0;
        while length - gone > left {
            gone += left;
            let here = (from.0 + dx * gone / length, from.1 + dy * gone / length);
            if drawing {
                dash.push(here);
                dashes.push(std::mem::take(&mut dash));
            } else {
                dash = vec![here];
            }
            drawing = !drawing;
            left = if drawing { on } else { off };
        }
        left -= length - gone;
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
        let length = |dash: &Vec<At>| -> f64 {
            dash.windows(2).map(|pair| (pair[1].0 - pair[0].0).hypot(pair[1].1 - pair[0].1)).sum()
        };
        assert_eq!(dashes.len(), 10);
        assert!(dashes.iter().all(|dash| (length(dash) - 6.0).abs() < 1e-9));
    }
}
