//! The GPUs of this machine: what they are, how fast they and their links are, and whether that is as it should be.

pub mod bench;
pub mod doctor;
pub mod probe;

pub use probe::{Choices, Probe, probe};
