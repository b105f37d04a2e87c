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
//!
//! # Example
//!
//! Two GPUs send each other 900 kB. The schedule is read from a text, verified, and simulated without software costs:
//! two links of 250 ns each, and 900 kB at 450 GB/s.
//!
//! ```
//! use fabricast_sim::engine::Watch;
//! use fabricast_sim::lower::Environment;
//! use fabricast_sim::profile::Profile;
//! use fabricast_sim::schedule::format;
//! use fabricast_sim::verify::{VerifyOptions, verify};
//! use fabricast_sim::{LaunchMode, SimulationOptions, simulate};
//! use fabricast_topologies::route::{RouteOptions, Router};
//! use fabricast_topologies::{FabricRequest, Picos, load};
//!
//! let text = r#"{"fabricast_schedule": 1, "name": "swap",
//!  "call": {"collective": "send_recv", "bytes": 900000, "ranks": 2, "root": 0, "buffers": "out_of_place"},
//!  "protocol": "simple", "channels": 1, "layout": [{"bytes": 900000, "parts": 1}], "scratch_chunks": 0, "programs": [
//!  [{"kind": "put", "len": 1, "channel": 0, "peer": 1, "src": ["input", 0], "dst": ["output", 0], "span": 1}],
//!  [{"kind": "put", "len": 1, "channel": 0, "peer": 0, "src": ["input", 0], "dst": ["output", 0], "span": 1}]]}"#;
//! let schedule = format::read(text, "swap.json")?;
//! assert_eq!(verify(&schedule, &VerifyOptions::default())?.operations, 2);
//!
//! let fabric = load(&FabricRequest::new("hgx-h200"))?;
//! let router = Router::new(&fabric, RouteOptions::default());
//! let (placement, profile) = (&fabric.gpus()[..2], Profile::ideal());
//! let setting = Environment { fabric: &fabric, router: &router, placement, profile: &profile, delays: &[] };
//! let timeline = simulate(&schedule, setting, LaunchMode::default(), SimulationOptions::default(), Watch::default())?;
//! assert_eq!(timeline.time, Picos::from_us(2.5));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

mod back_to_back;
pub mod breakdown;
pub mod certify;
pub mod critical;
pub mod engine;
pub mod flows;
pub mod fold;
pub mod load;
pub mod lower;
pub mod monitor;
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
