//! Content of a figure, independent of its drawing.

use super::Axis;

/// Figure that consists of panels and one legend at their side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// Title of the figure: one bold line.
    pub title: String,
    /// Line below the title, such as fabric, ranks and profile; may be empty.
    pub subtitle: String,
    /// Ribbon above the first panel, which labels ranges of its x axis.
    pub ribbon: Option<Ribbon>,
    /// Panels of the figure, first on top; in a row, first at the left.
    pub panels: Vec<LineChart>,
    /// Arrangement of the panels.
    pub arrangement: Arrangement,
    /// Titles above the rows of panels, such as the name of a collective; empty if rows have none.
    pub row_titles: Vec<String>,
}

/// Arrangement of the panels of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrangement {
    /// One panel in a row.
    #[default]
    Stacked,
    /// Two panels in a row, such as time and bandwidth.
    Pairs,
}

impl Arrangement {
    /// Number of panels in a row.
    pub(super) fn columns(self) -> usize {
        match self {
            Self::Stacked => 1,
            Self::Pairs => 2,
        }
    }
}

/// Panel of a figure: lines over two axes.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart {
    /// Short title above the panel: quantity of the y axis, and its unit if the labels have no unit.
    pub title: String,
    /// Title of the x axis, such as `message size`; may be empty. Panels below each other with equal titles share the
    /// lowest one.
    pub x_title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Shaded ranges, which are drawn first.
    pub bands: Vec<Band>,
    /// Lines of the panel. Points that the axes cannot show (not finite, or not positive on a logarithmic axis) are
    /// omitted.
    pub lines: Vec<Line>,
}

/// Role of a line, which determines its style and drawing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The selected strategy: a broad line of light colour below the others.
    Pick,
    /// Line without a separate name: thin and grey, with one legend entry for all such lines.
    Other,
    /// Line to compare; holds the number of its colour and marker.
    Series(usize),
    /// Scattered points; holds the number of their colour and marker.
    Points(usize),
    /// Range of a point of the series with this number: thin, without markers and without a legend entry.
    Range(usize),
    /// Reference line, such as a bound: dark and dashed.
    Bound,
    /// Measurements: open circles without a line.
    Measured,
}

/// Line of a panel. Lines with the same name and role in different panels share a legend entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Role of the line, which determines style and drawing order.
    pub role: Role,
    /// Points in drawing order, in the units of the axes' [`Quantity`](super::Quantity).
    pub points: Vec<(f64, f64)>,
}

/// Shaded range of y over x.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// Name in the legend.
    pub name: String,
    /// Colour of the range.
    pub shade: BandColour,
    /// Points of the range as x, lower y and upper y, by ascending x.
    pub points: Vec<(f64, f64, f64)>,
}

/// Colour of a shaded range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BandColour {
    /// Pale colour behind lines, with a separate legend entry.
    #[default]
    Pale,
    /// Colour of the series with this number; the range shares the legend entry of the series.
    Series(usize),
}

/// Ribbon over the x axis of the first panel, divided into labelled ranges.
#[derive(Clone, Debug, PartialEq)]
pub struct Ribbon {
    /// Title to the left of the ribbon, such as `pick`.
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
    /// Label of the range, drawn if it fits.
    pub label: String,
    /// Role of the line whose colour the range has.
    pub role: Role,
}
