//! Manifests: what logs are logs of.
//!
//! [`read`] takes the text apart and says where something in it is wrong; [`load`] finds the logs and the fabrics, and
//! holds what the manifest says against what the logs say of themselves.

mod assumptions;
mod contradictions;
mod entry;
mod load;
mod missing;
mod read;

use std::path::PathBuf;
use std::sync::Arc;

use fabricast_planner::algorithm::Algorithm;
use fabricast_planner::bound::InNetwork;
use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::{Collective, DataType, Protocol};
use fabricast_topologies::{Fabric, FabricRequest, Place};

use super::{Library, LogContext, Rejected, Row};
pub use contradictions::{Contradiction, contradictions};
pub use entry::{Entry, Located};
pub use load::{Loaded, load, measure};
pub use read::read;

/// One table of a log, and what it is a log of.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Where the manifest speaks of it; for a log without a manifest, the log.
    pub place: Place,
    /// The log.
    pub file: PathBuf,
    /// The log as the manifest or the command line names it.
    pub name: String,
    /// The fabric as it was asked for.
    pub request: FabricRequest,
    /// The fabric: the hosts and GPUs that were measured.
    pub fabric: Arc<Fabric>,
    /// What ran.
    pub configuration: Configuration,
    /// What it is for.
    pub role: Role,
    /// What is kept as it stands.
    pub notes: Notes,
    /// Assumptions and remarks.
    pub context: LogContext,
    /// The rows, in the order of the log.
    pub rows: Vec<Row>,
    /// Rows of the log that cannot be used.
    pub rejected: Vec<Rejected>,
}

impl Measurement {
    /// How many ranks took part: one on each GPU.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.configuration.nodes * self.configuration.gpus
    }

    /// The element type of a row.
    #[must_use]
    pub fn dtype(&self, row: &Row) -> DataType {
        row.dtype.unwrap_or(self.configuration.dtype)
    }
}

/// What ran: all that a time depends on besides fabric and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Hosts.
    pub nodes: u32,
    /// GPUs of each.
    pub gpus: u32,
    /// The collective.
    pub collective: Collective,
    /// The algorithm that was forced; `None`: the library chose.
    pub algorithm: Option<Algorithm>,
    /// The protocol that was forced; `None`: the library chose.
    pub protocol: Option<Protocol>,
    /// Channels that were forced; `None`: the library chose.
    pub channels: Option<u16>,
    /// The library; `None`: NCCL, of the profile nearest to the fabric.
    pub library: Option<Library>,
    /// Whether switches may reduce and multicast.
    pub in_network: InNetwork,
    /// How buffers are registered with the library.
    pub registered: Registered,
    /// How calls were launched.
    pub launch: Launch,
    /// Who launched them.
    pub processes: Processes,
    /// The element type where rows do not say.
    pub dtype: DataType,
    /// Settings of the library, in the order given.
    pub env: Vec<(String, String)>,
}

/// How buffers are registered with a library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Registered {
    /// Not at all.
    #[default]
    Plain,
    /// As symmetric windows (nccl-tests `-R 2`).
    Symmetric,
}

/// What a measurement is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// To fit profiles to.
    #[default]
    Fit,
    /// To check them with; fitting never looks at it.
    Check,
}

/// Free text, kept as it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// The machines.
    pub hardware: Option<String>,
    /// Where the figures come from.
    pub source: Option<String>,
    /// Versions and flags.
    pub software: Option<String>,
    /// Anything else.
    pub note: Option<String>,
}

const REGISTERED: [(Registered, &str); 2] = [(Registered::Plain, "plain"), (Registered::Symmetric, "symmetric")];
const ROLES: [(Role, &str); 2] = [(Role::Fit, "fit"), (Role::Check, "check")];
const LAUNCHES: [(Launch, &str); 2] = [(Launch::Graph, "graph"), (Launch::Stream, "stream")];
const PROCESSES: [(Processes, &str); 2] = [(Processes::PerGpu, "per_gpu"), (Processes::Single, "single")];

/// As manifests write it.
#[must_use]
pub fn launch_name(launch: Launch) -> &'static str {
    LAUNCHES.iter().find(|row| row.0 == launch).map_or("", |row| row.1)
}

/// As manifests write it.
#[must_use]
pub fn processes_name(processes: Processes) -> &'static str {
    PROCESSES.iter().find(|row| row.0 == processes).map_or("", |row| row.1)
}
