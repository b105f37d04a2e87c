//! What a batch takes: requests of equal length, all there at the start, of which as many are in flight as memory holds.
//!
//! Rounds of as many requests follow each other without a gap: those that end make room for the next. The last round may be of fewer.
//! When the last prompt has been taken up, fewer and fewer answers are left. Steps that carry `D / 2` of `D` answers in the mean then take
//! their constant part besides, whose other end, when answers are few as well, is the batch's beginning:
//!
//! ```text
//! batch = rounds × round + round of the rest + steps after the last prompt × (2 × step of D / 2 answers - step of D)
//! ```

use fabricast_topologies::Picos;

use super::{Clock, Mix, Round};
use crate::job::{Layout, Loaded};
use crate::plan::PlanError;

/// Seconds of all `requests` of a job, whose first round is known. (A `Picos` ends after 213 days.)
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

/// What a round takes longer at its end than in the midst of others.
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
