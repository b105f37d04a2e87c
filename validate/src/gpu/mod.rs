//! The GPUs of this machine: inventory, performance of GPUs and links, and diagnosis.

pub mod bench;
pub mod doctor;
pub mod probe;

pub use probe::{Choices, Probe, probe};
