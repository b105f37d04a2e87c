//! Parser of manifests of exchanges.

use std::collections::BTreeMap;

use fabricast_experts::{ExchangeKernel, Operation, RoutingPattern, Timing, TokenType};
use fabricast_sim::schedule::UnknownName;
use fabricast_topologies::{NetworkSpec, Origin, SourceLocation};
use serde::Deserialize;
use serde::de::Error as _;

use crate::measured::MeasuredError;
use crate::measured::manifest::Role;

/// A number, or the name of the column that contains it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a whole number or the name of a column")]
pub(super) enum Count {
    Number(u64),
    Column(String),
}

/// Entry of a manifest, which selects rows of a table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExchangeEntry {
    pub file: String,
    pub fabric: String,
    #[serde(deserialize_with = "word")]
    pub kernel: ExchangeKernel,
    #[serde(deserialize_with = "word")]
    pub operation: Operation,
    #[serde(deserialize_with = "word")]
    pub dtype: TokenType,
    pub time_us: Option<String>,
    pub bandwidth_gb_per_s: Option<String>,
    pub tokens: Count,
    pub hidden: Count,
    pub experts: Count,
    pub top_k: Count,
    pub ranks: Option<Count>,
    pub nodes: Option<Count>,
    pub gpus: Option<u32>,
    pub sms: Option<Count>,
    #[serde(default, deserialize_with = "network")]
    pub network: Option<NetworkSpec>,
    #[serde(default = "allowed")]
    pub p2p: bool,
    #[serde(default)]
    pub routing: Routing,
    #[serde(default)]
    pub timing: TimingName,
    #[serde(default)]
    pub role: RoleName,
    pub cluster: Option<String>,
    #[serde(default, rename = "where")]
    pub selection: BTreeMap<String, String>,
    #[serde(rename = "hardware")]
    _hardware: Option<String>,
    #[serde(rename = "source")]
    _source: Option<String>,
    #[serde(rename = "software")]
    _software: Option<String>,
    #[serde(rename = "note")]
    _note: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RoutingName {
    #[default]
    Random,
    Balanced,
}

/// Routing of tokens: a named pattern, or a limit on the groups of experts of a token.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged, expecting = "expected \"random\", \"balanced\" or { groups = N, limit = N }")]
pub(super) enum Routing {
    Named(RoutingName),
    Limited { groups: u32, limit: u32 },
}

impl Default for Routing {
    fn default() -> Self {
        Self::Named(RoutingName::Random)
    }
}

impl From<Routing> for RoutingPattern {
    fn from(routing: Routing) -> Self {
        match routing {
            Routing::Named(RoutingName::Random) => Self::Random,
            Routing::Named(RoutingName::Balanced) => Self::Balanced,
            Routing::Limited { groups, limit } => Self::GroupLimited { groups, limit },
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TimingName {
    #[default]
    Kernel,
    Host,
}

impl From<TimingName> for Timing {
    fn from(name: TimingName) -> Self {
        match name {
            TimingName::Kernel => Self::Kernel,
            TimingName::Host => Self::Host,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RoleName {
    #[default]
    Fit,
    Check,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Self {
        match name {
            RoleName::Fit => Self::Fit,
            RoleName::Check => Self::Check,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    exchange: Vec<ExchangeEntry>,
}

fn allowed() -> bool {
    true
}

fn word<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr<Err = UnknownName>,
{
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

fn network<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<NetworkSpec>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(D::Error::custom)
}

/// Returns true if a text is a manifest of exchanges.
#[must_use]
pub fn is_manifest(text: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with("[[exchange]]"))
}

/// Parses a manifest; `source` names the manifest in errors.
pub(super) fn read(text: &str, source: &str) -> Result<Vec<ExchangeEntry>, MeasuredError> {
    let file: File = toml::from_str(text).map_err(|error| MeasuredError::Invalid {
        place: Origin::new(source, text).locate(error.span().unwrap_or_default()),
        message: error.message().to_owned(),
        help: None,
    })?;
    let location = || SourceLocation::from_source(source);
    for entry in &file.exchange {
        if entry.time_us.is_some() == entry.bandwidth_gb_per_s.is_some() {
            let message = format!("{}: expected one of time_us and bandwidth_gb_per_s", entry.file);
            return Err(MeasuredError::Invalid { place: location(), message, help: None });
        }
    }
    Ok(file.exchange)
}
