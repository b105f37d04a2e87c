//! Subcommands, one file each: read the inputs, call the library crates, format the output.

mod bottleneck;
mod breakdown;
pub mod calibrate;
mod call_request;
pub mod compare;
pub mod completions;
mod critical;
mod experts;
pub mod fabric;
mod flows;
pub mod gpu;
mod groups;
mod job;
mod job_file;
mod library_default;
mod links;
pub mod list;
mod load;
pub mod man;
mod measured;
mod memory;
mod operations;
pub mod plan;
pub mod plan_diff;
mod plan_job;
mod plan_json;
pub mod report;
pub mod schedule;
mod schedule_file;
pub mod schema;
pub mod simulate;
mod simulation_progress;
mod strategy;
pub mod study;
mod summary;
pub mod table;
mod trace;
mod verified;

use fabricast_libraries::Library;
use fabricast_reports::format::grouped;
use fabricast_reports::table::Table;
use fabricast_sim::profile::Profile;
use fabricast_topologies::{Fabric, NodeId};

use crate::args::CallArgs;
use crate::failure::Failure;

/// Formats a table as CSV.
fn csv(table: &Table) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    table.csv(&mut bytes).map_err(|error| Failure::Failed(format!("cannot write CSV: {error}")))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Formats a count with its noun: `1 rank`, `8 ranks`, `1,024 links`.
fn format_count(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// Name of a profile. A note is added if the GPUs need RCCL, which is not modelled. Profiles of MPI libraries are valid
/// on any GPU.
fn profile_and_library(profile: &Profile, fabric: &Fabric) -> String {
    let is_modelled = profile.messages.is_some() || Library::NEWEST_NCCL.runs_on(fabric, fabric.gpus());
    let note = if is_modelled { "" } else { " · RCCL is not modelled: schedules of our own at these costs" };
    format!("{}{note}", profile.name)
}

/// Checks that the root is a rank.
fn check_root(call: &CallArgs, ranks: &[NodeId]) -> Result<(), Failure> {
    if (call.root as usize) < ranks.len() {
        return Ok(());
    }
    Err(Failure::input(format!("--root {}: expected a rank from 0 to {}", call.root, ranks.len() - 1)))
}
