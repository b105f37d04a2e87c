//! Fit of the kernel efficiency curve to measured steps of jobs.
//!
//! The parameters of [`Efficiency`] are fitted as logarithms. Residuals are logarithms of predicted ÷ measured time,
//! and all steps have equal weight. A step that is stated in several units counts once, in its first unit.
//! Communication times do not depend on the curve and are simulated once. The starting curve is a weak prior: a
//! deviation by a factor of e has the weight of one step with an error of 1 %. Parameters that the study states are
//! fixed, so that fewer steps are sufficient to fit the others.

use std::borrow::Cow;

use fabricast_perf::communication::SimulatedCosts;
use fabricast_perf::step::{Efficiency, Machine, TimeError};
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::Profile;
use fabricast_study::{EfficiencyOverrides, MeasuredStep, Study, StudyError};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Fabric, NodeId, Picos, SourceLocation};
use fabricast_workload::job::{Job, Placement};
use rayon::prelude::*;

use super::estimate::spreads;
use super::solve::{Minimum, Problem, StartDistance, minimise};

/// Reason that a curve cannot be fitted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CurveError {
    /// There are fewer steps than free parameters.
    #[error(
        "{steps} measured steps cannot determine the {figures} parameters of the curve: expected {figures} or more, or parameters given in `[efficiency]`; `fabricast study` compares without a fit"
    )]
    TooFewSteps {
        /// Number of measured steps.
        steps: usize,
        /// Number of free parameters.
        figures: usize,
    },
    /// Two units of one run state different times.
    #[error(
        "{place}: {figure} and {other} of one `[[measured]]` contradict each other: the time from {figure} is {percent:.0} % of that from {other}"
    )]
    Contradiction {
        /// Source location of the second figure.
        place: Box<SourceLocation>,
        /// Key of the second figure.
        figure: &'static str,
        /// Key of the first figure, which it contradicts.
        other: &'static str,
        /// Time by the second figure as a percentage of the time by the first figure.
        percent: f64,
    },
    /// A candidate has no profile, a job does not fit on its candidate, or a call has no cost.
    #[error(transparent)]
    Study(#[from] StudyError),
    /// The job does not have the measured step.
    #[error("{place}: {figure}: the job has no such step")]
    NoSuchStep {
        /// Source location of the figure.
        place: Box<SourceLocation>,
        /// Key of the figure.
        figure: &'static str,
    },
    /// The calibration was stopped.
    #[error("interrupted")]
    Interrupted,
}

/// A parameter of the curve with its 80 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurveFigure {
    /// Name in the table `[efficiency]` of a study.
    pub name: &'static str,
    /// Value: a fraction of peak compute or memory bandwidth, or a time in µs.
    pub value: f64,
    /// Lower end of the interval; equal to the value if the study states it.
    pub low: f64,
    /// Upper end of the interval; equal to the value if the study states it.
    pub high: f64,
    /// Unit; empty for fractions.
    pub unit: &'static str,
}

/// Errors of a step: predicted ÷ measured − 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepErrors {
    /// Initial error: with the curve that the study states, otherwise with the curve of the candidate's own GPUs.
    pub initial: f64,
    /// Error with the fitted curve.
    pub fitted: f64,
    /// Error with a curve fitted to all other steps.
    pub left_out: f64,
    /// True if an earlier figure states the same step in another unit, so that this figure was not used in the fit.
    pub is_repeated: bool,
}

/// Result of fitting the curve to measured steps.
#[derive(Clone, Debug, PartialEq)]
pub struct CurveFit {
    /// The fitted curve.
    pub curve: Efficiency,
    /// Parameters of the curve.
    pub figures: [CurveFigure; FIGURES],
    /// Errors of the study's measured steps, in its order.
    pub errors: Vec<StepErrors>,
}

impl CurveFit {
    /// Errors of the steps used in the fit, with each run once.
    pub fn run_errors(&self) -> impl Iterator<Item = &StepErrors> {
        self.errors.iter().filter(|one| !one.is_repeated)
    }
}

