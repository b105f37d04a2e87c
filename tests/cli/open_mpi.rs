//! Open MPI itself loads the written rules and follows them.
//!
//! A release build logs no algorithm, so the test compares the bytes that each process sends to each other, as
//! counted by Open MPI's monitoring (`pml_monitoring`, 4.1 and 5.0): no two of the tested algorithms send alike.
//! Skipped with a message without Open MPI; `REQUIRE_OPEN_MPI` makes that a failure.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use fabricast_search::export::open_mpi::{
    Communicator, Distribution, Ranks, Routine, Rule, Rules, read_classic, write_classic,
};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use crate::run::run_in;

/// Returns the bytes that rank 0 sends to each rank with an algorithm; `None` for algorithms that are not tested.
fn expected_bytes_sent(algorithm: &str, collective: Collective, ranks: u64, bytes: u64) -> Option<BTreeMap<u64, u64>> {
    let steps = || (0..ranks.ilog2()).map(|step| 1u64 << step);
    let block = bytes / ranks;
    Some(match (collective, algorithm) {
        (Collective::AllReduce, "recursive_doubling") => steps().map(|peer| (peer, bytes)).collect(),
        (Collective::AllReduce, "ring") => [(1, 2 * (ranks - 1) * block)].into(),
        // A rank sends half of the remaining data to each partner, nearest first, and as much on the way back.
        (Collective::AllReduce, "rabenseifner") => steps().map(|peer| (peer, bytes / peer)).collect(),
        (Collective::AllGather, "recursive_doubling") => steps().map(|peer| (peer, peer * block)).collect(),
        (Collective::AllGather, "ring") => [(1, (ranks - 1) * block)].into(),
        (Collective::AllGather, "bruck") => steps().map(|peer| (ranks - peer, peer * block)).collect(),
        (Collective::Broadcast, "binomial") => steps().map(|peer| (peer, bytes)).collect(),
        (Collective::Broadcast, "basic_linear") => (1..ranks).map(|peer| (peer, bytes)).collect(),
        (Collective::Broadcast, "pipeline") => [(1, bytes)].into(),
        _ => return None,
    })
}

/// Returns the bytes that rank 0 sent to each rank in one call under the given rules.
fn measured(folder: &Path, rules: &str, ranks: u64, collective: Collective, bytes: u64) -> BTreeMap<u64, u64> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/tables/calls.py");
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "--timeout", "60", "-np", &ranks.to_string()]);
    for (name, value) in [
        ("coll_tuned_use_dynamic_rules", "1"),
        ("coll_tuned_dynamic_rules_filename", rules),
        ("pml_monitoring_enable", "2"),
        ("pml_monitoring_enable_output", "3"),
        ("pml_monitoring_filename", "sent"),
    ] {
        command.args(["--mca", name, value]);
    }
    command.args(["python3", script, collective.name(), &bytes.to_string()]).current_dir(folder);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{collective} of {bytes}: {}", String::from_utf8_lossy(&output.stderr));
    let log = fs::read_to_string(folder.join("sent.0.prof")).unwrap();
    // Monitoring prints a line `I 0 1 65536 bytes 1 msgs sent …` per peer, with tabs between the columns; `I` marks
    // messages of collectives.
    let rows = log.lines().filter(|line| line.starts_with("I\t")).map(|line| {
        let words: Vec<&str> = line.split('\t').collect();
        let bytes = words[3].split(' ').next().unwrap().parse::<u64>().unwrap();
        (words[2].parse::<u64>().unwrap(), bytes)
    });
    rows.filter(|(_, bytes)| *bytes > 0).collect()
}

/// Returns true if Open MPI can be run here.
#[expect(clippy::print_stdout, reason = "a test that skips says so")]
fn is_open_mpi_available() -> bool {
    let version = Command::new("mpirun").arg("--version").output();
    let is_present = version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Open MPI"));
    assert!(is_present || std::env::var_os("REQUIRE_OPEN_MPI").is_none(), "there is no Open MPI");
    if !is_present {
        println!("skipped: there is no Open MPI here");
    }
    is_present
}

fn check_algorithms(folder: &Path, file: &str, rules: &Rules, ranks: u32, sizes: &[u64]) -> usize {
    let mut checked = 0;
    for collective in [Collective::AllReduce, Collective::AllGather, Collective::Broadcast] {
        let routine = Routine::from_collective(collective).unwrap();
        for &bytes in sizes {
            let Some(rule) = rules.find(routine, Ranks { ranks, hosts: 1 }, bytes) else { continue };
            let name = routine.algorithm(rule.algorithm).unwrap();
            let Some(expected) = expected_bytes_sent(name, collective, ranks.into(), bytes) else { continue };
            assert_eq!(
                measured(folder, file, ranks.into(), collective, bytes),
                expected,
                "{collective} {bytes}: {name}"
            );
            checked += 1;
        }
    }
    checked
}

#[test]
fn open_mpi_follows_the_rules_of_a_plan() {
    if !is_open_mpi_available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for ranks in [4, 8] {
        let flags =
            format!("--fabric hgx-h200 --gpus {ranks} --library open_mpi-4.1 --collective all --sizes 1KiB..1MiB:4");
        let run = run_in(folder.path(), &format!("plan {flags} --format json -o plan.json"));
        assert_eq!(run.code, 0, "{}", run.stderr);
        let run = run_in(folder.path(), "table plan.json --to openmpi -o rules");
        assert_eq!(run.code, 0, "{}", run.stderr);
        let rules = read_classic(&fs::read_to_string(folder.path().join("rules")).unwrap(), "rules").unwrap();
        assert!(check_algorithms(folder.path(), "rules", &rules, ranks, &[1024, 65536]) >= 3, "{ranks} ranks");
    }
}

#[test]
fn algorithm_numbers_match_open_mpis() {
    if !is_open_mpi_available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (collective, names) in [
        (Collective::AllReduce, ["recursive_doubling", "ring", "rabenseifner"]),
        (Collective::AllGather, ["recursive_doubling", "ring", "bruck"]),
        (Collective::Broadcast, ["binomial", "basic_linear", "pipeline"]),
    ] {
        let routine = Routine::from_collective(collective).unwrap();
        // The rules select another algorithm from 8 KiB on; the boundary applies to the total size of the call.
        for (before, after) in [(names[0], names[1]), (names[1], names[2])] {
            let rule = |name: &str, min: u64, max: u64| Rule {
                min_bytes: Bytes(min),
                max_bytes: Bytes(max),
                algorithm: routine.number(name).unwrap(),
                fanout: 0,
                segment: 0,
            };
            let rules = vec![rule(before, 0, 8191), rule(after, 8192, u64::MAX)];
            let communicator =
                Communicator { min_ranks: 4, max_ranks: u32::MAX, distribution: Distribution::Any, rules };
            let rules = Rules { comments: Vec::new(), routines: vec![(routine, vec![communicator])] };
            fs::write(folder.path().join("rules"), write_classic(&rules)).unwrap();
            assert_eq!(check_algorithms(folder.path(), "rules", &rules, 4, &[4096, 8192]), 2);
        }
    }
}
