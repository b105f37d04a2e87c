//! Schedules of collectives, and their simulator.
//!
//! This crate contains the [`schedule`] language (operations of every rank, their peers and dependencies), its
//! verification ([`verify`]: a schedule computes the collective, without races and deadlocks), the discrete-event
//! [`engine`] with max–min [`sharing`] of every capacity of a fabric, and the [`Profile`](profile::Profile) of software
//! costs.
//!
//! It never selects: algorithms and strategies belong to the planner, and no code here refers to one by name. It never
//! reads a wall clock, and its results depend only on its input: not on threads, event order or id numbering.
//!
//! ```text
//! Generate (a planner's generator, or a Schedule from a file)
//!    │ expand            │ lower: routes, capacities, costs (Fabric × Profile)
//!    ▼                   ▼
//! Schedule ─► verify   Workload ─► engine ⇄ sharing ─► Timeline
//! ```
#![warn(missing_docs)]

mod back_to_back;
pub mod breakdown;
pub mod critical;
pub mod engine;
pub mod flows;
pub mod fold;
pub mod load;
pub mod lower;
pub mod profile;
pub mod quantity;
pub mod schedule;
pub mod sharing;
mod simulate_error;
pub mod spans;
pub mod template;
pub mod timeline;
pub mod utilization;
pub mod verify;

pub use back_to_back::back_to_back_time;
pub use lower::ScheduleInstance;
pub use simulate_error::SimulateError;
pub use timeline::{Folding, LaunchMode, SimulationOptions, Timeline, simulate, simulate_concurrent};
