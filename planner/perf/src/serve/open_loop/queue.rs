//! Discrete-event simulation of the requests of an open loop: arrivals, and steps of the schedulers.
//!
//! Streams of a group make their steps concurrently: those of replicas that share experts, since the tokens of all replicas
//! are exchanged in every layer. Other streams are groups of one. A request goes to the stream with the fewest requests.
//!
//! Steps without prefill repeat until a request ends or arrives. Their time grows linearly with the context, so a run of
//! them has two evaluations of the step's time, and its sum is that of an arithmetic progression.
//!
//! **Overlapped scheduling** ([`StepScheduling::Overlapped`]). The host plans and launches a step while the one before
//! runs, and then waits for the results of the latter (SGLang, `python/sglang/srt/managers/scheduler.py`,
//! `event_loop_overlap`). With `E` the end of a step on the GPUs, `H` the time at which the host plans it, `L` the time to
//! launch it, `D` its time on the GPUs and `T` its time on idle GPUs:
//!
//! ```text
//! E(k+1) = max(E(k) + D(k+1), H(k+1) + T(k+1))
//! H(k+2) = max(E(k), H(k+1) + L(k+1))
//! results of step k: max(E(k), H(k+1) + L(k+1))
//! ```
//!
//! With [`StepScheduling::OverlappedDecode`], the launch of a step with prefill waits for the step before: `H` is at least
//! `E(k)` in the first and the last line.
//!
//! So a request that arrives during a step waits for the end of the next one too, but its prompt is launched meanwhile. A
//! request that ends in a step is assumed not to be part of the next one, in which its token is discarded.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fabricast_topologies::Picos;
use fabricast_workload::job::{Batching, StepScheduling};

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
    fn step_time(&self, step: &PlannedStep) -> Result<StepDuration, Self::Error>;
}

/// Times of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StepDuration {
    /// Time on idle GPUs, with all that waits for the host.
    pub idle: Picos,
    /// Time on GPUs for which the host has launched everything in time.
    pub device: Picos,
    /// Time of the host to launch it.
    pub launch: Picos,
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
    /// Time at which a step is planned.
    pub scheduling: StepScheduling,
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
    /// Time at which the host has launched the first step.
    launched: Picos,
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

    /// Time at which the host plans the step after the run.
    fn next_plan(&self, scheduling: StepScheduling) -> Picos {
        match scheduling {
            StepScheduling::Sequential => self.end(),
            StepScheduling::Overlapped | StepScheduling::OverlappedDecode => {
                (self.start + self.time(self.steps.max(1) - 1)).max(self.launched)
            }
        }
    }

    /// Returns the run with the steps that are planned before `now`, in whole groups; at least one step.
    fn until(self, now: Picos, group: u64, scheduling: StepScheduling) -> Self {
        let elapsed = now - self.start;
        let (mut within, mut beyond) = (0, self.steps);
        while beyond - within > 1 {
            let middle = u64::midpoint(within, beyond);
            if self.time(middle) < elapsed { within = middle } else { beyond = middle }
        }
        // The step after the one that runs is planned as well.
        let planned = if scheduling.is_overlapped() && now > self.start { beyond + 1 } else { beyond };
        let steps = planned.next_multiple_of(group).min(self.steps);
        let last = self.time(steps) - self.time(steps - 1);
        Self { steps, last, ..self }
    }
}

/// Streams that make their steps concurrently.
#[derive(Clone, Debug)]
struct StreamGroup {
    schedulers: Vec<Scheduler>,
    /// Steps that were planned last.
    run: Option<StepRun>,
    /// Time at which the next step is planned; `None` without requests.
    next_plan: Option<Picos>,
    /// End of the steps before `run`.
    free: Picos,
}

/// Simulated requests and streams.
pub(super) struct RequestQueue<'a, T> {
    times: &'a T,
    setup: StreamSetup,
    groups: Vec<StreamGroup>,
    /// Times at which steps are planned, with their group.
    plans: BinaryHeap<Reverse<(Picos, usize)>>,
    /// Requests that have ended.
    pub finished: Vec<RequestTimes>,
}

