//! Embedded fonts of the charts, which are registered with plotters once.

use std::sync::OnceLock;

use plotters::style::{FontStyle, register_font};

use super::ChartError;

/// Font family in SVG. A viewer without DejaVu uses the next font, each of similar width. plotters finds the embedded
/// font by this name.
pub(super) const FAMILY: &str = "DejaVu Sans, Verdana, Arial, sans-serif";

pub(super) static REGULAR: &[u8] = include_bytes!("../../assets/DejaVuSans-subset.ttf");
pub(super) static BOLD: &[u8] = include_bytes!("../../assets/DejaVuSans-Bold-subset.ttf");

/// Registers the fonts. Without this call, plotters finds no font.
///
/// # Errors
/// [`ChartError::Draw`] if plotters rejects a font.
pub(super) fn register() -> Result<(), ChartError> {
    static DONE: OnceLock<bool> = OnceLock::new();
    let registered = DONE.get_or_init(|| {
        register_font(FAMILY, FontStyle::Normal, REGULAR).is_ok()
            && register_font(FAMILY, FontStyle::Bold, BOLD).is_ok()
    });
    if *registered { Ok(()) } else { Err(ChartError::Draw("the embedded fonts cannot be read".into())) }
}
