//! `gpu probe`: the GPUs of this machine, how they are joined, and which libraries could drive them.
//!
//! The CUDA driver is asked for devices and peer access, NVML for links, the kernel's files for the PCIe tree and the
//! CPUs. What a machine does not show (a virtual machine hides much) is absent, not guessed.

mod libraries;
mod look;
mod pci;
mod text;
mod topology;

use serde::{Deserialize, Serialize};

pub use libraries::{Choices, Found, Libraries};
pub use look::probe;
pub use topology::vertex;

/// What `gpu probe` found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// CUDA version that the driver supports, as `13.0`.
    pub driver_cuda: String,
    /// The driver's own version, as `580.159.04`.
    #[serde(default)]
    pub driver: Option<String>,
    /// The GPUs, by ordinal.
    pub devices: Vec<Device>,
    /// Each ordered pair of GPUs.
    #[serde(default)]
    pub pairs: Vec<Pair>,
    /// The CPUs' make.
    #[serde(default)]
    pub cpu: Cpu,
    /// NCCL, NVSHMEM and NVRTC, where they were found.
    #[serde(default)]
    pub libraries: Libraries,
    /// What could not be looked at, and why.
    #[serde(default)]
    pub unknown: Vec<String>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Its ordinal.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Compute capability × 10.
    pub compute_capability: u32,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// Memory that was free, in bytes.
    pub memory_free: Option<u64>,
    /// Bytes a second of its memory, by the width of its bus and its clock; absent where the driver does not say.
    pub memory_bandwidth: Option<u64>,
    /// Copy engines.
    pub copy_engines: u32,
    /// Ordinals of the GPUs whose memory it can read and write.
    pub peers: Vec<usize>,
    /// Its place on the PCIe bus.
    pub pci: Pci,
    /// Its NVLinks, those that are down included.
    pub nvlinks: Vec<NvLink>,
    /// Whether it is cut into MIG instances; absent where it cannot be.
    pub mig: Option<bool>,
}

/// A GPU's place on the PCIe bus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pci {
    /// Its address, as `0000:1b:00.0`.
    pub address: String,
    /// The bridges above it, the nearest first, one for each PCIe switch.
    pub bridges: Vec<String>,
    /// Ids of vendor and device, and those of the board, as `0x10de`.
    pub ids: [String; 4],
    /// The NUMA node that it is nearest to; −1 where the machine hides it.
    pub numa: i32,
    /// Generation of its link now; a GPU at rest lowers it.
    pub generation: Option<u32>,
    /// Lanes of its link now.
    pub width: Option<u32>,
    /// The best generation that it and its slot can.
    pub max_generation: Option<u32>,
    /// The most lanes that it and its slot can.
    pub max_width: Option<u32>,
}

/// One NVLink of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLink {
    /// Its number.
    pub link: u32,
    /// Whether it is up.
    pub active: bool,
    /// What is at its other end.
    pub to: Remote,
    /// PCI address of that, where the machine shows it.
    #[serde(default)]
    pub remote_pci: Option<String>,
    /// MB/s of one direction, as the driver counts them.
    #[serde(default)]
    pub speed_mbps: Option<u32>,
    /// Replays and recoveries since the driver was loaded.
    #[serde(default)]
    pub errors: Option<u64>,
}

/// What an NVLink leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remote {
    /// A GPU.
    Gpu,
    /// An NVSwitch.
    Nvswitch,
    /// A CPU.
    Cpu,
    /// The machine does not show it.
    Unknown,
}

/// What one GPU can do with another's memory, and how far they are apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// The GPU that reads and writes.
    pub src: usize,
    /// The GPU whose memory it is.
    pub dst: usize,
    /// Whether it can.
    pub access: PeerAccess,
    /// Whether atomic operations work over it.
    pub native_atomics: bool,
    /// The driver's rank of the way; 0 is the fastest.
    pub performance_rank: i32,
    /// What they share on the way over PCIe, as `nvidia-smi topo` calls it: PIX, PXB, PHB, NODE, SYS.
    #[serde(default)]
    pub pcie_way: Option<PcieWay>,
}

/// Whether a GPU reaches another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerAccess {
    /// Loads, stores and copies go from GPU to GPU.
    Direct,
    /// Copies rest in the host's memory.
    Staged,
}

/// What two GPUs share on the way over PCIe, in the words of `nvidia-smi topo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PcieWay {
    /// A board or one PCIe switch.
    Pix,
    /// Several PCIe switches.
    Pxb,
    /// A CPU's host bridge.
    Phb,
    /// A NUMA node, between its host bridges.
    Node,
    /// The way between CPUs.
    Sys,
}

/// The CPUs' make, as CPUID gives it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// `x86_64` or `arm64`.
    pub arch: String,
    /// `GenuineIntel`, `AuthenticAMD`.
    pub vendor: String,
    /// CPUID family.
    pub family: u32,
    /// CPUID model.
    pub model: u32,
    /// Its name.
    pub name: String,
}

impl Probe {
    /// The pair of two GPUs.
    pub fn pair(&self, src: usize, dst: usize) -> Option<&Pair> {
        self.pairs.iter().find(|pair| pair.src == src && pair.dst == dst)
    }

    /// Leaves only the first GPUs.
    pub(super) fn keep_first(&mut self, count: usize) {
        self.devices.truncate(count);
        self.pairs.retain(|pair| pair.src < count && pair.dst < count);
        self.devices.iter_mut().for_each(|device| device.peers.retain(|&peer| peer < count));
    }

    /// The GPUs in a few words: `4 × NVIDIA H200, driver 580.159.04`.
    pub fn machine(&self) -> String {
        let name = self.devices.first().map_or("no GPU", |device| device.name.as_str());
        let driver = self.driver.clone().unwrap_or_else(|| format!("of CUDA {}", self.driver_cuda));
        format!("{} × {name}, driver {driver}", self.devices.len())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A host of H200 on NVSwitches, as a virtual machine shows it.
    pub(crate) fn machine(gpus: usize) -> Probe {
        let link = |link| NvLink {
            link,
            active: true,
            to: Remote::Nvswitch,
            remote_pci: None,
            speed_mbps: Some(26_562),
            errors: Some(0),
        };
        let device = |ordinal: usize| Device {
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
            ..Device::default()
        };
        let pair = |(src, dst)| Pair {
            src,
            dst,
            access: PeerAccess::Direct,
            native_atomics: true,
            performance_rank: 0,
            pcie_way: Some(PcieWay::Phb),
        };
        let pairs = (0..gpus).flat_map(|a| (0..gpus).map(move |b| (a, b))).filter(|(a, b)| a != b);
        Probe {
            driver_cuda: "13.0".into(),
            driver: Some("580.159.04".into()),
            devices: (0..gpus).map(device).collect(),
            pairs: pairs.map(pair).collect(),
            cpu: Cpu { arch: "x86_64".into(), vendor: "GenuineIntel".into(), family: 6, model: 207, ..Cpu::default() },
            libraries: Libraries::default(),
            unknown: Vec::new(),
        }
    }

    #[test]
    fn what_was_found_is_read_back_from_json() {
        let probe = machine(2);
        let text = serde_json::to_string(&probe).unwrap();
        assert_eq!(serde_json::from_str::<Probe>(&text).unwrap(), probe);
    }

    #[test]
    fn people_read_devices_links_and_ways() {
        let text = machine(2).to_string();
        assert!(text.contains("18 of 18 up, 18 to switches, 26.6 GB/s"), "{text}");
        assert!(text.contains("    1  NVL    -"), "{text}");
    }
}
