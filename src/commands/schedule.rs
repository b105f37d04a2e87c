//! `schedule`: generates, verifies, converts and shows schedule files.

use std::collections::BTreeMap;
use std::path::Path;

use fabricast_reports::chart;
use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_reports::tree_load::link_loads;
use fabricast_reports::{steps, topology};
use fabricast_sim::certify::{self, Certificate};
use fabricast_sim::schedule::format::{self, Format};
use fabricast_sim::schedule::{Call, OpId, Operation, Rank, Schedule, json};
use fabricast_sim::verify::{Fault, FaultKind, VerifyOptions, verify};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Fabric, NodeId};
use schemars::JsonSchema;
use serde::Serialize;

use super::schedule_file::read;
use super::{format_count, strategy};
use crate::args::{FabricArgs, ScheduleCommand, ScheduleFormat, WhatIfArgs};
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{AdditionalFile, Output};
use crate::run_control;
use crate::setup;

pub fn run(command: &ScheduleCommand, output: &Output) -> Result<(), Failure> {
    match command {
        ScheduleCommand::Generate { fabric, call, strategy, library, costs, what_if, to } => {
            let loaded = setup::fabric(&fabric.fabric, &fabric.size, what_if, output)?;
            let profile = setup::library_profile(library, costs, &loaded)?;
            let router = Router::new(&loaded, setup::call_options(fabric, &loaded)?);
            let placement = setup::ranks(&loaded, fabric.ranks_per_gpu)?;
            let mode = setup::launch_mode(costs, &loaded, &placement);
            let setting = strategy::RunSetting {
                fabric: &loaded,
                router: &router,
                placement: &placement,
                profile: &profile,
                mode,
            };
            let schedule = run_control::with_monitor(output, "building schedule", |_| {
                setup::check_trees(strategy)?;
                let single = strategy::single(call, strategy, library, setting, strategy::SchedulePurpose::Named)?;
                Schedule::build(single.generator.as_ref()).map_err(|error| Failure::input(error.to_string()))
            })?;
            write(&schedule, *to, output)
        }
        ScheduleCommand::Verify { file, fifo_depth } => {
            prove(&read(file)?, *fifo_depth, output).map_err(|failure| failure.with_file(file))
        }
        ScheduleCommand::Certify { file, fabric, what_if, picture, root } => {
            let picture = picture.as_deref().map(|path| TreePicture::new(path, *root, output)).transpose()?;
            certify(&read(file)?, fabric, what_if, picture, output).map_err(|failure| failure.with_file(file))
        }
        ScheduleCommand::Convert { file, to } => {
            write(&read(file)?, *to, output).map_err(|failure| failure.with_file(file))
        }
        ScheduleCommand::Show { file, limit, picture } => {
            let format = picture.as_deref().map(|path| picture_format(path, output)).transpose()?;
            show(&read(file)?, *limit, picture.as_deref(), format, output).map_err(|failure| failure.with_file(file))
        }
    }
}

/// Writes a schedule in a format, and warns if the format lacks its protocol.
///
/// # Errors
/// [`Failure`]: the format cannot express the schedule, or the destination cannot be written.
pub fn write(schedule: &Schedule, to: ScheduleFormat, output: &Output) -> Result<(), Failure> {
    let to = match to {
        ScheduleFormat::Json => Format::Json,
        ScheduleFormat::MscclXml => Format::MscclXml,
        ScheduleFormat::Mscclpp => Format::Mscclpp,
    };
    let text = format::write(schedule, to).map_err(|error| Failure::input(format!("cannot be written: {error}")))?;
    let protocol = schedule.header().protocol;
    if to.protocol(protocol) != protocol {
        output.warn(&format!("{} has no protocol {protocol}: written as {}", to.name(), to.protocol(protocol)));
    }
    output.write(&text)
}

/// JSON of `schedule verify`.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub enum VerificationJson<'a> {
    /// The schedule computes its collective.
    Proof(ProofJson),
    /// The schedule is wrong.
    Refutation(Refutation<'a>),
}

/// JSON of a correct schedule.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Proof")]
pub struct ProofJson {
    /// True: the schedule computes its collective.
    #[schemars(extend("const" = true))]
    ok: bool,
    /// Number of verified operations.
    operations: u64,
}

/// JSON of the first fault. The fault is an object and, for readers that expect a flat document, its fields are also
/// next to `ok`.
#[derive(Serialize, JsonSchema)]
pub struct Refutation<'a> {
    /// False: the schedule is wrong.
    #[schemars(extend("const" = false))]
    ok: bool,
    /// Number of operations of the schedule.
    operations: u64,
    #[serde(flatten)]
    fields: &'a Fault,
    /// The first fault.
    fault: &'a Fault,
}

