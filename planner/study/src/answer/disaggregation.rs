//! Separate GPUs for prefill and for decode in `results.json`.

use fabricast_perf::serve::{DisaggregatedService, PoolService, TransferService};
use fabricast_topologies::Bytes;
use fabricast_workload::job::Zero;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ParallelRow;
use crate::prediction::ShardedLayout;
use crate::quantities::{from_seconds, seconds};

/// GPUs for prefill and for decode, and the transfer of keys and values between them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DisaggregationRow {
    /// GPUs for prefill.
    pub prefill: PoolRow,
    /// GPUs for decode.
    pub decode: PoolRow,
    /// Transfer between them.
    pub transfer: TransferRow,
    /// GPUs for prefill per GPU for decode with which both serve the same number of requests per second.
    pub balanced_prefill_per_decode: f64,
}

/// GPUs of one part of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolRow {
    /// Number of GPUs.
    pub gpus: u64,
    /// Parallel layout on these GPUs.
    pub parallel: ParallelRow,
    /// Requests per second at full load.
    pub requests_per_s: f64,
    /// Mean number of requests.
    pub requests: u64,
}

/// Transfer of the keys and values of a prompt of mean length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TransferRow {
    /// Bytes that all ranks receive.
    pub bytes: u64,
    /// Time if no other request is transferred, in seconds.
    pub time_s: f64,
    /// Part of the time that prefill does not hide, in seconds.
    pub exposed_s: f64,
    /// Requests per second that the links carry.
    pub requests_per_s: f64,
    /// Share of the time in which the busiest link transfers keys and values, 0 to 1.
    pub link_share: f64,
}

impl DisaggregationRow {
    pub(super) fn new(service: &DisaggregatedService) -> Self {
        let DisaggregatedService { prefill, decode, transfer } = service;
        Self {
            prefill: PoolRow::new(prefill),
            decode: PoolRow::new(decode),
            transfer: TransferRow {
                bytes: transfer.bytes.0,
                time_s: seconds(transfer.time),
                exposed_s: seconds(transfer.exposed),
                requests_per_s: transfer.capacity,
                link_share: transfer.link_share,
            },
            balanced_prefill_per_decode: service.balanced_ratio(),
        }
    }

    pub(super) fn service(&self) -> DisaggregatedService {
        let TransferRow { bytes, time_s, exposed_s, requests_per_s, link_share } = self.transfer;
        DisaggregatedService {
            prefill: self.prefill.service(),
            decode: self.decode.service(),
            transfer: TransferService {
                bytes: Bytes(bytes),
                time: from_seconds(time_s),
                exposed: from_seconds(exposed_s),
                capacity: requests_per_s,
                link_share,
            },
        }
    }
}

impl PoolRow {
    fn new(pool: &PoolService) -> Self {
        Self {
            gpus: pool.ranks.into(),
            parallel: ParallelRow::new(&ShardedLayout { layout: pool.layout, zero: Zero::None }),
            requests_per_s: pool.capacity,
            requests: pool.requests,
        }
    }

    fn service(&self) -> PoolService {
        PoolService {
            ranks: u32::try_from(self.gpus).unwrap_or(u32::MAX),
            layout: self.parallel.sharded_layout().layout,
            capacity: self.requests_per_s,
            requests: self.requests,
        }
    }
}
