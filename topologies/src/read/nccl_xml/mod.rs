//! Reader of NCCL topology files: the format that `NCCL_TOPO_DUMP_FILE` writes and `NCCL_TOPO_FILE` reads, RCCL's
//! variant of it, and the files shipped by cloud vendors.
//!
//! The file is a tree of CPUs, PCIe switches, GPUs and NICs; NVLinks, xGMI and C2C are elements inside the GPUs. Ids
//! are assigned here: `gpu0` has `dev` 0, `cpu1` is NUMA node 1, and document order is used if the file states no
//! numbers. Ranks follow `rank`, otherwise `dev`, otherwise document order. All attributes are stored with the devices,
//! so that [`write::nccl_xml`](crate::write::nccl_xml) can write them again.
//!
//! Files that NCCL's own minimal parser rejects (a prolog, tabs) are read with a warning.

mod element;
mod links;
mod parse_tree;
mod scan;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::LineIndex;
use crate::error::{Error, Origin, Result};
use crate::fabric::{Fabric, FabricBuilder, Node, NodeId, NodeKind};
use crate::gpus::{self, GpuModel};
use crate::read::spec::{DEFAULT_HOST, NETWORK_HOST};
use element::Element;
use parse_tree::{ParsedTopology, TreeDevice};

/// Reads a topology file.
///
/// # Errors
/// [`Error::Syntax`] if the text is not XML; [`Error::Invalid`] for a root other than `<system>`, a duplicate bus id,
/// an invalid number, or missing attributes; each with line and column.
pub fn parse(text: &str, source: &str) -> Result<Fabric> {
    parse_with_gpu(text, source, None)
}

/// Variant of [`parse`] with a GPU model for files that do not state it.
///
/// # Errors
/// The errors of [`parse`], and [`Error::Request`] if the file states another model or capability.
pub fn parse_with_gpu(text: &str, source: &str, gpu: Option<&'static GpuModel>) -> Result<Fabric> {
    let lines = LineIndex::new(text);
    let origin = Origin::new(source, text).with_line_index(&lines);
    scan::reject_hostile(origin)?;
    let document = roxmltree::Document::parse(text).map_err(|error| xml_error(origin, &error))?;
    let root = Element { origin, node: document.root_element() };
    match root.name() {
        "system" => {}
        "graphs" => {
            let message = "this is a graph file, what NCCL made of a topology";
            let help = "give the topology file, which NCCL writes to NCCL_TOPO_DUMP_FILE";
            return Err(origin.invalid_with_help(root.bytes(), message, help));
        }
        other => {
            let message = format!("an NCCL topology file starts with <system>, not <{other}>");
            return Err(origin.invalid(root.bytes(), message));
        }
    }
    let mut found = ParsedTopology::walk(root, gpu)?;
    warn_nccl_incompatibilities(origin, &mut found);
    if found.bare_gpus > 0 && found.ports.is_empty() {
        found.warnings.add(
            "the file lists GPUs by their PCI class and no NVLinks, which NCCL detects when it runs: \
             as read, the GPUs are joined by PCIe alone",
        );
    }
    build(origin, found)
}

/// Converts an error of the XML parser.
fn xml_error(origin: Origin<'_>, error: &roxmltree::Error) -> Error {
    let position = error.pos();
    let line_start = origin
        .text
        .match_indices('\n')
        .map(|(i, _)| i + 1)
        .nth((position.row as usize).wrapping_sub(2))
        .unwrap_or_default();
    let at = match error {
        // The parser gives no location for these errors. The text ends too early, so its end is the location.
        roxmltree::Error::UnexpectedEndOfStream | roxmltree::Error::UnclosedRootNode => origin.text.trim_end().len(),
        _ => line_start + position.col.saturating_sub(1) as usize,
    };
    let message = error.to_string();
    // The location is reported separately, so it is removed from the parser's message.
    let suffix = format!(" at {position}");
    let message = message.strip_suffix(suffix.as_str()).unwrap_or(&message);
    origin.syntax(at..at, format!("not well-formed XML: {message}"))
}

/// Adds warnings about constructs that this reader accepts and NCCL's rejects.
fn warn_nccl_incompatibilities(origin: Origin<'_>, found: &mut ParsedTopology) {
    let text = origin.text;
    if text.starts_with('\u{feff}') || text.trim_start_matches('\u{feff}').starts_with("<?xml") {
        found.warnings.add("NCCL itself refuses a file that starts with a byte order mark or an <?xml …?> line");
    }
    if let Some(at) = text.find('\t') {
        found.warnings.add_at("NCCL itself refuses tabs; indent with spaces", || origin.locate(at..at).line);
    }
}

