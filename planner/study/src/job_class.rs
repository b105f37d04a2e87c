//! Classes of jobs whose predictions have errors of their own.

use fabricast_workload::job::{Job, Serving, Tier, Training};

/// Kind of work, as distinguished by the published figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Training,
    TrainingExperts,
    Serving,
    ServingExperts,
}

/// Property of a job that the jobs of most published figures lack, so that their errors do not apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OtherProperty {
    /// Training of low-rank adapters.
    TrainedAdapters,
    /// Inference with low-rank adapters.
    ServedAdapters,
    /// Training with optimizer states on drives.
    StatesOnDrives,
    /// Data in another memory tier, or several of these properties: no measured figure.
    Unmeasured,
}

/// Class of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobClass {
    pub work: Work,
    /// `None` for jobs as those of most published figures.
    pub property: Option<OtherProperty>,
}

/// Figures that show the error of jobs with a property, on any GPU, as in docs/accuracy.md ("Jobs as others measured
/// them").
pub(super) struct PropertyFigures {
    /// The jobs, as the subject of a sentence.
    pub name: &'static str,
    /// The figures, without their number.
    pub figures: &'static str,
    pub count: u32,
    /// Absolute error of predicted times in percent: median and 90th percentile.
    pub error_percent: [f64; 2],
}

/// Number of figures below which their 90th percentile says little: it is that of the largest one or two.
const FEW_FIGURES: u32 = 10;

impl Work {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Training => "training of models without experts",
            Self::TrainingExperts => "training of models with experts",
            Self::Serving => "inference of models without experts",
            Self::ServingExperts => "inference of models with experts",
        }
    }

    /// Returns the properties of which there are figures for this kind of work or the same one without experts.
    fn measured_properties(self) -> &'static [OtherProperty] {
        match self {
            Self::Training | Self::TrainingExperts => &[OtherProperty::TrainedAdapters, OtherProperty::StatesOnDrives],
            Self::Serving | Self::ServingExperts => &[OtherProperty::ServedAdapters],
        }
    }
}

impl OtherProperty {
    /// Returns the figures of a property; `None` if there are none.
    pub(super) fn figures(self) -> Option<PropertyFigures> {
        let (name, figures, count, error_percent) = match self {
            Self::TrainedAdapters => {
                ("training of low-rank adapters", "figures on A100, H200 and RTX 4090", 46, [12.0, 41.0])
            }
            Self::ServedAdapters => {
                ("inference with low-rank adapters", "published figures of 2023 on A100", 6, [46.0, 58.0])
            }
            Self::StatesOnDrives => {
                ("training with optimizer states on drives", "published figures of DeepSpeed on H100", 4, [7.0, 7.0])
            }
            Self::Unmeasured => return None,
        };
        Some(PropertyFigures { name, figures, count, error_percent })
    }
}

impl JobClass {
    /// Returns the class of a job; `None` for a trace, whose kernel times are recorded.
    pub(super) fn new(job: &Job) -> Option<Self> {
        match job {
            Job::Training(job) => Some(Self::from_training(job)),
            Job::Inference(job) => Some(Self::from_serving(job)),
            Job::Trace(_) => None,
        }
    }

    pub(super) fn from_training(job: &Training) -> Self {
        let has_experts = job.model.experts > 0;
        let property = match (job.lora.is_some(), (job.optimizer_tier, job.weights_tier)) {
            (false, (Tier::Hbm, Tier::Hbm)) => None,
            _ if has_experts => Some(OtherProperty::Unmeasured),
            (true, (Tier::Hbm, Tier::Hbm)) => Some(OtherProperty::TrainedAdapters),
            (false, (Tier::Nvme, _)) => Some(OtherProperty::StatesOnDrives),
            _ => Some(OtherProperty::Unmeasured),
        };
        Self { work: if has_experts { Work::TrainingExperts } else { Work::Training }, property }
    }

    pub(super) fn from_serving(job: &Serving) -> Self {
        let has_experts = job.model.experts > 0;
        let property = match (job.adapters.is_some(), job.kv_tier) {
            (false, Tier::Hbm) => None,
            (true, Tier::Hbm) if !has_experts => Some(OtherProperty::ServedAdapters),
            _ => Some(OtherProperty::Unmeasured),
        };
        Self { work: if has_experts { Work::ServingExperts } else { Work::Serving }, property }
    }

    /// Returns the error at the 90th percentile, in percent. `plain`: that of jobs without the property, on the same GPUs. A
    /// property with fewer than ten figures has at least this error. One without figures has the largest error of those
    /// with figures.
    pub(super) fn error(self, plain: f64) -> f64 {
        let of_figures = |figures: PropertyFigures| {
            let [_, p90] = figures.error_percent;
            if figures.count < FEW_FIGURES { p90.max(plain) } else { p90 }
        };
        match self.property {
            None => plain,
            Some(property) => match property.figures() {
                Some(figures) => of_figures(figures),
                None => {
                    let known = self.work.measured_properties().iter().filter_map(|property| property.figures());
                    known.map(of_figures).fold(plain, f64::max)
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A property with ten figures or more has their error, one with fewer at least the error of other jobs, and one
    /// without figures the largest known error.
    #[test]
    fn properties_have_errors_of_their_own() {
        use OtherProperty::{ServedAdapters, StatesOnDrives, TrainedAdapters, Unmeasured};
        for (work, property, plain, expected) in [
            (Work::Training, None, 17.0, 17.0),
            (Work::Training, Some(TrainedAdapters), 17.0, 41.0),
            (Work::Training, Some(TrainedAdapters), 50.0, 41.0),
            (Work::Training, Some(StatesOnDrives), 17.0, 17.0),
            (Work::Training, Some(Unmeasured), 17.0, 41.0),
            (Work::TrainingExperts, Some(Unmeasured), 45.6, 45.6),
            (Work::Serving, Some(ServedAdapters), 12.1, 58.0),
            (Work::Serving, Some(Unmeasured), 12.1, 58.0),
            (Work::ServingExperts, Some(Unmeasured), 42.3, 58.0),
        ] {
            let error = JobClass { work, property }.error(plain);
            assert!((error - expected).abs() < 1e-9, "{work:?} {property:?}: {error} for {plain}");
        }
    }
}
