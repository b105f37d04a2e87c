//! `gpu doctor`: compares the rates of GPU links with the expected ones.

use std::num::NonZeroU32;
use std::path::Path;

use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_topologies::{FabricRequest, load, read};
use fabricast_validate::gpu::bench::{self, Bench, Depth, Plan};
use fabricast_validate::gpu::doctor::{self, Diagnosis, Severity};

use crate::args::DoctorArgs;
use crate::document::Document;
use crate::failure::Failure;
use crate::output::Output;
use crate::output_format::Format;

pub fn run(args: &DoctorArgs, output: &Output) -> Result<(), Failure> {
    // A named fabric is loaded first, so that an invalid name fails before the measurement.
    let named = match args.fabric.as_str() {
        "auto" => None,
        name => Some(load(&FabricRequest { gpus: args.gpus.map(NonZeroU32::get), ..FabricRequest::new(name) })?),
    };
    // `--gpus` limits the named fabric if there is one, otherwise the number of measured GPUs.
    let gpus = args.gpus.filter(|_| named.is_none()).map(|gpus| gpus.get() as usize);
    let measured: Bench = match &args.from {
        Some(path) => read_measurement(path, gpus)?,
        None => bench::run(Plan { depth: Depth::Quick, gpus }, &args.libraries.choices())?,
    };
    let diagnosis = doctor::judge(&measured, named.as_ref())?;
    match output.format {
        Format::Json => output.write_json(&Document::Diagnosis.with(&diagnosis))?,
        Format::Csv => output.write(&crate::commands::csv(&table(&diagnosis))?)?,
        Format::Text => output.write(&diagnosis.to_string())?,
    }
    if diagnosis.is_healthy() {
        return Ok(());
    }
    let faults = diagnosis.findings.iter().filter(|finding| finding.severity == Severity::Fault).count();
    let s = if faults == 1 { "" } else { "s" };
    Err(Failure::Failed(format!("{faults} fault{s} found")))
}

/// Reads a saved measurement, of all GPUs or of the first `gpus` ones.
fn read_measurement(path: &Path, gpus: Option<usize>) -> Result<Bench, Failure> {
    let file = path.display().to_string();
    let bench = bench::read(&read::read_text_file(path, read::Limit::BENCHMARK)?, &file)?;
    let available = bench.probe.devices.len();
    match gpus {
        Some(requested) if requested > available => {
            Err(Failure::input(format!("--gpus {requested}: expected 1 to {available}, the GPUs that {file} measured")))
        }
        Some(requested) => Ok(bench.truncate_gpus(requested)),
        None => Ok(bench),
    }
}

/// Table with a row per finding.
fn table(diagnosis: &Diagnosis) -> Table {
    let keys = ["severity", "fault", "gpus", "message", "cause", "look"];
    let mut table = Table::new(keys.iter().map(|key| Column::new(key, key, Unit::Text)).collect());
    for finding in &diagnosis.findings {
        let gpus: Vec<String> = finding.gpus.iter().map(ToString::to_string).collect();
        let texts = [
            finding.severity.name().to_owned(),
            finding.fault.name().to_owned(),
            gpus.join(" "),
            finding.message.clone(),
            finding.cause.clone(),
            finding.command.clone(),
        ];
        table.row(texts.into_iter().map(|text| Value::text(text).into()).collect());
    }
    table
}
