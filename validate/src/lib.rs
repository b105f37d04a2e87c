//! Real GPUs and what was measured on them.
//!
//! This crate owns everything that touches a GPU or a measurement: the driver layer (cudarc, loaded at run time), and
//! [`measured`] data: logs, manifests, and how predictions compare with them. It is the only crate, besides the tuner
//! plugin, that may use `unsafe`. It never decides anything: it reports, and the planner and the user decide. Without a
//! driver every entry point returns an error; nothing here panics for want of hardware.
#![warn(missing_docs)]

pub mod calibrate;
pub mod compare;
pub mod cuda;
pub mod execute;
pub mod gpu;
pub mod kernel;
pub mod measured;
pub mod nccl;
mod nvml;
pub mod nvshmem;
pub mod prove;
mod rerun;
pub mod shared_library;
pub mod strategy_of;
