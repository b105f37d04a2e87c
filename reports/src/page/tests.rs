//! Tests of the HTML of pages.

use super::*;
use crate::chart::{Axis, Bar, Line, Quantity, Role};

fn render_block(block: Block) -> String {
    Page { title: "t".into(), answer: vec!["a".into()], sections: vec![Section::new("s", vec![block])] }.html()
}

fn lines(points: Vec<(f64, f64)>) -> Block {
    Block::Lines(LinesWithTooltips {
        chart: LineChart {
            title: "rates".into(),
            x_title: "size".into(),
            x: Axis::binary(Quantity::Bytes),
            y: Axis::linear(Quantity::Rate),
            bands: Vec::new(),
            lines: vec![Line { name: "ring".into(), role: Role::Series(0), points }],
        },
        tooltips: vec![vec!["8 ranks".into()]],
        remark: String::new(),
    })
}

#[test]
fn style_and_script_close_no_element() {
    for text in [STYLE, SCRIPT, &picture::style()] {
        assert!(!text.contains("</") && !text.contains("<!--"), "{text:.80}");
    }
}

#[test]
fn summary_has_the_blocks_of_the_page_in_sections_that_collapse() {
    let section = |title: &str| Section::new(title, vec![Block::Text(format!("about {title} <all>"))]);
    let page = Page {
        title: "t".into(),
        answer: vec!["a".into(), "b & c".into()],
        sections: vec![section("s"), section("<t>")],
    };
    let summary = page.summary(1);
    assert!(
        summary.starts_with("<div class=\"answer\">\n<p>a</p>\n<p>b &amp; c</p>\n</div>\n<details open=\"\">"),
        "{summary}"
    );
    assert!(
        summary.contains("<details>\n<summary>\n<h2>&lt;t&gt;</h2>\n</summary>\n<p>about &lt;t&gt; &lt;all&gt;</p>")
    );
    for text in ["<html", "<style", "<script", "style="] {
        assert!(!summary.contains(text), "{text}");
    }
}

#[test]
fn points_have_tooltips() {
    let html = render_block(lines(vec![(1024.0, 10.0), (2048.0, 20.0), (4096.0, f64::NAN)]));
    assert!(html.contains("<title>ring: 1 KiB, 10.00 GB/s\n8 ranks</title>"));
    assert!(html.contains("<title>ring: 2 KiB, 20.00 GB/s</title>"));
    assert_eq!(html.matches("class=\"point\"").count(), 2);
}

#[test]
fn empty_charts_show_a_message() {
    assert!(render_block(lines(Vec::new())).contains("There is no point to draw."));
    let bars = BarChart {
        title: "b".into(),
        subtitle: String::new(),
        axis: Axis::linear(Quantity::Time),
        parts: vec!["p".into()],
        bars: Vec::<Bar>::new(),
    };
    assert!(render_block(Block::Bars(bars)).contains("There is nothing to draw."));
    assert!(render_block(Block::Spans(Spans::default())).contains("There is no span to draw."));
}

#[test]
fn single_options_need_no_choice() {
    let one = Choice::blocks("Job", vec![("a".into(), vec![Block::Text("x".into())])]);
    assert_eq!(one, [Block::Text("x".into())]);
    assert!(Choice::blocks("Job", Vec::new()).is_empty());
    let two = Choice::blocks("Job", vec![("a".into(), Vec::new()), ("b".into(), Vec::new())]);
    assert_eq!(two.len(), 1);
}

#[test]
fn cells_keep_their_exact_values() {
    use crate::table::{Column, Table, Unit, Value};
    let mut table =
        Table::new(vec![Column::new("name", "name", Unit::Text), Column::new("time_us", "time", Unit::Micros)]);
    table.row(vec![Value::text("a & b").into(), Value::Time(fabricast_topologies::Picos(1_234_567)).into()]);
    table.row(vec![Value::text("c").into(), Value::Missing.into()]);
    let html = render_block(Block::Table("times <all>".into(), table));
    assert!(html.contains("<caption>times &lt;all&gt;</caption>"));
    assert!(html.contains("<th scope=\"row\">a &amp; b</th>\n<td class=\"number\" data-v=\"1.234567\">1.23</td>"));
    assert!(html.contains("<td class=\"number\" data-v=\"\">–</td>"));
    assert!(html.contains("aria-sort=\"none\" data-key=\"time_us\""));
}
