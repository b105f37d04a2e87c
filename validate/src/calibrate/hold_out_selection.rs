//! Selection of the rows that a fit leaves out.

use std::fmt;
use std::str::FromStr;

use fabricast_sim::schedule::{Collective, Protocol};

use super::points::FitPoint;

/// Selection of the rows that a fit leaves out, by one property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldOut {
    /// Rows with one of these numbers of ranks.
    Ranks(Vec<u32>),
    /// Rows with one of these numbers of hosts.
    Nodes(Vec<u32>),
    /// Rows of these collectives.
    Collectives(Vec<Collective>),
    /// Rows of these protocols.
    Protocols(Vec<Protocol>),
    /// Rows of clusters whose name, or whose hardware's description, contains a text.
    Cluster(String),
}

/// Error: a text that does not describe a hold-out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` cannot be held out: expected gpus=N[,N], nodes=N[,N], collective=C[,C], protocol=P[,P] or \
         cluster=TEXT"
)]
pub struct UnknownHoldOut(pub String);

impl FromStr for HoldOut {
    type Err = UnknownHoldOut;

    fn from_str(text: &str) -> Result<Self, UnknownHoldOut> {
        let unknown = || UnknownHoldOut(text.to_owned());
        let (key, values) = text.split_once('=').ok_or_else(unknown)?;
        fn parse_list<T: FromStr>(values: &str) -> Option<Vec<T>> {
            values.split(',').map(|word| word.trim().parse().ok()).collect()
        }
        match key.trim() {
            "gpus" => parse_list(values).map(Self::Ranks),
            "nodes" => parse_list(values).map(Self::Nodes),
            "collective" => parse_list(values).map(Self::Collectives),
            "protocol" => parse_list(values).map(Self::Protocols),
            "cluster" => Some(values.trim().to_owned()).filter(|text| !text.is_empty()).map(Self::Cluster),
            _ => None,
        }
        .ok_or_else(unknown)
    }
}

impl fmt::Display for HoldOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn write_list(f: &mut fmt::Formatter<'_>, key: &str, values: &[impl ToString]) -> fmt::Result {
            let values: Vec<String> = values.iter().map(ToString::to_string).collect();
            write!(f, "{key}={}", values.join(","))
        }
        match self {
            Self::Ranks(ranks) => write_list(f, "gpus", ranks),
            Self::Nodes(nodes) => write_list(f, "nodes", nodes),
            Self::Collectives(collectives) => write_list(f, "collective", collectives),
            Self::Protocols(protocols) => write_list(f, "protocol", protocols),
            Self::Cluster(text) => write!(f, "cluster={text}"),
        }
    }
}

impl HoldOut {
    pub(super) fn leaves_out(&self, point: &FitPoint) -> bool {
        match self {
            Self::Ranks(ranks) => ranks.contains(&point.ranks),
            Self::Nodes(nodes) => nodes.contains(&point.nodes),
            Self::Collectives(collectives) => collectives.contains(&point.collective),
            Self::Protocols(protocols) => protocols.contains(&point.protocol),
            Self::Cluster(text) => point.cluster.contains(text.as_str()),
        }
    }
}
