//! Prediction of RCCL's algorithm, protocol and channels on hosts of eight AMD Instinct GPUs, by version.
//!
//! RCCL is a fork of NCCL with a different cost model. Its estimates of rings and trees come from tables for each GPU
//! architecture, and byte ranges ([`Tuning`]) override the lowest estimate. RCCL has two additional implementations of
//! collectives: MSCCL's kernels for small all_reduce inside a host, and sends for small all_gather.
//!
//! ```text
//! RcclHosts (architecture, ranks, hosts, NICs) ─► Estimates ─► cheapest algorithm and protocol
//!     ─► protocol by byte ranges ─► channels by bytes per thread ─► Choice
//! ```
//!
//! Sources: RCCL 2.21.5 (github.com/ROCm/rccl, commit 0cbce2a7, 2024-10), `src/rccl_wrap.cc` of 2.27.7 (commit
//! 00c78b70), `src/graph/tuning.cc` of 2.26.6 and of 2.28.3 (github.com/ROCm/rocm-systems, projects/rccl, commit
//! a4cd4445), and CHANGELOG.md of the latter, which dates the changes between them. Each module names its files.

mod hosts;
mod select;
mod sends;
mod time;
mod tuning;
mod version;

pub use hosts::{Architecture, HostsNotModelled, RcclHosts};
pub use select::{RcclPick, choose};
pub use time::Estimates;
pub use tuning::{ByteRange, Tuning};
pub use version::{RcclVersion, UnknownRcclVersion};
