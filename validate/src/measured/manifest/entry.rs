//! A `[[measurement]]` as it stands, before files and fabrics are looked for.

use fabricast_planner::algorithm::Algorithm;
use fabricast_planner::bound::InNetwork;
use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::{Collective, DataType, Protocol};
use fabricast_topologies::{NetworkSpec, Place};

use super::{Notes, Registered, Role};
use crate::measured::Library;

/// A value and where it stands; the place of what comes from a command line names no line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub place: Place,
}

/// What is said of a measurement; `None` where nothing is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Where it begins.
    pub place: Place,
    /// The log: a path relative to the manifest.
    pub file: Located<String>,
    /// A preset, or a spec or topology file relative to the manifest.
    pub fabric: Located<String>,
    /// Hosts, 1 or more; absent: those that the log lists, otherwise one.
    pub nodes: Option<u32>,
    /// GPUs of each, 1 or more; absent: by the log's ranks, otherwise all.
    pub gpus: Option<u32>,
    /// The model of the GPUs, where the fabric's file does not say.
    pub gpu: Option<String>,
    /// What joins the hosts.
    pub network: Option<NetworkSpec>,
    /// The collective.
    pub collective: Option<Located<Collective>>,
    /// The algorithm that was forced.
    pub algorithm: Option<Algorithm>,
    /// The protocol that was forced.
    pub protocol: Option<Protocol>,
    /// Channels that were forced, 1 to 1024.
    pub channels: Option<u16>,
    /// The library.
    pub library: Option<Library>,
    /// Whether switches may reduce and multicast.
    pub in_network: InNetwork,
    /// How buffers are registered.
    pub registered: Registered,
    /// How calls were launched.
    pub launch: Option<Located<Launch>>,
    /// Who launched them.
    pub processes: Option<Located<Processes>>,
    /// What it is for.
    pub role: Role,
    /// The element type.
    pub dtype: Option<DataType>,
    /// Settings of the library.
    pub env: Vec<(String, String)>,
    /// Free text.
    pub notes: Notes,
}
