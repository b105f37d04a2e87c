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

use fabricast_topologies::Picos;

use super::interference::{OverlapCost, OverlappedCall};
use fabricast_workload::job::ExpertOverlap;

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

impl PassExchanges {
    /// Cost of the exchanges of the forward and of the backward pass.
    pub(super) fn costs(&self, overlap: ExpertOverlap) -> [OverlapCost; 2] {
        let ([forward, backward], [other_backward, other_forward]) =
            (self.exchanges, [self.compute[1], self.compute[0]]);
        let cost = |exchanges: ExpertExchanges, other: LayerCompute| match overlap {
            ExpertOverlap::Off => OverlapCost { exposed: exchanges.call(), slowdown: Picos::ZERO },
            ExpertOverlap::TwoBatches => {
                exchanges.dispatch.cost(other.experts).plus(exchanges.combine.cost(other.attention))
            }
        };
        [cost(forward, other_backward), cost(backward, other_forward)]
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
            let time = |percent, overlap| all_work + passes(percent).costs(overlap).into_iter().map(total).sum::<u64>();
            let steps = [(work[1][1], forward[0]), (work[0][1], backward[0]), (work[1][0], forward[1]), (work[0][0], backward[1])];
            let closed_form: u64 = steps.into_iter().map(|(one, other)| one.max(other)).sum();
            prop_assert_eq!(time(0, ExpertOverlap::TwoBatches), closed_form);
            let sequential = all_work + forward.iter().chain(&backward).sum::<u64>();
            prop_assert_eq!(time(percent, ExpertOverlap::Off), sequential);
            let overlapped = time(percent, ExpertOverlap::TwoBatches);
            prop_assert!(closed_form <= overlapped && overlapped <= sequential);
        }
    }
}
