//! Reader of the tables of `rocm-smi --showtopo` (and the equal ones of `amd-smi topology`): xGMI links between GPUs,
//! and the NUMA node of each GPU.
//!
//! GPUs with link type `XGMI` and one hop are joined by a link; all other traffic uses PCIe and the CPUs. NUMA nodes
//! are read from their own table. For GPUs missing there, `PCIE` over two hops means the same node and over three hops
//! another node. The tables state neither lanes nor rates: rates are those of the GPU model that the text or the user
//! names.

use rustc_hash::FxHashMap;

use super::hardware::{self, NVLINK_DIRECT, PCIE_HOP, SOCKET_HOP};
use super::spec::DEFAULT_HOST;
use crate::error::{Origin, Result};
use crate::fabric::{Fabric, FabricBuilder, Figures, GpuFigures, LinkKind, LinkSpec, NodeId, NodeKind};
use crate::gpus::{self, GpuModel, name};
use crate::{Bandwidth, LineIndex};

/// Maximum number of GPUs of a host.
const MAX_GPUS: usize = 1024;

/// Bandwidth between sockets, as RCCL assumes it for EPYC (see [`hardware::socket_bandwidth`]).
const SOCKET_BANDWIDTH: Bandwidth = Bandwidth(16_000_000_000);

/// Returns true if a text contains the table of link types of `rocm-smi --showtopo`.
pub(crate) fn is_showtopo(text: &str) -> bool {
    text.lines().any(|line| section(line) == Some(Section::LinkType))
}

/// Kind of a table of `rocm-smi --showtopo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Hops,
    LinkType,
    Other,
}

/// The kind of table that a line is the title of; `None` if the line is no title.
fn section(line: &str) -> Option<Section> {
    let title = line.trim().trim_matches('=').trim().trim_end_matches(':').to_lowercase();
    let is_title = title.ends_with("between two gpus") || title.ends_with(" table") || title == "numa nodes";
    is_title.then(|| match title {
        _ if title.starts_with("link type") => Section::LinkType,
        _ if title.starts_with("hops") => Section::Hops,
        _ => Section::Other,
    })
}

/// Cells of the tables, by the indices of their GPUs (row and column).
#[derive(Default)]
struct Tables {
    gpus: Vec<String>,
    link_types: FxHashMap<(usize, usize), String>,
    hops: FxHashMap<(usize, usize), u32>,
    numa: FxHashMap<usize, u32>,
}

/// Reads a fabric from the tables of `rocm-smi --showtopo`.
///
/// # Errors
/// [`Error::Syntax`](crate::Error::Syntax) if the table of link types is missing or one of its rows is too short.
pub fn parse(text: &str, source: &str) -> Result<Fabric> {
    parse_with_gpu(text, source, None)
}

/// Variant of [`parse`] with a GPU model for texts that do not name it.
///
/// # Errors
/// The errors of [`parse`], and [`Error::Request`](crate::Error::Request) if the text names another model.
pub fn parse_with_gpu(text: &str, source: &str, gpu: Option<&'static GpuModel>) -> Result<Fabric> {
    let lines = LineIndex::new(text);
    let origin = Origin::new(source, text).with_line_index(&lines);
    let tables = read(origin)?;
    build(origin, &tables, gpu)
}

