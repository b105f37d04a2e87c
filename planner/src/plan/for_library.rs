//! Derives a library's table from a plan over all software: the best strategy that the library runs if it beats the
//! library's default as clearly as a plan for the library alone requires; otherwise the default.

use fabricast_sim::schedule::Call;

use super::{PlanRequest, Preference, Priced, Row, preference, steady};
use crate::library::Offer;
use crate::strategy::Restriction;

/// Returns the table entry for each row, in order of collective and size; `None` if no simulated strategy belongs to
/// the library.
#[must_use]
pub fn for_library(request: &PlanRequest<'_>, offer: Offer, rows: &[Row]) -> Vec<Option<Priced>> {
    let restriction = Restriction { library: Some(offer), ..request.restriction.clone() };
    let of_library = |row: &Row| -> Option<Row> {
        let call = Call { bytes: row.bytes, ..request.call(row.collective, row.bytes) };
        let reaches = |priced: &Priced| request.library.is_none_or(|chooser| chooser.reaches(&call, &priced.strategy));
        let runs = |priced: &Priced| restriction.allows(&priced.strategy, row.collective);
        let own = row.library_default.as_ref().map(|default| default.priced).filter(runs);
        let mut pairs: Vec<Priced> = row.pairs.iter().copied().filter(|pair| runs(pair) && reaches(pair)).collect();
        if let Some(own) = own.filter(|own| pairs.iter().all(|pair| pair.strategy != own.strategy)) {
            pairs.push(own);
        }
        pairs.sort_by_key(|pair| (pair.counted().time, pair.strategy));
        let pick = *pairs.first()?;
        let row = Row { pick, pairs, preference: Preference::Fastest, ..row.clone() };
        Some(preference::settle(row, &restriction))
    };
    let judged: Vec<Option<Row>> = rows.iter().map(of_library).collect();
    let mut known: Vec<Row> = judged.iter().flatten().cloned().collect();
    steady::settle(&mut known, &restriction);
    let mut settled = known.into_iter();
    judged.into_iter().map(|row| row.and_then(|_| settled.next()).map(|row| row.pick)).collect()
}
