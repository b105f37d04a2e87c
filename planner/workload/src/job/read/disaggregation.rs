//! Conversion of the key `disaggregation` of an inference job.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{IntoDeserializer, MapAccess, Visitor};
use toml::Spanned;

use super::super::{Disaggregation, FirstToken, Framework, JobError, KvTransfer, PrefillPool, TransferUnit};
use super::serving::reject_training_degrees;
use super::{JobText, ParallelText, Validator};

/// Part of requests, or division of the GPUs, as written in the job file.
#[derive(Clone, Debug)]
pub(super) enum DisaggregationText {
    /// Part of requests that all GPUs process.
    Part(Disaggregation),
    /// GPUs for prefill and GPUs for decode.
    Pools(Box<PoolText>),
}

/// Division of the GPUs as written in the job file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
pub(super) struct PoolText {
    prefill_gpus: Spanned<GpuText>,
    prefill_parallel: Option<Spanned<ParallelText>>,
    transfer: Option<TransferUnit>,
    first_token: Option<FirstToken>,
    block_tokens: Option<Spanned<u64>>,
}

/// Number of GPUs as written in the job file.
#[derive(Clone, Copy, Debug)]
enum GpuText {
    /// `"auto"`: the number with the best service.
    Auto,
    /// Number of GPUs.
    Given(u64),
}

impl<'de> Deserialize<'de> for DisaggregationText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PartOrPools;
        impl<'de> Visitor<'de> for PartOrPools {
            type Value = DisaggregationText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"none\", \"prefill\", \"decode\", or a table as `{ prefill_gpus = 8 }`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<DisaggregationText, E> {
                let name: StrDeserializer<'_, E> = text.into_deserializer();
                Disaggregation::deserialize(name).map(DisaggregationText::Part)
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<DisaggregationText, M::Error> {
                PoolText::deserialize(MapAccessDeserializer::new(map))
                    .map(|pools| DisaggregationText::Pools(Box::new(pools)))
            }
        }
        deserializer.deserialize_any(PartOrPools)
    }
}

