//! Parameters of a profile that can be fitted: names, units, values and limits.

use fabricast_sim::profile::{ChannelLimit, LaunchCosts, NetworkCosts, Passes, Profile, ProtocolCosts};
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::{Bandwidth, Bytes, Picos};

/// A parameter of a profile that can be fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FitParameter {
    /// A device cost of a protocol.
    Protocol(Protocol, Cost),
    /// NVLink efficiency, as a fraction of the nominal rate.
    Nvlink,
    /// Multicast efficiency, as a fraction of the link rate.
    Multicast,
    /// Common factor of all device times except passes, which represents the response latency of the device.
    LatencyFactor,
    /// [`Self::LatencyFactor`] of a single protocol. LL polls lines, and Simple waits for fences and flags; these scale
    /// differently between devices.
    ProtocolLatencyFactor(Protocol),
    /// Common factor of the times of all passes, which represents the speed at which blocks move data.
    PassTimeFactor,
    /// PCIe efficiency, as a fraction of the nominal rate.
    Pcie,
    /// InfiniBand and Ethernet efficiency, as a fraction of the nominal rate.
    Network,
    /// A cost of messages between hosts.
    Message(MessageCost),
    /// A launch cost of a mode. Indices: launch mode (0 graph, 1 stream), and process layout (0 one per GPU, 1 one for
    /// all GPUs of a host).
    Launch(usize, usize, LaunchCost),
}

/// A device-side cost of a protocol, with its key in a profile file; [`ProtocolCosts`] describes each cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cost {
    /// `startup`: time per call, such as the kernel start and connection set-up.
    Startup,
    /// `startup_p2p`: time per call of the kernels for pairwise exchanges, instead of `startup`.
    StartupP2p,
    /// `startup_per_warp`: time per call for each warp of a block.
    StartupPerWarp,
    /// `startup_per_peer`: time per call for each concurrent peer beyond the first.
    StartupPerPeer,
    /// `step`: time before every operation, in addition to the latency of its path.
    Step,
    /// `step_per_warp`: time before every operation for each warp of a block.
    StepPerWarp,
    /// `reduce` − `copy`: additional time of a reduction compared with a copy. Only this difference can be separated
    /// from `step`.
    ReduceOverCopy,
    /// `reload`: time until a block can process a chunk that has already arrived, in time of one warp.
    Reload,
    /// `fan`: additional time before an operation of a block that is divided among several children, as in trees.
    Fan,
    /// `settle`: time until all data of a large operation is visible before its flags.
    Settle,
    /// `settle_half`: bytes at which the settling time is half of `settle`.
    SettleHalf,
    /// `pass.send`: time of a pass that sends local data.
    Send,
    /// `pass.forward`: time of a pass that forwards received data.
    Forward,
    /// `pass.take`: time of a pass that receives data and forwards none.
    Take,
    /// `pass.store`: additional time of a pass that also stores the sent data locally.
    Store,
    /// `pass.per_warp`: additional time of a pass for each warp of the block.
    PassPerWarp,
    /// `pass.first_take`: time before the first receiving pass.
    FirstReceive,
    /// `pass.exchange`: time of a pass of a block that sends and receives concurrently.
    Exchange,
    /// `channel`: largest payload rate of a channel.
    Rate,
    /// `add`: rate at which a block adds received data to a sum that remains on its rank.
    Add,
}

/// A cost of messages between hosts, with its key in a profile file; [`NetworkCosts`] describes each cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageCost {
    /// `post`: time from a complete message in the buffer until its first byte leaves the NIC.
    Post,
    /// `fence`: time until a block's stores are visible to the proxy and the NIC.
    Fence,
    /// `arrive`: time from the arrival of a message's last byte until the receiving block continues.
    Arrive,
    /// `flush`: time until writes of the NIC are visible in GPU memory, on GPUs before Hopper.
    Flush,
    /// `message`: time of the proxy thread per message.
    Message,
    /// `interval`: minimum time between messages of a connection.
    Interval,
    /// `scan`: rate at which the proxy thread reads flags in host memory.
    Scan,
    /// `rendezvous`: additional latency of large messages.
    Rendezvous,
    /// `signal`: time until the data of a message is acknowledged, with adaptive routing.
    Signal,
}

