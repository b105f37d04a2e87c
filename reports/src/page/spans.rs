//! Interactive chart of spans of time in rows.

use super::frame::{FigureText, HorizontalExtent, PlotLabel, PlotSize, area_legend, columns, figure, plot};
use super::{Spans, TimeSpan};
use crate::chart::axis::AxisRange as Extent;
use crate::chart::{Axis, Quantity};
use crate::markup::{Markup, number, shortened};

const WIDTH: f64 = 900.0;
const NAMES: f64 = 150.0;
const RIGHT: f64 = 14.0;
const ROW: f64 = 17.0;
const BOTTOM: f64 = 30.0;
const LETTERS: usize = 20;

/// Writes a chart of spans, or a message if there are none.
pub(super) fn write(chart: &Spans, markup: &mut Markup) {
    let text = FigureText {
        class: "chart spans",
        title: &chart.title,
        remark: &chart.remark,
        empty: "There is no span to draw.",
    };
    figure(text, chart.extent(), markup, |extent, markup| {
        draw(chart, &extent, markup);
    });
}

fn draw(chart: &Spans, extent: &Extent, markup: &mut Markup) {
    let classes = area_legend(&chart.kinds, markup);
    let height = chart.rows.len() as f64 * ROW;
    let wide = WIDTH - NAMES - RIGHT;
    let size = PlotSize { width: WIDTH, height: height + BOTTOM };
    plot(size, PlotLabel { title: &chart.title, things: "span" }, markup, |markup| {
        let position = |us: f64| NAMES + extent.position(us) * wide;
        markup.open("g", &[("class", "grid"), ("aria-hidden", "true")]);
        columns(&extent.ticks(7), HorizontalExtent { left: NAMES, width: wide }, height, markup);
        for (row, name) in chart.rows.iter().enumerate() {
            let (x, y) = (number(NAMES - 8.0), number((row as f64 + 0.5) * ROW + 4.0));
            markup.text("text", &[("x", &x), ("y", &y), ("text-anchor", "end")], &shortened(name, LETTERS));
        }
        markup.close();
        for span in &chart.spans {
            let class = classes.get(span.kind).map_or("", String::as_str);
            let width = (position(span.to) - position(span.from)).max(0.6);
            let attributes = [
                ("class", &*format!("point {class}")),
                ("data-series", &span.kind.to_string()),
                ("x", &number(position(span.from))),
                ("y", &number(span.row as f64 * ROW + 2.0)),
                ("width", &number(width)),
                ("height", "13"),
            ];
            markup.open("rect", &attributes);
            markup.multiline_text("title", &tooltip(chart, span));
            markup.close();
        }
    });
}

fn tooltip(chart: &Spans, span: &TimeSpan) -> String {
    let axis = Axis::linear(Quantity::Time);
    let row = chart.rows.get(span.row).map_or("", String::as_str);
    format!("{}\n{row}\n{} to {}", span.name, axis.tooltip_value(span.from), axis.tooltip_value(span.to))
}
