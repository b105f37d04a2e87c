//! Lower bound on the time of a step, without simulating its large calls. A search skips layouts whose bound exceeds
//! the best time.
//!
//! A step with faster calls is never slower, with one exception: weights gathered after the optimizer hide behind the
//! first forward passes of the stage that ends last, and with faster calls another stage, with shorter passes, may end
//! last. If these weights take no time, the step is the end of the slowest stage plus the optimizer, which is monotonic
//! in every call. The bound therefore counts calls after the optimizer as zero and all others at their lower bound.

use fabricast_topologies::Picos;

use crate::communication::{CommunicationCostModel, Exchange};
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{Layout, Phase, TokenExchange, Training, traffic};

/// Cost model under which [`step`](super::step) yields a lower bound on the step.
pub(super) struct LowerBoundCosts<'a, T> {
    /// Cost model of token exchanges. Their times are cheap to compute and serve as lower bounds.
    exchanges: &'a dyn CommunicationCostModel,
    /// Function that returns a lower bound on the completion time of a call.
    lower_bound: T,
    /// Calls after the optimizer, which count as zero. Equal calls of other phases count as zero too.
    updated: Vec<Exchange>,
}

impl<'a, T> LowerBoundCosts<'a, T> {
    /// Creates the cost model for the calls of a job; `lower_bound` returns a lower bound on the completion time of a
    /// call, and `exchanges` provides the times of token exchanges.
    pub(super) fn new(
        job: &Training,
        layout: &Layout,
        lower_bound: T,
        exchanges: &'a dyn CommunicationCostModel,
    ) -> Self {
        let updated = traffic(job, layout).into_iter().filter(|call| call.phase == Phase::UpdatedWeights);
        Self { exchanges, lower_bound, updated: updated.map(|call| Exchange::new(&call, call.bytes)).collect() }
    }
}

impl<T: Fn(&Layout, Exchange) -> Result<Picos, PlanError> + Sync> CommunicationCostModel for LowerBoundCosts<'_, T> {
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        if self.updated.contains(&exchange) { Ok(Picos::ZERO) } else { (self.lower_bound)(layout, exchange) }
    }

    fn supports_exchange(&self, layout: &Layout, exchange: &TokenExchange) -> bool {
        self.exchanges.supports_exchange(layout, exchange)
    }

    fn token_exchange_time(&self, layout: &Layout, exchange: &TokenExchange) -> Result<Picos, PlanError> {
        self.exchanges.token_exchange_time(layout, exchange)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, BuildHasherDefault};

    use fabricast_sim::profile::Profile;
    use fabricast_topologies::route::{RouteOptions, Router};
    use fabricast_topologies::{FabricRequest, load};
    use proptest::prelude::*;
    use rustc_hash::FxHasher;

    use super::*;
    use crate::communication::SimulatedCosts;
    use crate::step::tests::{SPEEDS, any_job, read};
    use crate::step::{Efficiency, step};
    use fabricast_workload::job::CollectiveCandidates;

    /// Cost model with a random time for each call, up to a tenth of a second, and a random fraction of it, up to
    /// `parts` sixteenths, as lower bound.
    struct RandomCosts {
        seed: u64,
        parts: u64,
    }

    impl RandomCosts {
        fn lower_bound(&self, exchange: Exchange) -> Picos {
            let hash = BuildHasherDefault::<FxHasher>::default().hash_one((self.seed, "part", exchange));
            Picos(self.full_time(exchange).0 / 16 * (hash % (self.parts + 1)))
        }

        fn full_time(&self, exchange: Exchange) -> Picos {
            let hash = BuildHasherDefault::<FxHasher>::default().hash_one((self.seed, exchange));
            Picos(hash % 10_u64.pow(5 + hash as u32 % 7))
        }
    }

    impl CommunicationCostModel for RandomCosts {
        fn time(&self, _: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
            Ok(self.full_time(exchange))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// A step with lower bounds of its calls is no longer than the step with the call times, for random times and
        /// bounds.
        #[test]
        fn step_lower_bound_holds((text, ranks) in any_job(), seed in any::<u64>(), parts in 0u64..=16) {
            let job = read(&text);
            let layout = Layout::specified_by(&job, ranks).unwrap().unwrap();
            let costs = RandomCosts { seed, parts };
            let lower_bounds = LowerBoundCosts::new(&job, &layout, |_: &Layout, exchange| Ok(costs.lower_bound(exchange)), &costs);
            let curve = Efficiency::default();
            let step_time = |collective_costs: &dyn CommunicationCostModel| {
                step(&job, &layout, &SPEEDS, &curve, collective_costs).unwrap().time
            };
            prop_assert!(step_time(&lower_bounds) <= step_time(&costs));
        }
    }

    /// Lower bounds hold for calls of several sizes, within and between hosts, including large calls that are sampled.
    #[test]
    fn call_lower_bound_holds() {
        use fabricast_sim::schedule::Collective::{AllGather, AllReduce, AllToAll, ReduceScatter};
        use fabricast_topologies::Bytes;

        use fabricast_workload::job::{Degrees, Dimension};

        for network in
            ["rail,nics_per_node=8,nic=400Gb/s", "fat_tree,nics_per_node=4,nic=400Gb/s,radix=8,oversubscription=2"]
        {
            let network = Some(network.parse().unwrap());
            let fabric = load(&FabricRequest { nodes: Some(4), network, ..FabricRequest::new("hgx-h100") }).unwrap();
            let router = Router::new(&fabric, RouteOptions::default());
            let profile = Profile::for_fabric(&fabric).unwrap();
            let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
            let costs = simulated.restricted_to(CollectiveCandidates::Library);
            for tensor in [1, 4, 8] {
                let layout = Layout { degrees: Degrees { tensor, data: 32 / tensor, ..Degrees::default() } };
                for (dimension, collective) in [
                    (Dimension::Tensor, AllReduce),
                    (Dimension::Data, AllGather),
                    (Dimension::Data, ReduceScatter),
                    (Dimension::Data, AllReduce),
                    (Dimension::Data, AllToAll),
                ] {
                    for bytes in [1 << 10, 3_000_000, 100_000_007, 5 << 30].map(Bytes) {
                        let exchange = Exchange { dimension, collective, bytes };
                        if layout.size(dimension) > 1 {
                            let (lower_bound, time) =
                                (costs.lower_bound(&layout, exchange), costs.time(&layout, exchange));
                            let (lower_bound, time) = (lower_bound.unwrap(), time.unwrap());
                            assert!(
                                Picos::ZERO < lower_bound && lower_bound <= time,
                                "{exchange:?} {tensor}: {lower_bound} {time}"
                            );
                        }
                    }
                }
            }
        }
    }
}
