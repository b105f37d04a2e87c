//! Causes that may slow down a machine, with a description and a command that confirms or refutes each.

use std::fmt;

use fabricast_collectives::algorithm::Algorithm;
use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::Picos;

use super::defects::{KnownDefect, Slowdown};
use crate::measured::P2pChannels;

/// A fault or setting that may explain why a group is slow.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// NVLink SHARP is not used.
    NvlsOff,
    /// GPUs of a host communicate through host memory.
    PeerAccessOff {
        /// Predicted rate of copies through host memory ÷ rate in effect. The IOMMU, other NUMA nodes and the CPU that
        /// waits for the copies slow them down.
        divisor: u16,
    },
    /// GPUs of a host that are connected through a CPU communicate through host memory.
    PeerAccessInSwitches {
        /// Predicted rate of copies through host memory ÷ rate in effect.
        divisor: u16,
    },
    /// Network traffic passes through host memory.
    GpuDirectOff {
        /// Predicted rate of copies through host memory ÷ rate in effect.
        divisor: u16,
    },
    /// A virtual machine hides PCIe switches and NUMA nodes. All paths over PCIe lead through a CPU then, where NCCL uses
    /// neither peer access nor GPUDirect RDMA.
    HiddenTopology {
        /// Predicted rate of copies through host memory ÷ rate in effect.
        divisor: u16,
    },
    /// NCCL's topology search finds no graph, so that the ranks are connected in order by one channel, and over one NIC of
    /// each host.
    FallbackGraph,
    /// A published defect of the library's release.
    KnownDefect(KnownDefect, Slowdown),
    /// Messages between hosts go over TCP sockets.
    Sockets {
        /// Network interfaces that carry the messages: one of each host, or all.
        interfaces: Extent,
    },
    /// The host spends more time on each call than described: CPU clock, load or affinity, or the framework.
    HostSlow {
        /// Additional time per call.
        added: Picos,
    },
    /// NVLinks of a GPU are down.
    NvlinksDown {
        /// Number of links that are down.
        down: u16,
        /// Number of links of the GPU.
        links: u16,
    },
    /// NICs are down or not used.
    NicsDown {
        /// Number of NICs of a host that are down.
        down: u16,
        /// Number of NICs of a host.
        nics: u16,
        /// Hosts that are affected.
        extent: Extent,
    },
    /// Links of NICs run at a fraction of their rate.
    NicsSlow {
        /// Rate that the fabric states ÷ rate in effect.
        divisor: u16,
        /// NICs that are affected.
        extent: Extent,
    },
    /// PCIe links run at a fraction of their rate, because of fewer lanes or an older generation.
    PcieSlow {
        /// Devices at the end of the links.
        device: PcieDevice,
        /// Rate that the fabric states ÷ rate in effect.
        divisor: u16,
        /// Links that are affected.
        extent: Extent,
    },
    /// The library runs another algorithm or protocol than predicted.
    Strategy {
        /// Algorithm that runs; `None`: the predicted one.
        algorithm: Option<Algorithm>,
        /// Protocol that runs; `None`: the predicted one.
        protocol: Option<Protocol>,
    },
    /// The library uses at most this number of channels.
    MaxChannels(u16),
    /// Sends to a peer on another host use at most this number of channels.
    MaxChannelsPerPeer(u16),
    /// Calls are launched in another mode than described.
    Launch(Launch, Processes),
    /// Sends and receives between hosts use fewer channels per peer than their NICs need. This cause is not simulated;
    /// it is reported for slow sends between hosts that no simulated cause explains.
    ChannelsPerPeer {
        /// Channels of sends and receives that NCCL reports; `None` if the log does not state them.
        logged: Option<P2pChannels>,
        /// Channels per peer needed to saturate the NIC.
        required: u16,
    },
}

/// Extent of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// One device, or one host.
    One,
    /// All devices, or all hosts.
    All,
}

/// Device at the end of a PCIe link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PcieDevice {
    /// A GPU.
    Gpu,
    /// A NIC.
    Nic,
}

