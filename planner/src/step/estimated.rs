//! What calls of groups take at a first glance, from paths alone: which degrees and strategies are worth a simulation.

use fabricast_topologies::route::Router;
use fabricast_topologies::{NodeId, Picos};

use super::price::{Exchange, Tariff, are_in_order};
use crate::job::Layout;
use crate::plan::PlanError;

/// A first estimate for choosing what to simulate: latency of the path between the first and the last rank of a group for
/// each doubling of ranks, and the bytes that the slowest path between neighbours must carry at its bandwidth. Of ranks that are
/// numbered as the fabric numbers its GPUs the first group stands for all.
pub struct Estimated<'a> {
    router: &'a Router<'a>,
    ranks: &'a [NodeId],
    /// Whether the first group stands for all.
    alike: bool,
}

impl<'a> Estimated<'a> {
    /// Of the devices of all ranks.
    #[must_use]
    pub fn new(router: &'a Router<'a>, ranks: &'a [NodeId]) -> Self {
        Self { router, ranks, alike: are_in_order(router, ranks) }
    }
}

impl Tariff for Estimated<'_> {
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        let (size, stride) = layout.shape(exchange.dimension);
        let block = (size * stride).max(1);
        let firsts = 0..if self.alike { 1 } else { self.ranks.len() as u32 };
        let mut rate = f64::INFINITY;
        let mut latency = Picos::ZERO;
        for begin in firsts.filter(|rank| rank % block < stride) {
            let at = |number: u32| self.ranks.get((begin + number * stride) as usize).copied();
            let (Some(first), Some(next), Some(last)) = (at(0), at(1), at(size.saturating_sub(1))) else {
                return Ok(Picos::ZERO);
            };
            for to in [next, last] {
                if let Ok(path) = self.router.path(first, to) {
                    rate = rate.min(path.bandwidth.map_or(f64::INFINITY, |bandwidth| bandwidth.0 as f64));
                    latency = latency.max(path.latency);
                }
            }
        }
        let doublings = u64::from(size.next_power_of_two().trailing_zeros());
        let moved = exchange.bytes.0 as f64 * exchange.collective.busbw_factor(size);
        Ok(Picos((moved / rate * 1e12) as u64) + Picos(latency.0 * doublings))
    }
}
