//! `gpu`: commands on the GPUs of this machine.

mod bench;
mod doctor;
mod probe;
pub mod prove;
pub mod run;

use crate::args::GpuCommand;
use crate::failure::Failure;
use crate::output::Output;

pub fn run(command: &GpuCommand, output: &Output) -> Result<(), Failure> {
    // Measurements differ from run to run, so the output file always changes. Permission to replace an existing file is
    // checked before the measurement.
    if matches!(command, GpuCommand::Bench(_) | GpuCommand::Run(_) | GpuCommand::Prove(_)) {
        output.check_replaceable()?;
    }
    match command {
        GpuCommand::Probe(args) => probe::run(args, output),
        GpuCommand::Bench(args) => bench::run(args, output),
        GpuCommand::Doctor(args) => doctor::run(args, output),
        GpuCommand::Run(args) => run::run(args, output),
        GpuCommand::Prove(args) => prove::run(args, output),
        GpuCommand::ProveSide => fabricast_validate::ab_test::serve().map_err(Failure::input),
        GpuCommand::NvshmemRank => fabricast_validate::execute::nvshmem::serve().map_err(Failure::input),
    }
}
