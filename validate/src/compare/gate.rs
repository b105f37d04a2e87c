//! Gates: limits that the measured rows of a machine must meet, read from TOML.
//!
//! ```toml
//! [[rule]]
//! name = "large all_reduce"
//! collective = "all_reduce"        # default: all collectives
//! min_bytes = "64MiB"              # default: all sizes
//! max_bytes = "8GiB"
//! min_share = 0.85                 # measured ÷ expected bus bandwidth
//! min_busbw_gb_per_s = 420.0
//! max_time_us = 30000.0
//! ```
//!
//! A rule is met if each row that it covers meets each of its limits. It is not met if a measurement of its collective has
//! no row that it covers, or results that are wrong: a machine that was not measured, or that computes wrongly, must not
//! pass.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Origin, Picos, SourceLocation};
use serde::Deserialize;
use toml::Spanned;

use super::{Compared, Comparison};
use crate::measured::MeasuredError;
use crate::measured::manifest::Measurement;

/// Rules that a machine must meet.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// The rules, in the order of the file.
    pub rules: Vec<Rule>,
}

/// Limits on the rows of a collective and a range of sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Name of the rule.
    pub name: String,
    /// Collective that the rule covers; `None`: all.
    pub collective: Option<Collective>,
    /// Smallest size that the rule covers.
    pub min: Bytes,
    /// Largest size that the rule covers.
    pub max: Bytes,
    /// Smallest measured bus bandwidth ÷ expected bus bandwidth.
    pub min_share: Option<f64>,
    /// Smallest bus bandwidth in 10⁹ bytes per second.
    pub min_busbw_gb_per_s: Option<f64>,
    /// Longest time of a call.
    pub max_time: Option<Picos>,
}

/// Result of a rule on all measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleResult {
    /// Number of rows that the rule covers.
    pub rows: usize,
    /// Indices of the measurements of the rule's collective that have no row in its range of sizes.
    pub unmeasured: Vec<usize>,
    /// Measurements (by index) and lines with wrong results, of any size.
    pub wrong: Vec<(usize, u32)>,
    /// Violations, one per row and limit, in order of size.
    pub violations: Vec<Violation>,
}

impl RuleResult {
    /// Returns true if the rule covers rows of each measurement, and all of them meet its limits with correct results.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.rows > 0 && self.unmeasured.is_empty() && self.wrong.is_empty() && self.violations.is_empty()
    }
}

/// Row that exceeds a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// Index of the row in [`Comparison::rows`].
    pub row: usize,
    /// Limit that the row exceeds.
    pub limit: Limit,
    /// Measured value, in the unit of the limit.
    pub value: f64,
}

/// Limit of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Smallest measured bus bandwidth ÷ expected bus bandwidth.
    MinShare(f64),
    /// Smallest bus bandwidth in 10⁹ bytes per second.
    MinBusBandwidth(f64),
    /// Longest time in µs.
    MaxTime(f64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "`[[rule]]`, a list of tables")]
struct GateText {
    rule: Vec<Spanned<RuleText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
struct RuleText {
    name: Spanned<String>,
    collective: Option<Spanned<String>>,
    min_bytes: Option<Spanned<String>>,
    max_bytes: Option<Spanned<String>>,
    min_share: Option<Spanned<f64>>,
    min_busbw_gb_per_s: Option<Spanned<f64>>,
    max_time_us: Option<Spanned<f64>>,
}

impl Gate {
    /// Parses the rules; `source` names the text in errors.
    ///
    /// # Errors
    /// [`MeasuredError::Invalid`] with line and column: invalid TOML, unknown keys, invalid values, a rule without a
    /// limit, and a gate without a rule.
    pub fn read(text: &str, source: &str) -> Result<Self, MeasuredError> {
        let origin = Origin::new(source, text);
        let parsed: GateText = toml::from_str(text).map_err(|error| {
            MeasuredError::invalid(origin.locate(error.span().unwrap_or_default()), error.message().to_owned())
        })?;
        if parsed.rule.is_empty() {
            return Err(MeasuredError::invalid(SourceLocation::from_source(source), "no rule: expected `[[rule]]`"));
        }
        let mut rules: Vec<Rule> = Vec::new();
        for text in &parsed.rule {
            let rule = Rule::read(text, origin)?;
            let name = &text.get_ref().name;
            if rule.name.trim().is_empty() || rules.iter().any(|other| other.name == rule.name) {
                let message = "expected a name that no other rule has";
                return Err(MeasuredError::invalid(origin.locate(name.span()), message));
            }
            rules.push(rule);
        }
        Ok(Self { rules })
    }

