//! Discrete-event simulation of the requests of an open loop: arrivals, and steps of the schedulers.
//!
//! Streams of a group make their steps concurrently: those of replicas that share experts, since the tokens of all replicas
//! are exchanged in every layer. Other streams are groups of one. A request goes to the stream with the fewest requests.
//!
//! Steps without prefill repeat until a request ends or arrives. Their time grows linearly with the context, so a run of
//! them has two evaluations of the step's time, and its sum is that of an arithmetic progression.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fabricast_topologies::Picos;
use fabricast_workload::job::Batching;

use super::latencies::RequestTimes;
use super::request_source::Request;
use super::scheduler::{CachedPrompt, DecodeStep, PlannedStep, Scheduler, StreamLimits};

/// Time of a step by its tokens.
pub(super) trait StepTime {
    /// Error if a step has no time.
    type Error;

    /// Returns the time of a step.
    ///
    /// # Errors
    /// The step has no time.
    fn step_time(&self, step: &PlannedStep) -> Result<Picos, Self::Error>;
}

/// Server of requests that arrive one after the other.
pub(super) trait RequestServer {
    /// Error if a step has no time.
    type Error;

    /// Simulates up to the arrival of a request, and adds it.
    ///
    /// # Errors
    /// A step has no time.
    fn arrive(&mut self, request: Request) -> Result<(), Self::Error>;

    /// Simulates until no request waits or runs.
    ///
    /// # Errors
    /// A step has no time.
    fn drain(&mut self) -> Result<(), Self::Error>;

    /// Returns the requests that have ended, in the order of their ends.
    fn finished(&self) -> &[RequestTimes];
}

/// Streams of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StreamSetup {
    /// Number of streams.
    pub streams: usize,
    /// Number of streams that make their steps concurrently.
    pub group: usize,
    /// Room of each stream.
    pub limits: StreamLimits,
    /// Tokens that are not computed.
    pub cached_prompt: CachedPrompt,
    /// Tokens that steps with prefill process.
    pub batching: Batching,
    /// Decode steps that are made without a decision of the scheduler, at least 1.
    pub scheduler_steps: u64,
    /// Tokens of a decode step for each request.
    pub decode: DecodeStep,
    /// Time after which a request that was sent can be scheduled.
    pub delay: Picos,
}

/// Steps in a row whose times are an arithmetic progression.
#[derive(Clone, Copy, Debug)]
struct StepRun {
    start: Picos,
    steps: u64,
    first: Picos,
    last: Picos,
}

impl StepRun {
    /// Time of the first `steps` steps.
    fn time(&self, steps: u64) -> Picos {
        let growth = (self.last - self.first).0 as f64 / (self.steps.max(2) - 1) as f64;
        let count = steps as f64;
        Picos(self.first.0.saturating_mul(steps)) + Picos((growth * count * (count - 1.0) / 2.0).round() as u64)
    }

    fn end(&self) -> Picos {
        self.start + self.time(self.steps)
    }

    /// Returns the run with the steps that begin before `now`, in whole groups; at least one step.
    fn until(self, now: Picos, group: u64) -> Self {
        let elapsed = now - self.start;
        let (mut within, mut beyond) = (0, self.steps);
        while beyond - within > 1 {
            let middle = u64::midpoint(within, beyond);
            if self.time(middle) < elapsed { within = middle } else { beyond = middle }
        }
        let beyond = beyond.next_multiple_of(group).min(self.steps);
        let last = self.time(beyond) - self.time(beyond - 1);
        Self { steps: beyond, last, ..self }
    }
}

/// Streams that make their steps concurrently.
#[derive(Clone, Debug)]
struct StreamGroup {
    schedulers: Vec<Scheduler>,
    run: Option<StepRun>,
}

/// Simulated requests and streams.
pub(super) struct RequestQueue<'a, T> {
    times: &'a T,
    setup: StreamSetup,
    groups: Vec<StreamGroup>,
    /// Ends of runs, with their group.
    ends: BinaryHeap<Reverse<(Picos, usize)>>,
    /// Requests that have ended.
    pub finished: Vec<RequestTimes>,
}

