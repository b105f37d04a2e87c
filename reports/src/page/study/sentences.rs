//! Answer of a study in sentences: the best machine, its advantage, and its bottleneck.

use fabricast_study::answer::{Answer, RankedRow, ResultRow, SensitivityRow};

use super::decision::{self, DecidedGroup};
use super::{candidate_results, step_term};
use crate::format;

/// Maximum number of groups of candidates with different jobs that are described in sentences.
const MAX_DESCRIBED_SETS: usize = 4;

/// Returns the sentences of the answer, most important sentence first.
pub(super) fn sentences(answer: &Answer) -> Vec<String> {
    let parts: Vec<DecidedGroup<'_>> = decision::groups(answer).collect();
    if parts.is_empty() {
        return vec!["There is no candidate.".to_owned()];
    }
    let mut sentences: Vec<String> = answer.sizings.iter().map(|one| format!("{}.", decision::sizing(one))).collect();
    for &part in parts.iter().take(MAX_DESCRIBED_SETS) {
        sentences.extend(compared_sentences(answer, part));
    }
    if parts.len() > 1 {
        let more = match parts.len().saturating_sub(MAX_DESCRIBED_SETS) {
            0 => String::new(),
            more => format!("; {more} more sets of jobs are in the table"),
        };
        sentences.push(format!("Candidates with different jobs are not compared with each other{more}."));
    }
    let undone: Vec<&str> = answer.infeasible_jobs().map(|job| job.name.as_str()).collect();
    if !undone.is_empty() && answer.jobs.len() > 1 {
        sentences.push(format!("No candidate can run {}.", undone.join(" or ")));
    }
    let changed = answer.sensitivities.iter().filter(|one| one.changed).count();
    if !answer.sensitivities.is_empty()
        && answer.candidates.len() > 1
        && answer.ranking.iter().any(|one| one.meets_constraints)
    {
        sentences.push(match changed {
            0 => "The ranking is the same under every other assumption tested.".to_owned(),
            some if stays_first(answer) => format!(
                "{} remains first under all {} other assumptions tested; the order of the others changes under {some}.",
                answer.ranking.first().map_or("The first", |first| first.candidate.as_str()),
                answer.sensitivities.len()
            ),
            some => format!("The order changes under {some} of {} other assumptions.", answer.sensitivities.len()),
        });
    }
    sentences
}

/// Returns true if all candidates are compared with each other, and the first one remains first and within all
/// constraints under every other assumption.
fn stays_first(answer: &Answer) -> bool {
    let Some(first) = answer.ranking.first() else { return false };
    let is_first = |sensitivity: &SensitivityRow| {
        sensitivity
            .ranking
            .first()
            .is_some_and(|ranked| ranked.candidate == first.candidate && ranked.meets_constraints)
    };
    answer.comparable_groups().len() == 1 && answer.sensitivities.iter().all(is_first)
}

/// Returns the sentences on candidates with the same jobs. The decision is first.
fn compared_sentences(answer: &Answer, group: DecidedGroup<'_>) -> Vec<String> {
    let part = group.compared;
    let Some(first) = part.first() else { return Vec::new() };
    let mut sentences = vec![format!("{}.", group.sentence(answer))];
    if !first.meets_constraints {
        return sentences;
    }
    if answer.jobs.len() > 1 && first.jobs.len() != 1 {
        sentences.push("Scores are weighted geometric means over the jobs.".to_owned());
    }
    if let Some(fastest) = fastest(answer, part).filter(|fastest| fastest.candidate != first.candidate) {
        let jobs =
            if first.jobs.is_empty() { "over all jobs".to_owned() } else { format!("for {}", several(&first.jobs)) };
        sentences.push(format!("{} is fastest {jobs}, at a higher cost.", fastest.candidate));
    }
    sentences.push(bound_by(answer, first));
    let excluded: Vec<&str> =
        part.iter().filter(|one| !one.meets_constraints).map(|one| one.candidate.as_str()).collect();
    if !excluded.is_empty() {
        let (shown, more) = excluded.split_at(excluded.len().min(3));
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        sentences.push(format!("Constraints violated by {}{more}; the table lists them.", shown.join(", ")));
    }
    sentences
}

/// Joins names. If there are more than three, names the first three and the number of the others.
pub(super) fn several(names: &[String]) -> String {
    match names {
        [first, second, third, more @ ..] if !more.is_empty() => {
            format!("{first}, {second}, {third} and {} more", more.len())
        }
        some => some.join(", "),
    }
}

/// Returns the candidate of `part` that is fastest in every job, if there is one. `part`: candidates with the same
/// jobs.
fn fastest<'a>(answer: &Answer, part: &'a [RankedRow]) -> Option<&'a RankedRow> {
    let is_compared = |row: &&ResultRow| part.iter().any(|one| one.meets_constraints && one.candidate == row.candidate);
    let is_fastest = |ranked: &&RankedRow| {
        candidate_results(answer, &ranked.candidate).all(|one| {
            let mut others = answer.results.iter().filter(|row| row.job == one.job).filter(is_compared);
            others.all(|row| row.seconds_per_unit() >= one.seconds_per_unit())
        })
    };
    part.iter().filter(|one| one.meets_constraints).find(is_fastest)
}

/// Returns the sentence on the bottleneck and the exposed communication of the first-ranked candidate.
fn bound_by(answer: &Answer, first: &RankedRow) -> String {
    let mut rows: Vec<&ResultRow> = candidate_results(answer, &first.candidate).collect();
    rows.sort_by(|a, b| b.exposed_comm_share.total_cmp(&a.exposed_comm_share));
    let share = |row: &ResultRow| format::percent(row.exposed_comm_share);
    match rows.as_slice() {
        [] => String::new(),
        [one] => {
            let (name, bottleneck) = (&first.candidate, step_term(&one.bottleneck));
            format!("The bottleneck of {name} is {bottleneck}; exposed communication is {} % of a step.", share(one))
        }
        [largest, .., smallest] => format!(
            "Exposed communication of {} is {} % ({}) to {} % ({}) of a step.",
            first.candidate,
            share(smallest),
            smallest.job,
            share(largest),
            largest.job
        ),
    }
}
