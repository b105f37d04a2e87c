//! Conversion of the key `adapters` of an inference job.

use serde::Deserialize;
use toml::Spanned;

use super::super::{AdapterLoading, HostAllocation, JobError, Model, ServedAdapters};
use super::Validator;
use super::lora::{AdapterText, TargetsText};

/// Largest number of adapters.
const MAX_ADAPTERS: u64 = 1 << 20;

/// Adapters as written in the job file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table as `{ rank = 16, number = 200 }`")]
pub(super) struct ServedAdaptersText {
    rank: Spanned<u64>,
    targets: Option<Spanned<TargetsText>>,
    number: Spanned<u64>,
    resident: Option<Spanned<u64>>,
    host_memory: Option<HostAllocation>,
    loading: Option<AdapterLoading>,
}

impl ServedAdaptersText {
    /// Returns the adapters of a model.
    pub(super) fn adapters(&self, check: Validator<'_>, model: &Model) -> Result<ServedAdapters, JobError> {
        let Self { rank, targets, number, resident, host_memory, loading } = self;
        let adapter = AdapterText { key: "adapters", rank, targets: targets.as_ref() }.adapter(check, model)?;
        let count = |key: &str, value: &Spanned<u64>, max: u64| match *value.get_ref() {
            count if (1..=max).contains(&count) => Ok(count),
            count => {
                let message = format!("adapters: {key} {count} is not a whole number from 1 to {max}");
                Err(check.error(value.span(), message))
            }
        };
        let number = count("number", number, MAX_ADAPTERS)?;
        let resident = resident.as_ref().map_or(Ok(number), |resident| count("resident", resident, number))?;
        Ok(ServedAdapters {
            adapter,
            number,
            resident,
            host_memory: host_memory.unwrap_or_default(),
            loading: loading.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_job;
    use super::super::serving_tests::{served, text};
    use super::super::tests::text as training_text;
    use super::*;

    #[test]
    fn adapters_are_read() {
        let adapters = served("adapters = { rank = 8, number = 20, resident = 4, host_memory = \"pageable\" }\n");
        let adapters = adapters.adapters.unwrap();
        assert_eq!((adapters.adapter.rank, adapters.number, adapters.resident), (8, 20, 4));
        assert_eq!(adapters.host_memory, HostAllocation::Pageable);
        assert_eq!(adapters.loading, AdapterLoading::Blocking);
        let overlapped = served("adapters = { rank = 8, number = 2, loading = \"overlapped\" }\n").adapters.unwrap();
        assert_eq!(overlapped.loading, AdapterLoading::Overlapped);
        let resident = served("adapters = { rank = 8, number = 20 }\n").adapters.unwrap();
        assert_eq!((resident.resident, resident.host_memory), (20, HostAllocation::Pinned));
        assert_eq!(served("").adapters, None);
    }

    #[test]
    fn invalid_adapters_are_rejected_with_location() {
        for (value, column, expected) in [
            ("{ rank = 0, number = 1 }", 21, "adapters: rank 0 has no parameters"),
            ("{ rank = 99999, number = 1 }", 21, "above the hidden size"),
            ("{ rank = 8, number = 0 }", 33, "number 0 is not a whole number from 1 to"),
            ("{ rank = 8, number = 4, resident = 5 }", 47, "resident 5 is not a whole number from 1 to 4"),
            ("{ rank = 8, number = 4, targets = \"mlp\" }", 46, "no group of targets"),
            ("{ rank = 8 }", 12, "number"),
        ] {
            let error = read_job(&text(&format!("adapters = {value}\n")), "job.toml").unwrap_err().to_string();
            let location = format!("job.toml:2:{column}: ");
            assert!(error.starts_with(&location) && error.contains(expected), "{value}: {error}");
        }
    }

    /// Each kind of job names the key of the other.
    #[test]
    fn training_has_no_served_adapters() {
        let text = training_text("adapters = { rank = 8, number = 1 }\n");
        let error = read_job(&text, "job.toml").unwrap_err().to_string();
        assert!(error.starts_with("job.toml:1:12: adapters: ") && error.contains("inference"), "{error}");
    }
}