impl<'a, T: StepTime> RequestQueue<'a, T> {
    pub(super) fn new(times: &'a T, setup: StreamSetup) -> Self {
        let group = setup.group.clamp(1, setup.streams.max(1));
        let scheduler = Scheduler::new(setup.limits, setup.cached_prompt, setup.batching, setup.decode);
        let groups =
            vec![StreamGroup { schedulers: vec![scheduler; group], run: None }; (setup.streams / group).max(1)];
        Self { times, setup, groups, ends: BinaryHeap::new(), finished: Vec::new() }
    }

    /// Ends the runs that end up to `now`, and starts their successors.
    ///
    /// # Errors
    /// A step has no time.
    pub(super) fn run_until(&mut self, now: Picos) -> Result<(), T::Error> {
        while let Some(&Reverse((end, group))) = self.ends.peek()
            && end <= now
        {
            self.ends.pop();
            let Some(streams) = self.groups.get_mut(group) else { continue };
            // A run that was shortened has ended before.
            let Some(run) = streams.run.filter(|run| run.end() == end) else { continue };
            streams.run = None;
            for stream in &mut streams.schedulers {
                stream.end_steps(run.steps, end, &mut self.finished);
            }
            self.start_step(group, end)?;
        }
        Ok(())
    }

    fn add_request(&mut self, request: Request) -> Result<(), T::Error> {
        let now = request.arrival + self.setup.delay;
        self.run_until(now)?;
        let loads = self.groups.iter().enumerate().flat_map(|(group, streams)| {
            streams.schedulers.iter().enumerate().map(move |(index, stream)| (stream.requests(), group, index))
        });
        let Some((_, group, index)) = loads.min() else { return Ok(()) };
        if let Some(stream) = self.groups.get_mut(group).and_then(|streams| streams.schedulers.get_mut(index)) {
            stream.add(request);
        }
        let running = self.groups.get(group).and_then(|streams| streams.run);
        match running {
            None => self.start_step(group, now),
            Some(run) => {
                // The request joins after the steps that run.
                let shortened = run.until(now, self.setup.scheduler_steps.max(1));
                if shortened.steps < run.steps {
                    self.set_run(group, shortened);
                }
                Ok(())
            }
        }
    }

    /// Starts the next steps of a group; it stays idle without requests.
    fn start_step(&mut self, group: usize, start: Picos) -> Result<(), T::Error> {
        let Some(streams) = self.groups.get_mut(group) else { return Ok(()) };
        let Some(step) = most_loaded_step(&mut streams.schedulers) else { return Ok(()) };
        let first = self.times.step_time(&step)?;
        let repeats = match step.tokens.chunks > 0.0 {
            true => step.repeats,
            false => step.repeats.next_multiple_of(self.setup.scheduler_steps.max(1)),
        };
        let last = match repeats {
            1 => first,
            steps => {
                let mut last = step;
                last.context.decode += (steps - 1) as f64 * self.setup.decode.yielded;
                self.times.step_time(&last)?.max(first)
            }
        };
        self.set_run(group, StepRun { start, steps: repeats, first, last });
        Ok(())
    }

    fn set_run(&mut self, group: usize, run: StepRun) {
        if let Some(streams) = self.groups.get_mut(group) {
            streams.run = Some(run);
            self.ends.push(Reverse((run.end(), group)));
        }
    }
}

impl<T: StepTime> RequestServer for RequestQueue<'_, T> {
    type Error = T::Error;

    fn arrive(&mut self, request: Request) -> Result<(), T::Error> {
        self.add_request(request)
    }

    fn drain(&mut self) -> Result<(), T::Error> {
        self.run_until(Picos(u64::MAX))
    }

    fn finished(&self) -> &[RequestTimes] {
        &self.finished
    }
}

/// Plans a concurrent step of streams: that of the stream with most tokens, which the others wait for.
fn most_loaded_step(schedulers: &mut [Scheduler]) -> Option<PlannedStep> {
    let streams = schedulers.len() as f64;
    let steps: Vec<PlannedStep> = schedulers.iter_mut().filter_map(Scheduler::plan_step).collect();
    let mean = steps.iter().map(|step| step.tokens.tokens()).sum::<f64>() / streams;
    let repeats = steps.iter().map(|step| step.repeats).min()?;
    let mut most_loaded = steps.into_iter().max_by(|a, b| a.tokens.tokens().total_cmp(&b.tokens.tokens()))?;
    most_loaded.tokens.imbalance = most_loaded.tokens.tokens() - mean;
    Some(PlannedStep { repeats, ..most_loaded })
}
