//! From relations to a fabric.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::listing::Listed;
use super::matrix::{Device, Matrix, Relation};
use crate::error::{Origin, Result};
use crate::fabric::{
    CpuFigures, Fabric, FabricBuilder, Figures, GpuFigures, LinkKind, LinkSpec, NicFigures, Node, NodeId, NodeKind,
};
use crate::read::hardware::{
    self, KNOWN_GPUS, NVLINK_DIRECT, NVLINK_HOP, PCIE_3_LANE, PCIE_4_LANE, PCIE_5_LANE, PCIE_HOP, SOCKET_HOP,
};
use crate::read::spec::DEFAULT_HOST;
use crate::read::warnings::Warnings;
use crate::{Bandwidth, Picos};

/// What is assumed of a machine by the generation of its GPUs.
struct Generation {
    name: &'static str,
    /// One NVLink, each direction, at its signalling rate (NVIDIA's data sheets: 25 GB/s from NVLink 2 on, 50 from 5).
    nvlink: Bandwidth,
    /// A PCIe lane of the hosts that they came with; links have 16.
    pcie: Bandwidth,
    /// Between sockets of those hosts, as NCCL takes it (see [`hardware::between_sockets`]).
    sockets: Bandwidth,
}

const fn generation(name: &'static str, nvlink: u64, pcie: Bandwidth, sockets: u64) -> Generation {
    let gb = 1_000_000_000;
    Generation { name, nvlink: Bandwidth(nvlink * gb), pcie, sockets: Bandwidth(sockets * gb) }
}

const PASCAL: Generation = generation("Pascal", 20, PCIE_3_LANE, 6);
const VOLTA: Generation = generation("Volta", 25, PCIE_3_LANE, 10);
const AMPERE: Generation = generation("Ampere", 25, PCIE_4_LANE, 16);
const ADA: Generation = generation("Ada", 25, PCIE_4_LANE, 22);
const HOPPER: Generation = generation("Hopper", 25, PCIE_5_LANE, 22);
const BLACKWELL: Generation = generation("Blackwell", 50, PCIE_5_LANE, 40);

/// Most NVLinks that any GPU so far has.
const MOST_NVLINKS: u64 = 18;

/// Rebuilds the fabric.
pub(super) fn fabric(origin: Origin<'_>, matrix: &Matrix, listed: &FxHashMap<u32, Listed>) -> Result<Fabric> {
    let mut builder = FabricBuilder::new(&origin.stem());
    builder.source(format!("nvidia-smi topo -m in {}", origin.source));
    let mut warnings = Warnings::default();
    let generation = guess_generation(matrix, listed, &mut warnings);
    if !matrix.without_row.is_empty() {
        let labels = matrix.without_row.join(", ");
        warnings.add(format!("no rows of {labels}: how they relate to each other is not known"));
    }

    let vertices = add_devices(&mut builder, matrix, listed);
    let cpus = add_sockets(&mut builder, matrix, &mut warnings);
    add_pcie(&mut builder, matrix, &vertices, &cpus, &generation);
    let speed = hardware::pcie(16, generation.pcie);
    warnings.add(format!("PCIe is assumed to have 16 lanes of the {} generation, {speed}", generation.name));
    for (i, &a) in cpus.sockets.iter().enumerate() {
        for &b in cpus.sockets.iter().skip(i + 1) {
            builder.link(a, b, &LinkSpec::symmetric(LinkKind::Upi, generation.sockets, SOCKET_HOP));
        }
    }
    if cpus.sockets.len() > 1 {
        warnings.add(format!("{} between sockets is assumed", generation.sockets));
    }
    add_nvlinks(&mut builder, matrix, &vertices, &generation, &mut warnings);
    for warning in warnings.into_lines() {
        builder.warn(warning);
    }
    Ok(builder.finish())
}

/// Indices of the GPUs.
fn gpus(matrix: &Matrix) -> Vec<usize> {
    (0..matrix.devices.len()).filter(|&i| matrix.devices.get(i).is_some_and(|device| device.is_gpu)).collect()
}

