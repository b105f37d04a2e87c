//! GPU fabrics as graphs.
//!
//! This crate owns the [`Fabric`]: a directed multigraph of devices (GPUs, NVSwitches, PCIe switches, CPUs, NICs,
//! network switches) and links. It reads fabrics (presets, NCCL topology files, `nvidia-smi topo -m`, TOML specs),
//! writes them, checks them and routes between their devices. It also defines the units that all other crates use
//! ([`Bytes`], [`Bandwidth`], [`Picos`]).
//!
//! The crate has no notion of collectives, schedules or simulated time: a link has a bandwidth and a latency, and no
//! traffic. It never prints and never panics on input: every reader returns an [`Error`] with the source location.
//!
//! Data flows in one direction:
//!
//! ```text
//! text of a file ──► read::{nccl_xml, smi, spec} ──┐
//! preset (a built-in spec) ────────────────────────┼──► Fabric ──► route::Router ──► paths
//! [cluster]: preset × nodes on a network ──────────┘       └────► write::{nccl_xml, spec, dot, json}
//! ```
//!
//! [`load()`] is the entry point: it takes the name of a preset or the path of a file, and the requested hosts, GPUs
//! and network.
//!
//! # Example
//!
//! Reads a fabric of four GPUs from a text and replicates a preset over a network, then routes between GPUs.
//!
//! ```
//! use fabricast_topologies::route::{PathClass, RouteOptions, Router};
//! use fabricast_topologies::{Bandwidth, FabricRequest, Picos, load, read_text};
//!
//! let text = r#"
//!     name = "four"
//!     node = [{ id = "gpu[0-3]", kind = "gpu" }, { id = "nvswitch0", kind = "nvswitch" }]
//!     link = [{ a = "gpu[0-3]", b = "nvswitch0", kind = "nvlink", bandwidth = "450 GB/s", latency = "250 ns" }]
//! "#;
//! let fabric = read_text(text, "four.toml")?;
//! let router = Router::new(&fabric, RouteOptions::default());
//! let path = router.path(fabric.gpus()[0], fabric.gpus()[3])?;
//! assert_eq!((path.class, path.latency), (PathClass::Nvl, Picos::from_ns(500.0)));
//! assert_eq!(path.bandwidth, Some(Bandwidth::from_gb_per_s(450.0)));
//!
//! let cluster = load(&FabricRequest { nodes: Some(2), ..FabricRequest::new("hgx-h200") })?;
//! let router = Router::new(&cluster, RouteOptions::default());
//! let gpus = cluster.gpus();
//! assert_eq!(gpus.len(), 16);
//! assert_eq!(router.path(gpus[0], gpus[1])?.class, PathClass::Nvl);
//! assert_eq!(router.path(gpus[0], gpus[8])?.class, PathClass::Net);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

#[cfg(test)]
mod arbitrary;
pub mod check;
pub mod cluster;
mod error;
pub mod fabric;
pub mod gpus;
mod json_location;
mod keys;
mod lines;
mod load;
mod network_spec;
pub mod partition;
pub mod preset;
pub mod read;
pub mod route;
mod units;
pub mod variants;
pub mod visible;
pub mod write;

pub use error::{Error, Origin, Result, SourceLocation};
pub use fabric::{Fabric, FabricBuilder, HostDrives, HostId, Link, LinkId, LinkKind, LinkSpec, Node, NodeId, NodeKind};
pub use lines::LineIndex;
pub use load::{FabricRequest, expand, load, read_request, read_text};
pub use network_spec::{ClusterSpec, NetworkKind, NetworkSpec};
pub use units::{Bandwidth, Bytes, Picos, UnitError};
