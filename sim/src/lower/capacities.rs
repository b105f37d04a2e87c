//! Capacities of a fabric that can limit a run, created on first use.

use super::Environment;
use super::block_time::{BLOCK_TIME, channel_rate_limit};
use super::device_demand::DeviceDemand;
use crate::profile::ProtocolCosts;
use crate::quantity::Rate;
use crate::schedule::{Channel, Header, Processor, Protocol, Rank};
use crate::sharing::{ResourceId, System};
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::{Bandwidth, Fabric, LinkId, LinkKind, NodeId, NodeKind};

/// Physical meaning of a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// One direction of a link.
    Link(LinkId),
    /// Memory bandwidth of a GPU or a CPU.
    Memory(NodeId),
    /// Forwarding capacity of a switch over all its ports.
    Crossbar(NodeId),
    /// Copy throughput of one channel of a rank, that is of its thread block.
    Channel(Rank, Channel),
    /// SMs of a GPU or a MIG instance, if its ranks have more channels in total than it has SMs. A channel is a thread
    /// block. An SM runs one block at the full rate of its channel, or several blocks at a fraction of it each. The
    /// unit is the rate of the run's fastest channels.
    Processors(NodeId),
    /// All copy engines of a GPU or a MIG instance.
    CopyEngines(NodeId),
    /// Time of the host's proxy thread that posts a GPU's network messages, scaled so that one byte of capacity equals
    /// ten picoseconds.
    Proxy(NodeId),
}

/// Capacities of a system, created on first use, so that their ids depend only on the order of use.
pub(super) struct Capacities<'a> {
    setting: Environment<'a>,
    /// Rate of a channel; `None` if channels are unlimited.
    channel_rate: Option<Rate>,
    /// Demand of all schedules on each device; `None` for plain transfers.
    crowd: Option<&'a DeviceDemand>,
    /// Rate of a copy-engine stream; `None` if the protocol does not use copy engines or the profile does not state a
    /// rate.
    stream: Option<Rate>,
    first_rank: u32,
    known: ResourceIds,
    resources: Vec<Resource>,
}

/// Memory accesses per byte of a reduction, which reads two operands and writes the sum.
pub(super) const REDUCTION_MEMORY_USES: u64 = 3;
/// Memory accesses per byte of a copy, which reads and writes each byte.
pub(super) const COPY_MEMORY_USES: u64 = 2;

impl<'a> Capacities<'a> {
    /// Creates the capacities of one schedule in a system that already has the capacities `resources`, in order of id.
    /// `shared` is the index of the capacities that all schedules share. `first_rank` is the number of the schedule's
    /// first rank among the ranks of all schedules.
    pub(super) fn new(
        setting: Environment<'a>,
        header: &Header,
        crowd: &'a DeviceDemand,
        first_rank: u32,
        resources: Vec<Resource>,
        shared: SharedCapacities,
    ) -> Self {
        let costs: &ProtocolCosts = setting.profile.protocol(header.protocol);
        let channel_rate = match (header.blocks.processor, setting.profile.messages) {
            (Processor::Host, Some(messages)) => Some(Rate::from(messages.host_rate)),
            _ => channel_rate_limit(costs.channel_limit),
        };
        let own_channels = channel_rate.map_or(0, |_| header.call.ranks as usize * usize::from(header.channels));
        let known = ResourceIds::new(setting.fabric, shared, header.channels, own_channels);
        let stream = channel_rate.filter(|_| header.protocol == Protocol::CopyEngine);
        Self { setting, channel_rate, crowd: Some(crowd), stream, first_rank, known, resources }
    }

    /// Creates the capacities of plain transfers in a system that already has the capacities `resources`, by id.
    pub(super) fn continued(setting: Environment<'a>, resources: Vec<Resource>) -> Self {
        let mut known = ResourceIds::new(setting.fabric, SharedCapacities::default(), 0, 0);
        known.register(&resources);
        Self { setting, channel_rate: None, crowd: None, stream: None, first_rank: 0, known, resources }
    }

    /// Coefficient of this schedule's channels on [`Resource::Processors`]. Slower channels occupy an SM longer per
    /// byte, in proportion to the rate of the fastest channels.
    pub(super) fn processor_share(&self, coefficient: u64) -> u64 {
        match (self.crowd.and_then(|crowd| crowd.channel_rate), self.channel_rate) {
            (Some(fastest), Some(share_rate)) if share_rate.0 > 0 && fastest != share_rate => {
                let slower = u128::from(coefficient) * u128::from(fastest.0);
                u64::try_from(slower.div_ceil(u128::from(share_rate.0))).unwrap_or(u64::MAX)
            }
            _ => coefficient,
        }
    }

