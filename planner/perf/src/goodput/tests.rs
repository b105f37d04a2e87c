//! Goodput against closed forms, published values, and a simulation of events.

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, Exp};

use super::*;

const HOUR: f64 = 3600.0;

fn picos(seconds: f64) -> Picos {
    Picos((seconds * PICOS_PER_SECOND as f64).round() as u64)
}

/// Run with times in seconds.
fn training_run(
    step: f64,
    [blocking, background]: [f64; 2],
    mean_time_between_failures: f64,
    recovery: f64,
) -> TrainingRun {
    TrainingRun {
        step: picos(step),
        checkpoint: CheckpointTimes { blocking: picos(blocking), background: picos(background) },
        failures: FailureRate { per_second: 1.0 / mean_time_between_failures },
        recovery: picos(recovery),
    }
}

#[test]
fn failures_per_gpu_day_add_up_over_the_job() {
    // Llama 3 405B (arXiv 2407.21783, section 3.3.4): 419 unexpected interruptions in 54 days on 16,384 GPUs.
    let rate = FailureRate::new(419.0 / 54.0 / 16.384, 16_384);
    assert!((rate.in_days(54.0) - 419.0).abs() < 1e-9);
}

#[test]
fn without_failures_only_checkpoints_take_time() {
    for (blocking, background, expected) in
        [(5.0, 0.0, 100.0 / 105.0), (5.0, 60.0, 100.0 / 105.0), (5.0, 120.0, 100.0 / 125.0)]
    {
        let shares = training_run(2.0, [blocking, background], f64::INFINITY, 600.0).time_shares(50);
        assert!((shares.steps - expected).abs() < 1e-12, "{shares:?}");
        assert!((shares.steps + shares.checkpoints - 1.0).abs() < 1e-12, "{shares:?}");
    }
    let free = training_run(2.0, [5.0, 0.0], f64::INFINITY, 600.0);
    assert_eq!(free.best_interval(), (seconds(MAX_INTERVAL) / 2.0) as u64);
}

/// Daly's complete model for blocking writes: M e^(R/M) (e^((τ+δ)/M) − 1) / τ.
#[test]
fn blocking_writes_match_dalys_complete_model() {
    let (mtbf, recovery, write, work) = (6.0 * HOUR, 600.0, 300.0, 3600.0);
    let shares = training_run(1.0, [write, 0.0], mtbf, recovery).time_shares(work as u64);
    let expected = mtbf * (recovery / mtbf).exp() * (((work + write) / mtbf).exp() - 1.0) / work;
    assert!((1.0 / shares.steps - expected).abs() < 1e-9 * expected, "{shares:?}");
}

/// Optimal intervals in the captions of Daly's figures (doi 10.1016/j.future.2004.11.016): writes of 5 minutes, a mean
/// time between failures of 24 h, 6 h and 15 minutes. And his equation 37, which approximates the optimum.
#[test]
fn optimal_intervals_match_dalys_published_values() {
    for (mtbf, minutes, digit) in [(24.0 * HOUR, 117.0, 1.0), (6.0 * HOUR, 57.0, 1.0), (0.25 * HOUR, 9.1, 0.1)] {
        let write = 300.0;
        let exact = training_run(1.0, [write, 0.0], mtbf, 600.0).best_interval() as f64;
        assert!((exact / 60.0 - minutes).abs() < digit, "{mtbf}: {exact} s");
        let root = (write / (2.0 * mtbf)).sqrt();
        let approximation = (2.0 * write * mtbf).sqrt() * (1.0 + root / 3.0 + root * root / 9.0) - write;
        assert!((exact / approximation - 1.0).abs() < 0.01, "{mtbf}: {exact} and {approximation} s");
    }
}

/// Young's interval √(2 δ M) is the limit for short checkpoints.
#[test]
fn optimal_interval_of_short_checkpoints_is_youngs() {
    let optimum = optimal_share(1e-8);
    assert!((optimum / 2e-8_f64.sqrt() - 1.0).abs() < 1e-4, "{optimum}");
}