/// Verifies a schedule and writes the proof or the first fault.
///
/// # Errors
/// [`Failure`]: the schedule has a fault or is too large to verify, or the destination cannot be written.
pub fn prove(schedule: &Schedule, fifo_depth: Option<u32>, output: &Output) -> Result<(), Failure> {
    match verify(schedule, &VerifyOptions { fifo_depth }) {
        Ok(verified) => match output.format {
            crate::output_format::Format::Json => {
                let proof = ProofJson { ok: true, operations: verified.operations };
                output.write_json(&Document::Verification.with(&VerificationJson::Proof(proof)))
            }
            crate::output_format::Format::Text | crate::output_format::Format::Csv => {
                let name = &schedule.header().name;
                let call = schedule.header().call;
                let (ranks, operations) =
                    (format_count(call.ranks.into(), "rank"), format_count(verified.operations, "operation"));
                output.write(&format!("ok: {name} computes {} of {ranks} in {operations}", call.collective))
            }
        },
        Err(fault) => {
            if output.format == crate::output_format::Format::Json && fault.kind != FaultKind::TooLarge {
                let operations = schedule.operation_count().into();
                let refutation = Refutation { ok: false, operations, fields: &fault, fault: &fault };
                output.write_json(&Document::Verification.with(&VerificationJson::Refutation(refutation)))?;
            }
            Err(super::verified::failure(&fault))
        }
    }
}

/// JSON of `schedule certify`.
#[derive(Serialize, JsonSchema)]
pub struct CertificateJson {
    /// True: the claims of the certificate hold.
    #[schemars(extend("const" = true))]
    ok: bool,
    /// Number of verified operations.
    operations: u64,
    /// Lower bound on the time of any schedule, without latencies, in microseconds.
    bound_us: f64,
    /// Time that the busiest link needs for the schedule, in microseconds.
    packed_us: f64,
    /// `packed_us` divided by `bound_us`, less 1; null if the bound is 0.
    gap: Option<f64>,
    /// Number of trees.
    trees: usize,
    /// Sets of devices whose boundaries limit any schedule; empty if prices prove the bound.
    cut: Vec<Vec<String>>,
    /// Price per byte of links, by name; others are free. No schedule is faster than the price of the cheapest paths of
    /// all blocks divided by the price of all bandwidth.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    prices: BTreeMap<String, u64>,
}

/// Picture of the loads of links by trees.
#[derive(Clone, Copy)]
struct TreePicture<'a> {
    path: &'a Path,
    /// Root of the trees; those of all roots if `None`.
    root: Option<Rank>,
}

impl<'a> TreePicture<'a> {
    /// Checks the file before any work.
    fn new(path: &'a Path, root: Option<u32>, output: &Output) -> Result<Self, Failure> {
        if picture_format(path, output)? != chart::Format::Svg {
            return Err(Failure::input("a picture of a fabric is written as .svg only"));
        }
        Ok(Self { path, root: root.map(Rank) })
    }

    /// Draws the fabric of a certified call.
    fn draw(
        self,
        call: Call,
        certificate: &Certificate,
        fabric: &Fabric,
        router: &Router<'_>,
        placement: &[NodeId],
    ) -> Result<String, Failure> {
        if let Some(root) = self.root.filter(|root| root.0 >= call.ranks) {
            return Err(Failure::input(format!("no rank {}: the schedule has {} ranks", root.0, call.ranks)));
        }
        let loads = link_loads(certificate, call.collective, fabric, router, placement, self.root);
        Ok(topology::svg(fabric, &topology::Options { utilization: Some(&loads), hosts: None }))
    }
}

fn certify(
    schedule: &Schedule,
    args: &FabricArgs,
    what_if: &WhatIfArgs,
    picture: Option<TreePicture<'_>>,
    output: &Output,
) -> Result<(), Failure> {
    let fabric = setup::fabric(&args.fabric, &args.size, what_if, output)?;
    let router = Router::new(&fabric, setup::call_options(args, &fabric)?);
    let placement = setup::ranks(&fabric, args.ranks_per_gpu)?;
    let verified = verify(schedule, &VerifyOptions::default()).map_err(|fault| super::verified::failure(&fault))?;
    let checked = certify::check(schedule, &fabric, &router, &placement);
    let certificate = checked.map_err(|error| Failure::Failed(error.to_string()))?;
    let call = schedule.header().call;
    let drawn = picture.map(|picture| picture.draw(call, certificate, &fabric, &router, &placement)).transpose()?;
    let drawn = picture.zip(drawn.as_ref());
    let drawn = drawn.map(|(picture, svg)| AdditionalFile { path: picture.path, content: svg.as_bytes() });
    let micros = |picos: u64| picos as f64 / 1e6;
    let gap = (certificate.bound_ps > 0).then(|| certificate.packed_ps as f64 / certificate.bound_ps as f64 - 1.0);
    let summary = CertificateJson {
        ok: true,
        operations: verified.operations,
        bound_us: micros(certificate.bound_ps),
        packed_us: micros(certificate.packed_ps),
        gap,
        trees: certificate.trees.len(),
        cut: certificate.cut.clone(),
        prices: certificate.prices.clone(),
    };
    if output.format == crate::output_format::Format::Json {
        let text = crate::output::json(&Document::Certificate.with(&summary))?;
        return output.write_with(&text, drawn);
    }
    let header = schedule.header();
    let bytes = header.call.bytes.0 as f64;
    let rate = |picos: u64| if picos == 0 { 0.0 } else { bytes * 1e3 / picos as f64 };
    let within = match summary.gap {
        Some(gap) => format!("at most {:.2} % slower than any schedule", 100.0 * gap.max(0.0)),
        None => "without a bound".to_owned(),
    };
    let sets: Vec<String> = certificate.cut.iter().map(|set| format!("{{{}}}", set.join(", "))).collect();
    let evidence = match certificate.prices.len() {
        0 => format!("boundary of {}", fabricast_topologies::visible::visible(&sets.join(" "))),
        links => format!("prices of {}", format_count(links as u64, "link")),
    };
    let text = format!(
        "ok: {} of {} is {within}\n\
         bound     {:.3} us  {:.1} GB/s  ({evidence})\n\
         schedule  {:.3} us  {:.1} GB/s  ({})",
        header.name,
        header.call.collective,
        summary.bound_us,
        rate(certificate.bound_ps),
        summary.packed_us,
        rate(certificate.packed_ps),
        format_count(summary.trees as u64, "tree"),
    );
    output.write_with(&text, drawn)
}

