//! Performance of workloads on a fabric: training steps ([`step`]), inference serving ([`serve`]) and recorded traces
//! ([`replay`]), and the calls that they make ([`call_mix`]).
#![warn(missing_docs)]

pub mod call_mix;
pub mod replay;
pub mod serve;
pub mod step;