impl MessageCost {
    /// Message costs that times of whole collectives determine. Such times cannot separate `flush` from `arrive`. The
    /// proxy thread's time per message affects trees and exchanges over many connections, the interval rings of small
    /// messages on few.
    pub(super) const FITTED: [Self; 8] = [
        Self::Post,
        Self::Fence,
        Self::Arrive,
        Self::Message,
        Self::Interval,
        Self::Scan,
        Self::Rendezvous,
        Self::Signal,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Post => "post",
            Self::Fence => "fence",
            Self::Arrive => "arrive",
            Self::Flush => "flush",
            Self::Message => "message",
            Self::Interval => "interval",
            Self::Scan => "scan",
            Self::Rendezvous => "rendezvous",
            Self::Signal => "signal",
        }
    }

    /// The cost as a duration; `None` for a rate.
    fn time_mut(self, costs: &mut NetworkCosts) -> Option<&mut Picos> {
        match self {
            Self::Post => Some(&mut costs.post),
            Self::Fence => Some(&mut costs.fence),
            Self::Arrive => Some(&mut costs.arrive),
            Self::Flush => Some(&mut costs.flush),
            Self::Message => Some(&mut costs.message),
            Self::Interval => Some(&mut costs.interval),
            Self::Rendezvous => Some(&mut costs.rendezvous),
            Self::Signal => Some(&mut costs.signal),
            Self::Scan => None,
        }
    }

    /// Returns true if messages of a protocol have this cost.
    pub(super) fn applies_to(self, protocol: Protocol) -> bool {
        match self {
            Self::Post | Self::Message | Self::Interval | Self::Rendezvous | Self::Signal => true,
            Self::Fence => protocol != Protocol::Ll,
            Self::Arrive | Self::Flush => !matches!(protocol, Protocol::Ll | Protocol::Ll128),
            Self::Scan => protocol == Protocol::Ll,
        }
    }
}

/// A launch cost, with its key in a profile file; [`LaunchCosts`] describes each cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LaunchCost {
    /// `added`: time added to every call.
    Added,
    /// `added_per_gpu`: time added per GPU of a host beyond the first.
    AddedPerGpu,
    /// `floor`: lower limit on the time of a call.
    Floor,
    /// `floor_per_gpu`: increase of the lower limit per GPU of a host.
    FloorPerGpu,
    /// `floor_per_peer`: increase of the lower limit per peer to which a rank sends its own data.
    FloorPerPeer,
    /// `floor_one_way`: lower limit on the time of consecutive one-way calls.
    FloorOneWay,
    /// `jitter`: width of the transition between device time and lower limit.
    Jitter,
}

impl LaunchCost {
    fn time_mut(self, costs: &mut LaunchCosts) -> &mut Picos {
        match self {
            Self::Added => &mut costs.added,
            Self::AddedPerGpu => &mut costs.added_per_gpu,
            Self::Floor => &mut costs.floor,
            Self::FloorPerGpu => &mut costs.floor_per_gpu,
            Self::FloorPerPeer => &mut costs.floor_per_peer,
            Self::FloorOneWay => &mut costs.floor_one_way,
            Self::Jitter => &mut costs.jitter,
        }
    }
}

