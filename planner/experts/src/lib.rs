//! Dispatch and combine of mixture-of-experts layers: traffic of routed tokens, completion time, lower bound.
//!
//! Dispatch sends every token to the GPUs that hold its experts; combine sums the results on the token's GPU. Both are
//! an all_to_allv ([`Traffic::matrix`]), with two differences: a token with several experts behind the same network
//! port need cross the network only once, and a combine can sum partial results on the way.
//!
//! ```text
//! routing ─► probability that a token has an expert on a rank, in an NVLink domain
//! ranks   ─► ranks by NVLink domain          ├─► traffic ─► link_load ─┬─► exchange: time of a kernel, by part
//! token   ─► bytes of a token                ┘              costs ─────┘   bound: lower bound of any kernel
//! kernel  ─► structure of each library's kernels, as its source has it
//! ```
//!
//! **Invariants**: No predicted time is below [`Exchange::bound`]. Structure (warps, chunks, rounds, launches) follows
//! the source of each library; the only fitted values are those of [`ExchangeCosts`], which all libraries share.
//!
//! # Example
//!
//! A dispatch of DeepEP on two hosts: each token crosses the network at most once, for any number of experts.
//!
//! ```
//! use fabricast_experts::{Exchange, ExchangeCosts, ExchangeKernel, ExchangeRanks, Operation};
//! use fabricast_experts::{RoutingPattern, Timing, TokenRouting, TokenType};
//! use fabricast_sim::profile::Profile;
//! use fabricast_topologies::route::{RouteOptions, Router};
//! use fabricast_topologies::{FabricRequest, load};
//!
//! let fabric = load(&FabricRequest { nodes: Some(2), ..FabricRequest::new("hgx-h100") })?;
//! let router = Router::new(&fabric, RouteOptions::default());
//! let profile = Profile::for_fabric(&fabric)?;
//! let ranks = ExchangeRanks::new(&router, fabric.gpus())?;
//! let routing = TokenRouting::new(4096, 7168, 256, 8, RoutingPattern::Random)?;
//! let exchange = Exchange {
//!     router: &router, ranks: &ranks, links: &profile.links, routing: &routing,
//!     kernel: ExchangeKernel::DeepEp, sms: Some(24),
//! };
//! let load = exchange.load(Operation::Dispatch, TokenType::Fp8)?;
//! let time = exchange.time(&load, &ExchangeCosts::FITTED, Timing::Kernel);
//! assert!(exchange.bound(Operation::Dispatch, TokenType::Fp8)? < time.total());
//! assert!(exchange.domains_per_token() < 2.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

mod bound;
mod costs;
mod error;
mod exchange;
mod exchange_time;
mod kernel;
mod kernel_time;
mod link_load;
mod ranks;
mod requirements;
mod routing;
#[cfg(test)]
mod tests;
mod token;
mod traffic;

pub use costs::{CostParameter, ExchangeCosts, ExchangeExtent};
pub use error::ExchangeError;
pub use exchange::{Exchange, ExchangeLoad, PairBytes};
pub use exchange_time::{ExchangePart, ExchangeTime, Timing};
pub use kernel::{ExchangeKernel, Operation};
pub use ranks::ExchangeRanks;
pub use requirements::{UnsupportedExchange, UnsupportedGpus};
pub use routing::{RoutingPattern, TokenRouting};
pub use token::TokenType;
pub use traffic::Traffic;
