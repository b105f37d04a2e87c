//! `gpu doctor`: whether the GPUs' links are as fast as they should be.

use fabricast_topologies::{FabricRequest, load, read};
use fabricast_validate::gpu::bench::{self, Bench, Depth, Plan};
use fabricast_validate::gpu::doctor::{self, Severity};

use crate::args::DoctorArgs;
use crate::failure::Failure;
use crate::output::{Format, Output};

pub fn run(args: &DoctorArgs, output: &Output) -> Result<(), Failure> {
    // The file before the GPUs: whoever names it wrongly should not wait for a measurement.
    let named = match args.fabric.as_str() {
        "auto" => None,
        name => Some(load(&FabricRequest { gpus: args.gpus, ..FabricRequest::of(name) })?),
    };
    let measured: Bench = match &args.from {
        Some(path) => bench::read(&read::text_of_file(path)?, &path.display().to_string())?,
        None => bench::run(Plan { depth: Depth::Quick, gpus: None }, &args.libraries.choices())?,
    };
    let diagnosis = doctor::judge(&measured, named.as_ref())?;
    match output.format {
        Format::Json => output.write_json(&diagnosis)?,
        Format::Text | Format::Csv => output.write(&diagnosis.to_string())?,
    }
    if diagnosis.is_sound() {
        return Ok(());
    }
    let faults = diagnosis.findings.iter().filter(|finding| finding.severity == Severity::Fault).count();
    let s = if faults == 1 { "" } else { "s" };
    Err(Failure::Failed(format!("{faults} fault{s} found")))
}
