//! Contents of a `[cluster]` table: copies of a node on a network.
//!
//! All keys of a network are valid in a spec's `[cluster] network = { … }`, in a manifest's `network`, and on the
//! command line (`--network rail,nics_per_node=8,nic=400Gb/s`). [`crate::cluster`] expands a cluster into devices and
//! links.

use std::str::FromStr;

use crate::error::{Error, SourceLocation};
use crate::fabric::{LinkKind, suggest_names};
use crate::keys::{Keyed, Keys, Scalar, keyed_enum, keys};
use crate::{Bandwidth, Picos};

/// Contents of a `[cluster]` table: a preset or file, the number of its hosts, and their network.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSpec {
    /// The preset (or file) that is copied.
    pub node: String,
    /// Number of hosts in the cluster, at least 1.
    pub nodes: u32,
    /// The network between the hosts; `None` if the spec states none.
    pub network: Option<NetworkSpec>,
    /// Source location of `node`; the default for clusters from a command line.
    pub node_location: SourceLocation,
    /// Source location of `nodes`.
    pub nodes_location: SourceLocation,
    /// Source location of `network`.
    pub network_location: SourceLocation,
}

/// Topology of the network between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetworkKind {
    /// Rail-optimized: NIC *i* of every host connects to the switches of rail *i*.
    #[default]
    Rail,
    /// Fat tree of leaf, spine (and core) switches; every NIC of a host connects to the same leaf.
    FatTree,
    /// Dragonfly: groups of routers, all-to-all within a group and between groups.
    Dragonfly,
    /// A torus of hosts, each joined to two neighbours per dimension.
    Torus,
    /// One NVLink domain across the hosts (multi-node NVLink).
    Mnnvl,
    /// TCP sockets between the processes of one machine.
    TcpLoopback,
}

keyed_enum!(NetworkKind {
    "rail" => NetworkKind::Rail,
    "fat_tree" => NetworkKind::FatTree,
    "dragonfly" => NetworkKind::Dragonfly,
    "torus" => NetworkKind::Torus,
    "mnnvl" => NetworkKind::Mnnvl,
    "tcp-loopback" => NetworkKind::TcpLoopback,
});

/// Networks of switches.
const SWITCHED: &[NetworkKind] = &[NetworkKind::Rail, NetworkKind::FatTree, NetworkKind::Dragonfly, NetworkKind::Torus];
/// Networks whose hosts are connected by NICs.
const CABLED: &[NetworkKind] =
    &[NetworkKind::Rail, NetworkKind::FatTree, NetworkKind::Dragonfly, NetworkKind::Torus, NetworkKind::TcpLoopback];
/// Networks of leaves and spines.
const CLOS: &[NetworkKind] = &[NetworkKind::Rail, NetworkKind::FatTree];
const DRAGONFLY: &[NetworkKind] = &[NetworkKind::Dragonfly];
const TORUS: &[NetworkKind] = &[NetworkKind::Torus];

impl NetworkKind {
    /// Description for `--help`, without the final period.
    fn help(self) -> &'static str {
        match self {
            Self::Rail => "NIC i of every host connects to the switches of rail i",
            Self::FatTree => "leaf, spine and core switches; all NICs of a host connect to the same leaf",
            Self::Dragonfly => "groups of routers, all-to-all within a group and between groups",
            Self::Torus => "each host is joined to two neighbours per dimension",
            Self::Mnnvl => "one NVLink domain across the hosts (multi-node NVLink), without keys",
            Self::TcpLoopback => "TCP sockets between the processes of one machine",
        }
    }
}

impl FromStr for NetworkKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::read(&Scalar::Bare(text)).map_err(|message| Error::Request(format!("network: {message}")))
    }
}

