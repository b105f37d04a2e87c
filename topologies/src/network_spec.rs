//! What a `[cluster]` asks for: copies of a node on a network.
//!
//! The same keys stand in a spec's `[cluster] network = { … }`, in a manifest's `network`, and on the command line as
//! `--network rail,nics_per_node=8,nic=400Gb/s`. Expanding a cluster into vertices and links is not done here.

use std::str::FromStr;

use crate::error::{Error, Place};
use crate::fabric::{LinkKind, near_misses};
use crate::keys::{Keyed, Keys, Scalar, keys, words};
use crate::{Bandwidth, Picos};

/// Copies of a node on a network.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSpec {
    /// The preset (or file) that is copied.
    pub node: String,
    /// How many hosts, 1 or more.
    pub nodes: u32,
    /// The network between them; `None` where nothing is said.
    pub network: Option<NetworkSpec>,
    /// Where `node` stands, for errors about it; the default place where the cluster came from a command line.
    pub node_place: Place,
    /// Where `nodes` stands.
    pub nodes_place: Place,
    /// Where `network` stands.
    pub network_place: Place,
}

/// How hosts are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetworkKind {
    /// NIC *i* of every host on rail *i*'s switches.
    #[default]
    Rail,
    /// Leaves and spines (and cores), every NIC of a host on the same leaf.
    FatTree,
    /// Groups of routers, all-to-all inside and between.
    Dragonfly,
    /// A torus of hosts.
    Torus,
    /// One NVLink domain over the hosts.
    Mnnvl,
    /// Sockets between processes of one machine.
    TcpLoopback,
}

words!(NetworkKind {
    "rail" => NetworkKind::Rail,
    "fat_tree" => NetworkKind::FatTree,
    "dragonfly" => NetworkKind::Dragonfly,
    "torus" => NetworkKind::Torus,
    "mnnvl" => NetworkKind::Mnnvl,
    "tcp-loopback" => NetworkKind::TcpLoopback,
});

impl FromStr for NetworkKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::read(&Scalar::Bare(text)).map_err(|message| Error::Request(format!("network: {message}")))
    }
}

/// A network and the figures that were given; the rest comes from the preset's own NICs or from defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkSpec {
    /// Its shape.
    pub kind: NetworkKind,
    /// NICs of a host, 1 to 256.
    pub nics_per_node: Option<u32>,
    /// Line rate of a NIC, each direction.
    pub nic: Option<Bandwidth>,
    /// Latency of a NIC and its first cable.
    pub nic_latency: Option<Picos>,
    /// Latency of one switch and the cable behind it.
    pub switch_latency: Option<Picos>,
    /// Bandwidth below a leaf over bandwidth above it, 0.01 to 1000; 1 is non-blocking.
    pub oversubscription: Option<f64>,
    /// Levels of switches (fat tree, rail), 1 to 8.
    pub tiers: Option<u32>,
    /// Ports of a switch, 2 to 4096.
    pub radix: Option<u32>,
    /// Groups of a dragonfly, 1 to 65,536.
    pub groups: Option<u32>,
    /// Sides of a torus, each 1 or more.
    pub dimensions: Option<Vec<u32>>,
    /// Equal-cost paths that flows are spread over, 1 to 256.
    pub ecmp: Option<u32>,
    /// Technology of the cables: `infiniband` or `ethernet`.
    pub link: Option<LinkKind>,
    /// Largest IP packet over Ethernet in bytes, 576 to 65,535; 1500 where nothing is said, 9000 with jumbo frames.
    pub mtu: Option<u32>,
}

keys!(NetworkSpec {
    nics_per_node,
    nic,
    nic_latency,
    switch_latency,
    oversubscription,
    tiers,
    radix,
    groups,
    dimensions,
    ecmp,
    link,
    mtu,
});

impl NetworkSpec {
    /// A network of this shape of which nothing else is said.
    #[must_use]
    pub fn of_kind(kind: NetworkKind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Sets one key, with the limits that go beyond its type.
    pub(crate) fn set(&mut self, name: &str, value: &Scalar<'_>) -> Result<(), String> {
        let Some(key) = Self::KEYS.iter().find(|key| key.name == name) else {
            let near = near_misses(name, Self::KEYS.iter().map(|key| key.name));
            let hint = near.first().map_or_else(String::new, |near| format!("; did you mean {near}?"));
            return Err(format!("unknown key `{name}`; expected kind or one of {}{hint}", Self::key_list()));
        };
        (key.set)(self, value).map_err(|message| format!("{name}: {message}"))?;
        let within = |value: Option<u32>, least: u32, most: u32| match value {
            Some(n) if n < least || n > most => Some(format!("must be from {least} to {most}")),
            _ => None,
        };
        let fault = match name {
            "nics_per_node" => within(self.nics_per_node, 1, 256),
            "tiers" => within(self.tiers, 1, 8),
            "groups" => within(self.groups, 1, 65_536),
            "ecmp" => within(self.ecmp, 1, 256),
            "radix" => within(self.radix, 2, 4096),
            "mtu" => within(self.mtu, 576, 65_535),
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

    /// The names of the keys beside `kind`.
    fn key_list() -> String {
        Self::KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
    }

    /// As a TOML inline table that reads back to the same.
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

    /// Reads `rail,nics_per_node=8,nic=400Gb/s`; the kind comes first and may be left out (`rail`) where keys follow.
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
        let mut spec = Self::of_kind(kind);
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
    fn command_line_form_reads_every_key() {
        let text = "torus,nics_per_node=8,nic=400Gb/s,nic_latency=1.3us,switch_latency=300ns,oversubscription=2,tiers=2,\
                    radix=64,groups=3,dimensions=4x4x2,ecmp=8,link=ethernet,mtu=9000";
        let spec: NetworkSpec = text.parse().unwrap();
        assert_eq!(spec.kind, NetworkKind::Torus);
        assert_eq!(spec.nic, Some(Bandwidth(50_000_000_000)));
        assert_eq!(spec.nic_latency, Some(Picos(1_300_000)));
        assert_eq!(spec.dimensions, Some(vec![4, 4, 2]));
        assert_eq!(NetworkSpec::KEYS.iter().filter(|key| (key.get)(&spec).is_none()).count(), 0);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_key() {
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
}
