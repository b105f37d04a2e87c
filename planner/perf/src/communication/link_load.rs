//! Bytes that traffic between devices puts on each link of its routes.

use std::collections::BTreeMap;

use fabricast_topologies::route::{Hop, Router};
use fabricast_topologies::{LinkId, NodeId, Picos};
use rayon::prelude::*;

/// Number of routes whose load one task accumulates before loads are merged.
const ROUTES_PER_TASK: usize = 1 << 13;

/// Bytes that devices send to each other, by sender and receiver. Traffic between the same two devices takes the same
/// route in all calls, so it is summed before routing.
pub(super) type PairTraffic = BTreeMap<(NodeId, NodeId), f64>;

/// Bytes carried by each direction of each link, indexed by [`LinkId`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkLoad {
    bytes: Vec<f64>,
}

impl LinkLoad {
    /// Returns the number of bytes that a link direction carries; 0 if it has no load.
    #[must_use]
    pub fn bytes_on(&self, link: LinkId) -> f64 {
        self.bytes.get(link.0 as usize).copied().unwrap_or_default()
    }

    /// Returns the utilization of each link over `time`, relative to the bandwidth that the fabric states, indexed by
    /// [`LinkId`]. The utilization of links without a stated bandwidth is 0.
    #[must_use]
    pub fn utilization(&self, router: &Router<'_>, time: Picos) -> Vec<f64> {
        let seconds = time.0.max(1) as f64 / 1e12;
        let link_utilization = |(id, link): (LinkId, &fabricast_topologies::fabric::Link)| {
            link.bandwidth.map_or(0.0, |rate| self.bytes_on(id) / (rate.0 as f64 * seconds))
        };
        router.fabric().links().map(link_utilization).collect()
    }

    /// Adds the bytes that pairs of devices send to each link of their routes.
    pub(super) fn add_routes(&mut self, router: &Router<'_>, sent: &PairTraffic) {
        let sent: Vec<_> = sent.iter().map(|(&ends, &bytes)| (ends, bytes)).collect();
        let partial_load = |routes: &[((NodeId, NodeId), f64)]| {
            let (mut load, mut hops) = (Self::default(), Vec::new());
            routes.iter().for_each(|&((from, to), bytes)| load.add_route(router, from, to, bytes, &mut hops));
            load
        };
        // The order of summation does not depend on the number of threads.
        let loads: Vec<Self> = sent.par_chunks(ROUTES_PER_TASK).with_max_len(1).map(partial_load).collect();
        for load in loads {
            (0u32..)
                .zip(load.bytes)
                .filter(|(_, bytes)| *bytes > 0.0)
                .for_each(|(link, bytes)| self.add(LinkId(link), bytes));
        }
    }

    /// Copies the load of representative links to the links that they represent.
    pub(super) fn copy_to_represented(&mut self, router: &Router<'_>) {
        for link in (0..self.bytes.len() as u32).map(LinkId) {
            let bytes = self.bytes_on(link);
            // `represented_links` returns no links for a link that represents only itself; a represented link
            // represents no others.
            for &other in router.represented_links(link).into_iter().flatten().filter(|&&other| other != link) {
                self.add(other, bytes);
            }
        }
    }

    pub(super) fn add(&mut self, link: LinkId, bytes: f64) {
        let index = link.0 as usize;
        if self.bytes.len() <= index {
            self.bytes.resize(index + 1, 0.0);
        }
        if let Some(sum) = self.bytes.get_mut(index) {
            *sum += bytes;
        }
    }

    /// Adds bytes that one device sends to another to each link of their route. `hops` is a reusable buffer.
    fn add_route(&mut self, router: &Router<'_>, from: NodeId, to: NodeId, bytes: f64, hops: &mut Vec<Hop>) {
        hops.clear();
        // Unreachable pairs were already rejected when the call was timed.
        if router.route_into(from, to, 0, hops).is_ok() {
            for hop in hops.iter() {
                self.add(hop.link, bytes * f64::from(hop.share.numerator) / f64::from(hop.share.denominator.max(1)));
            }
        }
    }
}
