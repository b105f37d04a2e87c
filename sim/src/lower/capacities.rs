//! Which capacities of a fabric a run can feel, made as they are first used.

use super::Setting;
use crate::profile::ProtocolCosts;
use crate::quantity::Rate;
use crate::schedule::{Channel, Header, Rank};
use crate::sharing::{ResourceId, System};
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::{Bandwidth, Fabric, LinkId, NodeId};

/// What a capacity is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// One direction of a link.
    Link(LinkId),
    /// The memory of a GPU or a CPU.
    Memory(NodeId),
    /// What all ports of a switch together forward.
    Crossbar(NodeId),
    /// The copy throughput of one channel of a rank.
    Lane(Rank, Channel),
}

/// Makes capacities on demand, so that ids depend on use only.
pub(super) struct Capacities<'a> {
    setting: Setting<'a>,
    lane: Option<Bandwidth>,
    /// Whether memories serve local copies and reductions as well as transfers.
    has_local_work: bool,
    first_rank: u32,
    known: Known,
    made: Vec<Resource>,
}

/// A reduction reads what arrived and what was there, and writes the sum.
pub(super) const REDUCTION_MEMORY_USES: u64 = 3;
/// A copy reads and writes.
pub(super) const COPY_MEMORY_USES: u64 = 2;

impl<'a> Capacities<'a> {
    /// For a schedule in a system that has the capacities `made`, in order of id. Its ranks are numbered from `first_rank`
    /// on among those of all schedules.
    pub(super) fn new(
        setting: Setting<'a>,
        header: &Header,
        has_local_work: bool,
        first_rank: u32,
        made: Vec<Resource>,
    ) -> Self {
        let costs: &ProtocolCosts = setting.profile.protocol(header.protocol);
        let lanes = costs.channel.map_or(0, |_| header.call.ranks as usize * usize::from(header.channels));
        let mut known = Known::new(setting.fabric, header.channels, lanes);
        known.note(&made);
        Self { setting, lane: costs.channel, has_local_work, first_rank, known, made }
    }

    /// For plain transfers in a system that has these capacities, in order of id.
    pub(super) fn continued(setting: Setting<'a>, made: Vec<Resource>) -> Self {
        let mut known = Known::new(setting.fabric, 0, 0);
        known.note(&made);
        Self { setting, lane: None, has_local_work: false, first_rank: 0, known, made }
    }

    /// Whether channels limit anything.
    pub(super) fn has_lanes(&self) -> bool {
        self.lane.is_some()
    }

    /// The id of a capacity; `None` where it cannot limit anything.
    pub(super) fn id(&mut self, resource: Resource, system: &mut System) -> Option<ResourceId> {
        if let Some(id) = self.known.get(resource) {
            return id;
        }
        let id = self.rate(resource).map(|rate| {
            self.made.push(match resource {
                Resource::Lane(rank, channel) => Resource::Lane(Rank(self.first_rank + rank.0), channel),
                other => other,
            });
            system.add_resource(rate)
        });
        self.known.set(resource, id);
        id
    }

    pub(super) fn into_resources(self) -> Vec<Resource> {
        self.made
    }

    fn rate(&self, resource: Resource) -> Option<Rate> {
        match resource {
            Resource::Link(id) => {
                let link = self.setting.fabric.link(id);
                let efficiency = self.setting.profile.links.of(link.kind);
                link.bandwidth.map(|bandwidth| scaled(bandwidth, efficiency))
            }
            Resource::Memory(node) => self.memory(node),
            Resource::Crossbar(node) => match &self.setting.fabric.node(node).figures {
                Figures::Switch(figures) => figures.capacity.map(Rate::from),
                _ => None,
            },
            Resource::Lane(..) => self.lane.map(Rate::from),
        }
    }

    /// A memory is left out where the links of its device cannot fill it and nothing else uses it: that never changes a
    /// rate, and it keeps transfers of one device to different peers independent.
    fn memory(&self, node: NodeId) -> Option<Rate> {
        let bandwidth = match &self.setting.fabric.node(node).figures {
            Figures::Gpu(figures) => figures.memory_bandwidth?,
            Figures::Cpu(figures) => figures.memory_bandwidth?,
            _ => return None,
        };
        let links = self.setting.fabric.leaving(node);
        let sum = |direction: fn(LinkId) -> LinkId| {
            links
                .iter()
                .map(|&l| self.setting.fabric.link(direction(l)).bandwidth.map(|b| u128::from(b.0)))
                .sum::<Option<u128>>()
        };
        let most =
            sum(|l| l).zip(sum(LinkId::reverse)).map(|(out, into)| out + u128::from(REDUCTION_MEMORY_USES) * into);
        let can_fill = most.is_none_or(|most| most > u128::from(bandwidth.0));
        (self.has_local_work || can_fill).then(|| Rate::from(bandwidth))
    }
}

/// Ids by what they stand for: a word for every link, node (as a memory, as a crossbar) and lane that could be asked for.
struct Known {
    /// 0: not asked for yet, 1: cannot limit anything, otherwise 2 more than the id.
    words: Vec<u32>,
    links: usize,
    nodes: usize,
    channels: u16,
}

impl Known {
    fn new(fabric: &Fabric, channels: u16, lanes: usize) -> Self {
        let (links, nodes) = (fabric.link_count(), fabric.node_count());
        Self { words: vec![0; links + 2 * nodes + lanes], links, nodes, channels }
    }

    /// Notes what a system has already. Lanes are those of other schedules' ranks.
    fn note(&mut self, made: &[Resource]) {
        for (&resource, id) in made.iter().zip(0..).filter(|(resource, _)| !matches!(resource, Resource::Lane(..))) {
            self.set(resource, Some(ResourceId(id)));
        }
    }

    fn place(&self, resource: Resource) -> usize {
        match resource {
            Resource::Link(link) => link.0 as usize,
            Resource::Memory(node) => self.links + node.0 as usize,
            Resource::Crossbar(node) => self.links + self.nodes + node.0 as usize,
            Resource::Lane(rank, channel) => {
                let lane = rank.0 as usize * usize::from(self.channels) + usize::from(channel.0);
                self.links + 2 * self.nodes + lane
            }
        }
    }

    fn get(&self, resource: Resource) -> Option<Option<ResourceId>> {
        match self.words.get(self.place(resource)).copied().unwrap_or(0) {
            0 => None,
            1 => Some(None),
            word => Some(Some(ResourceId(word - 2))),
        }
    }

    fn set(&mut self, resource: Resource, id: Option<ResourceId>) {
        let place = self.place(resource);
        if let Some(word) = self.words.get_mut(place) {
            *word = id.map_or(1, |id| id.0 + 2);
        }
    }
}

/// A bandwidth times an efficiency, in whole units.
fn scaled(bandwidth: Bandwidth, efficiency: f64) -> Rate {
    let millionths = (efficiency * 1e6).round() as u128;
    Rate(u64::try_from(u128::from(Rate::from(bandwidth).0) * millionths / 1_000_000).unwrap_or(u64::MAX).max(1))
}