/// Number of parameters of the curve.
const FIGURES: usize = 5;
/// Deviation of a parameter's logarithm from its starting value that has the weight of a residual of 1.
const PRIOR_DEVIATION: f64 = 100.0;
/// Name, unit and allowed range (minimum, maximum) of each parameter.
const KEYS: [(&str, &str, (f64, f64)); FIGURES] = [
    ("matrix", "", (0.05, 1.0)),
    ("attention", "", (0.05, 1.0)),
    ("memory", "", (0.05, 1.0)),
    ("stream", "", (0.05, 1.0)),
    ("start", "us", (0.05, 1_000.0)),
];
/// Largest accepted difference between the times of one step in several units, as a natural logarithm. Published
/// figures are rounded.
const MAX_UNIT_DIFFERENCE: f64 = 0.05;
/// Step of a parameter's logarithm for finite differences.
const DERIVATIVE_STEP: f64 = 1e-3;

fn figures(curve: &Efficiency) -> [f64; FIGURES] {
    [curve.matrix, curve.attention, curve.memory, curve.stream, curve.start.us()]
}

fn curve(logarithms: &[f64]) -> Efficiency {
    let [matrix, attention, memory, stream, start] =
        std::array::from_fn(|number| logarithms.get(number).copied().unwrap_or(0.0).exp());
    Efficiency { matrix, attention, memory, stream, start: Picos((start * 1e6).round() as u64), spread: 0.0 }
}

/// Fits a curve to a study's measured steps, starting with the curve of the first step's candidate. `fabrics`: fabric
/// of each candidate, in the order of the study.
///
/// # Errors
/// [`CurveError`]: too few steps, a step that cannot be predicted, or an interruption.
pub fn calibrate_curve(study: &Study, fabrics: &[Fabric], monitor: Monitor<'_>) -> Result<CurveFit, CurveError> {
    let limits = limits(&study.efficiency);
    let (steps, figures) = (runs(study), limits.into_iter().filter(|(min, max)| min < max).count());
    if steps < figures.max(1) {
        return Err(CurveError::TooFewSteps { steps, figures });
    }
    let mut routers_and_profiles = Vec::with_capacity(fabrics.len());
    for (candidate, fabric) in study.candidates.iter().zip(fabrics) {
        let profile = Profile::for_fabric(fabric)
            .map_err(|error| StudyError::Profile { candidate: candidate.name.clone(), error: error.into() })?;
        routers_and_profiles.push((Router::new(fabric, RouteOptions::default()), profile));
    }
    // Steps of one candidate with equal placements of the job share a machine.
    let mut placements: Vec<(usize, &Placement, Cow<'_, [NodeId]>)> = Vec::new();
    for one in &study.measured {
        let (Some(fabric), Some(job)) = (fabrics.get(one.candidate), study.jobs.get(one.job)) else { continue };
        if placements.iter().all(|existing| (existing.0, existing.1) != (one.candidate, job.placement())) {
            let name = study.candidates.get(one.candidate).map_or("", |candidate| &candidate.name);
            let refused = |error| StudyError::from_time_error(name, job, TimeError::Job(error));
            placements.push((one.candidate, job.placement(), job.rank_devices(fabric).map_err(refused)?));
        }
    }
    let routed = |one: &(usize, &Placement, Cow<'_, [NodeId]>)| routers_and_profiles.get(one.0);
    let simulated: Vec<Option<SimulatedCosts<'_>>> = placements
        .iter()
        .map(|one| routed(one).map(|(router, profile)| SimulatedCosts::new(router, profile, &one.2)))
        .collect();
    let machines: Vec<Option<Machine<'_>>> = placements
        .iter()
        .zip(&simulated)
        .map(|(one, simulated)| {
            let ((router, _), simulated) = (routed(one)?, simulated.as_ref()?);
            Some(Machine { router, ranks: &one.2, simulated, curve: study.curve(one.0, router.fabric()) })
        })
        .collect();
    let machine_of = |candidate: usize, job: &Job| {
        let number = placements.iter().position(|existing| (existing.0, existing.1) == (candidate, job.placement()))?;
        machines.get(number)?.as_ref()
    };
    let mut steps: Vec<CurveStep<'_>> = Vec::with_capacity(study.measured.len());
    for one in &study.measured {
        let (Some(candidate), Some(job)) = (study.candidates.get(one.candidate), study.jobs.get(one.job)) else {
            continue;
        };
        let Some(machine) = machine_of(one.candidate, job) else { continue };
        let first = steps.iter().find(|existing| is_same_run(job, one, existing.step));
        let step = CurveStep { job, step: one, machine, is_repeated: first.is_some() };
        // A prediction of all steps before the fit reports those that cannot be predicted.
        let failed = |error| StudyError::from_time_error(&candidate.name, job, error);
        if step.predicted(machine.curve).map_err(failed)?.is_none() {
            return Err(CurveError::NoSuchStep { place: one.location.clone().into(), figure: one.figure.key() });
        }
        if let Some(first) = first {
            // The ratio of the residuals is the ratio of the measured times, because both figures have the same
            // predicted time.
            let longer = first.residual(machine.curve) - step.residual(machine.curve);
            if longer.abs() > MAX_UNIT_DIFFERENCE {
                let (figure, other) = (one.figure.key(), first.step.figure.key());
                let percent = longer.exp() * 100.0;
                return Err(CurveError::Contradiction { place: one.location.clone().into(), figure, other, percent });
            }
        }
        steps.push(step);
    }
    let first = steps.first().map_or_else(Efficiency::default, |step| step.machine.curve);
    let fitted = CurveFitter { steps: &steps, limits, monitor }.fit(first);
    if monitor.is_interrupted() { Err(CurveError::Interrupted) } else { Ok(fitted) }
}

/// A measured step with its job and the machine on which it was measured.
#[derive(Clone, Copy)]
struct CurveStep<'a> {
    job: &'a Job,
    step: &'a MeasuredStep,
    machine: &'a Machine<'a>,
    /// See [`StepErrors::is_repeated`].
    is_repeated: bool,
}

/// Returns true if two figures state the time of the same run of a job.
fn is_same_run(job: &Job, first: &MeasuredStep, second: &MeasuredStep) -> bool {
    (first.run, first.job, first.candidate) == (second.run, second.job, second.candidate)
        && first.figure.measures_same_as(second.figure, job)
}

/// Number of distinct measured times in a study. A time given in several units counts once.
fn runs(study: &Study) -> usize {
    let is_first = |(number, one): &(usize, &MeasuredStep)| {
        let before = study.measured.get(..*number).unwrap_or_default();
        let is_known = |job: &Job| before.iter().any(|earlier| is_same_run(job, one, earlier));
        !study.jobs.get(one.job).is_some_and(is_known)
    };
    study.measured.iter().enumerate().filter(is_first).count()
}

impl CurveStep<'_> {
    fn predicted(&self, curve: Efficiency) -> Result<Option<Picos>, TimeError> {
        // The spread between GPUs is not a parameter of the fit.
        let curve = Efficiency { spread: self.machine.curve.spread, ..curve };
        self.step.figure.predict(self.job, &Machine { curve, ..*self.machine })
    }

    /// Natural logarithm of predicted ÷ measured time. Every step was predicted before the fit, so no error can occur.
    fn residual(&self, curve: Efficiency) -> f64 {
        let predicted = self.predicted(curve).ok().flatten().unwrap_or_default();
        (predicted.0.max(1) as f64 / self.step.time().0.max(1) as f64).ln()
    }
}

