//! Tests of the tables of random library plans: the look-up in a table equals the plan's ranges at every size.

use fabricast_libraries::nccl::Function;
use fabricast_search::export::nccl_tuner::{self, Buffers, ConvertedTable, Lookup};
use fabricast_search::export::{SavedPlan, json};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::tables::{sizes, sizes_around_ends};
use crate::tuner_csv::{find, lines};

const COLLECTIVES: [&str; 5] = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"];
// Only rings are used, because the other algorithms support only some collectives.
const CELLS: [(&str, &str); 3] = [("ring", "ll"), ("ring", "ll128"), ("ring", "simple")];

/// Planned sizes per collective in ascending order, each with the index of its pick in [`CELLS`] and its channels.
type Picks = Vec<(usize, Vec<(u64, usize, u16)>)>;

fn picks() -> impl Strategy<Value = Picks> {
    // Few different picks are used, so that neighbouring sizes often have the same one.
    let rows = prop::collection::btree_map(sizes(), (0..CELLS.len(), 1u16..4), 1..12);
    let rows = rows.prop_map(|rows| rows.into_iter().map(|(size, (cell, channels))| (size, cell, channels)).collect());
    prop::collection::btree_map(0..COLLECTIVES.len(), rows, 1..5).prop_map(|plan| plan.into_iter().collect())
}

/// Returns the pick at a size: that of the planned size nearest in logarithms; ties go to the larger one.
fn expected_pick(rows: &[(u64, usize, u16)], bytes: u64) -> (usize, u16) {
    // A size belongs to the larger of two planned sizes if bytes² ≥ before · size, apart from rounding.
    let is_at_least =
        |before: u64, size: u64| bytes >= ((u128::from(before) * u128::from(size)).isqrt() as u64).max(before + 1);
    // Boundaries lie between intervals of equal picks, from the last size of one to the first size of the next.
    let mut pick = (rows[0].1, rows[0].2);
    for pair in rows.windows(2) {
        if (pair[0].1, pair[0].2) != (pair[1].1, pair[1].2) && is_at_least(pair[0].0, pair[1].0) {
            pick = (pair[1].1, pair[1].2);
        }
    }
    pick
}

fn plan(picks: &Picks) -> Value {
    let row = |collective: &str, &(bytes, cell, channels): &(u64, usize, u16)| {
        json!({
            "collective": collective, "bytes": bytes, "algorithm": CELLS[cell].0, "protocol": CELLS[cell].1,
            "channels": channels, "time_us": 1.0,
        })
    };
    let rows = picks.iter().flat_map(|(collective, rows)| rows.iter().map(|pick| row(COLLECTIVES[*collective], pick)));
    json!({
        "fabric": "any", "profile": "any", "ranks": 8, "nodes": 1, "library": "nccl-2.28.9", "library_nodes": 1,
        "rows": rows.collect::<Vec<_>>(), "ranges": [],
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn tables_equal_the_plans_picks_at_every_size(picks in picks(), probes in prop::collection::vec(sizes(), 32)) {
        let plan = SavedPlan::read(&plan(&picks).to_string(), "plan").unwrap();
        let text = nccl_tuner::write(&ConvertedTable::new(&plan).table);
        let table = nccl_tuner::read(&text, "table").unwrap();
        prop_assert_eq!(nccl_tuner::write(&table), text.clone());
        let (lines, lookup) = (lines(&text), Lookup::new(&table, 1, 8));
        // The plan's own JSON gives the same result, also for tuners.
        let saved = SavedPlan::read(&json::write(&plan), "own").unwrap();
        let json_lookup = Lookup::new(&ConvertedTable::new(&saved).table, 1, 8);
        let row_ranges = picks.iter().flat_map(|(_, rows)| rows.iter().map(|row| (row.0, row.0)));
        let table_ranges = table.rows.iter().map(|row| (row.min_bytes.0, row.max_bytes.0));
        for bytes in sizes_around_ends(row_ranges.chain(table_ranges)).into_iter().chain(probes) {
            for (collective, rows) in &picks {
                let name = COLLECTIVES[*collective];
                let (cell, channels) = expected_pick(rows, bytes);
                let (algorithm, protocol) = CELLS[cell];
                let line = find(&lines, (1, 8), name, bytes).map(|line| line.cell.clone());
                let expected = (algorithm.to_owned(), protocol.to_owned(), i64::from(channels));
                prop_assert_eq!(line, Some(expected), "{} of {}", name, bytes);
                let function = Function::ALL.into_iter().find(|f| f.name().to_lowercase() == name.replace('_', "")).unwrap();
                for lookup in [&lookup, &json_lookup] {
                    let entry = lookup.find(function, bytes, 1, Buffers::Plain).unwrap();
                    let entry = (entry.algo.to_algorithm().unwrap().name(), entry.proto.to_protocol().name(), entry.channels.unwrap().get());
                    prop_assert_eq!(entry, (algorithm, protocol, channels), "{} of {}", name, bytes);
                }
            }
            // The table has no rows for other communicators.
            prop_assert!(COLLECTIVES.iter().all(|name| find(&lines, (2, 8), name, bytes).is_none()));
        }
    }
}
