//! fabricast's JSON table: a saved plan without rows, so readers of plans read it too. It includes the departures from
//! the library's default.

use serde_json::{Value, json};

use super::choices::{Unsaid, Wanted, choices};
use super::{
    Departure, SavedPick, SavedPlan,
    departures::{Taken, departures},
};

/// Writes the selected strategies, whichever software runs them. The ranges of each collective cover all sizes.
#[must_use]
pub fn write(plan: &SavedPlan) -> String {
    let of = |pick: &SavedPick| (pick.algorithm, pick.protocol, pick.channels);
    let all =
        choices(plan, (Wanted::Pick, Unsaid::AsNeighbours), |_, pick| Ok(of(pick)), |range| Some(of(&range.pick())));
    let ranges: Vec<Value> = all
        .stretches
        .iter()
        .map(|one| {
            json!({
                "collective": one.collective,
                "min_bytes": one.min_bytes,
                "max_bytes": one.max_bytes,
                "algorithm": one.key.0.name(),
                "protocol": one.key.1.name(),
                "channels": one.key.2,
            })
        })
        .collect();
    let departures: Vec<Departure> = departures(plan, Taken::Picks);
    let value = json!({
        "fabric": plan.fabric,
        "profile": plan.profile,
        "profile_date": plan.profile_date,
        "ranks": plan.ranks,
        "nodes": plan.nodes,
        "library": plan.library.map(|library| library.to_string()),
        "library_nodes": plan.library_nodes,
        "rows": [],
        "ranges": ranges,
        "departures": departures,
    });
    format!("{value:#}\n")
}
