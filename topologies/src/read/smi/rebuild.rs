//! Reconstruction of a fabric from the relations of a matrix.

use std::sync::Arc;

use petgraph::unionfind::UnionFind;
use rustc_hash::FxHashMap;

use super::domains::{self, Domain, NvlinkCount};
use super::listing::{ListedGpu, Listing};
use super::matrix::{Matrix, MatrixDevice, Relation};
use crate::error::{Origin, Result};
use crate::fabric::{
    CpuFigures, Fabric, FabricBuilder, Figures, GpuFigures, LinkKind, LinkSpec, NicFigures, Node, NodeId, NodeKind,
};
use crate::gpus::{self, Evidence, GpuModel};
use crate::read::hardware::{
    self, C2C_HOP, GRACE_C2C, GRACE_TO_GRACE, NVLINK_DIRECT, NVLINK_HOP, PCIE_3_LANE, PCIE_4_LANE, PCIE_5_LANE,
    PCIE_HOP, SOCKET_HOP,
};
use crate::read::spec::DEFAULT_HOST;
use crate::read::warnings::Warnings;
use crate::{Bandwidth, Picos};

/// Assumptions about a machine, by the generation of its GPUs.
struct Generation {
    name: &'static str,
    /// Bandwidth of one NVLink in each direction, at its signalling rate.
    nvlink: Bandwidth,
    /// Bandwidth of a PCIe lane of the hosts of this generation; links have 16 lanes.
    pcie: Bandwidth,
    /// Bandwidth between sockets of those hosts, as NCCL assumes it (see [`hardware::socket_bandwidth`]). Hosts with
    /// Grace CPUs use [`hardware::GRACE_TO_GRACE`] instead.
    sockets: Bandwidth,
    /// Bandwidth of NVLink-C2C between GPU and CPU, if GPUs are attached to Grace.
    c2c: Option<Bandwidth>,
}

impl Generation {
    /// The generation of a compute capability; an unknown one is treated as Ampere.
    fn new(capability: Option<u32>, c2c: Option<Bandwidth>) -> Self {
        let (pcie, sockets) = match capability {
            Some(..=69) => (PCIE_3_LANE, 6),
            Some(70..=79) => (PCIE_3_LANE, 10),
            Some(80..=88) | None => (PCIE_4_LANE, 16),
            Some(89) => (PCIE_4_LANE, 22),
            Some(90..=99) => (PCIE_5_LANE, 22),
            Some(100..) => (PCIE_5_LANE, 40),
        };
        Self {
            name: gpus::generation(capability.unwrap_or(80)),
            nvlink: hardware::nvlink_per_link(capability),
            pcie,
            sockets: if c2c.is_some() { GRACE_TO_GRACE } else { Bandwidth(sockets * 1_000_000_000) },
            c2c,
        }
    }
}

/// Reconstructs the fabric from a matrix. `listed`: GPUs that the text around the matrix names; `gpu`: the model that
/// the user names.
pub(super) fn fabric(
    origin: Origin<'_>,
    matrix: &Matrix,
    listed: &Listing,
    gpu: Option<&'static GpuModel>,
) -> Result<Fabric> {
    let mut builder = FabricBuilder::new(&origin.stem());
    builder.add_source(format!("nvidia-smi topo -m in {}", origin.source));
    let mut warnings = Warnings::default();
    let generation = infer_generation(matrix, listed, gpu);
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
    if let Some(c2c) = generation.c2c {
        warnings.add(format!("GPUs are attached to Grace: NVLink-C2C of {c2c} each way is assumed"));
    }
    add_nvlinks(&mut builder, matrix, &vertices, &generation, &mut warnings);
    match gpu {
        Some(model) => gpus::set_model(&mut builder, model)?,
        None => gpus::identify(&mut builder),
    }
    for warning in warnings.into_lines() {
        builder.warn(warning);
    }
    Ok(builder.finish())
}

/// Indices of the GPUs among the devices of a matrix.
fn gpu_indices(matrix: &Matrix) -> Vec<usize> {
    (0..matrix.devices.len()).filter(|&i| matrix.devices.get(i).is_some_and(|device| device.is_gpu)).collect()
}

/// Number of NVLinks of each pair of GPUs.
fn nvlink_counts(matrix: &Matrix) -> Vec<NvlinkCount> {
    let gpus = gpu_indices(matrix);
    let mut counts = Vec::with_capacity(gpus.len() * gpus.len() / 2);
    for (i, &a) in gpus.iter().enumerate() {
        for &b in gpus.iter().skip(i + 1) {
            let count = match matrix.relation(a, b) {
                Some(Relation::NvLink(count)) => count,
                _ => 0,
            };
            counts.push(NvlinkCount { a, b, count });
        }
    }
    counts
}

