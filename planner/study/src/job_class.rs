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
    /// Inference with speculative decoding.
    SpeculativeDecoding,
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
    pub(super) fn measured_properties(self) -> &'static [OtherProperty] {
        match self {
            Self::Training | Self::TrainingExperts => &[OtherProperty::TrainedAdapters, OtherProperty::StatesOnDrives],
            Self::Serving | Self::ServingExperts => {
                &[OtherProperty::ServedAdapters, OtherProperty::SpeculativeDecoding]
            }
        }
    }
}

impl OtherProperty {
    /// Returns the jobs with the property, as the subject of a sentence.
    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Self::TrainedAdapters => Some("training of low-rank adapters"),
            Self::ServedAdapters => Some("inference with low-rank adapters"),
            Self::StatesOnDrives => Some("training with optimizer states on drives"),
            Self::SpeculativeDecoding => Some("inference with speculative decoding"),
            Self::Unmeasured => None,
        }
    }

    /// Returns the source of the figures of jobs with the property.
    pub(super) fn source(self) -> Option<&'static str> {
        match self {
            Self::TrainedAdapters => Some("figures on A100, H200 and RTX 4090"),
            Self::ServedAdapters => Some("published figures of 2023 on A100"),
            Self::StatesOnDrives => Some("published figures of DeepSpeed on H100"),
            Self::SpeculativeDecoding => Some("published figures of SGLang and vLLM on H100"),
            Self::Unmeasured => None,
        }
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
        let property = match (job.adapters.is_some(), job.speculation.is_some(), job.kv_tier) {
            (false, false, Tier::Hbm) => None,
            (false, true, Tier::Hbm) => Some(OtherProperty::SpeculativeDecoding),
            (true, false, Tier::Hbm) if !has_experts => Some(OtherProperty::ServedAdapters),
            _ => Some(OtherProperty::Unmeasured),
        };
        Self { work: if has_experts { Work::ServingExperts } else { Work::Serving }, property }
    }
}