fn read(origin: Origin<'_>) -> Result<Tables> {
    let mut tables = Tables::default();
    let (mut current, mut columns) = (None, Vec::new());
    let mut start = 0;
    for line in origin.text.split_inclusive('\n') {
        let bytes = start..start + line.trim_end().len();
        start += line.len();
        if let Some(title) = section(line) {
            (current, columns) = (Some(title), Vec::new());
            continue;
        }
        if let Some((gpu, node)) = numa(line) {
            tables.numa.insert(gpu, node);
            continue;
        }
        let tokens: Vec<&str> = line.split_whitespace().collect();
        let (Some(table @ (Section::LinkType | Section::Hops)), [label, cells @ ..]) = (current, tokens.as_slice())
        else {
            continue;
        };
        if columns.is_empty() {
            columns = tokens.iter().map(|&token| token.to_owned()).collect();
            if columns.len() > MAX_GPUS {
                return Err(origin.syntax(bytes, format!("more than {MAX_GPUS} GPUs")));
            }
            if table == Section::LinkType {
                tables.gpus.clone_from(&columns);
            }
            continue;
        }
        let Some(row) = columns.iter().position(|column| column == label) else { continue };
        if cells.len() < columns.len() {
            let message = format!("the row of {label} has {} cells; the header names {}", cells.len(), columns.len());
            return Err(origin.syntax(bytes, message));
        }
        for (column, cell) in cells.iter().enumerate().take(columns.len()).filter(|&(column, _)| column != row) {
            if table == Section::LinkType {
                tables.link_types.insert((row, column), cell.to_uppercase());
            } else if let Ok(hops) = cell.parse() {
                tables.hops.insert((row, column), hops);
            }
        }
    }
    if tables.gpus.is_empty() {
        return Err(origin.syntax(0..0, "the table of link types between GPUs is missing or has no columns"));
    }
    Ok(tables)
}

/// Parses a line like `GPU[3] : (Topology) Numa Node: 1` to the numbers of GPU and NUMA node.
fn numa(line: &str) -> Option<(usize, u32)> {
    let (gpu, rest) = line.trim().strip_prefix("GPU[")?.split_once(']')?;
    let (_, node) = rest.split_once("Numa Node:")?;
    Some((gpu.parse().ok().filter(|&gpu| gpu < MAX_GPUS)?, node.trim().parse().ok()?))
}

/// Number of the CPU socket of each GPU.
fn sockets(tables: &Tables) -> Vec<usize> {
    let mut sockets: Vec<usize> = Vec::new();
    let mut next = 0;
    for gpu in 0..tables.gpus.len() {
        let same = |&other: &usize| match (tables.numa.get(&gpu), tables.numa.get(&other)) {
            (Some(a), Some(b)) => a == b,
            _ => {
                let pair = (other, gpu);
                tables.link_types.get(&pair).is_some_and(|kind| kind == "PCIE")
                    && tables.hops.get(&pair).is_some_and(|&hops| hops <= 2)
            }
        };
        let socket = (0..gpu).find(same).and_then(|other| sockets.get(other).copied());
        sockets.push(socket.unwrap_or(next));
        next = next.max(socket.map_or(next + 1, |_| next));
    }
    sockets
}

