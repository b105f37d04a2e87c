//! Writer of fabricast's JSON table: a saved plan without rows, which readers of saved plans also read. It includes the
//! departures from the library's default.

use serde_json::{Value, json};

use super::expressible::{ExportedStrategy, MissingEntry, choose_entries};
use super::{
    Departure, SavedPick, SavedPlan,
    departures::{ComparedStrategies, departures},
};

/// Returns the JSON text of a plan's table with the selected strategies of all software. The ranges of each collective
/// cover all sizes.
#[must_use]
pub fn write(plan: &SavedPlan) -> String {
    let parameters = |pick: &SavedPick| (pick.algorithm, pick.protocol, pick.channels);
    let choices = choose_entries(
        plan,
        ExportedStrategy::Selected,
        MissingEntry::UseNeighbour,
        |_, pick| Ok(parameters(pick)),
        |range| Some(parameters(&range.pick())),
    );
    let ranges: Vec<Value> = choices
        .ranges
        .iter()
        .map(|range| {
            json!({
                "collective": range.collective,
                "min_bytes": range.min_bytes,
                "max_bytes": range.max_bytes,
                "algorithm": range.key.0.name(),
                "protocol": range.key.1.name(),
                "channels": range.key.2,
            })
        })
        .collect();
    let departures: Vec<Departure> = departures(plan, ComparedStrategies::Picks);
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
