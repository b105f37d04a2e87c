//! Software cost profiles: the costs of one library on one generation of GPUs.
//!
//! A profile file has device-side costs per protocol, and launch costs and floors per launch mode (device-side costs do
//! not depend on the launch mode). [`Profile::ideal`] has no software cost at all. The shipped profiles in
//! `sim/profiles` name their data source and its date.

mod band;
mod band_file;
mod file;
mod message;
mod message_file;
mod network;
mod network_file;
mod packets;
mod protocol;
mod reader;
mod transport;
mod write;

use fabricast_topologies::{LinkKind, Picos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schedule::{Collective, Processor, Protocol};
pub use band::{
    Bottleneck, CallTraits, FittedTraits, PredictionInterval, PredictionIntervals, RegimeBand, TimeInterval,
    WideningFactors,
};
pub use file::Software;
pub use message::{DataPath, MemoryKind, MessageCosts, ReductionSite};
pub use network::{LARGEST_ORDERED, NetworkCosts, PacketRouting, QueuePairs, largest_message};
pub use network_file::MeasuredNetwork;
pub(crate) use protocol::MAX_EXCHANGE_PEERS;
pub use protocol::{
    BlockWork, ChannelLimit, Destination, LocalStore, OperationKind, PairwiseExchange, Passes, ProtocolCosts, Role,
    SendBuffer, SharedPasses,
};
pub use reader::ProfileError;
pub use transport::Transport;

/// Launch mode of a collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Launch {
    /// CUDA graph replay.
    #[default]
    Graph,
    /// Individual launches on a stream.
    Stream,
}

/// Processes that launch on the GPUs of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Processes {
    /// One process or thread per GPU.
    #[default]
    PerGpu,
    /// One process for all GPUs of a host.
    Single,
}

/// Launch cost and lower time limit of a launch mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchCosts {
    /// Time added to the device time of every call.
    pub added: Picos,
    /// Time added per GPU of a host beyond the first if one process launches on the GPUs in sequence and all kernels
    /// wait for the last launch.
    pub added_per_gpu: Picos,
    /// Lower limit on the time of a call, to which the per-GPU and per-peer limits are added.
    pub floor: Picos,
    /// Addition to the floor per GPU of a host: host work for the GPU, or synchronization among its threads.
    pub floor_per_gpu: Picos,
    /// Addition to the floor per peer to which a rank sends its own data (all_to_all, send_recv, gather, scatter). Each
    /// peer is a task on NCCL's host side (NCCL 2.28 src/enqueue.cc, `scheduleP2pTasksToPlan`).
    pub floor_per_peer: Picos,
    /// Lower limit on the time of consecutive one-way calls (broadcast, reduce, gather, scatter). A rank that only
    /// sends receives no data; it learns from flags that the other ranks have entered the same call. (Source: 2 × H100,
    /// validate/runs/2026-11-24-2xh100; see validate/src/kernel/exchange.rs.)
    pub floor_one_way: Picos,
    /// Width of the transition between device time and floor. Device and host are not synchronized: if their times
    /// differ by less than `jitter`, either may end later, and the call takes longer than both, by at most a quarter of
    /// `jitter`.
    pub jitter: Picos,
}

/// Fraction of a link's nominal bandwidth that transfers reach. Includes the overhead of the link's own framing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkEfficiency {
    /// Fraction of NVLink bandwidth.
    pub nvlink: f64,
    /// Fraction of C2C bandwidth, between a GPU and its CPU.
    pub c2c: f64,
    /// Fraction of PCIe bandwidth.
    pub pcie: f64,
    /// Fraction of the PCIe bandwidth of DMA (NICs and copy engines) that loads and stores between GPUs of a host
    /// reach. Their packets are smaller.
    pub pcie_peers: f64,
    /// Fraction of the bandwidth of links between CPU sockets.
    pub upi: f64,
    /// Fraction of InfiniBand and Ethernet line rate.
    pub network: f64,
    /// Fraction of the NVLink bandwidth of point-to-point transfers that multicast and reduction in the switch reach.
    pub multicast: f64,
}

/// Costs of one library on one generation of GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Name, such as `nccl-2.28-h200`.
    pub name: String,
    /// Library that was measured, such as `nccl-2.28.9`.
    pub library: String,
    /// Compute capability × 10 of the measured GPUs; 0 for `ideal`.
    pub compute_capability: u32,
    /// Measured GPU models, as full names in fabrics or prefixes of them, such as `H100`.
    pub gpus: Vec<String>,
    /// Date of the data, `YYYY-MM-DD`.
    pub date: String,
    /// Sources of the figures, such as data files and documents.
    pub sources: Vec<String>,
    /// Costs by protocol, in the order of [`Protocol::ALL`].
    pub protocols: [ProtocolCosts; 5],
    /// Launch costs by launch mode (graph, stream), then by processes (per GPU, single).
    pub launches: [[LaunchCosts; 2]; 2],
    /// Fractions of the links' nominal bandwidth that transfers reach.
    pub links: LinkEfficiency,
    /// Costs of the inter-host transport in addition to its links.
    pub network: NetworkCosts,
    /// Cost of an MPI's two-sided messages; `None` for libraries whose thread blocks move the data.
    pub messages: Option<MessageCosts>,
    /// Prediction intervals of times computed with this profile.
    pub bands: PredictionIntervals,
}

