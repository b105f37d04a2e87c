//! Scheduler of a stream of requests: which tokens of which requests are in the next step.
//!
//! As vLLM's (`vllm/v1/core/sched/scheduler.py`, `schedule`): running requests first, in the order of their start, each
//! with one decode token or the next chunk of its prompt; then waiting ones, in the order of their arrival, as long as the
//! step has room for tokens, the stream for requests, and the cache for the prompt. If the cache has no room for the next
//! tokens, the request that started last waits again, first of all, and its tokens are computed again. Where prompts have
//! precedence ([`Batching::PrefillFirst`]), decode waits while there are any.

use std::collections::VecDeque;

use fabricast_topologies::Picos;
use fabricast_workload::job::Batching;

use super::super::attention_context::AttentionContext;
use super::super::steady_state::StepTokens;
use super::latencies::RequestTimes;
use super::request_source::Request;

/// Room of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StreamLimits {
    /// Tokens of a step.
    pub step_tokens: u64,
    /// Running requests.
    pub requests: u64,
    /// Tokens in the KV cache.
    pub cached_tokens: u64,
}

/// Tokens of prompts that are not computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum CachedPrompt {
    /// A share of the prompt is in the prefix cache, 0 to 1. The last token is always computed.
    Prefix(f64),
    /// Keys and values arrive from a machine for prefill, with the first output token.
    Whole,
    /// Keys and values arrive from a machine for prefill. The first decode step computes the last token of the prompt again,
    /// which yields the first output token.
    AllButLast,
}

/// Tokens of a decode step for each request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DecodeStep {
    /// Proposed tokens that are verified.
    pub drafted: u64,
    /// Mean number of tokens that result, at least 1.
    pub yielded: f64,
}

impl DecodeStep {
    /// Takes room for the next tokens of a request, and returns their number: those of its prompt, or one and the proposed
    /// ones, which are not counted.
    fn take(self, room: &mut u64, remaining_prefill: u64) -> u64 {
        if remaining_prefill > 0 {
            let chunk = remaining_prefill.min(*room);
            *room -= chunk;
            return chunk;
        }
        let decoded = (*room).min(1);
        *room = room.saturating_sub(1 + self.drafted);
        decoded
    }

    /// Number of steps that yield so many tokens; at least 1.
    fn steps(self, tokens: f64) -> u64 {
        ((tokens - ROUNDING) / self.yielded).ceil().max(1.0) as u64
    }
}

/// Tokens that rounding may lack.
const ROUNDING: f64 = 1e-6;

/// Request that waits or runs.
#[derive(Clone, Copy, Debug)]
struct ScheduledRequest {
    request: Request,
    /// Tokens that prefill computes before decode: those of the prompt, and those that exist if they are computed again.
    prefill: u64,
    /// Tokens in the KV cache; a mean if steps yield several.
    cached: f64,
    /// Output tokens that exist; a mean if steps yield several.
    generated: f64,
    first_token: Option<Picos>,
    /// Tokens in the current step, without those that are proposed.
    scheduled: u64,
}

impl ScheduledRequest {
    /// Tokens that prefill has yet to compute; 0 for a request that decodes.
    fn remaining_prefill(&self) -> u64 {
        self.prefill.saturating_sub(self.cached as u64)
    }

    /// Returns the request with an empty cache.
    fn evicted(&self) -> Self {
        Self { prefill: self.request.prompt + self.generated as u64, cached: 0.0, scheduled: 0, ..*self }
    }
}

/// Tokens of a step, and how often it can repeat with one more token of context for each request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PlannedStep {
    pub tokens: StepTokens,
    pub context: AttentionContext,
    /// Number of equal steps until a request ends; 1 if there is prefill.
    pub repeats: u64,
}

/// Requests of a stream that wait and run.
#[derive(Clone, Debug)]
pub(super) struct Scheduler {
    limits: StreamLimits,
    cached_prompt: CachedPrompt,
    batching: Batching,
    decode: DecodeStep,
    waiting: VecDeque<ScheduledRequest>,
    running: Vec<ScheduledRequest>,
}

