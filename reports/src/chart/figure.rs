//! Content of a figure, independent of its drawing.

use super::Axis;

/// Stacked panels with one legend at their side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// Title: one bold line.
    pub title: String,
    /// Line under the title: fabric, ranks, profile. May be empty.
    pub subtitle: String,
    /// Ribbon above the first panel that labels ranges of its x axis.
    pub ribbon: Option<Ribbon>,
    /// The panels, first on top.
    pub panels: Vec<LineChart>,
    /// Title of all x axes, under the last panel: `message size`. May be empty.
    pub x_title: String,
}

/// One panel: lines over two axes.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart {
    /// Short title above the panel, with the unit of the y axis if its labels have none.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Shaded ranges, drawn first.
    pub bands: Vec<Band>,
    /// Lines. Points that the axes cannot show (not finite, or not positive on a logarithmic axis) are omitted.
    pub lines: Vec<Line>,
}

/// Role of a line, which determines its style and drawing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The selected strategy: a broad soft line under the others.
    Pick,
    /// Line without a name of its own: thin and grey, with one common legend entry.
    Other,
    /// Line to compare, with the colour and marker of this number.
    Series(usize),
    /// Scattered points, with the colour and marker of this number.
    Points(usize),
    /// Range of a point of the series of this number: thin, without markers and legend entry.
    Range(usize),
    /// Reference line, such as a bound: dark and dashed.
    Bound,
    /// Measurements: open circles without a line.
    Measured,
}

/// Line of a panel; lines of the same name and role in different panels share a legend entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Role, which determines style and drawing order.
    pub role: Role,
    /// Points in the units of the axes' [`Quantity`](super::Quantity), in drawing order.
    pub points: Vec<(f64, f64)>,
}

/// Shaded range of y over x.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// Name in the legend.
    pub name: String,
    /// Colour of the range.
    pub shade: BandColour,
    /// Points of the range: x, lower y, upper y; by ascending x.
    pub points: Vec<(f64, f64, f64)>,
}

/// Colour of a shaded range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BandColour {
    /// Pale, behind lines, with its own legend entry.
    #[default]
    Pale,
    /// Colour of the series of this number, whose legend entry it shares.
    Series(usize),
}

/// Ribbon over the x axis of the first panel, divided into labelled ranges.
#[derive(Clone, Debug, PartialEq)]
pub struct Ribbon {
    /// Title to the left of the ribbon: `pick`.
    pub title: String,
    /// Labelled ranges, by ascending x.
    pub parts: Vec<RibbonPart>,
}

/// Labelled range of a [`Ribbon`].
#[derive(Clone, Debug, PartialEq)]
pub struct RibbonPart {
    /// Start of the range on the x axis.
    pub from: f64,
    /// End of the range on the x axis.
    pub to: f64,
    /// Label of the part, drawn if it fits.
    pub label: String,
    /// Role of a line, whose colour the part has.
    pub role: Role,
}
