//! Algorithms, strategies, lower bounds, and plans for collective communication.
//!
//! This crate contains the generators that write schedules ([`algorithm`], one file each), strategies and the table of
//! valid combinations ([`strategy`]), lower bounds on completion time ([`bound`]), the search for the best strategy
//! ([`plan`]), and plans in the file formats that libraries load ([`export`]). It also covers jobs ([`job`]), the time
//! of a training step ([`step`]), inference serving ([`serve`]), and studies of machines for them ([`study`]).
//!
//! Communication time is never predicted by a formula; every time comes from a simulation. The crate never reads files
//! or accesses GPUs.
//!
//! ```text
//! Fabric, Profile, sizes ─► strategy::candidates ─► algorithm::generator ─► sim::simulate ─► Plan
//!                              bound::Bounds prunes what cannot be best ┘
//! ```
#![warn(missing_docs)]

pub mod abilities;
pub mod algorithm;
pub mod bound;
pub mod export;
pub mod job;
pub mod library;
pub mod mix;
pub mod plan;
pub mod serve;
pub mod step;
pub mod strategy;
pub mod study;
pub mod trace;