    /// Returns true if the rate of channels is limited.
    pub(super) fn limits_channels(&self) -> bool {
        self.channel_rate.is_some()
    }

    /// Returns the id of a capacity, which is created on first use; `None` if the capacity can never limit a transfer.
    pub(super) fn id(&mut self, resource: Resource, system: &mut System) -> Option<ResourceId> {
        if let Some(id) = self.known.get(resource) {
            return id;
        }
        let id = self.rate(resource).map(|rate| {
            self.resources.push(match resource {
                Resource::Channel(rank, channel) => Resource::Channel(Rank(self.first_rank + rank.0), channel),
                other => other,
            });
            system.add_resource(rate)
        });
        self.known.set(resource, id);
        id
    }

    pub(super) fn into_resources(self) -> (Vec<Resource>, SharedCapacities) {
        (self.resources, SharedCapacities(self.known.ids))
    }

    fn rate(&self, resource: Resource) -> Option<Rate> {
        match resource {
            Resource::Link(id) => {
                let link = self.setting.fabric.link(id);
                let efficiency = self.setting.profile.links.for_kind(link.kind);
                link.bandwidth.map(|bandwidth| scaled(bandwidth, efficiency))
            }
            Resource::Memory(node) => self.memory(node),
            Resource::Crossbar(node) => match &self.setting.fabric.node(node).figures {
                Figures::Switch(figures) => figures.capacity.map(Rate::from),
                _ => None,
            },
            Resource::Channel(..) => self.channel_rate,
            Resource::Processors(node) => self.processors(node),
            Resource::CopyEngines(node) => self.copy_engines(node),
            Resource::Proxy(_) => Some(BLOCK_TIME),
        }
    }

    /// Total rate of a device's SMs: number of SMs × rate of the fastest channel; `None` if each channel has an SM to
    /// itself.
    fn processors(&self, node: NodeId) -> Option<Rate> {
        let Figures::Gpu(figures) = &self.setting.fabric.node(node).figures else { return None };
        let (sms, channel_rate) = (figures.sm_count.filter(|&sms| sms > 0)?, self.crowd?.channel_rate?);
        let is_crowded = self.crowd?.channels(node) > sms;
        is_crowded.then(|| Rate(channel_rate.0.saturating_mul(u64::from(sms))))
    }

    /// Total rate of a device's copy engines: number of engines × rate of one engine; `None` if the engines cannot
    /// limit a transfer. An engine moves data in one direction at a time and alone fills the fastest link of its GPU
    /// (source: NVLink and PCIe on H200, validate/data/h200-node/p2p.csv). The engines are therefore a limit if the
    /// links carry more than the engines in both directions combined: a MIG instance with one engine cannot send and
    /// receive at the same time, whereas a GPU with three engines is not limited.
    fn copy_engines(&self, node: NodeId) -> Option<Rate> {
        let Figures::Gpu(figures) = &self.setting.fabric.node(node).figures else { return None };
        let engines = u64::from(figures.copy_engines.filter(|&engines| engines > 0)?);
        let links = self.links_outside(node);
        let rate = |link: &LinkId| {
            let link = self.setting.fabric.link(*link);
            Some(scaled(link.bandwidth?, self.setting.profile.links.for_kind(link.kind)))
        };
        let rates: Option<Vec<Rate>> = links.iter().flat_map(|&l| [l, l.reverse()]).map(|l| rate(&l)).collect();
        let rates = rates?;
        let engine_rate = match self.stream {
            Some(stream) => stream,
            None => rates.iter().copied().max()?,
        };
        let all = Rate(engine_rate.0.saturating_mul(engines));
        let total: u128 = rates.iter().map(|rate| u128::from(rate.0)).sum();
        (total > u128::from(all.0)).then_some(all)
    }

    /// Links on which a device's traffic leaves it. For a MIG instance these are the links of the GPU around it,
    /// without NVLink.
    fn links_outside(&self, node: NodeId) -> Vec<LinkId> {
        let fabric = self.setting.fabric;
        let links = fabric.outgoing_links(node);
        if fabric.node(node).kind != NodeKind::Mig {
            return links;
        }
        let carriers = links.into_iter().map(|link| fabric.ends(link).1);
        let links = carriers.flat_map(|carrier| fabric.outgoing_links(carrier));
        let is_outside = |link: &LinkId| {
            fabric.link(*link).kind != LinkKind::Nvlink && fabric.node(fabric.ends(*link).1).kind != NodeKind::Mig
        };
        links.filter(is_outside).collect()
    }

