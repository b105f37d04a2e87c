//! `fabric`: list presets; show, check and convert fabrics.

use std::cmp::Reverse;

use fabricast_reports::format::grouped;
use fabricast_reports::table::{Cell, Column, Emphasis, Table, TextOptions, Unit, Value};
use fabricast_reports::topology;
use fabricast_topologies::check::{self, Severity};
use fabricast_topologies::route::{PathClass, Router, Routing, Summary};
use fabricast_topologies::{Bandwidth, Fabric, NodeId, NodeKind, Picos, preset, write};
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Serialize;

use super::format_count;
use crate::args::{ExportFormat, FabricCommand, FabricTarget};
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{Output, Verbosity};
use crate::output_format::Format;
use crate::setup;

/// Maximum number of GPUs for which all paths are listed, because the number of paths is quadratic.
const MAX_GPUS_FOR_PATHS: usize = 512;
/// Maximum number of GPUs for which the matrix of all pairs is drawn.
const MAX_GPUS_FOR_MATRIX: usize = 16;

pub fn run(command: &FabricCommand, output: &Output) -> Result<(), Failure> {
    match command {
        FabricCommand::List => list(output),
        FabricCommand::Show(target) => show(target, output),
        FabricCommand::Check(target) => check(target, output),
        FabricCommand::Export { target, to } => export(target, *to, output),
    }
}

fn load(target: &FabricTarget, output: &Output) -> Result<Fabric, Failure> {
    let fabric = setup::fabric(&target.fabric, &target.size, &target.what_if, output)?;
    let routing = fabric.routing().restricted_by(setup::route_options(&target.size).routing());
    Ok(if routing == fabric.routing() { fabric } else { fabric.with_routing(routing) })
}

/// JSON of a preset in `fabric list`.
#[derive(Serialize, JsonSchema)]
pub struct PresetJson {
    /// Name of the preset.
    name: &'static str,
    /// Number of hosts with GPUs.
    nodes: u64,
    /// Number of GPUs.
    gpus: usize,
    /// GPU model.
    model: Option<String>,
    /// Bandwidth of the fastest link of a GPU in each direction, in GB/s.
    gpu_link_gb_per_s: Option<f64>,
    /// Number of NICs.
    nics: usize,
}

impl PresetJson {
    fn new(name: &'static str) -> Result<Self, Failure> {
        let fabric = preset::load(name)?;
        let first = fabric.gpus().first().copied();
        Ok(Self {
            name,
            nodes: hosts_with_gpus(&fabric),
            gpus: fabric.gpus().len(),
            model: first.and_then(|gpu| model(&fabric, gpu)),
            gpu_link_gb_per_s: first.and_then(|gpu| widest(&fabric, gpu)),
            nics: fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Nic).count(),
        })
    }
}

pub fn list(output: &Output) -> Result<(), Failure> {
    let presets: Vec<PresetJson> = preset::names().map(PresetJson::new).collect::<Result<_, _>>()?;
    let mut table = Table::new(vec![
        Column::new("name", "preset", Unit::Text),
        Column::new("nodes", "nodes", Unit::Number),
        Column::new("gpus", "GPUs", Unit::Number),
        Column::new("model", "model", Unit::Text),
        Column::new("gpu_link_gb_per_s", "widest link", Unit::GbPerS),
        Column::new("nics", "NICs", Unit::Number),
    ]);
    for preset in &presets {
        table.row(vec![
            Value::text(preset.name).into(),
            Value::Count(preset.nodes).into(),
            Value::Count(preset.gpus as u64).into(),
            Value::or_missing(preset.model.clone(), Value::Text).into(),
            Value::or_missing(preset.gpu_link_gb_per_s, Value::Rate).into(),
            Value::Count(preset.nics as u64).into(),
        ]);
    }
    match output.format {
        Format::Json => output.write_json(&Document::Presets.with_rows(&presets)),
        Format::Csv => output.write(&super::csv(&table)?),
        Format::Text => output.write(&table.text(&output.text_options())),
    }
}

fn hosts_with_gpus(fabric: &Fabric) -> u64 {
    let mut hosts: Vec<_> = fabric.gpus().iter().map(|&gpu| fabric.node(gpu).host).collect();
    hosts.dedup();
    hosts.len() as u64
}

fn model(fabric: &Fabric, gpu: NodeId) -> Option<String> {
    match &fabric.node(gpu).figures {
        fabricast_topologies::fabric::Figures::Gpu(figures) => figures.model.clone(),
        _ => None,
    }
}

