//! Performance of inference jobs: time to first token (TTFT), time per output token (TPOT) and throughput.
//!
//! ```text
//! Serving × Layout ─► rhythm: composition of batches ─► kernels ─► Efficiency ─┐
//!                                                  └──► traffic ─► Tariff ─────┴─► Step, Service
//! ```
//!
//! Kernel times use the same efficiency curve as training. Collectives use `plan` and the simulator, with all groups
//! concurrent. Kernels and calls of a step are sequential, as in vLLM. CPU time between steps is ignored.
//!
//! With pipeline parallelism each stage processes a different stream of requests, as vLLM runs as many concurrent
//! batches as there are stages. A stream's step passes through all stages, and its next step starts when the slowest
//! stage has processed all streams.

mod batch;
mod kernels;
mod rhythm;
mod search;
mod traffic;
mod way;

pub use kernels::{Reading, Work, chosen_experts, layer, logits, words};
pub use rhythm::{Beginnings, Load, Mix, Rhythm};
pub(crate) use search::step_of;
pub use search::{best_service, courses_of_steps, unbounded_service};
pub use traffic::traffic;

use fabricast_topologies::Picos;
use rayon::prelude::*;

use crate::job::{Arrivals, Degrees, Dimension, GroupCall, Layout, Loaded, Phase, Room, Serving};
use crate::plan::PlanError;
use crate::step::{
    Course, Efficiency, Exchange, Kernel, Often, Share, Speeds, Step, StepCall, Tariff, exchange, times,
};
use way::{Spent, Way};

/// Performance of an inference job.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Time to first token; `None` for a batch, whose requests are queued.
    pub ttft: Option<Picos>,
    /// Time per output token after the first; `None` if there is only one.
    pub tpot: Option<Picos>,
    /// Time from a request to its last token; for a batch, from the start of its prefill.
    pub whole: Picos,
    /// Output tokens per second, of all replicas.
    pub tokens_per_s: f64,
    /// Time of a step with prefill.
    pub with_prompts: Picos,
    /// Time of a step without prefill; `None` if all steps have prefill.
    pub without: Option<Picos>,
    /// SLO violations.
    pub late: Vec<String>,
    /// Concurrent requests of all replicas.
    pub in_flight: u64,
    /// Result of the memory check; `None` if the memory is unknown.
    pub room: Option<Room>,
}

/// Cost models for the time of steps.
#[derive(Clone, Copy)]
pub struct Clock<'a> {
    /// Peak rates of the GPU.
    pub speeds: &'a Speeds,
    /// Efficiency curve of kernels.
    pub curve: &'a Efficiency,
    /// Cost model of collectives.
    pub tariff: &'a dyn Tariff,
}

/// Weighted mean of two times.
fn mean((a, often): (Picos, f64), (b, seldom): (Picos, f64)) -> Picos {
    Picos(((a.0 as f64 * often + b.0 as f64 * seldom) / (often + seldom).max(f64::MIN_POSITIVE)).round() as u64)
}

fn sum((a, often): (Picos, f64), (b, seldom): (Picos, f64)) -> Picos {
    Picos((a.0 as f64 * often + b.0 as f64 * seldom).round() as u64)
}

/// Simulates a job's steps and the performance that its requests see. The caller sets `room`.
///
/// # Errors
/// [`PlanError`] if a collective has no strategy.
pub fn serve(job: &Loaded<'_>, layout: &Layout, clock: &Clock<'_>) -> Result<(Step, Service), PlanError> {
    let round = Round::of(job, layout, clock)?;
    let step = round.step(job, layout, clock);
    let [with, without] = round.times();
    let rest = sum((with, round.rhythm.disturbed), (without, round.rhythm.quiet));
    let after = job.output_tokens - 1;
    let tpot = (after > 0).then(|| Picos(rest.0 / after.max(1)));
    let first = sum((with, round.rhythm.first), (without, 0.0));
    let (requests, seconds, ttft) = match job.arrivals {
        Arrivals::OneByOne { .. } | Arrivals::AsMany { .. } => (job.in_flight, round.whole(), Some(first)),
        Arrivals::Together { requests, .. } => {
            (requests, batch::seconds(job, layout, clock, (requests, &round))?, None)
        }
    };
    let service = Service {
        ttft,
        tpot,
        whole: first + rest,
        tokens_per_s: requests as f64 * job.output_tokens as f64 / seconds.max(1e-12),
        with_prompts: with,
        without: (round.rhythm.quiet > 0.0).then_some(without),
        late: late(job, ttft, tpot),
        in_flight: job.in_flight,
        room: None,
    };
    Ok((step, service))
}

/// Steady state with the full number of concurrent requests.
struct Round {
    streams: Streams,
    rhythm: Rhythm,
    /// Steps with prefill and without.
    ways: [Way; 2],
}

impl Round {
    fn of(job: &Loaded<'_>, layout: &Layout, clock: &Clock<'_>) -> Result<Self, PlanError> {
        let (streams, rhythm) = steady(job, layout);
        let ways = clock.ways(job, layout, &rhythm, &streams)?;
        Ok(Self { streams, rhythm, ways })
    }

