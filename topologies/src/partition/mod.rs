//! MIG: GPUs partitioned into instances, which replace the GPUs as ranks.
//!
//! A partitioned GPU stays in the fabric as the carrier of its instances and is no longer a rank. Each instance has a
//! share of the SMs, the memory and its bandwidth, and the copy engines. Everything outside the GPU is shared:
//! instances communicate over the PCIe (or C2C) link of the GPU. In MIG mode there is no NVLink and no peer access,
//! neither between instances of one GPU nor to other GPUs (NVIDIA Multi-Instance GPU User Guide, "Deployment
//! Considerations"). Traffic between instances therefore passes host memory, but NICs access the memory of an instance
//! directly (GPUDirect RDMA).
//!
//! ```text
//! gpu0:0 ──┐
//! gpu0:1 ──┼── gpu0 (carrier) ──PCIe── CPU memory, NICs
//! gpu0:2 ──┘      └─NVLink: idle
//! ```

mod board;
mod profile;
#[cfg(test)]
mod tests;

use std::str::FromStr;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::error::{Error, Result};
use crate::fabric::{Fabric, FabricBuilder, Figures, GpuFigures, LinkKind, LinkSpec, Node, NodeId, NodeKind};
use crate::read::spec::ids;
use crate::{Bandwidth, Bytes, Picos};
use board::{Board, InstanceShare};
pub use profile::{MigProfile, UnknownProfile};

/// Entry that partitioning adds to the sources of a fabric.
const SOURCE: &str = "MIG profiles: NVIDIA Multi-Instance GPU User Guide, \"Supported MIG Profiles\"; SMs of an instance \
                      as `nvidia-smi mig -lgip` lists them for A100, H100 and H200, elsewhere its share of compute slices";

/// Instances of one GPU, or of each of several GPUs: `gpu0=3g.71gb,4g.71gb`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The id of a GPU (`n1/gpu0`), its id within every host (`gpu0`), or a range of either (`gpu[0-7]`).
    pub gpu: String,
    /// Profiles of the instances of each GPU, in order.
    pub profiles: Vec<MigProfile>,
}

/// Reason why a text is not a valid partition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// The `=` or one of its sides is missing.
    #[error("expected GPU=PROFILE[,PROFILE…], as in gpu0=3g.71gb,4g.71gb")]
    Shape,
    /// The name of a profile is invalid.
    #[error(transparent)]
    Profile(#[from] UnknownProfile),
}

impl FromStr for Partition {
    type Err = PartitionError;

    fn from_str(text: &str) -> Result<Self, PartitionError> {
        let (gpu, profiles) = text.rsplit_once('=').ok_or(PartitionError::Shape)?;
        let (gpu, profiles) = (gpu.trim(), profiles.trim());
        if gpu.is_empty() || profiles.is_empty() {
            return Err(PartitionError::Shape);
        }
        let profiles = profiles.split(',').map(str::parse).collect::<Result<_, UnknownProfile>>()?;
        Ok(Self { gpu: gpu.to_owned(), profiles })
    }
}

/// Partitions GPUs of a fabric. Instances are named `gpu0:0`, `gpu0:1`, … (as in NVIDIA's container tools) and replace
/// their GPU in the rank order.
///
/// # Errors
/// [`Error::Unknown`] for a GPU that does not exist; [`Error::Request`] for a GPU that is no rank, is named twice or
/// has no PCIe or C2C link, for a model without MIG, a profile that it does not have, and profiles that do not fit.
pub fn apply(fabric: Fabric, partitions: &[Partition]) -> Result<Fabric> {
    if partitions.is_empty() {
        return Ok(fabric);
    }
    let mut cuts: Vec<PartitionedGpu> = Vec::new();
    let mut seen = FxHashSet::default();
    for partition in partitions {
        for gpu in find_gpus(&fabric, &partition.gpu)? {
            if !seen.insert(gpu) {
                return Err(Error::Request(format!("{} is partitioned twice", fabric.node(gpu).id)));
            }
            cuts.push(PartitionedGpu::new(&fabric, gpu, &partition.profiles)?);
        }
    }
    let mut ranks = fabric.gpus().to_vec();
    let mut builder = FabricBuilder::reopen(fabric);
    for cut in cuts {
        let instances = cut.add_to(&mut builder)?;
        if let Some(index) = ranks.iter().position(|&rank| rank == cut.gpu) {
            ranks.splice(index..=index, instances);
        }
    }
    builder.set_rank_order(ranks);
    builder.add_source(SOURCE);
    Ok(builder.finish())
}