/// Returns the image format of a picture file. Checks it and the file before any work.
fn picture_format(path: &Path, output: &Output) -> Result<chart::Format, Failure> {
    output.check_additional_file(path)?;
    chart::Format::from_path(path).map_err(|error| Failure::input(error.to_string()))
}

fn show(
    schedule: &Schedule,
    limit: usize,
    picture: Option<&Path>,
    format: Option<chart::Format>,
    output: &Output,
) -> Result<(), Failure> {
    let picture = picture
        .zip(format)
        .map(|(path, format)| steps::render(schedule, format).map(|bytes| (path, bytes)))
        .transpose()
        .map_err(|error| Failure::input(error.to_string()))?;
    let text = match output.format {
        crate::output_format::Format::Text => table(schedule, limit)?.text(&output.text_options()),
        crate::output_format::Format::Csv => super::csv(&table(schedule, limit)?)?,
        crate::output_format::Format::Json => json::to_json(schedule),
    };
    output.write_with(&text, picture.as_ref().map(|(path, content)| AdditionalFile { path, content }))
}

/// Table of the operations of all ranks, in order of steps.
fn table(schedule: &Schedule, limit: usize) -> Result<Table, Failure> {
    let steps = schedule.steps().map_err(|op| {
        let message = format!("operation {} waits for itself, so it has no step", op.0);
        Failure::input_with_help(message, "`fabricast schedule verify` reports the cycle")
    })?;
    let mut order: Vec<u32> = (0..schedule.operation_count()).collect();
    order.sort_by_key(|&op| steps.get(op as usize).copied());
    let mut table = Table::new(vec![
        Column::new("step", "step", Unit::Number),
        Column::new("operation", "operation", Unit::Number),
        Column::new("rank", "rank", Unit::Number),
        Column::new("channel", "channel", Unit::Number),
        Column::new("kind", "what", Unit::Text),
        Column::new("peer", "peer", Unit::Number),
        Column::new("src", "from", Unit::Text),
        Column::new("dst", "to", Unit::Text),
        Column::new("waits_for", "waits for", Unit::Text),
    ]);
    let header = schedule.header();
    let call = header.call;
    table.heading(format!(
        "{} · {} · {} · {} · {} · {}",
        header.name,
        call.collective,
        format_count(call.ranks.into(), "rank"),
        fabricast_reports::format::bytes(call.bytes),
        header.protocol,
        format_count(header.layout.chunks().into(), "chunk")
    ));
    for op in order.into_iter().take(limit).map(|op| schedule.operation(OpId(op))) {
        let waits: Vec<String> =
            schedule.awaited_operations(op.run, op.index).map(|dependency| dependency.0.to_string()).collect();
        let (from, to) =
            if op.kind.moves_data() { (chunk(&op, op.src), chunk(&op, op.dst)) } else { Default::default() };
        table.row(vec![
            Value::or_missing(steps.get(op.id.0 as usize), |&step| Value::Count(step.into())).into(),
            Value::Count(op.id.0.into()).into(),
            Value::Count(op.rank.0.into()).into(),
            Value::Count(op.channel.0.into()).into(),
            Value::text(op.kind.name()).into(),
            Value::or_missing((op.peer != op.rank).then_some(op.peer.0), |p| Value::Count(p.into())).into(),
            Value::text(from).into(),
            Value::text(to).into(),
            Value::text(waits.join(" ")).into(),
        ]);
    }
    let remaining = (schedule.operation_count() as usize).saturating_sub(limit);
    if remaining > 0 {
        table.note(format!("{} not shown; --limit shows more", format_count(remaining as u64, "operation")));
    }
    Ok(table)
}

fn chunk(op: &Operation, chunk_ref: fabricast_sim::schedule::ChunkRef) -> String {
    let last = chunk_ref.index.saturating_add(op.span.saturating_sub(1));
    if last == chunk_ref.index {
        format!("{} {last}", chunk_ref.buffer)
    } else {
        format!("{} {}–{last}", chunk_ref.buffer, chunk_ref.index)
    }
}
