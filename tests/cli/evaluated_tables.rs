//! Tables never use a strategy at a size where it was not evaluated: neither between planned sizes, nor outside their
//! range, nor if the plan chose among more strategies than the library can run.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::Value;

use crate::run::run_in;
use crate::tuner_csv::{find, lines};

const LIBRARY: &str = "--library nccl-2.28.9";

fn json(folder: &Path, arguments: &str) -> Value {
    let run = run_in(folder, &format!("{arguments} --format json"));
    assert_eq!(run.code, 0, "{arguments}: {}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

/// Makes a plan and writes its table for NCCL's tuner into `folder`.
fn write_plan_and_table(folder: &Path, plan: &str) {
    for arguments in
        [&*format!("plan {plan} --format json -o plan.json"), "table plan.json --to nccl-tuner -q -o t.csv"]
    {
        let run = run_in(folder, arguments);
        assert_eq!(run.code, 0, "{arguments}: {}", run.stderr);
    }
}

/// Returns the sizes at which the table's strategy is more than 2 % slower than the library's default.
fn slower(folder: &Path, fabric: &str, sizes: &str) -> Vec<String> {
    let checked = json(folder, &format!("table --check t.csv --fabric {fabric} {LIBRARY} --sizes {sizes}"));
    let rows = checked["rows"].as_array().unwrap();
    assert!(!rows.is_empty());
    let is_slower =
        |row: &&Value| row["time_us"].as_f64().unwrap() > 1.02 * row["library_default_us"].as_f64().unwrap();
    rows.iter().filter(is_slower).map(ToString::to_string).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2, ..ProptestConfig::default() })]

    /// A plan between two random sizes gives a table that is not slower than the library's default at any size.
    #[test]
    fn no_size_is_slower_than_the_library_default(first in 1000u64..2000, factor in 1.9f64..2.4) {
        let folder = tempfile::tempdir().unwrap();
        for (fabric, collective) in [("hgx-h200", "all"), ("hgx-h200 --nodes 4", "all_reduce"), ("hgx-h200 --nodes 4", "all_gather")] {
            write_plan_and_table(folder.path(), &format!("--fabric {fabric} {LIBRARY} --collective {collective}"));
            for shift in [1.0, 1.3] {
                let sizes = format!("{}..2GiB:{factor}", (first as f64 * shift) as u64);
                let slower_rows = slower(folder.path(), fabric, &sizes);
                prop_assert!(slower_rows.is_empty(), "{fabric} {sizes}: {slower_rows:?}");
            }
        }
    }
}

/// Sizes between powers of two are evaluated, so a table is slower than the default at none of them.
#[test]
fn sizes_between_powers_of_two_are_evaluated() {
    let folder = tempfile::tempdir().unwrap();
    write_plan_and_table(folder.path(), &format!("--fabric hgx-h200 --nodes 4 {LIBRARY} --collective all_reduce"));
    let slower_rows = slower(folder.path(), "hgx-h200 --nodes 4", "1489920..1489920");
    assert!(slower_rows.is_empty(), "{slower_rows:?}");
    // These sizes are not among the planned ones; ranges of the table are derived from both.
    let plan: Value = serde_json::from_str(&fs::read_to_string(folder.path().join("plan.json")).unwrap()).unwrap();
    assert_eq!(plan["rows"].as_array().unwrap().len(), 21);
    let between = plan["refined_rows"].as_array().unwrap();
    assert!(between.iter().all(|row| !row["bytes"].as_u64().unwrap().is_power_of_two()));
    for row in between {
        let bytes = row["bytes"].as_u64().unwrap();
        let contains_size = |range: &&Value| {
            (range["min_bytes"].as_u64().unwrap()..=range["max_bytes"].as_u64().unwrap()).contains(&bytes)
        };
        let range = plan["ranges"].as_array().unwrap().iter().find(contains_size).unwrap();
        assert_eq!((&range["algorithm"], &range["protocol"]), (&row["algorithm"], &row["protocol"]), "{row}");
    }
}

