//! Line charts as SVG and PNG, identical on every machine.
//!
//! A [`Figure`] consists of a title, panels, and one legend at their side. [`PlanChart`] creates the figure of
//! a plan from sizes and times, [`CompareChart`] that of measured against predicted; [`PlanPanel`] and [`CurvePanel`] show
//! several of them in one picture, with time and bandwidth. Other users fill a [`Figure`] themselves.
//!
//! ```
//! use fabricast_reports::chart::{self, Format, PlanChart, PlanPoint, Strategy};
//! use fabricast_topologies::{Bytes, Picos};
//!
//! let points = (10..30).map(|k| PlanPoint { bytes: Bytes(1 << k), time: Picos((5 << 20) + (4 << k)) }).collect();
//! let chart = PlanChart {
//!     title: "all_reduce on hgx-h200".into(),
//!     bus_factor: 1.75,
//!     strategies: vec![Strategy { name: "ring simple".into(), points }],
//!     ..PlanChart::default()
//! };
//! let svg = chart::render(&chart.figure(), Format::Svg)?;
//! assert!(svg.starts_with(b"<svg"));
//! # Ok::<(), chart::ChartError>(())
//! ```
//!
//! Drawing steps: [`plan`](PlanChart::figure) → `layout` (positions of panels and legend) → `panel`, `legend`, `ribbon`
//! (drawing in logical pixels) → `canvas` (SVG or bitmap back end of plotters, or `pdf`).

pub(crate) mod axis;
mod bars;
mod breakdown;
pub(crate) mod canvas;
mod compare;
mod curve_panel;
mod estimates;
mod figure;
mod font;
mod layout;
mod legend;
pub(crate) mod output;
pub(crate) mod palette;
mod panel;
mod pdf;
mod plan;
mod plan_panel;
mod ribbon;
mod rows;
mod spans;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use axis::{Axis, Quantity, RateScale, Scale};
pub use bars::{Bar, BarChart, render_bars};
pub use breakdown::{BreakdownChart, BreakdownRow};
pub use compare::{CompareChart, ComparedPoint, ComparedSeries};
pub use curve_panel::{CurvePanel, MeasuredCurve};
pub use estimates::{EstimatesTable, ParameterEstimate};
pub use figure::{Arrangement, Band, BandColour, Figure, Line, LineChart, Ribbon, RibbonPart, Role};
pub use output::render;
pub use plan::{MeasuredSeries, Pick, PlanChart, PlanPoint, PredictionInterval, Strategy};
pub use plan_panel::PlanPanel;
pub use spans::{Spans, TimeSpan, render_spans};

/// File format of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// SVG, which is scalable, for pages and papers. Text remains text.
    Svg,
    /// PNG with two pixels per logical pixel and the embedded font.
    Png,
    /// PDF of one page with vector graphics and the embedded fonts, for papers.
    Pdf,
}

impl Format {
    /// Returns the format that belongs to the extension of a file name.
    ///
    /// # Errors
    /// [`ChartError::UnknownFormat`] if the extension is none of `svg`, `png` and `pdf` (in upper or lower case).
    pub fn from_path(path: &Path) -> Result<Self, ChartError> {
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
        match extension.as_deref() {
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            Some("pdf") => Ok(Self::Pdf),
            _ => Err(ChartError::UnknownFormat { path: path.display().to_string() }),
        }
    }
}

/// Errors of drawing a chart.
#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    /// There is no point that can be drawn: finite and, on a logarithmic axis, positive.
    #[error("the chart `{title}` has no point that can be drawn")]
    NoData {
        /// Title of the figure.
        title: String,
    },
    /// The extension of a file belongs to no known format.
    #[error("`{path}` names no chart format: expected a file name that ends in `.svg`, `.png` or `.pdf`")]
    UnknownFormat {
        /// Path of the file as given.
        path: String,
    },
    /// The drawing library failed.
    #[error("drawing the chart failed: {0}")]
    Draw(String),
    /// The PNG encoder failed.
    #[error("writing the chart as PNG failed")]
    Png(#[from] png::EncodingError),
}