/// Expected ETTR for short intervals, (1 − N r (u + Δt/2)) / (1 + w/Δt) (Kokolis et al., arXiv 2410.21680), "accurate to
/// 5 %".
#[test]
fn goodput_is_near_metas_approximation() {
    for (mtbf, recovery, write, interval) in
        [(7.9, 300.0, 300.0, 3600.0), (7.9, 1200.0, 30.0, 3600.0), (3.0, 600.0, 20.0, 900.0)]
    {
        let mtbf = mtbf * HOUR;
        let exact = training_run(1.0, [write, 0.0], mtbf, recovery).time_shares(interval as u64).steps;
        let approximation = (1.0 - (recovery + interval / 2.0) / mtbf) / (1.0 + write / interval);
        assert!((exact / approximation - 1.0).abs() < 0.05, "{exact} and {approximation}");
    }
}

/// Timeline of a run: events in the order of time, with times of failures drawn in advance.
struct Timeline {
    random: ChaCha8Rng,
    gaps: Option<Exp<f64>>,
    now: f64,
    next_failure: f64,
}

impl Timeline {
    fn new(run: &TrainingRun, seed: u64) -> Self {
        let gaps = Exp::new(run.failures.per_second).ok();
        let mut timeline = Self { random: ChaCha8Rng::seed_from_u64(seed), gaps, now: 0.0, next_failure: 0.0 };
        timeline.draw_failure();
        timeline
    }

    fn draw_failure(&mut self) {
        self.next_failure = self.now + self.gaps.map_or(f64::INFINITY, |gaps| gaps.sample(&mut self.random));
    }

    /// Advances by `time`, or to the next failure; returns the elapsed time and whether `time` passed in full.
    fn advance(&mut self, time: f64) -> (f64, bool) {
        let end = self.now + time;
        if end < self.next_failure {
            self.now = end;
            return (time, true);
        }
        let elapsed = self.next_failure - self.now;
        self.now = self.next_failure;
        self.draw_failure();
        (elapsed, false)
    }
}

/// Seconds of work and of stops for it that no complete checkpoint has yet.
#[derive(Clone, Copy, Default)]
struct OpenTime {
    work: f64,
    stops: f64,
}

/// Checkpoint that is being written until `end`.
struct Write {
    saved: OpenTime,
    end: f64,
}

/// Simulates a run step by step for `days` and returns the shares of its time. Steps and copies count when their
/// checkpoint is complete.
fn simulate(run: &TrainingRun, interval: u64, days: f64, seed: u64) -> [f64; 4] {
    let [step, copy, write, recovery] =
        [run.step, run.checkpoint.blocking, run.checkpoint.background, run.recovery].map(seconds);
    let mut timeline = Timeline::new(run, seed);
    let (mut steps, mut checkpoints, mut lost, mut recovering) = (0.0, 0.0, 0.0, 0.0);
    let (mut open, mut writing) = (OpenTime::default(), None::<Write>);
    let mut steps_since_copy = 0;
    while timeline.now < days * SECONDS_PER_DAY {
        let pending = writing.as_ref().map(|write| write.end - timeline.now).filter(|&rest| rest > 0.0);
        let (kind, duration) = match (steps_since_copy < interval, pending) {
            (true, _) => ("step", step),
            (false, Some(rest)) => ("wait", rest),
            (false, None) => ("copy", copy),
        };
        let (elapsed, is_complete) = timeline.advance(duration);
        match kind {
            "step" => open.work += elapsed,
            _ => open.stops += elapsed,
        }
        if let Some(complete) = writing.take_if(|write| write.end <= timeline.now) {
            (steps, checkpoints) = (steps + complete.saved.work, checkpoints + complete.saved.stops);
        }
        if is_complete {
            match kind {
                "step" => steps_since_copy += 1,
                "copy" => {
                    writing = Some(Write { saved: open, end: timeline.now + write });
                    (open, steps_since_copy) = (OpenTime::default(), 0);
                }
                _ => {}
            }
            continue;
        }
        let unsaved = writing.take().map(|write| write.saved).unwrap_or_default();
        lost += open.work + open.stops + unsaved.work + unsaved.stops;
        (open, steps_since_copy) = (OpenTime::default(), 0);
        loop {
            let (elapsed, is_complete) = timeline.advance(recovery);
            recovering += elapsed;
            if is_complete {
                break;
            }
        }
    }
    let total = steps + checkpoints + lost + recovering;
    [steps, checkpoints, lost, recovering].map(|time| time / total)
}