    fn times(&self) -> [Picos; 2] {
        self.ways.map(|way| way.spent().time())
    }

    /// Seconds from a request's start to its last token.
    fn whole(&self) -> f64 {
        let [with, without] = self.times().map(|time| time.0 as f64 / 1e12);
        with * (self.rhythm.first + self.rhythm.disturbed) + without * self.rhythm.quiet
    }

    /// Returns the mean step.
    fn step(&self, job: &Loaded<'_>, layout: &Layout, clock: &Clock<'_>) -> Step {
        let Self { streams, rhythm, ways } = self;
        let [with, without] = ways.map(|way| way.spent().shares());
        let (often, seldom) = (rhythm.first + rhythm.disturbed, rhythm.quiet);
        let both = with.iter().zip(without);
        let shares: Vec<(Share, Picos)> =
            both.map(|(&(share, a), (_, b))| (share, mean((a, often), (b, seldom)))).collect();
        // The reference on one GPU processes all streams that hold the concurrent requests, each like the mean.
        let all = job.in_flight as f64 / streams.requests;
        let [alone_with, alone_without] =
            [rhythm.with_prompts, rhythm.without].map(|mix| clock.alone(job, &mix.mean().times(all), rhythm.chunks));
        Step {
            layout: *layout,
            time: shares.iter().map(|share| share.1).sum(),
            communication: shares.iter().filter(|share| share.0.is_communication()).map(|share| share.1).sum(),
            shares,
            alone: mean((alone_with, often), (alone_without, seldom)),
            collectives: job.collectives,
        }
    }
}

/// Returns the timelines of a stream's step with prefill and of one without, consistent with the times of [`serve`];
/// `None` if there is no such step.
///
/// # Errors
/// Errors of [`serve`].
pub fn courses(job: &Loaded<'_>, layout: &Layout, clock: &Clock<'_>) -> Result<[Option<Course>; 2], PlanError> {
    let (streams, rhythm) = steady(job, layout);
    let ways = clock.ways(job, layout, &rhythm, &streams)?;
    let often = [rhythm.first + rhythm.disturbed, rhythm.quiet];
    let [with, without] = [0, 1].map(|number| {
        let way = ways.get(number).filter(|_| often.get(number).is_some_and(|&often| often > 0.0));
        way.map(Way::course)
    });
    Ok([with, without])
}

/// Returns the collectives of a mean step, of all streams of a replica. If replicas run in lockstep, they are those of
/// the most loaded one, as in the cost model: exact for its own links, and an upper bound for shared ones.
#[must_use]
pub fn calls(job: &Loaded<'_>, layout: &Layout) -> Vec<StepCall> {
    let (streams, rhythm) = steady(job, layout);
    let (often, seldom) = (rhythm.first + rhythm.disturbed, rhythm.quiet);
    let layers = (job.model.layers / u64::from(layout.degrees.pipeline)) as f64;
    let mut calls = Vec::new();
    for (mix, steps) in [(&rhythm.with_prompts, often), (&rhythm.without, seldom)] {
        if mix.is_empty() || steps <= 0.0 {
            continue;
        }
        let part = steps / (often + seldom) * streams.of_replica;
        calls.extend(traffic(job, layout, mix).into_iter().map(|call| {
            let each = call.count as f64 * part;
            let often = match call.phase {
                _ if call.is_between_stages() => Often::HandOffs { forward: each, back: 0.0, round: 0.0 },
                Phase::LayerForward => Often::Calls(layers * each),
                _ => Often::Calls(each),
            };
            StepCall { phase: call.phase, exchange: exchange(&call, call.bytes), often }
        }));
    }
    calls
}

/// Returns the streams of the schedulers, and the steady-state batch of each.
fn steady(job: &Loaded<'_>, layout: &Layout) -> (Streams, Rhythm) {
    let streams = Streams::of(job, layout);
    let load = Load {
        prompt: job.new_tokens() as f64,
        output: job.output_tokens as f64,
        requests: streams.requests,
        budget: job.max_batched_tokens as f64,
        beginnings: match job.arrivals {
            Arrivals::OneByOne { .. } | Arrivals::AsMany { .. } => Beginnings::Spread,
            Arrivals::Together { .. } => Beginnings::Together,
        },
    };
    // Replicas that share experts and have requests.
    let together = f64::from(layout.degrees.expert) * kernels::busy(job, layout);
    (streams, Rhythm::of(&load).in_step(&load, together))
}

/// Returns the SLO violations.
fn late(job: &Serving, ttft: Option<Picos>, tpot: Option<Picos>) -> Vec<String> {
    let checks = [("ttft_s", ttft, job.limits.ttft), ("tpot_s", tpot, job.limits.tpot)];
    let broken = checks.into_iter().filter_map(|(name, found, limit)| {
        let (found, limit) = (found?, limit?);
        let seconds = |time: Picos| time.0 as f64 / 1e12;
        (found > limit).then(|| format!("{name} {:.4} of {}", seconds(found), seconds(limit)))
    });
    broken.collect()
}