/// Bandwidth of the fastest link that leaves a node, in GB/s.
fn widest(fabric: &Fabric, node: NodeId) -> Option<f64> {
    let links = fabric.outgoing_links(node).into_iter().filter_map(|link| fabric.link(link).bandwidth);
    links.max().map(Bandwidth::gb_per_s)
}

fn show(target: &FabricTarget, output: &Output) -> Result<(), Failure> {
    let fabric = load(target, output)?;
    match output.format {
        Format::Json => output.write(&json(&fabric, target, output)?),
        Format::Csv => output.write(&super::csv(&links(&fabric))?),
        Format::Text => {
            let mut text = overview(&fabric);
            text.push_str(&paths(&fabric, target, output));
            text.push_str("\nlinks\n");
            text.push_str(&link_kinds(&fabric).text(&output.text_options()));
            if output.verbosity == Verbosity::Verbose {
                text.push_str("\nsources\n");
                text.extend(fabric.sources().iter().map(|source| format!("  {source}\n")));
            }
            output.write(&text)
        }
    }
}

fn json(fabric: &Fabric, target: &FabricTarget, output: &Output) -> Result<String, Failure> {
    let router = Router::new(fabric, setup::route_options(&target.size));
    let gpus = fabric.gpus();
    let mut paths = Vec::new();
    if gpus.len() <= MAX_GPUS_FOR_PATHS {
        for &from in gpus {
            let table = router.paths_from(from);
            for (rank, &to) in gpus.iter().enumerate() {
                if let (true, Some((_, summary))) = (from != to, table.get(rank)) {
                    let Summary { class, bandwidth, latency, .. } = summary;
                    let class = class.name();
                    paths.push(write::json::PathEntry { src: from, dst: to, class, bandwidth, latency });
                }
            }
        }
    } else {
        output.warn(&format!("the paths between {} GPUs are not shown: over {MAX_GPUS_FOR_PATHS}", gpus.len()));
    }
    write::json::write(fabric, &paths).map_err(|error| Failure::Failed(format!("cannot write JSON: {error}")))
}

fn overview(fabric: &Fabric) -> String {
    let hosts = format_count(hosts_with_gpus(fabric), "host");
    let gpus = match fabric.gpus() {
        [] => "no GPUs".to_owned(),
        gpus => format!("{} on {hosts}", models(fabric, gpus)),
    };
    let links = format_count((fabric.link_count() / 2) as u64, "link");
    format!("{}: {gpus}\n{} · {links}\n", fabric.name(), topology::counts(fabric))
}

