//! Tests of studies with hybrid sharding: calls in answers, and errors for invalid sharding groups.

use super::*;
use crate::link_utilization::{compute_utilization, predicted_layout};
use crate::prediction::Prediction;

const HOSTS: &str = "[[candidate]]\nname = \"two\"\nfabric = \"hgx-h100\"\nnodes = 2\nprice_usd = 500000\n\
    network = { kind = \"rail\", nics_per_node = 8, nic = \"400 Gb/s\" }\n";

fn study(lines: &str) -> String {
    format!(
        "{HOSTS}[[job]]\nname = \"j\"\nglobal_batch = 32\n{lines}\n\
         model = {{ layers = 4, hidden = 2048, heads = 16, vocab = 32000, seq = 1024 }}\n"
    )
}

/// Reductions among sharding groups have a separate row, and link loads can be recomputed from the answer.
#[test]
fn answers_contain_calls_among_sharding_groups() {
    for (shard, parallel) in [(8, "{ dp = 16 }"), (2, "\"auto\"")] {
        let completed = CompletedStudy::new(&study(&format!("zero = 3\nshard = {shard}\nparallel = {parallel}")));
        let row = completed.answer().results.remove(0);
        let parallel = row.parallel.unwrap();
        assert!(
            parallel.shard == Some(shard) && parallel.to_string().ends_with(&format!(", shard {shard}")),
            "{parallel}"
        );
        let group_calls = |dimension: &str| {
            let calls = row.calls.iter().filter(move |call| call.dimension == dimension);
            calls.map(|call| (call.collective.as_str(), call.ranks, call.groups)).collect::<Vec<_>>()
        };
        let (shard_ranks, replicas) = (u64::from(shard), u64::from(parallel.dp));
        assert!(
            group_calls("replica")
                .iter()
                .all(|call| *call == ("all_reduce", replicas / shard_ranks, 16 * shard_ranks / replicas)),
            "{:?}",
            row.calls
        );
        assert!(
            group_calls("data").iter().all(|call| (call.1, call.2) == (shard_ranks, 16 / shard_ranks)),
            "{:?}",
            row.calls
        );
        assert!(!group_calls("replica").is_empty() && !group_calls("data").is_empty(), "{:?}", row.calls);
        let (job, fabric) = (&completed.study.jobs[0], &completed.fabrics[0]);
        let prediction = Prediction::from_row(&row).unwrap();
        assert_eq!(predicted_layout(job, &prediction, fabric).unwrap().degrees, parallel.degrees());
        assert!(compute_utilization(job, &prediction, fabric).is_some());
    }
    // A sharding group spans both hosts, so a single host runs without sharding.
    let sharded_over_all =
        CompletedStudy::new(&study("zero = 3\nshard = 16\nparallel = { dp = 16 }")).answer().results.remove(0);
    assert!(
        sharded_over_all.efficiency_node.is_some_and(|efficiency| (0.3..=1.0).contains(&efficiency)),
        "{:?}",
        sharded_over_all.efficiency_node
    );
    let plain = CompletedStudy::new(&study("zero = 3\nparallel = { dp = 16 }")).answer().results.remove(0);
    assert_eq!(plain.parallel.unwrap().shard, None);
    assert!(plain.calls.iter().all(|call| call.dimension == "data" && call.ranks == 16));
}

/// The number of ranks is known only with the candidate; the error is nevertheless located at the `shard` key.
#[test]
fn indivisible_shards_are_errors_with_location() {
    let text = study("parallel = { dp = 16 }\nzero = 3\nshard = 6");
    let study = read_study(&text, "s.toml").unwrap();
    let fabrics: Vec<_> = study.candidates.iter().map(|candidate| load(&candidate.fabric).unwrap()).collect();
    let error = check(&study, &fabrics).unwrap_err().to_string();
    let line = text.lines().position(|line| line == "shard = 6").unwrap() + 1;
    let expected = "shard: 16 data-parallel ranks cannot be divided by 6: expected a divisor of them";
    assert!(error.contains(&format!("s.toml:{line}:9: ")) && error.contains(expected), "{error}");
}
