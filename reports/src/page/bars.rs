//! Bars of parts as a chart that can be pointed at; parts can be hidden, the others then close up (`page.js`).

use super::lines::legend;
use crate::chart::BarChart;
use crate::chart::palette;
use crate::markup::{Markup, number, shortened};

const WIDTH: f64 = 720.0;
const NAMES: f64 = 190.0;
const LABELS: f64 = 120.0;
const ROW: f64 = 30.0;
const BOTTOM: f64 = 30.0;
/// What is thinner is not drawn; it could not be seen.
const THINNEST: f64 = 0.05;
/// Letters that fit beside a bar.
const LETTERS: usize = 26;
/// Letters that fit behind a bar.
const REMARK: usize = 17;

/// Writes bars; where there is nothing to draw, it says so.
pub(super) fn write(chart: &BarChart, markup: &mut Markup) {
    markup.open("figure", &[("class", "chart bars")]);
    markup.text("figcaption", &[], &chart.title);
    let classes: Vec<String> =
        (0..chart.parts.len()).map(|part| format!("c{}", part % palette::COLOURS.len())).collect();
    match chart.span() {
        None => markup.text("p", &[("class", "remark")], "There is nothing to draw."),
        Some(span) => {
            let keys = chart.parts.iter().zip(&classes);
            legend(keys.map(|(name, class)| (name.as_str(), class.as_str(), "M1 1H15V13H1Z".to_owned())), markup);
            let height = chart.bars.len() as f64 * ROW;
            let view = format!("0 0 {WIDTH} {}", number(height + BOTTOM));
            let label = format!("Chart: {}. Arrow keys go from part to part.", chart.title);
            markup.open("div", &[("class", "scroll")]);
            markup.open(
                "svg",
                &[("class", "plot"), ("viewBox", &view), ("role", "group"), ("aria-label", &label), ("tabindex", "0")],
            );
            let wide = WIDTH - NAMES - LABELS;
            markup.open("g", &[("class", "grid"), ("aria-hidden", "true")]);
            for tick in span.ticks(5) {
                let x = number(NAMES + tick.at * wide);
                markup.empty("path", &[("d", &format!("M{x} 0V{}", number(height)))]);
                if let Some(label) = &tick.label {
                    let y = number(height + 18.0);
                    markup.text("text", &[("x", &x), ("y", &y), ("text-anchor", "middle")], label);
                }
            }
            markup.close();
            for (row, bar) in chart.bars.iter().enumerate() {
                let middle = (row as f64 + 0.5) * ROW;
                let text_y = number(middle + 4.5);
                markup.open("g", &[("class", "bar")]);
                let name = shortened(&bar.name, LETTERS);
                markup.text("text", &[("x", &number(NAMES - 8.0)), ("y", &text_y), ("text-anchor", "end")], &name);
                let (mut x, sum) = (NAMES, bar.sum(chart.parts.len()));
                let parts = chart.parts.iter().zip(&classes).zip(bar.lengths(chart.parts.len()));
                for (part, ((name, class), length)) in parts.enumerate() {
                    let width = span.place(length) * wide;
                    if width < THINNEST {
                        continue;
                    }
                    let attributes = [
                        ("class", &*format!("point {class}")),
                        ("data-series", &part.to_string()),
                        ("x", &number(x)),
                        ("y", &number(middle - 10.0)),
                        ("width", &number(width)),
                        ("height", "20"),
                    ];
                    markup.open("rect", &attributes);
                    let said = chart.axis.said(length);
                    let share = crate::format::percent(length / sum);
                    markup.text_of_lines("title", &format!("{}\n{name}: {said}, {share} %", bar.name));
                    markup.close();
                    x += width;
                }
                let label = shortened(&chart.label(bar), REMARK);
                markup.text("text", &[("class", "sum"), ("x", &number(x + 7.0)), ("y", &text_y)], &label);
                markup.close();
            }
            markup.close();
            markup.close();
        }
    }
    if !chart.subtitle.is_empty() {
        markup.text("p", &[("class", "remark")], &chart.subtitle);
    }
    markup.close();
}
