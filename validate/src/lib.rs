//! Access to real GPUs, and comparison of measurements with predictions.
//!
//! This crate contains all code that uses a GPU or a measurement: the CUDA driver layer (cudarc, loaded at run time),
//! the readers of [`measured`] data (logs, manifests), and the comparison of predictions with them. Apart from the
//! tuner plugin, it is the only crate that may use `unsafe`. The crate reports results and makes no decisions. Without
//! a driver, every entry point returns an error; missing hardware never causes a panic.
//!
//! # Example
//!
//! Compares a log of nccl-tests on eight H200 with predictions. The algorithm and protocol were forced. The example
//! needs no GPU.
//!
//! ```
//! use std::path::Path;
//!
//! use fabricast_topologies::route::RouteOptions;
//! use fabricast_sim::monitor::Monitor;
//! use fabricast_validate::compare::{ComparisonRequest, Explanations, FastestPlanned, compare};
//! use fabricast_validate::measured::manifest;
//!
//! let text = r#"
//! [[measurement]]
//! file = "logs-repeat/g_allreduce_x8_Ring_LL.txt"
//! fabric = "hgx-h200"
//! nodes = 1
//! gpus = 8
//! algorithm = "ring"
//! protocol = "ll"
//! "#;
//! let entries = manifest::read(text, "manifest.toml")?;
//! let loaded = manifest::measure(&entries, Path::new("data/h200-node"))?;
//! let comparison = compare(&ComparisonRequest {
//!     measurements: &loaded.measurements,
//!     profile: None,
//!     choice: &FastestPlanned,
//!     routes: RouteOptions::default(),
//!     explanations: Explanations::None,
//!     monitor: Monitor::default(),
//! })?;
//! assert_eq!(comparison.summary.rows, 26);
//! assert!(comparison.summary.median < 0.1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

pub mod ab_test;
pub mod calibrate;
pub mod compare;
pub mod cuda;
pub mod exchange;
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
