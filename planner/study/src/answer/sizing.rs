//! Number of nodes that a goal needs: the smallest of a machine's sizes that meets all constraints.
//!
//! A candidate of a study may list several numbers of nodes. Each is a candidate of its own, runs all jobs and is ranked
//! with the others. All sizes are tried, because neither throughput nor memory need grow with the number of nodes: a
//! layout that divides 8 nodes may not divide 12.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CandidateRow, RankedRow};

/// Smallest size of a machine that meets all constraints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SizingRow {
    /// Name of the machine in the study, without a number of nodes.
    pub machine: String,
    /// Candidate with the fewest nodes that runs all its jobs within all constraints; absent if no size does.
    pub candidate: Option<String>,
    /// Number of nodes of that candidate.
    pub nodes: Option<u64>,
    /// Number of GPUs of that candidate.
    pub gpus: Option<u64>,
    /// All sizes, the smallest first.
    pub sizes: Vec<SizeRow>,
}

/// A size of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SizeRow {
    /// Name of the candidate with this size.
    pub candidate: String,
    /// Number of nodes.
    pub nodes: u64,
    /// Number of GPUs.
    pub gpus: u64,
    /// True if all jobs fit and all constraints are met.
    pub meets_constraints: bool,
    /// Violated constraints and jobs that do not fit.
    pub violations: Vec<String>,
}

/// Returns the sizing of each machine with several sizes, in the order of the study.
pub(super) fn sizings(candidates: &[CandidateRow], ranking: &[RankedRow]) -> Vec<SizingRow> {
    let mut machines: Vec<&str> = Vec::new();
    for machine in candidates.iter().filter_map(|candidate| candidate.machine.as_deref()) {
        if !machines.contains(&machine) {
            machines.push(machine);
        }
    }
    let size = |candidate: &CandidateRow| {
        let ranked = ranking.iter().find(|ranked| ranked.candidate == candidate.name)?;
        Some(SizeRow {
            candidate: candidate.name.clone(),
            nodes: candidate.nodes,
            gpus: candidate.gpus,
            meets_constraints: ranked.meets_constraints,
            violations: ranked.violations.clone(),
        })
    };
    let sizing = |machine: &str| {
        let of_machine = candidates.iter().filter(|candidate| candidate.machine.as_deref() == Some(machine));
        let mut sizes: Vec<SizeRow> = of_machine.filter_map(size).collect();
        sizes.sort_by_key(|size| size.nodes);
        let fewest = sizes.iter().find(|size| size.meets_constraints);
        SizingRow {
            machine: machine.to_owned(),
            candidate: fewest.map(|size| size.candidate.clone()),
            nodes: fewest.map(|size| size.nodes),
            gpus: fewest.map(|size| size.gpus),
            sizes,
        }
    };
    machines.into_iter().map(sizing).collect()
}
