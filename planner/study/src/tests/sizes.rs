//! Tests of candidates with several numbers of nodes: the fewest that meet the constraints, and prices by node.

use super::*;

const SIZES: &str = "[[candidate]]\nname = \"m\"\nfabric = \"hgx-h100\"\nnodes = [4, 1, 2]\nnode_price_usd = 3e5\n\
    node_power_kw = 10\nnodes_per_rack = 3\n";

fn sized(lines: &str) -> Answer {
    CompletedStudy::new(&format!("{SIZES}{JOB}{lines}")).answer()
}

/// Tokens per second by number of nodes.
fn rates(answer: &Answer) -> Vec<(u64, f64)> {
    let rate = |name: &str| answer.results.iter().find(|row| row.candidate == name).unwrap().tokens_per_s.unwrap();
    answer.sizings[0].sizes.iter().map(|size| (size.nodes, rate(&size.candidate))).collect()
}

#[test]
fn each_number_of_nodes_is_a_candidate() {
    let answer = sized("");
    let names: Vec<&str> = answer.candidates.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["m, 4 nodes", "m, 1 node", "m, 2 nodes"]);
    let row = &answer.candidates[0];
    assert_eq!((row.nodes, row.gpus, row.machine.as_deref()), (4, 32, Some("m")));
    assert_eq!((row.power_kw, row.racks), (Some(40.0), Some(2.0)));
    assert_eq!(row.price.as_ref().map(|price| price.low), Some(1.2e6));
    let sizing = &answer.sizings[0];
    assert_eq!(sizing.sizes.iter().map(|size| size.nodes).collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!((sizing.nodes, sizing.gpus, sizing.candidate.as_deref()), (Some(1), Some(8), Some("m, 1 node")));
}

/// The fewest nodes that reach a throughput are those that a search through the results finds.
#[test]
fn fewest_nodes_meet_the_goal() {
    let rates = rates(&sized(""));
    for (number, &(nodes, rate)) in rates.iter().enumerate() {
        let answer = sized(&format!("[constraints]\nmin_tokens_per_s = {}\n", rate * 0.999));
        let expected = rates.iter().find(|(_, other)| *other >= rate * 0.999).map(|(nodes, _)| *nodes);
        assert_eq!(answer.sizings[0].nodes, expected, "{nodes} of {rates:?}");
        let sizes = &answer.sizings[0].sizes;
        assert!(
            sizes[number].meets_constraints
                && sizes.iter().all(|size| size.meets_constraints == size.violations.is_empty())
        );
    }
    let fastest = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let answer = sized(&format!("[constraints]\nmin_tokens_per_s = {}\n", fastest * 2.0));
    assert_eq!((answer.sizings[0].nodes, answer.sizings[0].candidate.as_deref()), (None, None));
}

#[test]
fn jobs_name_a_machine_of_several_sizes() {
    let job = JOB.replacen("[[job]]\n", "[[job]]\ncandidates = [\"m\"]\n", 1);
    let answer = CompletedStudy::new(&format!("{SIZES}{job}")).answer();
    assert_eq!(answer.jobs[0].candidates, ["m, 4 nodes", "m, 1 node", "m, 2 nodes"]);
}

#[test]
fn figures_of_whole_machines_are_refused_for_several_sizes() {
    let candidate = "[[candidate]]\nname = \"m\"\nfabric = \"hgx-h100\"\n";
    for (lines, expected) in [
        ("nodes = [1, 2]\nprice_usd = 3", "s:5:13: price_usd: of a whole machine, and `nodes` lists several numbers"),
        ("nodes = [1, 2]\nprice_per_hour_usd = 3", "s:5:22: price_per_hour_usd: of a whole machine"),
        ("nodes = [1, 2]\npower_kw = 3", "s:5:12: power_kw: of a whole machine"),
        ("nodes = [1, 2]\nracks = 3", "s:5:9: racks: of a whole machine"),
        ("nodes = [2, 2]", "s:4:9: nodes: 2 is given twice"),
        ("nodes = []", "s:4:9: nodes: the list is empty"),
        ("nodes = [1, 0]", "s:4:9: nodes: a candidate has 1 host or more, not 0"),
        ("node_power_kw = 3", "s:4:17: node_power_kw: expected `nodes`"),
        ("nodes = 2\npower_kw = 3\nnode_power_kw = 3", "s:6:17: node_power_kw: given next to power_kw"),
        ("nodes = 2\nprice_usd = 3\nnode_price_usd = 3", "several prices"),
    ] {
        let error = read_study(&format!("{candidate}{lines}\n{JOB}"), "s").unwrap_err().to_string();
        assert!(error.contains(expected), "{lines}: {error}");
    }
}
