//! Spans of time in rows as a chart that can be pointed at.

use super::lines::legend;
use super::{Span, Spans};
use crate::chart::{Axis, Quantity, palette};
use crate::markup::{Markup, number, shortened};

const WIDTH: f64 = 900.0;
const NAMES: f64 = 150.0;
const RIGHT: f64 = 14.0;
const ROW: f64 = 17.0;
const BOTTOM: f64 = 30.0;
const LETTERS: usize = 20;

/// Writes spans; where there are none, it says so.
pub(super) fn write(chart: &Spans, markup: &mut Markup) {
    markup.open("figure", &[("class", "chart spans")]);
    markup.text("figcaption", &[], &chart.title);
    let axis = Axis::linear(Quantity::Time);
    match axis.span([chart.end].into_iter().filter(|_| !chart.spans.is_empty())) {
        None => markup.text("p", &[("class", "remark")], "There is no span to draw."),
        Some(extent) => {
            let classes: Vec<String> =
                (0..chart.kinds.len()).map(|kind| format!("c{}", kind % palette::COLOURS.len())).collect();
            let keys = chart.kinds.iter().zip(&classes);
            legend(keys.map(|(name, class)| (name.as_str(), class.as_str(), "M1 1H15V13H1Z".to_owned())), markup);
            let height = chart.rows.len() as f64 * ROW;
            let view = format!("0 0 {WIDTH} {}", number(height + BOTTOM));
            let label = format!("Chart: {}. Arrow keys go from span to span.", chart.title);
            markup.open("div", &[("class", "scroll")]);
            let attributes =
                [("class", "plot"), ("viewBox", &view), ("role", "group"), ("aria-label", &label), ("tabindex", "0")];
            markup.open("svg", &attributes);
            let at = |us: f64| NAMES + extent.place(us) * (WIDTH - NAMES - RIGHT);
            markup.open("g", &[("class", "grid"), ("aria-hidden", "true")]);
            for tick in extent.ticks(7) {
                let x = number(NAMES + tick.at * (WIDTH - NAMES - RIGHT));
                markup.empty("path", &[("d", &format!("M{x} 0V{}", number(height)))]);
                if let Some(label) = &tick.label {
                    let y = number(height + 18.0);
                    markup.text("text", &[("x", &x), ("y", &y), ("text-anchor", "middle")], label);
                }
            }
            for (row, name) in chart.rows.iter().enumerate() {
                let (x, y) = (number(NAMES - 8.0), number((row as f64 + 0.5) * ROW + 4.0));
                markup.text("text", &[("x", &x), ("y", &y), ("text-anchor", "end")], &shortened(name, LETTERS));
            }
            markup.close();
            for span in &chart.spans {
                let class = classes.get(span.kind).map_or("", String::as_str);
                let width = (at(span.to) - at(span.from)).max(0.6);
                let attributes = [
                    ("class", &*format!("point {class}")),
                    ("data-series", &span.kind.to_string()),
                    ("x", &number(at(span.from))),
                    ("y", &number(span.row as f64 * ROW + 2.0)),
                    ("width", &number(width)),
                    ("height", "13"),
                ];
                markup.open("rect", &attributes);
                markup.text_of_lines("title", &says(chart, span));
                markup.close();
            }
            markup.close();
            markup.close();
        }
    }
    if !chart.remark.is_empty() {
        markup.text("p", &[("class", "remark")], &chart.remark);
    }
    markup.close();
}

fn says(chart: &Spans, span: &Span) -> String {
    let axis = Axis::linear(Quantity::Time);
    let row = chart.rows.get(span.row).map_or("", String::as_str);
    format!("{}\n{row}\n{} to {}", span.name, axis.said(span.from), axis.said(span.to))
}
