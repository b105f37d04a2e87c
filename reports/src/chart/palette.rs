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

/// Number of the colour of parts that summarize others, after the last of [`COLOURS`].
const NEUTRAL: usize = COLOURS.len();

/// Colours of parts of steps and of memory, by their names on pages. A part has one colour in all charts; parts that
/// occur in one chart have different ones.
const PARTS: [(&str, usize); 34] = [
    ("compute", 0),
    ("kernels", 0),
    ("forward", 0),
    ("activations", 0),
    ("backward", 1),
    ("slowdown", 1),
    ("kv cache", 1),
    ("tensor", 2),
    ("tensor calls", 2),
    ("optimizer", 3),
    ("offload", 9),
    ("waits for offloaded data", 7),
    ("bubble", 4),
    ("waits for other streams", 4),
    ("data", 5),
    ("gradients", 5),
    ("gradient communication", 5),
    ("embedding", 6),
    ("embedding gradients", 6),
    ("context", 6),
    ("logits", 6),
    ("expert", 7),
    ("expert exchange", 7),
    ("pipeline transfer", 8),
    ("input and output transfers", 8),
    ("weights", 9),
    ("weight communication", 9),
    ("updated weights", 9),
    ("buffers", 8),
    ("launch", NEUTRAL),
    ("waits for launches", NEUTRAL),
    ("runtime", NEUTRAL),
    ("more intervals", NEUTRAL),
    ("other", NEUTRAL),
];

/// Returns the number of the colour of each part of a chart: that of its name, or else the first that no other part has.
pub(crate) fn part_colours(names: &[String]) -> Vec<usize> {
    let mut used = [false; NEUTRAL + 1];
    let mut colours: Vec<Option<usize>> = Vec::with_capacity(names.len());
    for name in names {
        let named = PARTS.iter().find(|(part, _)| part == name).map(|(_, colour)| *colour);
        // Two names of one colour in a chart would be confused.
        let own = named.filter(|&colour| used.get(colour).is_some_and(|used| !used));
        if let Some(entry) = own.and_then(|colour| used.get_mut(colour)) {
            *entry = true;
        }
        colours.push(own);
    }
    let mut next = 0;
    let mut unused = || {
        let found = (0..NEUTRAL).find(|&colour| used.get(colour).is_some_and(|used| !used));
        let colour = found.unwrap_or(next % NEUTRAL);
        next += 1;
        if let Some(entry) = used.get_mut(colour) {
            *entry = true;
        }
        colour
    };
    colours.into_iter().map(|own| own.unwrap_or_else(&mut unused)).collect()
}

/// Returns the colour of a part with a number of [`part_colours`].
pub(crate) fn part(number: usize) -> RGBColor {
    COLOURS.get(number).copied().unwrap_or(AXIS)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn colours(names: &[&str]) -> Vec<usize> {
        part_colours(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn parts_have_one_colour_in_all_charts() {
        let (step, timeline) =
            (colours(&["compute", "optimizer", "data"]), colours(&["forward", "gradient communication", "optimizer"]));
        assert_eq!((step[0], step[1], step[2]), (timeline[0], timeline[2], timeline[1]));
        assert_eq!(colours(&["optimizer"]), [step[1]]);
    }

    #[test]
    fn parts_of_a_chart_have_different_colours() {
        let names: Vec<String> =
            (0..4).map(|k| format!("part {k}")).chain(["forward".into(), "compute".into()]).collect();
        let mut numbers = part_colours(&names);
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), names.len());
        assert_eq!(part_colours(&vec!["x".to_owned(); 30]).len(), 30);
    }
}
