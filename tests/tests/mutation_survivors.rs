//! Applies single changes to the schedules of every algorithm. The verifier rejects all harmful ones; those that pass
//! are listed in docs/mutations.md with the reason why the result is the same.
//!
//! The naive verifier of [`crate::mutations`], which shares no code with the verifier, decides whether a change is
//! harmless. `MUTATIONS=overwrite cargo test -p fabricast-tests survivors` regenerates the page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_topologies::Bytes;

use crate::generators::{Case, team_size};
use crate::mutations::{Mutation, Naive, Script, verifies};

/// Returns small calls of every collective that moves data; the random tests include barriers.
fn small_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for algorithm in Algorithm::ALL {
        for &collective in algorithm.collectives().iter().filter(|&&collective| collective != Collective::Barrier) {
            for (ranks, ranks_per_node, chunk) in [(2, 0, None), (4, 2, None), (3, 0, Some(Bytes(8)))] {
                for buffers in [BufferUse::InPlace, BufferUse::OutOfPlace] {
                    let call = Call { collective, bytes: Bytes(48), ranks, root: Rank(0), buffers };
                    cases.push(Case {
                        algorithm,
                        shape: Shape {
                            chunk,
                            ranks_per_node,
                            ranks_per_team: team_size(algorithm, collective, ranks, ranks_per_node),
                            ..Shape::new(call, Protocol::Simple)
                        },
                    });
                }
            }
        }
    }
    cases
}

/// Returns true if an operation always runs after another.
fn is_after(script: &Script, later: usize, earlier: usize) -> bool {
    let (mut seen, mut pending) = (BTreeSet::new(), vec![later]);
    while let Some(op) = pending.pop() {
        for &dependency in &script.operations[op].2 {
            if dependency == earlier {
                return true;
            }
            if seen.insert(dependency) {
                pending.push(dependency);
            }
        }
    }
    false
}

/// Returns the reason why a change that passes does not alter the result.
fn reason(script: &Script, mutation: Mutation, changed: &Script) -> &'static str {
    let op = |i: usize| (script.operations[i].0, script.operations[i].1);
    match mutation {
        Mutation::Rush(i, dependency) => {
            let awaited = script.operations[i].2[dependency];
            let ((rank, action), (awaited_rank, awaited_action)) = (op(i), op(awaited));
            if is_after(changed, i, awaited) {
                "what was waited for is still waited for, by way of others"
            } else if rank == awaited_rank && action.peer == awaited_action.peer {
                "it kept the order of messages between two ranks, which move different chunks"
            } else if rank == awaited_rank {
                "it kept the order of a rank's steps, which touch different memory"
            } else {
                "it kept the order of two ranks' steps, which touch different memory"
            }
        }
        Mutation::Exchange(..) => "the two touch different memory, and only a chain kept their order",
        Mutation::Retarget(..) => "a sum may be added to at another rank that passes it on",
        _ => "unexplained",
    }
}

/// Numbers of changes of one kind by outcome.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    tried: u32,
    /// Changes that are equivalent to the original schedule, so that there is nothing to reject.
    idle: u32,
    passed: u32,
}

#[test]
fn harmful_changes_are_caught_and_survivors_are_listed() {
    let mut counts: BTreeMap<&str, Count> = BTreeMap::new();
    let mut survivors: BTreeMap<(Algorithm, &str, &str, &str), u32> = BTreeMap::new();
    for case in small_cases() {
        let script = Script::new(&case.schedule());
        assert!(Naive::proves(&script) && verifies(&script), "{case:?}");
        for mutation in Mutation::all(&script) {
            let changed = mutation.apply(&script);
            let (passes, harmless) = (verifies(&changed), Naive::proves(&changed));
            // A change passes if and only if it is harmless.
            assert_eq!(passes, harmless, "{mutation:?} of {case:?}");
            let count = counts.entry(mutation.name()).or_default();
            if mutation.is_equivalent(&script) {
                assert!(passes, "{mutation:?} of {case:?}");
                count.idle += 1;
                continue;
            }
            count.tried += 1;
            if passes {
                count.passed += 1;
                let reason = reason(&script, mutation, &changed);
                assert_ne!(reason, "unexplained", "{mutation:?} of {case:?}");
                let collective = case.shape.call.collective.name();
                *survivors.entry((case.algorithm, collective, mutation.name(), reason)).or_default() += 1;
            }
        }
    }
    let page = page(&counts, &survivors);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/mutations.md");
    if std::env::var("MUTATIONS").is_ok_and(|value| value == "overwrite") {
        std::fs::write(&path, &page).unwrap();
    }
    let current = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(current == page, "docs/mutations.md differs; MUTATIONS=overwrite writes it again");
}

fn page(counts: &BTreeMap<&str, Count>, survivors: &BTreeMap<(Algorithm, &str, &str, &str), u32>) -> String {
    let mut text = String::from(
        "# Single changes to schedules\n\n\
         What the verifier says of small calls of every algorithm (2, 3 and 4 ranks, one and two hosts, in place and not, in\n\
         one loop and several) with one thing changed. A change does harm unless a second, naive verifier that shares no code\n\
         with the first proves that the result is the same, free of races and complete: all that do harm are caught, none of\n\
         the others is. Written by tests/tests/mutation_survivors.rs, which fails where this page is not what it finds.\n\n\
         | change | tried | the same in other words | harmful, caught | harmful, missed | harmless, pass |\n\
         |---|---|---|---|---|---|\n",
    );
    let mut sum = Count::default();
    let mut row = |name: &str, count: Count| {
        let Count { tried, idle, passed } = count;
        let _ = writeln!(text, "| {name} | {} | {idle} | {} | 0 | {passed} |", tried + idle, tried - passed);
    };
    for (name, count) in counts {
        row(name, *count);
        sum = Count { tried: sum.tried + count.tried, idle: sum.idle + count.idle, passed: sum.passed + count.passed };
    }
    row("all", sum);
    text.push_str(
        "\n## What passes\n\n| algorithm | collective | change | how many | why it computes the same |\n|---|---|---|---|---|\n",
    );
    for ((algorithm, collective, change, reason), count) in survivors {
        let _ = writeln!(text, "| {algorithm} | {collective} | {change} | {count} | {reason} |");
    }
    text
}
