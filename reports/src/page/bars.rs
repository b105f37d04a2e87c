//! Interactive chart of stacked bars. If parts are hidden, the other parts close the gap (`page.js`).

use super::frame::{FigureText, HorizontalExtent, PlotLabel, PlotSize, area_legend, columns, figure, plot};
use crate::chart::BarChart;
use crate::chart::axis::AxisRange;
use crate::markup::{Markup, number, shortened};

const WIDTH: f64 = 720.0;
/// Left edge of the bars, which leaves space for the first label of the axis.
const LEFT: f64 = 6.0;
/// Width of the labels after the bars.
const LABELS: f64 = 200.0;
/// Height of a row: the name of the bar, and the bar below it.
const ROW: f64 = 46.0;
/// Distance of the middle of a bar from the top of its row.
const BAR: f64 = 30.0;
const BOTTOM: f64 = 30.0;
/// Minimum width of a drawn part, in pixels. Thinner parts would be invisible.
const MIN_PART_WIDTH: f64 = 0.05;
/// Maximum number of characters of a bar's name.
const LETTERS: usize = 70;
/// Maximum number of characters of a label after a bar.
const REMARK: usize = 24;

/// Writes a bar chart, or a message if it has no bars.
pub(super) fn write(chart: &BarChart, markup: &mut Markup) {
    let text = FigureText {
        class: "chart bars",
        title: &chart.title,
        remark: &chart.subtitle,
        empty: "There is nothing to draw.",
    };
    figure(text, chart.span(), markup, |span, markup| draw(chart, &span, markup));
}

fn draw(chart: &BarChart, span: &AxisRange, markup: &mut Markup) {
    let classes = area_legend(&chart.parts, markup);
    let height = chart.bars.len() as f64 * ROW;
    let wide = WIDTH - LEFT - LABELS;
    let size = PlotSize { width: WIDTH, height: height + BOTTOM };
    plot(size, PlotLabel { title: &chart.title, things: "part" }, markup, |markup| {
        markup.open("g", &[("class", "grid"), ("aria-hidden", "true")]);
        columns(&span.ticks(5), HorizontalExtent { left: LEFT, width: wide }, height, markup);
        markup.close();
        for (row, bar) in chart.bars.iter().enumerate() {
            let top = row as f64 * ROW;
            let middle = top + BAR;
            let text_y = number(middle + 4.5);
            markup.open("g", &[("class", "bar")]);
            let name = shortened(&bar.name, LETTERS);
            markup.text("text", &[("class", "name"), ("x", &number(LEFT)), ("y", &number(top + 15.0))], &name);
            let (mut x, sum) = (LEFT, bar.sum(chart.parts.len()));
            let parts = chart.parts.iter().zip(&classes).zip(bar.lengths(chart.parts.len()));
            for (part, ((name, class), length)) in parts.enumerate() {
                let width = span.position(length) * wide;
                if width < MIN_PART_WIDTH {
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
                let value_text = chart.axis.tooltip_value(length);
                let share = crate::format::percent(length / sum);
                markup.multiline_text("title", &format!("{}\n{name}: {value_text}, {share} %", bar.name));
                markup.close();
                x += width;
            }
            let label = shortened(&chart.label(bar), REMARK);
            markup.text("text", &[("class", "sum"), ("x", &number(x + 7.0)), ("y", &text_y)], &label);
            markup.close();
        }
    });
}
