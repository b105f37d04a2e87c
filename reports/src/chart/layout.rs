//! Positions of title, ribbon, panels and legend in the picture, in logical pixels.

use super::canvas::Position;
use super::figure::{Arrangement, Figure};

/// Width of a picture with one panel in a row, in logical pixels.
const WIDTH: f64 = 1120.0;
/// Width of a panel with another one in its row, in logical pixels.
const PAIRED_PANEL: f64 = 480.0;
const MARGIN: f64 = 28.0;
/// Width of the labels of the y axis, in logical pixels.
const Y_LABELS: f64 = 58.0;
/// Gap between the panels and the legend, in logical pixels.
const GUTTER: f64 = 26.0;
const PANEL_HEIGHT: f64 = 300.0;
const ROW_TITLE: f64 = 28.0;
const PANEL_TITLE: f64 = 30.0;
const X_LABELS: f64 = 30.0;
const X_TITLE: f64 = 18.0;
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
    pub width: f64,
    pub height: f64,
    /// Left edge and vertical centre of the title.
    pub title: Position,
    /// Left edge and vertical centre of the subtitle.
    pub subtitle: Position,
    /// Maximum width of title and subtitle.
    pub title_width: f64,
    /// Position of the ribbon above the first panel.
    pub ribbon: Rectangle,
    /// Left edges and vertical centres of the titles of rows.
    pub row_titles: Vec<Position>,
    /// Plot areas of the panels.
    pub panels: Vec<Rectangle>,
    /// Centres of the titles of the x axes; `None` for panels without a title, and for those that share the title of
    /// the panel below.
    pub x_titles: Vec<Option<Position>>,
    /// Top left of the legend.
    pub legend: Position,
}

impl FigureLayout {
    pub(super) fn new(figure: &Figure, legend_width: f64) -> Self {
        let columns = figure.arrangement.columns();
        let left = MARGIN + Y_LABELS;
        let panel_width = match figure.arrangement {
            Arrangement::Stacked => WIDTH - left - GUTTER - legend_width - MARGIN,
            Arrangement::Pairs => PAIRED_PANEL,
        };
        let column = |number: usize| left + number as f64 * (panel_width + GUTTER + Y_LABELS);
        let right = column(columns - 1) + panel_width;
        let title = (MARGIN, MARGIN + 10.0);
        let subtitle = (MARGIN, title.1 + 25.0);
        let mut top = if figure.subtitle.is_empty() { title.1 + 26.0 } else { subtitle.1 + 22.0 };
        let ribbon = Rectangle { left, top, right: left + panel_width, bottom: top + RIBBON };
        if figure.ribbon.is_some() {
            top = ribbon.bottom + 10.0;
        }
        let legend = (right + GUTTER, top + PANEL_TITLE);
        let mut panels = Vec::with_capacity(figure.panels.len());
        let mut x_titles = Vec::with_capacity(figure.panels.len());
        let shares_title_below = |index: usize| {
            let title = |index: usize| figure.panels.get(index).map(|panel| &panel.x_title);
            title(index) == title(index + columns)
        };
        let mut row_titles = Vec::with_capacity(figure.row_titles.len());
        for (row, charts) in figure.panels.chunks(columns).enumerate() {
            if figure.row_titles.get(row).is_some() {
                row_titles.push((MARGIN, top + ROW_TITLE / 2.0));
                top += ROW_TITLE;
            }
            let bottom = top + PANEL_TITLE + PANEL_HEIGHT;
            let mut is_titled = false;
            for (number, chart) in charts.iter().enumerate() {
                let left = column(number);
                let frame = Rectangle { left, top: top + PANEL_TITLE, right: left + panel_width, bottom };
                let has_title = !chart.x_title.is_empty() && !shares_title_below(row * columns + number);
                is_titled |= has_title;
                x_titles.push(has_title.then_some((left + panel_width / 2.0, bottom + X_LABELS + 6.0)));
                panels.push(frame);
            }
            top = bottom + X_LABELS + if is_titled { X_TITLE } else { 0.0 } + PANEL_GAP;
        }
        let width = right + GUTTER + legend_width + MARGIN;
        let title_width = width - 2.0 * MARGIN;
        let height = (top - PANEL_GAP + 12.0).round();
        Self { width, height, title, subtitle, title_width, ribbon, row_titles, panels, x_titles, legend }
    }
}