    /// Judges the rows of a comparison by the rules, in their order.
    #[must_use]
    pub fn check(&self, measurements: &[Measurement], comparison: &Comparison) -> Vec<RuleResult> {
        let judge = |rule: &Rule| {
            let mut rows_of = vec![0usize; measurements.len()];
            let mut violations = Vec::new();
            for (row, compared) in comparison.rows.iter().enumerate() {
                let Some(measurement) = measurements.get(compared.measurement) else { continue };
                if !rule.covers(measurement.configuration.collective, compared.bytes) {
                    continue;
                }
                if let Some(count) = rows_of.get_mut(compared.measurement) {
                    *count += 1;
                }
                let exceeded = rule.violations(compared, measurement.bus_factor());
                violations.extend(exceeded.map(|(limit, value)| Violation { row, limit, value }));
            }
            violations.sort_by_key(|violation| comparison.rows.get(violation.row).map(|row| row.bytes));
            let judged = || measurements.iter().enumerate().filter(|(_, one)| rule.covers_collective(one));
            let wrong = judged().flat_map(|(index, measurement)| {
                measurement
                    .rejected
                    .iter()
                    .filter(|line| line.reason.is_wrong_result())
                    .map(move |line| (index, line.line))
            });
            let unmeasured = judged().map(|(index, _)| index).filter(|&index| rows_of.get(index) == Some(&0));
            RuleResult {
                rows: rows_of.iter().sum(),
                unmeasured: unmeasured.collect(),
                wrong: wrong.collect(),
                violations,
            }
        };
        self.rules.iter().map(judge).collect()
    }
}

impl Rule {
    fn read(text: &Spanned<RuleText>, origin: Origin<'_>) -> Result<Self, MeasuredError> {
        let (location, text) = (origin.locate(text.span()), text.get_ref());
        let bytes = |text: &Option<Spanned<String>>, default: Bytes| match text {
            None => Ok(default),
            Some(text) => {
                let parsed: Result<Bytes, fabricast_topologies::UnitError> = text.get_ref().parse();
                parsed.map_err(|error| MeasuredError::invalid(origin.locate(text.span()), error.to_string()))
            }
        };
        let positive = |number: &Option<Spanned<f64>>| match number {
            Some(number) if !(number.get_ref().is_finite() && *number.get_ref() > 0.0) => {
                let message = format!("expected a number above 0, not {}", number.get_ref());
                Err(MeasuredError::invalid(origin.locate(number.span()), message))
            }
            number => Ok(number.as_ref().map(|number| *number.get_ref())),
        };
        let collective = text.collective.as_ref().map(|name| {
            let parsed: Result<Collective, _> = name.get_ref().parse();
            parsed.map_err(|error| MeasuredError::invalid(origin.locate(name.span()), error.to_string()))
        });
        let rule = Self {
            name: text.name.get_ref().clone(),
            collective: collective.transpose()?,
            min: bytes(&text.min_bytes, Bytes(0))?,
            max: bytes(&text.max_bytes, Bytes(u64::MAX))?,
            min_share: positive(&text.min_share)?,
            min_busbw_gb_per_s: positive(&text.min_busbw_gb_per_s)?,
            max_time: positive(&text.max_time_us)?.map(Picos::from_us),
        };
        if rule.min > rule.max {
            return Err(MeasuredError::invalid(location, "min_bytes is larger than max_bytes"));
        }
        if rule.limits().next().is_none() {
            let message = "no limit: expected min_share, min_busbw_gb_per_s or max_time_us";
            return Err(MeasuredError::invalid(location, message));
        }
        Ok(rule)
    }

