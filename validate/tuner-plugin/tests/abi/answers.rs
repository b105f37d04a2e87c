//! Compares the answers of all interface versions with the oracle, for random tables and calls.

use proptest::prelude::*;

use crate::library::{Call, Communicator, VERSIONS};
use crate::oracle::{ALGORITHMS, FUNCTIONS, PROTOCOLS, outcome};

/// Strategy for rows of a table whose sizes often adjoin those of other rows.
pub fn row() -> impl Strategy<Value = String> {
    let size = prop_oneof![6 => 0_u64..20, 2 => (0_u32..45).prop_map(|k| (1 << k) - 1), 1 => Just(u64::MAX)];
    let number = |most: i32| prop_oneof![2 => Just(-1), 3 => 1..=most];
    let sizes = (size.clone(), size).prop_map(|(a, b)| (a.min(b), a.max(b)));
    let ways = (0..FUNCTIONS.len(), sizes, 0..ALGORITHMS.len(), 0..PROTOCOLS.len(), number(64));
    (ways, number(2), number(3), number(2), -1..2_i32, 8..=10_usize).prop_map(
        |((function, (least, most), algorithm, protocol, channels), nodes, ranks, operations, registered, fields)| {
            let (function, algorithm, protocol) = (FUNCTIONS[function], ALGORITHMS[algorithm], PROTOCOLS[protocol]);
            let all = [
                function.to_owned(),
                least.to_string(),
                most.to_string(),
                algorithm.to_owned(),
                protocol.to_owned(),
                channels.to_string(),
                nodes.to_string(),
                ranks.to_string(),
                operations.to_string(),
                registered.to_string(),
            ];
            all[..fields].join(",")
        },
    )
}

pub fn table() -> impl Strategy<Value = String> {
    let comment = prop_oneof![3 => row(), 1 => Just("# a comment, with, commas".to_owned()), 1 => Just(String::new())];
    prop::collection::vec(comment, 0..24).prop_map(|rows| rows.join("\n"))
}

pub fn call() -> impl Strategy<Value = Call> {
    let bytes = prop_oneof![6 => 0_usize..24, 2 => (0_u32..46).prop_map(|k| 1 << k), 1 => Just(usize::MAX)];
    (-1..7_i32, bytes, 0..4_i32, 0..2_i32).prop_map(|(function, bytes, operations, registered)| Call {
        function,
        bytes,
        operations,
        registered,
    })
}

/// Strategy for costs as NCCL passes them: some combinations are impossible, a few are very expensive.
pub fn costs() -> impl Strategy<Value = Vec<f32>> {
    let cell = prop_oneof![3 => 1.0_f32..50.0, 2 => Just(-1.0), 1 => Just(1024.0 * 20.0), 1 => Just(-1024.0), 1 => Just(f32::NAN)];
    prop::collection::vec(cell, 21)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn all_versions_answer_as_the_oracle(
        text in table(),
        calls in prop::collection::vec((call(), costs()), 1..8),
        (nodes, ranks) in (1_usize..3, 1_usize..4),
        version in 0..VERSIONS.len(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.csv");
        std::fs::write(&path, &text).unwrap();
        let communicator = Communicator::new(VERSIONS[version], Some(&path), ranks, nodes);
        prop_assert!(communicator.messages.iter().all(|(level, _)| *level == 3), "{:?}\n{text}", communicator.messages);
        for (call, costs) in calls {
            let expected = outcome(&text, nodes as i64, ranks as i64, call, &costs);
            let answer = communicator.ask(call, &costs, 7, 3);
            prop_assert_eq!(bits(&answer.costs), bits(&expected.costs), "{:?} {:?}\n{}", call, costs, text);
            prop_assert_eq!(answer.channels, expected.channels, "{:?}\n{}", call, text);
        }
    }
}

fn bits(costs: &[f32]) -> Vec<u32> {
    costs.iter().map(|cost| cost.to_bits()).collect()
}
