//! What calls of groups take at a first glance, from paths and what software spends on a step: which degrees and strategies are
//! worth a simulation.

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::route::Router;
use fabricast_topologies::{NodeId, Picos};

use super::price::{Exchange, Simulated, Tariff, are_in_order};
use super::times;
use crate::job::Layout;
use crate::plan::PlanError;

/// A first estimate for choosing what to simulate: the bytes that the slowest path between neighbours of a group must carry at its
/// bandwidth, and the steps that follow each other, each with the latency of the longest path and what software takes for it.
/// Of ranks that are numbered as the fabric numbers its GPUs the first group stands for all.
pub struct Estimated<'a> {
    router: &'a Router<'a>,
    profile: &'a Profile,
    ranks: &'a [NodeId],
    /// Whether the first group stands for all.
    alike: bool,
}

/// Where neighbours in a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spread {
    /// All in an NVLink domain.
    Inside,
    /// Several to a domain.
    Several,
    /// One to a domain.
    Each,
}

impl<'a> Estimated<'a> {
    /// Where calls would be simulated.
    #[must_use]
    pub fn new(simulated: &Simulated<'a>) -> Self {
        let Simulated { router, profile, ranks, .. } = *simulated;
        Self { router, profile, ranks, alike: are_in_order(router, ranks) }
    }

    /// What software takes for a step.
    fn software(&self, spread: Spread) -> Picos {
        let network = self.profile.network;
        let between = match spread {
            Spread::Inside => Picos::ZERO,
            Spread::Several | Spread::Each => network.post + network.fence + network.arrive,
        };
        self.profile.protocol(Protocol::Simple).least_software() + between
    }
}

/// Steps of a call that follow each other. Between hosts of several ranks each, blocks go round in a ring; otherwise the way there
/// doubles.
fn steps(collective: Collective, size: u32, spread: Spread) -> u64 {
    let doublings = u64::from(size.next_power_of_two().trailing_zeros());
    match (collective, spread) {
        (Collective::SendRecv, _) => 1,
        (Collective::AllGather | Collective::ReduceScatter, Spread::Several) => u64::from(size.saturating_sub(1)),
        // There and back.
        (Collective::AllReduce, _) => 2 * doublings,
        _ => doublings,
    }
}

impl Tariff for Estimated<'_> {
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        let (size, stride) = layout.shape(exchange.dimension);
        let block = (size * stride).max(1);
        let firsts = 0..if self.alike { 1 } else { self.ranks.len() as u32 };
        let mut rate = f64::INFINITY;
        let mut latency = Picos::ZERO;
        let mut spread = Spread::Inside;
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
            let [own, of_next, of_last] = [first, next, last].map(|device| self.router.island_of(device));
            spread = match (own == of_next, own == of_last, spread) {
                (true, true, known) => known,
                (true, false, _) => Spread::Several,
                (false, _, Spread::Several) => Spread::Several,
                (false, ..) => Spread::Each,
            };
        }
        let moved = exchange.bytes.0 as f64 * exchange.collective.busbw_factor(size);
        let step = latency + self.software(spread);
        Ok(Picos((moved / rate * 1e12) as u64) + times(step, steps(exchange.collective, size, spread)))
    }
}