/// A network and its given figures. Figures that are `None` come from the preset's own NICs or from defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkSpec {
    /// Topology of the network.
    pub kind: NetworkKind,
    /// Number of NICs per host, 1 to 256.
    pub nics_per_node: Option<u32>,
    /// Line rate of a NIC in each direction.
    pub nic: Option<Bandwidth>,
    /// Latency of the NICs at both ends of a path and their cables, without switches.
    pub nic_latency: Option<Picos>,
    /// Latency of one switch and the cable behind it.
    pub switch_latency: Option<Picos>,
    /// Oversubscription ratio of the leaves (bandwidth below a leaf over bandwidth above it), 0.01 to 1000; 1 is
    /// non-blocking.
    pub oversubscription: Option<f64>,
    /// Number of switch levels of a fat tree or rail network, 1 to 8.
    pub tiers: Option<u32>,
    /// Number of ports of a switch, 2 to 4096.
    pub radix: Option<u32>,
    /// Number of groups of a dragonfly, 1 to 65,536.
    pub groups: Option<u32>,
    /// Side lengths of a torus in hosts, each 1 or more.
    pub dimensions: Option<Vec<u32>>,
    /// Number of equal-cost paths that flows are spread over, 1 to 256.
    pub ecmp: Option<u32>,
    /// Technology of the cables: `infiniband` or `ethernet`.
    pub link: Option<LinkKind>,
    /// MTU of Ethernet (largest IP packet) in bytes, 576 to 65,535. Default 1500; jumbo frames have 9000.
    pub mtu: Option<u32>,
    /// Adaptive routing of the packets of a message, NCCL_IB_ADAPTIVE_ROUTING. By default on with InfiniBand and off with
    /// Ethernet.
    pub adaptive_routing: Option<bool>,
    /// Number of queue pairs of a connection, NCCL_IB_QPS_PER_CONNECTION, 1 to 128. Default 1.
    pub queue_pairs: Option<u32>,
    /// Number of hosts of each NVLink domain that are part of the cluster, 1 or more, where a preset is a rack of
    /// several hosts. By default all of them are, and racks fill in order.
    pub nodes_per_domain: Option<u32>,
    /// Reduction and multicast in the InfiniBand switches of the network (SHARP). Off if `None`.
    pub sharp: Option<bool>,
}

keys!(NetworkSpec {
    nics_per_node: "number of NICs per host, 1 to 256",
    nic: "line rate of a NIC in each direction, as in 400Gb/s",
    nic_latency: "latency of the NICs at both ends of a path and their cables; default: 1.3us, of tcp-loopback 40us",
    switch_latency: "latency of one switch and the cable behind it; default: 300ns, of tcp-loopback none",
    oversubscription: "bandwidth below a leaf divided by that above it, 0.01 to 1000; default: 1",
    tiers: "number of switch levels, 1 to 8; default: 2 for rail, as many as needed for fat_tree",
    radix: "number of ports of a switch, 2 to 4096; default: as many as needed for rail, 64 for fat_tree",
    groups: "number of groups, 1 to 65536; default: the square root of the number of hosts",
    dimensions: "side lengths in hosts, as in 4x4x2; default: the most cubic shape",
    ecmp: "number of equal-cost paths that flows are spread over, 1 to 256",
    link: "technology of the cables, infiniband or ethernet; default: infiniband, of tcp-loopback ethernet",
    mtu: "MTU of Ethernet in bytes, 576 to 65535; default: 1500",
    adaptive_routing: "NCCL_IB_ADAPTIVE_ROUTING, true or false; default: true with InfiniBand, false with Ethernet",
    queue_pairs: "queue pairs of a connection (NCCL_IB_QPS_PER_CONNECTION), 1 to 128; default: 1",
    nodes_per_domain: "hosts in use of each NVLink domain of a rack, 1 to 65536; default: all",
    sharp: "reduction and multicast in the InfiniBand switches, true or false; default: false",
});