/// A plan of small sizes makes no choice for larger ones: there the library's default applies.
#[test]
fn sizes_beyond_the_plan_use_the_library_default() {
    let folder = tempfile::tempdir().unwrap();
    write_plan_and_table(folder.path(), &format!("--fabric hgx-h200 {LIBRARY} --collective all --sizes 1KiB..64KiB"));
    let slower_rows = slower(folder.path(), "hgx-h200", "64KiB..1GiB:1.7");
    assert!(slower_rows.is_empty(), "{slower_rows:?}");
    let text = fs::read_to_string(folder.path().join("t.csv")).unwrap();
    let lines = lines(&text);
    let large = find(&lines, (1, 8), "all_reduce", 1 << 30).unwrap();
    assert_eq!(large.cell, ("nvls".to_owned(), "simple".to_owned(), 16));
    // If a saved plan does not know the library's default outside its sizes, the table states which sizes were planned.
    let path = folder.path().join("plan.json");
    let mut plan: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    plan.as_object_mut().unwrap().remove("outside_ranges");
    fs::write(&path, plan.to_string()).unwrap();
    let run = run_in(folder.path(), "table plan.json --to nccl-tuner -q");
    assert!(run.stdout.contains("# planned: 1 KiB to 64 KiB; smaller and larger sizes"), "{}", run.stdout);
}

/// A plan that chooses among all strategies gives a table that NCCL can use, and that departs from the default at the
/// same sizes as a plan for NCCL only.
#[test]
fn unrestricted_plans_depart_where_a_gain_is_predicted() {
    let folder = tempfile::tempdir().unwrap();
    for fabric in ["hgx-h200", "dgx-a100", "hgx-h100 --nodes 2"] {
        write_plan_and_table(folder.path(), &format!("--fabric {fabric} --collective all --sizes 1KiB..1GiB:4"));
        let checked = json(folder.path(), &format!("table --check t.csv --fabric {fabric} --sizes 1KiB..1GiB:8"));
        let row_findings = checked["findings"].as_array().unwrap().iter().filter(|finding| !finding["line"].is_null());
        assert_eq!(row_findings.count(), 0, "{fabric}: {}", checked["findings"]);
        let explained = json(folder.path(), "table plan.json --to nccl-tuner -o t.csv -q --explain");
        let plan: Value = serde_json::from_str(&fs::read_to_string(folder.path().join("plan.json")).unwrap()).unwrap();
        let lines = lines(&fs::read_to_string(folder.path().join("t.csv")).unwrap());
        let nodes = plan["library_nodes"].as_u64().unwrap();
        for departure in explained["departures"].as_array().unwrap() {
            assert!(departure["min_gain"].as_f64().unwrap() >= 0.0, "{fabric}: {departure}");
            let (collective, bytes) = (departure["collective"].as_str().unwrap(), departure["bytes"].as_u64().unwrap());
            let (algorithm, protocol, channels) =
                find(&lines, (nodes, plan["ranks"].as_u64().unwrap()), collective, bytes).unwrap().cell.clone();
            assert_eq!(departure["used"], format!("{algorithm} {protocol} × {channels}"), "{fabric}");
        }
    }
}

/// Choices for Open MPI do not apply to NCCL, so there is no NCCL table for them.
#[test]
fn plans_for_open_mpi_give_no_nccl_table() {
    let folder = tempfile::tempdir().unwrap();
    let plan = "--fabric hgx-h200 --library open_mpi-5.0 --collective reduce --sizes 1KiB..1MiB:32";
    assert_eq!(run_in(folder.path(), &format!("plan {plan} --format json -o plan.json")).code, 0);
    let run = run_in(folder.path(), "table plan.json --to nccl-tuner -o t.csv");
    assert!(run.code == 2 && run.stderr.contains("is for open_mpi-5.0"), "{}", run.stderr);
}
