//! `gpu probe`: the GPUs of this machine, their links, and the libraries that could use them.
//!
//! The CUDA driver supplies devices and peer access, NVML supplies links, and the kernel's files supply the PCIe tree
//! and the CPUs. Properties that a machine does not expose (virtual machines hide many) are absent and never assumed.

mod libraries;
mod pci;
mod query;
mod text;
mod topology;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use libraries::{Choices, Found, Libraries};
pub use query::probe;
pub use topology::vertex;

/// Result of `gpu probe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// CUDA version that the driver supports, such as `13.0`.
    pub driver_cuda: String,
    /// Version of the driver, such as `580.159.04`.
    #[serde(default)]
    pub driver: Option<String>,
    /// The GPUs, by ordinal.
    pub devices: Vec<ProbedDevice>,
    /// Each ordered pair of GPUs.
    #[serde(default)]
    pub pairs: Vec<Pair>,
    /// CPU model of the machine.
    #[serde(default)]
    pub cpu: Cpu,
    /// NCCL, NVSHMEM and NVRTC, if found.
    #[serde(default)]
    pub libraries: Libraries,
    /// Properties that could not be probed, with reasons.
    #[serde(default)]
    #[serde(rename = "unknown")]
    pub not_probed: Vec<String>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Device")]
pub struct ProbedDevice {
    /// Ordinal of the GPU.
    pub ordinal: usize,
    /// Name of the GPU.
    pub name: String,
    /// Compute capability × 10.
    pub compute_capability: u32,
    /// Number of streaming multiprocessors.
    pub sm_count: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// Free memory in bytes.
    pub memory_free: Option<u64>,
    /// Memory bandwidth in bytes per second, computed from bus width and clock. `None` if the driver does not report
    /// them.
    pub memory_bandwidth: Option<u64>,
    /// Number of copy engines.
    pub copy_engines: u32,
    /// Ordinals of the GPUs whose memory this GPU can access.
    pub peers: Vec<usize>,
    /// Location on the PCIe bus.
    pub pci: Pci,
    /// All NVLinks, including those that are down.
    pub nvlinks: Vec<NvLink>,
    /// True if the GPU is partitioned into MIG instances. `None` if it does not support MIG.
    pub mig: Option<bool>,
}

/// Location and link of a GPU on the PCIe bus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Pci {
    /// PCI address, such as `0000:1b:00.0`.
    pub address: String,
    /// Bridges above the GPU, the nearest first, one per PCIe switch.
    pub bridges: Vec<String>,
    /// IDs of vendor, device, subsystem vendor and subsystem device, such as `0x10de`.
    pub ids: [String; 4],
    /// Nearest NUMA node; −1 if the machine hides it.
    pub numa: i32,
    /// Current generation of the link. An idle GPU lowers its generation.
    pub generation: Option<u32>,
    /// Current number of lanes.
    pub width: Option<u32>,
    /// Highest generation that both device and slot support.
    pub max_generation: Option<u32>,
    /// Largest number of lanes that both device and slot support.
    pub max_width: Option<u32>,
}

/// One NVLink of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NvLink {
    /// Index of the link.
    pub link: u32,
    /// True if the link is up.
    pub active: bool,
    /// Device at the other end.
    pub to: Remote,
    /// PCI address of the remote device, if the machine exposes it.
    #[serde(default)]
    pub remote_pci: Option<String>,
    /// Bandwidth of one direction in MB/s, in the driver's units.
    #[serde(default)]
    pub speed_mbps: Option<u32>,
    /// Replays and recoveries since the driver was loaded.
    #[serde(default)]
    pub errors: Option<u64>,
}

/// Kind of device that an NVLink connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Remote {
    /// A GPU.
    Gpu,
    /// An NVSwitch.
    Nvswitch,
    /// A CPU.
    Cpu,
    /// Not reported by the machine.
    Unknown,
}

/// Access of one GPU to another's memory, and their distance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pair {
    /// Ordinal of the accessing GPU.
    pub src: usize,
    /// Ordinal of the GPU that owns the memory.
    pub dst: usize,
    /// Kind of access.
    pub access: PeerAccess,
    /// True if native atomic operations are supported.
    pub native_atomics: bool,
    /// The driver's performance rank of the path; 0 is the fastest.
    pub performance_rank: i32,
    /// Closest common ancestor on PCIe, as named by `nvidia-smi topo`: PIX, PXB, PHB, NODE, SYS.
    #[serde(default)]
    #[serde(alias = "pcie_way")]
    pub pcie_path: Option<PciePath>,
}