/// NVLink counts of all pairs of GPUs; 0 where there is none.
fn nvlink_counts(matrix: &Matrix) -> Vec<(usize, usize, u16)> {
    let gpus = gpus(matrix);
    let mut counts = Vec::with_capacity(gpus.len() * gpus.len() / 2);
    for (i, &a) in gpus.iter().enumerate() {
        for &b in gpus.iter().skip(i + 1) {
            let count = match matrix.relation(a, b) {
                Some(Relation::NvLink(count)) => count,
                _ => 0,
            };
            counts.push((a, b, count));
        }
    }
    counts
}

/// The compute capability of a GPU that `nvidia-smi` names.
fn capability(model: &str) -> Option<u32> {
    // GB300 and B300 are not in the table of PCI ids, and RTX 50 and RTX PRO 6000 are another Blackwell.
    const NAMES: [(&str, u32); 4] = [("B300", 103), ("GB300", 103), ("RTX PRO 6000", 120), ("RTX 5090", 120)];
    let names = NAMES.into_iter().chain(KNOWN_GPUS.iter().map(|gpu| {
        let short = gpu.model.split_once(" SXM").map_or(gpu.model, |(short, _)| short);
        (short.split_once(" PCIe").map_or(short, |(short, _)| short), gpu.compute_capability)
    }));
    let model = model.trim_start_matches("Tesla ").trim_start_matches("GeForce ");
    let matches = |name: &str| {
        model.strip_prefix(name).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
    };
    names.into_iter().find(|(name, _)| matches(name)).map(|(_, capability)| capability)
}

fn guess_generation(matrix: &Matrix, listed: &FxHashMap<u32, Listed>, warnings: &mut Warnings) -> Generation {
    let named = gpus(matrix)
        .into_iter()
        .filter_map(|i| matrix.devices.get(i)?.number)
        .find_map(|number| capability(&listed.get(&number)?.model));
    match named {
        Some(..=69) => return PASCAL,
        Some(70..=79) => return VOLTA,
        Some(80..=88) => return AMPERE,
        Some(89) => return ADA,
        Some(90..=99) => return HOPPER,
        Some(100..) => return BLACKWELL,
        None => {}
    }
    let on_grace = matrix.devices.iter().any(|device| device.memory_is_numa);
    let most = nvlink_counts(matrix).iter().map(|&(_, _, count)| count).max().unwrap_or_default();
    let (generation, why) = match most {
        18.. if on_grace => (BLACKWELL, "18 NVLinks, and the GPUs' memory has NUMA nodes (Grace)"),
        18.. => (HOPPER, "18 NVLinks; Blackwell has as many and twice their speed"),
        7.. => (AMPERE, "up to 12 NVLinks"),
        1.. => (VOLTA, "up to 6 NVLinks"),
        0 => (AMPERE, "no NVLink, which tells nothing"),
    };
    warnings.add(format!("the GPUs are taken for {} by {why}", generation.name));
    generation
}

/// A vertex for each GPU and NIC, in the order of the columns.
fn add_devices(builder: &mut FabricBuilder, matrix: &Matrix, listed: &FxHashMap<u32, Listed>) -> Vec<Option<NodeId>> {
    let host = builder.host(DEFAULT_HOST);
    let mut nics = 0;
    matrix
        .devices
        .iter()
        .map(|device| {
            let mut attributes: Vec<(Box<str>, Box<str>)> = Vec::new();
            let (id, kind, figures) = if device.is_gpu {
                let number = device.number.unwrap_or_default();
                let known = listed.get(&number);
                if let Some(bus) = known.and_then(|gpu| gpu.bus_id.as_deref()) {
                    attributes.push(("busid".into(), bus.into()));
                }
                if let Some(cores) = device.cpu_affinity.as_deref() {
                    attributes.push(("cpu_affinity".into(), cores.into()));
                }
                (format!("gpu{number}"), NodeKind::Gpu, gpu_figures(known))
            } else {
                nics += 1;
                let figures = NicFigures { model: device.name.clone(), ..NicFigures::default() };
                let number = device.number.unwrap_or(nics - 1);
                (format!("nic{number}"), NodeKind::Nic, Figures::Nic(Arc::new(figures)))
            };
            let attributes = attributes.into_boxed_slice();
            builder.node_with(Node { id: id.into(), kind, host, figures, attributes })
        })
        .collect()
}

