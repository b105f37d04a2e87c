//! Notes of an answer: values that are not stated and therefore not counted, which must not look like an advantage, and
//! assumptions of runs with the candidates that they apply to.

use super::ResultRow;
use crate::statements::group_by_statement;
use crate::{Candidate, Payment, Study};

/// Returns the notes of a study and its results. Each is a sentence without the final period.
pub(super) fn notes(study: &Study, rows: &[ResultRow]) -> Vec<String> {
    let names = |is_included: &dyn Fn(&&Candidate) -> bool| {
        study
            .candidates
            .iter()
            .filter(is_included)
            .map(|candidate| candidate.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let is_paid =
        |candidate: &Candidate, payment: Payment| candidate.price.is_some_and(|price| price.payment == payment);
    let rented = match study.constraints.budget {
        Some(_) => names(&|candidate| is_paid(candidate, Payment::PerHour)),
        None => String::new(),
    };
    let limits = &study.constraints;
    let unlimited = names(&|candidate| {
        let is_unstated = (limits.power_kw.is_some() && candidate.power_kw.is_none())
            || (limits.racks.is_some() && candidate.racks.is_none());
        is_paid(candidate, Payment::PerHour) && is_unstated
    });
    let unpowered = names(&|candidate| is_paid(candidate, Payment::Bought) && candidate.power_kw.is_none());
    let candidate_notes = [
        (unpowered, "energy is not counted for purchases without power_kw, which makes them look cheaper"),
        (rented, "the budget does not limit rented candidates, which have no purchase price; cost_per_hour_usd would"),
        (unlimited, "limits of power and racks do not apply to rented candidates that state none"),
    ]
    .into_iter()
    .filter(|(names, _)| !names.is_empty())
    .map(|(names, statement)| format!("{statement}: {names}"));
    let assignment_note = study
        .assignment
        .has_different_jobs(study.candidates.len())
        .then(|| "jobs name their candidates: a candidate is ranked among those with the same jobs".to_owned());
    candidate_notes.chain(assignment_note).chain(row_notes(rows)).collect()
}

/// Returns the notes of results without duplicates. Each names its candidates, and its job unless it applies to all
/// jobs of a candidate.
fn row_notes(rows: &[ResultRow]) -> impl Iterator<Item = String> {
    let groups = group_by_statement(rows.iter().flat_map(|row| row.notes.iter().map(move |note| (note, row))));
    groups.into_iter().map(|(note, noted)| format!("{note}: {}", format_names(&noted, rows)))
}

/// Returns the names of the candidates of the `noted` results, with the job unless all results of the candidate have
/// the note.
fn format_names(noted: &[&ResultRow], rows: &[ResultRow]) -> String {
    let mut names: Vec<String> = Vec::new();
    for row in noted {
        let jobs =
            |rows: &mut dyn Iterator<Item = &ResultRow>| rows.filter(|other| other.candidate == row.candidate).count();
        let name = match jobs(&mut noted.iter().copied()) == jobs(&mut rows.iter()) {
            true => row.candidate.clone(),
            false => format!("{} on {}", row.job, row.candidate),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}
