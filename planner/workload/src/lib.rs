//! Workloads: jobs with their parallelism, memory and traffic ([`job`]), and recorded traces ([`trace`]).
//!
//! The crate reads text, never files.
#![warn(missing_docs)]

pub mod job;
pub mod trace;