/// The GPUs that a name refers to: the GPU with this id, otherwise the GPU of this id in each host. A range refers to
/// several.
fn find_gpus(fabric: &Fabric, name: &str) -> Result<Vec<NodeId>> {
    let mut found = Vec::new();
    for id in ids::expand(name).map_err(Error::Request)? {
        let called = |gpu: &NodeId| {
            let full_id = &fabric.node(*gpu).id;
            full_id.rsplit_once('/').is_some_and(|(_, short)| short == &*id)
        };
        match fabric.find(&id) {
            Some(node) if fabric.gpus().contains(&node) => found.push(node),
            Some(node) => {
                let state = if fabric.node(node).kind.is_rank() { "not in use" } else { "no GPU" };
                return Err(Error::Request(format!("{id} is {state}, so it cannot be partitioned")));
            }
            None => {
                let before = found.len();
                found.extend(fabric.gpus().iter().copied().filter(called));
                if found.len() == before {
                    return Err(fabric.device(&id).err().unwrap_or(Error::Request(format!("there is no GPU {id}"))));
                }
            }
        }
    }
    Ok(found)
}

/// A GPU to be partitioned, and the instances that replace it as ranks.
struct PartitionedGpu {
    gpu: NodeId,
    instances: Vec<Node>,
    /// Link between an instance and its GPU, without latency or bandwidth limit.
    inside: LinkSpec,
}

impl PartitionedGpu {
    fn new(fabric: &Fabric, gpu: NodeId, profiles: &[MigProfile]) -> Result<Self> {
        let carrier = fabric.node(gpu);
        let refuse = |why: String| Error::Request(format!("{}: {why}", carrier.id));
        if carrier.kind != NodeKind::Gpu {
            return Err(refuse("only GPUs have MIG instances".to_owned()));
        }
        let full_gpu = match &carrier.figures {
            Figures::Gpu(figures) => (**figures).clone(),
            _ => GpuFigures::default(),
        };
        let parts =
            Board::find(&full_gpu, profiles).and_then(|board| board.instance_shares(profiles)).map_err(refuse)?;
        let uplinks: Vec<LinkKind> =
            fabric.outgoing_links(gpu).into_iter().map(|link| fabric.link(link).kind).collect();
        let kind = [LinkKind::C2c, LinkKind::Pcie].into_iter().find(|kind| uplinks.contains(kind));
        let kind =
            kind.ok_or_else(|| refuse("its instances would talk over PCIe or C2C, and there is neither".to_owned()))?;
        let inside = LinkSpec { kind, lanes: 1, forward: None, backward: None, latency: Picos::ZERO };
        let instances = profiles.iter().zip(parts).enumerate().map(|(number, (profile, part))| Node {
            id: format!("{}:{number}", carrier.id).into(),
            kind: NodeKind::Mig,
            host: carrier.host,
            figures: Figures::Gpu(Arc::new(instance_figures(&full_gpu, *profile, part))),
            attributes: Box::default(),
        });
        Ok(Self { gpu, instances: instances.collect(), inside })
    }

    fn add_to(&self, builder: &mut FabricBuilder) -> Result<Vec<NodeId>> {
        let add = |instance: &Node| {
            let duplicate_error = || Error::Request(format!("there is a device called {} already", instance.id));
            let id = builder.add_node(instance.clone()).ok_or_else(duplicate_error)?;
            builder.link(id, self.gpu, &self.inside);
            Ok(id)
        };
        self.instances.iter().map(add).collect()
    }
}

/// Figures of an instance, as its share of those of the GPU.
fn instance_figures(gpu: &GpuFigures, profile: MigProfile, part: InstanceShare) -> GpuFigures {
    let memory_share = |all: u64| {
        let share = u128::from(all) * u128::from(part.memory) / u128::from(part.memory_slices.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    };
    let sms = gpu.sm_count.map(|sms| part.sms(sms));
    let sm_share = |all: f64| match (sms, gpu.sm_count) {
        (Some(instance_sms), Some(total)) if total > 0 => all * f64::from(instance_sms) / f64::from(total),
        _ => all * f64::from(part.compute) / f64::from(part.compute_slices.max(1)),
    };
    GpuFigures {
        model: Some(
            gpu.model.as_ref().map_or_else(|| format!("MIG {profile}"), |model| format!("{model} MIG {profile}")),
        ),
        compute_capability: gpu.compute_capability,
        sm_count: sms,
        memory: gpu.memory.map(|memory| Bytes(memory_share(memory.0))),
        memory_bandwidth: gpu.memory_bandwidth.map(|rate| Bandwidth(memory_share(rate.0))),
        copy_engines: Some(part.compute),
        bf16_tflops: gpu.bf16_tflops.map(sm_share),
    }
}