/// Kind of access to a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PeerAccess {
    /// Loads, stores and copies go directly from GPU to GPU.
    Direct,
    /// Copies are staged in host memory.
    Staged,
}

/// Closest common ancestor of two GPUs on PCIe, as named by `nvidia-smi topo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum PciePath {
    /// A board or a single PCIe switch.
    Pix,
    /// Several PCIe switches.
    Pxb,
    /// The host bridge of a CPU.
    Phb,
    /// A NUMA node, across its host bridges.
    Node,
    /// The interconnect between CPU sockets.
    Sys,
}

/// CPU model, as reported by CPUID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Cpu {
    /// Architecture: `x86_64` or `arm64`.
    pub arch: String,
    /// CPUID vendor: `GenuineIntel`, `AuthenticAMD`.
    pub vendor: String,
    /// CPUID family.
    pub family: u32,
    /// CPUID model.
    pub model: u32,
    /// Model name.
    pub name: String,
}

impl Probe {
    /// Returns the entry of an ordered pair of GPUs.
    pub fn pair(&self, src: usize, dst: usize) -> Option<&Pair> {
        self.pairs.iter().find(|pair| pair.src == src && pair.dst == dst)
    }

    /// Removes all GPUs except the first `count`, and the pairs of removed GPUs.
    pub(super) fn truncate(&mut self, count: usize) {
        self.devices.truncate(count);
        self.pairs.retain(|pair| pair.src < count && pair.dst < count);
        self.devices.iter_mut().for_each(|device| device.peers.retain(|&peer| peer < count));
    }

    /// Short description of the GPUs: `4 × NVIDIA H200, driver 580.159.04`.
    pub fn machine(&self) -> String {
        let name = self.devices.first().map_or("no GPU", |device| device.name.as_str());
        let driver = self.driver.clone().unwrap_or_else(|| format!("of CUDA {}", self.driver_cuda));
        format!("{} × {name}, driver {driver}", self.devices.len())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Probe of a host with H200 GPUs on NVSwitches, as a virtual machine exposes it.
    pub(crate) fn machine(gpus: usize) -> Probe {
        let link = |link| NvLink {
            link,
            active: true,
            to: Remote::Nvswitch,
            remote_pci: None,
            speed_mbps: Some(26_562),
            errors: Some(0),
        };
        let device = |ordinal: usize| ProbedDevice {
            ordinal,
            name: "NVIDIA H200".into(),
            compute_capability: 90,
            sm_count: 132,
            memory: 150_000_000_000,
            copy_engines: 3,
            peers: (0..gpus).filter(|&peer| peer != ordinal).collect(),
            pci: Pci {
                address: format!("0000:00:{:02x}.0", ordinal + 6),
                ids: ["0x10de", "0x2335", "0x10de", "0x18be"].map(str::to_owned),
                numa: -1,
                max_generation: Some(5),
                max_width: Some(16),
                ..Pci::default()
            },
            nvlinks: (0..18).map(link).collect(),
            mig: Some(false),
            ..ProbedDevice::default()
        };
        let pair = |(src, dst)| Pair {
            src,
            dst,
            access: PeerAccess::Direct,
            native_atomics: true,
            performance_rank: 0,
            pcie_path: Some(PciePath::Phb),
        };
        let pairs = (0..gpus).flat_map(|a| (0..gpus).map(move |b| (a, b))).filter(|(a, b)| a != b);
        Probe {
            driver_cuda: "13.0".into(),
            driver: Some("580.159.04".into()),
            devices: (0..gpus).map(device).collect(),
            pairs: pairs.map(pair).collect(),
            cpu: Cpu { arch: "x86_64".into(), vendor: "GenuineIntel".into(), family: 6, model: 207, ..Cpu::default() },
            libraries: Libraries::default(),
            not_probed: Vec::new(),
        }
    }

    #[test]
    fn probe_round_trips_through_json() {
        let probe = machine(2);
        let text = serde_json::to_string(&probe).unwrap();
        assert_eq!(serde_json::from_str::<Probe>(&text).unwrap(), probe);
    }

    #[test]
    fn text_lists_devices_links_and_peers() {
        let text = machine(2).to_string();
        assert!(text.contains("18 of 18 up, 18 to switches, 26.6 GB/s"), "{text}");
        assert!(text.contains("    1  NVL    -"), "{text}");
    }
}