impl<'a, T: StepTime> RequestQueue<'a, T> {
    pub(super) fn new(times: &'a T, setup: StreamSetup) -> Self {
        let streams = setup.group.clamp(1, setup.streams.max(1));
        let scheduler = Scheduler::new(setup.limits, setup.cached_prompt, setup.batching, setup.decode);
        let group = StreamGroup { schedulers: vec![scheduler; streams], run: None, next_plan: None, free: Picos::ZERO };
        let groups = vec![group; (setup.streams / streams).max(1)];
        Self { times, setup, groups, plans: BinaryHeap::new(), finished: Vec::new() }
    }

    /// Time after which a request that was sent can be scheduled.
    pub(super) fn delay(&self) -> Picos {
        self.setup.delay
    }

    /// Returns the time of the next step that is planned without a further request; `None` if all groups are idle.
    pub(super) fn next_event(&self) -> Option<Picos> {
        self.groups.iter().filter_map(|group| group.next_plan).min()
    }

    /// Plans the steps whose time has come up to `now`, each with the results of the steps before.
    ///
    /// # Errors
    /// A step has no time.
    pub(super) fn run_until(&mut self, now: Picos) -> Result<(), T::Error> {
        while let Some(&Reverse((plan, group))) = self.plans.peek()
            && plan <= now
        {
            self.plans.pop();
            // (The plan of a run that was shortened was earlier.)
            if self.groups.get(group).is_some_and(|streams| streams.next_plan == Some(plan)) {
                self.start_step(group, plan)?;
            }
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
        let Some(streams) = self.groups.get_mut(group) else { return Ok(()) };
        if let Some(stream) = streams.schedulers.get_mut(index) {
            stream.add(request);
        }
        match streams.run {
            None if streams.free <= now => self.start_step(group, now),
            // The host waits for the last results before it plans again.
            None => {
                let free = streams.free;
                self.set_plan(group, free);
                Ok(())
            }
            Some(run) => {
                // The request joins after the steps that are planned.
                let shortened = run.until(now, self.setup.scheduler_steps.max(1), self.setup.scheduling);
                if shortened.steps < run.steps {
                    self.set_run(group, shortened);
                }
                Ok(())
            }
        }
    }

    /// Ends the steps of a group that were planned before, and plans the next at `now`; the group stays idle without
    /// requests.
    fn start_step(&mut self, group: usize, now: Picos) -> Result<(), T::Error> {
        let Some(streams) = self.groups.get_mut(group) else { return Ok(()) };
        streams.next_plan = None;
        let ended = self.finished.len();
        if let Some(run) = streams.run.take() {
            streams.free = run.end();
            for stream in &mut streams.schedulers {
                stream.end_steps(run.steps, streams.free, &mut self.finished);
            }
        }
        let free = streams.free;
        let Some(step) = most_loaded_step(&mut streams.schedulers) else { return Ok(()) };
        let StepDuration { idle, device, launch } = self.times.step_time(&step)?;
        // Time at which the host begins to launch the step.
        let waits = self.setup.scheduling == StepScheduling::OverlappedDecode && step.tokens.prefill > 0.0;
        let begins = if waits { now.max(free) } else { now };
        let launched = begins + launch;
        if self.setup.scheduling.is_overlapped() && launched > free {
            // The host processes results when it has launched the next step.
            for stream in &mut streams.schedulers {
                stream.delay_first_tokens(free, launched);
            }
            self.finished.iter_mut().skip(ended).for_each(|times| times.delay(free, launched));
        }
        let start = free.max(now);
        let first = device.max(begins + idle - start);
        let repeats = match step.tokens.chunks > 0.0 {
            true => step.repeats,
            false => step.repeats.next_multiple_of(self.setup.scheduler_steps.max(1)),
        };
        let last = match repeats {
            1 => first,
            steps => {
                let mut last = step;
                last.context.decode += (steps - 1) as f64 * self.setup.decode.yielded;
                self.times.step_time(&last)?.idle.max(first)
            }
        };
        self.set_run(group, StepRun { start, steps: repeats, first, last, launched });
        Ok(())
    }

    fn set_run(&mut self, group: usize, run: StepRun) {
        if let Some(streams) = self.groups.get_mut(group) {
            streams.run = Some(run);
        }
        self.set_plan(group, run.next_plan(self.setup.scheduling));
    }

    fn set_plan(&mut self, group: usize, plan: Picos) {
        if let Some(streams) = self.groups.get_mut(group) {
            streams.next_plan = Some(plan);
            self.plans.push(Reverse((plan, group)));
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
