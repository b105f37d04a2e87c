//! Tests of rendered files: well-formed, inside their bounds, deterministic, and equal for all back ends.

use fabricast_topologies::{Bytes, Picos};
use proptest::prelude::*;

use super::canvas::{DETAIL, TextStyle};
use super::{
    Axis, ChartError, Figure, Format, Line, LineChart, MeasuredSeries, Pick, PlanChart, PlanPoint, PredictionInterval,
    Quantity, Role, Strategy, palette, render,
};

fn points(times: &[u64]) -> Vec<PlanPoint> {
    let point = |(k, &time)| PlanPoint { bytes: Bytes(1024_u64 << k), time: Picos(time) };
    times.iter().enumerate().map(point).collect()
}

/// Returns a plan of two strategies whose times cross between 4 KiB and 8 KiB.
fn plan() -> PlanChart {
    let slow_start = [9_000_000, 9_100_000, 9_300_000, 9_800_000, 12_000_000];
    let fast_start = [4_000_000, 5_000_000, 8_000_000, 16_000_000, 32_000_000];
    let pick = |(k, strategy)| Pick { bytes: Bytes(1024_u64 << k), strategy };
    PlanChart {
        title: "all_reduce on <toy> & co".into(),
        subtitle: "8 ranks".into(),
        bus_factor: 1.75,
        strategies: vec![
            Strategy { name: "ring simple".into(), points: points(&slow_start) },
            Strategy { name: "one_shot ll".into(), points: points(&fast_start) },
        ],
        picks: [1, 1, 1, 0, 0].into_iter().enumerate().map(pick).collect(),
        bound: points(&[1_000_000; 5]),
        band: vec![
            PredictionInterval { bytes: Bytes(1024), low: Picos(3_000_000), high: Picos(5_000_000) },
            PredictionInterval { bytes: Bytes(16 << 10), low: Picos(11_000_000), high: Picos(14_000_000) },
        ],
        measured: Some(MeasuredSeries { name: "measured".into(), points: points(&[4_100_000, 5_300_000]) }),
        ..PlanChart::default()
    }
}

fn svg(figure: &Figure) -> String {
    String::from_utf8(render(figure, Format::Svg).unwrap()).unwrap()
}

