//! The efficiency curve of kernels, fitted to measured steps of jobs.
//!
//! The figures of [`Efficiency`] are fitted as logarithms, and residuals are logarithms of predicted ÷ measured, all
//! steps counting alike: of one that is told in several units the first counts. What calls take does not depend on the curve and is simulated once. The curve where the fit begins holds
//! a figure that no step tells: a factor of e away from it weighs as much as a step that is off by 1 %. Figures that the study gives
//! stay as they are, so that few steps, or steps that do not tell some, can tell the others.

use std::borrow::Cow;

use fabricast_planner::job::{Job, Placement};
use fabricast_planner::step::{Efficiency, Machine, Simulated, TimeError};
use fabricast_planner::study::{GivenEfficiency, MeasuredStep, Study, StudyError};
use fabricast_sim::profile::Profile;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Fabric, NodeId, Picos, Place};
use rayon::prelude::*;

use super::estimate::spreads;
use super::solve::{Minimum, Problem, Start, minimise};

/// Why a curve cannot be fitted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CurveError {
    /// Fewer steps than the curve has figures that are to be found.
    #[error(
        "{steps} measured steps cannot tell the {figures} figures of the curve: expected {figures} or more, or figures given in `[efficiency]`; `fabricast study` compares without a fit"
    )]
    TooFewSteps {
        /// Measured.
        steps: usize,
        /// To be found.
        figures: usize,
    },
    /// Two units of one run that tell different times.
    #[error(
        "{place}: {figure} and {other} of one `[[measured]]` tell different times: by {figure} it takes {percent:.0} % of what it takes by {other}"
    )]
    Contradiction {
        /// Where the second stands.
        place: Box<Place>,
        /// Its key.
        figure: &'static str,
        /// The first one's key.
        other: &'static str,
        /// What it takes by the second, of what it takes by the first, %.
        percent: f64,
    },
    /// No profile for a candidate, a job that cannot be on it, or a call without a price.
    #[error(transparent)]
    Study(#[from] StudyError),
    /// A step that the job does not have.
    #[error("{place}: {figure}: the job has no such step")]
    NoSuchStep {
        /// Where it stands.
        place: Box<Place>,
        /// Its key.
        figure: &'static str,
    },
}

/// A figure of the curve, and between what it lies (80 %).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurveFigure {
    /// As the table `[efficiency]` of a study names it.
    pub name: &'static str,
    /// Its value: a part of a peak or of the memory's bandwidth, µs.
    pub value: f64,
    /// Lower end; the value where the study gives it.
    pub low: f64,
    /// Upper end; the value where the study gives it.
    pub high: f64,
    /// What it is measured in; nothing for parts.
    pub unit: &'static str,
}

/// Predicted ÷ measured − 1 of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepErrors {
    /// With the curve that the study says, or that of the candidate's own GPUs.
    pub before: f64,
    /// With the curve fitted.
    pub fitted: f64,
    /// With a curve that is fitted to all other steps.
    pub left_out: f64,
    /// Whether another unit tells the same step before, so that this one was not fitted to.
    pub is_repeated: bool,
}

/// What measured steps tell of the curve.
#[derive(Clone, Debug, PartialEq)]
pub struct CurveFit {
    /// The curve.
    pub curve: Efficiency,
    /// Its figures.
    pub figures: [CurveFigure; FIGURES],
    /// Errors of the study's measured steps, in its order.
    pub errors: Vec<StepErrors>,
}

impl CurveFit {
    /// Errors of the steps that were fitted to: each run once.
    pub fn of_runs(&self) -> impl Iterator<Item = &StepErrors> {
        self.errors.iter().filter(|one| !one.is_repeated)
    }
}

/// Figures of the curve.
const FIGURES: usize = 5;
/// How far from its first value, in logarithms, a figure costs a residual of one.
const FAR: f64 = 100.0;
/// What each figure is called and measured in, and the least and most that is tried of it.
const KEYS: [(&str, &str, (f64, f64)); FIGURES] = [
    ("matrix", "", (0.05, 1.0)),
    ("attention", "", (0.05, 1.0)),
    ("memory", "", (0.05, 1.0)),
    ("stream", "", (0.05, 1.0)),
    ("start", "us", (0.05, 1_000.0)),
];
/// By how much the times of one step may differ that several units tell, as a logarithm: who publishes rounds.
const CONTRADICTION: f64 = 0.05;
/// By how much a logarithm is moved for a derivative.
const NUDGE: f64 = 1e-3;

