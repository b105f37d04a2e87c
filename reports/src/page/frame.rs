//! Common parts of interactive charts: figure, drawing with keyboard control, legend, ticks.

use crate::chart::axis::Tick;
use crate::chart::palette;
use crate::markup::{Markup, number};

/// Texts of a figure.
#[derive(Clone, Copy)]
pub(super) struct FigureText<'a> {
    /// Classes of the figure in the style sheet.
    pub class: &'a str,
    pub title: &'a str,
    /// Sentence below the drawing; may be empty.
    pub remark: &'a str,
    /// Sentence that replaces the drawing if it is missing.
    pub empty: &'a str,
}

/// Writes a figure with its title, the drawing or a message that replaces it, and an optional sentence below.
pub(super) fn figure<T>(
    text: FigureText<'_>,
    sheet: Option<T>,
    markup: &mut Markup,
    draw: impl FnOnce(T, &mut Markup),
) {
    let FigureText { class, title, remark, empty } = text;
    markup.open("figure", &[("class", class)]);
    markup.text("figcaption", &[], title);
    match sheet {
        Some(sheet) => draw(sheet, markup),
        None => self::remark(empty, markup),
    }
    if !remark.is_empty() {
        self::remark(remark, markup);
    }
    markup.close();
}

/// Writes a sentence below a chart, or in place of a chart.
fn remark(text: &str, markup: &mut Markup) {
    markup.text("p", &[("class", "remark")], text);
}

/// Size of a drawing, in pixels.
#[derive(Clone, Copy)]
pub(super) struct PlotSize {
    pub width: f64,
    pub height: f64,
}

/// Label of a drawing for screen readers.
#[derive(Clone, Copy)]
pub(super) struct PlotLabel<'a> {
    pub title: &'a str,
    /// Noun for the elements that arrow keys move between, such as `point`, `part` or `span`.
    pub things: &'a str,
}

/// Horizontal extent of a drawing, in pixels.
#[derive(Clone, Copy)]
pub(super) struct HorizontalExtent {
    pub left: f64,
    pub width: f64,
}

/// Writes the drawing in a scrollable box. Arrow keys move between its `things`.
pub(super) fn plot(size: PlotSize, label: PlotLabel<'_>, markup: &mut Markup, inner: impl FnOnce(&mut Markup)) {
    let (PlotSize { width, height }, PlotLabel { title, things }) = (size, label);
    let view = format!("0 0 {} {}", number(width), number(height));
    let label = format!("Chart: {title}. Arrow keys go from {things} to {things}.");
    markup.open("div", &[("class", "scroll")]);
    let attributes =
        [("class", "plot"), ("viewBox", &*view), ("role", "group"), ("aria-label", &label), ("tabindex", "0")];
    markup.open("svg", &attributes);
    inner(markup);
    markup.close();
    markup.close();
}

/// Writes vertical grid lines with labels below them, in a drawing whose rows end at `bottom`.
pub(super) fn columns(ticks: &[Tick], extent: HorizontalExtent, bottom: f64, markup: &mut Markup) {
    for tick in ticks {
        let x = number(extent.left + tick.position * extent.width);
        markup.empty("path", &[("d", &format!("M{x} 0V{}", number(bottom)))]);
        if let Some(label) = &tick.label {
            let y = number(bottom + 18.0);
            markup.text("text", &[("x", &x), ("y", &y), ("text-anchor", "middle")], label);
        }
    }
}

/// Returns the style sheet class of a series.
pub(super) fn series_class(series: usize) -> String {
    format!("c{}", series % palette::COLOURS.len())
}

/// Writes the legend of areas with these names, and returns their style sheet classes.
pub(super) fn area_legend(names: &[String], markup: &mut Markup) -> Vec<String> {
    let classes: Vec<String> = palette::part_colours(names).into_iter().map(|number| format!("c{number}")).collect();
    let keys = names.iter().zip(&classes);
    legend(keys.map(|(name, class)| LegendEntry { name, class, path: "M1 1H15V13H1Z".to_owned() }), markup);
    classes
}

/// Entry of a legend.
pub(super) struct LegendEntry<'a> {
    pub name: &'a str,
    /// Style sheet class of the series.
    pub class: &'a str,
    /// SVG path of the sample, in a box of 20 × 14 pixels.
    pub path: String,
}

/// Writes a legend of buttons. Each button shows or hides the series with its number.
pub(super) fn legend<'a>(entries: impl Iterator<Item = LegendEntry<'a>>, markup: &mut Markup) {
    markup.open("div", &[("class", "legend"), ("role", "group"), ("aria-label", "Series: press to hide or show")]);
    for (number, LegendEntry { name, class, path }) in entries.enumerate() {
        let number = number.to_string();
        markup.open("button", &[("type", "button"), ("aria-pressed", "true"), ("data-series", &number)]);
        markup.open("svg", &[("class", "key"), ("viewBox", "0 0 20 14"), ("aria-hidden", "true")]);
        markup.empty("path", &[("class", class), ("d", &path)]);
        markup.close();
        markup.text("span", &[], name);
        markup.close();
    }
    markup.close();
}
