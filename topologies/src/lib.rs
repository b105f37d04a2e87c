//! GPU fabrics as graphs.
//!
//! This crate owns the [`Fabric`]: a directed multigraph of devices (GPUs, NVSwitches, PCIe switches, CPUs, NICs,
//! network switches) and links, how it is read (presets, NCCL topology files, `nvidia-smi topo -m`, the TOML spec),
//! written, checked and routed, and the units that every other crate speaks ([`Bytes`], [`Bandwidth`], [`Picos`]).
//!
//! It never knows about collectives, schedules or time: a link has a bandwidth and a latency here, and nothing happens
//! on it. It never prints, and it never panics on what it reads: every reader returns an [`Error`] with the place.
//!
//! Data flows through it in one direction:
//!
//! ```text
//! text of a file ──► read::{nccl_xml, smi, spec} ──┐
//! preset (a spec that ships) ──────────────────────┼──► Fabric ──► route::Router ──► paths
//! [cluster]: preset × nodes on a network ──────────┘       └────► write::{nccl_xml, spec, dot, json}
//! ```
//!
//! [`load()`] is the front door: a preset's name or a file, then hosts, GPUs and network as asked for.
#![warn(missing_docs)]

#[cfg(test)]
mod arbitrary;
pub mod check;
pub mod cluster;
mod error;
pub mod fabric;
pub mod gpus;
mod json_text;
mod keys;
mod lines;
mod load;
mod network_spec;
pub mod partition;
pub mod preset;
pub mod read;
pub mod route;
mod units;
pub mod visible;
pub mod write;

pub use error::{Error, Origin, Place, Result};
pub use fabric::{Fabric, FabricBuilder, HostId, Link, LinkId, LinkKind, LinkSpec, Node, NodeId, NodeKind};
pub use lines::LineIndex;
pub use load::{FabricRequest, expand, load, read_as, read_text};
pub use network_spec::{ClusterSpec, NetworkKind, NetworkSpec};
pub use units::{Bandwidth, Bytes, Picos, UnitError};
