//! Exposed time of dispatch and combine in the passes of a layer.
//!
//! Without overlap a layer waits for both. If two micro-batches overlap, each call runs during the computation of a part
//! of a layer of the other micro-batch, and what follows waits for both:
//!
//! ```text
//! inference   computation   attention 2  experts 1   experts 2  attention 1 (next layer)
//!             exchange      dispatch 1   dispatch 2  combine 1  combine 2
//! training    computation   experts B    experts F   attention B  attention F
//!             exchange      dispatch F   dispatch B  combine F    combine B
//! ```
//!
//! Inference: SGLang, `python/sglang/srt/operations_strategy.py`; vLLM, `vllm/v1/worker/ubatching.py`; both overlap two
//! halves (1, 2) of a batch. Training: the forward pass (F) of a micro-batch with the backward pass (B) of another (DualPipe,
//! arXiv 2412.19437, figure 4; Megatron-LM, `--overlap-moe-expert-parallel-comm`). The SMs of the kernels slow the
//! computation (`interference`). Experts are the grouped GEMMs; all other kernels count as attention.
//!
//! Computation hides each second of a link once: [`PassExchangeCost::links_busy`] is the time of a pass that is not
//! available to other calls on the links of the exchanges.

use fabricast_topologies::Picos;

use super::interference::{OverlapCost, OverlappedCall};

/// Dispatch and combine of a pass of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpertExchanges {
    pub dispatch: OverlappedCall,
    pub combine: OverlappedCall,
}

impl ExpertExchanges {
    /// Total time of dispatch and combine.
    pub(crate) fn call(&self) -> Picos {
        self.dispatch.call + self.combine.call
    }

    /// Creates the exchanges from calls in their order. A single call represents several equal ones, half of which
    /// dispatch.
    pub(crate) fn from_calls(calls: &[OverlappedCall]) -> Self {
        match calls {
            [] => Self::default(),
            [both] => {
                let half = |time: Picos| Picos(time.0 / 2);
                let dispatch = OverlappedCall { call: half(both.call), slowdown: half(both.slowdown) };
                let combine =
                    OverlappedCall { call: both.call - dispatch.call, slowdown: both.slowdown - dispatch.slowdown };
                Self { dispatch, combine }
            }
            [dispatch, combine @ ..] => Self {
                dispatch: *dispatch,
                combine: combine.iter().fold(OverlappedCall::default(), |sum, &call| sum.plus(call)),
            },
        }
    }
}

/// Time of the kernels of a pass of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LayerCompute {
    /// Kernels other than those of routed experts.
    pub attention: Picos,
    /// Grouped GEMMs of routed experts.
    pub experts: Picos,
}

/// Cost of the exchanges of one half of a batch with those of the other, for both halves of an inference step.
pub(crate) fn half_batch_cost(exchanges: &ExpertExchanges, compute: &LayerCompute) -> OverlapCost {
    let ExpertExchanges { dispatch, combine } = exchanges;
    dispatch
        .cost(compute.attention)
        .plus(dispatch.cost(compute.experts))
        .plus(combine.cost(compute.experts))
        .plus(combine.cost(compute.attention))
}

/// Exchanges of the forward and the backward pass of a layer, with the computation of each pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PassExchanges {
    pub exchanges: [ExpertExchanges; 2],
    pub compute: [LayerCompute; 2],
}

/// Exchanges in the time of a pass: its own, as far as they are exposed, and those that its computation hides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PassExchangeCost {
    /// Exposed time of the exchanges of the pass.
    pub exposed: Picos,
    /// Slowdown of the kernels of the pass by the exchanges that they hide.
    pub slowdown: Picos,
    /// Time of the pass during which exchanges use their links.
    pub links_busy: Picos,
}

impl PassExchanges {
    /// Costs of exchanges for the forward and for the backward pass, each of which waits for its own.
    pub(super) fn exposed_costs(&self) -> [PassExchangeCost; 2] {
        self.exchanges.map(|exchanges| PassExchangeCost {
            exposed: exchanges.call(),
            slowdown: Picos::ZERO,
            links_busy: exchanges.call(),
        })
    }

