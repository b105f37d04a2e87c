//! A `[[measurement]]` entry of a manifest, before its files and fabrics are loaded.

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::bound::InNetwork;
use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::{Collective, DataType, Protocol};
use fabricast_topologies::{NetworkSpec, SourceLocation};

use super::{Notes, RegistrationKind, Role};
use crate::measured::MeasuredLibrary;

/// A value with its source location. The location of a value from the command line has no line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Located<T> {
    /// Value as parsed from the manifest or the command line.
    pub value: T,
    /// Source location of the value.
    pub place: SourceLocation,
}

/// Description of a measurement; fields are `None` if the manifest states no value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManifestEntry {
    /// Source location of the entry.
    pub place: SourceLocation,
    /// Path of the log, relative to the manifest.
    pub file: Located<String>,
    /// Name of a preset, or path of a spec or topology file relative to the manifest.
    pub fabric: Located<String>,
    /// Number of hosts, at least 1. Default: the hosts that the log lists, otherwise one.
    pub nodes: Option<u32>,
    /// GPUs per host, at least 1. Default: derived from the log's ranks, otherwise all.
    pub gpus: Option<u32>,
    /// Model of the GPUs, if the fabric's file does not name it.
    pub gpu: Option<String>,
    /// Network between the hosts.
    pub network: Option<NetworkSpec>,
    /// Collective that was measured.
    pub collective: Option<Located<Collective>>,
    /// Algorithm that was forced.
    pub algorithm: Option<Algorithm>,
    /// Protocol that was forced.
    pub protocol: Option<Protocol>,
    /// Number of channels that was forced, 1 to 1024.
    pub channels: Option<u16>,
    /// Library that was measured.
    pub library: Option<MeasuredLibrary>,
    /// In-network reduction and multicast by switches, on or off.
    pub in_network: InNetwork,
    /// Registration of the buffers with the library.
    pub registered: RegistrationKind,
    /// Launch mode of the calls.
    pub launch: Option<Located<Launch>>,
    /// Process layout of the run.
    pub processes: Option<Located<Processes>>,
    /// Use of the measurement: `fit` or `check`.
    pub role: Role,
    /// Element type of the buffers.
    pub dtype: Option<DataType>,
    /// Environment variables of the library and their values, in the order given.
    pub env: Vec<(String, String)>,
    /// Free text about the measurement.
    pub notes: Notes,
}