impl Cause {
    /// Class of the cause, which all its variants share: `nvls`, `peer_access`, `gpu_direct`, `topology`, `search`,
    /// `version`, `sockets`, `host`, `nvlink`, `nic`, `pcie`, `strategy`, `channels`, `channels_per_peer` or `launch`.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::NvlsOff => "nvls",
            Self::PeerAccessOff { .. } | Self::PeerAccessInSwitches { .. } => "peer_access",
            Self::GpuDirectOff { .. } => "gpu_direct",
            Self::HiddenTopology { .. } => "topology",
            Self::FallbackGraph => "search",
            Self::KnownDefect(..) => "version",
            Self::Sockets { .. } => "sockets",
            Self::HostSlow { .. } => "host",
            Self::NvlinksDown { .. } => "nvlink",
            Self::NicsDown { .. } | Self::NicsSlow { .. } => "nic",
            Self::PcieSlow { .. } => "pcie",
            Self::Strategy { .. } => "strategy",
            Self::MaxChannels(_) => "channels",
            Self::MaxChannelsPerPeer(_) | Self::ChannelsPerPeer { .. } => "channels_per_peer",
            Self::Launch(..) => "launch",
        }
    }

    /// Command that confirms or refutes the cause.
    #[must_use]
    pub fn check(&self) -> String {
        match self {
            Self::NvlsOff => "NCCL_DEBUG=INFO (NVLS multicast support); env | grep NCCL_NVLS_ENABLE; \
                              systemctl status nvidia-fabricmanager"
                .to_owned(),
            Self::PeerAccessOff { .. } => "nvidia-smi topo -p2p r; NCCL_DEBUG=INFO (via SHM instead of via P2P); \
                                    env | grep NCCL_P2P; ACS by sudo lspci -vvv | grep ACSCtl"
                .to_owned(),
            Self::PeerAccessInSwitches { .. } => {
                "NCCL_DEBUG=INFO (via SHM between GPUs of different switches); the same run with NCCL_P2P_LEVEL=SYS; \
                 ACS by sudo lspci -vvv | grep ACSCtl; IOMMU by cat /proc/cmdline"
                    .to_owned()
            }
            Self::HiddenTopology { .. } => {
                "nvidia-smi topo -m in the virtual machine and on its host; env | grep NCCL_TOPO_FILE; \
                 the same run with NCCL_NET_GDR_LEVEL=SYS NCCL_P2P_LEVEL=SYS"
                    .to_owned()
            }
            Self::FallbackGraph => {
                "NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=GRAPH (falling back to simple order, bw 0.1); the same run with \
                 NCCL_PXN_DISABLE=1, and with another release"
                    .to_owned()
            }
            Self::KnownDefect(defect, _) => format!("the same run with {}", defect.remedy()),
            Self::GpuDirectOff { .. } => {
                "NCCL_DEBUG=INFO (GDRDMA missing in NET/IB lines); lsmod | grep nvidia_peermem; \
                                   env | grep NCCL_NET_GDR"
                    .to_owned()
            }
            Self::Sockets { .. } => "NCCL_DEBUG=INFO (NET/Socket instead of NET/IB or NET/OFI); \
                              env | grep -E 'NCCL_NET|NCCL_IB_DISABLE'"
                .to_owned(),
            // The range is that of PyTorch's documentation (docs.pytorch.org/docs/main/elastic/numa.html). No public
            // measurement of a collective differs in the binding alone.
            Self::HostSlow { .. } => {
                "nvidia-smi topo -m (CPU affinity of each GPU), then numactl --cpunodebind=N --membind=N (its gain is not \
                 predicted; PyTorch states 1 to 10 % of typical training runs); cpupower frequency-info; CPU load"
                    .to_owned()
            }
            Self::NvlinksDown { .. } => "nvidia-smi nvlink --status; nvidia-smi nvlink -e".to_owned(),
            Self::NicsDown { .. } => {
                "ibstat | grep -E 'CA |State'; env | grep NCCL_IB_HCA; NCCL_DEBUG=INFO (NET/IB : Using)".to_owned()
            }
            Self::NicsSlow { .. } => "ibstat | grep -E 'CA |Rate'; ethtool on RoCE; mlxlink for errors".to_owned(),
            Self::PcieSlow { device: PcieDevice::Gpu, .. } => {
                "nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.width.current --format=csv (under load)"
                    .to_owned()
            }
            Self::PcieSlow { device: PcieDevice::Nic, .. } => {
                "sudo lspci -vv -d 15b3: | grep -E 'Ethernet|Infiniband|LnkSta:'".to_owned()
            }
            Self::Strategy { .. } => "env | grep NCCL_; cat /etc/nccl.conf; NCCL_DEBUG=INFO with \
                                      NCCL_DEBUG_SUBSYS=TUNING (a line per choice)"
                .to_owned(),
            Self::MaxChannels(_) => "env | grep -E 'NCHANNELS|CTAS'; NCCL_DEBUG=INFO (coll channels)".to_owned(),
            Self::MaxChannelsPerPeer(_) | Self::ChannelsPerPeer { .. } => {
                "env | grep NCHANNELS; NCCL_DEBUG=INFO (p2p channels per peer)".to_owned()
            }
            Self::Launch(Launch::Stream, Processes::PerGpu | Processes::Single) => {
                "the command of the run: CUDA graphs (nccl-tests -G 1), and processes or threads per GPU (-t, -g)"
                    .to_owned()
            }
            Self::Launch(Launch::Graph, _) => {
                "the command of the run: processes or threads per GPU (nccl-tests -t, -g)".to_owned()
            }
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NvlsOff => f.write_str("NVLink SHARP (NVLS) is off"),
            Self::PeerAccessOff { divisor } => {
                f.write_str("GPUs of a host have no peer access and communicate through host memory")?;
                slower_copies(f, divisor)
            }
            Self::GpuDirectOff { divisor } => {
                f.write_str("GPUDirect RDMA is off: network traffic passes through host memory")?;
                slower_copies(f, divisor)
            }
            Self::PeerAccessInSwitches { divisor } => {
                f.write_str("GPUs of different PCIe switches have no peer access and communicate through host memory")?;
                slower_copies(f, divisor)
            }
            Self::HiddenTopology { divisor } => {
                f.write_str(
                    "a virtual machine hides PCIe switches, so that traffic over PCIe passes through host memory",
                )?;
                slower_copies(f, divisor)
            }
            Self::FallbackGraph => f.write_str(
                "the library's topology search fails, and its ranks are connected in order, by one channel and one NIC",
            ),
            Self::KnownDefect(defect, slowdown) => {
                write!(f, "this release {}, {} times slower", defect.description(), slowdown.ratio())
            }
            Self::Sockets { interfaces: Extent::One } => {
                f.write_str("messages between hosts go over TCP sockets, on one network interface")
            }
            Self::Sockets { interfaces: Extent::All } => {
                f.write_str("messages between hosts go over TCP sockets, on all network interfaces")
            }
            Self::HostSlow { added } => write!(
                f,
                "the host spends {} µs more on each call (CPU clock, load or affinity, or the framework)",
                added.0 / 1_000_000
            ),
            Self::NvlinksDown { down, links } => write!(f, "{down} of {links} NVLinks of a GPU are down"),
            Self::NicsDown { down, nics, extent } => {
                let verb = if down == 1 { "is" } else { "are" };
                match extent {
                    Extent::One => write!(f, "{down} of {nics} NICs of one host {verb} down"),
                    Extent::All => write!(f, "{down} of {nics} NICs of each host {verb} not used"),
                }
            }
            Self::NicsSlow { divisor, extent } => match extent {
                Extent::One => write!(f, "the link of one NIC runs at 1/{divisor} of its rate"),
                Extent::All => write!(f, "the links of all NICs run at 1/{divisor} of their rate"),
            },
            Self::PcieSlow { device, divisor, extent } => {
                let device = match device {
                    PcieDevice::Gpu => "GPU",
                    PcieDevice::Nic => "NIC",
                };
                let reason = "fewer lanes or an older generation";
                match extent {
                    Extent::One => {
                        write!(f, "the PCIe link of one {device} runs at 1/{divisor} of its rate ({reason})")
                    }
                    Extent::All => {
                        write!(f, "the PCIe links of all {device}s run at 1/{divisor} of their rate ({reason})")
                    }
                }
            }
            Self::Strategy { algorithm, protocol } => {
                f.write_str("the library runs")?;
                if let Some(algorithm) = algorithm {
                    write!(f, " {algorithm}")?;
                }
                if let Some(protocol) = protocol {
                    write!(f, " {protocol}")?;
                }
                f.write_str(" instead of its usual choice")
            }
            Self::MaxChannels(1) => f.write_str("the library uses 1 channel"),
            Self::MaxChannels(count) => write!(f, "the library uses at most {count} channels"),
            Self::MaxChannelsPerPeer(1) => f.write_str("sends use 1 channel per peer on another host"),
            Self::MaxChannelsPerPeer(count) => {
                write!(f, "sends use at most {count} channels per peer on another host")
            }
            Self::Launch(launch, processes) => {
                f.write_str(match launch {
                    Launch::Graph => "calls are replayed from CUDA graphs",
                    Launch::Stream => "calls are launched one by one, without CUDA graphs",
                })?;
                f.write_str(match processes {
                    Processes::PerGpu => ", by a process per GPU",
                    Processes::Single => ", by one process for all GPUs of a host",
                })
            }
            Self::ChannelsPerPeer { logged, required } => {
                if let Some(P2pChannels { all, per_peer }) = logged {
                    write!(f, "NCCL reports {per_peer} p2p channels per peer ({all} in all); ")?;
                }
                write!(
                    f,
                    "a channel of sends drives some 14 GB/s of a network, so channels per peer may limit this: try \
                     NCCL_NCHANNELS_PER_NET_PEER={required}"
                )
            }
        }
    }
}

/// States how much slower copies through host memory are than predicted.
fn slower_copies(f: &mut fmt::Formatter<'_>, divisor: u16) -> fmt::Result {
    if divisor == 1 { Ok(()) } else { write!(f, ", at 1/{divisor} of the predicted rate") }
}
