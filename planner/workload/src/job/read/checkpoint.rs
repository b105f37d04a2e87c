//! Keys of a training job's `checkpoint = { … }`.

use std::fmt;
use std::ops::RangeInclusive;

use fabricast_topologies::{Bandwidth, Picos};
use serde::Deserialize;
use serde::de::{Unexpected, Visitor};
use toml::Spanned;

use super::super::{CheckpointInterval, CheckpointWrite, Checkpointing, JobError, WriteSpeed};
use super::{JobText, Validator};

/// Valid intervals in seconds: up to 30 days.
const INTERVALS: RangeInclusive<f64> = 1.0..=30.0 * 86_400.0;

/// Valid times of a write or a copy in seconds: up to a day.
const TIMES: RangeInclusive<f64> = 0.0..=86_400.0;

/// Valid bandwidths of storage in GB/s.
const BANDWIDTHS: RangeInclusive<f64> = 1e-3..=1e6;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
pub(super) struct CheckpointText {
    write: Option<Spanned<CheckpointWrite>>,
    interval_s: Option<Spanned<IntervalText>>,
    write_s: Option<Spanned<f64>>,
    write_gb_per_s: Option<Spanned<f64>>,
    copy_s: Option<Spanned<f64>>,
}

/// Interval between checkpoints: `"auto"` or a number of seconds.
#[derive(Clone, Copy, Debug)]
enum IntervalText {
    Auto,
    Seconds(f64),
}

impl<'de> Deserialize<'de> for IntervalText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AutoOrSeconds;
        impl Visitor<'_> for AutoOrSeconds {
            type Value = IntervalText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a number of seconds")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<IntervalText, E> {
                match text {
                    "auto" => Ok(IntervalText::Auto),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }

            fn visit_i64<E: serde::de::Error>(self, seconds: i64) -> Result<IntervalText, E> {
                Ok(IntervalText::Seconds(seconds as f64))
            }

            fn visit_f64<E: serde::de::Error>(self, seconds: f64) -> Result<IntervalText, E> {
                Ok(IntervalText::Seconds(seconds))
            }
        }
        deserializer.deserialize_any(AutoOrSeconds)
    }
}

impl JobText {
    /// Returns the validated checkpoints; `None` if the key is absent.
    pub(super) fn checkpointing(&self, check: Validator<'_>) -> Result<Option<Checkpointing>, JobError> {
        let Some(text) = self.checkpoint.as_ref().map(Spanned::get_ref) else { return Ok(None) };
        let time = |name: &str, value: &Option<Spanned<f64>>| {
            let seconds = check.number_in_range(name, value, TIMES, 0.0)?;
            Ok(value.as_ref().map(|_| picos(seconds)))
        };
        let write = text.write.as_ref().map(|write| *write.get_ref()).unwrap_or_default();
        if let (CheckpointWrite::Blocking, Some(copy)) = (write, &text.copy_s) {
            let message = "copy_s: steps wait for the whole of a blocking write: expected write = \"asynchronous\"";
            return Err(check.error(copy.span(), message.to_owned()));
        }
        let bandwidth = check.number_in_range("write_gb_per_s", &text.write_gb_per_s, BANDWIDTHS, 1.0)?;
        let speed = match (time("write_s", &text.write_s)?, &text.write_gb_per_s) {
            (Some(_), Some(stated)) => {
                let message = "write_gb_per_s: the time of a write is given: expected write_s or write_gb_per_s";
                return Err(check.error(stated.span(), message.to_owned()));
            }
            (Some(time), None) => Some(WriteSpeed::Time(time)),
            (None, Some(_)) => Some(WriteSpeed::Bandwidth(Bandwidth::from_gb_per_s(bandwidth))),
            (None, None) => None,
        };
        let interval = match text.interval_s.as_ref().map(|interval| (*interval.get_ref(), interval.span())) {
            None | Some((IntervalText::Auto, _)) => CheckpointInterval::Optimum,
            Some((IntervalText::Seconds(seconds), place)) => {
                let seconds = Some(Spanned::new(place, seconds));
                CheckpointInterval::Fixed(picos(check.number_in_range("interval_s", &seconds, INTERVALS, 0.0)?))
            }
        };
        Ok(Some(Checkpointing { write, interval, speed, copy: time("copy_s", &text.copy_s)? }))
    }
}

fn picos(seconds: f64) -> Picos {
    Picos::from_us(seconds * 1e6)
}

#[cfg(test)]
mod tests {
    use super::super::read_job;
    use super::super::tests::job;
    use super::*;

    const SECOND: u64 = 1_000_000_000_000;

    #[test]
    fn checkpoint_keys_are_read() {
        let read = |keys: &str| job(&format!("parallel = {{ tp = 8 }}\n{keys}\n")).checkpoint;
        assert_eq!(read(""), None);
        assert_eq!(read("checkpoint = {}"), Some(Checkpointing::default()));
        assert_eq!(
            read("checkpoint = { interval_s = 1800, write_gb_per_s = 50, copy_s = 0.5 }"),
            Some(Checkpointing {
                write: CheckpointWrite::Asynchronous,
                interval: CheckpointInterval::Fixed(Picos(1800 * SECOND)),
                speed: Some(WriteSpeed::Bandwidth(Bandwidth(50_000_000_000))),
                copy: Some(Picos(SECOND / 2)),
            })
        );
        assert_eq!(
            read("checkpoint = { interval_s = \"auto\", write = \"blocking\", write_s = 40 }"),
            Some(Checkpointing {
                write: CheckpointWrite::Blocking,
                speed: Some(WriteSpeed::Time(Picos(40 * SECOND))),
                ..Checkpointing::default()
            })
        );
    }

    #[test]
    fn invalid_checkpoints_are_rejected_with_location() {
        for (keys, column, expected) in [
            ("wrong = 1", 16, "unknown field"),
            ("interval_s = 0.5", 29, "interval_s: 0.5 is not from 1 to 2592000"),
            ("interval_s = inf", 29, "interval_s: inf is not from"),
            ("interval_s = \"often\"", 29, "expected \"auto\" or a number of seconds"),
            ("write = \"sometimes\"", 24, "expected `asynchronous` or `blocking`"),
            ("write_s = -1", 26, "write_s: -1 is not from 0 to 86400"),
            ("copy_s = nan", 25, "copy_s: NaN is not from"),
            ("write_gb_per_s = 0", 33, "write_gb_per_s: 0 is not from 0.001 to 1000000"),
            ("write_s = 1, write_gb_per_s = 1", 46, "expected write_s or write_gb_per_s"),
            ("write = \"blocking\", copy_s = 1", 45, "expected write = \"asynchronous\""),
        ] {
            let text = format!(
                "checkpoint = {{ {keys} }}\nname = \"j\"\nglobal_batch = 8\nmodel = \"llama-3-8b\"\nparallel = {{ tp = 1 }}\n"
            );
            let error = read_job(&text, "job.toml").unwrap_err();
            assert_eq!(error.location.to_string(), format!("job.toml:1:{column}"), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
        let text = "name = \"j\"\nkind = \"inference\"\ncheckpoint = {}\nmodel = \"llama-3-8b\"\n";
        let error = read_job(text, "job.toml").unwrap_err().to_string();
        assert!(error.contains("checkpoint: only valid for jobs of kind training"), "{error}");
    }
}
