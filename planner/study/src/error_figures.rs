//! Measured figures that show the error of predictions, by class of job, and the errors that follow from them.
//!
//! Figures are those of docs/accuracy.md ("Jobs as others measured them"), where each study is left out that set a parameter
//! (`planner/data/jobs/hold_out.py` prints the errors), except for training of models with experts. Intervals, rankings and
//! the statements of accuracy have their errors from here.

use fabricast_perf::step::GemmEvidence;

use super::job_class::{JobClass, OtherProperty, Work};
use super::measured::Figure;
use super::model_error::ModelError;
use fabricast_workload::job::{Arrivals, Job};

/// Figures of one class, and the errors of their predictions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ErrorFigures {
    /// Number of figures.
    pub count: u32,
    /// Absolute error of predicted times in percent: median, 80th and 90th percentile.
    pub error_percent: [f64; 3],
}

/// Number of figures below which their percentiles say little: they are those of the largest one or two.
const FEW_FIGURES: u32 = 10;

/// Times to first token under a fixed concurrency: medians, and means of a steady state.
const TTFT: ErrorFigures = ErrorFigures { count: 78, error_percent: [16.1, 32.4, 44.7] };

/// Mean times to first token of benchmarks of a fixed concurrency, which contain the burst of prompts at the start.
const TTFT_WITH_START: ErrorFigures = ErrorFigures { count: 38, error_percent: [35.7, 68.8, 196.7] };

/// Times to first token of requests that arrive at a rate.
const TTFT_AT_RATE: ErrorFigures = ErrorFigures { count: 26, error_percent: [13.2, 26.9, 45.5] };

/// Times to first token with prefill and decode on different hosts.
const TTFT_OF_POOLS: ErrorFigures = ErrorFigures { count: 18, error_percent: [47.2, 55.8, 57.0] };

/// Times per token and of whole requests that arrive at a rate.
const LATENCY_AT_RATE: ErrorFigures = ErrorFigures { count: 27, error_percent: [14.0, 26.6, 35.1] };

/// Estimates of the error, in percent, where no job was measured: GEMM rates from the power limit, or assumed ones.
const POWER_LIMIT_PERCENT: f64 = 25.0;
const ASSUMED_PERCENT: f64 = 45.0;

impl ErrorFigures {
    /// Returns the error of the figures, as their 80th percentile.
    fn error(self) -> ModelError {
        ModelError::from_percent(self.error_percent[1])
    }

    /// Returns the figures of jobs without special properties, on GPUs whose efficiency curve comes from measured steps, or
    /// from GEMM benchmarks alone.
    pub(super) fn of_work(work: Work, comes_from_steps: bool) -> Self {
        let (count, error_percent) = match (work, comes_from_steps) {
            (Work::Training, true) => (95, [4.9, 11.9, 16.6]),
            (Work::Training, false) => (41, [4.4, 14.3, 18.0]),
            // All published figures of Megatron Bridge (planner/data/megatron-bridge/experts.toml); none is from benchmarks alone.
            (Work::TrainingExperts, _) => (118, [14.3, 36.3, 44.1]),
            (Work::Serving, true) => (53, [5.4, 18.0, 22.8]),
            (Work::Serving, false) => (19, [7.5, 20.3, 21.3]),
            (Work::ServingExperts, true) => (64, [14.5, 21.5, 25.3]),
            (Work::ServingExperts, false) => (49, [9.0, 17.4, 19.7]),
        };
        Self { count, error_percent }
    }
}

impl OtherProperty {
    /// Returns the figures of jobs with a property, on any GPU; `None` if there are none.
    pub(super) fn figures(self) -> Option<ErrorFigures> {
        let (count, error_percent) = match self {
            Self::TrainedAdapters => (46, [12.3, 26.5, 41.2]),
            Self::ServedAdapters => (6, [45.7, 47.6, 57.9]),
            Self::StatesOnDrives => (4, [6.9, 7.0, 7.0]),
            Self::SpeculativeDecoding => (12, [20.5, 23.4, 28.0]),
            Self::Unmeasured => return None,
        };
        Some(ErrorFigures { count, error_percent })
    }
}

