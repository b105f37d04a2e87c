//! Entry points of the planner.
//!
//! | crate | subject |
//! |---|---|
//! | `fabricast-collectives` | algorithms, strategies, capabilities, lower bounds |
//! | `fabricast-experts` | dispatch and combine of expert parallelism |
//! | `fabricast-libraries` | default choices of NCCL and Open MPI |
//! | `fabricast-search` | search for the best strategy of each call, and export of plans |
//! | `fabricast-workload` | jobs: parallelism, memory, traffic, traces |
//! | `fabricast-perf` | time of training steps, serving and traces |
//! | `fabricast-study` | comparison of machines for a set of jobs |
//!
//! Each crate depends only on crates above it in the table. See the documentation of each crate for details.
//!
//! # Example
//! Compares a ring all_reduce with the fastest strategy of a plan and with the lower bound. Without software costs
//! (profile `ideal`), no strategy is faster than the plan's fastest candidate, and no candidate is faster than the
//! lower bound.
//!
//! ```
//! use fabricast_planner::{Algorithm, Plan, PlanRequest, Strategy, plan};
//! use fabricast_search::candidates::Restriction;
//! use fabricast_sim::monitor::Monitor;
//! use fabricast_search::plan::{Effort, StrategyCall, simulate_strategies};
//! use fabricast_sim::LaunchMode;
//! use fabricast_sim::profile::Profile;
//! use fabricast_sim::schedule::{BufferUse, Collective, Protocol};
//! use fabricast_topologies::route::{RouteOptions, Router};
//! use fabricast_topologies::{Bytes, FabricRequest, load};
//!
//! let fabric = load(&FabricRequest::new("hgx-h200"))?;
//! let router = Router::new(&fabric, RouteOptions::default());
//! let (profile, restriction) = (Profile::ideal(), Restriction::default());
//! let request = PlanRequest {
//!     fabric: &fabric, router: &router, placement: fabric.gpus(), profile: &profile, ranks_per_node: 8,
//!     mode: LaunchMode { gpus_per_host: 8, ..LaunchMode::default() },
//!     buffers: BufferUse::OutOfPlace, root: 0, matrix: None,
//!     collectives: &[Collective::AllReduce], sizes: &[Bytes(1 << 20)],
//!     restriction: &restriction, library: None, effort: Effort::Contenders,
//! };
//! let Plan { rows, .. } = plan(&request, Monitor::default())?;
//! let strategy =
//!     Strategy::new(Algorithm::Ring, Protocol::Simple, 1);
//! let calls = [StrategyCall { collective: Collective::AllReduce, bytes: Bytes(1 << 20), strategy }];
//! let ring = simulate_strategies(&request, &calls, Monitor::default())?.remove(0)?;
//! assert!(rows[0].bound.time <= rows[0].fastest.time && rows[0].fastest.time <= ring.time);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

pub use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
pub use fabricast_collectives::bound::{Bound, Bounds};
pub use fabricast_collectives::strategy::Strategy;
pub use fabricast_libraries::{Choice, Library};
pub use fabricast_search::plan::{Plan, PlanRequest, plan};
pub use fabricast_study::{Study, read_study};