    /// Limits of the rule.
    pub fn limits(&self) -> impl Iterator<Item = Limit> {
        let share = self.min_share.map(Limit::MinShare);
        let bandwidth = self.min_busbw_gb_per_s.map(Limit::MinBusBandwidth);
        [share, bandwidth, self.max_time.map(|time| Limit::MaxTime(time.us()))].into_iter().flatten()
    }

    fn covers(&self, collective: Collective, bytes: Bytes) -> bool {
        self.collective.is_none_or(|covered| covered == collective) && (self.min..=self.max).contains(&bytes)
    }

    fn covers_collective(&self, measurement: &Measurement) -> bool {
        self.collective.is_none_or(|covered| covered == measurement.configuration.collective)
    }

    /// Limits that a row exceeds, with its values. `factor`: bus bandwidth ÷ algorithm bandwidth.
    fn violations(&self, row: &Compared, factor: f64) -> impl Iterator<Item = (Limit, f64)> {
        self.limits().filter_map(move |limit| {
            let (value, is_met) = match limit {
                Limit::MinShare(smallest) => {
                    let share = row.predicted.0 as f64 / row.measured.0.max(1) as f64;
                    (share, share >= smallest)
                }
                Limit::MinBusBandwidth(smallest) => {
                    let bandwidth = row.bus_bandwidth(row.measured, factor);
                    (bandwidth, bandwidth >= smallest)
                }
                Limit::MaxTime(longest) => (row.measured.us(), row.measured.us() <= longest),
            };
            (!is_met).then_some((limit, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_with_defaults() {
        let gate = Gate::read("[[rule]]\nname = \"all\"\nmin_share = 0.9\n", "g.toml").unwrap();
        let [rule] = gate.rules.as_slice() else { panic!("{gate:?}") };
        assert!(rule.covers(Collective::AllReduce, Bytes(0)) && rule.covers(Collective::Barrier, Bytes(u64::MAX)));
        assert_eq!(rule.limits().collect::<Vec<_>>(), [Limit::MinShare(0.9)]);
    }

    #[test]
    fn invalid_gates_are_refused_with_their_line() {
        let rule = "[[rule]]\nname = \"a\"\n";
        for (text, expected) in [
            ("", "missing field `rule`"),
            ("rule = []", "g.toml: no rule"),
            ("[[rule]]\nmin_share = 1", "g.toml:1:1"),
            (rule, "g.toml:1:1: no limit"),
            ("[[rule]]\nname = \"a\"\nmin_share = -1", "g.toml:3:13: expected a number above 0, not -1"),
            ("[[rule]]\nname = \"a\"\nmin_share = nan", "g.toml:3:13: expected a number above 0"),
            ("[[rule]]\nname = \"a\"\nmin_share = 1\ncollective = \"all\"", "g.toml:4:14"),
            ("[[rule]]\nname = \"a\"\nmin_share = 1\nmin_bytes = \"many\"", "g.toml:4:13"),
            (
                "[[rule]]\nname = \"a\"\nmin_share = 1\nmin_bytes = \"2KiB\"\nmax_bytes = \"1KiB\"",
                "g.toml:1:1: min_bytes",
            ),
            ("[[rule]]\nname = \" \"\nmin_share = 1", "g.toml:2:8: expected a name"),
            (
                "[[rule]]\nname = \"a\"\nmin_share = 1\n[[rule]]\nname = \"a\"\nmin_share = 1",
                "g.toml:5:8: expected a name",
            ),
            ("[[rule]]\nname = \"a\"\nmin_shares = 1", "unknown field `min_shares`"),
        ] {
            let error = Gate::read(text, "g.toml").unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
