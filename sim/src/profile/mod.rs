//! What software costs: a profile holds the costs of one library on one generation of GPUs.
//!
//! A profile file has device-side costs per protocol, and launch costs and floors per launch mode (the device does not
//! care how it was launched). [`Profile::ideal`] has no software cost at all. Shipped profiles lie in `sim/profiles`,
//! each with the data and the date it was made from.

mod band;
mod band_file;
mod file;
mod message;
mod message_file;
mod network;
mod network_file;
mod packets;
mod protocol;
mod transport;
mod write;

use fabricast_topologies::{LinkKind, Picos};
use serde::{Deserialize, Serialize};

use crate::schedule::{Collective, Protocol, Workplace};
pub use band::{Band, Bands, Beyond, Circumstances, Decides, Known, RegimeBand};
pub use file::{ProfileError, Software};
pub(crate) use message::time as time_at_rate;
pub use message::{Carried, Ends, MessageCosts, Sums};
pub use network::{NetworkCosts, largest_message};
pub use network_file::MeasuredNetwork;
pub use protocol::{BlockWork, Deed, Fate, Kept, LaneSpeed, Passes, ProtocolCosts, Role, Shared};
pub use transport::Transport;

/// How a collective is launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Launch {
    /// Replayed from a CUDA graph.
    #[default]
    Graph,
    /// Launched on a stream, call by call.
    Stream,
}

/// Who launches on the GPUs of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Processes {
    /// A process or thread for each GPU.
    #[default]
    PerGpu,
    /// One process drives all GPUs of a host.
    Single,
}

/// What a launch mode costs, and below what time it cannot go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchCosts {
    /// Added to every call.
    pub added: Picos,
    /// Added for every GPU of a host but the first: one process launches on one GPU after the other, and the kernels of
    /// all wait for the last.
    pub added_per_gpu: Picos,
    /// No call takes less than this, and
    pub floor: Picos,
    /// as much again for each GPU of a host: what the host does for it, or what its threads wait for each other.
    pub floor_per_gpu: Picos,
    /// As much again for each peer that a rank sends to on its own (all_to_all, send_recv, gather, scatter): to NCCL's host side
    /// each is a task (NCCL 2.28 src/enqueue.cc, `scheduleP2pTasksToPlan`).
    pub floor_per_peer: Picos,
    /// No call in which data flow one way (broadcast, reduce, gather, scatter) takes less, one after the other: who only sends does not
    /// learn from data that the others have come so far, and waits for flags that tell it. (Kernels of schedules take 3.2 µs for
    /// such calls of 1 to 128 KiB on 2 × H100, where all_gather, all_to_all and send_recv take 2.4 to 2.8:
    /// validate/runs/2026-11-24-2xh100; who waits for whom is told in validate/src/kernel/exchange.rs.)
    pub floor_one_way: Picos,
    /// Host and device are not in step: where the device's time comes closer to the floor than this, the later of the two
    /// is now the one, now the other, and the call takes longer than either; at most by a quarter of it.
    pub jitter: Picos,
}

/// What of a link's nominal bandwidth transfers reach, framing of the link itself included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkEfficiency {
    /// NVLink.
    pub nvlink: f64,
    /// C2C.
    pub c2c: f64,
    /// PCIe.
    pub pcie: f64,
    /// Of what DMA (of NICs and copy engines) reaches on PCIe, the part that loads and stores between GPUs of a host reach: their packets
    /// are smaller.
    pub pcie_peers: f64,
    /// Between sockets.
    pub upi: f64,
    /// InfiniBand and Ethernet.
    pub network: f64,
    /// Of what transfers between two reach on NVLink, the part that multicast and reduction in the switch reach.
    pub multicast: f64,
}

/// The costs of one library on one generation of GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name: `nccl-2.28-h200`.
    pub name: String,
    /// The library measured: `nccl-2.28.9`.
    pub library: String,
    /// Compute capability × 10 of the GPUs measured; 0 for `ideal`.
    pub compute_capability: u32,
    /// The models measured, as fabrics name them or how these names begin: `H100`.
    pub gpus: Vec<String>,
    /// Date of the data, `YYYY-MM-DD`.
    pub date: String,
    /// Where the figures come from.
    pub sources: Vec<String>,
    /// Costs by protocol, in the order of [`Protocol::ALL`].
    pub protocols: [ProtocolCosts; 5],
    /// Launch costs: graph and stream, each per GPU and single.
    pub launches: [[LaunchCosts; 2]; 2],
    /// What of the links is reached.
    pub links: LinkEfficiency,
    /// What the way between hosts costs beyond its links.
    pub network: NetworkCosts,
    /// What two-sided messages cost, of an MPI; `None` of libraries whose blocks move the data.
    pub messages: Option<MessageCosts>,
    /// How far off predictions may be.
    pub bands: Bands,
}