impl<'de> Deserialize<'de> for GpuText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AutoOrCount;
        impl Visitor<'_> for AutoOrCount {
            type Value = GpuText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of GPUs, or \"auto\"")
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<GpuText, E> {
                let invalid = |_| E::invalid_value(serde::de::Unexpected::Signed(number), &self);
                u64::try_from(number).map(GpuText::Given).map_err(invalid)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<GpuText, E> {
                match text {
                    "auto" => Ok(GpuText::Auto),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(AutoOrCount)
    }
}

impl JobText {
    /// Returns the byte ranges of `prefill_gpus` and `prefill_parallel`, if the job has them.
    pub(super) fn pool_spans(&self) -> [Option<Range<usize>>; 2] {
        match self.disaggregation.as_ref().map(Spanned::get_ref) {
            Some(DisaggregationText::Pools(pools)) => {
                [Some(pools.prefill_gpus.span()), pools.prefill_parallel.as_ref().map(Spanned::span)]
            }
            Some(DisaggregationText::Part(_)) | None => [None, None],
        }
    }

    /// Returns the part of requests that the machine processes. Keys of the other part contradict it.
    pub(super) fn disaggregation(&self, check: Validator<'_>) -> Result<Disaggregation, JobError> {
        let Some(text) = &self.disaggregation else { return Ok(Disaggregation::default()) };
        let DisaggregationText::Part(part) = *text.get_ref() else { return Ok(Disaggregation::default()) };
        let output_tokens = self.output_tokens.as_ref().map(Spanned::get_ref);
        let contradiction = match part {
            Disaggregation::None => None,
            Disaggregation::Decode if output_tokens.is_some_and(|tokens| tokens.min() < 2) => {
                Some("the first token is of the prefill: expected output_tokens of 2 or more")
            }
            Disaggregation::Decode if self.ttft_s.is_some() => {
                Some("a machine for decode has no time to first token: omit ttft_s")
            }
            Disaggregation::Prefill if output_tokens.is_some_and(|tokens| tokens.max() != 1) => {
                Some("a machine for prefill computes the first token only: omit output_tokens, or state 1")
            }
            Disaggregation::Prefill if self.tpot_s.is_some() => {
                Some("a machine for prefill has no time per output token: omit tpot_s")
            }
            Disaggregation::Decode | Disaggregation::Prefill => None,
        };
        match contradiction {
            None => Ok(part),
            Some(reason) => Err(check.error(text.span(), format!("disaggregation: {reason}"))),
        }
    }

    /// Returns the GPUs for prefill and the transfer to those for decode; `None` if all GPUs process the same part.
    pub(super) fn prefill_pool(
        &self,
        check: Validator<'_>,
        software: &Framework,
    ) -> Result<Option<PrefillPool>, JobError> {
        let Some(text) = &self.disaggregation else { return Ok(None) };
        let DisaggregationText::Pools(pools) = text.get_ref() else { return Ok(None) };
        let PoolText { prefill_gpus, prefill_parallel, transfer, first_token, block_tokens } = pools.as_ref();
        if self.output_tokens.as_ref().is_some_and(|tokens| tokens.get_ref().min() < 2) {
            let message = "disaggregation: no token is decoded: expected output_tokens of 2 or more";
            return Err(check.error(text.span(), message.to_owned()));
        }
        if self.request_rate.is_none()
            && let Some(requests) = &self.requests
        {
            let message =
                "requests: a batch is not divided into prefill and decode: give `concurrency` or `request_rate`";
            return Err(check.error(requests.span(), message.to_owned()));
        }
        let gpus = match *prefill_gpus.get_ref() {
            GpuText::Auto => None,
            GpuText::Given(count) => {
                Some(check.count("prefill_gpus", &Spanned::new(prefill_gpus.span(), count))? as u32)
            }
        };
        let parallel = match prefill_parallel {
            None => self.parallel(check)?.with_open_data_degree(),
            Some(parallel) => {
                reject_training_degrees(check, parallel.get_ref())?;
                self.degrees(check, parallel)?
            }
        };
        let block_tokens = block_tokens.as_ref().map(|tokens| check.count("block_tokens", tokens)).transpose()?;
        let defaults = KvTransfer::default();
        let transfer = KvTransfer {
            unit: transfer.or(software.kv_transfer).unwrap_or(defaults.unit),
            first_token: first_token.or(software.first_token).unwrap_or(defaults.first_token),
            block_tokens,
        };
        Ok(Some(PrefillPool { gpus, parallel, transfer }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_job;
    use super::super::serving_tests::{served, text};
    use super::*;
    use crate::job::{Arrivals, Degrees, Parallel, Serving};

    fn pool(keys: &str) -> PrefillPool {
        served(&format!("disaggregation = {{ {keys} }}\n")).prefill_pool.unwrap()
    }

    #[test]
    fn prefill_pools_are_read() {
        let found = pool("prefill_gpus = 4, prefill_parallel = { tp = 2 }, transfer = \"layer\", block_tokens = 16");
        let degrees = Degrees { tensor: 2, ..Degrees::default() };
        let transfer =
            KvTransfer { unit: TransferUnit::Layer, first_token: FirstToken::Transfer, block_tokens: Some(16) };
        let parallel = Parallel::Given { degrees, data: None };
        assert_eq!(found, PrefillPool { gpus: Some(4), parallel, transfer });
        // Degrees of decode, without its number of replicas.
        let same = served("disaggregation = { prefill_gpus = \"auto\" }\nparallel = { tp = 8, dp = 3 }\n");
        let degrees = Degrees { tensor: 8, ..Degrees::default() };
        let PrefillPool { gpus, parallel, .. } = same.prefill_pool.clone().unwrap();
        assert_eq!((gpus, parallel), (None, Parallel::Given { degrees, data: None }));
        assert_eq!((same.disaggregation, served("").prefill_pool), (Disaggregation::None, None));
        let defaults = |framework: &str| {
            let keys = format!("framework = \"{framework}\"\ndisaggregation = {{ prefill_gpus = 8 }}\n");
            let KvTransfer { unit, first_token, .. } = served(&keys).prefill_pool.unwrap().transfer;
            (unit, first_token)
        };
        assert_eq!(defaults("vllm"), (TransferUnit::Request, FirstToken::Decode));
        assert_eq!(defaults("sglang"), (TransferUnit::Chunk, FirstToken::Transfer));
    }

    #[test]
    fn parts_of_a_job_compute_each_token_once() {
        for (first_token, decoded) in [("prefill", 499), ("transfer", 499), ("decode", 500)] {
            let keys =
                format!("disaggregation = {{ prefill_gpus = 8, first_token = \"{first_token}\" }}\nttft_s = 1\n");
            let job = served(&keys);
            let pool = job.prefill_pool.clone().unwrap();
            let [prefill, decode] = [job.prefill_part(&pool), job.decode_part(&pool)];
            assert_eq!((prefill.computed_output_tokens(), decode.computed_output_tokens()), (1, decoded));
            assert_eq!((prefill.limits.ttft, decode.limits.ttft), (job.limits.ttft, None));
        }
        let full = served("concurrency = 7\nmax_num_seqs = 9\n").with_full_load();
        assert_eq!(full.arrivals, Arrivals::AutoConcurrency { max_num_seqs: 9 });
        let full = served("concurrency = 7\n").with_full_load();
        assert_eq!(full.arrivals, Arrivals::AutoConcurrency { max_num_seqs: Serving::MAX_NUM_SEQS });
    }

    #[test]
    fn invalid_pools_are_rejected_with_location() {
        for (lines, location, expected) in [
            ("disaggregation = { prefill_gpus = 0 }", "job.toml:2:35", "prefill_gpus"),
            ("disaggregation = { prefill_gpus = \"all\" }", "job.toml:2:35", "or \"auto\""),
            (
                "disaggregation = { prefill_gpus = 8, prefill_parallel = { tp = 4, cp = 2 } }",
                "job.toml:2:72",
                "training",
            ),
            ("disaggregation = { prefill_tp = 8 }", "job.toml:2:20", "prefill_gpus"),
            ("disaggregation = { prefill_gpus = 8, transfer = \"token\" }", "job.toml:2:49", "layer"),
            ("disaggregation = \"both\"", "job.toml:2:18", "decode"),
            ("disaggregation = 3", "job.toml:2:18", "prefill_gpus = 8"),
            ("disaggregation = { prefill_gpus = 8 }\noutput_tokens = 1", "job.toml:2:18", "2 or more"),
            ("disaggregation = { prefill_gpus = 8 }\nrequests = 9", "job.toml:3:12", "`concurrency` or `request_rate`"),
        ] {
            let error = read_job(&text(&format!("{lines}\n")), "job.toml").unwrap_err().to_string();
            assert!(error.starts_with(&format!("{location}: ")) && error.contains(expected), "{lines}: {error}");
        }
    }
}
