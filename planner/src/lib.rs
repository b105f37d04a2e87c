//! Algorithms, strategies, bounds, and the plan.
//!
//! This crate owns the generators that write schedules ([`algorithm`], a file each), the strategies made of them
//! ([`strategy`], with the one table of which combinations exist), what no schedule can beat ([`bound`]), and the
//! search that picks ([`plan`]), and plans as the files that libraries load ([`export`]); jobs ([`job`]), the time of
//! a training step ([`step`]) and of answers ([`serve`]), and studies of machines for them ([`study`]).
//!
//! It never predicts the time of communication by formula: every price is a simulation. It never reads files or talks to GPUs.
//!
//! ```text
//! Fabric, Profile, sizes ─► strategy::candidates ─► algorithm::generator ─► sim::simulate ─► Plan
//!                                    bound::Bounds discards what cannot win ┘
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