fn number(node: roxmltree::Node<'_, '_>, name: &str) -> f64 {
    let text = node.attribute(name).unwrap_or_else(|| panic!("{name} is missing"));
    text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`"))
}

/// Asserts that every coordinate is finite and inside the view box, and that every text starts and ends inside it.
fn check_inside(svg: &str) {
    let document = roxmltree::Document::parse(svg).unwrap();
    let view: Vec<f64> =
        document.root_element().attribute("viewBox").unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
    let (width, height) = (view[2], view[3]);
    let inside = |x: f64, y: f64, name: &str| {
        assert!((0.0..=width).contains(&x) && (0.0..=height).contains(&y), "{name} at {x},{y}");
    };
    for node in document.descendants().filter(roxmltree::Node::is_element) {
        let name = node.tag_name().name();
        if let Some(points) = node.attribute("points") {
            assert!(!points.trim().is_empty(), "a {name} without points");
            for point in points.split_whitespace() {
                let (x, y) = point.split_once(',').unwrap();
                inside(x.parse().unwrap(), y.parse().unwrap(), name);
            }
        }
        if name == "text" {
            let (x, y) = (number(node, "x"), number(node, "y"));
            let text = node.text().unwrap().trim();
            inside(x, y, text);
            let lettering = TextStyle::new(palette::INK, number(node, "font-size") / f64::from(DETAIL));
            let lettering = if node.attribute("font-weight") == Some("bold") { lettering.bold() } else { lettering };
            let long = lettering.width(text).unwrap() * f64::from(DETAIL);
            let (left, right) = match node.attribute("text-anchor") {
                Some("end") => (x - long, x),
                Some("middle") => (x - long / 2.0, x + long / 2.0),
                _ => (x, x + long),
            };
            assert!(left >= 0.0 && right <= width, "`{text}` from {left} to {right} of {width}");
        }
    }
}

#[test]
fn a_plan_becomes_two_panels_with_all_their_labels() {
    let figure = plan().figure();
    let text = svg(&figure);
    check_inside(&text);
    let document = roxmltree::Document::parse(&text).unwrap();
    let texts: Vec<&str> = document
        .descendants()
        .filter(|node| node.has_tag_name("text") || node.tag_name().name() == "text")
        .filter_map(|node| node.text())
        .map(str::trim)
        .collect();
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn neighbouring_picks_are_one_part_of_the_ribbon() {
    let parts = plan().figure().ribbon.unwrap().parts;
    let shown: Vec<_> = parts.iter().map(|part| (part.label.as_str(), part.from, part.to)).collect();
    let border = (4096.0_f64 * 8192.0).sqrt();
    assert_eq!(shown, [("one_shot ll", 1024.0, border), ("ring simple", border, 16384.0)]);
}

#[test]
fn bus_bandwidth_matches_the_nccl_tests_definition() {
    let figure = plan().figure();
    let ring = figure.panels[1].lines.iter().find(|line| line.name == "ring simple").unwrap();
    // 16 KiB in 12 µs, times 7/4.
    assert!((ring.points[4].1 - 16_384.0 / 12_000.0 * 1.75).abs() < 1e-12);
}

#[test]
fn a_png_has_two_pixels_for_each_logical_one() {
    let figure = plan().figure();
    let text = svg(&figure);
    let document = roxmltree::Document::parse(&text).unwrap();
    let (width, height) = (number(document.root_element(), "width"), number(document.root_element(), "height"));
    let file = render(&figure, Format::Png).unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(&file)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((f64::from(frame.width), f64::from(frame.height)), (2.0 * width, 2.0 * height));
    // The border is white, and some pixels inside are not.
    let row = 3 * frame.width as usize;
    assert!(pixels[..row].iter().chain(&pixels[pixels.len() - row..]).all(|&value| value == 255));
    let dark = pixels.chunks_exact(3).filter(|pixel| pixel.iter().all(|&value| value < 100)).count();
    assert!(dark > 5_000, "only {dark} dark pixels: is there any text?");
}

#[test]
fn the_same_figure_gives_the_same_bytes() {
    for format in [Format::Svg, Format::Png] {
        assert_eq!(render(&plan().figure(), format).unwrap(), render(&plan().figure(), format).unwrap());
    }
}

#[test]
fn charts_without_drawable_points_are_errors() {
    let empty = PlanChart { title: "nothing".into(), ..PlanChart::default() };
    assert!(matches!(render(&empty.figure(), Format::Svg), Err(ChartError::NoData { .. })));
    let mut timeless = plan();
    timeless.picks.clear();
    timeless.strategies = vec![Strategy { name: "free".into(), points: points(&[0, 0]) }];
    timeless = PlanChart { bound: Vec::new(), band: Vec::new(), measured: None, ..timeless };
    assert!(matches!(render(&timeless.figure(), Format::Svg), Err(ChartError::NoData { .. })));
    assert!(matches!(Format::from_path("plan.gif".as_ref()), Err(ChartError::UnknownFormat { .. })));
    assert_eq!(Format::from_path("a/plan.PNG".as_ref()).unwrap(), Format::Png);
}

#[test]
fn long_names_and_many_lines_stay_on_the_sheet() {
    let strategy = |k: usize| Strategy {
        name: format!("hierarchical symmetric over {k} channels with a chunk of 4 MiB and more words than fit"),
        points: points(&[1_000_000 * (k as u64 + 1), 2_000_000]),
    };
    let chart = PlanChart {
        title: "a title without end ".repeat(20),
        subtitle: "a subtitle without end ".repeat(20),
        bus_factor: 1.0,
        strategies: (0..40).map(strategy).collect(),
        ..PlanChart::default()
    };
    let text = svg(&chart.figure());
    check_inside(&text);
    assert!(text.contains("30 others"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_points_stay_on_the_sheet(
        lines in prop::collection::vec(prop::collection::vec((any::<f64>(), any::<f64>()), 0..6), 1..4),
        scales in (0..3_usize, 0..3_usize),
    ) {
        let axis = |scale| match scale {
            0 => Axis::linear(Quantity::Rate),
            1 => Axis::logarithmic(Quantity::Time),
            _ => Axis::binary(Quantity::Bytes),
        };
        let line = |(number, points)| Line { name: format!("line {number}"), role: Role::Series(number), points };
        let figure = Figure {
            panels: vec![LineChart {
                title: "any".into(),
                x_title: String::new(),
                x: axis(scales.0),
                y: axis(scales.1),
                bands: Vec::new(),
                lines: lines.into_iter().enumerate().map(line).collect(),
            }],
            ..Figure::default()
        };
        match render(&figure, Format::Svg) {
            Ok(text) => check_inside(&String::from_utf8(text).unwrap()),
            Err(ChartError::NoData { .. }) => {}
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}