/// Range of each parameter (minimum, maximum). For a parameter that the study states, both equal its value.
fn limits(study: &EfficiencyOverrides) -> [(f64, f64); FIGURES] {
    let EfficiencyOverrides { matrix, attention, memory, stream, start } = study;
    let fixed = [*matrix, *attention, *memory, *stream, start.map(Picos::us)];
    std::array::from_fn(|number| fixed[number].map_or(KEYS[number].2, |value| (value, value)))
}

/// The least-squares problem of fitting the curve.
struct Curve<'a> {
    steps: &'a [CurveStep<'a>],
    start: [f64; FIGURES],
    limits: [(f64, f64); FIGURES],
    monitor: Monitor<'a>,
}

impl Problem for Curve<'_> {
    fn is_interrupted(&self) -> bool {
        self.monitor.is_interrupted()
    }

    fn residuals(&self, coordinates: &[f64]) -> Vec<f64> {
        let curve = curve(coordinates);
        self.steps.par_iter().with_max_len(1).map(|step| step.residual(curve)).collect()
    }

    fn derivatives(&self, coordinates: &[f64], residuals: &[f64]) -> Vec<Vec<f64>> {
        let along = |number: usize| {
            // The residuals' derivatives with respect to fixed parameters are zero.
            if self.limits.get(number).is_none_or(|(min, max)| min == max) {
                return vec![0.0; residuals.len()];
            }
            let mut nudged = coordinates.to_vec();
            // The step is downwards, because a parameter may be at its maximum.
            nudged.iter_mut().skip(number).take(1).for_each(|figure| *figure -= DERIVATIVE_STEP);
            let moved = self.residuals(&nudged);
            residuals.iter().zip(moved).map(|(before, after)| (before - after) / DERIVATIVE_STEP).collect()
        };
        (0..FIGURES).map(along).collect()
    }

    fn clamp(&self, coordinates: &mut [f64]) {
        for (figure, (min, max)) in coordinates.iter_mut().zip(self.limits) {
            *figure = figure.clamp(min.ln(), max.ln());
        }
    }

    fn expected(&self) -> Vec<(f64, f64)> {
        self.start.iter().map(|&figure| (figure, PRIOR_DEVIATION)).collect()
    }
}

