//! `gpu probe`: lists GPUs, links and libraries of this machine, and writes its fabric.

use fabricast_topologies::write;
use fabricast_validate::gpu;

use crate::args::ProbeArgs;
use crate::failure::Failure;
use crate::output::{Format, Output};

pub fn run(args: &ProbeArgs, output: &Output) -> Result<(), Failure> {
    if let Some(path) = &args.fabric {
        output.check_beside(path)?;
    }
    let found = gpu::probe(&args.libraries.choices())?;
    let fabric = args.fabric.as_ref().map(|_| write::spec::write(&found.fabric()?)).transpose()?;
    let text = match output.format {
        Format::Json => crate::output::json(&found)?,
        Format::Text | Format::Csv => found.to_string(),
    };
    let beside = args.fabric.as_deref().zip(fabric.as_deref().map(str::as_bytes));
    output.write_with(&text, beside)
}
