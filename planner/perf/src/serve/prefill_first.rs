//! Steady state where prompts have precedence over decode: a step has either prompts or decode tokens.
//!
//! Decode steps hold all `c` concurrent requests, and `c / (O - 1)` of them end in each, `O` being the output tokens. The
//! prompts of their successors, or one prompt if fewer end, are prefilled before the next decode step: `g` prompts in
//! `⌈g P / budget⌉` steps if several prompts fill a step, or `P / budget` if one does. So a request sees `O - 1` decode steps
//! and the `c / g` groups of prompts that start while it runs, its own among them. With all requests present at the start,
//! they are one group.

use super::steady_state::{Load, StartTimes, SteadyBatch, StepTokens};

/// Computes the steady state of a load of at least two output tokens per request.
pub(super) fn prefill_first(load: &Load) -> SteadyBatch {
    let Load { prompt, output, requests, budget, start_times, .. } = *load;
    let later_tokens = output - 1.0;
    let group = match start_times {
        StartTimes::Simultaneous => requests,
        StartTimes::Spread => (requests / later_tokens).max(1.0).min(requests),
    };
    let chunks = (prompt / budget).max(1.0);
    let steps = if group > 1.0 { (group * prompt / budget).max(1.0) } else { chunks };
    // Prompts of a group are prefilled one after the other.
    let first = if group > 1.0 { f64::midpoint(steps, chunks) } else { chunks };
    SteadyBatch {
        with_prefill: StepTokens {
            prefill: group * prompt / steps,
            chunks: (group / steps).max(1.0),
            finished_prefills: group / steps,
            ..StepTokens::default()
        },
        without_prefill: StepTokens { decode: requests, ..StepTokens::default() },
        steps_to_first_token: first,
        steps_with_prefill: requests / group * steps - first,
        steps_without_prefill: later_tokens,
        chunks,
        wait_for_last_step: if group > 1.0 { 0.0 } else { chunks.ceil() - chunks },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_workload::job::Batching;
    use proptest::prelude::*;

    fn load(prompt: f64, output: f64, requests: f64, budget: f64) -> Load {
        let (start_times, batching) = (StartTimes::Spread, Batching::PrefillFirst);
        Load { prompt, output, requests, budget, start_times, batching }
    }

    /// Eleven requests with 101 output tokens: ten other prompts interrupt a hundred decode steps.
    #[test]
    fn decode_waits_for_each_prompt() {
        let batch = SteadyBatch::new(&load(600.0, 101.0, 11.0, 8192.0));
        assert_eq!(
            (batch.steps_to_first_token, batch.steps_with_prefill, batch.steps_without_prefill),
            (1.0, 10.0, 100.0)
        );
        assert_eq!((batch.with_prefill.tokens(), batch.without_prefill.tokens()), (600.0, 11.0));
        // 200 requests end two by two, whose successors share a step.
        let many = SteadyBatch::new(&load(600.0, 101.0, 200.0, 8192.0));
        assert_eq!((many.with_prefill.prefill, many.with_prefill.chunks, many.steps_with_prefill), (1200.0, 2.0, 99.0));
        // Long prompts fill several steps.
        let long = SteadyBatch::new(&load(5000.0, 101.0, 11.0, 2000.0));
        assert_eq!((long.steps_to_first_token, long.wait_for_last_step, long.steps_with_prefill), (2.5, 0.5, 25.0));
        assert_eq!((long.with_prefill.prefill, long.with_prefill.finished_prefills), (2000.0, 0.4));
    }

    proptest! {
        /// While a request runs, all concurrent requests compute their prompts and their outputs once.
        #[test]
        fn tokens_are_conserved(
            (prompt, output, requests, budget) in (1u32..20_000, 2u32..3000, 1u32..2000, 1u32..20_000),
        ) {
            let load = load(prompt.into(), output.into(), requests.into(), budget.into());
            for start_times in [StartTimes::Spread, StartTimes::Simultaneous] {
                let batch = SteadyBatch::new(&Load { start_times, ..load });
                let prefill = (batch.steps_to_first_token + batch.steps_with_prefill) * batch.with_prefill.prefill;
                prop_assert!((prefill / (load.requests * load.prompt) - 1.0).abs() < 1e-9, "{batch:?}");
                let decode = batch.steps_without_prefill * batch.without_prefill.decode;
                prop_assert!((decode / (load.requests * (load.output - 1.0)) - 1.0).abs() < 1e-9, "{batch:?}");
                prop_assert!(batch.with_prefill.prefill <= load.budget.max(load.prompt) * (1.0 + 1e-9), "{batch:?}");
                prop_assert!(batch.steps_with_prefill >= -1e-9, "{batch:?}");
            }
        }
    }
}
