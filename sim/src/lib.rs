//! Schedules of collectives, and the simulator that runs them.
//!
//! This crate owns the [`schedule`] language (what every rank sends, where, after what), its [`verify`] (does the
//! schedule compute the collective, without races and deadlocks), the discrete-event [`engine`] with max–min
//! [`sharing`] of every capacity of a fabric, and the [`Profile`](profile::Profile) (what software costs).
//!
//! It never chooses: algorithms and strategies live in the planner, and no code here knows one by name. It never reads
//! a wall clock, and its results depend on nothing but its input: not on threads, event order or id numbering.
//!
//! ```text
//! Generate (a planner's generator, or a Schedule from a file)
//!    │ expand            │ lower: routes, capacities, costs (Fabric × Profile)
//!    ▼                   ▼
//! Schedule ─► verify   Workload ─► engine ⇄ sharing ─► Timeline
//! ```
#![warn(missing_docs)]

pub mod breakdown;
pub mod critical;
pub mod engine;
pub mod flows;
pub mod fold;
mod in_a_row;
pub mod load;
pub mod lower;
pub mod profile;
pub mod quantity;
pub mod schedule;
pub mod sharing;
pub mod spans;
pub mod template;
pub mod timeline;
pub mod verify;

pub use in_a_row::time_in_a_row;
pub use lower::Party;
pub use timeline::{Folding, LaunchMode, SimulateError, Surroundings, Timeline, simulate, simulate_together};