/// Measured steps, and the ranges of the parameters that are fitted to them.
#[derive(Clone, Copy)]
struct CurveFitter<'a> {
    steps: &'a [CurveStep<'a>],
    limits: [(f64, f64); FIGURES],
    /// Monitor of the fits, which are counted.
    monitor: Monitor<'a>,
}

impl CurveFitter<'_> {
    /// Fits the curve to `steps`.
    fn minimum(&self, steps: &[CurveStep<'_>], start: Efficiency) -> Minimum {
        let start = figures(&start).map(|figure| figure.max(f64::MIN_POSITIVE).ln());
        let curve = Curve { steps, start, limits: self.limits, monitor: self.monitor };
        let minimum = minimise(&curve, &start, StartDistance::Far);
        self.monitor.add_done(1);
        minimum
    }

    /// Fits the curve to all steps, and to all but each of them.
    fn fit(&self, start: Efficiency) -> CurveFit {
        let Self { steps, limits, monitor } = *self;
        monitor.add_total(1 + steps.len());
        let distinct: Vec<CurveStep<'_>> = steps.iter().filter(|step| !step.is_repeated).copied().collect();
        let solution = self.minimum(&distinct, start);
        let fitted = curve(&solution.coordinates);
        let error = |step: &CurveStep<'_>, curve: Efficiency| step.residual(curve).exp_m1();
        let step_errors = |step: &CurveStep<'_>| {
            let is_other = |other: &&CurveStep<'_>| !is_same_run(step.job, step.step, other.step);
            let others: Vec<CurveStep<'_>> = distinct.iter().filter(is_other).copied().collect();
            StepErrors {
                initial: error(step, step.machine.curve),
                fitted: error(step, fitted),
                left_out: error(step, curve(&self.minimum(&others, fitted).coordinates)),
                is_repeated: step.is_repeated,
            }
        };
        let errors = steps.par_iter().with_max_len(1).map(step_errors).collect();
        let spreads = spreads(&solution);
        let figures = std::array::from_fn(|number| {
            let (value, (name, unit, _), (min, max)) = (figures(&fitted)[number], KEYS[number], limits[number]);
            let (low, high) = match spreads.get(number).copied().flatten() {
                _ if min == max => (value, value),
                Some(spread) => ((value * (-spread).exp()).max(min), (value * spread.exp()).min(max)),
                None => (min, max),
            };
            CurveFigure { name, value, low, high, unit }
        });
        CurveFit { curve: fitted, figures, errors }
    }
}

#[cfg(test)]
mod tests {
    use fabricast_study::{Figure, read_study};
    use fabricast_topologies::{FabricRequest, load};
    use proptest::prelude::*;

    use super::*;

    const CANDIDATE: &str = "[[candidate]]\nname = \"one\"\nfabric = \"hgx-h200\"\ngpus = 1\n\
                             [[candidate]]\nname = \"two\"\nfabric = \"hgx-h200\"\ngpus = 2\n";