/// Builds the fabric in a second pass over the parsed devices: ids, devices, links, rank order.
fn build(origin: Origin<'_>, mut found: ParsedTopology) -> Result<Fabric> {
    let merged = found.merge_broadcom_switches();
    let mut builder = FabricBuilder::new(&origin.stem());
    builder.add_source(format!("NCCL topology file {}", origin.source));
    builder.add_source("bandwidths of links as NCCL 2.30.7 (topo.h) and RCCL assign them; latencies assumed");
    let ids = ids(&found, &merged);
    let several = found.hosts.len() > 1;
    let hosts: Vec<_> = (0..found.hosts.len())
        .map(|i| builder.host(&if several { format!("n{i}") } else { DEFAULT_HOST.to_owned() }))
        .collect();

    let mut vertices: Vec<Option<NodeId>> = Vec::with_capacity(found.devices.len());
    for (i, device) in found.devices.iter_mut().enumerate() {
        let (Some(id), Some(&host)) = (ids.get(&i), hosts.get(device.host)) else {
            vertices.push(None);
            continue;
        };
        let mut facts = std::mem::take(&mut device.attributes);
        facts.sort();
        facts.dedup_by(|a, b| a.0 == b.0);
        let vertex = Node {
            id: id.clone(),
            kind: device.kind,
            host,
            figures: device.figures.clone(),
            attributes: facts.into_boxed_slice(),
        };
        let added = builder.add_node(vertex);
        if added.is_none() {
            return Err(origin.invalid(device.bytes.clone(), format!("the id `{id}` is taken")));
        }
        vertices.push(added);
    }
    let switch_host = if several { builder.host(NETWORK_HOST) } else { builder.host(DEFAULT_HOST) };
    links::add(&mut found, &vertices, switch_host, &mut builder);
    let order = rank_order(&found.devices, &vertices);
    builder.set_rank_order(order);
    match found.user_model {
        Some(model) => gpus::set_model(&mut builder, model)?,
        None => gpus::identify(&mut builder),
    }
    for warning in std::mem::take(&mut found.warnings).into_lines() {
        builder.warn(warning);
    }
    Ok(builder.finish())
}

/// Ids of all devices by their index, without those merged into another switch.
fn ids(found: &ParsedTopology, merged: &FxHashSet<usize>) -> FxHashMap<usize, Box<str>> {
    let several = found.hosts.len() > 1;
    let mut ids = FxHashMap::default();
    let kinds = [NodeKind::Cpu, NodeKind::PcieSwitch, NodeKind::Gpu, NodeKind::Accelerator, NodeKind::Nic];
    let mut groups: FxHashMap<(usize, NodeKind), Vec<usize>> = FxHashMap::default();
    for (i, device) in found.devices.iter().enumerate().filter(|(i, _)| !merged.contains(i)) {
        groups.entry((device.host, device.kind)).or_default().push(i);
    }
    for host in 0..found.hosts.len() {
        for kind in kinds {
            let group = groups.remove(&(host, kind)).unwrap_or_default();
            let device_number = |&i: &usize| found.devices.get(i).and_then(|device| device.number);
            let mut seen = FxHashSet::default();
            let numbered = group.iter().all(|i| device_number(i).is_some_and(|number| seen.insert(number)));
            for (position, i) in (0u32..).zip(&group) {
                let number = device_number(i).filter(|_| numbered).unwrap_or(position);
                let prefix = if several { format!("n{host}/") } else { String::new() };
                ids.insert(*i, format!("{prefix}{}{number}", kind.name()).into_boxed_str());
            }
        }
    }
    ids
}

/// Orders GPUs by `rank` if all have distinct ones, otherwise by host and `dev`, otherwise in document order.
fn rank_order(devices: &[TreeDevice], vertices: &[Option<NodeId>]) -> Vec<NodeId> {
    let ranks: Vec<(&TreeDevice, NodeId)> = devices
        .iter()
        .zip(vertices)
        .filter_map(|(device, vertex)| vertex.filter(|_| device.kind.is_rank()).map(|vertex| (device, vertex)))
        .collect();
    let sort_ranks = |key: fn(&TreeDevice) -> Option<(usize, u32)>| -> Option<Vec<NodeId>> {
        let mut keyed: Vec<_> =
            ranks.iter().map(|&(device, vertex)| Some((key(device)?, vertex))).collect::<Option<_>>()?;
        keyed.sort_unstable();
        let distinct = keyed.windows(2).all(|pair| matches!(pair, [a, b] if a.0 != b.0));
        distinct.then(|| keyed.into_iter().map(|(_, vertex)| vertex).collect())
    };
    sort_ranks(|device| device.rank.map(|rank| (0, rank)))
        .or_else(|| sort_ranks(|device| device.number.map(|number| (device.host, number))))
        .unwrap_or_else(|| ranks.iter().map(|&(_, vertex)| vertex).collect())
}

#[cfg(test)]
mod tests;
