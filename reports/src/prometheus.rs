//! Text of Prometheus metrics, as the node exporter's textfile collector reads it (Prometheus text exposition format
//! 0.0.4).

use std::fmt::Write as _;

use fabricast_topologies::visible::visible;

/// Gauge with its samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Gauge {
    /// Name, in base units: `fabricast_bus_bandwidth_bytes_per_second`.
    pub name: &'static str,
    /// Description in one line.
    pub help: &'static str,
    /// Values by labels.
    pub samples: Vec<MetricSample>,
}

/// Value with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSample {
    /// Names and values of labels. Values may be any text.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: f64,
}

/// Writes gauges in the text format.
#[must_use]
pub fn text(gauges: &[Gauge]) -> String {
    let mut text = String::new();
    for gauge in gauges {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {} {}\n# TYPE {} gauge", gauge.name, gauge.help, gauge.name);
        for sample in &gauge.samples {
            let labels: Vec<String> =
                sample.labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            let _ = writeln!(text, "{}{{{}}} {}", gauge.name, labels.join(","), sample.value);
        }
    }
    text
}

/// Escapes a label's value: control characters other than line breaks are made visible, then backslashes, quotes and
/// line breaks are escaped.
fn escaped(value: &str) -> String {
    let lines: Vec<_> = value.split('\n').map(visible).collect();
    lines.join("\n").replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let sample =
            MetricSample { labels: vec![("rule", "a\"b\\c\nd".to_owned()), ("n", "1".to_owned())], value: 0.5 };
        let hidden = MetricSample { labels: vec![("rule", "\u{1b}[31m".to_owned())], value: 1.0 };
        let gauge = Gauge { name: "g", help: "A gauge.", samples: vec![sample, hidden] };
        assert_eq!(
            text(&[gauge]),
            "# HELP g A gauge.\n# TYPE g gauge\ng{rule=\"a\\\"b\\\\c\\nd\",n=\"1\"} 0.5\ng{rule=\"\\\\u{1b}[31m\"} 1\n"
        );
    }
}
