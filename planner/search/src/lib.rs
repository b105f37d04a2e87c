//! Search for the best strategy of each call ([`plan`]) among its candidates ([`candidates`]), and plans in the file formats that
//! libraries load ([`export`]).
//!
//! Times are never predicted by a formula; every time comes from a simulation. A candidate whose lower bound exceeds the
//! best time is not simulated.
#![warn(missing_docs)]

pub mod candidates;
pub mod export;
pub mod plan;
