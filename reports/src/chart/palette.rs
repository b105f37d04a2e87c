//! Colours and markers of lines, distinguishable for colour-blind readers and in greyscale.
//!
//! The hues are those of Okabe and Ito (2008, "Color Universal Design") without yellow, which is too light for a thin
//! line on white, followed by indigo, olive and wine of Paul Tol's muted scheme (SRON/EPS/TN/09-002). Each colour is
//! paired with a marker, so that lines also differ by shape.

use fabricast_topologies::variants::variants;
use plotters::style::RGBColor;
use strum::{EnumCount, VariantArray};

/// Colours of the named series.
pub(crate) const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(51, 34, 136),
    RGBColor(86, 180, 233),
    RGBColor(136, 34, 85),
    RGBColor(153, 153, 51),
    RGBColor(110, 90, 75),
];

/// Colour of titles and of the line of the lower bound.
pub(crate) const INK: RGBColor = RGBColor(36, 41, 47);
/// Colour of text labels.
pub(crate) const TEXT: RGBColor = RGBColor(87, 96, 106);
/// Colour of lines without a name.
pub(crate) const OTHER: RGBColor = RGBColor(196, 202, 208);
/// Colour of grid lines with a label.
pub(crate) const GRID: RGBColor = RGBColor(228, 232, 236);
/// Colour of grid lines without a label.
pub(crate) const FINE_GRID: RGBColor = RGBColor(243, 245, 247);
/// Colour of the axis line.
pub(crate) const AXIS: RGBColor = RGBColor(140, 149, 159);
/// Highlight colour under the line and the points of the selected strategy.
pub(crate) const PICK: RGBColor = RGBColor(255, 223, 128);
/// Colour of a shaded band.
pub(crate) const BAND: RGBColor = RGBColor(221, 229, 238);

/// Marker shapes of points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, VariantArray)]
pub(crate) enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    TriangleDown,
    Pentagon,
}

const MARKERS: [Marker; Marker::COUNT] = variants();

/// Returns the colour and the marker of a series. Numbers beyond the palette start again at its first colour.
pub(crate) fn series(number: usize) -> (RGBColor, Marker) {
    let colour = COLOURS.get(number % COLOURS.len()).copied().unwrap_or(INK);
    let marker = MARKERS.get(number % MARKERS.len()).copied().unwrap_or(Marker::Circle);
    (colour, marker)
}

impl Marker {
    /// Returns the corners of the shape around the origin, scaled to the visual weight of a circle of radius 1; empty
    /// for the circle.
    pub(crate) fn corners(self) -> &'static [(f64, f64)] {
        match self {
            Self::Circle => &[],
            Self::Square => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
            Self::Triangle => &[(0.0, -1.3), (1.15, 0.75), (-1.15, 0.75)],
            Self::Diamond => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
            Self::TriangleDown => &[(0.0, 1.3), (1.15, -0.75), (-1.15, -0.75)],
            Self::Pentagon => &[(0.0, -1.15), (1.1, -0.35), (0.68, 0.93), (-0.68, 0.93), (-1.1, -0.35)],
        }
    }
}
