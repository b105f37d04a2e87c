//! Limits on the results of jobs: days of training, throughput, and time to first token.

use fabricast_workload::job::{Arrivals, Disaggregation, Job, format_number};

use super::cost::CostedPrediction;
use super::cost::format_rounded;
use super::prediction::PredictedWork;
use super::quantities::seconds;

/// Limits on the result of each job on a candidate. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JobLimits {
    /// Largest duration of a whole training, in days of 24 hours. It applies to training jobs, which must state
    /// `train_tokens`.
    pub max_train_days: Option<f64>,
    /// Smallest throughput of a job, in tokens per second.
    pub min_tokens_per_s: Option<f64>,
    /// Longest mean time to first token of inference jobs, in seconds.
    pub max_ttft_s: Option<f64>,
}

impl JobLimits {
    /// Returns the reason if a limit applies to a result that this job cannot have.
    #[must_use]
    pub fn undefined_result(&self, job: &Job) -> Option<String> {
        let name = job.name();
        match job {
            Job::Training(training) if self.max_train_days.is_some() && training.train_tokens.is_none() => {
                Some(format!("max_train_days: `{name}` has no training time, expected its train_tokens"))
            }
            Job::Inference(serving) if self.max_ttft_s.is_some() => {
                let reason = match (&serving.arrivals, serving.disaggregation) {
                    (_, Disaggregation::Decode) => "only decodes",
                    (Arrivals::Batch { .. }, _) => "is a batch, expected its concurrency",
                    (
                        Arrivals::FixedConcurrency { .. } | Arrivals::AutoConcurrency { .. } | Arrivals::OpenLoop(_),
                        _,
                    ) => return None,
                };
                Some(format!("max_ttft_s: `{name}` has no time to first token: it {reason}"))
            }
            Job::Training(_) | Job::Inference(_) | Job::Trace(_) => None,
        }
    }

    /// Describes the limits that the result of job `name` violates; empty if there are none.
    #[must_use]
    pub fn violations(&self, name: &str, run: &CostedPrediction<'_>) -> Vec<String> {
        let CostedPrediction { prediction, costs } = run;
        let days = costs.training_hours.map(|hours| hours / 24.0);
        let is_training = prediction.work == PredictedWork::Training;
        let train = self.max_train_days.filter(|_| is_training).and_then(|limit| match days {
            None => Some(format!("{name}: training time unknown, expected train_tokens")),
            Some(days) => (days > limit).then(|| exceeded(name, "days to train", days, limit)),
        });
        let slow = self.min_tokens_per_s.and_then(|limit| match prediction.tokens_per_s {
            None => Some(format!("{name}: tokens/s unknown")),
            Some(rate) => (rate < limit).then(|| exceeded(name, "tokens/s", rate, limit)),
        });
        let service = prediction.service();
        let ttft = service.and_then(|service| service.ttft).map(seconds);
        let late = self.max_ttft_s.filter(|_| service.is_some()).and_then(|limit| match ttft {
            None => Some(format!("{name}: time to first token unknown, or without end")),
            Some(ttft) => (ttft > limit).then(|| exceeded(name, "s to the first token", ttft, limit)),
        });
        [train, slow, late].into_iter().flatten().collect()
    }
}

fn exceeded(name: &str, unit: &str, value: f64, limit: f64) -> String {
    format!("{name}: {} {unit}, limit {}", format_rounded(value, 4), format_number(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_described_with_the_value_found() {
        assert_eq!(exceeded("70B", "days to train", 33.333_3, 30.0), "70B: 33.33 days to train, limit 30");
        assert_eq!(
            exceeded("chat", "s to the first token", 0.512_34, 0.5),
            "chat: 0.5123 s to the first token, limit 0.5"
        );
    }
}
