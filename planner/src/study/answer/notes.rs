//! Notes of an answer: omissions because of unstated values, which must not look like an advantage, and assumptions of
//! runs with the candidates that they apply to.

use super::ResultRow;
use crate::study::{Candidate, Payment, Study};

/// Returns the notes of a study and its results, each a sentence without its period.
pub(super) fn notes(study: &Study, rows: &[ResultRow]) -> Vec<String> {
    let names = |is_meant: &dyn Fn(&&Candidate) -> bool| {
        study.candidates.iter().filter(is_meant).map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let is_paid = |one: &Candidate, by: Payment| one.price.is_some_and(|price| price.payment == by);
    let hired = match study.constraints.budget {
        Some(_) => names(&|one| is_paid(one, Payment::Hired)),
        None => String::new(),
    };
    let limits = &study.constraints;
    let elsewhere = names(&|one| {
        let unsaid =
            (limits.power_kw.is_some() && one.power_kw.is_none()) || (limits.racks.is_some() && one.racks.is_none());
        is_paid(one, Payment::Hired) && unsaid
    });
    let unpowered = names(&|one| is_paid(one, Payment::Bought) && one.power_kw.is_none());
    let own = [
        (unpowered, "energy is not counted of what is bought without power_kw, and it looks cheaper for that"),
        (hired, "the budget does not hold back who is hired, since nothing is paid at once; cost_per_hour_usd would"),
        (elsewhere, "limits of power and racks do not hold back who is hired and states none"),
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

/// Returns the notes of results without duplicates, each with its candidates, and with the job if it does not apply to
/// all jobs of a candidate.
fn of_rows(rows: &[ResultRow]) -> impl Iterator<Item = String> {
    let said = together(rows.iter().flat_map(|row| row.notes.iter().map(move |note| (note, row))));
    said.into_iter().map(|(note, of)| format!("{note}: {}", names(&of, rows)))
}

/// Groups values by statement, in order of first occurrence.
pub(in crate::study) fn together<S: PartialEq, T>(said: impl IntoIterator<Item = (S, T)>) -> Vec<(S, Vec<T>)> {
    let mut together: Vec<(S, Vec<T>)> = Vec::new();
    for (what, of) in said {
        match together.iter_mut().find(|(known, _)| *known == what) {
            Some((_, all)) => all.push(of),
            None => together.push((what, vec![of])),
        }
    }
    together
}

/// Names the candidates of some results, with the jobs if not all of a candidate's results are included.
fn names(said_of: &[&ResultRow], rows: &[ResultRow]) -> String {
    let mut names: Vec<String> = Vec::new();
    for row in said_of {
        let jobs =
            |rows: &mut dyn Iterator<Item = &ResultRow>| rows.filter(|one| one.candidate == row.candidate).count();
        let name = match jobs(&mut said_of.iter().copied()) == jobs(&mut rows.iter()) {
            true => row.candidate.clone(),
            false => format!("{} on {}", row.job, row.candidate),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}
