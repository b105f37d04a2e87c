//! Real GPUs: what is there, what runs, what was measured.
//!
//! This crate owns everything that touches a GPU or a measurement: the driver layer (cudarc, loaded at run time), and
//! the measured data in `validate/data`. It is the only crate, besides the tuner plugin, that may use `unsafe`. It
//! never decides anything: it reports, and the planner and the user decide. Without a driver every entry point returns
//! an error; nothing here panics for want of hardware.
#![warn(missing_docs)]

pub mod gpu;