impl NetworkSpec {
    /// A network of this topology with all figures at their defaults.
    #[must_use]
    pub fn with_kind(kind: NetworkKind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Sets the figure with the key `name` and checks its range; the error states the valid keys or the range.
    pub(crate) fn set(&mut self, name: &str, value: &Scalar<'_>) -> Result<(), String> {
        let Some(key) = Self::KEYS.iter().find(|key| key.name == name) else {
            let near = suggest_names(name, Self::KEYS.iter().map(|key| key.name));
            let hint = near.first().map_or_else(String::new, |near| format!("; did you mean {near}?"));
            return Err(format!("unknown key `{name}`; expected kind or one of {}{hint}", Self::key_list()));
        };
        (key.set)(self, value).map_err(|message| format!("{name}: {message}"))?;
        let check_range = |value: Option<u32>, min: u32, max: u32| match value {
            Some(n) if n < min || n > max => Some(format!("must be from {min} to {max}")),
            _ => None,
        };
        let fault = match name {
            "nics_per_node" => check_range(self.nics_per_node, 1, 256),
            "tiers" => check_range(self.tiers, 1, 8),
            "groups" => check_range(self.groups, 1, 65_536),
            "ecmp" => check_range(self.ecmp, 1, 256),
            "queue_pairs" => check_range(self.queue_pairs, 1, 128),
            "nodes_per_domain" => check_range(self.nodes_per_domain, 1, 65_536),
            "radix" => check_range(self.radix, 2, 4096),
            "mtu" => check_range(self.mtu, 576, 65_535),
            "oversubscription" if self.oversubscription.is_some_and(|x| !(0.01..=1000.0).contains(&x)) => {
                Some("must be from 0.01 to 1000".to_owned())
            }
            "dimensions" if self.dimensions.iter().flatten().any(|&side| side == 0) => {
                Some("must all be 1 or more".to_owned())
            }
            "link" if !matches!(self.link, None | Some(LinkKind::Infiniband | LinkKind::Ethernet)) => {
                Some("must be `infiniband` or `ethernet`".to_owned())
            }
            _ => None,
        };
        fault.map_or(Ok(()), |fault| Err(format!("{name} {fault}")))
    }

    /// Kinds of networks on which a key has an effect.
    pub(crate) fn kinds(key: &str) -> &'static [NetworkKind] {
        match key {
            "nic" | "nic_latency" | "switch_latency" | "link" => CABLED,
            "tiers" | "radix" | "ecmp" => CLOS,
            "groups" => DRAGONFLY,
            "dimensions" => TORUS,
            _ => SWITCHED,
        }
    }

    /// Names of all keys other than `kind`.
    fn key_list() -> String {
        Self::KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
    }

    /// Describes the kinds of networks and their keys in one line each, for `--help`.
    #[must_use]
    pub fn help() -> String {
        let mut lines = vec!["Kinds, of which the first is the default:".to_owned()];
        lines.extend(NetworkKind::ALL.iter().map(|kind| format!("`{}`: {}.", kind.name(), kind.help())));
        for kinds in [SWITCHED, CABLED, CLOS, DRAGONFLY, TORUS] {
            let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
            lines.push(format!("\nKeys of {}:", names.join(", ")));
            let keys = Self::KEYS.iter().filter(|key| Self::kinds(key.name) == kinds);
            lines.extend(keys.map(|key| format!("`{}`: {}.", key.name, key.help)));
        }
        lines.join("\n")
    }

    /// Formats as a TOML inline table that parses to an equal value.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let kind = format!("kind = {}", self.kind.write());
        let figures =
            Self::KEYS.iter().filter_map(|key| (key.get)(self).map(|value| format!("{} = {value}", key.name)));
        let entries: Vec<String> = std::iter::once(kind).chain(figures).collect();
        format!("{{ {} }}", entries.join(", "))
    }
}

impl FromStr for NetworkSpec {
    type Err = Error;

