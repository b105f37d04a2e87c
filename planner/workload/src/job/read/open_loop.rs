//! Conversion of the keys of requests: their lengths, and their arrival at a mean rate.

use std::fmt;
use std::ops::RangeInclusive;

use fabricast_topologies::Picos;
use serde::Deserialize;
use serde::de::{SeqAccess, Visitor};
use toml::Spanned;

use super::super::{Arrivals, JobError, LatencyStatistic, LengthDistribution, OpenLoop};
use super::{JobText, Validator};

/// Valid range of rates, in requests per second.
const RATES: RangeInclusive<f64> = 1e-3..=1e6;

/// Valid range of the shape of the gaps' distribution.
const BURSTINESS: RangeInclusive<f64> = 0.01..=1000.0;

/// Largest number of requests of a benchmark, each of which is simulated.
const MAX_REQUESTS: u64 = 100_000;

/// Number of tokens as written in the job file: a number, or quantiles.
#[derive(Clone, Debug)]
pub(super) struct LengthText(Vec<u64>);

impl LengthText {
    /// Smallest number of tokens.
    pub(super) fn min(&self) -> u64 {
        self.0.iter().copied().min().unwrap_or_default()
    }

    /// Largest number of tokens.
    pub(super) fn max(&self) -> u64 {
        self.0.iter().copied().max().unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for LengthText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CountOrQuantiles;
        impl<'de> Visitor<'de> for CountOrQuantiles {
            type Value = LengthText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of tokens, or a list of quantiles as [10, 50, 400]")
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<LengthText, E> {
                let count = u64::try_from(number);
                count
                    .map(|count| LengthText(vec![count]))
                    .map_err(|_| E::invalid_value(serde::de::Unexpected::Signed(number), &self))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<LengthText, A::Error> {
                let mut quantiles = Vec::new();
                while let Some(quantile) = sequence.next_element()? {
                    quantiles.push(quantile);
                }
                Ok(LengthText(quantiles))
            }
        }
        deserializer.deserialize_any(CountOrQuantiles)
    }
}

impl JobText {
    /// Returns the number of first requests of a benchmark whose prompts are cached.
    pub(super) fn cached_requests(&self, check: Validator<'_>, arrivals: Arrivals) -> Result<u32, JobError> {
        let Some(cached) = &self.cached_requests else { return Ok(0) };
        match arrivals {
            Arrivals::FixedConcurrency { requests: Some(requests), .. } if *cached.get_ref() <= requests => {
                // (`requests` is at most 100,000.)
                Ok(*cached.get_ref() as u32)
            }
            Arrivals::FixedConcurrency { requests: Some(requests), .. } => {
                let message = format!("cached_requests: {} of {requests} requests", cached.get_ref());
                Err(check.error(cached.span(), message))
            }
            Arrivals::FixedConcurrency { .. }
            | Arrivals::AutoConcurrency { .. }
            | Arrivals::Batch { .. }
            | Arrivals::OpenLoop(_) => {
                let message = "cached_requests: only valid with `concurrency` and `requests` of a benchmark";
                Err(check.error(cached.span(), message.to_owned()))
            }
        }
    }

    /// Returns the distribution of the numbers of tokens of a key. Several quantiles need arrivals at a mean rate: other
    /// loads have requests of equal length.
    pub(super) fn token_counts(
        &self,
        check: Validator<'_>,
        name: &str,
        text: &Spanned<LengthText>,
    ) -> Result<LengthDistribution, JobError> {
        let counts = text.get_ref().0.iter().map(|&count| check.count(name, &Spanned::new(text.span(), count)));
        let quantiles = counts.collect::<Result<Vec<u64>, _>>()?;
        let invalid = |reason: &str| Err(check.error(text.span(), format!("{name}: {reason}")));
        match LengthDistribution::new(quantiles) {
            None => invalid("quantiles increase, from the minimum to the maximum: expected as [10, 50, 400]"),
            Some(lengths) if !lengths.is_fixed() && !self.has_single_requests() => invalid(
                "quantiles need the `request_rate` of arrivals, or `concurrency` and `requests`: expected one number",
            ),
            Some(lengths) => Ok(lengths),
        }
    }

    /// Returns true if single requests are simulated.
    fn has_single_requests(&self) -> bool {
        self.request_rate.is_some() || (self.concurrency.is_some() && self.requests.is_some())
    }

    /// Returns the number of requests of a benchmark; `None` if the job does not state it.
    pub(super) fn benchmark_requests(&self, check: Validator<'_>) -> Result<Option<u64>, JobError> {
        self.requests.as_ref().map(|requests| check.count_up_to("requests", requests, MAX_REQUESTS)).transpose()
    }

