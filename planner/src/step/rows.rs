//! Overlap of gradient and weight communication with a pass, where states are sharded within groups and replicated
//! among groups (hybrid sharding): communication within a group and reduction among groups.
//!
//! The two run concurrently if the job's software has a stream for each ([`Streams`]) and they use different links,
//! such as NVLink within a host and NICs between hosts. For n layers with s within and r among groups, both end after n
//! max(s, r) + min(s, r), since a layer's reduction among groups follows that within its group. Otherwise they run in
//! sequence.

use fabricast_topologies::route::Router;
use fabricast_topologies::{LinkId, NodeId, Picos};

use super::passes::Prices;
use super::slowing::Beside;
use crate::job::{Dimension, Layout, Overlap, Streams, Training};

/// Overlapping calls, by stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    /// Calls within sharding groups.
    within: (Beside, Vec<Dimension>),
    /// Calls among these groups.
    among: (Beside, Vec<Dimension>),
}

impl Rows {
    /// Adds a call to the stream of its dimension.
    pub(super) fn add(&mut self, dimension: Dimension, call: Beside) {
        let (sum, dimensions) = if dimension.is_of_replicas() { &mut self.among } else { &mut self.within };
        *sum = sum.plus(call);
        dimensions.push(dimension);
    }

    /// Total time of all calls in sequence.
    pub(super) fn communication(&self) -> Picos {
        self.within.0.call + self.among.0.call
    }

    /// Both streams combined, and the additional time of the last of several rounds in the shorter stream.
    pub(super) fn together(&self, job: &Training, prices: &Prices<'_>) -> (Beside, Picos) {
        let ((within, own), (among, others)) = (&self.within, &self.among);
        let meet = |&one: &Dimension| others.iter().any(|&other| prices.tariff.meet(prices.layout, one, other));
        let at_once = (job.overlap, job.streams()) == (Overlap::On, Streams::OneEach);
        match at_once && !own.iter().any(meet) {
            true => (within.at_once(*among), within.call.min(among.call)),
            false => (within.plus(*among), Picos::ZERO),
        }
    }
}

/// Returns true if calls of two dimensions share links: both stay in their hosts or NVLink domains, both leave them, or
/// their bottleneck routes share a link, such as PCIe. Determined from the groups of the first rank.
pub(super) fn meet(
    (router, ranks): (&Router<'_>, &[NodeId]),
    layout: &Layout,
    one: Dimension,
    other: Dimension,
) -> bool {
    let [one, other] = [one, other].map(|dimension| First::of(router, ranks, layout, dimension));
    one.leaves == other.leaves || one.way.iter().any(|link| other.way.contains(link))
}

/// Route of the first rank to others of its group.
struct First {
    /// True if some ranks are in another host or NVLink domain.
    leaves: bool,
    /// Route to the first of those, otherwise to the neighbour.
    way: Vec<LinkId>,
}

impl First {
    fn of(router: &Router<'_>, ranks: &[NodeId], layout: &Layout, dimension: Dimension) -> Self {
        let mut group = layout.shape(dimension).group(0).filter_map(|rank| ranks.get(rank as usize).copied());
        let Some(first) = group.next() else { return Self { leaves: false, way: Vec::new() } };
        let others: Vec<NodeId> = group.collect();
        let is_far = |device: &&NodeId| router.island_of(**device) != router.island_of(first);
        let far = others.iter().find(is_far);
        let mut hops = Vec::new();
        // Unreachable pairs are rejected when the call is timed.
        let way = far.or(others.first()).and_then(|&to| router.route_into(first, to, 0, &mut hops).ok());
        let way = way.map_or_else(Vec::new, |_| hops.iter().map(|hop| hop.link).collect());
        Self { leaves: far.is_some(), way }
    }
}

/// Communication that overlaps with each layer of a model chunk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Travelling {
    /// Communication of one layer.
    pub each: Beside,
    /// Additional time of the last layer.
    pub last: Picos,
}

impl Travelling {
    /// Exposed time of the communication of all layers that overlaps with `work`, and the slowdown of that work. All
    /// but one layer's communication can hide.
    pub(super) fn of_layers(kinds: impl Iterator<Item = (Self, u64)> + Clone, work: Picos) -> (Picos, Picos) {
        let kinds = kinds.filter(|(_, layers)| *layers > 0);
        let whole = kinds.clone().fold(Beside::default(), |sum, (one, layers)| sum.plus(one.each.times(layers)));
        let (lost, waited) = whole.work(work);
        let of_one = kinds.clone().map(|(one, _)| one.each.call).max().unwrap_or_default();
        let exposed = (waited + of_one).min(whole.call);
        let hidden = Beside { call: whole.call - waited, lost }.part(whole.call - exposed);
        (exposed + kinds.map(|(one, _)| one.last).max().unwrap_or_default(), hidden)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// End of communication for layers that end evenly, each first reduced within its group, then among groups.
    fn arrived(layers: u64, work: u64, (within, among): (u64, u64)) -> u64 {
        (1..=layers)
            .fold((0, 0), |(reduced, added), layer| {
                let reduced = u64::max(reduced, work * layer / layers) + within;
                (reduced, u64::max(reduced, added) + among)
            })
            .1
    }

    proptest! {
        /// Without overlap the time is n max(s, r) + min(s, r); overlapped with a pass it is that of a layer-by-layer
        /// schedule, or up to one layer's calls more.
        #[test]
        fn concurrent_streams_match_layer_by_layer_schedule(layers in 1u64..40, work in 0u64..4000, within in 0u64..200, among in 0u64..200) {
            let of = |call: u64| Beside { call: Picos(call), lost: Picos::ZERO };
            let each = of(within).at_once(of(among));
            let travelling = Travelling { each, last: Picos(within.min(among)) };
            let told = |work: u64| Travelling::of_layers(std::iter::once((travelling, layers)), Picos(work)).0.0;
            prop_assert_eq!(told(0), arrived(layers, 0, (within, among)));
            let exact = arrived(layers, work, (within, among)) - work;
            prop_assert!(exact <= told(work) && told(work) <= exact + within.max(among) + layers, "{} {}", exact, told(work));
        }
    }
}
