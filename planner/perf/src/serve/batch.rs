//! Time of a batch: requests of equal length that are all present at the start, as many of which are concurrent as fit
//! in memory.
//!
//! Rounds of concurrent requests follow each other without a gap, because the next request starts when one finishes.
//! The last round may be smaller. After the last prefill, the number of decoding requests declines from `D` to 0 and is
//! `D / 2` on average. The constant part of the time of these steps is additional; the corresponding ramp-up is at the
//! beginning of the batch:
//!
//! ```text
//! batch = rounds × round + round of the remainder + steps after the last prefill × (2 × step of D / 2 - step of D)
//! ```

use fabricast_topologies::Picos;

use super::attention_context::AttentionContext;
use super::request_round::SteadyState;
use super::steady_state::StepTokens;
use super::step_costs::StepCosts;
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{Layout, LoadedServing};

/// Returns the time for all `requests` of a job in seconds, given its first round. (`Picos` would overflow after 213
/// days.)
pub(super) fn seconds(
    job: &LoadedServing<'_>,
    layout: &Layout,
    costs: &StepCosts<'_>,
    requests: u64,
    round: &SteadyState,
) -> Result<f64, PlanError> {
    let concurrent_requests = job.concurrent_requests.clamp(1, requests);
    let rounds = (requests / concurrent_requests) as f64 * round.request_seconds();
    match requests % concurrent_requests {
        0 => Ok(rounds + drain(job, layout, costs, round)?),
        remaining => {
            let job = LoadedServing { concurrent_requests: remaining, ..*job };
            let last = SteadyState::new(&job, layout, costs)?;
            Ok(rounds + last.request_seconds() + drain(&job, layout, costs, &last)?)
        }
    }
}

/// Returns the additional time, in seconds, at the end of a round in which the number of decoding requests declines,
/// compared with a round in steady state.
fn drain(
    job: &LoadedServing<'_>,
    layout: &Layout,
    costs: &StepCosts<'_>,
    round: &SteadyState,
) -> Result<f64, PlanError> {
    let (batch, streams) = (&round.requests.batch, &round.streams);
    let decode_requests = batch.with_prefill.decode;
    if decode_requests <= 0.0 || batch.steps_with_prefill <= 0.0 {
        return Ok(0.0);
    }
    let context = AttentionContext::in_steady_state(job, batch.chunks);
    let step = |decode: f64| {
        let mix = StepTokens { decode, ..StepTokens::default() }.with_drafts(job.draft_tokens());
        Ok::<Picos, PlanError>(costs.step(job, layout, &mix, &context, streams.per_replica)?.time_shares().time())
    };
    let (half, all) = (step(decode_requests / 2.0)?, step(decode_requests)?);
    Ok(batch.steps_with_prefill * (2.0 * half.0 as f64 - all.0 as f64).max(0.0) / 1e12)
}