    /// Steps with different bottlenecks: GEMMs, attention, memory bandwidth, elementwise kernels, many small kernels,
    /// and communication.
    const JOBS: [(&str, &str, &str, &str); 6] = [
        (
            "products",
            "one",
            "step_s",
            "launch = \"graph\"\nkernels = \"fused\"\nglobal_batch = 2\nflash_attention = true\nparallel = { tp = 1 }\n\
          model = { layers = 2, hidden = 8192, heads = 64, vocab = 32000, seq = 4096 }",
        ),
        (
            "attention",
            "one",
            "step_s",
            "launch = \"graph\"\nkernels = \"fused\"\nglobal_batch = 1\nflash_attention = true\nparallel = { tp = 1 }\n\
          model = { layers = 4, hidden = 1024, heads = 8, vocab = 1000, seq = 65536 }",
        ),
        (
            "between",
            "one",
            "step_s",
            "launch = \"graph\"\nkernels = \"fused\"\nglobal_batch = 8\nflash_attention = true\nparallel = { tp = 1 }\n\
          model = { layers = 8, hidden = 512, heads = 4, vocab = 1000, seq = 2048 }",
        ),
        (
            "memory",
            "one",
            "answer_step_s",
            "kind = \"inference\"\nhost_time = { request_ms = 0, prefill_layer_ms = 0, step_ms = 0 }\nconcurrency = 8\nprompt_tokens = 900\noutput_tokens = 64\n\
          max_batched_tokens = 4096\nparallel = { tp = 1 }\nmodel = { layers = 8, hidden = 8192, heads = 64, vocab = 32000 }",
        ),
        (
            "starts",
            "one",
            "answer_step_s",
            "kind = \"inference\"\nhost_time = { request_ms = 0, prefill_layer_ms = 0, step_ms = 0 }\nconcurrency = 1\nprompt_tokens = 64\noutput_tokens = 8\n\
          max_batched_tokens = 4096\nparallel = { tp = 1 }\nmodel = { layers = 24, hidden = 512, heads = 8, vocab = 1000 }",
        ),
        (
            "calls",
            "two",
            "step_s",
            "launch = \"graph\"\nkernels = \"fused\"\nglobal_batch = 4\nflash_attention = true\nparallel = { tp = 2 }\n\
          model = { layers = 4, hidden = 2048, heads = 16, vocab = 32000, seq = 1024 }",
        ),
    ];

    fn study(times: [f64; JOBS.len()]) -> Study {
        let entry = |((name, candidate, figure, lines), time): (&(&str, &str, &str, &str), f64)| {
            format!(
                "[[job]]\nname = \"{name}\"\n{lines}\n[[measured]]\ncandidate = \"{candidate}\"\njob = \"{name}\"\n{figure} = {time:e}\n"
            )
        };
        let entries: String = JOBS.iter().zip(times).map(entry).collect();
        read_study(&format!("{CANDIDATE}{entries}"), "steps.toml").unwrap()
    }

    fn fabrics(study: &Study) -> Vec<Fabric> {
        study.candidates.iter().map(|one| load(&one.fabric).unwrap()).collect()
    }

