//! What a figure shows, independent of how it is drawn.

use super::Axis;

/// Panels above each other with one legend beside them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// One line, bold.
    pub title: String,
    /// One line under it: fabric, ranks, profile. May be empty.
    pub subtitle: String,
    /// A strip above the first panel that says what holds where on its x axis.
    pub ribbon: Option<Ribbon>,
    /// The panels, first on top.
    pub panels: Vec<LineChart>,
    /// What all x axes count, under the last panel: `message size`. May be empty.
    pub x_title: String,
}

/// One panel: lines over two axes.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart {
    /// Short title above the panel, with the unit of the y axis where its labels have none.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Shaded ranges, drawn first.
    pub bands: Vec<Band>,
    /// The lines. Points that the axes cannot show (not finite, or not positive on a logarithmic axis) are left out.
    pub lines: Vec<Line>,
}

/// What a line stands for, which decides how it is drawn and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The choice: a broad soft line under the others.
    Pick,
    /// One of many that need no name of their own: thin and grey, one common entry in the legend.
    Other,
    /// One to compare, with the colour and marker of this number.
    Series(usize),
    /// Points that no line joins, with the colour and marker of this number.
    Points(usize),
    /// Between which values a point of the series of this number lies: thin, without points and without a name of its own.
    Range(usize),
    /// What cannot be beaten: dark and dashed.
    Bound,
    /// What was measured: open circles without a line.
    Measured,
}

/// A line of a panel; lines of the same name and role in different panels share an entry of the legend.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// What it stands for.
    pub role: Role,
    /// Its points in the units of the axes' [`Quantity`](super::Quantity), in drawing order.
    pub points: Vec<(f64, f64)>,
}

/// A shaded range of y over x.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// Name in the legend.
    pub name: String,
    /// Its colour.
    pub shade: Shade,
    /// x, lower y, upper y, by rising x.
    pub points: Vec<(f64, f64, f64)>,
}

/// The colour of a shaded range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shade {
    /// Pale, behind lines, with an entry of its own in the legend.
    #[default]
    Pale,
    /// That of the series of this number, whose entry in the legend it shares.
    Series(usize),
}

/// A strip over the x axis of the first panel, cut where the answer changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Ribbon {
    /// What it answers, in a word: `pick`.
    pub title: String,
    /// Its parts, by rising x.
    pub parts: Vec<RibbonPart>,
}

/// A part of a [`Ribbon`].
#[derive(Clone, Debug, PartialEq)]
pub struct RibbonPart {
    /// Where it begins on the x axis.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// What holds here; written into the part where there is room.
    pub label: String,
    /// What it is coloured as.
    pub role: Role,
}
