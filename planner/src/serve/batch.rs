//! Time of a batch: requests of equal length that are all present at the start, with as many concurrent as memory
//! holds.
//!
//! Rounds of concurrent requests follow each other without a gap; finished requests make room for the next. The last
//! round may be smaller. After the last prefill the number of decoding requests declines from `D` to 0, with `D / 2` on
//! average. These steps spend their constant part in addition; the corresponding ramp-up is at the beginning of the
//! batch:
//!
//! ```text
//! batch = rounds × round + round of the remainder + steps after the last prefill × (2 × step of D / 2 - step of D)
//! ```

use fabricast_topologies::Picos;

use super::{Clock, Mix, Round};
use crate::job::{Layout, Loaded};
use crate::plan::PlanError;

/// Seconds for all `requests` of a job, given its first round. (`Picos` overflows after 213 days.)
pub(super) fn seconds(
    job: &Loaded<'_>,
    layout: &Layout,
    clock: &Clock<'_>,
    (requests, round): (u64, &Round),
) -> Result<f64, PlanError> {
    let in_flight = job.in_flight.clamp(1, requests);
    let rounds = (requests / in_flight) as f64 * round.whole();
    match requests % in_flight {
        0 => Ok(rounds + drain(job, layout, clock, round)?),
        rest => {
            let job = Loaded { in_flight: rest, ..*job };
            let last = Round::of(&job, layout, clock)?;
            Ok(rounds + last.whole() + drain(&job, layout, clock, &last)?)
        }
    }
}

/// Additional time at the end of a round, compared with a round in steady state.
fn drain(job: &Loaded<'_>, layout: &Layout, clock: &Clock<'_>, round: &Round) -> Result<f64, PlanError> {
    let (rhythm, streams) = (&round.rhythm, &round.streams);
    let answers = rhythm.with_prompts.decode;
    if answers <= 0.0 || rhythm.disturbed <= 0.0 {
        return Ok(0.0);
    }
    let step = |decode: f64| {
        let mix = Mix { decode, ..Mix::default() };
        Ok::<Picos, PlanError>(clock.step(job, layout, &mix, rhythm.chunks, streams.of_replica)?.spent().time())
    };
    let (half, all) = (step(answers / 2.0)?, step(answers)?);
    Ok(rhythm.disturbed * (2.0 * half.0 as f64 - all.0 as f64).max(0.0) / 1e12)
}
