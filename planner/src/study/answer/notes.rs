//! What a study's figures leave out, in words: what its user did not state counts as nothing, and is not to look like a gain; and what
//! runs took for granted, with the candidates that it is said of.

use super::ResultRow;
use crate::study::{Candidate, Payment, Study};

/// The notes of a study and of its results, each a sentence without its end.
pub(super) fn notes(study: &Study, rows: &[ResultRow]) -> Vec<String> {
    let names = |is_meant: &dyn Fn(&&Candidate) -> bool| {
        study.candidates.iter().filter(is_meant).map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let is_paid = |one: &Candidate, by: Payment| one.price.is_some_and(|price| price.payment == by);
    let hired = match study.constraints.budget {
        Some(_) => names(&|one| is_paid(one, Payment::Hired)),
        None => String::new(),
    };
    let unpowered = names(&|one| is_paid(one, Payment::Bought) && one.power_kw.is_none());
    let own = [
        (unpowered, "energy is not counted of what is bought without power_kw, and it looks cheaper for that"),
        (hired, "the budget does not hold back who is hired, since nothing is paid at once; cost_per_hour_usd would"),
    ]
    .into_iter()
    .filter(|(names, _)| !names.is_empty())
    .map(|(names, what)| format!("{what}: {names}"));
    let apart = study.pairs.differ(study.candidates.len()).then(|| {
        "jobs name their candidates: a candidate is ranked by its own, among those that have the same".to_owned()
    });
    let at_once = rows.iter().any(|row| row.total_comm_share > 1.0).then(|| {
        "calls that take more than 100 % of a step go on at once, some beside others and beside kernels".to_owned()
    });
    own.chain(apart).chain(at_once).chain(of_rows(rows)).collect()
}

/// What rows say, each once, with the candidates that say it.
fn of_rows(rows: &[ResultRow]) -> impl Iterator<Item = String> {
    let mut said: Vec<(&str, Vec<&str>)> = Vec::new();
    for (row, note) in rows.iter().flat_map(|row| row.notes.iter().map(move |note| (row, note.as_str()))) {
        let known = said.iter().position(|(known, _)| *known == note);
        let number = known.unwrap_or(said.len());
        if known.is_none() {
            said.push((note, Vec::new()));
        }
        if let Some((_, names)) = said.get_mut(number)
            && !names.contains(&row.candidate.as_str())
        {
            names.push(&row.candidate);
        }
    }
    said.into_iter().map(|(note, names)| format!("{note}: {}", names.join(", ")))
}