    /// Memory bandwidth of a device; `None` if the links of the device cannot saturate it and no local operation uses
    /// it. Omitting such a memory never changes a rate, and keeps transfers between one device and different peers
    /// independent.
    fn memory(&self, node: NodeId) -> Option<Rate> {
        let bandwidth = match &self.setting.fabric.node(node).figures {
            Figures::Gpu(figures) => figures.memory_bandwidth?,
            Figures::Cpu(figures) => figures.memory_bandwidth?,
            _ => return None,
        };
        // Routes that replace others are charged with links out of service as well.
        let links: Vec<LinkId> = self.setting.fabric.built_links(node).collect();
        let sum = |direction: fn(LinkId) -> LinkId| {
            links
                .iter()
                .map(|&l| self.setting.fabric.link(direction(l)).bandwidth.map(|b| u128::from(b.0)))
                .sum::<Option<u128>>()
        };
        let max_rate =
            sum(|l| l).zip(sum(LinkId::reverse)).map(|(out, into)| out + u128::from(REDUCTION_MEMORY_USES) * into);
        let can_fill = max_rate.is_none_or(|max_rate| max_rate > u128::from(bandwidth.0));
        (self.crowd.is_some_and(|crowd| crowd.has_local_work) || can_fill).then(|| Rate::from(bandwidth))
    }
}

/// Entries of [`ResourceIds`] for the capacities that all schedules of a run share. They are passed from one schedule
/// to the next, because rebuilding them for each of a thousand groups would take longer than lowering the groups.
#[derive(Debug, Default)]
pub(super) struct SharedCapacities(Vec<u32>);

/// Capacity ids by resource: an entry for every link, for every node (as memory, crossbar, SMs, copy engines and
/// proxy), and for every channel of a schedule.
struct ResourceIds {
    /// State of each resource: 0 if not requested yet, 1 if the capacity can never limit a transfer, otherwise its id
    /// plus 2.
    ids: Vec<u32>,
    channel_capacities: Vec<u32>,
    links: usize,
    nodes: usize,
    channels: u16,
}

impl ResourceIds {
    /// Number of kinds of resource that a node can have.
    const PER_NODE: usize = 5;

    fn new(fabric: &Fabric, SharedCapacities(mut ids): SharedCapacities, channels: u16, own_channels: usize) -> Self {
        let (links, nodes) = (fabric.link_count(), fabric.node_count());
        ids.resize(links + Self::PER_NODE * nodes, 0);
        Self { ids, channel_capacities: vec![0; own_channels], links, nodes, channels }
    }

    /// Registers the existing capacities of a system. Existing capacities of channels belong to other schedules and are skipped.
    fn register(&mut self, resources: &[Resource]) {
        for (&resource, id) in
            resources.iter().zip(0..).filter(|(resource, _)| !matches!(resource, Resource::Channel(..)))
        {
            self.set(resource, Some(ResourceId(id)));
        }
    }

    fn id_entry(&mut self, resource: Resource) -> Option<&mut u32> {
        let node_index = |kind: usize, node: NodeId| self.links + kind * self.nodes + node.0 as usize;
        let index = match resource {
            Resource::Channel(rank, channel) => {
                let index = rank.0 as usize * usize::from(self.channels) + usize::from(channel.0);
                return self.channel_capacities.get_mut(index);
            }
            Resource::Link(link) => link.0 as usize,
            Resource::Memory(node) => node_index(0, node),
            Resource::Crossbar(node) => node_index(1, node),
            Resource::Processors(node) => node_index(2, node),
            Resource::CopyEngines(node) => node_index(3, node),
            Resource::Proxy(node) => node_index(4, node),
        };
        self.ids.get_mut(index)
    }

    fn get(&mut self, resource: Resource) -> Option<Option<ResourceId>> {
        match self.id_entry(resource).map_or(0, |word| *word) {
            0 => None,
            1 => Some(None),
            word => Some(Some(ResourceId(word - 2))),
        }
    }

    fn set(&mut self, resource: Resource, id: Option<ResourceId>) {
        // Copy engines that are no limit in one schedule may be one in another, since their rate depends on the
        // protocol.
        let is_open = id.is_none() && matches!(resource, Resource::CopyEngines(_));
        if let Some(word) = self.id_entry(resource).filter(|_| !is_open) {
            *word = id.map_or(1, |id| id.0 + 2);
        }
    }
}

/// Returns bandwidth × efficiency, rounded down to a whole rate of at least 1.
pub(super) fn scaled(bandwidth: Bandwidth, efficiency: f64) -> Rate {
    let millionths = (efficiency * 1e6).round() as u128;
    Rate(u64::try_from(u128::from(Rate::from(bandwidth).0) * millionths / 1_000_000).unwrap_or(u64::MAX).max(1))
}
