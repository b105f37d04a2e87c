//! Devices of a fabric and the figures of each kind of device.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{HostId, LinkKind};
use crate::{Bandwidth, Bytes};

/// Kind of a device. It determines the device's figures and which traffic the device forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// A GPU; can be a rank.
    Gpu,
    /// A MIG instance of a GPU; can be a rank. It has a share of its GPU and no peer access to the other instances.
    Mig,
    /// Any other accelerator; can be a rank.
    Accelerator,
    /// An NVSwitch, which joins GPUs by NVLink.
    Nvswitch,
    /// A PCIe switch between devices and a CPU.
    PcieSwitch,
    /// A CPU socket (a NUMA node) with its memory.
    Cpu,
    /// A network interface.
    Nic,
    /// A network switch (InfiniBand or Ethernet).
    Switch,
}

impl NodeKind {
    /// Returns true if a device of this kind can be a rank.
    #[must_use]
    pub fn is_rank(self) -> bool {
        matches!(self, Self::Gpu | Self::Mig | Self::Accelerator)
    }
}

/// A device (a vertex of the fabric).
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Textual id, unique in the fabric: `gpu0`, `n3/nic1`, or as written in a spec.
    pub id: Box<str>,
    /// Kind of the device.
    pub kind: NodeKind,
    /// Host of the device. Network switches belong to a separate host, `network`.
    pub host: HostId,
    /// Known figures of the device.
    pub figures: Figures,
    /// Attributes from the source that fabricast passes through without interpreting them (PCI ids, affinity), sorted
    /// by name.
    pub attributes: Attributes,
}

impl Node {
    /// Returns true for AMD GPUs, whose compute capability is the number of the architecture (`gfx942`: 942).
    #[must_use]
    pub fn is_amd(&self) -> bool {
        let gfx = match &self.figures {
            Figures::Gpu(figures) => figures.compute_capability,
            _ => None,
        };
        self.attributes.iter().any(|(name, _)| &**name == "gcn") || gfx.is_some_and(|gfx| gfx >= 900)
    }
}

/// Names and values of a device's attributes, sorted by name.
pub type Attributes = Box<[(Box<str>, Box<str>)]>;

/// Figures of a device, by kind. Absent figures are unknown; an unknown capacity is unlimited.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Figures {
    /// The figures of the device are unknown.
    #[default]
    None,
    /// Figures of a GPU, a MIG instance or an accelerator.
    Gpu(Arc<GpuFigures>),
    /// Figures of a CPU socket.
    Cpu(Arc<CpuFigures>),
    /// Figures of a NIC.
    Nic(Arc<NicFigures>),
    /// Figures of an NVSwitch, a PCIe switch or a network switch.
    Switch(Arc<SwitchFigures>),
}

impl Figures {
    /// Returns true if no figure is known. Equivalent to [`Figures::None`] for every kind of device.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::None => true,
            Self::Gpu(figures) => **figures == GpuFigures::default(),
            Self::Cpu(figures) => **figures == CpuFigures::default(),
            Self::Nic(figures) => **figures == NicFigures::default(),
            Self::Switch(figures) => **figures == SwitchFigures::default(),
        }
    }

    /// Returns true for a switch that supports in-network reduction and multicast.
    #[must_use]
    pub fn supports_multicast(&self) -> bool {
        matches!(self, Self::Switch(figures) if figures.multicast == Some(true))
    }

    /// Total length of the texts in these figures (model, vendor), in bytes.
    pub(crate) fn name_bytes(&self) -> usize {
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

/// Known figures of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuFigures {
    /// Marketing name of the model: `H200 SXM`.
    pub model: Option<String>,
    /// Compute capability × 10 (90 is 9.0), as NCCL's `sm`; for AMD the gfx number.
    pub compute_capability: Option<u32>,
    /// Number of streaming multiprocessors (AMD: compute units).
    pub sm_count: Option<u32>,
    /// Size of the device's memory.
    pub memory: Option<Bytes>,
    /// Memory bandwidth, reads and writes in total.
    pub memory_bandwidth: Option<Bandwidth>,
    /// Number of copy engines that can transfer to peers concurrently.
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

/// Known figures of a CPU socket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuFigures {
    /// Marketing name of the processor.
    pub model: Option<String>,
    /// Instruction set of the processor.
    pub arch: Option<CpuArch>,
    /// Vendor string of CPUID: `GenuineIntel`, `AuthenticAMD`.
    pub vendor: Option<String>,
    /// Family number that CPUID reports, as NCCL's `familyid`.
    pub family: Option<u32>,
    /// Model number that CPUID reports, as NCCL's `modelid`.
    pub model_id: Option<u32>,
    /// NUMA node number; −1 if the machine does not expose it.
    pub numa: Option<i32>,
    /// Bandwidth of the host memory of this socket.
    pub memory_bandwidth: Option<Bandwidth>,
    /// Size of the host memory of this socket.
    pub memory: Option<Bytes>,
}

/// Known figures of a NIC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicFigures {
    /// Marketing or device name: `ConnectX-7`, `mlx5_0`.
    pub model: Option<String>,
    /// Line rate in each direction, sum of all ports.
    pub speed: Option<Bandwidth>,
    /// Support for GPUDirect RDMA (direct access to GPU memory).
    pub gdr: Option<bool>,
    /// MTU of Ethernet (largest IP packet) in bytes: 1500, or 9000 with jumbo frames.
    pub mtu: Option<u32>,
    /// Protocol of the ports, `infiniband` or `ethernet`, if stated. If `None`, the kind of the NIC's cable applies.
    pub link: Option<LinkKind>,
    /// Adaptive routing of the packets of a message, if stated. If `None`, NCCL's default applies: on with InfiniBand.
    pub adaptive_routing: Option<bool>,
    /// Number of queue pairs of a connection, if stated. If `None`, NCCL's default of 1 applies.
    pub queue_pairs: Option<u32>,
}

/// Known figures of a switch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SwitchFigures {
    /// Marketing name of the model: `NVSwitch 3`, `Quantum-2`.
    pub model: Option<String>,
    /// Aggregate forwarding capacity of all ports; `None` is non-blocking.
    pub capacity: Option<Bandwidth>,
    /// Support for in-network reduction and multicast (NVLS, SHARP).
    pub multicast: Option<bool>,
}