fn figures(curve: &Efficiency) -> [f64; FIGURES] {
    [curve.matrix, curve.attention, curve.memory, curve.stream, curve.start.us()]
}

fn curve(logarithms: &[f64]) -> Efficiency {
    let [matrix, attention, memory, stream, start] =
        std::array::from_fn(|number| logarithms.get(number).copied().unwrap_or(0.0).exp());
    Efficiency { matrix, attention, memory, stream, start: Picos((start * 1e6).round() as u64), spread: 0.0 }
}

/// Fits a curve to a study's measured steps, beginning with that of the first's candidate; `fabrics` are those of its candidates.
///
/// # Errors
/// [`CurveError`]: too few steps, or one that cannot be predicted.
pub fn calibrate_curve(study: &Study, fabrics: &[Fabric]) -> Result<CurveFit, CurveError> {
    let limits = limits(&study.efficiency);
    let (steps, figures) = (runs(study), limits.into_iter().filter(|(least, most)| least < most).count());
    if steps < figures.max(1) {
        return Err(CurveError::TooFewSteps { steps, figures });
    }
    let mut places = Vec::with_capacity(fabrics.len());
    for (candidate, fabric) in study.candidates.iter().zip(fabrics) {
        let profile = Profile::for_fabric(fabric)
            .map_err(|error| StudyError::Profile { candidate: candidate.name.clone(), error: error.into() })?;
        places.push((Router::new(fabric, RouteOptions::default()), profile));
    }
    // Steps of one candidate whose jobs are placed alike are of one machine.
    let mut placed: Vec<(usize, &Placement, Cow<'_, [NodeId]>)> = Vec::new();
    for one in &study.measured {
        let (Some(fabric), Some(job)) = (fabrics.get(one.candidate), study.jobs.get(one.job)) else { continue };
        if placed.iter().all(|known| (known.0, known.1) != (one.candidate, job.placement())) {
            let name = study.candidates.get(one.candidate).map_or("", |candidate| &candidate.name);
            let refused = |error| StudyError::of_job(name, job, TimeError::Job(error));
            placed.push((one.candidate, job.placement(), job.ranks_on(fabric).map_err(refused)?));
        }
    }
    let on = |one: &(usize, &Placement, Cow<'_, [NodeId]>)| places.get(one.0);
    let simulated: Vec<Option<Simulated<'_>>> =
        placed.iter().map(|one| on(one).map(|(router, profile)| Simulated::new(router, profile, &one.2))).collect();
    let machines: Vec<Option<Machine<'_>>> = placed
        .iter()
        .zip(&simulated)
        .map(|(one, simulated)| {
            let ((router, _), simulated) = (on(one)?, simulated.as_ref()?);
            Some(Machine { router, ranks: &one.2, simulated, curve: study.curve(one.0, router.fabric()) })
        })
        .collect();
    let machine_of = |candidate: usize, job: &Job| {
        let number = placed.iter().position(|known| (known.0, known.1) == (candidate, job.placement()))?;
        machines.get(number)?.as_ref()
    };
    let mut steps: Vec<Measured<'_>> = Vec::with_capacity(study.measured.len());
    for one in &study.measured {
        let (Some(candidate), Some(job)) = (study.candidates.get(one.candidate), study.jobs.get(one.job)) else {
            continue;
        };
        let Some(machine) = machine_of(one.candidate, job) else { continue };
        let first = steps.iter().find(|known| is_same_run(job, one, known.one));
        let step = Measured { job, one, machine, is_repeated: first.is_some() };
        // What cannot be predicted is told before anything is fitted.
        let failed = |error| StudyError::of_job(&candidate.name, job, error);
        if step.predicted(machine.curve).map_err(failed)?.is_none() {
            return Err(CurveError::NoSuchStep { place: one.place.clone().into(), figure: one.figure.key() });
        }
        if let Some(first) = first {
            // (Predictions are of one step.)
            let longer = first.residual(machine.curve) - step.residual(machine.curve);
            if longer.abs() > CONTRADICTION {
                let (figure, other) = (one.figure.key(), first.one.figure.key());
                let percent = longer.exp() * 100.0;
                return Err(CurveError::Contradiction { place: one.place.clone().into(), figure, other, percent });
            }
        }
        steps.push(step);
    }
    let first = steps.first().map_or_else(Efficiency::default, |step| step.machine.curve);
    Ok(fit(&steps, first, limits))
}

/// A measured step on its machine.
#[derive(Clone, Copy)]
struct Measured<'a> {
    job: &'a Job,
    one: &'a MeasuredStep,
    machine: &'a Machine<'a>,
    /// As [`StepErrors::is_repeated`].
    is_repeated: bool,
}

/// Whether two figures tell the same time of the same run of a job.
fn is_same_run(job: &Job, one: &MeasuredStep, other: &MeasuredStep) -> bool {
    (one.run, one.job, one.candidate) == (other.run, other.job, other.candidate)
        && one.figure.tells_what(other.figure, job)
}

/// How many times of runs a study tells, in whatever units.
fn runs(study: &Study) -> usize {
    let is_first = |(number, one): &(usize, &MeasuredStep)| {
        let before = study.measured.get(..*number).unwrap_or_default();
        let is_known = |job: &Job| before.iter().any(|other| is_same_run(job, one, other));
        !study.jobs.get(one.job).is_some_and(is_known)
    };
    study.measured.iter().enumerate().filter(is_first).count()
}

impl Measured<'_> {
    fn predicted(&self, curve: Efficiency) -> Result<Option<Picos>, TimeError> {
        // How far GPUs lie apart is not fitted.
        let curve = Efficiency { spread: self.machine.curve.spread, ..curve };
        self.one.figure.of_job(self.job, &Machine { curve, ..*self.machine })
    }

    /// Logarithm of predicted ÷ measured. Every step was predicted before, and calls keep their prices.
    fn residual(&self, curve: Efficiency) -> f64 {
        let predicted = self.predicted(curve).ok().flatten().unwrap_or_default();
        (predicted.0.max(1) as f64 / self.one.time().0.max(1) as f64).ln()
    }
}