/// A month of 200 seeds for each of several runs: few and many failures, writes that block, that end in the background,
/// and that take longer than the interval.
#[test]
fn expected_shares_match_simulated_timelines() {
    for (times, mtbf_h, recovery, interval) in [
        ([0.0, 0.0], 3.0, 600.0, 20),
        ([60.0, 0.0], 3.0, 600.0, 20),
        ([2.0, 240.0], 3.0, 600.0, 20),
        ([5.0, 900.0], 1.0, 300.0, 20),
        ([5.0, 300.0], 0.5, 1200.0, 10),
        ([20.0, 100.0], 30.0, 900.0, 120),
    ] {
        let run = training_run(30.0, times, mtbf_h * HOUR, recovery);
        let TimeShares { steps, checkpoints, lost_work, recovery } = run.time_shares(interval);
        let seeds = 200;
        let mut means = [0.0; 4];
        for seed in 0..seeds {
            let shares = simulate(&run, interval, 30.0, seed);
            means = std::array::from_fn(|part| means[part] + shares[part] / seeds as f64);
        }
        for (expected, simulated) in [steps, checkpoints, lost_work, recovery].into_iter().zip(means) {
            assert!(
                (expected - simulated).abs() < 0.003,
                "{times:?}, {mtbf_h} h: {:?} and {means:?}",
                run.time_shares(interval)
            );
        }
    }
}

prop_compose! {
    fn any_run()(
        step in 0.01f64..100.0,
        blocking in 0.0f64..600.0,
        background in 0.0f64..3600.0,
        mtbf in 100.0f64..1e7,
        recovery in 0.0f64..3600.0,
    ) -> TrainingRun {
        training_run(step, [blocking, background], mtbf, recovery)
    }
}

proptest! {
    #[test]
    fn shares_add_up_to_one(run in any_run(), interval in 1u64..10_000) {
        let TimeShares { steps, checkpoints, lost_work, recovery } = run.time_shares(interval);
        for part in [steps, checkpoints, lost_work, recovery] {
            prop_assert!((0.0..=1.0).contains(&part), "{part}");
        }
        prop_assert!((steps + checkpoints + lost_work + recovery - 1.0).abs() < 1e-9);
    }

    #[test]
    fn more_failures_never_increase_goodput(run in any_run(), interval in 1u64..10_000, factor in 1.0f64..100.0) {
        let worse = TrainingRun { failures: FailureRate { per_second: run.failures.per_second * factor }, ..run };
        prop_assert!(worse.time_shares(interval).steps <= run.time_shares(interval).steps * (1.0 + 1e-9));
        let best = |run: &TrainingRun| run.time_shares(run.best_interval()).steps;
        prop_assert!(best(&worse) <= best(&run) * (1.0 + 1e-9));
    }

    #[test]
    fn faster_checkpoints_never_reduce_goodput(
        run in any_run(),
        interval in 1u64..10_000,
        copy in 0.0f64..1.0,
        write in 0.0f64..1.0,
    ) {
        let CheckpointTimes { blocking, background } = run.checkpoint;
        let scaled = |time: Picos, factor: f64| Picos((time.0 as f64 * factor) as u64);
        let checkpoint = CheckpointTimes { blocking: scaled(blocking, copy), background: scaled(background, write) };
        let faster = TrainingRun { checkpoint, ..run };
        prop_assert!(run.time_shares(interval).steps <= faster.time_shares(interval).steps * (1.0 + 1e-9));
        let best = |run: &TrainingRun| run.time_shares(run.best_interval()).steps;
        prop_assert!(best(&run) <= best(&faster) * (1.0 + 1e-9));
    }

    #[test]
    fn no_interval_beats_the_best_one(run in any_run(), interval in 1u64..1_000_000) {
        let best = run.time_shares(run.best_interval()).steps;
        prop_assert!(run.time_shares(interval).steps <= best * (1.0 + 1e-9));
    }
}
