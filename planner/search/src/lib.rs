//! Search for the best strategy of each call ([`plan`]) among its candidates ([`candidates`]), and plans in the file
//! formats that libraries load ([`export`]).
//!
//! ```text
//! call ─► candidates ─► lower bounds (prune) ─► simulation ─► Plan ─► export: tuning tables, schedules
//! ```
//!
//! No time is predicted by a formula: every time comes from a simulation or a measurement. A candidate whose lower
//! bound exceeds the best time is not simulated.
//!
//! # Example
//!
//! Plans an all_reduce of 1 GiB on eight H200: the selected strategy is within 1 % of the fastest candidate, and no
//! schedule is faster than the lower bound.
//!
//! ```
//! use fabricast_search::candidates::Restriction;
//! use fabricast_sim::monitor::Monitor;
//! use fabricast_search::plan::{Effort, PlanRequest, plan};
//! use fabricast_sim::LaunchMode;
//! use fabricast_sim::profile::Profile;
//! use fabricast_sim::schedule::{BufferUse, Collective};
//! use fabricast_topologies::route::{RouteOptions, Router};
//! use fabricast_topologies::{Bytes, FabricRequest, load};
//!
//! let fabric = load(&FabricRequest::new("hgx-h200"))?;
//! let router = Router::new(&fabric, RouteOptions::default());
//! let (profile, restriction) = (Profile::for_fabric(&fabric)?, Restriction::default());
//! let request = PlanRequest {
//!     fabric: &fabric, router: &router, placement: fabric.gpus(), profile: &profile, ranks_per_node: 8,
//!     mode: LaunchMode { gpus_per_host: 8, ..LaunchMode::default() },
//!     buffers: BufferUse::OutOfPlace, root: 0, matrix: None,
//!     collectives: &[Collective::AllReduce], sizes: &[Bytes(1 << 30)],
//!     restriction: &restriction, library: None, effort: Effort::Contenders,
//! };
//! let plan = plan(&request, Monitor::default())?;
//! let row = &plan.rows[0];
//! assert!(row.bound.time <= row.fastest.time && row.fastest.time <= row.pick.time);
//! assert!(row.pick.time.0 as f64 <= 1.01 * row.fastest.time.0 as f64);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

pub mod candidates;
pub mod export;
pub mod group_launch;
pub mod plan;
