//! Opening lines of a study, in its text and on its page: the fewest nodes of each machine, and the decision.

use fabricast_study::answer::{Answer, Contender, DecisionOutcome, DecisionRow, RankedRow, SizeRow, SizingRow};
use fabricast_study::join_names;

use super::sentences::several;
use crate::format::{percent, significant};

/// Returns the fewest nodes of each machine with several sizes, then the decision of each group of candidates with the
/// same jobs, as sentences without the final period.
#[must_use]
pub fn opening_lines(answer: &Answer) -> Vec<String> {
    let decisions = groups(answer).map(|group| group.sentence(answer));
    answer.sizings.iter().map(sizing).chain(decisions).collect()
}

/// Returns the sentence on the fewest nodes of a machine that meet all constraints.
pub(super) fn sizing(SizingRow { machine, nodes, gpus, sizes, .. }: &SizingRow) -> String {
    let counts: Vec<String> = sizes.iter().map(|size| size.nodes.to_string()).collect();
    let counts = join_names(&counts);
    let violations = |size: Option<&SizeRow>| {
        let size = size.filter(|size| !size.violations.is_empty());
        size.map_or_else(String::new, |size| format!("; with {}: {}", size.nodes, size.violations.join("; ")))
    };
    match nodes.zip(*gpus) {
        Some((nodes, gpus)) => {
            let smaller = sizes.iter().rev().find(|size| size.nodes < nodes);
            let unit = if nodes == 1 { "node is" } else { "nodes are" };
            format!(
                "{machine}: {nodes} {unit} enough ({gpus} GPUs), the fewest of {counts} within the constraints{}",
                violations(smaller)
            )
        }
        None => format!("{machine}: none of {counts} nodes is enough{}", violations(sizes.last())),
    }
}

/// Candidates with the same jobs, and the decision among them.
#[derive(Clone, Copy)]
pub(super) struct DecidedGroup<'a> {
    /// Ranked candidates, best first.
    pub compared: &'a [RankedRow],
    decision: &'a DecisionRow,
}

/// Returns the groups of candidates with the same jobs, in the order of the ranking.
pub(super) fn groups(answer: &Answer) -> impl Iterator<Item = DecidedGroup<'_>> {
    // An answer has a decision for each group.
    let groups = answer.comparable_groups().into_iter().zip(&answer.decisions);
    groups.map(|(compared, decision)| DecidedGroup { compared, decision })
}

impl DecidedGroup<'_> {
    /// Returns the decision as a sentence without the final period.
    pub(super) fn sentence(self, answer: &Answer) -> String {
        let Self { compared, decision } = self;
        let scope = match decision.jobs.as_slice() {
            [] => String::new(),
            jobs => format!("{}: ", several(jobs)),
        };
        let is_cost = decision.by.is_cost();
        let unit = format!("{}/{}", if is_cost { &answer.currency } else { "s" }, decision.by.unit());
        let score = |one: &Contender| format!("{} {unit}", significant(one.score.unwrap_or(f64::NAN)));
        let best = if is_cost { "cheapest" } else { "fastest" };
        let text = match (decision.outcome, decision.candidates.as_slice()) {
            (DecisionOutcome::NoneValid, _) | (_, []) => {
                let nearest = compared.first().filter(|row| !row.violations.is_empty());
                let reason = nearest.map(|row| format!("; {}: {}", row.candidate, row.violations.join("; ")));
                format!("no candidate runs all jobs within the constraints{}", reason.unwrap_or_default())
            }
            (DecisionOutcome::SingleCandidate, [only, ..]) => {
                format!("{} {} {}", only.candidate, if is_cost { "costs" } else { "needs" }, score(only))
            }
            (DecisionOutcome::OnlyValid, [only, ..]) => {
                format!("{} is the only candidate that meets all constraints: {}", only.candidate, score(only))
            }
            (DecisionOutcome::Best, [first, ..]) => {
                format!("{} is {best}: {}{}", first.candidate, score(first), advantage(decision, first))
            }
            (DecisionOutcome::TooCloseToCall, contenders) => {
                let listed: Vec<String> = contenders.iter().map(|one| contender(one, &score(one))).collect();
                format!("too close to call: {best} with prices and the model's error is {}", listed.join(" or "))
            }
        };
        let kinds: Vec<String> = decision
            .by_kind
            .iter()
            .map(|one| format!("for {} alone {} ({} {unit})", one.kind.name(), one.candidate, significant(one.score)))
            .collect();
        let kinds = if kinds.is_empty() { String::new() } else { format!("; {best} {}", kinds.join(", ")) };
        format!("{scope}{text}{kinds}")
    }
}

fn contender(one: &Contender, score: &str) -> String {
    format!("{} ({} %, {score})", one.candidate, percent(one.probability_best.unwrap_or(0.0)))
}

/// Returns the clause on the next candidate and on the certainty of the decision.
fn advantage(decision: &DecisionRow, first: &Contender) -> String {
    let Some(next) = &decision.next else { return String::new() };
    let more = percent(next.score.zip(first.score).map_or(0.0, |(next, first)| next / first - 1.0));
    let sure =
        first.probability_best.map(|share| format!(" ({} % sure, by prices and the model's error)", percent(share)));
    format!("; {} needs {more} % more{}", next.candidate, sure.unwrap_or_default())
}
