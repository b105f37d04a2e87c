//! Gradients and weights beside a pass, where copies of the states are spread over some ranks each: what is said within a group
//! that has a copy in parts, and what groups add up among them.
//!
//! Both rows go on at once where the job's software has a stream for each ([`Streams`]) and they go by different links, as over
//! NVLink within a host and through NICs between hosts: n layers that take s in one row and r in the other are through after
//! n max(s, r) + min(s, r), since what a layer adds up among groups follows what it reduced within its own. Otherwise all take turns.

use fabricast_topologies::route::Router;
use fabricast_topologies::{LinkId, NodeId, Picos};

use super::passes::Prices;
use super::slowing::Beside;
use crate::job::{Dimension, Layout, Overlap, Streams, Training};

/// What travels, by rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    /// Within groups that have a copy.
    within: (Beside, Vec<Dimension>),
    /// Among these.
    among: (Beside, Vec<Dimension>),
}

impl Rows {
    /// Another call, in the row of its dimension.
    pub(super) fn add(&mut self, dimension: Dimension, call: Beside) {
        let (sum, dimensions) = if dimension.is_of_replicas() { &mut self.among } else { &mut self.within };
        *sum = sum.plus(call);
        dimensions.push(dimension);
    }

    /// All calls, one after the other.
    pub(super) fn communication(&self) -> Picos {
        self.within.0.call + self.among.0.call
    }

    /// Both rows as they go on beside kernels, and what the last of several takes besides, in the shorter row.
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

/// Whether calls of two dimensions need the same links: both stay in their hosts or NVLink domains, both leave them, or the ways that they
/// spend their time on share a link, as those of PCIe. By the groups of the first rank.
pub(super) fn meet(
    (router, ranks): (&Router<'_>, &[NodeId]),
    layout: &Layout,
    one: Dimension,
    other: Dimension,
) -> bool {
    let [one, other] = [one, other].map(|dimension| First::of(router, ranks, layout, dimension));
    one.leaves == other.leaves || one.way.iter().any(|link| other.way.contains(link))
}

/// How the first rank gets to others of its group.
struct First {
    /// Whether some are in another host or NVLink domain.
    leaves: bool,
    /// Its way to the first of these, or to its neighbour.
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
        // What cannot be reached is refused when it is priced.
        let way = far.or(others.first()).and_then(|&to| router.route_into(first, to, 0, &mut hops).ok());
        let way = way.map_or_else(Vec::new, |_| hops.iter().map(|hop| hop.link).collect());
        Self { leaves: far.is_some(), way }
    }
}

/// What travels beside each layer of a stretch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Travelling {
    /// Of one layer.
    pub each: Beside,
    /// What the last takes besides.
    pub last: Picos,
}

impl Travelling {
    /// What is waited for of so many layers' of each kind beside such work, and what that loses. All but those of one layer hide.
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

    /// When all has arrived of layers that end evenly, each first reduced within its group, then added up among groups.
    fn arrived(layers: u64, work: u64, (within, among): (u64, u64)) -> u64 {
        (1..=layers)
            .fold((0, 0), |(reduced, added), layer| {
                let reduced = u64::max(reduced, work * layer / layers) + within;
                (reduced, u64::max(reduced, added) + among)
            })
            .1
    }

    proptest! {
        /// With nothing beside them n max(s, r) + min(s, r); beside a pass what layers that end one by one would wait for, or up to a
        /// layer's calls more.
        #[test]
        fn two_rows_end_as_layer_by_layer(layers in 1u64..40, work in 0u64..4000, within in 0u64..200, among in 0u64..200) {
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
