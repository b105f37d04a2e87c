//! Subcommands, one file each. A subcommand reads its inputs, calls the library crates and formats the output.

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
mod job_trace;
mod library_default;
mod links;
pub mod list;
mod load;
pub mod man;
mod measured;
mod memory;
mod operations;
pub mod plan;
mod plan_advice;
mod plan_candidates;
mod plan_chart;
pub mod plan_diff;
mod plan_job;
mod plan_json;
pub mod report;
pub mod schedule;
pub mod schedule_file;
pub mod schema;
#[cfg(feature = "serve")]
pub mod serve;
pub mod simulate;
mod simulation_progress;
mod simulation_result;
mod strategy;
pub mod study;
mod summary;
mod sweep;
pub mod table;
mod trace;
mod verified;

use fabricast_libraries::Library;
use fabricast_libraries::rccl::RcclHosts;
use fabricast_reports::format::grouped;
use fabricast_reports::table::Table;
use fabricast_sim::profile::Profile;
use fabricast_topologies::{Fabric, NodeId};

use crate::args::{CallArgs, Command, PlanCommand};
use crate::failure::Failure;
use crate::output::Output;

/// Runs a command.
pub fn run(command: &Command, output: &Output) -> Result<(), Failure> {
    match command {
        Command::Fabric(command) => fabric::run(command, output),
        Command::Simulate(args) => simulate::run(args, output),
        Command::Schedule(command) => schedule::run(command, output),
        Command::Plan(PlanCommand::Make(args)) => plan::run(args, output),
        Command::Plan(PlanCommand::Diff(args)) => plan_diff::run(args, output),
        Command::Table(args) => table::run(args, output),
        Command::Compare(args) => compare::run(args, output),
        Command::Calibrate(args) => calibrate::run(args, output),
        Command::Study(args) => study::run(args, output),
        Command::Report(args) => report::run(args, output),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(args, output),
        Command::Gpu(command) => gpu::run(command, output),
        Command::List(command) => list::run(command, output),
        Command::Schema(args) => schema::run(args, output),
        Command::Completions(args) => completions::run(args, output),
        Command::Man => man::run(output),
    }
}

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

/// Name of a profile, with a note if the GPUs need RCCL and its choices on these hosts cannot be predicted. Profiles of
/// MPI libraries are valid on any GPU.
fn profile_and_library(profile: &Profile, fabric: &Fabric) -> String {
    let gpus = fabric.gpus();
    let is_predicted = profile.messages.is_some() || has_predicted_library(fabric, gpus);
    let note = if is_predicted { "" } else { " · RCCL's choices are not predicted on these hosts" };
    format!("{}{note}", profile.name)
}

/// Returns true if the choices of the GPU vendor's library can be predicted: always for NCCL, and for RCCL on hosts for
/// which it has tables.
fn has_predicted_library(fabric: &Fabric, placement: &[NodeId]) -> bool {
    Library::NEWEST_NCCL.runs_on(fabric, placement) || RcclHosts::from_fabric(fabric, placement).is_ok()
}

/// Checks that the root is a rank.
fn check_root(call: &CallArgs, ranks: &[NodeId]) -> Result<(), Failure> {
    if (call.root as usize) < ranks.len() {
        return Ok(());
    }
    Err(Failure::input(format!("--root {}: expected a rank from 0 to {}", call.root, ranks.len() - 1)))
}
