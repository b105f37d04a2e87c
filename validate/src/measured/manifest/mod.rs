//! Manifests: TOML files that describe logs.
//!
//! [`read`] parses a manifest and reports faults with their source location. [`load`] also loads the logs and
//! fabrics, and checks the manifest against the logs' own headers.

mod assumptions;
mod contradictions;
mod entry;
mod load;
mod missing;
mod read;

use std::path::PathBuf;
use std::sync::Arc;

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::bound::InNetwork;
use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::{Collective, DataType, Protocol};
use fabricast_topologies::{Fabric, FabricRequest, SourceLocation};

use super::{LogContext, MeasuredLibrary, RejectedRow, Row};
pub use contradictions::{Contradiction, contradictions};
pub use entry::{Located, ManifestEntry};
pub use load::{LoadedManifest, load, measure};
pub use read::read;

/// One table of a log with its fabric and configuration.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Source location of the manifest entry; without a manifest, that of the log.
    pub location: SourceLocation,
    /// Path of the log.
    pub file: PathBuf,
    /// Name of the log, as given in the manifest or on the command line.
    pub name: String,
    /// Request that loads the fabric.
    pub request: FabricRequest,
    /// Fabric of the hosts and GPUs that were measured.
    pub fabric: Arc<Fabric>,
    /// Configuration that was measured.
    pub configuration: Configuration,
    /// Use of the measurement: fit or check.
    pub role: Role,
    /// Free text about the measurement.
    pub notes: Notes,
    /// Assumptions and remarks about the log.
    pub context: LogContext,
    /// Usable rows, in the order of the log.
    pub rows: Vec<Row>,
    /// Rows of the log that cannot be used.
    pub rejected: Vec<RejectedRow>,
}

impl Measurement {
    /// Returns the value of a variable of the environment, from the description of the measurement (the last one, as in a
    /// shell) or from NCCL's messages in its log.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        let described = self.configuration.env.iter().rev().find(|(known, _)| known == name);
        described.map(|(_, value)| value.as_str()).or_else(|| self.context.report.variable(name))
    }

    /// Number of ranks, which equals the number of GPUs.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.configuration.nodes * self.configuration.gpus
    }

    /// Ratio of bus bandwidth to algorithm bandwidth of the collective on these ranks, as nccl-tests defines it.
    #[must_use]
    pub fn bus_factor(&self) -> f64 {
        self.configuration.collective.busbw_factor(self.ranks())
    }

    /// Element type of a row: that of the row if it states one, otherwise that of the configuration.
    #[must_use]
    pub fn dtype(&self, row: &Row) -> DataType {
        row.dtype.unwrap_or(self.configuration.dtype)
    }
}

/// Configuration of a run: all properties, other than fabric and message size, that affect its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Number of hosts.
    pub nodes: u32,
    /// Number of GPUs per host.
    pub gpus: u32,
    /// Collective that was measured.
    pub collective: Collective,
    /// Algorithm that was forced; `None` if the library chose it.
    pub algorithm: Option<Algorithm>,
    /// Protocol that was forced; `None` if the library chose it.
    pub protocol: Option<Protocol>,
    /// Number of channels that was forced; `None` if the library chose it.
    pub channels: Option<u16>,
    /// Library that was measured; `None` to assume the NCCL version of the profile that best matches the fabric.
    pub library: Option<MeasuredLibrary>,
    /// In-network reduction and multicast by switches, on or off.
    pub in_network: InNetwork,
    /// Registration of buffers with the library.
    pub registered: RegistrationKind,
    /// Launch mode: CUDA graph or one launch per call.
    pub launch: Launch,
    /// Process layout: one process per GPU or one for all GPUs of a host.
    pub processes: Processes,
    /// Element type of rows that do not name one.
    pub dtype: DataType,
    /// Environment variables of the library and their values, in the order given.
    pub env: Vec<(String, String)>,
}

/// Registration of buffers with a library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RegistrationKind {
    /// Buffers are not registered.
    #[default]
    Plain,
    /// Buffers are registered as symmetric windows (nccl-tests `-R 2`).
    Symmetric,
}

/// Use of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The measurement is used to fit profiles.
    #[default]
    Fit,
    /// The measurement is used to check profiles. A fit never uses it.
    Check,
}

/// Free text, stored verbatim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Machines that were measured.
    pub hardware: Option<String>,
    /// Name of the cluster. Needed if several measurements of a cluster describe its hardware differently.
    pub cluster: Option<String>,
    /// Origin of the measured times.
    pub source: Option<String>,
    /// Software versions and flags.
    pub software: Option<String>,
    /// Remarks for which no other key exists.
    pub note: Option<String>,
}

const REGISTERED: [(RegistrationKind, &str); 2] =
    [(RegistrationKind::Plain, "plain"), (RegistrationKind::Symmetric, "symmetric")];
const ROLES: [(Role, &str); 2] = [(Role::Fit, "fit"), (Role::Check, "check")];
const LAUNCHES: [(Launch, &str); 2] = [(Launch::Graph, "graph"), (Launch::Stream, "stream")];
const PROCESSES: [(Processes, &str); 2] = [(Processes::PerGpu, "per_gpu"), (Processes::Single, "single")];

/// Name of a launch mode in manifests: `graph` or `stream`.
#[must_use]
pub fn launch_name(launch: Launch) -> &'static str {
    LAUNCHES.iter().find(|row| row.0 == launch).map_or("", |row| row.1)
}

/// Name of a process layout in manifests: `per_gpu` or `single`.
#[must_use]
pub fn processes_name(processes: Processes) -> &'static str {
    PROCESSES.iter().find(|row| row.0 == processes).map_or("", |row| row.1)
}
