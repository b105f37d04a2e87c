//! What a study's figures leave out, in words: what its user did not state counts as nothing, and is not to look like a gain.

use crate::study::{Candidate, Payment, Study};

/// The notes of a study, each a sentence without its end.
pub(super) fn notes(study: &Study) -> Vec<String> {
    let names = |is_meant: &dyn Fn(&&Candidate) -> bool| {
        study.candidates.iter().filter(is_meant).map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let is_paid = |one: &Candidate, by: Payment| one.price.is_some_and(|price| price.payment == by);
    let hired = match study.constraints.budget {
        Some(_) => names(&|one| is_paid(one, Payment::Hired)),
        None => String::new(),
    };
    let unpowered = names(&|one| is_paid(one, Payment::Bought) && one.power_kw.is_none());
    [
        (unpowered, "energy is not counted of what is bought without power_kw, and it looks cheaper for that"),
        (hired, "the budget does not hold back who is hired, since nothing is paid at once; cost_per_hour_usd would"),
    ]
    .into_iter()
    .filter(|(names, _)| !names.is_empty())
    .map(|(names, what)| format!("{what}: {names}"))
    .collect()
}
