//! `compare --gate`: rules that measured rows must meet, as text, JSON, JUnit XML and Prometheus metrics.

use std::path::Path;

use fabricast_reports::format::{bytes, significant};
use fabricast_reports::junit::{TestCase, junit};
use fabricast_reports::prometheus::{self, Gauge, MetricSample};
use fabricast_topologies::Picos;
use fabricast_topologies::read::{Limit as FileLimit, read_text_file};
use fabricast_validate::compare::Compared;
use fabricast_validate::compare::gate::{Gate, Limit, RuleResult, Violation};
use schemars::JsonSchema;
use serde::Serialize;

use super::{ComparisonAnswer, group_name};
use crate::commands::format_count;
use crate::failure::Failure;

/// Largest number of violations of a rule that are shown as text.
const MAX_VIOLATIONS: usize = 3;

/// A gate with its results.
pub(super) struct GateOutcome {
    gate: Gate,
    results: Vec<RuleResult>,
}

/// Result of a rule.
#[derive(Serialize, JsonSchema)]
pub(super) struct RuleJson<'a> {
    /// Name of the rule.
    rule: &'a str,
    /// True if the rule covers rows of each log, and all of them meet its limits with correct results.
    met: bool,
    /// Number of rows that the rule covers.
    rows: usize,
    /// Reasons why the rule is not met, the first three and the number of the others.
    violations: Vec<String>,
}

/// Reads the rules of `--gate`.
pub(super) fn read(path: &Path) -> Result<Gate, Failure> {
    let text = read_text_file(path, FileLimit::MANIFEST)?;
    Ok(Gate::read(&text, &path.display().to_string())?)
}

impl GateOutcome {
    pub(super) fn new(gate: Gate, answer: &ComparisonAnswer<'_>) -> Self {
        let results = gate.check(answer.measurements, answer.comparison);
        Self { gate, results }
    }

    /// Names of the rules with their results.
    fn rules(&self) -> impl Iterator<Item = (&str, &RuleResult)> {
        self.gate.rules.iter().map(|rule| rule.name.as_str()).zip(&self.results)
    }

    /// Error if a rule is not met.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        let names: Vec<&str> = self.rules().filter(|(_, result)| !result.is_met()).map(|(name, _)| name).collect();
        if names.is_empty() {
            return Ok(());
        }
        let rules = format_count(self.results.len() as u64, "rule");
        let more = names.len().saturating_sub(MAX_VIOLATIONS);
        let mut shown = names.iter().take(MAX_VIOLATIONS).copied().collect::<Vec<_>>().join(", ");
        if more > 0 {
            shown.push_str(&format!(" and {more} more"));
        }
        Err(Failure::Failed(format!("gate: {} of {rules} not met: {shown}", names.len())))
    }

    /// First lines of the text: a line for each rule that is not met, then the number of rules that are met.
    pub(super) fn lines(&self, answer: &ComparisonAnswer<'_>) -> Vec<String> {
        let mut lines: Vec<String> = self
            .rules()
            .filter(|(_, result)| !result.is_met())
            .map(|(name, result)| format!("gate: {name} is not met: {}", reasons(answer, result).join("; ")))
            .collect();
        let met = self.results.iter().filter(|result| result.is_met()).count();
        lines.push(format!("gate: {met} of {} met", format_count(self.results.len() as u64, "rule")));
        lines
    }

    pub(super) fn json(&self, answer: &ComparisonAnswer<'_>) -> Vec<RuleJson<'_>> {
        let rule = |(rule, result): (_, &RuleResult)| {
            let violations = if result.is_met() { Vec::new() } else { reasons(answer, result) };
            RuleJson { rule, met: result.is_met(), rows: result.rows, violations }
        };
        self.rules().map(rule).collect()
    }

    /// JUnit XML with a test per rule.
    pub(super) fn junit(&self, answer: &ComparisonAnswer<'_>) -> String {
        let class = match answer.comparison.groups.as_slice() {
            [_] => group_name(answer, 0),
            groups => format_count(groups.len() as u64, "group"),
        };
        let case = |(name, result): (&str, &RuleResult)| TestCase {
            name: name.to_owned(),
            class: class.clone(),
            failures: if result.is_met() { Vec::new() } else { reasons(answer, result) },
        };
        junit("fabricast gate", &self.rules().map(case).collect::<Vec<_>>())
    }

    /// Prometheus metrics: the result of each rule, and measured and expected bus bandwidth of each row.
    pub(super) fn prometheus(&self, answer: &ComparisonAnswer<'_>) -> String {
        let met = |(name, result): (&str, &RuleResult)| MetricSample {
            labels: vec![("rule", name.to_owned())],
            value: f64::from(u8::from(result.is_met())),
        };
        let bandwidth = |time: fn(&Compared) -> Picos| {
            let sample = |row: &Compared| {
                let measurement = answer.measurements.get(row.measurement)?;
                let labels = vec![
                    ("collective", measurement.configuration.collective.to_string()),
                    ("bytes", row.bytes.0.to_string()),
                    ("log", measurement.name.clone()),
                    ("line", row.line.to_string()),
                ];
                Some(MetricSample { labels, value: row.bus_bandwidth(time(row), measurement.bus_factor()) * 1e9 })
            };
            answer.comparison.rows.iter().filter_map(sample).collect()
        };
        prometheus::text(&[
            Gauge {
                name: "fabricast_gate_rule_met",
                help: "1 if the measured rows meet the rule, otherwise 0.",
                samples: self.rules().map(met).collect(),
            },
            Gauge {
                name: "fabricast_bus_bandwidth_bytes_per_second",
                help: "Measured bus bandwidth, as nccl-tests defines it.",
                samples: bandwidth(|row| row.measured),
            },
            Gauge {
                name: "fabricast_expected_bus_bandwidth_bytes_per_second",
                help: "Predicted bus bandwidth.",
                samples: bandwidth(|row| row.predicted),
            },
        ])
    }
}

/// Reasons why a rule is not met, the first ones only.
fn reasons(answer: &ComparisonAnswer<'_>, result: &RuleResult) -> Vec<String> {
    let log = |index: usize| answer.measurements.get(index).map_or("", |measurement| measurement.name.as_str());
    let wrong = result.wrong.iter().map(|&(index, line)| format!("wrong results at {}:{line}", log(index)));
    let unmeasured = result.unmeasured.iter().map(|&index| format!("{} has no row of these sizes", log(index)));
    let slow = result.violations.iter().map(|violation| words(answer, violation));
    let mut reasons: Vec<String> = wrong.chain(unmeasured).chain(slow).collect();
    if reasons.is_empty() && result.rows == 0 {
        reasons.push("no row of its collective was measured".to_owned());
    }
    let more = reasons.len().saturating_sub(MAX_VIOLATIONS);
    reasons.truncate(MAX_VIOLATIONS);
    reasons.extend((more > 0).then(|| format!("{more} more")));
    reasons
}

/// Returns the text of a violation.
fn words(answer: &ComparisonAnswer<'_>, violation: &Violation) -> String {
    let size = answer.comparison.rows.get(violation.row).map_or_else(String::new, |row| bytes(row.bytes));
    let value = significant(violation.value);
    match violation.limit {
        Limit::MinShare(limit) => {
            format!("{value} of the expected bandwidth at {size}, at least {} required", significant(limit))
        }
        Limit::MinBusBandwidth(limit) => format!("{value} GB/s at {size}, at least {} required", significant(limit)),
        Limit::MaxTime(limit) => format!("{value} µs at {size}, at most {} allowed", significant(limit)),
    }
}