/// The least and most that is tried of each figure; of those that a study gives nothing else.
fn limits(study: &GivenEfficiency) -> [(f64, f64); FIGURES] {
    let GivenEfficiency { matrix, attention, memory, stream, start } = study;
    let given = [*matrix, *attention, *memory, *stream, start.map(Picos::us)];
    std::array::from_fn(|number| given[number].map_or(KEYS[number].2, |value| (value, value)))
}

/// The curve that suits steps.
struct Curve<'a> {
    steps: &'a [Measured<'a>],
    start: [f64; FIGURES],
    limits: [(f64, f64); FIGURES],
}

impl Problem for Curve<'_> {
    fn residuals(&self, at: &[f64]) -> Vec<f64> {
        let curve = curve(at);
        self.steps.par_iter().with_max_len(1).map(|step| step.residual(curve)).collect()
    }

    fn derivatives(&self, at: &[f64], residuals: &[f64]) -> Vec<Vec<f64>> {
        let along = |number: usize| {
            // What stays where it is needs none.
            if self.limits.get(number).is_none_or(|(least, most)| least == most) {
                return vec![0.0; residuals.len()];
            }
            let mut nudged = at.to_vec();
            // Downwards: a figure may stand at its most.
            nudged.iter_mut().skip(number).take(1).for_each(|figure| *figure -= NUDGE);
            let moved = self.residuals(&nudged);
            residuals.iter().zip(moved).map(|(here, there)| (here - there) / NUDGE).collect()
        };
        (0..FIGURES).map(along).collect()
    }

    fn clamp(&self, at: &mut [f64]) {
        for (figure, (least, most)) in at.iter_mut().zip(self.limits) {
            *figure = figure.clamp(least.ln(), most.ln());
        }
    }

    fn expected(&self) -> Vec<(f64, f64)> {
        self.start.iter().map(|&figure| (figure, FAR)).collect()
    }
}

