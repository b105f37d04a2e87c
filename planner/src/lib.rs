//! Entry points of the planner.
//!
//! | crate | subject |
//! |---|---|
//! | `fabricast-collectives` | algorithms, strategies, capabilities, lower bounds |
//! | `fabricast-libraries` | default choices of NCCL and Open MPI |
//! | `fabricast-search` | the best strategy of each call, and its export |
//! | `fabricast-workload` | jobs: parallelism, memory, traffic, traces |
//! | `fabricast-perf` | time of training steps, serving and traces |
//! | `fabricast-study` | machines compared for jobs |
//!
//! Each depends only on those above it. Their own documentation has the details.
#![warn(missing_docs)]

pub use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
pub use fabricast_collectives::bound::{Bound, Bounds};
pub use fabricast_collectives::strategy::Strategy;
pub use fabricast_libraries::{Choice, Library};
pub use fabricast_search::plan::{Plan, PlanRequest, plan};
pub use fabricast_study::{Study, read_study};