fn gpu_figures(known: Option<&Listed>) -> Figures {
    known.map_or(Figures::None, |gpu| {
        Figures::Gpu(Arc::new(GpuFigures {
            model: Some(gpu.model.clone()),
            compute_capability: capability(&gpu.model),
            memory: gpu.memory,
            ..GpuFigures::default()
        }))
    })
}

/// Sets of devices that belong together, as a forest.
struct Sets(Vec<usize>);

impl Sets {
    fn new(count: usize) -> Self {
        Self((0..count).collect())
    }

    fn root(&mut self, mut of: usize) -> usize {
        while let Some(&above) = self.0.get(of).filter(|&&above| above != of) {
            // Halving the way keeps it short.
            let further = self.0.get(above).copied().unwrap_or(above);
            if let Some(entry) = self.0.get_mut(of) {
                *entry = further;
            }
            of = further;
        }
        of
    }

    /// Joins two sets under the smaller root, so that sets are named by their first member.
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        if let Some(entry) = self.0.get_mut(a.max(b)) {
            *entry = a.min(b);
        }
    }

    /// Joins all pairs of devices that stand in one of these relations.
    fn join_related(&mut self, matrix: &Matrix, related: impl Fn(Relation) -> bool) {
        for a in 0..matrix.devices.len() {
            for b in a + 1..matrix.devices.len() {
                if matrix.relation(a, b).is_some_and(&related) {
                    self.join(a, b);
                }
            }
        }
    }
}

/// The CPUs, and the one of each device.
struct Cpus {
    sockets: Vec<NodeId>,
    of: Vec<Option<NodeId>>,
}

/// One CPU for each NUMA node: devices nearer than `SYS`, and GPUs of the same affinity.
fn add_sockets(builder: &mut FabricBuilder, matrix: &Matrix, warnings: &mut Warnings) -> Cpus {
    let mut sets = Sets::new(matrix.devices.len());
    sets.join_related(matrix, |relation| {
        matches!(relation, Relation::OneSwitch | Relation::Switches | Relation::HostBridge | Relation::Node)
    });
    let affinity = |device: &Device| {
        let numa = device.numa.map(|numa| format!("node {numa}"));
        numa.or_else(|| device.cpu_affinity.clone()).filter(|_| device.is_gpu)
    };
    let mut first_of: FxHashMap<Option<String>, usize> = FxHashMap::default();
    for (i, device) in matrix.devices.iter().enumerate().filter(|(_, device)| device.is_gpu) {
        // GPUs without affinity are of a machine that hides it: one node.
        let first = *first_of.entry(affinity(device)).or_insert(i);
        sets.join(first, i);
    }
    let host = builder.host(DEFAULT_HOST);
    let mut cpus = Cpus { sockets: Vec::new(), of: vec![None; matrix.devices.len()] };
    let mut made: FxHashMap<usize, NodeId> = FxHashMap::default();
    for (i, device) in matrix.devices.iter().enumerate() {
        let root = sets.root(i);
        let cpu = made.get(&root).copied().or_else(|| {
            let figures = CpuFigures { numa: device.numa, ..CpuFigures::default() };
            let id = format!("cpu{}", cpus.sockets.len());
            let cpu = builder.node(&id, NodeKind::Cpu, host, Figures::Cpu(Arc::new(figures)))?;
            if !device.is_gpu {
                warnings.add(format!("{} is near no GPU: a CPU of its own is assumed for it", device.label));
            }
            cpus.sockets.push(cpu);
            made.insert(root, cpu);
            Some(cpu)
        });
        if let Some(entry) = cpus.of.get_mut(i) {
            *entry = cpu;
        }
    }
    cpus
}

