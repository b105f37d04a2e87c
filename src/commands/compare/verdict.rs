//! Verdicts of a comparison as sentences: sizes with expected, slow and fast times, and the most likely cause.

use fabricast_reports::format::{bytes, gb_per_s, percent, significant};
use fabricast_validate::compare::{
    Advice, Basis, Cause, Explanation, Group, ProfileParameter, RangeFinding, RankedCause, SizeRange,
};

use super::super::format_count;
use super::{ComparisonAnswer, group_name};

/// Maximum number of groups whose verdict is printed above the statistics.
const MAX_GROUPS: usize = 8;

/// Lines at the top of the text. For a single group: its findings and causes. For several groups: the numbers of slow,
/// fast and expected groups, then the findings and causes of those that are slow or fast.
pub fn lines(answer: &ComparisonAnswer<'_>) -> Vec<String> {
    let groups = &answer.comparison.groups;
    let corrupt = corrupt_results(answer);
    if let [group] = groups.as_slice() {
        return corrupt.into_iter().chain(findings(group)).chain(reasons(group)).collect();
    }
    let count = |finding| groups.iter().filter(|group| overall(group) == finding).count();
    let parts = [(RangeFinding::Slow, "slow"), (RangeFinding::Fast, "fast"), (RangeFinding::Expected, "as expected")];
    let counts: Vec<String> = parts
        .iter()
        .map(|&(finding, words)| (count(finding), words))
        .filter(|&(count, _)| count > 0)
        .map(|(count, words)| format!("{count} {words}"))
        .collect();
    let mut lines: Vec<String> = corrupt.into_iter().collect();
    lines.push(format!("{}: {}", format_count(groups.len() as u64, "group"), counts.join(", ")));
    let mut notable: Vec<(usize, &Group)> =
        groups.iter().enumerate().filter(|(_, group)| overall(group) != RangeFinding::Expected).collect();
    notable.sort_by_key(|(number, group)| (overall(group) != RangeFinding::Slow, *number));
    for &(number, group) in notable.iter().take(MAX_GROUPS) {
        lines.push(group_name(answer, number));
        lines.extend(findings(group).into_iter().chain(reasons(group)).map(|line| format!("  {line}")));
    }
    if notable.len() > MAX_GROUPS {
        lines.push(format!(
            "{} more below (column verdict)",
            format_count((notable.len() - MAX_GROUPS) as u64, "group")
        ));
    }
    lines
}

/// Line on results that were wrong, whose times are not compared.
fn corrupt_results(answer: &ComparisonAnswer<'_>) -> Option<String> {
    let rejected = answer.measurements.iter().flat_map(|measurement| &measurement.rejected);
    let wrong = rejected.filter(|row| row.reason.is_wrong_result()).count();
    (wrong > 0).then(|| {
        let rows = format_count(wrong as u64, "row");
        format!(
            "wrong results in {rows}: the machine computes or transfers data wrongly; repeat the run (nccl-tests -c 1)"
        )
    })
}

/// Finding on a group: slow if a range of sizes is slow, otherwise fast if one is fast.
pub fn overall(group: &Group) -> RangeFinding {
    let has = |finding| group.ranges.iter().any(|range| range.finding == finding);
    match (has(RangeFinding::Slow), has(RangeFinding::Fast)) {
        (true, _) => RangeFinding::Slow,
        (false, true) => RangeFinding::Fast,
        (false, false) => RangeFinding::Expected,
    }
}

/// Findings on a group, one line per range of sizes: slow ranges, then fast ones, then one line for all expected ones.
/// If all are expected, the bandwidth of the largest sizes is stated.
fn findings(group: &Group) -> Vec<String> {
    let with = |finding| group.ranges.iter().filter(move |range| range.finding == finding);
    let mut lines: Vec<String> = with(RangeFinding::Slow).chain(with(RangeFinding::Fast)).map(deviation).collect();
    let expected: Vec<&SizeRange> = with(RangeFinding::Expected).collect();
    match (lines.is_empty(), expected.last()) {
        (true, Some(range)) => {
            lines.push(format!("as expected at {}: {}", span_with_exceptions(range), bandwidths(range)));
        }
        (false, Some(_)) => {
            let spans: Vec<String> = expected.iter().map(|range| span_with_exceptions(range)).collect();
            lines.push(format!("as expected at {}", spans.join(" and ")));
        }
        (_, None) => {}
    }
    lines
}

fn deviation(range: &SizeRange) -> String {
    format!(
        "{} at {}: {}, {} times the expected time",
        range.finding.name(),
        span_with_exceptions(range),
        bandwidths(range),
        significant(range.ratio)
    )
}