impl LinkEfficiency {
    /// Nominal.
    pub const WHOLE: Self =
        Self { nvlink: 1.0, c2c: 1.0, pcie: 1.0, pcie_peers: 1.0, upi: 1.0, network: 1.0, multicast: 1.0 };

    /// For a kind of link.
    #[must_use]
    pub fn of(&self, kind: LinkKind) -> f64 {
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
    /// No software cost: hardware alone.
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
            links: LinkEfficiency::WHOLE,
            network: NetworkCosts::FREE,
            messages: None,
            bands: Bands::same(Band::NONE),
        }
    }

    /// Whether this is [`Profile::ideal`].
    #[must_use]
    pub fn is_ideal(&self) -> bool {
        self.compute_capability == 0
    }

    /// Where the operations of a collective work on the call's bytes: in host memory where an MPI adds there.
    #[must_use]
    pub fn workplace(&self, collective: Collective) -> Workplace {
        let on_hosts = self.messages.is_some_and(|messages| messages.sums == Sums::Host);
        match collective {
            Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce if on_hosts => Workplace::Host,
            _ => Workplace::Device,
        }
    }

    /// What a protocol costs.
    #[must_use]
    pub fn protocol(&self, protocol: Protocol) -> &ProtocolCosts {
        &self.protocols[protocol as usize]
    }

    /// What a launch mode costs.
    #[must_use]
    pub fn launch(&self, launch: Launch, processes: Processes) -> LaunchCosts {
        self.launches[launch as usize][processes as usize]
    }
}

/// What the host has to do for a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostWork {
    /// GPUs of a host.
    pub gpus: u32,
    /// Peers that a rank sends to on its own.
    pub peers: u32,
    /// Whether every rank hears of the others in a call.
    pub flow: Flow,
}

/// Whether every rank hears of the others in a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// Data come and go.
    #[default]
    BothWays,
    /// Some ranks only send.
    OneWay,
}

impl HostWork {
    /// Of a call of so many ranks.
    #[must_use]
    pub fn of(gpus: u32, collective: Collective, protocol: Protocol, ranks: u32) -> Self {
        let is_nccls = matches!(protocol, Protocol::Ll | Protocol::Ll128 | Protocol::Simple);
        let flow = if collective.is_one_way() { Flow::OneWay } else { Flow::BothWays };
        Self { gpus, peers: if is_nccls { collective.peers(ranks) } else { 0 }, flow }
    }
}

impl LaunchCosts {
    /// What launching adds to the device's side of a call on hosts with `gpus` GPUs in use.
    #[must_use]
    pub fn added(&self, gpus: u32) -> Picos {
        self.added + Picos(self.added_per_gpu.0.saturating_mul(u64::from(gpus.saturating_sub(1))))
    }

    /// What no call takes less than.
    #[must_use]
    pub fn floor(&self, work: HostWork) -> Picos {
        let times = |each: Picos, count: u32| Picos(each.0.saturating_mul(u64::from(count)));
        let floor = self.floor + times(self.floor_per_gpu, work.gpus) + times(self.floor_per_peer, work.peers);
        match work.flow {
            Flow::BothWays => floor,
            Flow::OneWay => floor.max(self.floor_one_way),
        }
    }

    /// What a call takes whose device side takes `device`.
    #[must_use]
    pub fn apply(&self, device: Picos, work: HostWork) -> Picos {
        let floor = self.floor(work);
        let device = device + self.added(work.gpus);
        let longer = device.max(floor);
        let apart = longer - device.min(floor);
        match self.jitter.0.checked_sub(apart.0) {
            Some(overlap) if overlap > 0 => {
                // A quadratic that meets the longer of the two with its slope, at a distance of `jitter`.
                let more = u128::from(overlap) * u128::from(overlap) / (4 * u128::from(self.jitter.0));
                longer + Picos(u64::try_from(more).unwrap_or(u64::MAX))
            }
            _ => longer,
        }
    }
}