/// Costs with their names in a profile file and units.
const COSTS: [(Cost, &str, Unit); 20] = [
    (Cost::Startup, "startup", Unit::Microseconds),
    (Cost::StartupP2p, "startup_p2p", Unit::Microseconds),
    (Cost::StartupPerWarp, "startup_per_warp", Unit::Microseconds),
    (Cost::StartupPerPeer, "startup_per_peer", Unit::Microseconds),
    (Cost::Step, "step", Unit::Microseconds),
    (Cost::StepPerWarp, "step_per_warp", Unit::Microseconds),
    (Cost::ReduceOverCopy, "reduce - copy", Unit::Microseconds),
    (Cost::Reload, "reload", Unit::Microseconds),
    (Cost::Fan, "fan", Unit::Microseconds),
    (Cost::Settle, "settle", Unit::Microseconds),
    (Cost::SettleHalf, "settle_half", Unit::Kilobytes),
    (Cost::Send, "pass.send", Unit::Microseconds),
    (Cost::Forward, "pass.forward", Unit::Microseconds),
    (Cost::Take, "pass.take", Unit::Microseconds),
    (Cost::Store, "pass.store", Unit::Microseconds),
    (Cost::PassPerWarp, "pass.per_warp", Unit::Microseconds),
    (Cost::FirstReceive, "pass.first_take", Unit::Microseconds),
    (Cost::Exchange, "pass.exchange", Unit::Microseconds),
    (Cost::Rate, "channel", Unit::Gigabytes),
    (Cost::Add, "add", Unit::Gigabytes),
];

/// Unit of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Time in microseconds.
    Microseconds,
    /// Size in KiB (1024 bytes).
    Kilobytes,
    /// Rate in GB/s (10⁹ bytes per second).
    Gigabytes,
    /// Dimensionless: an efficiency up to 1, or a factor.
    Fraction,
}

impl Unit {
    /// The unit's symbol: `us`, `KiB`, `GB/s`; empty for fractions.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "us",
            Self::Kilobytes => "KiB",
            Self::Gigabytes => "GB/s",
            Self::Fraction => "",
        }
    }
}

impl Cost {
    /// All costs of a protocol.
    #[must_use]
    pub fn all() -> [Self; 20] {
        COSTS.map(|row| row.0)
    }

    fn row(self) -> (&'static str, Unit) {
        COSTS.iter().find(|row| row.0 == self).map_or(("", Unit::Fraction), |row| (row.1, row.2))
    }
}

/// Minimum efficiency of a link that a fit may set; a link with a lower efficiency is assumed to be faulty.
const MIN_EFFICIENCY: f64 = 0.05;
const PER_MICROSECOND: f64 = 1e6;
const GIGA: f64 = 1e9;
const KILOBYTE: f64 = 1024.0;