    /// Returns the arrivals at `request_rate`; `None` if the job does not state it.
    pub(super) fn open_loop(&self, check: Validator<'_>, max_num_seqs: u64) -> Result<Option<OpenLoop>, JobError> {
        let Some(rate) = &self.request_rate else {
            return match (&self.burstiness, &self.slo_statistic) {
                (Some(burstiness), _) => {
                    let message = "burstiness: only valid with `request_rate`";
                    Err(check.error(burstiness.span(), message.to_owned()))
                }
                (_, Some(statistic)) if *statistic.get_ref() != LatencyStatistic::Mean => {
                    let message = "slo_statistic: only the mean is known without `request_rate`";
                    Err(check.error(statistic.span(), message.to_owned()))
                }
                _ => Ok(None),
            };
        };
        if let Some(lengths) = &self.lengths {
            let message = "lengths: for a fixed concurrency only: give quantiles of prompt_tokens and output_tokens";
            return Err(check.error(lengths.span(), message.to_owned()));
        }
        let rate = check.number_in_range("request_rate", &Some(rate.clone()), RATES, 1.0)?;
        let requests = self.benchmark_requests(check)?;
        Ok(Some(OpenLoop { mean_gap: Picos((1e12 / rate).round() as u64), requests, max_num_seqs }))
    }

    /// Returns the shape of the distribution of gaps between arrivals.
    pub(super) fn burstiness(&self, check: Validator<'_>) -> Result<f64, JobError> {
        check.number_in_range("burstiness", &self.burstiness, BURSTINESS, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Arrivals, Job, Limits};
    use super::super::read_job;
    use super::super::serving_tests::{served, text};
    use super::*;

    #[test]
    fn arrivals_at_a_rate_are_read() {
        let job = served(
            "request_rate = 4\nburstiness = 0.5\nprompt_tokens = [10, 100, 1000]\noutput_tokens = [50, 150]\n\
             max_num_seqs = 64\nttft_s = 0.5\nslo_statistic = \"p99\"\n",
        );
        let expected = OpenLoop { mean_gap: Picos(250_000_000_000), requests: None, max_num_seqs: 64 };
        assert_eq!(job.arrivals, Arrivals::OpenLoop(expected));
        assert_eq!((expected.rate(), job.variation.burstiness), (4.0, 0.5));
        assert_eq!((job.prompt_tokens, job.output_tokens, job.model.seq), (303, 100, 1150));
        let expected = Limits { ttft: Some(Picos(500_000_000_000)), tpot: None, statistic: LatencyStatistic::P99 };
        assert_eq!(job.limits, expected);
        let benchmark = served("request_rate = 1\nrequests = 500\n");
        let Arrivals::OpenLoop(open) = benchmark.arrivals else { panic!() };
        assert_eq!((open.requests, open.max_num_seqs), (Some(500), 1024));
    }

    #[test]
    fn contradicting_keys_of_arrivals_are_rejected() {
        for (lines, location, expected) in [
            ("request_rate = 0", "job.toml:2:16", "request_rate: 0 is not from 0.001 to"),
            ("request_rate = 1\nconcurrency = 3", "job.toml:3:15", "`request_rate` is given as well"),
            ("request_rate = 1\nlengths = \"equal\"", "job.toml:3:11", "for a fixed concurrency only"),
            ("request_rate = 1\nrequests = 1000000", "job.toml:3:12", "from 1 to 100000"),
            ("request_rate = 1\nprompt_tokens = [9, 8]", "job.toml:3:17", "quantiles increase"),
            ("request_rate = 1\nprompt_tokens = []", "job.toml:3:17", "quantiles increase"),
            ("request_rate = 1\nprompt_tokens = [0, 8]", "job.toml:3:17", "from 1 to"),
            ("request_rate = 1\nprompt_tokens = \"8\"", "job.toml:3:17", "or a list of quantiles"),
            ("request_rate = 1\ndisaggregation = \"prefill\"", "job.toml:3:18", "the first token only"),
            (
                "request_rate = 1\ndisaggregation = \"decode\"\noutput_tokens = [1, 9]",
                "job.toml:3:18",
                "output_tokens of 2 or more",
            ),
            ("prompt_tokens = [8, 9]", "job.toml:2:17", "need the `request_rate`"),
            ("burstiness = 2", "job.toml:2:14", "only valid with `request_rate`"),
            ("slo_statistic = \"p90\"", "job.toml:2:17", "only the mean is known"),
        ] {
            let error = read_job(&text(&format!("{lines}\n")), "job.toml").unwrap_err().to_string();
            assert!(error.starts_with(&format!("{location}: ")) && error.contains(expected), "{lines}: {error}");
        }
        assert!(matches!(read_job(&text("slo_statistic = \"mean\"\n"), "job.toml"), Ok(Job::Inference(_))));
    }
}