    /// Costs of exchanges for the forward and for the backward pass, hidden by the computation of another micro-batch.
    pub(super) fn overlapped_costs(&self) -> [PassExchangeCost; 2] {
        let ([forward, backward], [forward_compute, backward_compute]) = (self.exchanges, self.compute);
        let cost = |exchanges: ExpertExchanges, other: LayerCompute| {
            exchanges.dispatch.cost(other.experts).plus(exchanges.combine.cost(other.attention))
        };
        let pass = |own: OverlapCost, hidden: ExpertExchanges, hidden_cost: OverlapCost| PassExchangeCost {
            exposed: own.exposed,
            slowdown: hidden_cost.slowdown,
            links_busy: own.exposed + (hidden.call() - hidden_cost.exposed),
        };
        let (forward_cost, backward_cost) = (cost(forward, backward_compute), cost(backward, forward_compute));
        [pass(forward_cost, backward, backward_cost), pass(backward_cost, forward, forward_cost)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exchanges([dispatch, combine]: [u64; 2], percent: u64) -> ExpertExchanges {
        let call = |time: u64| OverlappedCall { call: Picos(time), slowdown: Picos(time * percent / 100) };
        ExpertExchanges { dispatch: call(dispatch), combine: call(combine) }
    }

    fn compute([attention, experts]: [u64; 2]) -> LayerCompute {
        LayerCompute { attention: Picos(attention), experts: Picos(experts) }
    }

    fn total(cost: OverlapCost) -> u64 {
        cost.exposed.0 + cost.slowdown.0
    }

    fn pass_total(cost: PassExchangeCost) -> u64 {
        cost.exposed.0 + cost.slowdown.0
    }

    proptest! {
        /// Without slowdown, a layer of two halves lasts as long as four steps, each the longer of an exchange and a
        /// part of the computation. With slowdown, it is at least as long as these steps, all computation, or all
        /// exchanges, and at most as long as without overlap.
        #[test]
        fn halves_of_a_batch_last_four_steps(calls in [0u64..1000, 0u64..1000], work in [0u64..1000, 0u64..1000], percent in 0u64..100) {
            let ([dispatch, combine], [attention, experts]) = (calls, work);
            let steps = [(attention, dispatch), (experts, dispatch), (experts, combine), (attention, combine)];
            let closed_form: u64 = steps.into_iter().map(|(one, other)| one.max(other)).sum();
            let time = |percent| 2 * (attention + experts) + total(half_batch_cost(&exchanges(calls, percent), &compute(work)));
            prop_assert_eq!(time(0), closed_form);
            let (all_calls, all_work) = (2 * (dispatch + combine), 2 * (attention + experts));
            prop_assert!(closed_form <= time(percent) && time(percent) <= all_calls + all_work);
        }

        /// A forward pass that overlaps with the backward pass of another micro-batch lasts as long as four steps.
        #[test]
        fn passes_of_two_micro_batches_last_four_steps(forward in [0u64..1000, 0u64..1000], backward in [0u64..1000, 0u64..1000], work in [[0u64..1000, 0u64..1000], [0u64..1000, 0u64..1000]], percent in 0u64..100) {
            let passes = |percent| PassExchanges {
                exchanges: [exchanges(forward, percent), exchanges(backward, percent)],
                compute: work.map(compute),
            };
            let all_work: u64 = work.iter().flatten().sum();
            let time = |costs: [PassExchangeCost; 2]| all_work + costs.map(pass_total).iter().sum::<u64>();
            let steps = [(work[1][1], forward[0]), (work[0][1], backward[0]), (work[1][0], forward[1]), (work[0][0], backward[1])];
            let closed_form: u64 = steps.into_iter().map(|(one, other)| one.max(other)).sum();
            prop_assert_eq!(time(passes(0).overlapped_costs()), closed_form);
            let sequential = all_work + forward.iter().chain(&backward).sum::<u64>();
            prop_assert_eq!(time(passes(percent).exposed_costs()), sequential);
            let overlapped = time(passes(percent).overlapped_costs());
            prop_assert!(closed_form <= overlapped && overlapped <= sequential);
            // All exchanges run once, within the passes.
            for costs in [passes(percent).exposed_costs(), passes(percent).overlapped_costs()] {
                let busy: u64 = costs.iter().map(|cost| cost.links_busy.0).sum();
                prop_assert_eq!(busy, forward.iter().chain(&backward).sum::<u64>());
                for (cost, work) in costs.into_iter().zip(work) {
                    prop_assert!(cost.links_busy.0 <= work.iter().sum::<u64>() + pass_total(cost));
                }
            }
        }
    }
}
