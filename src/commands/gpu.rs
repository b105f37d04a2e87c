//! `gpu`: the GPUs of this machine.

use fabricast_validate::gpu;

use crate::args::GpuCommand;
use crate::failure::Failure;
use crate::output::{Format, Output};

pub fn run(command: &GpuCommand, output: &Output) -> Result<(), Failure> {
    match command {
        GpuCommand::Probe => probe(output),
    }
}

fn probe(output: &Output) -> Result<(), Failure> {
    let found = gpu::probe()?;
    match output.format {
        Format::Json => output.write_json(&found),
        Format::Text | Format::Csv => output.write(&found.to_string()),
    }
}
