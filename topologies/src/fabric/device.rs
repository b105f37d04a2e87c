//! Devices: the vertices, and the figures that each kind carries.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{HostId, LinkKind};
use crate::{Bandwidth, Bytes};

/// What a vertex is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// A GPU: can be a rank.
    Gpu,
    /// A MIG instance of a GPU: can be a rank, has a share of its GPU and no peer access to its siblings.
    Mig,
    /// Any other accelerator: can be a rank.
    Accelerator,
    /// An NVSwitch.
    Nvswitch,
    /// A PCIe switch.
    PcieSwitch,
    /// A CPU socket (a NUMA node) with its memory.
    Cpu,
    /// A network interface.
    Nic,
    /// A network switch (InfiniBand or Ethernet).
    Switch,
}

impl NodeKind {
    /// Whether a rank can live on it.
    #[must_use]
    pub fn is_rank(self) -> bool {
        matches!(self, Self::Gpu | Self::Mig | Self::Accelerator)
    }
}

/// A vertex of the fabric.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its id, unique in the fabric: `gpu0`, `n3/nic1`, or as written in a spec.
    pub id: Box<str>,
    /// What it is.
    pub kind: NodeKind,
    /// The machine it sits in; network switches sit in a host of their own kind (`network`).
    pub host: HostId,
    /// The figures known of it.
    pub figures: Figures,
    /// Facts of the source that fabricast carries through unread (PCI ids, affinity), sorted by name.
    pub attributes: Attributes,
}

impl Node {
    /// Whether it is a GPU of AMD's, whose compute capability is the number of its architecture (`gfx942`: 942).
    #[must_use]
    pub fn is_amd(&self) -> bool {
        let gfx = match &self.figures {
            Figures::Gpu(figures) => figures.compute_capability,
            _ => None,
        };
        self.attributes.iter().any(|(name, _)| &**name == "gcn") || gfx.is_some_and(|gfx| gfx >= 900)
    }
}

/// Named facts, sorted by name.
pub type Attributes = Box<[(Box<str>, Box<str>)]>;

/// Figures of a device, by kind. Absent figures are unknown; an unknown capacity is unlimited.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Figures {
    /// Nothing known.
    #[default]
    None,
    /// A GPU, a MIG instance or an accelerator.
    Gpu(Arc<GpuFigures>),
    /// A CPU socket.
    Cpu(Arc<CpuFigures>),
    /// A NIC.
    Nic(Arc<NicFigures>),
    /// An NVSwitch, a PCIe switch or a network switch.
    Switch(Arc<SwitchFigures>),
}

impl Figures {
    /// Whether no figure is known, whatever the kind; [`Figures::None`] says the same.
    #[must_use]
    pub fn all_unknown(&self) -> bool {
        match self {
            Self::None => true,
            Self::Gpu(figures) => **figures == GpuFigures::default(),
            Self::Cpu(figures) => **figures == CpuFigures::default(),
            Self::Nic(figures) => **figures == NicFigures::default(),
            Self::Switch(figures) => **figures == SwitchFigures::default(),
        }
    }

    /// Whether it is a switch that reduces and multicasts.
    #[must_use]
    pub fn multicasts(&self) -> bool {
        matches!(self, Self::Switch(figures) if figures.multicast == Some(true))
    }

    /// Bytes of the names in them.
    pub(crate) fn text_bytes(&self) -> usize {
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        match self {
            Self::None => 0,
            Self::Gpu(figures) => length(&figures.model),
            Self::Cpu(figures) => length(&figures.model) + length(&figures.vendor),
            Self::Nic(figures) => length(&figures.model),
            Self::Switch(figures) => length(&figures.model),
        }
    }
}

/// What is known of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuFigures {
    /// Marketing name: `H200 SXM`.
    pub model: Option<String>,
    /// Compute capability × 10 (90 is 9.0), as NCCL's `sm`; for AMD the gfx number.
    pub compute_capability: Option<u32>,
    /// Streaming multiprocessors (compute units).
    pub sm_count: Option<u32>,
    /// Memory size.
    pub memory: Option<Bytes>,
    /// Memory bandwidth, reads and writes together.
    pub memory_bandwidth: Option<Bandwidth>,
    /// Copy engines that can move data to peers at once.
    pub copy_engines: Option<u32>,
    /// Dense 16-bit tensor throughput in TFLOP/s, without sparsity.
    pub bf16_tflops: Option<f64>,
}

/// The instruction set of a CPU, as NCCL's topology files name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpuArch {
    /// x86_64.
    #[serde(rename = "x86_64")]
    X86,
    /// arm64.
    #[serde(rename = "arm64")]
    Arm,
    /// ppc64.
    #[serde(rename = "ppc64")]
    Power,
}

/// What is known of a CPU socket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuFigures {
    /// Marketing name.
    pub model: Option<String>,
    /// Instruction set.
    pub arch: Option<CpuArch>,
    /// Vendor as CPUID gives it: `GenuineIntel`, `AuthenticAMD`.
    pub vendor: Option<String>,
    /// CPUID family.
    pub family: Option<u32>,
    /// CPUID model.
    pub model_id: Option<u32>,
    /// NUMA node number; −1 where the machine hides it.
    pub numa: Option<i32>,
    /// Memory bandwidth.
    pub memory_bandwidth: Option<Bandwidth>,
    /// Memory size.
    pub memory: Option<Bytes>,
}

/// What is known of a NIC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicFigures {
    /// Marketing or device name: `ConnectX-7`, `mlx5_0`.
    pub model: Option<String>,
    /// Line rate, all ports.
    pub speed: Option<Bandwidth>,
    /// Whether it reads and writes GPU memory directly (GPUDirect RDMA).
    pub gdr: Option<bool>,
    /// Largest IP packet that it sends over Ethernet, in bytes: 1500, or 9000 where jumbo frames are on.
    pub mtu: Option<u32>,
    /// What its port speaks, `infiniband` or `ethernet`, where somebody said so; the kind of its cable else.
    pub link: Option<LinkKind>,
}

/// What is known of a switch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SwitchFigures {
    /// Marketing name: `NVSwitch 3`, `Quantum-2`.
    pub model: Option<String>,
    /// What all its ports together can forward; absent is non-blocking.
    pub capacity: Option<Bandwidth>,
    /// Whether it reduces and multicasts in the switch (NVLS, SHARP).
    pub multicast: Option<bool>,
}
