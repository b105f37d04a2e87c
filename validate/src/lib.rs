//! Access to real GPUs, and comparison of measurements with predictions.
//!
//! This crate owns everything that uses a GPU or a measurement: the CUDA driver layer (cudarc, loaded at run time), and
//! [`measured`] data: logs, manifests, and the comparison of predictions with them. It is the only crate, besides the
//! tuner plugin, that may use `unsafe`. It only reports; the planner and the user decide. Without a driver every entry
//! point returns an error; missing hardware never causes a panic.
#![warn(missing_docs)]

pub mod ab_test;
pub mod calibrate;
pub mod compare;
pub mod cuda;
pub mod execute;
pub mod gpu;
pub mod kernel;
pub mod measured;
pub mod measured_strategy;
mod measurement_simulation;
pub mod nccl;
mod nvml;
pub mod nvshmem;
pub mod shared_library;