impl FitParameter {
    /// Name of the parameter, such as `protocol.ll.step`.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Protocol(protocol, cost) => format!("protocol.{protocol}.{}", cost.row().0),
            Self::Nvlink => "links.nvlink".to_owned(),
            Self::Multicast => "links.multicast".to_owned(),
            Self::LatencyFactor => "pace".to_owned(),
            Self::ProtocolLatencyFactor(protocol) => format!("pace.{protocol}"),
            Self::PassTimeFactor => "pass_pace".to_owned(),
            Self::Pcie => "links.pcie".to_owned(),
            Self::Network => "links.network".to_owned(),
            Self::Message(cost) => format!("network.{}", cost.name()),
            Self::Launch(launch, processes, cost) => {
                let launch = ["graph", "stream"].get(launch).copied().unwrap_or_default();
                let processes = ["per_gpu", "single"].get(processes).copied().unwrap_or_default();
                let cost = match cost {
                    LaunchCost::Added => "added",
                    LaunchCost::AddedPerGpu => "added_per_gpu",
                    LaunchCost::Floor => "floor",
                    LaunchCost::FloorPerGpu => "floor_per_gpu",
                    LaunchCost::FloorPerPeer => "floor_per_peer",
                    LaunchCost::FloorOneWay => "floor_one_way",
                    LaunchCost::Jitter => "jitter",
                };
                format!("launch.{launch}.{processes}.{cost}")
            }
        }
    }

    /// Returns true if the parameter is a link efficiency.
    #[must_use]
    pub fn is_link_parameter(self) -> bool {
        matches!(self, Self::Nvlink | Self::Pcie | Self::Network | Self::Multicast)
    }

    /// Returns true if the parameter is a launch cost.
    #[must_use]
    pub fn is_launch_parameter(self) -> bool {
        matches!(self, Self::Launch(..))
    }

    /// Returns true if the parameter is the speed of blocks that send and receive concurrently.
    pub(super) fn is_exchange_parameter(self) -> bool {
        matches!(self, Self::Protocol(_, Cost::Exchange))
    }

    /// Unit of the parameter's value.
    #[must_use]
    pub fn unit(self) -> Unit {
        match self {
            Self::Protocol(_, cost) => cost.row().1,
            Self::Nvlink
            | Self::Pcie
            | Self::Network
            | Self::Multicast
            | Self::LatencyFactor
            | Self::ProtocolLatencyFactor(_)
            | Self::PassTimeFactor => Unit::Fraction,
            Self::Message(MessageCost::Scan) => Unit::Gigabytes,
            Self::Launch(..) | Self::Message(_) => Unit::Microseconds,
        }
    }

    /// Value of the parameter in a profile, in its unit. Common factors are 1, and parameters that the profile lacks
    /// are 0.
    #[must_use]
    pub fn get(self, profile: &Profile) -> f64 {
        let microseconds = |time: Picos| time.0 as f64 / PER_MICROSECOND;
        match self {
            Self::Nvlink => profile.links.nvlink,
            Self::Multicast => profile.links.multicast,
            Self::LatencyFactor | Self::ProtocolLatencyFactor(_) | Self::PassTimeFactor => 1.0,
            Self::Pcie => profile.links.pcie,
            Self::Network => profile.links.network,
            Self::Message(cost) => match cost.time_mut(&mut { profile.network }) {
                Some(time) => microseconds(*time),
                None => profile.network.scan.map_or(0.0, |rate| rate.0 as f64 / GIGA),
            },
            Self::Launch(launch, processes, cost) => {
                let costs = profile.launches.get(launch).and_then(|modes| modes.get(processes)).copied();
                microseconds(*cost.time_mut(&mut costs.unwrap_or_default()))
            }
            Self::Protocol(protocol, cost) => {
                let costs = profile.protocol(protocol);
                match cost {
                    Cost::ReduceOverCopy => microseconds(costs.reduce) - microseconds(costs.copy),
                    Cost::SettleHalf => costs.settle_half.0 as f64 / KILOBYTE,
                    Cost::Rate => match costs.channel_limit {
                        ChannelLimit::Rate(rate) => rate.0 as f64 / GIGA,
                        ChannelLimit::Passes(_) | ChannelLimit::Unlimited => 0.0,
                    },
                    Cost::Add => costs.add.map_or(0.0, |rate| rate.0 as f64 / GIGA),
                    time => cost_time(costs, time).map_or(0.0, microseconds),
                }
            }
        }
    }

    /// Sets the parameter in a profile; values outside its range are clamped. A common factor multiplies the costs to
    /// which it applies.
    pub fn set(self, profile: &mut Profile, value: f64) {
        let time = |value: f64| Picos((value.max(0.0) * PER_MICROSECOND).round() as u64);
        match self {
            Self::ProtocolLatencyFactor(protocol) => {
                slow_down(&mut profile.protocols[protocol as usize], &LATENCY_COSTS, value);
            }
            Self::LatencyFactor => {
                profile.protocols.iter_mut().for_each(|costs| slow_down(costs, &LATENCY_COSTS, value));
            }
            Self::PassTimeFactor => profile.protocols.iter_mut().for_each(|costs| slow_down(costs, &PASSES, value)),
            Self::Multicast => profile.links.multicast = value.clamp(MIN_EFFICIENCY, 1.0),
            Self::Nvlink => profile.links.nvlink = value.clamp(MIN_EFFICIENCY, 1.0),
            Self::Pcie => profile.links.pcie = value.clamp(MIN_EFFICIENCY, 1.0),
            Self::Network => profile.links.network = value.clamp(MIN_EFFICIENCY, 1.0),
            Self::Message(cost) => match cost.time_mut(&mut profile.network) {
                Some(slot) => *slot = time(value),
                None => profile.network.scan = Some(Bandwidth((value.max(0.1) * GIGA) as u64)),
            },
            Self::Launch(launch, processes, cost) => {
                let slot = profile.launches.get_mut(launch).and_then(|modes| modes.get_mut(processes));
                if let Some(costs) = slot {
                    *cost.time_mut(costs) = time(value);
                }
            }
            Self::Protocol(protocol, cost) => {
                let costs = &mut profile.protocols[protocol as usize];
                match cost {
                    Cost::ReduceOverCopy => (costs.reduce, costs.copy) = (time(value), time(-value)),
                    Cost::SettleHalf => costs.settle_half = Bytes((value.max(0.0) * KILOBYTE).round() as u64),
                    Cost::Rate => {
                        if let ChannelLimit::Rate(rate) = &mut costs.channel_limit {
                            *rate = Bandwidth((value.max(0.1) * GIGA) as u64);
                        }
                    }
                    Cost::Add => costs.add = costs.add.map(|_| Bandwidth((value.max(0.1) * GIGA) as u64)),
                    other => {
                        if let Some(slot) = time_mut(costs, other) {
                            *slot = time(value);
                        }
                    }
                }
            }
        }
    }

    /// Returns true if a profile has the parameter.
    #[must_use]
    pub fn applies(self, profile: &Profile) -> bool {
        let (protocol, cost) = match self {
            Self::Protocol(protocol, cost) => (protocol, cost),
            Self::Message(MessageCost::Scan) => return profile.network.scan.is_some(),
            Self::Message(MessageCost::Rendezvous) => return profile.network.eager.is_some(),
            Self::Message(MessageCost::Interval) => return profile.network.interval > Picos::ZERO,
            Self::Message(MessageCost::Signal) => return profile.network.signal > Picos::ZERO,
            Self::Launch(_, _, LaunchCost::FloorOneWay) => return self.get(profile) > 0.0,
            _ => return true,
        };
        let lane = profile.protocol(protocol).channel_limit;
        match cost {
            // Protocols whose blocks do not work in passes have a single number of threads, so costs per warp do not
            // apply to them.
            Cost::StartupP2p | Cost::StartupPerPeer => profile.protocol(protocol).startup_p2p.is_some(),
            Cost::Exchange => matches!(lane, ChannelLimit::Passes(Passes { exchange: Some(_), .. })),
            Cost::StartupPerWarp
            | Cost::StepPerWarp
            | Cost::Reload
            | Cost::Fan
            | Cost::Send
            | Cost::Forward
            | Cost::Take
            | Cost::Store
            | Cost::PassPerWarp
            | Cost::FirstReceive => matches!(lane, ChannelLimit::Passes(_)),
            Cost::Rate => matches!(lane, ChannelLimit::Rate(_)),
            Cost::Add => profile.protocol(protocol).add.is_some(),
            _ => true,
        }
    }

    /// Smallest value that a fit may give the parameter, in its unit.
    #[must_use]
    pub fn lower_limit(self) -> f64 {
        match self {
            Self::Protocol(_, Cost::ReduceOverCopy) => f64::NEG_INFINITY,
            Self::Protocol(_, Cost::Rate | Cost::Add) | Self::Message(MessageCost::Scan) => 0.1,
            _ if self.unit() == Unit::Fraction => MIN_EFFICIENCY,
            _ => 0.0,
        }
    }

    /// Usual size, in µs, of a correction: a cost that adjusts another cost of its protocol for warps, peers, children,
    /// the first receive, the previous chunk or reductions. `None` for a cost that is not a correction. All_reduce has
    /// as many reductions as copies, so its rows determine only the sum of both costs.
    pub(super) fn typical_correction(self) -> Option<f64> {
        let Self::Protocol(_, cost) = self else { return None };
        match cost {
            Cost::StartupPerWarp | Cost::StepPerWarp | Cost::PassPerWarp | Cost::StartupPerPeer => Some(0.05),
            Cost::FirstReceive | Cost::Fan | Cost::ReduceOverCopy => Some(0.5),
            // Half a microsecond per step, divided among the 16 warps of a block: 8 µs in time of one warp.
            Cost::Reload => Some(8.0),
            _ => None,
        }
    }

    /// Usual size of the parameter's value, in its unit; used to scale finite differences and priors.
    pub(super) fn typical_size(self) -> f64 {
        match self {
            Self::Protocol(_, Cost::StartupPerWarp | Cost::StartupPerPeer | Cost::StepPerWarp | Cost::PassPerWarp) => {
                0.05
            }
            Self::Protocol(..) => 0.5,
            _ if self.unit() == Unit::Fraction => 0.1,
            _ => 2.0,
        }
    }

    /// Largest value that a fit may give the parameter, in its unit.
    #[must_use]
    pub fn upper_limit(self) -> f64 {
        if self.is_link_parameter() { 1.0 } else { f64::INFINITY }
    }
}