/// The generation of the GPUs, from their model or from the models that their links permit.
fn infer_generation(matrix: &Matrix, listed: &Listing, gpu: Option<&'static GpuModel>) -> Generation {
    let numbers = gpu_indices(matrix).into_iter().filter_map(|i| matrix.devices.get(i)?.number);
    let named = gpu.or_else(|| numbers.into_iter().find_map(|number| listed.gpu(number)?.model()));
    let is_numa = matrix.devices.iter().any(|device| device.memory_is_numa);
    let on_grace = |model: Option<&GpuModel>| is_numa.then(|| model.and_then(|model| model.c2c).unwrap_or(GRACE_C2C));
    if let Some(model) = named {
        return Generation::new(Some(model.compute_capability), model.c2c.or(on_grace(None)));
    }
    let evidence = Evidence { has_c2c: is_numa, ..domains::evidence(&nvlink_counts(matrix)) };
    let candidates = evidence.likely_candidates().map_or_else(|| evidence.candidates(), |(candidates, _)| candidates);
    let first = candidates.first().map(|model| model.compute_capability);
    let same = candidates.iter().all(|model| Some(model.compute_capability) == first);
    Generation::new(first.filter(|_| same), on_grace(candidates.first().copied().filter(|_| same)))
}

/// Adds a device for each GPU and NIC, in the order of the columns.
fn add_devices(builder: &mut FabricBuilder, matrix: &Matrix, listed: &Listing) -> Vec<Option<NodeId>> {
    let host = builder.host(DEFAULT_HOST);
    let mut nics = 0;
    matrix
        .devices
        .iter()
        .map(|device| {
            let mut attributes: Vec<(Box<str>, Box<str>)> = Vec::new();
            let (id, kind, figures) = if device.is_gpu {
                let number = device.number.unwrap_or_default();
                let known = listed.gpu(number);
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
            builder.add_node(Node { id: id.into(), kind, host, figures, attributes })
        })
        .collect()
}

fn gpu_figures(known: Option<&ListedGpu>) -> Figures {
    known.map_or(Figures::None, |gpu| {
        Figures::Gpu(Arc::new(GpuFigures {
            model: Some(gpu.model().map_or_else(|| gpu.model.clone(), |known| known.name.clone())),
            memory: gpu.memory,
            ..GpuFigures::default()
        }))
    })
}

/// Joins the sets of all pairs of devices for whose relation `related` is true.
fn join_related(sets: &mut UnionFind<usize>, matrix: &Matrix, related: impl Fn(Relation) -> bool) {
    for a in 0..matrix.devices.len() {
        for b in a + 1..matrix.devices.len() {
            if matrix.relation(a, b).is_some_and(&related) {
                sets.union(a, b);
            }
        }
    }
}

/// The CPUs that were added, and the CPU of each device of the matrix.
struct CpuAssignment {
    sockets: Vec<NodeId>,
    device_cpus: Vec<Option<NodeId>>,
}

/// Adds one CPU for each NUMA node, which consists of devices nearer than `SYS` and of GPUs with equal affinity.
fn add_sockets(builder: &mut FabricBuilder, matrix: &Matrix, warnings: &mut Warnings) -> CpuAssignment {
    let mut sets = UnionFind::new(matrix.devices.len());
    join_related(&mut sets, matrix, |relation| {
        matches!(relation, Relation::OneSwitch | Relation::Switches | Relation::HostBridge | Relation::Node)
    });
    let affinity = |device: &MatrixDevice| {
        let numa = device.numa.map(|numa| format!("node {numa}"));
        numa.or_else(|| device.cpu_affinity.clone()).filter(|_| device.is_gpu)
    };
    let mut first_by_affinity: FxHashMap<String, usize> = FxHashMap::default();
    let mut hidden: Vec<usize> = Vec::new();
    for (i, device) in matrix.devices.iter().enumerate().filter(|(_, device)| device.is_gpu) {
        match affinity(device) {
            Some(affinity) => {
                sets.union(*first_by_affinity.entry(affinity).or_insert(i), i);
            }
            None => hidden.push(i),
        }
    }
    join_gpus_without_affinity(&mut sets, matrix, &hidden);
    let host = builder.host(DEFAULT_HOST);
    let mut cpus = CpuAssignment { sockets: Vec::new(), device_cpus: vec![None; matrix.devices.len()] };
    let mut cpu_by_root: FxHashMap<usize, NodeId> = FxHashMap::default();
    for (i, device) in matrix.devices.iter().enumerate() {
        let root = sets.find_mut(i);
        let cpu = cpu_by_root.get(&root).copied().or_else(|| {
            let figures = CpuFigures { numa: device.numa, ..CpuFigures::default() };
            let id = format!("cpu{}", cpus.sockets.len());
            let cpu = builder.node(&id, NodeKind::Cpu, host, Figures::Cpu(Arc::new(figures)))?;
            if !device.is_gpu {
                warnings.add(format!("{} is near no GPU: a CPU of its own is assumed for it", device.label));
            }
            cpus.sockets.push(cpu);
            cpu_by_root.insert(root, cpu);
            Some(cpu)
        });
        if let Some(entry) = cpus.device_cpus.get_mut(i) {
            *entry = cpu;
        }
    }
    cpus
}

/// Joins GPUs without a stated affinity to one NUMA node, except those whose sets are `SYS` apart.
fn join_gpus_without_affinity(sets: &mut UnionFind<usize>, matrix: &Matrix, gpus: &[usize]) {
    let count = matrix.devices.len();
    let are_apart = |sets: &mut UnionFind<usize>, a: usize, b: usize| {
        let (a, b) = (sets.find_mut(a), sets.find_mut(b));
        let members_a: Vec<usize> = (0..count).filter(|&i| sets.find_mut(i) == a).collect();
        let members_b: Vec<usize> = (0..count).filter(|&i| sets.find_mut(i) == b).collect();
        members_a.iter().any(|&x| members_b.iter().any(|&y| matrix.relation(x, y) == Some(Relation::System)))
    };
    for (i, &b) in gpus.iter().enumerate() {
        let near = gpus.iter().take(i).copied().find(|&a| !are_apart(sets, a, b));
        if let Some(a) = near {
            sets.union(a, b);
        }
    }
}

/// Adds PCIe switches, and the links that attach GPUs and NICs to switches and CPUs.
fn add_pcie(
    builder: &mut FabricBuilder,
    matrix: &Matrix,
    vertices: &[Option<NodeId>],
    cpus: &CpuAssignment,
    generation: &Generation,
) {
    let host = builder.host(DEFAULT_HOST);
    let spec = LinkSpec::symmetric(LinkKind::Pcie, hardware::pcie(16, generation.pcie), PCIE_HOP).lanes(16);
    let count = matrix.devices.len();
    let (mut leaves, mut trees) = (UnionFind::new(count), UnionFind::new(count));
    join_related(&mut leaves, matrix, |relation| relation == Relation::OneSwitch);
    join_related(&mut trees, matrix, |relation| matches!(relation, Relation::OneSwitch | Relation::Switches));
    let mut leaf_sizes: FxHashMap<usize, usize> = FxHashMap::default();
    let mut tree_leaves: FxHashMap<usize, std::collections::BTreeSet<usize>> = FxHashMap::default();
    for i in 0..count {
        *leaf_sizes.entry(leaves.find_mut(i)).or_default() += 1;
        tree_leaves.entry(trees.find_mut(i)).or_default().insert(leaves.find_mut(i));
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
        let (Some(Some(vertex)), Some(Some(cpu))) = (vertices.get(i).copied(), cpus.device_cpus.get(i).copied()) else {
            continue;
        };
        if let (Some(c2c), true) = (generation.c2c, matrix.devices.get(i).is_some_and(|device| device.is_gpu)) {
            builder.link(vertex, cpu, &LinkSpec::symmetric(LinkKind::C2c, c2c, C2C_HOP));
            continue;
        }
        let (leaf, tree) = (leaves.find_mut(i), trees.find_mut(i));
        let mut above = Some(cpu);
        if tree_leaves.get(&tree).is_some_and(|leaves| leaves.len() > 1) {
            above = tops.get(&tree).copied().or_else(|| switch_below(builder, cpu));
            tops.extend(above.map(|top| (tree, top)));
        }
        let has_switch = leaf_sizes.get(&leaf).is_some_and(|&size| size > 1) || tops.contains_key(&tree);
        if let (true, Some(top)) = (has_switch, above) {
            above = bottoms.get(&leaf).copied().or_else(|| switch_below(builder, top));
            bottoms.extend(above.map(|bottom| (leaf, bottom)));
        }
        if let Some(above) = above {
            builder.link(vertex, above, &spec);
        }
    }
}

/// Adds NVLinks: to an NVSwitch, or direct links between GPUs.
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
    if counts.iter().any(|pair| pair.count > 0) {
        warnings.add(format!("NVLink is assumed to run at its signalling rate, {} a link each way", generation.nvlink));
    }
    let host = builder.host(DEFAULT_HOST);
    for (number, domain) in domains::find_domains(&gpu_indices(matrix), &counts).into_iter().enumerate() {
        match domain {
            Domain::Switched(gpus) => {
                let id = format!("nvswitch{number}");
                let Some(switch) = builder.node(&id, NodeKind::Nvswitch, host, Figures::None) else { continue };
                for (gpu, count) in gpus {
                    if let Some(gpu) = vertex(gpu) {
                        builder.link(gpu, switch, &bonded(count, NVLINK_HOP));
                    }
                }
            }
            Domain::Direct(pairs) => {
                for NvlinkCount { a, b, count } in pairs {
                    if let (Some(a), Some(b)) = (vertex(a), vertex(b)) {
                        builder.link(a, b, &bonded(count, NVLINK_DIRECT));
                    }
                }
            }
        }
    }
}