impl Scheduler {
    pub(super) fn new(
        limits: StreamLimits,
        cached_prompt: CachedPrompt,
        batching: Batching,
        decode: DecodeStep,
    ) -> Self {
        Self { limits, cached_prompt, batching, decode, waiting: VecDeque::new(), running: Vec::new() }
    }

    /// Adds a request to those that wait.
    pub(super) fn add(&mut self, request: Request) {
        let (prefill, generated) = match self.cached_prompt {
            CachedPrompt::Prefix(_) => (request.prompt, 0.0),
            CachedPrompt::Whole => (request.prompt, 1.0),
            CachedPrompt::AllButLast => (request.prompt.saturating_sub(1), 0.0),
        };
        self.waiting.push_back(ScheduledRequest {
            request,
            prefill,
            cached: 0.0,
            generated,
            first_token: None,
            scheduled: 0,
        });
    }

    /// Number of requests that wait or run.
    pub(super) fn requests(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// Plans the next step; `None` without requests.
    pub(super) fn plan_step(&mut self) -> Option<PlannedStep> {
        self.evict();
        let mut room = self.limits.step_tokens;
        for running in &mut self.running {
            let waits = self.batching == Batching::PrefillFirst && running.remaining_prefill() == 0;
            running.scheduled = if waits { 0 } else { self.decode.take(&mut room, running.remaining_prefill()) };
        }
        while let Some(mut started) = self.waiting.front().copied().filter(|front| room > 0 && self.has_room(front)) {
            self.waiting.pop_front();
            started.cached = self.prefix(&started) as f64;
            started.scheduled = self.decode.take(&mut room, started.remaining_prefill());
            self.running.push(started);
        }
        if self.running.iter().all(|running| running.scheduled == 0) {
            for running in &mut self.running {
                running.scheduled = self.decode.take(&mut room, 0);
            }
        }
        self.planned()
    }

    /// Tokens in the KV cache, with those that running prompts will add and the next of each request that decodes.
    fn needed_cache(&self) -> u64 {
        let next = 1 + self.decode.drafted;
        self.running.iter().map(|running| (running.cached as u64).max(running.prefill) + next).sum()
    }

    /// Returns requests that started last to the front of those that wait, until the cache has room for the next tokens.
    fn evict(&mut self) {
        while self.running.len() > 1 && self.needed_cache() > self.limits.cached_tokens {
            if let Some(last) = self.running.pop() {
                self.waiting.push_front(last.evicted());
            }
        }
    }

    fn has_room(&self, waiting: &ScheduledRequest) -> bool {
        let fits = self.needed_cache() + waiting.prefill < self.limits.cached_tokens;
        // A request that is larger than the cache runs alone.
        self.running.is_empty() || ((self.running.len() as u64) < self.limits.requests && fits)
    }

    /// Tokens of a request that are in the cache when it starts.
    fn prefix(&self, waiting: &ScheduledRequest) -> u64 {
        match self.cached_prompt {
            CachedPrompt::Prefix(share) => {
                let cached = ((waiting.request.prompt as f64 * share) as u64).max(waiting.request.cached);
                cached.min(waiting.prefill.saturating_sub(1))
            }
            // What was evicted is computed here.
            CachedPrompt::Whole if waiting.generated > 1.0 => 0,
            CachedPrompt::AllButLast if waiting.generated > 0.0 => 0,
            CachedPrompt::Whole | CachedPrompt::AllButLast => waiting.prefill,
        }
    }

    /// Composition of the tokens that are scheduled.
    fn planned(&self) -> Option<PlannedStep> {
        let (mut tokens, mut context) = (StepTokens::default(), AttentionContext::default());
        let mut repeats = u64::MAX;
        for running in self.running.iter().filter(|running| running.scheduled > 0) {
            let (remaining, scheduled) = (running.remaining_prefill(), running.scheduled as f64);
            if remaining == 0 {
                tokens.decode += 1.0;
                context.decode += running.cached + 1.0;
                let steps = self.decode.steps(running.request.output as f64 - running.generated);
                // The end of the first step is the time of the first token.
                repeats = repeats.min(if running.generated < 1.0 { 1 } else { steps });
            } else {
                tokens.prefill += scheduled;
                tokens.chunks += 1.0;
                tokens.finished_prefills += if running.scheduled == remaining { 1.0 } else { 0.0 };
                context.cached += running.cached;
                context.prefill += scheduled * (running.cached + (scheduled + 1.0) / 2.0);
                repeats = 1;
            }
        }
        // Equal steps as long as the cache has room.
        let room = self.limits.cached_tokens.saturating_sub(self.needed_cache());
        let growth = self.running.len() as f64 * self.decode.yielded;
        let repeats = repeats.min(1 + (room as f64 / growth.max(1.0)) as u64);
        let context = AttentionContext {
            decode: context.decode / tokens.decode.max(1.0),
            prefill: context.prefill / tokens.prefill.max(1.0),
            cached: context.cached / tokens.chunks.max(1.0),
        };
        let tokens = tokens.with_drafts(self.decode.drafted);
        (!tokens.is_empty()).then_some(PlannedStep { tokens, context, repeats })
    }

    /// Delays the first tokens of running requests that exist at `from` to `until`.
    pub(super) fn delay_first_tokens(&mut self, from: Picos, until: Picos) {
        let tokens = self.running.iter_mut().filter_map(|running| running.first_token.as_mut());
        tokens.filter(|token| **token == from).for_each(|token| *token = until);
    }

    /// Ends `steps` equal steps at `end`, and adds the requests that end with them to `finished`.
    pub(super) fn end_steps(&mut self, steps: u64, end: Picos, finished: &mut Vec<RequestTimes>) {
        for running in self.running.iter_mut().filter(|running| running.scheduled > 0) {
            let was_decoding = running.remaining_prefill() == 0;
            if was_decoding {
                let yielded = self.decode.yielded * steps as f64;
                running.cached += yielded;
                running.generated += yielded;
                if self.cached_prompt == CachedPrompt::AllButLast {
                    running.first_token.get_or_insert(end);
                }
                continue;
            }
            running.cached += running.scheduled as f64;
            if running.remaining_prefill() == 0 {
                running.generated += 1.0;
                if self.cached_prompt != CachedPrompt::Whole {
                    running.first_token.get_or_insert(end);
                }
            }
        }
        self.running.retain(|running| {
            let ends =
                running.remaining_prefill() == 0 && running.generated + ROUNDING >= running.request.output as f64;
            if ends {
                finished.push(RequestTimes { request: running.request, first_token: running.first_token, end });
            }
            !ends
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_TOKEN: DecodeStep = DecodeStep { drafted: 0, yielded: 1.0 };

    fn scheduler(step_tokens: u64) -> Scheduler {
        let limits = StreamLimits { step_tokens, requests: 8, cached_tokens: 1000 };
        Scheduler::new(limits, CachedPrompt::Prefix(0.0), Batching::Mixed, ONE_TOKEN)
    }

    fn request(prompt: u64, output: u64) -> Request {
        Request { number: 0, arrival: Picos(0), prompt, output, cached: 0 }
    }

    /// A prompt of 25 tokens in steps of 10 next to a request that decodes: chunks of 10, 9 and 6 tokens.
    #[test]
    fn prompts_fill_the_room_next_to_decode_tokens() {
        let (mut scheduler, mut finished) = (scheduler(10), Vec::new());
        scheduler.add(request(10, 3));
        let first = scheduler.plan_step().unwrap();
        assert_eq!((first.tokens.prefill, first.tokens.finished_prefills, first.repeats), (10.0, 1.0, 1));
        assert_eq!((first.context.prefill, first.context.cached), (5.5, 0.0));
        scheduler.end_steps(1, Picos(1), &mut finished);
        scheduler.add(request(25, 2));
        let chunks: Vec<PlannedStep> = (2..5)
            .map(|end| {
                let step = scheduler.plan_step().unwrap();
                scheduler.end_steps(1, Picos(end), &mut finished);
                step
            })
            .collect();
        let tokens: Vec<(f64, f64)> = chunks.iter().map(|step| (step.tokens.decode, step.tokens.prefill)).collect();
        assert_eq!(tokens, [(1.0, 9.0), (1.0, 9.0), (0.0, 7.0)]);
        assert_eq!(chunks[1].context, AttentionContext { decode: 12.0, prefill: 14.0, cached: 9.0 });
        let times: Vec<(Option<Picos>, Picos)> = finished.iter().map(|times| (times.first_token, times.end)).collect();
        assert_eq!(times, [(Some(Picos(1)), Picos(3))]);
        assert_eq!(scheduler.plan_step().unwrap().repeats, 1);
        scheduler.end_steps(1, Picos(5), &mut finished);
        assert_eq!((finished[1].first_token, finished[1].end), (Some(Picos(4)), Picos(5)));
        assert_eq!((scheduler.plan_step(), scheduler.requests()), (None, 0));
    }

    /// Decode waits while a prompt of 25 tokens takes three steps of 10.
    #[test]
    fn prompts_may_have_precedence() {
        let (mut scheduler, mut finished) =
            (Scheduler { batching: Batching::PrefillFirst, ..scheduler(10) }, Vec::new());
        scheduler.add(request(10, 3));
        scheduler.plan_step();
        scheduler.end_steps(1, Picos(1), &mut finished);
        scheduler.add(request(25, 2));
        let tokens: Vec<(f64, f64)> = (2..6)
            .map(|end| {
                let step = scheduler.plan_step().unwrap();
                scheduler.end_steps(1, Picos(end), &mut finished);
                (step.tokens.decode, step.tokens.prefill)
            })
            .collect();
        assert_eq!(tokens, [(0.0, 10.0), (0.0, 10.0), (0.0, 5.0), (2.0, 0.0)]);
    }

    /// Three requests of 10 prompt tokens fill a cache of 1,000 tokens when each has 333. The last one waits until the
    /// others have ended, and is computed again.
    #[test]
    fn requests_that_overflow_the_cache_are_computed_again() {
        let (mut scheduler, mut finished) = (scheduler(400), Vec::new());
        for _ in 0..3 {
            scheduler.add(request(10, 490));
        }
        assert_eq!(scheduler.plan_step().unwrap().tokens.prefill, 30.0);
        scheduler.end_steps(1, Picos(1), &mut finished);
        let growing = scheduler.plan_step().unwrap();
        assert_eq!((growing.tokens.decode, growing.repeats), (3.0, 323));
        scheduler.end_steps(growing.repeats, Picos(2), &mut finished);
        let fewer = scheduler.plan_step().unwrap();
        assert_eq!((fewer.tokens.decode, fewer.repeats, scheduler.requests()), (2.0, 166, 3));
        scheduler.end_steps(fewer.repeats, Picos(3), &mut finished);
        let again = scheduler.plan_step().unwrap();
        assert_eq!((finished.len(), again.tokens.prefill, again.tokens.finished_prefills), (2, 334.0, 1.0));
        scheduler.end_steps(1, Picos(4), &mut finished);
        let rest = scheduler.plan_step().unwrap();
        assert_eq!((rest.tokens.decode, rest.repeats), (1.0, 165));
        scheduler.end_steps(rest.repeats, Picos(5), &mut finished);
        assert_eq!((finished[2].first_token, finished[2].end), (Some(Picos(1)), Picos(5)));
    }

    /// Steps that verify three proposed tokens and yield two: 9 tokens after the first take five steps.
    #[test]
    fn steps_yield_several_tokens() {
        let decode = DecodeStep { drafted: 3, yielded: 2.0 };
        let (mut scheduler, mut finished) = (Scheduler { decode, ..scheduler(10) }, Vec::new());
        scheduler.add(request(10, 10));
        scheduler.plan_step();
        scheduler.end_steps(1, Picos(1), &mut finished);
        let step = scheduler.plan_step().unwrap();
        assert_eq!((step.tokens.decode, step.tokens.drafted, step.tokens.tokens(), step.repeats), (1.0, 3.0, 4.0, 5));
        // Two requests of four tokens each leave two for a prompt.
        scheduler.add(request(20, 10));
        scheduler.plan_step();
        scheduler.end_steps(1, Picos(2), &mut finished);
        assert_eq!(scheduler.plan_step().unwrap().tokens.prefill, 6.0);
        scheduler.end_steps(4, Picos(3), &mut finished);
        assert_eq!((finished.len(), finished[0].end), (1, Picos(3)));
    }

    #[test]
    fn requests_wait_for_room() {
        let mut scheduler = scheduler(2000);
        for _ in 0..3 {
            scheduler.add(request(450, 2));
        }
        assert_eq!(scheduler.plan_step().unwrap().tokens.prefill, 900.0);
        assert_eq!((scheduler.running.len(), scheduler.requests()), (2, 3));
    }

    /// The first token of a request whose prompt comes from another machine is not computed here, even if the prompt is.
    #[test]
    fn evicted_requests_of_decode_machines_have_no_first_token() {
        let limits = StreamLimits { step_tokens: 100, requests: 8, cached_tokens: 60 };
        let (mut scheduler, mut finished) =
            (Scheduler::new(limits, CachedPrompt::Whole, Batching::Mixed, ONE_TOKEN), Vec::new());
        scheduler.add(request(20, 20));
        scheduler.add(request(20, 20));
        let mut has_prefill = false;
        for end in 1..100 {
            let Some(step) = scheduler.plan_step() else { break };
            has_prefill |= step.tokens.prefill > 0.0;
            scheduler.end_steps(step.repeats, Picos(end), &mut finished);
        }
        assert!(has_prefill);
        assert_eq!((finished.len(), finished.iter().filter_map(|times| times.first_token).count()), (2, 0));
    }

    #[test]
    fn cached_prompts_are_not_computed() {
        let limits = StreamLimits { step_tokens: 100, requests: 8, cached_tokens: 1000 };
        let first = |cached_prompt| {
            let mut scheduler = Scheduler::new(limits, cached_prompt, Batching::Mixed, ONE_TOKEN);
            scheduler.add(request(40, 5));
            let step = scheduler.plan_step().unwrap();
            (step.tokens.prefill, step.tokens.decode, step.context.cached)
        };
        assert_eq!(first(CachedPrompt::Prefix(0.75)), (10.0, 0.0, 30.0));
        assert_eq!(first(CachedPrompt::Prefix(1.0)), (1.0, 0.0, 39.0));
        assert_eq!(first(CachedPrompt::Whole), (0.0, 1.0, 0.0));
        assert_eq!(first(CachedPrompt::AllButLast), (0.0, 1.0, 0.0));
    }

    /// The first of four decode steps yields the first of four tokens; otherwise the first token comes with the prompt.
    #[test]
    fn last_token_of_a_cached_prompt_is_computed_in_a_decode_step() {
        let limits = StreamLimits { step_tokens: 100, requests: 8, cached_tokens: 1000 };
        let run = |cached_prompt| {
            let (mut scheduler, mut finished) =
                (Scheduler::new(limits, cached_prompt, Batching::Mixed, ONE_TOKEN), Vec::new());
            scheduler.add(request(40, 4));
            let mut now = 0;
            while let Some(step) = scheduler.plan_step() {
                now += step.repeats;
                scheduler.end_steps(step.repeats, Picos(now), &mut finished);
            }
            (finished[0].first_token, finished[0].end)
        };
        assert_eq!(run(CachedPrompt::AllButLast), (Some(Picos(1)), Picos(4)));
        assert_eq!(run(CachedPrompt::Whole), (None, Picos(3)));
    }
}