/// Costs of a protocol, other than the times of passes.
const LATENCY_COSTS: [Cost; 10] = [
    Cost::Startup,
    Cost::StartupP2p,
    Cost::StartupPerWarp,
    Cost::StartupPerPeer,
    Cost::Step,
    Cost::StepPerWarp,
    Cost::Reload,
    Cost::Fan,
    Cost::Settle,
    Cost::FirstReceive,
];

/// Times of a protocol's passes.
const PASSES: [Cost; 6] = [Cost::Send, Cost::Forward, Cost::Take, Cost::Store, Cost::PassPerWarp, Cost::Exchange];

/// Multiplies the selected times of a protocol by a factor; if `step` is selected, also the times `reduce` and `copy`.
fn slow_down(costs: &mut ProtocolCosts, selected: &[Cost], factor: f64) {
    let times = |time: &mut Picos| *time = Picos((time.0 as f64 * factor).round() as u64);
    for &cost in selected {
        if let Some(time) = time_mut(costs, cost) {
            times(time);
        }
    }
    if selected.contains(&Cost::Step) {
        times(&mut costs.reduce);
        times(&mut costs.copy);
    }
}

fn cost_time(costs: &ProtocolCosts, cost: Cost) -> Option<Picos> {
    let mut copy = *costs;
    time_mut(&mut copy, cost).copied()
}