/// PCIe switches and the links below the CPUs.
fn add_pcie(
    builder: &mut FabricBuilder,
    matrix: &Matrix,
    vertices: &[Option<NodeId>],
    cpus: &Cpus,
    generation: &Generation,
) {
    let host = builder.host(DEFAULT_HOST);
    let spec = LinkSpec::symmetric(LinkKind::Pcie, hardware::pcie(16, generation.pcie), PCIE_HOP).lanes(16);
    let count = matrix.devices.len();
    let (mut leaves, mut trees) = (Sets::new(count), Sets::new(count));
    leaves.join_related(matrix, |relation| relation == Relation::OneSwitch);
    trees.join_related(matrix, |relation| matches!(relation, Relation::OneSwitch | Relation::Switches));
    let mut size_of_leaf: FxHashMap<usize, usize> = FxHashMap::default();
    let mut leaves_of_tree: FxHashMap<usize, std::collections::BTreeSet<usize>> = FxHashMap::default();
    for i in 0..count {
        *size_of_leaf.entry(leaves.root(i)).or_default() += 1;
        leaves_of_tree.entry(trees.root(i)).or_default().insert(leaves.root(i));
    }
    let mut switches = 0;
    let mut switch_below = |builder: &mut FabricBuilder, above: NodeId| {
        let switch = builder.node(&format!("pcie_switch{switches}"), NodeKind::PcieSwitch, host, Figures::None)?;
        switches += 1;
        builder.link(switch, above, &spec);
        Some(switch)
    };
    let mut tops: FxHashMap<usize, NodeId> = FxHashMap::default();
    let mut bottoms: FxHashMap<usize, NodeId> = FxHashMap::default();
    for i in 0..count {
        let (Some(Some(vertex)), Some(Some(cpu))) = (vertices.get(i).copied(), cpus.of.get(i).copied()) else {
            continue;
        };
        let (leaf, tree) = (leaves.root(i), trees.root(i));
        let mut above = Some(cpu);
        if leaves_of_tree.get(&tree).is_some_and(|leaves| leaves.len() > 1) {
            above = tops.get(&tree).copied().or_else(|| switch_below(builder, cpu));
            tops.extend(above.map(|top| (tree, top)));
        }
        let own_switch = size_of_leaf.get(&leaf).is_some_and(|&size| size > 1) || tops.contains_key(&tree);
        if let (true, Some(top)) = (own_switch, above) {
            above = bottoms.get(&leaf).copied().or_else(|| switch_below(builder, top));
            bottoms.extend(above.map(|bottom| (leaf, bottom)));
        }
        if let Some(above) = above {
            builder.link(vertex, above, &spec);
        }
    }
}

/// NVLink: a switch, or direct links.
fn add_nvlinks(
    builder: &mut FabricBuilder,
    matrix: &Matrix,
    vertices: &[Option<NodeId>],
    generation: &Generation,
    warnings: &mut Warnings,
) {
    let vertex = |i: usize| vertices.get(i).copied().flatten();
    let counts = nvlink_counts(matrix);
    let bonded = |count: u16, latency: Picos| {
        let bandwidth = Bandwidth(generation.nvlink.0 * u64::from(count)).min(Bandwidth::MAX);
        LinkSpec::symmetric(LinkKind::Nvlink, bandwidth, latency).lanes(count)
    };
    let Some(&(_, _, first)) = counts.first() else { return };
    if counts.iter().any(|&(_, _, count)| count > 0) {
        warnings.add(format!("NVLink is taken at its signalling rate, {} a link each way", generation.nvlink));
    }
    let peers = gpus(matrix).len() as u64 - 1;
    let same = counts.iter().all(|&(_, _, count)| count == first);
    let too_many_for_a_mesh = u64::from(first) == MOST_NVLINKS || u64::from(first) * peers > MOST_NVLINKS;
    if same && first > 0 && too_many_for_a_mesh {
        let host = builder.host(DEFAULT_HOST);
        let Some(switch) = builder.node("nvswitch0", NodeKind::Nvswitch, host, Figures::None) else { return };
        for gpu in gpus(matrix).into_iter().filter_map(vertex) {
            builder.link(gpu, switch, &bonded(first, NVLINK_HOP));
        }
        return;
    }
    for (a, b, count) in counts.into_iter().filter(|&(_, _, count)| count > 0) {
        if let (Some(a), Some(b)) = (vertex(a), vertex(b)) {
            builder.link(a, b, &bonded(count, NVLINK_DIRECT));
        }
    }
}