/// Returns the error of predicted times of a class of jobs, on GPUs whose efficiency curve has this evidence.
///
/// A property with ten figures or more has their error, with fewer at least that of jobs without the property. Without
/// figures, the largest error of the properties with figures counts. Speculative decoding was measured on models without
/// experts, so that it has at least the error of other jobs.
pub(super) fn class_error(class: JobClass, evidence: GemmEvidence) -> ModelError {
    let plain = work_error(class.work, evidence);
    let of_property = |property: OtherProperty| {
        let figures = property.figures()?;
        let is_alone = figures.count >= FEW_FIGURES && property != OtherProperty::SpeculativeDecoding;
        Some(if is_alone { figures.error() } else { figures.error().larger(plain) })
    };
    match class.property {
        None => plain,
        Some(property) => of_property(property).unwrap_or_else(|| {
            let measured = class.work.measured_properties().iter().copied();
            measured.filter_map(of_property).fold(plain, ModelError::larger)
        }),
    }
}

fn work_error(work: Work, evidence: GemmEvidence) -> ModelError {
    let [from_steps, from_benchmarks] = [true, false].map(|steps| ErrorFigures::of_work(work, steps).error());
    let estimate = |percent: f64| ModelError::from_percent(percent).larger(from_steps).larger(from_benchmarks);
    match evidence {
        GemmEvidence::Steps => from_steps,
        GemmEvidence::Measured => from_benchmarks,
        GemmEvidence::PowerLimit => estimate(POWER_LIMIT_PERCENT),
        GemmEvidence::Assumed => estimate(ASSUMED_PERCENT),
    }
}

/// Returns the error of a figure of inference that does not scale with the steps, because it contains queueing and host
/// times; `None` for figures that do.
pub(super) fn latency_error(figure: Figure, job: &Job) -> Option<ModelError> {
    let Job::Inference(job) = job else { return None };
    let is_at_rate = matches!(job.arrivals, Arrivals::OpenLoop(_));
    let figures = match figure {
        Figure::Ttft if job.prefill_pool.is_some() => TTFT_OF_POOLS,
        Figure::Ttft | Figure::TtftP50 | Figure::TtftP99 if is_at_rate => TTFT_AT_RATE,
        Figure::Ttft if job.arrivals.is_benchmark() => TTFT_WITH_START,
        Figure::Ttft | Figure::TtftP50 | Figure::TtftP99 => TTFT,
        Figure::Tpot | Figure::TpotP50 | Figure::TpotP99 | Figure::Latency if is_at_rate => LATENCY_AT_RATE,
        _ => return None,
    };
    Some(figures.error())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A property with ten figures or more has their error, one with fewer at least the error of other jobs, and one
    /// without figures the largest known error.
    #[test]
    fn properties_have_errors_of_their_own() {
        use OtherProperty::{ServedAdapters, SpeculativeDecoding, StatesOnDrives, TrainedAdapters, Unmeasured};
        let of = |work, steps| ErrorFigures::of_work(work, steps).error();
        let own = |property: OtherProperty| property.figures().unwrap().error();
        for (work, property, expected) in [
            (Work::Training, None, of(Work::Training, true)),
            (Work::Training, Some(TrainedAdapters), own(TrainedAdapters)),
            (Work::Training, Some(StatesOnDrives), of(Work::Training, true)),
            (Work::Training, Some(Unmeasured), own(TrainedAdapters)),
            (Work::TrainingExperts, Some(Unmeasured), of(Work::TrainingExperts, true)),
            (Work::Serving, Some(ServedAdapters), own(ServedAdapters)),
            (Work::Serving, Some(SpeculativeDecoding), own(SpeculativeDecoding)),
            (Work::ServingExperts, Some(SpeculativeDecoding), own(SpeculativeDecoding)),
            (Work::ServingExperts, Some(Unmeasured), own(ServedAdapters)),
        ] {
            assert_eq!(
                class_error(JobClass { work, property }, GemmEvidence::Steps),
                expected,
                "{work:?} {property:?}"
            );
        }
    }

    #[test]
    fn guessed_gemm_rates_have_the_largest_errors() {
        for work in [Work::Training, Work::TrainingExperts, Work::Serving, Work::ServingExperts] {
            let class = JobClass { work, property: None };
            let high = |evidence| class_error(class, evidence).measured_to_predicted()[1];
            let [steps, measured, power, assumed] =
                [GemmEvidence::Steps, GemmEvidence::Measured, GemmEvidence::PowerLimit, GemmEvidence::Assumed]
                    .map(high);
            assert!(steps.max(measured) <= power && power < assumed, "{work:?}");
        }
    }
}
