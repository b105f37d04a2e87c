//! Collective algorithms, strategies, and lower bounds on their completion time.
//!
//! This crate contains the generators that write schedules ([`algorithm`], one file each), strategies and the table of
//! valid combinations ([`strategy`]), the capabilities of a fabric that they depend on ([`capabilities`]), and lower
//! bounds on the completion time of any schedule ([`bound`]).
//!
//! ```text
//! Strategy, Call ─► algorithm::generator ─► Schedule
//! Fabric, Router ─► bound::Bounds ─► lower bound of a call
//! ```
#![warn(missing_docs)]

pub mod algorithm;
pub mod bound;
pub mod capabilities;
pub mod strategy;
