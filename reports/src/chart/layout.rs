//! Positions of title, ribbon, panels and legend in the picture, in logical pixels.

use super::canvas::Position;
use super::figure::Figure;

/// Width of the picture, in logical pixels.
pub(super) const WIDTH: f64 = 1120.0;
const MARGIN: f64 = 28.0;
/// Width of the labels of the y axis, in logical pixels.
const Y_LABELS: f64 = 58.0;
/// Gap between the panels and the legend, in logical pixels.
const GUTTER: f64 = 26.0;
const PANEL_HEIGHT: f64 = 300.0;
const PANEL_TITLE: f64 = 30.0;
const X_LABELS: f64 = 30.0;
const PANEL_GAP: f64 = 14.0;
const RIBBON: f64 = 22.0;

/// Rectangle in the picture, in logical pixels from the top left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rectangle {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
}

impl Rectangle {
    /// Returns the position of a point in the rectangle. Its coordinates are from 0 to 1, with 0 at the left and at the
    /// bottom.
    pub(super) fn point(&self, x: f64, y: f64) -> Position {
        (self.left + x * (self.right - self.left), self.bottom - y * (self.bottom - self.top))
    }
}

/// Positions of all parts of a figure, in logical pixels from the top left of the picture.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FigureLayout {
    pub height: f64,
    /// Left edge and vertical centre of the title.
    pub title: Position,
    /// Left edge and vertical centre of the subtitle.
    pub subtitle: Position,
    /// Maximum width of title and subtitle.
    pub title_width: f64,
    /// Position of the ribbon above the first panel.
    pub ribbon: Rectangle,
    /// Plot areas of the panels.
    pub panels: Vec<Rectangle>,
    /// Centre of the title of the x axis, under the last panel; `None` if the figure has none.
    pub x_title: Option<Position>,
    /// Top left of the legend.
    pub legend: Position,
}

impl FigureLayout {
    pub(super) fn new(figure: &Figure, legend_width: f64) -> Self {
        let left = MARGIN + Y_LABELS;
        let right = WIDTH - MARGIN - legend_width - GUTTER;
        let title = (MARGIN, MARGIN + 10.0);
        let subtitle = (MARGIN, title.1 + 25.0);
        let mut top = if figure.subtitle.is_empty() { title.1 + 26.0 } else { subtitle.1 + 22.0 };
        let ribbon = Rectangle { left, top, right, bottom: top + RIBBON };
        if figure.ribbon.is_some() {
            top = ribbon.bottom + 10.0;
        }
        let legend = (right + GUTTER, top + PANEL_TITLE);
        let mut panels = Vec::with_capacity(figure.panels.len());
        for _ in &figure.panels {
            let frame = Rectangle { left, top: top + PANEL_TITLE, right, bottom: top + PANEL_TITLE + PANEL_HEIGHT };
            top = frame.bottom + X_LABELS + PANEL_GAP;
            panels.push(frame);
        }
        let x_title = (!figure.x_title.is_empty()).then_some(((left + right) / 2.0, top - PANEL_GAP + 6.0));
        let height = top - PANEL_GAP + if x_title.is_some() { 30.0 } else { 12.0 };
        let title_width = WIDTH - 2.0 * MARGIN;
        Self { height: height.round(), title, subtitle, title_width, ribbon, panels, x_title, legend }
    }
}
