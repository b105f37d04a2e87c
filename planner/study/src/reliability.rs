//! Failures of a machine and recovery from them: what a candidate or a study states, or published figures
//! (`planner/data/reliability.toml`, each with its source).

use std::sync::LazyLock;

use serde::Deserialize;

use crate::Band;

/// Published failures, restarts and checkpoints.
pub(crate) const PUBLISHED: &str = include_str!("../../data/reliability.toml");

/// Figure with its interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Lower end.
    pub low: f64,
    /// Figure to compute with.
    pub typical: f64,
    /// Upper end.
    pub high: f64,
}

impl Estimate {
    /// Median of figures, with their 10th and 90th percentiles; 0 without figures.
    pub(crate) fn from_figures(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let quantile = |share: f64| {
            let position = share * sorted.len().saturating_sub(1) as f64;
            let [below, above] =
                [position.floor(), position.ceil()].map(|index| sorted.get(index as usize).copied().unwrap_or(0.0));
            below + (above - below) * position.fract()
        };
        Self { low: quantile(0.1), typical: quantile(0.5), high: quantile(0.9) }
    }
}

/// Creates the estimate of a stated band, whose middle is the figure to compute with.
impl From<Band> for Estimate {
    fn from(band: Band) -> Self {
        Self { low: band.low, typical: band.middle(), high: band.high }
    }
}

/// Failures of a machine and recovery from them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reliability {
    /// Failures that stop a job, per 1,000 GPUs of the job and day.
    pub failures_per_1000_gpu_days: Estimate,
    /// Seconds from a failure to the start of the recovery.
    pub detection_s: Estimate,
    /// Seconds from then to the next step: replacement, scheduling, start of the processes, and reading the checkpoint.
    pub restart_s: Estimate,
}

impl Reliability {
    /// Returns the median of published figures, with their 10th and 90th percentiles.
    #[must_use]
    pub fn published() -> Self {
        PublishedFigures::shipped().reliability(|_| true)
    }
}

/// Writes and copies of checkpoints that jobs do not state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CheckpointDefaults {
    /// Bandwidth of a write of all ranks in GB/s.
    pub write_gb_per_s: f64,
    /// Seconds of a copy of few bytes to host memory.
    pub copy_s: f64,
}

/// Rows of `planner/data/reliability.toml` from which defaults follow.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct PublishedFigures {
    failures: Vec<FailureFigure>,
    restart: Vec<TimeFigure>,
    detection: Vec<TimeFigure>,
    write: Vec<WriteFigure>,
    copy: Vec<CopyFigure>,
}

#[derive(Clone, Debug, Deserialize)]
struct FailureFigure {
    author: String,
    gpus: Option<f64>,
    days: Option<f64>,
    failures: Option<f64>,
    per_1000_gpu_days: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
struct TimeFigure {
    author: String,
    seconds: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct WriteFigure {
    gb: f64,
    seconds: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct CopyFigure {
    seconds: f64,
}

impl FailureFigure {
    fn per_1000_gpu_days(&self) -> Option<f64> {
        let counted = || Some(self.failures? / self.days? / self.gpus? * 1000.0);
        self.per_1000_gpu_days.or_else(counted)
    }
}

impl PublishedFigures {
    /// Returns the shipped figures. They would be empty if the file were invalid, which a test excludes.
    pub(crate) fn shipped() -> &'static Self {
        static SHIPPED: LazyLock<PublishedFigures> = LazyLock::new(|| toml::from_str(PUBLISHED).unwrap_or_default());
        &SHIPPED
    }

    /// Reliability from the figures of the authors that satisfy a predicate.
    pub(crate) fn reliability(&self, includes: impl Fn(&str) -> bool) -> Reliability {
        let times = |rows: &[TimeFigure]| {
            let included = rows.iter().filter(|row| includes(&row.author)).map(|row| row.seconds);
            Estimate::from_figures(included)
        };
        let rates = self.failures.iter().filter(|row| includes(&row.author));
        Reliability {
            failures_per_1000_gpu_days: Estimate::from_figures(rates.filter_map(FailureFigure::per_1000_gpu_days)),
            detection_s: times(&self.detection),
            restart_s: times(&self.restart),
        }
    }

    /// Medians of published writes and copies.
    pub(crate) fn checkpoint_defaults(&self) -> CheckpointDefaults {
        let writes = self.write.iter().map(|row| row.gb / row.seconds);
        let copies = self.copy.iter().map(|row| row.seconds);
        CheckpointDefaults {
            write_gb_per_s: Estimate::from_figures(writes).typical,
            copy_s: Estimate::from_figures(copies).typical,
        }
    }
}
