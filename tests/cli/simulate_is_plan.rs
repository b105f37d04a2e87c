//! `simulate` and `plan` give the same results for a strategy.

use serde_json::Value;

use crate::run::{json, run};

const ALGORITHMS: [&str; 27] = [
    "ring",
    "tree",
    "one_shot",
    "two_shot",
    "hierarchical",
    "recursive_doubling",
    "recursive_halving_doubling",
    "bruck",
    "pat",
    "direct",
    "pairwise",
    "nvls",
    "nvls_tree",
    "grid_ring",
    "scatter_all_gather",
    "dissemination",
    "linear",
    "linear_sync",
    "knomial",
    "binary_tree",
    "in_order_tree",
    "split_tree",
    "chains",
    "neighbour_exchange",
    "butterfly",
    "reduce_then_broadcast",
    "reduce_then_scatter",
];

const COLLECTIVES: [&str; 9] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "send_recv",
];

/// Call sizes in bytes: a small one, one that needs several loops or many pieces of a stream, and one with unequal
/// chunks.
const SIZES: [u64; 3] = [3_000, 1 << 20, 50_000_017];

fn assert_simulations_match_plan(fabric: &str) {
    let mut compared = 0;
    for collective in COLLECTIVES {
        for algorithm in ALGORITHMS {
            for bytes in SIZES {
                let call = format!("{fabric} --collective {collective} --algorithm {algorithm} --bytes {bytes}");
                let planned = run(&format!("plan {call} --channels 3 --format json"));
                if planned.code != 0 {
                    // This combination of algorithm and collective is not supported.
                    continue;
                }
                let plan: Value = serde_json::from_str(&planned.stdout).unwrap();
                for row in plan["rows"].as_array().unwrap() {
                    // `simulate` has no flag for the thread count that a library uses.
                    let is_ours = |strategy: &&Value| !strategy.is_null() && strategy["threads"].is_null();
                    for strategy in [row, &row["runner_up"]].into_iter().filter(is_ours) {
                        assert_simulation_matches(&call, strategy);
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(compared > 100, "{compared}");
}

fn assert_simulation_matches(call: &str, strategy: &Value) {
    let word = |key: &str| strategy[key].as_str().unwrap().to_owned();
    let channels = &strategy["channels"];
    let flags = format!("simulate {call} --protocol {} --channels {channels}", word("protocol"));
    let simulated = json(&flags);
    assert_eq!(simulated["time_us"], strategy["time_us"], "{flags}");
}

#[test]
fn simulate_equals_plan_on_one_host() {
    assert_simulations_match_plan("--fabric hgx-h200");
}

#[test]
fn simulate_equals_plan_on_two_hosts() {
    assert_simulations_match_plan("--fabric hgx-h200 --nodes 2 --gpus 4");
}

/// A plan names the trees of its pick, and no other trees are faster with the same protocol and channels.
#[test]
fn simulate_reproduces_the_trees_of_a_plan() {
    let mut names = Vec::new();
    for (fabric, collective) in [("mi250x", "all_reduce"), ("mi250x", "all_gather"), ("dgx-v100", "all_reduce")] {
        for bytes in [64 << 10, 256 << 10, 4 << 20] {
            let call = format!("--fabric {fabric} --collective {collective} --algorithm tree_packing --bytes {bytes}");
            let row = json(&format!("plan {call}"))["rows"][0].clone();
            let (protocol, channels) = (row["protocol"].as_str().unwrap(), &row["channels"]);
            let time = |trees: &str| {
                let flags = format!("simulate {call} --protocol {protocol} --channels {channels} --trees {trees}");
                json(&flags)["time_us"].as_f64().unwrap()
            };
            let trees = row["trees"].as_str().map_or_else(|| row["trees"].to_string(), ToOwned::to_owned);
            let planned = row["time_us"].as_f64().unwrap();
            assert_eq!(time(&trees), planned, "{call} --trees {trees}");
            for other in ["optimal", "widened-2", "widened-4", "widened-16", "4", "2", "1"] {
                assert!(planned <= time(other) * 1.01, "{call}: {planned} over {trees}, {} over {other}", time(other));
            }
            names.push(trees);
        }
    }
    names.sort_unstable();
    names.dedup();
    assert!(names.len() > 1, "{names:?}");
}
