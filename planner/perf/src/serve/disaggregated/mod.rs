//! Service of a job whose prefill and decode run on separate GPUs, with a transfer of keys and values between them.
//!
//! ```text
//! prefill pool ─► kv_transfer: flows on the fabric ─► decode pool
//!   load_curve: requests of a closed loop in each part    open_loop::tandem: requests that arrive at a rate
//! ```
//!
//! Each pool serves its part of the requests as a job of its own: prefill up to the first token, decode of the others
//! ([`Serving::prefill_part`](fabricast_workload::job::Serving::prefill_part) and `decode_part`). All parts see the same
//! requests per second. A request waits for its transfer unless prefill of later layers or chunks hides it.

mod kv_transfer;
mod load_curve;
mod pools;
mod sequence;
#[cfg(test)]
mod tests;

use fabricast_topologies::{Bytes, Picos};
use fabricast_workload::job::Layout;

pub(super) use pools::best_disaggregated_service;
pub use pools::check_pools;

/// Service of a job with separate GPUs for prefill and decode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DisaggregatedService {
    /// GPUs for prefill.
    pub prefill: PoolService,
    /// GPUs for decode.
    pub decode: PoolService,
    /// Transfer of keys and values between them.
    pub transfer: TransferService,
}

/// Service of the GPUs of one part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolService {
    /// Number of GPUs.
    pub ranks: u32,
    /// Layout on these GPUs.
    pub layout: Layout,
    /// Requests per second at full load.
    pub capacity: f64,
    /// Mean number of requests, rounded; at least 1.
    pub requests: u64,
}

/// Transfer of the keys and values of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferService {
    /// Bytes of a request with a prompt of mean length.
    pub bytes: Bytes,
    /// Time of such a transfer if no other request is transferred.
    pub time: Picos,
    /// Part of the time that prefill does not hide.
    pub exposed: Picos,
    /// Requests per second that the links carry with all replicas.
    pub capacity: f64,
    /// Share of the time in which the busiest link transfers keys and values.
    pub link_share: f64,
}

impl DisaggregatedService {
    /// Returns the GPUs for prefill per GPU for decode with which both have the same capacity.
    #[must_use]
    pub fn balanced_ratio(&self) -> f64 {
        let per_rank = |pool: &PoolService| pool.capacity / f64::from(pool.ranks.max(1));
        per_rank(&self.decode) / per_rank(&self.prefill).max(f64::MIN_POSITIVE)
    }
}
