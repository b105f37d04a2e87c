//! Latencies of requests: their mean and percentiles.

use fabricast_topologies::Picos;
use fabricast_workload::job::LatencyStatistic;

use super::request_source::Request;

/// Times of a request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestTimes {
    pub request: Request,
    /// Time of the first token; `None` if it was computed elsewhere.
    pub first_token: Option<Picos>,
    /// Time of the last token.
    pub end: Picos,
}

impl RequestTimes {
    /// Delays tokens that exist at `from` to `until`.
    pub(super) fn delay(&mut self, from: Picos, until: Picos) {
        for time in self.first_token.iter_mut().chain([&mut self.end]).filter(|time| **time == from) {
            *time = until;
        }
    }
}

/// Distribution of a latency over requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencySummary {
    /// Mean.
    pub mean: Picos,
    /// Median.
    pub p50: Picos,
    /// 90th percentile.
    pub p90: Picos,
    /// 99th percentile.
    pub p99: Picos,
}

impl LatencySummary {
    /// Summarizes latencies in any order; `None` if there are none. The percentile `p` is the smallest latency that at least
    /// `p` % of the requests do not exceed.
    fn new(mut latencies: Vec<Picos>) -> Option<Self> {
        latencies.sort_unstable();
        let count = latencies.len();
        let percentile = |percent: usize| latencies.get((count * percent).div_ceil(100).max(1) - 1).copied();
        let mean = latencies.iter().map(|latency| latency.0 as f64).sum::<f64>() / count as f64;
        let mean = Picos(mean.round() as u64);
        Some(Self { mean, p50: percentile(50)?, p90: percentile(90)?, p99: percentile(99)? })
    }

    /// Returns one of the statistics.
    #[must_use]
    pub fn statistic(&self, statistic: LatencyStatistic) -> Picos {
        match statistic {
            LatencyStatistic::Mean => self.mean,
            LatencyStatistic::P50 => self.p50,
            LatencyStatistic::P90 => self.p90,
            LatencyStatistic::P99 => self.p99,
        }
    }
}

/// Latencies of the requests of an open loop, each from the time at which the request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLatencies {
    /// Time to first token; `None` if it is computed elsewhere.
    pub ttft: Option<LatencySummary>,
    /// Mean time per output token of a request, after the first; `None` if there is only one.
    pub tpot: Option<LatencySummary>,
    /// Time to the last token.
    pub latency: LatencySummary,
}

impl RequestLatencies {
    /// Summarizes the times of requests; `None` if there are none. Without a first token, the time per output token counts
    /// from the arrival, with its wait.
    pub(super) fn new(times: &[RequestTimes]) -> Option<Self> {
        let ttft = times.iter().filter_map(|times| Some(times.first_token? - times.request.arrival)).collect();
        let tpot = times.iter().filter(|times| times.request.output > 1).map(|times| {
            let first = times.first_token.unwrap_or(times.request.arrival);
            Picos((times.end - first).0 / (times.request.output - 1))
        });
        let latency = times.iter().map(|times| times.end - times.request.arrival).collect();
        Some(Self {
            ttft: LatencySummary::new(ttft),
            tpot: LatencySummary::new(tpot.collect()),
            latency: LatencySummary::new(latency)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_latencies() {
        let summary = LatencySummary::new((1..=200).rev().map(Picos).collect()).unwrap();
        assert_eq!(summary, LatencySummary { mean: Picos(101), p50: Picos(100), p90: Picos(180), p99: Picos(198) });
        let one = LatencySummary::new(vec![Picos(7)]).unwrap();
        assert_eq!(one, LatencySummary { mean: Picos(7), p50: Picos(7), p90: Picos(7), p99: Picos(7) });
        assert_eq!(LatencySummary::new(vec![]), None);
    }
}
