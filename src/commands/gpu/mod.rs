//! `gpu`: the GPUs of this machine.

mod bench;
mod doctor;
mod probe;
mod run;

use crate::args::GpuCommand;
use crate::failure::Failure;
use crate::output::Output;

pub fn run(command: &GpuCommand, output: &Output) -> Result<(), Failure> {
    match command {
        GpuCommand::Probe(args) => probe::run(args, output),
        GpuCommand::Bench(args) => bench::run(args, output),
        GpuCommand::Doctor(args) => doctor::run(args, output),
        GpuCommand::Run(args) => run::run(args, output),
        GpuCommand::NvshmemRank => fabricast_validate::execute::nvshmem::serve().map_err(Failure::input),
    }
}
