//! Exposed time of dispatch and combine in the passes of a layer.
//!
//! Without overlap a layer waits for both. If two micro-batches overlap, the communication of one pass runs during the
//! computation of the other pass of another micro-batch: forward with backward, so that together they take the longer
//! of their communication and their computation (DualPipe, arXiv 2412.19437, section 3.2.1; Megatron-LM,
//! `--overlap-moe-expert-parallel-comm`). The SMs of the kernels slow the computation (`interference`).

use fabricast_topologies::Picos;

use super::interference::{OverlapCost, OverlappedCall};
use fabricast_workload::job::ExpertOverlap;

/// Communication of experts in the forward and the backward pass of a layer, with the computation of each pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpertCommunication {
    /// Calls of each pass, and the slowdown of kernels that overlap with them.
    pub calls: [OverlappedCall; 2],
    /// Time of the kernels of each pass.
    pub compute: [Picos; 2],
}

impl ExpertCommunication {
    /// Cost of the calls in each pass.
    pub(super) fn costs(&self, overlap: ExpertOverlap) -> [OverlapCost; 2] {
        let calls = self.calls;
        let total = calls.iter().fold(OverlappedCall::default(), |sum, &call| sum.plus(call));
        match overlap {
            ExpertOverlap::Off => calls.map(|one| OverlapCost { exposed: one.call, slowdown: Picos::ZERO }),
            ExpertOverlap::TwoBatches => {
                let both = total.cost(self.compute.iter().copied().sum());
                // Each pass has the part of its calls.
                let part = |time: Picos, call: Picos| {
                    Picos((u128::from(time.0) * u128::from(call.0) / u128::from(total.call.0.max(1))) as u64)
                };
                let first = |time: Picos| part(time, calls[0].call);
                let forward = OverlapCost { exposed: first(both.exposed), slowdown: first(both.slowdown) };
                let backward =
                    OverlapCost { exposed: both.exposed - forward.exposed, slowdown: both.slowdown - forward.slowdown };
                [forward, backward]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Both passes together last as long as the longer of communication and computation if nothing is slowed, never
        /// less than either, and never longer than without overlap.
        #[test]
        fn overlapped_passes_last_as_long_as_the_longer_part(calls in [0u64..1000, 0u64..1000], slowed in [0u64..100, 0u64..100], compute in [0u64..1000, 0u64..1000]) {
            let communication = |slowed: [u64; 2]| ExpertCommunication {
                calls: [0, 1].map(|at| OverlappedCall { call: Picos(calls[at]), slowdown: Picos(calls[at] * slowed[at] / 100) }),
                compute: compute.map(Picos),
            };
            let time = |communication: ExpertCommunication, overlap| {
                let costs = communication.costs(overlap);
                costs.iter().map(|cost| cost.exposed.0 + cost.slowdown.0).sum::<u64>() + compute.iter().sum::<u64>()
            };
            let (all, work) = (calls.iter().sum::<u64>(), compute.iter().sum::<u64>());
            prop_assert_eq!(time(communication([0, 0]), ExpertOverlap::TwoBatches), all.max(work));
            prop_assert_eq!(time(communication(slowed), ExpertOverlap::Off), all + work);
            let overlapped = time(communication(slowed), ExpertOverlap::TwoBatches);
            prop_assert!(all.max(work) <= overlapped && overlapped <= all + work, "{overlapped}");
        }
    }
}