/// Returns the cost as a duration. `None` for costs that are not durations, and for pass costs if blocks do not work in
/// passes.
fn time_mut(costs: &mut ProtocolCosts, cost: Cost) -> Option<&mut Picos> {
    let pass: fn(&mut Passes) -> Option<&mut Picos> = match cost {
        Cost::Startup => return Some(&mut costs.startup),
        Cost::StartupP2p => return costs.startup_p2p.as_mut(),
        Cost::StartupPerWarp => return Some(&mut costs.startup_per_warp),
        Cost::StartupPerPeer => return Some(&mut costs.startup_per_peer),
        Cost::Step => return Some(&mut costs.step),
        Cost::StepPerWarp => return Some(&mut costs.step_per_warp),
        Cost::Reload => return Some(&mut costs.reload),
        Cost::Fan => return Some(&mut costs.split_block),
        Cost::Settle => return Some(&mut costs.settle),
        Cost::ReduceOverCopy | Cost::SettleHalf | Cost::Rate | Cost::Add => return None,
        Cost::Send => |passes| Some(&mut passes.send),
        Cost::Forward => |passes| Some(&mut passes.forward),
        Cost::Take => |passes| Some(&mut passes.receive),
        Cost::Store => |passes| Some(&mut passes.store),
        Cost::PassPerWarp => |passes| Some(&mut passes.per_warp),
        Cost::FirstReceive => |passes| Some(&mut passes.first_receive),
        Cost::Exchange => |passes| passes.exchange.as_mut(),
    };
    match &mut costs.channel_limit {
        ChannelLimit::Passes(passes) => pass(passes),
        ChannelLimit::Rate(_) | ChannelLimit::Unlimited => None,
    }
}
