//! `gpu probe`: lists GPUs, links and libraries of this machine, and writes its fabric.

use fabricast_topologies::write;
use fabricast_validate::gpu;

use crate::args::ProbeArgs;
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{AdditionalFile, Output};
use crate::output_format::Format;

pub fn run(args: &ProbeArgs, output: &Output) -> Result<(), Failure> {
    if let Some(path) = &args.fabric {
        output.check_additional_file(path)?;
    }
    let probe = gpu::probe(&args.libraries.choices())?;
    let fabric = args.fabric.as_ref().map(|_| write::spec::write(&probe.fabric()?)).transpose()?;
    let text = match output.format {
        Format::Json => crate::output::json(&Document::Probe.with(&probe))?,
        Format::Text | Format::Csv => probe.to_string(),
    };
    let files = args.fabric.as_deref().zip(fabric.as_deref());
    let additional_file = files.map(|(path, text)| AdditionalFile { path, content: text.as_bytes() });
    output.write_with(&text, additional_file)
}