fn minimum(steps: &[Measured<'_>], start: Efficiency, limits: [(f64, f64); FIGURES]) -> Minimum {
    let start = figures(&start).map(|figure| figure.max(f64::MIN_POSITIVE).ln());
    minimise(&Curve { steps, start, limits }, &start, Start::Far)
}

fn fit(steps: &[Measured<'_>], start: Efficiency, limits: [(f64, f64); FIGURES]) -> CurveFit {
    let once: Vec<Measured<'_>> = steps.iter().filter(|step| !step.is_repeated).copied().collect();
    let found = minimum(&once, start, limits);
    let fitted = curve(&found.at);
    let error = |step: &Measured<'_>, curve: Efficiency| step.residual(curve).exp_m1();
    let of = |step: &Measured<'_>| {
        let is_other = |other: &&Measured<'_>| !is_same_run(step.job, step.one, other.one);
        let others: Vec<Measured<'_>> = once.iter().filter(is_other).copied().collect();
        StepErrors {
            before: error(step, step.machine.curve),
            fitted: error(step, fitted),
            left_out: error(step, curve(&minimum(&others, fitted, limits).at)),
            is_repeated: step.is_repeated,
        }
    };
    let errors = steps.par_iter().with_max_len(1).map(of).collect();
    let spreads = spreads(&found);
    let figures = std::array::from_fn(|number| {
        let (value, (name, unit, _), (least, most)) = (figures(&fitted)[number], KEYS[number], limits[number]);
        let (low, high) = match spreads.get(number).copied().flatten() {
            _ if least == most => (value, value),
            Some(spread) => ((value * (-spread).exp()).max(least), (value * spread.exp()).min(most)),
            None => (least, most),
        };
        CurveFigure { name, value, low, high, unit }
    });
    CurveFit { curve: fitted, figures, errors }
}

#[cfg(test)]
mod tests {
    use fabricast_planner::study::{Figure, read_study};
    use fabricast_topologies::{FabricRequest, load};
    use proptest::prelude::*;

    use super::*;

    const CANDIDATE: &str = "[[candidate]]\nname = \"one\"\nfabric = \"hgx-h200\"\ngpus = 1\n\
                             [[candidate]]\nname = \"two\"\nfabric = \"hgx-h200\"\ngpus = 2\n";

    /// Steps that wait for different things: products, attention, memory, what is between products, many small kernels; and calls
    /// between.
    const JOBS: [(&str, &str, &str, &str); 6] = [
        (
            "products",
            "one",
            "step_s",
            "global_batch = 2\nflash_attention = true\nparallel = { tp = 1 }\n\
          model = { layers = 2, hidden = 8192, heads = 64, vocab = 32000, seq = 4096 }",
        ),
        (
            "attention",
            "one",
            "step_s",
            "global_batch = 1\nflash_attention = true\nparallel = { tp = 1 }\n\
          model = { layers = 4, hidden = 1024, heads = 8, vocab = 1000, seq = 65536 }",
        ),
        (
            "between",
            "one",
            "step_s",
            "global_batch = 8\nflash_attention = true\nparallel = { tp = 1 }\n\
          model = { layers = 8, hidden = 512, heads = 4, vocab = 1000, seq = 2048 }",
        ),
        (
            "memory",
            "one",
            "answer_step_s",
            "kind = \"inference\"\nconcurrency = 8\nprompt_tokens = 900\noutput_tokens = 64\n\
          max_batched_tokens = 4096\nparallel = { tp = 1 }\nmodel = { layers = 8, hidden = 8192, heads = 64, vocab = 32000 }",
        ),
        (
            "starts",
            "one",
            "answer_step_s",
            "kind = \"inference\"\nconcurrency = 1\nprompt_tokens = 64\noutput_tokens = 8\n\
          max_batched_tokens = 4096\nparallel = { tp = 1 }\nmodel = { layers = 24, hidden = 512, heads = 8, vocab = 1000 }",
        ),
        (
            "calls",
            "two",
            "step_s",
            "global_batch = 4\nflash_attention = true\nparallel = { tp = 2 }\n\
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

    /// What a curve makes of the jobs, seconds.
    fn made_by(curve: Efficiency) -> [f64; JOBS.len()] {
        let study = study([1.0; JOBS.len()]);
        let fabrics = fabrics(&study);
        let mut times = [0.0; JOBS.len()];
        for (time, one) in times.iter_mut().zip(&study.measured) {
            let fabric = &fabrics[one.candidate];
            let (router, profile) =
                (Router::new(fabric, RouteOptions::default()), Profile::for_fabric(fabric).unwrap());
            let simulated = Simulated::new(&router, &profile, fabric.gpus());
            let curve = Efficiency { spread: Efficiency::of(fabric).spread, ..curve };
            let machine = Machine { router: &router, ranks: fabric.gpus(), simulated: &simulated, curve };
            *time = one.figure.of_job(&study.jobs[one.job], &machine).unwrap().unwrap().0 as f64 / 1e12;
        }
        times
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn a_curve_comes_back_from_the_steps_that_it_makes(
            [matrix, attention, memory, stream] in prop::array::uniform4(0.4f64..0.95),
            start in 1.0f64..20.0,
        ) {
            let wanted = Efficiency { matrix, attention, memory, stream, start: Picos((start * 1e6) as u64), spread: 0.0 };
            let study = study(made_by(wanted));
            let found = calibrate_curve(&study, &fabrics(&study)).unwrap();
            for (figure, wanted) in found.figures.iter().zip([matrix, attention, memory, stream, start]) {
                // (The curve where the fit begins draws it a little towards itself.)
                prop_assert!((figure.value / wanted - 1.0).abs() < 0.02, "{figure:?}, not {wanted}");
                prop_assert!(figure.low <= figure.value && figure.value <= figure.high);
            }
            prop_assert!(found.errors.iter().all(|one| one.fitted.abs() < 0.01), "{:?}", found.errors);
        }

        #[test]
        fn noise_widens_intervals(part in 0.02f64..0.2) {
            let exact = made_by(Efficiency::default());
            let width = |part: f64| {
                let signs = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0];
                let study = study(std::array::from_fn(|number| exact[number] * (1.0 + signs[number] * part)));
                let found = calibrate_curve(&study, &fabrics(&study)).unwrap();
                (found.figures[0].high / found.figures[0].low).ln()
            };
            prop_assert!(width(part) > width(part / 8.0));
        }
    }

    /// Before anything is fitted each step has the curve of its own machine's GPUs, whatever the first is.
    #[test]
    fn steps_of_different_gpus_begin_with_their_own_curves() {
        let study = study(made_by(Efficiency::default()));
        let before = |first: &str| {
            let mut fabrics = fabrics(&study);
            fabrics[0] = load(&FabricRequest { gpus: Some(1), ..FabricRequest::of(first) }).unwrap();
            let errors = calibrate_curve(&study, &fabrics).unwrap().errors;
            errors.into_iter().map(|one| one.before).collect::<Vec<_>>()
        };
        let (same, other) = (before("hgx-h200"), before("hgx-b200"));
        // Only the last step is on the second machine.
        assert_eq!(same.last(), other.last());
        assert!((same[0] - other[0]).abs() > 0.05, "{same:?} {other:?}");
    }

    /// Given figures stay, to the last digit, and fewer steps tell the others.
    #[test]
    fn given_figures_stay() {
        let wanted = Efficiency { matrix: 0.6, attention: 0.45, ..Efficiency::default() };
        let whole = study(made_by(wanted));
        let given = GivenEfficiency {
            memory: Some(wanted.memory),
            stream: Some(wanted.stream),
            start: Some(wanted.start),
            ..GivenEfficiency::default()
        };
        let few = Study { efficiency: given, measured: whole.measured[..3].to_vec(), ..whole.clone() };
        let found = calibrate_curve(&few, &fabrics(&few)).unwrap();
        assert_eq!(figures(&found.curve)[2..], figures(&wanted)[2..]);
        assert!(found.figures[2..].iter().all(|figure| (figure.low, figure.high) == (figure.value, figure.value)));
        assert!((found.curve.matrix / 0.6 - 1.0).abs() < 0.01 && (found.curve.attention / 0.45 - 1.0).abs() < 0.01);
        let one = Study { measured: whole.measured[..1].to_vec(), ..few };
        let refused = calibrate_curve(&one, &fabrics(&one)).unwrap_err().to_string();
        assert!(refused.starts_with("1 measured steps cannot tell the 2 figures"), "{refused}");
    }

    /// The file's header says how the steps were measured.
    const MEASURED: &str = include_str!("../../../planner/data/h200-steps/steps.toml");

    #[test]
    fn the_curve_that_ships_is_what_its_steps_tell() {
        let study = read_study(MEASURED, "steps.toml").unwrap();
        let fabrics = fabrics(&study);
        let (found, ships) = (calibrate_curve(&study, &fabrics).unwrap(), Efficiency::of(&fabrics[0]));
        for (figure, ships) in found.figures.iter().zip(figures(&ships)) {
            assert!((figure.value / ships - 1.0).abs() < 0.01, "{figure:?}, and {ships} ships");
        }
        let mut errors: Vec<f64> = found.errors.iter().map(|one| one.left_out.abs()).collect();
        errors.sort_by(f64::total_cmp);
        assert_eq!(errors.len(), 48);
        assert!(errors[24] < 0.04 && errors[47] < 0.20, "{errors:?}");
    }

    /// A run that is told in two units is one step: the fit is that of one unit, few stay few, and units that say something else are named.
    #[test]
    fn a_run_in_two_units_counts_once() {
        let wanted =
            Efficiency { matrix: 0.7, attention: 0.6, memory: 0.8, stream: 0.6, start: Picos(4_000_000), spread: 0.0 };
        let mut times = made_by(wanted);
        times[0] *= 1.1;
        let once = study(times);
        let mut twice = once.clone();
        let first = once.measured[0].clone();
        // Two sequences of a step.
        twice.measured.push(MeasuredStep { figure: Figure::Samples, value: 2.0 / first.value, ..first.clone() });
        let [one, two] = [&once, &twice].map(|study| calibrate_curve(study, &fabrics(study)).unwrap());
        for (one, two) in one.figures.iter().zip(&two.figures) {
            assert_eq!(one, two);
        }
        let (first, same) = (one.errors[0].left_out, [two.errors[0].left_out, two.errors[6].left_out]);
        assert!(same.iter().all(|error| (error - first).abs() < 1e-3), "{first} {same:?}");
        // As two runs they count twice.
        twice.measured[6].run = 6;
        let apart = calibrate_curve(&twice, &fabrics(&twice)).unwrap();
        let moved = apart.figures.iter().zip(&one.figures).map(|(a, b)| (a.value / b.value - 1.0).abs());
        assert!(moved.clone().fold(0.0, f64::max) > 1e-4, "{:?}", moved.collect::<Vec<_>>());
        let few = |run: usize| {
            let mut few = twice.clone();
            few.measured[6].run = run;
            few.measured.drain(1..5);
            few.measured.extend([few.measured[0].clone(), few.measured[0].clone()]);
            calibrate_curve(&few, &fabrics(&few)).map(drop)
        };
        assert!(matches!(few(0), Err(CurveError::TooFewSteps { steps: 2, figures: 5 })), "{:?}", few(0));
        let mut wrong = twice.clone();
        wrong.measured[6] = MeasuredStep { run: 0, value: 1.8 / once.measured[0].value, ..wrong.measured[6].clone() };
        let refused = calibrate_curve(&wrong, &fabrics(&wrong)).unwrap_err().to_string();
        assert!(refused.contains("samples_per_s and step_s of one `[[measured]]` tell different times"), "{refused}");
        assert!(refused.contains("by samples_per_s it takes 111 % of what it takes by step_s"), "{refused}");
    }

    #[test]
    fn what_tells_nothing_is_refused() {
        let few = read_study(
            &format!(
                "{CANDIDATE}[[job]]\nname = \"j\"\n{}\n[[measured]]\ncandidate = \"one\"\njob = \"j\"\nstep_s = 1\n",
                JOBS[0].3
            ),
            "steps.toml",
        );
        let few = few.unwrap();
        let refused = calibrate_curve(&few, &fabrics(&few)).unwrap_err().to_string();
        assert!(refused.starts_with("1 measured steps cannot tell the 5 figures"), "{refused}");
        // All steps of a job whose answers are one token carry prompts.
        let text = format!(
            "{CANDIDATE}[[job]]\nname = \"j\"\nkind = \"inference\"\nconcurrency = 4\nprompt_tokens = 64\noutput_tokens = 1\n\
             max_batched_tokens = 4096\nparallel = {{ tp = 1 }}\nmodel = {{ layers = 2, hidden = 512, heads = 8, vocab = 1000 }}\n\
             [[measured]]\ncandidate = \"one\"\njob = \"j\"\nprompt_step_s = 1\nanswer_step_s = 1\nttft_s = 1\n\
             [[measured]]\ncandidate = \"two\"\njob = \"j\"\nprompt_step_s = 1\nttft_s = 1\n"
        );
        let without = read_study(&text, "steps.toml").unwrap();
        let refused = calibrate_curve(&without, &fabrics(&without)).unwrap_err().to_string();
        assert!(refused.starts_with("steps.toml:22:17: answer_step_s: the job has no such step"), "{refused}");
    }
}