fn build(origin: Origin<'_>, tables: &Tables, gpu: Option<&'static GpuModel>) -> Result<Fabric> {
    let mentioned = match name::mentions(origin.text).as_slice() {
        [only] => only.models.first().and_then(|name| gpus::model(name)),
        _ => None,
    };
    let named = gpu.or(mentioned);
    let mut builder = FabricBuilder::new(&origin.stem());
    builder.add_source(format!("rocm-smi --showtopo in {}", origin.source));
    let host = builder.host(DEFAULT_HOST);
    let figures = match named {
        Some(model) => {
            Figures::Gpu(std::sync::Arc::new(GpuFigures { model: Some(model.name.clone()), ..GpuFigures::default() }))
        }
        None => Figures::None,
    };
    let gpu_nodes: Vec<Option<NodeId>> = (0..tables.gpus.len())
        .map(|i| builder.node(&format!("gpu{i}"), NodeKind::Gpu, host, figures.clone()))
        .collect();
    let sockets = sockets(tables);
    let count = sockets.iter().max().map_or(0, |&max| max + 1);
    let cpus: Vec<Option<NodeId>> =
        (0..count).map(|i| builder.node(&format!("cpu{i}"), NodeKind::Cpu, host, Figures::None)).collect();
    let lane = if named.is_some_and(|model| model.pcie_generation == Some(5)) {
        hardware::PCIE_5_LANE
    } else {
        hardware::PCIE_4_LANE
    };
    let pcie = LinkSpec::symmetric(LinkKind::Pcie, hardware::pcie(16, lane), PCIE_HOP).lanes(16);
    let find_cpu = |gpu: usize| sockets.get(gpu).and_then(|&socket| cpus.get(socket).copied().flatten());
    for (i, gpu) in gpu_nodes.iter().enumerate() {
        if let (Some(gpu), Some(cpu)) = (*gpu, find_cpu(i)) {
            builder.link(gpu, cpu, &pcie);
        }
    }
    let known: Vec<NodeId> = cpus.iter().copied().flatten().collect();
    for (i, &a) in known.iter().enumerate() {
        for &b in known.iter().skip(i + 1) {
            builder.link(a, b, &LinkSpec::symmetric(LinkKind::Upi, SOCKET_BANDWIDTH, SOCKET_HOP));
        }
    }
    let rate = named
        .and_then(|model| model.link)
        .unwrap_or_else(|| hardware::xgmi_per_link(named.map(|model| model.compute_capability)));
    let mut joined = false;
    for (a, from) in gpu_nodes.iter().enumerate() {
        for (b, to) in gpu_nodes.iter().enumerate().skip(a + 1) {
            let is_xgmi = tables.link_types.get(&(a, b)).is_some_and(|kind| kind == "XGMI");
            let is_adjacent = tables.hops.get(&(a, b)).is_none_or(|&hops| hops <= 1);
            if let (Some(from), Some(to), true) = (*from, *to, is_xgmi && is_adjacent) {
                builder.link(from, to, &LinkSpec::symmetric(LinkKind::Nvlink, rate, NVLINK_DIRECT));
                joined = true;
            }
        }
    }
    if joined {
        builder.warn(format!("each XGMI of the table is assumed to be one link of {rate} each way"));
    }
    builder.warn(format!(
        "PCIe is assumed to have 16 lanes, {}; {SOCKET_BANDWIDTH} between sockets is assumed",
        hardware::pcie(16, lane)
    ));
    match gpu {
        Some(model) => gpus::set_model(&mut builder, model)?,
        None => gpus::identify_amd(&mut builder),
    }
    Ok(builder.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PCIE: &str = include_str!("../../../tests/data/topologies/cases/rocm-smi-showtopo-108.txt");

    fn links(fabric: &Fabric, kind: LinkKind) -> usize {
        fabric.links().filter(|(_, link)| link.kind == kind).count() / 2
    }

    #[test]
    fn gpus_three_pcie_hops_apart_are_on_different_sockets() {
        let fabric = parse(PCIE, "t").unwrap();
        assert_eq!(fabric.gpus().len(), 4);
        assert_eq!((links(&fabric, LinkKind::Nvlink), links(&fabric, LinkKind::Upi)), (0, 6));
        assert!(fabric.gpu_candidates().iter().all(|name| name.starts_with("MI")), "{:?}", fabric.gpu_candidates());
    }

    #[test]
    fn one_hop_xgmi_becomes_a_link() {
        let text = "=== Hops between two GPUs ===\n GPU0 GPU1 GPU2\nGPU0 0 1 2\nGPU1 1 0 1\nGPU2 2 1 0\n\
                    === Link Type between two GPUs ===\n GPU0 GPU1 GPU2\nGPU0 0 XGMI XGMI\nGPU1 XGMI 0 XGMI\nGPU2 XGMI XGMI 0\n\
                    === Numa Nodes ===\nGPU[0] : (Topology) Numa Node: 0\nGPU[1] : (Topology) Numa Node: 0\nGPU[2] : (Topology) Numa Node: 1\n\
                    GPU[0] : Card series: AMD Instinct MI300X OAM\n";
        let fabric = parse(text, "t").unwrap();
        assert_eq!((links(&fabric, LinkKind::Nvlink), links(&fabric, LinkKind::Upi)), (2, 1));
        let rate = fabric.link(fabric.find_link("gpu0->gpu1").unwrap()[0]).bandwidth;
        assert_eq!(rate, Some(Bandwidth(64_000_000_000)));
        let Figures::Gpu(figures) = &fabric.node(fabric.gpus()[0]).figures else { panic!() };
        assert_eq!((figures.compute_capability, figures.sm_count), (Some(942), Some(304)));
        assert!(parse("== Link Type between two GPUs ==\n", "t").is_err());
        let short = "== Link Type between two GPUs ==\n GPU0 GPU1\nGPU0 0\n";
        assert!(parse(short, "t").unwrap_err().to_string().contains("has 1 cells"));
    }
}