    /// Predicted times of the jobs with a curve, in seconds.
    fn predicted_times(curve: Efficiency) -> [f64; JOBS.len()] {
        let study = study([1.0; JOBS.len()]);
        let fabrics = fabrics(&study);
        let mut times = [0.0; JOBS.len()];
        for (time, one) in times.iter_mut().zip(&study.measured) {
            let fabric = &fabrics[one.candidate];
            let (router, profile) =
                (Router::new(fabric, RouteOptions::default()), Profile::for_fabric(fabric).unwrap());
            let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
            let curve = Efficiency { spread: Efficiency::new(fabric).spread, ..curve };
            let machine = Machine { router: &router, ranks: fabric.gpus(), simulated: &simulated, curve };
            *time = one.figure.predict(&study.jobs[one.job], &machine).unwrap().unwrap().0 as f64 / 1e12;
        }
        times
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn fit_recovers_the_curve_that_made_the_steps(
            [matrix, attention, memory, stream] in prop::array::uniform4(0.4f64..0.95),
            start in 1.0f64..20.0,
        ) {
            let expected = Efficiency { matrix, attention, memory, stream, start: Picos((start * 1e6) as u64), spread: 0.0 };
            let study = study(predicted_times(expected));
            let fitted = calibrate_curve(&study, &fabrics(&study), Monitor::default()).unwrap();
            for (figure, expected) in fitted.figures.iter().zip([matrix, attention, memory, stream, start]) {
                // The prior moves the fitted curve slightly towards the starting curve: those figures most that the steps
                // determine least, which have the widest intervals.
                let is_close = (figure.value / expected - 1.0).abs() < 0.02;
                prop_assert!(is_close || (figure.low..=figure.high).contains(&expected), "{figure:?}, not {expected}");
                prop_assert!(figure.low <= figure.value && figure.value <= figure.high);
            }
            prop_assert!(fitted.errors.iter().all(|one| one.fitted.abs() < 0.01), "{:?}", fitted.errors);
        }

        #[test]
        fn noise_widens_intervals(part in 0.02f64..0.2) {
            let exact = predicted_times(Efficiency::default());
            let width = |part: f64| {
                let signs = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0];
                let study = study(std::array::from_fn(|number| exact[number] * (1.0 + signs[number] * part)));
                let fitted = calibrate_curve(&study, &fabrics(&study), Monitor::default()).unwrap();
                (fitted.figures[0].high / fitted.figures[0].low).ln()
            };
            prop_assert!(width(part) > width(part / 8.0));
        }
    }

    /// The initial error of a step uses the curve of the GPUs on which it was measured, regardless of the first step.
    #[test]
    fn steps_of_different_gpus_begin_with_their_own_curves() {
        let study = study(predicted_times(Efficiency::default()));
        let before = |first: &str| {
            let mut fabrics = fabrics(&study);
            fabrics[0] = load(&FabricRequest { gpus: Some(1), ..FabricRequest::new(first) }).unwrap();
            let errors = calibrate_curve(&study, &fabrics, Monitor::default()).unwrap().errors;
            errors.into_iter().map(|one| one.initial).collect::<Vec<_>>()
        };
        let (same, other) = (before("hgx-h200"), before("hgx-b200"));
        // Only the last step was measured on the second machine.
        assert_eq!(same.last(), other.last());
        assert!((same[0] - other[0]).abs() > 0.05, "{same:?} {other:?}");
    }

    /// Parameters that the study states are unchanged, and fewer steps determine the others.
    #[test]
    fn given_parameters_are_not_fitted() {
        let expected = Efficiency { matrix: 0.6, attention: 0.45, ..Efficiency::default() };
        let full = study(predicted_times(expected));
        let fixed = EfficiencyOverrides {
            memory: Some(expected.memory),
            stream: Some(expected.stream),
            start: Some(expected.start),
            ..EfficiencyOverrides::default()
        };
        let partial = Study { efficiency: fixed, measured: full.measured[..3].to_vec(), ..full.clone() };
        let fitted = calibrate_curve(&partial, &fabrics(&partial), Monitor::default()).unwrap();
        assert_eq!(figures(&fitted.curve)[2..], figures(&expected)[2..]);
        assert!(fitted.figures[2..].iter().all(|figure| (figure.low, figure.high) == (figure.value, figure.value)));
        assert!((fitted.curve.matrix / 0.6 - 1.0).abs() < 0.01 && (fitted.curve.attention / 0.45 - 1.0).abs() < 0.01);
        let single = Study { measured: full.measured[..1].to_vec(), ..partial };
        let refused = calibrate_curve(&single, &fabrics(&single), Monitor::default()).unwrap_err().to_string();
        assert!(refused.starts_with("1 measured steps cannot determine the 2 parameters"), "{refused}");
    }

    /// The header of the file describes the measurements.
    const MEASURED: &str = include_str!("../../../planner/data/h200-steps/steps.toml");

    #[test]
    fn shipped_curve_is_the_fit_to_its_measured_steps() {
        let study = read_study(MEASURED, "steps.toml").unwrap();
        let fabrics = fabrics(&study);
        let (fitted, shipped) =
            (calibrate_curve(&study, &fabrics, Monitor::default()).unwrap(), Efficiency::new(&fabrics[0]));
        for (figure, shipped) in fitted.figures.iter().zip(figures(&shipped)) {
            assert!((figure.value / shipped - 1.0).abs() < 0.01, "{figure:?}, and {shipped} ships");
        }
        let mut errors: Vec<f64> = fitted.errors.iter().map(|one| one.left_out.abs()).collect();
        errors.sort_by(f64::total_cmp);
        assert_eq!(errors.len(), 48);
        assert!(errors[24] < 0.04 && errors[47] < 0.20, "{errors:?}");
    }

    /// A run that is stated in two units counts as one step. The fit equals the fit with one unit, the number of steps
    /// is unchanged, and contradictory units are reported.
    #[test]
    fn a_run_in_two_units_counts_once() {
        let truth =
            Efficiency { matrix: 0.7, attention: 0.6, memory: 0.8, stream: 0.6, start: Picos(4_000_000), spread: 0.0 };
        let mut times = predicted_times(truth);
        times[0] *= 1.1;
        let single_unit = study(times);
        let mut two_units = single_unit.clone();
        let first = single_unit.measured[0].clone();
        // A step processes two sequences.
        two_units.measured.push(MeasuredStep { figure: Figure::Samples, value: 2.0 / first.value, ..first.clone() });
        let [one, two] = [&single_unit, &two_units]
            .map(|study| calibrate_curve(study, &fabrics(study), Monitor::default()).unwrap());
        for (one, two) in one.figures.iter().zip(&two.figures) {
            assert_eq!(one, two);
        }
        let (first, same) = (one.errors[0].left_out, [two.errors[0].left_out, two.errors[6].left_out]);
        assert!(same.iter().all(|error| (error - first).abs() < 1e-3), "{first} {same:?}");
        // Figures of two different runs count as two steps.
        two_units.measured[6].run = 6;
        let separate_runs = calibrate_curve(&two_units, &fabrics(&two_units), Monitor::default()).unwrap();
        let moved = separate_runs.figures.iter().zip(&one.figures).map(|(a, b)| (a.value / b.value - 1.0).abs());
        assert!(moved.clone().fold(0.0, f64::max) > 1e-4, "{:?}", moved.collect::<Vec<_>>());
        let shortened = |run: usize| {
            let mut shortened = two_units.clone();
            shortened.measured[6].run = run;
            shortened.measured.drain(1..5);
            shortened.measured.extend([shortened.measured[0].clone(), shortened.measured[0].clone()]);
            calibrate_curve(&shortened, &fabrics(&shortened), Monitor::default()).map(drop)
        };
        assert!(matches!(shortened(0), Err(CurveError::TooFewSteps { steps: 2, figures: 5 })), "{:?}", shortened(0));
        let mut wrong = two_units.clone();
        wrong.measured[6] =
            MeasuredStep { run: 0, value: 1.8 / single_unit.measured[0].value, ..wrong.measured[6].clone() };
        let refused = calibrate_curve(&wrong, &fabrics(&wrong), Monitor::default()).unwrap_err().to_string();
        assert!(refused.contains("samples_per_s and step_s of one `[[measured]]` contradict each other"), "{refused}");
        assert!(refused.contains("the time from samples_per_s is 111 % of that from step_s"), "{refused}");
    }

    #[test]
    fn too_few_or_missing_steps_are_errors() {
        let single_step = read_study(
            &format!(
                "{CANDIDATE}[[job]]\nname = \"j\"\n{}\n[[measured]]\ncandidate = \"one\"\njob = \"j\"\nstep_s = 1\n",
                JOBS[0].3
            ),
            "steps.toml",
        );
        let single_step = single_step.unwrap();
        let refused =
            calibrate_curve(&single_step, &fabrics(&single_step), Monitor::default()).unwrap_err().to_string();
        assert!(refused.starts_with("1 measured steps cannot determine the 5 parameters"), "{refused}");
        // With one output token per request, every step of the job contains prefill.
        let text = format!(
            "{CANDIDATE}[[job]]\nname = \"j\"\nkind = \"inference\"\nconcurrency = 4\nprompt_tokens = 64\noutput_tokens = 1\n\
             max_batched_tokens = 4096\nparallel = {{ tp = 1 }}\nmodel = {{ layers = 2, hidden = 512, heads = 8, vocab = 1000 }}\n\
             [[measured]]\ncandidate = \"one\"\njob = \"j\"\nprompt_step_s = 1\nanswer_step_s = 1\nttft_s = 1\n\
             [[measured]]\ncandidate = \"two\"\njob = \"j\"\nprompt_step_s = 1\nttft_s = 1\n"
        );
        let without = read_study(&text, "steps.toml").unwrap();
        let refused = calibrate_curve(&without, &fabrics(&without), Monitor::default()).unwrap_err().to_string();
        assert!(refused.starts_with("steps.toml:22:17: answer_step_s: the job has no such step"), "{refused}");
    }
}
