//! Performance of workloads on a fabric: training steps ([`step`]), inference serving ([`serve`]) and recorded traces
//! ([`replay`]), the calls that they make ([`call_mix`]) and what those cost ([`communication`]).
#![warn(missing_docs)]

pub mod call_mix;
pub mod communication;
pub mod replay;
pub mod serve;
pub mod step;
mod time;