fn bandwidths(range: &SizeRange) -> String {
    let (low, high) = (gb_per_s(range.expected_low), gb_per_s(range.expected_high));
    let interval = if low == high { String::new() } else { format!(" ({low} to {high})") };
    format!(
        "{} GB/s bus bandwidth at {}, expected {}{interval}",
        gb_per_s(range.measured),
        bytes(range.representative),
        gb_per_s(range.expected)
    )
}

fn span(range: &SizeRange) -> String {
    if range.min == range.max { bytes(range.min) } else { format!("{} to {}", bytes(range.min), bytes(range.max)) }
}

/// Sizes of a range, with the number of those whose own times have another finding.
fn span_with_exceptions(range: &SizeRange) -> String {
    let exceptions = match range.exceptions {
        0 => String::new(),
        count => format!(", except {} (column verdict)", format_count(count as u64, "size")),
    };
    format!("{}{exceptions}", span(range))
}

/// Causes of a group that is slow or fast, with the commands that confirm them. If no simulated cause is established, a
/// setting that the log states comes first, and the change of a profile parameter that would explain the times last.
fn reasons(group: &Group) -> Vec<String> {
    let is_established = group.causes.first().is_some_and(RankedCause::is_established);
    let simulated = simulated_causes(&group.causes);
    let advice = group.advice.iter().map(advice);
    if is_established {
        return simulated.into_iter().chain(advice).collect();
    }
    let mut lines: Vec<String> = advice.collect();
    if overall(group) == RangeFinding::Expected {
        return lines;
    }
    if let Some(cause) = group.setting.as_ref().filter(|_| group.advice.is_empty()) {
        lines.push(format!("possible cause: {cause}"));
        lines.push(format!("  check: {}", cause.check()));
    }
    lines.extend(simulated);
    if let Some(explanation) = &group.explanation {
        lines.extend(last_resort(explanation));
    }
    lines
}

/// Lines of the simulated causes, each with the command that confirms it.
fn simulated_causes(causes: &[RankedCause]) -> Vec<String> {
    let is_decided = causes.first().is_some_and(RankedCause::is_likely);
    let is_established = causes.first().is_some_and(RankedCause::is_established);
    let line = |(number, ranked): (usize, &RankedCause)| {
        let RankedCause { cause, basis, closed, .. } = ranked;
        let label = match (number, is_decided, causes.len()) {
            (0, true, _) => "likely cause",
            // A cause that the log shows precedes causes that fit better.
            (_, false, _) if ranked.is_likely() => "fits better",
            (0, false, _) if !is_established => {
                "within the error of the prediction; possible causes if the machine is slow"
            }
            (0, false, 2..) => "possible causes, which these times do not separate",
            (0, false, _) => "possible cause",
            (_, true, _) => "also possible",
            (_, false, _) => "or",
        };
        let reason = if *basis == Basis::Assumed { String::new() } else { format!("; {basis}") };
        let explained = format!("{label}: {cause} (explains {} % of the gap{reason})", percent(*closed));
        [explained, format!("  check: {}", cause.check())]
    };
    causes.iter().enumerate().flat_map(line).collect()
}

/// Returns the text of an advice.
fn advice(Advice { setting, min, max, gain }: &Advice) -> String {
    let sizes = if min == max { bytes(*min) } else { format!("{} to {}", bytes(*min), bytes(*max)) };
    let caution = setting.caution().map_or_else(String::new, |caution| format!("; {caution}"));
    let rule = setting.rule().map_or_else(String::new, |rule| format!("; {rule}"));
    match gain {
        Some(gain) => {
            let gain = significant(*gain);
            format!("a setting gains: {setting}, up to {gain} times as fast at {sizes} (predicted){rule}{caution}")
        }
        None => format!("a setting may gain: {setting}, by an amount that is not predicted{rule}{caution}"),
    }
}

/// Sentences on the change of a profile parameter that would explain the error, for groups without a known cause.
fn last_resort(Explanation { parameter, required, current, .. }: &Explanation) -> Vec<String> {
    let mut lines = vec![format!(
        "no simulated cause explains this; the times fit if {} {required} instead of {current} ({parameter})",
        parameter.describe()
    )];
    if let ProfileParameter::Added(..) | ProfileParameter::Floor(..) | ProfileParameter::FloorPerGpu(..) = parameter {
        lines.push(
            "  check: CPU clock and load, and the CPUs of each process: numactl --cpunodebind, nvidia-smi topo -m"
                .to_owned(),
        );
    }
    lines
}

/// Description of a group's most likely cause, for JSON; `None` if none is established.
pub fn first_cause(group: &Group) -> Option<String> {
    let established = group.causes.first().filter(|ranked| ranked.is_established());
    let simulated: Option<&Cause> = established.map(|ranked| &ranked.cause);
    simulated.or(group.setting.as_ref()).map(ToString::to_string)
}