/// Requests per scheduler.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Streams {
    /// Replicas with requests.
    replicas: f64,
    /// Concurrent batches of a replica, each in a different stage.
    of_replica: f64,
    /// Requests of each batch.
    requests: f64,
}

impl Streams {
    fn of(job: &Loaded<'_>, layout: &Layout) -> Self {
        let requests = job.in_flight as f64;
        let replicas = f64::from(layout.degrees.data).min(requests);
        let of_replica = f64::from(layout.degrees.pipeline).min(requests / replicas);
        let each = requests / replicas / of_replica;
        // Under continuous load replicas alternate in having one request more; a batch ends with the replicas that have
        // it.
        let requests = match job.arrivals {
            Arrivals::OneByOne { .. } | Arrivals::AsMany { .. } => each,
            Arrivals::Together { .. } => each.ceil(),
        };
        Self { replicas, of_replica, requests }
    }
}

impl Mix {
    fn times(&self, count: f64) -> Self {
        Self {
            decode: self.decode * count,
            prefill: self.prefill * count,
            chunks: self.chunks * count,
            ending: self.ending * count,
            beyond_mean: self.beyond_mean * count,
        }
    }

    /// Returns true if the step has no tokens.
    fn is_empty(&self) -> bool {
        self.tokens() <= 0.0
    }
}

impl Clock<'_> {
    /// Simulates steps with prefill and without.
    fn ways(
        &self,
        job: &Loaded<'_>,
        layout: &Layout,
        rhythm: &Rhythm,
        streams: &Streams,
    ) -> Result<[Way; 2], PlanError> {
        let mixes = [rhythm.with_prompts, rhythm.without];
        let ways: Vec<Result<Way, PlanError>> = mixes
            .par_iter()
            .with_max_len(1)
            .map(|mix| self.step(job, layout, mix, rhythm.chunks, streams.of_replica))
            .collect();
        Ok(<[Way; 2]>::try_from(ways.into_iter().collect::<Result<Vec<_>, _>>()?).unwrap_or_default())
    }

    /// Simulates a step of a stream.
    fn step(&self, job: &Loaded<'_>, layout: &Layout, mix: &Mix, chunks: f64, streams: f64) -> Result<Way, PlanError> {
        if mix.is_empty() {
            return Ok(Way::default());
        }
        let calls = traffic(job, layout, mix);
        let prices: Vec<Result<Picos, PlanError>> =
            calls.par_iter().with_max_len(1).map(|call| self.price(layout, call)).collect();
        let prices = prices.into_iter().collect::<Result<Vec<Picos>, PlanError>>()?;
        let of = |phase: Phase, dimension: Option<Dimension>| -> Picos {
            let own = calls
                .iter()
                .zip(&prices)
                .filter(|(call, _)| call.phase == phase && dimension.is_none_or(|wanted| wanted == call.dimension));
            own.map(|(call, &price)| times(price, call.count)).sum()
        };
        let stages = u64::from(layout.degrees.pipeline);
        Ok(Way {
            layer: Spent {
                compute: self.work(&layer(job, layout, mix, chunks)),
                tensor: of(Phase::LayerForward, Some(Dimension::Tensor)),
                expert: of(Phase::LayerForward, Some(Dimension::Expert)),
                ..Spent::default()
            },
            first: (self.work(&words(job, mix)), of(Phase::Words, None)),
            last: (self.work(&logits(job, layout, mix)), of(Phase::Logits, None)),
            hand_off: if stages > 1 { of(Phase::HandOff, None) } else { Picos::ZERO },
            stages,
            layers: job.model.layers,
            streams,
        })
    }

    /// Computing time on one GPU with enough memory.
    fn alone(&self, job: &Loaded<'_>, mix: &Mix, chunks: f64) -> Picos {
        if mix.is_empty() {
            return Picos::ZERO;
        }
        let layout = Layout { degrees: Degrees::default() };
        let near = Clock { speeds: &Speeds { elsewhere: None, ..*self.speeds }, ..*self };
        times(near.work(&layer(job, &layout, mix, chunks)), job.model.layers)
            + near.work(&words(job, mix))
            + near.work(&logits(job, &layout, mix))
    }

    fn price(&self, layout: &Layout, call: &GroupCall) -> Result<Picos, PlanError> {
        let exchange = Exchange { dimension: call.dimension, collective: call.collective, bytes: call.bytes };
        self.tariff.time(layout, exchange)
    }

    fn work(&self, work: &Work) -> Picos {
        let attention = work.attention.iter().map(|reading| self.reading(reading));
        self.curve.total(&work.kernels, self.speeds) + attention.sum()
    }

    /// Time of a kernel, including its reads of a KV cache in another memory tier.
    fn reading(&self, reading: &Reading) -> Picos {
        let Reading { kernel, kept } = *reading;
        match self.speeds.elsewhere {
            None => {
                let whole = Kernel { bytes: fabricast_topologies::Bytes(kernel.bytes.0 + kept.0), ..kernel };
                self.curve.time(&whole, self.speeds)
            }
            Some(rate) => self.curve.time(&kernel, self.speeds).max(self.curve.fetched(kept, rate)),
        }
    }
}

#[cfg(test)]
mod tests;
