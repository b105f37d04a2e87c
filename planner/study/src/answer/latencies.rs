//! Distributions of latencies over the requests of a job in `results.json`.

use fabricast_perf::serve::{LatencySummary, RequestLatencies};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantities::{from_seconds, seconds};

/// Distributions of latencies over the requests of a job that arrive at a mean rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatenciesRow {
    /// Time to first token; absent if it is computed elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_s: Option<LatencyRow>,
    /// Mean time per output token of a request, after the first; absent if there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpot_s: Option<LatencyRow>,
    /// Time to the last token.
    pub latency_s: LatencyRow,
}

/// Distribution of a latency, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyRow {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl LatenciesRow {
    pub(super) fn new(latencies: &RequestLatencies) -> Self {
        let RequestLatencies { ttft, tpot, latency } = latencies;
        Self {
            ttft_s: ttft.as_ref().map(LatencyRow::new),
            tpot_s: tpot.as_ref().map(LatencyRow::new),
            latency_s: LatencyRow::new(latency),
        }
    }

    pub(super) fn latencies(&self) -> RequestLatencies {
        RequestLatencies {
            ttft: self.ttft_s.as_ref().map(LatencyRow::summary),
            tpot: self.tpot_s.as_ref().map(LatencyRow::summary),
            latency: self.latency_s.summary(),
        }
    }
}

impl LatencyRow {
    fn new(summary: &LatencySummary) -> Self {
        let LatencySummary { mean, p50, p90, p99 } = *summary;
        Self { mean: seconds(mean), p50: seconds(p50), p90: seconds(p90), p99: seconds(p99) }
    }

    fn summary(&self) -> LatencySummary {
        let Self { mean, p50, p90, p99 } = *self;
        LatencySummary {
            mean: from_seconds(mean),
            p50: from_seconds(p50),
            p90: from_seconds(p90),
            p99: from_seconds(p99),
        }
    }
}