impl LinkEfficiency {
    /// Efficiencies of 1: transfers reach the nominal bandwidth of all links. The wire efficiency of protocols is
    /// separate.
    pub const NOMINAL: Self =
        Self { nvlink: 1.0, c2c: 1.0, pcie: 1.0, pcie_peers: 1.0, upi: 1.0, network: 1.0, multicast: 1.0 };

    /// Returns the fraction of nominal bandwidth that transfers reach on a kind of link.
    #[must_use]
    pub fn for_kind(&self, kind: LinkKind) -> f64 {
        match kind {
            LinkKind::Nvlink => self.nvlink,
            LinkKind::C2c => self.c2c,
            LinkKind::Pcie => self.pcie,
            LinkKind::Upi => self.upi,
            LinkKind::Infiniband | LinkKind::Ethernet => self.network,
        }
    }
}

impl Profile {
    /// Profile without software cost: hardware alone.
    #[must_use]
    pub fn ideal() -> Self {
        Self {
            name: "ideal".to_owned(),
            library: "none".to_owned(),
            compute_capability: 0,
            gpus: Vec::new(),
            date: String::new(),
            sources: vec!["no software cost, by definition".to_owned()],
            protocols: [ProtocolCosts::FREE; 5],
            launches: [[LaunchCosts::default(); 2]; 2],
            links: LinkEfficiency::NOMINAL,
            network: NetworkCosts::FREE,
            messages: None,
            bands: PredictionIntervals::uniform(PredictionInterval::NONE),
        }
    }

    /// Returns true if this is [`Profile::ideal`].
    #[must_use]
    pub fn is_ideal(&self) -> bool {
        self.compute_capability == 0
    }

    /// Processor that executes a collective's operations: the host if an MPI reduces there, else the device.
    #[must_use]
    pub fn processor(&self, collective: Collective) -> Processor {
        let on_hosts = self.messages.is_some_and(|messages| messages.sums == ReductionSite::Host);
        match collective {
            Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce if on_hosts => Processor::Host,
            _ => Processor::Device,
        }
    }

    /// Returns the costs of a protocol.
    #[must_use]
    pub fn protocol(&self, protocol: Protocol) -> &ProtocolCosts {
        &self.protocols[protocol as usize]
    }

    /// Returns the costs of a launch mode.
    #[must_use]
    pub fn launch(&self, launch: Launch, processes: Processes) -> LaunchCosts {
        self.launches[launch as usize][processes as usize]
    }
}

/// Parameters of a call that determine the host's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostWork {
    /// Number of GPUs in use on a host.
    pub gpus: u32,
    /// Number of peers that a rank sends its own data to.
    pub peers: u32,
    /// Direction of the data flow.
    pub flow: FlowDirection,
}

/// Direction of a call's data flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowDirection {
    /// Every rank receives data.
    #[default]
    BothWays,
    /// Some ranks only send.
    OneWay,
}

impl HostWork {
    /// Determines the host work of a call of `ranks` ranks with `gpus` GPUs per host.
    #[must_use]
    pub fn for_call(gpus: u32, collective: Collective, protocol: Protocol, ranks: u32) -> Self {
        let is_nccls = matches!(protocol, Protocol::Ll | Protocol::Ll128 | Protocol::Simple);
        let flow = if collective.is_one_way() { FlowDirection::OneWay } else { FlowDirection::BothWays };
        Self { gpus, peers: if is_nccls { collective.peers(ranks) } else { 0 }, flow }
    }
}

impl LaunchCosts {
    /// Time that the launch adds to the device time of a call on hosts with `gpus` GPUs in use.
    #[must_use]
    pub fn added(&self, gpus: u32) -> Picos {
        self.added + Picos(self.added_per_gpu.0.saturating_mul(u64::from(gpus.saturating_sub(1))))
    }

    /// Lower limit on the time of a call, below which launching on the host determines it.
    #[must_use]
    pub fn floor(&self, work: HostWork) -> Picos {
        let times = |each: Picos, count: u32| Picos(each.0.saturating_mul(u64::from(count)));
        let floor = self.floor + times(self.floor_per_gpu, work.gpus) + times(self.floor_per_peer, work.peers);
        match work.flow {
            FlowDirection::BothWays => floor,
            FlowDirection::OneWay => floor.max(self.floor_one_way),
        }
    }

    /// Time of a call with device time `device`, including launch costs and the floor.
    #[must_use]
    pub fn call_time(&self, device: Picos, work: HostWork) -> Picos {
        let floor = self.floor(work);
        let device = device + self.added(work.gpus);
        let longer = device.max(floor);
        let difference = longer - device.min(floor);
        match self.jitter.0.checked_sub(difference.0) {
            Some(overlap) if overlap > 0 => {
                // Quadratic transition that joins the longer of the two times with equal slope at a difference of
                // `jitter`.
                let more = u128::from(overlap) * u128::from(overlap) / (4 * u128::from(self.jitter.0));
                longer + Picos(u64::try_from(more).unwrap_or(u64::MAX))
            }
            _ => longer,
        }
    }
}