/// GPUs by model, in order of first use: `8 × H200 SXM`, or `3 GPUs` if the model is unknown.
fn models(fabric: &Fabric, gpus: &[NodeId]) -> String {
    let mut counts: Vec<(Option<String>, u64)> = Vec::new();
    for model in gpus.iter().map(|&gpu| model(fabric, gpu)) {
        match counts.iter_mut().find(|(known, _)| *known == model) {
            Some((_, count)) => *count += 1,
            None => counts.push((model, 1)),
        }
    }
    let texts = counts.into_iter().map(|(model, count)| match model {
        Some(model) => format!("{} × {model}", grouped(count)),
        None => format_count(count, "GPU"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// Describes the paths between GPUs: the matrix of all pairs (for at most [`MAX_GPUS_FOR_MATRIX`] GPUs), and the counts
/// by kind of path.
fn paths(fabric: &Fabric, target: &FabricTarget, output: &Output) -> String {
    let gpus = fabric.gpus();
    if gpus.len() < 2 {
        return String::new();
    }
    let router = Router::new(fabric, setup::route_options(&target.size));
    let options = output.text_options();
    let mut text = String::new();
    if gpus.len() <= MAX_GPUS_FOR_MATRIX {
        let matrix = matrix(fabric, &router).text(&TextOptions { width: None, columns: Vec::new(), ..options.clone() });
        let width = matrix.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        if options.width.is_none_or(|limit| width <= usize::from(limit)) {
            text.push_str("\npaths between GPUs: class and GB/s\n");
            text.push_str(&matrix);
        }
    }
    let (sources, title) = match gpus {
        [first, ..] if gpus.len() > MAX_GPUS_FOR_PATHS => {
            (std::slice::from_ref(first), format!("kinds of paths from {}", fabric.node(*first).id))
        }
        _ => (gpus, "kinds of paths between GPUs".to_owned()),
    };
    text.push_str(&format!("\n{title}\n"));
    text.push_str(&path_kinds(fabric, &router, sources).text(&options));
    text
}

/// Key by which paths are grouped: class, bandwidth and latency.
type PathGroupKey = (PathClass, Option<Bandwidth>, Picos);

/// Counts paths by class, bandwidth and latency; best class first.
fn path_kinds(fabric: &Fabric, router: &Router<'_>, sources: &[NodeId]) -> Table {
    let mut kinds: FxHashMap<PathGroupKey, (u64, NodeId, NodeId)> = FxHashMap::default();
    for &from in sources {
        let paths = router.paths_from(from);
        for (rank, &to) in fabric.gpus().iter().enumerate().filter(|&(_, &to)| to != from) {
            let key = match paths.get(rank) {
                Some((_, Summary { class, bandwidth, latency, .. })) => (class, bandwidth, latency),
                None => (PathClass::Dis, None, Picos::ZERO),
            };
            kinds.entry(key).or_insert((0, from, to)).0 += 1;
        }
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_unstable_by_key(|&((class, bandwidth, latency), _)| (class, Reverse(bandwidth), latency));
    let mut table = Table::new(vec![
        Column::new("pairs", "pairs", Unit::Number),
        Column::new("class", "class", Unit::Text),
        Column::new("bandwidth_gb_per_s", "bandwidth", Unit::GbPerS),
        Column::new("latency_us", "latency", Unit::Micros),
        Column::new("example", "such as", Unit::Text),
    ]);
    for ((class, bandwidth, latency), (pairs, from, to)) in kinds {
        let is_connected = class != PathClass::Dis;
        table.row(vec![
            Value::Count(pairs).into(),
            Cell::from(Value::text(class.name())).tone(if is_connected { Emphasis::Plain } else { Emphasis::Bad }),
            Value::or_missing(bandwidth, |b| Value::Rate(b.gb_per_s())).into(),
            Value::or_missing(is_connected.then_some(latency), Value::Time).into(),
            Value::text(format!("{} to {}", fabric.node(from).id, fabric.node(to).id)).into(),
        ]);
    }
    table
}

/// Matrix of path classes and bandwidths between all GPUs, in the form of `nvidia-smi topo -m`.
fn matrix(fabric: &Fabric, router: &Router<'_>) -> Table {
    let gpus = fabric.gpus();
    let mut columns = vec![Column::new("gpu", "", Unit::Text)];
    columns.extend(gpus.iter().map(|&gpu| Column::new(&fabric.node(gpu).id, &fabric.node(gpu).id, Unit::Text)));
    let mut table = Table::new(columns);
    for &from in gpus {
        let paths = router.paths_from(from);
        let mut row = vec![Value::text(&*fabric.node(from).id).into()];
        row.extend(gpus.iter().enumerate().map(|(rank, &to)| match paths.get(rank) {
            _ if from == to => Value::text("·").into(),
            Some((_, summary)) => Value::text(class_and_rate(&summary)).into(),
            None => Cell::from(Value::text("DIS")).tone(Emphasis::Bad),
        }));
        table.row(row);
    }
    table
}

fn class_and_rate(summary: &Summary) -> String {
    match summary.bandwidth {
        Some(bandwidth) => format!("{} {:.0}", summary.class, bandwidth.gb_per_s()),
        None => summary.class.to_string(),
    }
}

/// Table of all links, one row per direction.
fn links(fabric: &Fabric) -> Table {
    let mut table = Table::new(vec![
        Column::new("link", "link", Unit::Text),
        Column::new("kind", "kind", Unit::Text),
        Column::new("bandwidth_gb_per_s", "bandwidth", Unit::GbPerS),
        Column::new("latency_us", "latency", Unit::Micros),
    ]);
    for ((_, link), name) in fabric.links().zip(fabric.link_names()) {
        table.row(vec![
            Value::text(name).into(),
            Value::text(link.kind.name()).into(),
            Value::or_missing(link.bandwidth, |b| Value::Rate(b.gb_per_s())).into(),
            Value::Time(link.latency).into(),
        ]);
    }
    table
}

/// Counts links by kind, width and end points.
fn link_kinds(fabric: &Fabric) -> Table {
    let mut table = Table::new(vec![
        Column::new("count", "count", Unit::Number),
        Column::new("ends", "between", Unit::Text),
        Column::new("kind", "kind", Unit::Text),
        Column::new("lanes", "lanes", Unit::Number),
        Column::new("bandwidth_gb_per_s", "each way", Unit::GbPerS),
        Column::new("latency_us", "latency", Unit::Micros),
    ]);
    let mut groups: Vec<(String, fabricast_topologies::Link, u64)> = Vec::new();
    for (_, [link, back]) in fabric.link_pairs() {
        let state = match (link.failed, back.failed) {
            (false, false) => "",
            (true, true) => " (out of service)",
            _ => " (one direction out of service)",
        };
        let ends = format!("{} – {}{state}", fabric.node(link.from).kind.name(), fabric.node(link.to).kind.name());
        let is_same_kind = |g: &&mut (String, fabricast_topologies::Link, u64)| {
            g.0 == ends
                && (g.1.kind, g.1.lanes, g.1.bandwidth, g.1.latency)
                    == (link.kind, link.lanes, link.bandwidth, link.latency)
        };
        match groups.iter_mut().find(is_same_kind) {
            Some(group) => group.2 += 1,
            None => groups.push((ends, link.clone(), 1)),
        }
    }
    for (ends, link, count) in groups {
        table.row(vec![
            Value::Count(count).into(),
            Value::text(ends).into(),
            Value::text(link.kind.name()).into(),
            Value::Count(link.lanes.into()).into(),
            Value::or_missing(link.bandwidth, |b| Value::Rate(b.gb_per_s())).into(),
            Value::Time(link.latency).into(),
        ]);
    }
    table
}

/// Finding of `fabric check`.
#[derive(Serialize, JsonSchema)]
pub struct FindingJson {
    /// Severity: `error`, `warning` or `note`.
    severity: String,
    /// Description of the finding.
    message: String,
}

fn check(target: &FabricTarget, output: &Output) -> Result<(), Failure> {
    let fabric = load(target, output)?;
    let findings = check::check(&fabric);
    let json: Vec<FindingJson> =
        findings.iter().map(|f| FindingJson { severity: f.severity.to_string(), message: f.message.clone() }).collect();
    match output.format {
        Format::Json => output.write_json(&Document::FabricCheck.with_rows(&json))?,
        Format::Csv => {
            let columns = ["severity", "message"].map(|key| Column::new(key, key, Unit::Text));
            let mut table = Table::new(columns.into());
            for finding in json {
                table.row(vec![Value::Text(finding.severity).into(), Value::Text(finding.message).into()]);
            }
            output.write(&super::csv(&table)?)?;
        }
        Format::Text if findings.is_empty() => output.write(&format!("{}: nothing unusual", fabric.name()))?,
        Format::Text => {
            let lines: Vec<String> = json.iter().map(|f| format!("{}: {}", f.severity, f.message)).collect();
            output.write(&output.text_options().wrap_lines(&lines.join("\n")))?;
        }
    }
    match findings.iter().filter(|finding| finding.severity == Severity::Error).count() as u64 {
        0 => Ok(()),
        errors => Err(Failure::Failed(format!("{}: {}", fabric.name(), format_count(errors, "error")))),
    }
}

/// Warns of properties that an export format cannot represent.
fn warn_unsupported(format: &str, unsupported: Vec<String>, output: &Output) {
    for property in unsupported {
        output.warn(&format!("{format} cannot express {property}"));
    }
}

fn count_with_verb(gpus: u64) -> String {
    format!("{} {}", format_count(gpus, "GPU"), if gpus == 1 { "is" } else { "are" })
}

fn export(target: &FabricTarget, to: ExportFormat, output: &Output) -> Result<(), Failure> {
    let fabric = load(target, output)?;
    let text = match to {
        ExportFormat::NcclXml => {
            let mut unsupported = write::nccl_xml::unrepresented_state(&fabric);
            unsupported.extend(
                target.what_if.slow.iter().map(|slow| format!("--slow {slow}: NCCL determines link rates itself")),
            );
            let text = write::nccl_xml::write(&fabric)?;
            let replaced = write::nccl_xml::replaced_figures(&fabric, &text)?;
            if !replaced.is_empty() {
                unsupported.push(format!("the figures of links; readers assume {}", replaced.join("; ")));
            }
            warn_unsupported("an NCCL topology file", unsupported, output);
            text
        }
        ExportFormat::Spec => write::spec::write(&fabric)?,
        ExportFormat::Dot => write::dot::write(&fabric),
        ExportFormat::Svg => {
            let idle = fabric.idle_gpus().len() as u64;
            let unsupported = [
                (idle > 0, format!("that {} not in use", count_with_verb(idle))),
                (fabric.routing() != Routing::default(), "settings of routes (--no-p2p, --no-gdr, --ecmp)".to_owned()),
            ];
            let unsupported =
                unsupported.into_iter().filter_map(|(is_present, property)| is_present.then_some(property)).collect();
            warn_unsupported("a picture", unsupported, output);
            topology::svg(&fabric, &topology::Options::default())
        }
        ExportFormat::Json => json(&fabric, target, output)?,
    };
    output.write(&text)
}