    /// Parses `rail,nics_per_node=8,nic=400Gb/s`. The kind comes first; without it the network is `rail`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |message: String| Error::Request(format!("network `{text}`: {message}"));
        let mut parts = text.split(',').map(str::trim).peekable();
        let kind = match parts.peek() {
            Some(first) if !first.contains('=') => {
                let kind = NetworkKind::read(&Scalar::Bare(first)).map_err(refuse)?;
                parts.next();
                kind
            }
            _ => NetworkKind::Rail,
        };
        let mut spec = Self::with_kind(kind);
        let mut seen: Vec<&str> = Vec::new();
        for part in parts {
            let (key, value) =
                part.split_once('=').ok_or_else(|| refuse(format!("expected `key=value`, found `{part}`")))?;
            let (key, value) = (key.trim(), value.trim());
            if seen.contains(&key) {
                return Err(refuse(format!("{key} is given twice")));
            }
            seen.push(key);
            if key == "kind" {
                spec.kind = NetworkKind::read(&Scalar::Bare(value)).map_err(refuse)?;
            } else {
                spec.set(key, &Scalar::Bare(value)).map_err(refuse)?;
            }
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_syntax_covers_every_key() {
        let text = "torus,nics_per_node=8,nic=400Gb/s,nic_latency=1.3us,switch_latency=300ns,oversubscription=2,tiers=2,\
                    radix=64,groups=3,dimensions=4x4x2,ecmp=8,link=ethernet,mtu=9000,adaptive_routing=true,\
                    queue_pairs=4,nodes_per_domain=16,sharp=true";
        let spec: NetworkSpec = text.parse().unwrap();
        assert_eq!(spec.kind, NetworkKind::Torus);
        assert_eq!(spec.nic, Some(Bandwidth(50_000_000_000)));
        assert_eq!(spec.nic_latency, Some(Picos(1_300_000)));
        assert_eq!(spec.dimensions, Some(vec![4, 4, 2]));
        assert_eq!((spec.adaptive_routing, spec.queue_pairs), (Some(true), Some(4)));
        assert_eq!(NetworkSpec::KEYS.iter().filter(|key| (key.get)(&spec).is_none()).count(), 0);
    }

    #[test]
    fn invalid_values_are_rejected_with_their_key() {
        for (text, expected) in [
            ("star", "one of `rail`"),
            ("rail,nics=8", "unknown key `nics`"),
            ("rail,nics_per_node=0", "nics_per_node must be from 1 to 256"),
            ("rail,nic=0GB/s", "nic: "),
            ("rail,nic=-4GB/s", "nic: "),
            ("rail,oversubscription=0", "oversubscription: "),
            ("rail,oversubscription=1e-300", "oversubscription must be from 0.01 to 1000"),
            ("rail,radix=4294967295", "radix must be from 2 to 4096"),
            ("rail,ecmp=4294967295", "ecmp must be from 1 to 256"),
            ("rail,queue_pairs=129", "queue_pairs must be from 1 to 128"),
            ("rail,adaptive_routing=2", "adaptive_routing: "),
            ("rail,mtu=64", "mtu must be from 576 to 65535"),
            ("rail,nic_per_node=8", "did you mean nics_per_node?"),
            ("rial", "did you mean `rail`?"),
            ("rail,nics_per_node=8,nics_per_node=9", "given twice"),
            ("rail,8", "expected `key=value`"),
            ("torus,dimensions=4x0", "dimensions must"),
            ("rail,link=nvlink", "link must be"),
            ("", "one of `rail`"),
        ] {
            let error = text.parse::<NetworkSpec>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn help_has_a_line_for_every_kind_and_key() {
        let help = NetworkSpec::help();
        let keys = NetworkSpec::KEYS.iter().map(|key| key.name);
        for name in NetworkKind::ALL.iter().map(|kind| kind.name()).chain(keys) {
            let lines = help.lines().filter(|line| line.starts_with(&format!("`{name}`: ")));
            assert!(lines.clone().count() == 1 && lines.clone().all(|line| line.len() > name.len() + 20), "{name}");
        }
    }

    /// Values at both ends of a range in the help are accepted, and those beyond are rejected.
    #[test]
    fn ranges_in_the_help_are_those_of_the_parser() {
        let mut ranges = 0;
        for key in NetworkSpec::KEYS {
            let words: Vec<&str> = key.help.split([' ', ';']).collect();
            let Some(at) = words.iter().position(|&word| word == "to") else { continue };
            let (Ok(min), Ok(max)) = (words[at - 1].parse::<f64>(), words[at + 1].parse::<f64>()) else { continue };
            let is_accepted = |value: f64| format!("rail,{}={value}", key.name).parse::<NetworkSpec>().is_ok();
            let step = if min < 1.0 { min / 2.0 } else { 1.0 };
            assert!(is_accepted(min) && is_accepted(max), "{}: {min} to {max}", key.name);
            assert!(!is_accepted(min - step) && !is_accepted(max + 1.0), "{}: {min} to {max}", key.name);
            ranges += 1;
        }
        assert_eq!(ranges, 9);
    }
}
