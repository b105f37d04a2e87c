//! Network files: the `[network]` table of a profile, and networks measured independently of GPUs, one file each.
//!
//! The cost of a network does not depend on the GPUs, and the cost of the GPUs does not depend on the network. A GPU
//! profile is therefore combined with the network of the machine. The shipped networks are in `sim/profiles/networks`.
//! A measured network applies to machines with the same compute capability, NIC rate and NICs per GPU, unless the
//! machine declares another transport ([`Transport`]). Two networks apply independently of these: InfiniBand verbs of
//! RCCL to hosts with AMD GPUs, and InfiniBand, the default, to all remaining machines. Both use RoCE packets if the
//! links are Ethernet.

use std::fmt::Write as _;

use fabricast_topologies::fabric::NicFigures;
use fabricast_topologies::{Bandwidth, Fabric, LinkKind, Picos};
use serde::Deserialize;

use super::network::{NetworkCosts, PacketRouting, QueuePairs};
use super::packets::Packets;
use super::reader::{ProfileError, ProfileReader};
use super::transport::{MachineNetwork, Transport, default_port_protocol, nic_figures};
use super::write::{fraction, quoted, write_rates, write_sources, write_times};
use super::{PredictionInterval, Profile};

/// Name and file text of the network assumed for machines without a measurement.
const DEFAULT_NETWORK: (&str, &str) = ("infiniband-ndr", include_str!("../../profiles/networks/infiniband-ndr.toml"));

/// Shipped networks, by name and file text. The first one that applies to a machine is used; the default is last.
const SHIPPED: [(&str, &str); 8] = [
    ("efa-p4de", include_str!("../../profiles/networks/efa-p4de.toml")),
    ("efa-p5", include_str!("../../profiles/networks/efa-p5.toml")),
    ("slingshot-gh200", include_str!("../../profiles/networks/slingshot-gh200.toml")),
    ("tcpx", include_str!("../../profiles/networks/tcpx.toml")),
    ("tcpxo", include_str!("../../profiles/networks/tcpxo.toml")),
    ("rccl-verbs", include_str!("../../profiles/networks/rccl-verbs.toml")),
    ("sockets-loopback", include_str!("../../profiles/networks/sockets-loopback.toml")),
    DEFAULT_NETWORK,
];

/// Network measured on one type of machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredNetwork {
    /// Name, such as `efa-p5`.
    pub name: String,
    /// Date of the data, `YYYY-MM-DD`.
    pub date: String,
    /// Sources of the figures, such as data files and documents.
    pub sources: Vec<String>,
    /// Compute capability × 10 of the machines' GPUs.
    pub compute_capability: u32,
    /// Line rate of one NIC of the machines.
    pub nic: Bandwidth,
    /// Number of NICs per GPU of the machines.
    pub nics_per_gpu: f64,
    /// Transport of messages between hosts.
    pub transport: Transport,
    /// Fraction of the line rate that transfers reach.
    pub efficiency: f64,
    /// NCCL environment settings made by the network's plugin, such as `NCCL_PROTO=simple`; `None` if it makes none.
    pub settings: Option<String>,
    /// Costs of the transport beyond its links.
    pub costs: NetworkCosts,
    /// Prediction interval of calls over this network.
    pub band: PredictionInterval,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NetworkFile {
    post: String,
    fence: String,
    arrive: String,
    flush: String,
    message: String,
    interval: Option<String>,
    scan: Option<String>,
    rendezvous: Option<String>,
    eager: Option<String>,
    signal: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredFile {
    name: String,
    date: String,
    source: Vec<String>,
    compute_capability: u32,
    nic: String,
    nics_per_gpu: f64,
    #[serde(default)]
    transport: Transport,
    efficiency: f64,
    settings: Option<String>,
    band: MeasuredBand,
    network: NetworkFile,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredBand {
    low: f64,
    high: f64,
}

impl NetworkFile {
    pub(super) fn costs(&self, reader: &ProfileReader<'_>) -> Result<NetworkCosts, ProfileError> {
        let time =
            |key: &str, text: &str| -> Result<Picos, ProfileError> { reader.quantity(&format!("network.{key}"), text) };
        Ok(NetworkCosts {
            post: time("post", &self.post)?,
            fence: time("fence", &self.fence)?,
            arrive: time("arrive", &self.arrive)?,
            flush: time("flush", &self.flush)?,
            message: time("message", &self.message)?,
            interval: reader.optional("network.interval", self.interval.as_deref())?.unwrap_or_default(),
            scan: reader.optional("network.scan", self.scan.as_deref())?,
            rendezvous: reader.optional("network.rendezvous", self.rendezvous.as_deref())?.unwrap_or_default(),
            eager: reader.optional("network.eager", self.eager.as_deref())?,
            signal: reader.optional("network.signal", self.signal.as_deref())?.unwrap_or_default(),
            queue_pairs: QueuePairs::ONE,
        })
    }
}

impl NetworkCosts {
    pub(super) fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "\n[network]")?;
        let times = [
            ("post", self.post),
            ("fence", self.fence),
            ("arrive", self.arrive),
            ("flush", self.flush),
            ("message", self.message),
        ];
        write_times(&times, out)?;
        if self.interval > Picos::ZERO {
            write_times(&[("interval", self.interval)], out)?;
        }
        self.scan.map_or(Ok(()), |rate| write_rates(&[("scan", rate)], out))?;
        if self.signal > Picos::ZERO {
            write_times(&[("signal", self.signal)], out)?;
        }
        let Some(eager) = self.eager else { return Ok(()) };
        write_times(&[("rendezvous", self.rendezvous)], out)?;
        writeln!(out, "eager = \"{} B\"", eager.0)
    }
}

impl MeasuredNetwork {
    /// Returns true if the network applies to a machine: it was measured on machines with the same GPUs and NICs, or
    /// its costs do not depend on them.
    fn applies_to(&self, machine: &MachineNetwork) -> bool {
        let may_have_transport = match self.transport {
            // The cost of verbs depends on neither GPUs nor the rate or number of NICs.
            Transport::Infiniband => return true,
            Transport::RcclVerbs => return machine.is_amd && !machine.is_loopback,
            Transport::Tcpx | Transport::Tcpxo => machine.is_ethernet,
            Transport::Efa => !machine.is_infiniband,
            Transport::Slingshot => machine.has_c2c && !machine.is_infiniband,
            Transport::Sockets => machine.is_loopback,
        };
        may_have_transport
            && machine.compute_capability == self.compute_capability
            && machine.nic == self.nic
            && (machine.nics_per_gpu - self.nics_per_gpu).abs() < 1e-6
    }

    /// Returns all shipped networks, with the default last.
    ///
    /// # Errors
    /// [`ProfileError`] if a shipped file is invalid.
    pub fn shipped() -> Result<Vec<Self>, ProfileError> {
        SHIPPED.iter().map(|&(name, text)| Self::parse(text, name)).collect()
    }

    /// Returns the InfiniBand network, which is the default for machines without a measurement.
    ///
    /// # Errors
    /// [`ProfileError`] if a shipped file is invalid.
    pub fn default_network() -> Result<Self, ProfileError> {
        Self::parse(DEFAULT_NETWORK.1, DEFAULT_NETWORK.0)
    }

    /// Returns the network assumed for a machine: the first shipped network that applies to it, the default last.
    /// `None` if the fabric has no network.
    ///
    /// # Errors
    /// [`ProfileError`] if a shipped file is invalid.
    pub fn for_machine(fabric: &Fabric) -> Result<Option<Self>, ProfileError> {
        let Some(machine) = MachineNetwork::from_fabric(fabric) else { return Ok(None) };
        let shipped = Self::shipped()?;
        Ok(shipped.into_iter().find(|network| network.applies_to(&machine)))
    }

    /// Returns the network of a profile, labelled as measured on this fabric's machines; `None` if the fabric has no
    /// network.
    #[must_use]
    pub fn from_profile(profile: &Profile, fabric: &Fabric) -> Option<Self> {
        let machine = MachineNetwork::from_fabric(fabric)?;
        Some(Self {
            name: profile.name.clone(),
            date: profile.date.clone(),
            sources: profile.sources.clone(),
            compute_capability: machine.compute_capability,
            nic: machine.nic,
            nics_per_gpu: machine.nics_per_gpu,
            transport: Self::for_machine(fabric).ok().flatten().map(|network| network.transport).unwrap_or_default(),
            efficiency: profile.links.network,
            settings: None,
            costs: profile.network,
            band: profile.bands.default,
        })
    }

    /// Parses a network file.
    ///
    /// # Errors
    /// [`ProfileError`] with line and column, or the key.
    pub fn parse(text: &str, source: &str) -> Result<Self, ProfileError> {
        let reader = ProfileReader { source, text };
        let file: MeasuredFile = reader.read()?;
        if !(file.nics_per_gpu > 0.0 && file.nics_per_gpu.is_finite()) {
            return Err(reader.error("nics_per_gpu", "expected more than 0"));
        }
        Ok(Self {
            compute_capability: file.compute_capability,
            nic: reader.quantity("nic", &file.nic)?,
            nics_per_gpu: file.nics_per_gpu,
            efficiency: reader.fraction("efficiency", file.efficiency)?,
            costs: file.network.costs(&reader)?,
            settings: file.settings,
            transport: file.transport,
            band: reader.band(file.band.low, file.band.high)?,
            name: file.name,
            date: file.date,
            sources: file.source,
        })
    }

    /// Returns the network as TOML. Reading the text gives the same network; fractions have seven digits.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "name = {}\ndate = {}", quoted(&self.name), quoted(&self.date))?;
        write_sources(&self.sources, out)?;
        writeln!(out, "compute_capability = {}\nnic = \"{} B/s\"", self.compute_capability, self.nic.0)?;
        writeln!(out, "nics_per_gpu = {}\ntransport = {}", self.nics_per_gpu, quoted(self.transport.name()))?;
        writeln!(out, "efficiency = {}", fraction(self.efficiency))?;
        writeln!(out, "band = {{ low = {}, high = {} }}", fraction(self.band.low), fraction(self.band.high))?;
        if let Some(settings) = &self.settings {
            writeln!(out, "settings = {}", quoted(settings))?;
        }
        self.costs.write(out)
    }
}

impl Profile {
    /// Returns the profile on the network of a fabric's machines: the measured network that applies, or the profile's
    /// own network with the packets of the fabric.
    ///
    /// # Errors
    /// [`ProfileError`] if a shipped file is invalid.
    pub(super) fn with_network_of_fabric(self, fabric: &Fabric) -> Result<Self, ProfileError> {
        let Some(network) = MeasuredNetwork::for_machine(fabric)? else { return Ok(self) };
        // An MPI profile includes the costs of its messages.
        let profile =
            if self.messages.is_some() { self } else { self.with_network(&network).with_queue_pairs_of(fabric) };
        // Networks without verbs were measured with their own packets, so their efficiency is used as it is.
        Ok(if network.transport.uses_verbs() { profile.with_packets(Packets::for_fabric(fabric)) } else { profile })
    }

    /// Returns the profile with the queue pairs that the NICs of a fabric state, otherwise with NCCL's default ones.
    fn with_queue_pairs_of(mut self, fabric: &Fabric) -> Self {
        // NCCL uses adaptive routing only if all NICs have it (src/transport/net_ib/connect.cc: `comm->ar`).
        let nics: Vec<_> = nic_figures(fabric).collect();
        let default = default_port_protocol(fabric);
        let is_routed = |nic: &NicFigures| nic.link.unwrap_or(default) == LinkKind::Infiniband;
        let is_adaptive = match nics.is_empty() {
            true => Packets::for_fabric(fabric) == Packets::Infiniband,
            false => nics.iter().all(|nic| nic.adaptive_routing.unwrap_or_else(|| is_routed(nic))),
        };
        let routing = if is_adaptive { PacketRouting::Adaptive } else { PacketRouting::Static };
        let counts = nics.iter().map(|nic| nic.queue_pairs.unwrap_or(QueuePairs::ONE.count));
        let count = counts.min().unwrap_or(QueuePairs::ONE.count);
        let line_rate = nics.iter().filter_map(|nic| nic.speed).min();
        self.network.queue_pairs = QueuePairs { count, routing, line_rate, ..QueuePairs::ONE };
        self
    }

    /// Returns the profile with the payload fraction of other packets. The profile must have InfiniBand packets; NIC
    /// and driver costs are the same for RoCE.
    fn with_packets(mut self, packets: Packets) -> Self {
        if let Packets::Roce { mtu } = packets {
            self.name = format!("{} on roce (mtu {mtu})", self.name);
            self.links.network =
                (self.links.network / Packets::Infiniband.payload_fraction()).min(1.0) * packets.payload_fraction();
        }
        self
    }

    /// Returns the profile on another network.
    #[must_use]
    pub fn with_network(mut self, network: &MeasuredNetwork) -> Self {
        self.name = format!("{} on {}", self.name, network.name);
        self.links.network = network.efficiency;
        self.network = network.costs;
        self.sources.extend(network.sources.iter().cloned());
        self.bands = self.bands.extended_by(network.band);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_networks_round_trip() {
        for network in MeasuredNetwork::shipped().unwrap() {
            let text = network.to_toml();
            assert_eq!(MeasuredNetwork::parse(&text, "written").unwrap(), network, "{text}");
        }
    }

    #[test]
    fn queue_pairs_follow_from_the_network() {
        use fabricast_topologies::{FabricRequest, load};

        let queue_pairs = |settings: &str| {
            let network = Some(format!("rail,nics_per_node=8,nic=400Gb/s{settings}").parse().unwrap());
            let fabric = load(&FabricRequest { nodes: Some(2), network, ..FabricRequest::new("hgx-h100") }).unwrap();
            let QueuePairs { count, routing, .. } = Profile::for_fabric(&fabric).unwrap().network.queue_pairs;
            (count, routing)
        };
        assert_eq!(queue_pairs(""), (1, PacketRouting::Adaptive));
        assert_eq!(queue_pairs(",adaptive_routing=false"), (1, PacketRouting::Static));
        assert_eq!(queue_pairs(",link=ethernet"), (1, PacketRouting::Static));
        assert_eq!(queue_pairs(",link=ethernet,adaptive_routing=true,queue_pairs=4"), (4, PacketRouting::Adaptive));
    }

    /// Of unlike NICs, the fewest queue pairs, the lowest rate and the smallest MTU count, and adaptive routing if all have
    /// it. A failure changes none of them.
    #[test]
    fn queue_pairs_are_the_least_of_all_nics() {
        let kinds = [
            ("0-1", "speed = \"100 Gb/s\", mtu = 9000, adaptive_routing = true, queue_pairs = 8"),
            ("2-3", "speed = \"80 Gb/s\", mtu = 2200, adaptive_routing = true, queue_pairs = 4"),
            ("4-5", "speed = \"40 Gb/s\", mtu = 1500"),
        ];
        let fabric = |kinds: &[(&str, &str)]| {
            let mut text = "node = [\n{ id = \"gpu[0-1]\", kind = \"gpu\", host = \"n[0-1]\", compute_capability = 90 },\n\
                            { id = \"cpu[0-1]\", kind = \"cpu\", host = \"n[0-1]\" },\n{ id = \"leaf\", kind = \"switch\" },\n"
                .to_owned();
            for (numbers, figures) in kinds {
                text += &format!("{{ id = \"nic[{numbers}]\", kind = \"nic\", host = \"n[0-1]\", {figures} }},\n");
            }
            text += "]\nlink = [\n{ a = \"gpu[0-1]\", b = \"cpu[0-1]\", kind = \"pcie\" },\n";
            for (numbers, _) in kinds {
                text += &format!("{{ a = \"nic[{numbers}]\", b = \"cpu[0-1]\", kind = \"pcie\" }},\n");
                let cable = "kind = \"ethernet\", bandwidth = \"40 Gb/s\"";
                text += &format!("{{ a = \"nic[{numbers}]\", b = \"leaf\", {cable} }},\n");
            }
            fabricast_topologies::read_text(&(text + "]\n"), "unlike.toml").unwrap()
        };
        let settings = |fabric: &Fabric| {
            let QueuePairs { count, routing, line_rate, .. } = Profile::for_fabric(fabric).unwrap().network.queue_pairs;
            (count, routing, line_rate.unwrap().0 / 125_000_000, Packets::for_fabric(fabric))
        };
        let (roce, adaptive, fixed) = (|mtu| Packets::Roce { mtu }, PacketRouting::Adaptive, PacketRouting::Static);
        let all = fabric(&kinds);
        assert_eq!(settings(&all), (1, fixed, 40, roce(1500)));
        assert_eq!(settings(&fabric(&kinds[..2])), (4, adaptive, 80, roce(2200)));
        assert_eq!(settings(&fabric(&kinds[..1])), (8, adaptive, 100, roce(9000)));
        for failed in ["nic4", "nic4-leaf", "nic4-cpu0"] {
            assert_eq!(settings(&all.with_failed(failed).unwrap()), settings(&all), "{failed}");
        }
    }

    /// The protocol that a NIC states takes precedence over the kind of its cable.
    #[test]
    fn ports_of_nics_determine_packets_and_routing() {
        let settings = |cable: &str, ports: [&str; 2]| {
            let nic = |number: u32| {
                let port = ports[number as usize];
                let port = if port.is_empty() { String::new() } else { format!(", link = \"{port}\"") };
                format!(
                    "{{ id = \"nic{number}\", kind = \"nic\", host = \"n{number}\", speed = \"100 Gb/s\"{port} }},\n"
                )
            };
            let text = format!(
                "node = [\n{{ id = \"gpu[0-1]\", kind = \"gpu\", host = \"n[0-1]\", compute_capability = 90 }},\n{}{}\
                 {{ id = \"leaf\", kind = \"switch\" }},\n]\nlink = [\n{{ a = \"gpu[0-1]\", b = \"nic[0-1]\", kind = \"pcie\" }},\n\
                 {{ a = \"nic[0-1]\", b = \"leaf\", kind = \"{cable}\", bandwidth = \"100 Gb/s\" }},\n]\n",
                nic(0),
                nic(1)
            );
            let fabric = fabricast_topologies::read_text(&text, "ports.toml").unwrap();
            let profile = Profile::for_fabric(&fabric).unwrap();
            (Packets::for_fabric(&fabric) == Packets::Infiniband, profile.network.queue_pairs.routing)
        };
        let (adaptive, fixed) = (PacketRouting::Adaptive, PacketRouting::Static);
        assert_eq!(settings("infiniband", ["", ""]), (true, adaptive));
        assert_eq!(settings("infiniband", ["ethernet", "ethernet"]), (false, fixed));
        assert_eq!(settings("infiniband", ["", "ethernet"]), (false, fixed));
        assert_eq!(settings("ethernet", ["", ""]), (false, fixed));
        assert_eq!(settings("ethernet", ["infiniband", "infiniband"]), (true, adaptive));
    }

    /// Hosts with Ethernet links get RoCE packets for their MTU, unless a measured network applies. Hosts with
    /// InfiniBand links never do.
    #[test]
    fn ethernet_uses_roce_packets() {
        use fabricast_topologies::{FabricRequest, load};

        let profile_of = |preset: &str, network: &str, nodes| {
            let network = Some(network.parse().unwrap());
            let fabric = load(&FabricRequest { nodes: Some(nodes), network, ..FabricRequest::new(preset) }).unwrap();
            let profile = Profile::for_fabric(&fabric).unwrap();
            (profile.name, (profile.links.network * 1e4).round())
        };
        for preset in ["hgx-h100", "dgx-a100"] {
            let profile = Profile::for_fabric(&load(&FabricRequest::new(preset)).unwrap()).unwrap();
            let profile = profile.with_network(&MeasuredNetwork::default_network().unwrap());
            let (name, reached) = (profile.name, profile.links.network);
            let hundred = |more: &str| profile_of(preset, &format!("rail,nics_per_node=8,nic=100Gb/s{more}"), 2);
            let as_roce = |payload: f64| (reached / (4096.0 / 4122.0) * payload / (payload + 82.0) * 1e4).round();
            assert_eq!(hundred(""), (name.clone(), (reached * 1e4).round()));
            assert_eq!(hundred(",link=ethernet"), (format!("{name} on roce (mtu 1500)"), as_roce(1024.0)));
            assert_eq!(hundred(",link=ethernet,mtu=9000"), (format!("{name} on roce (mtu 9000)"), as_roce(4096.0)));
        }
        let (name, reached) = profile_of("hgx-h100", "rail,nics_per_node=8,nic=400Gb/s,link=ethernet", 2);
        assert!(name.ends_with(" on infiniband-ndr on roce (mtu 1500)") && reached == 9259.0, "{name} {reached}");
        let (name, reached) = profile_of("hgx-h100", "rail,nics_per_node=32,nic=100Gb/s,link=ethernet", 2);
        assert!(name.ends_with(" on efa-p5") && reached == 9800.0, "{name} {reached}");
        assert!(!profile_of("hgx-h100", "rail,nics_per_node=8,nic=100Gb/s,link=ethernet", 1).0.contains("roce"));
    }

    /// Machines with equal GPUs and NICs can have different networks; a declared link type decides.
    #[test]
    fn measured_networks_apply_unless_declared_otherwise() {
        use fabricast_topologies::{FabricRequest, load};

        let profile_name = |preset: &str, network: &str| {
            let network = Some(network.parse().unwrap());
            let fabric = load(&FabricRequest { nodes: Some(2), network, ..FabricRequest::new(preset) }).unwrap();
            MeasuredNetwork::for_machine(&fabric).unwrap().unwrap().name
        };
        for (preset, network, name) in [
            ("hgx-h100", "rail,nic=200Gb/s", "infiniband-ndr"),
            ("hgx-h100", "rail,nic=200Gb/s,link=ethernet", "tcpxo"),
            ("hgx-h100", "rail,nic=200Gb/s,link=ethernet,mtu=9000", "infiniband-ndr"),
            ("hgx-h100", "rail,nics_per_node=4,nic=200Gb/s,link=ethernet", "tcpx"),
            ("hgx-h100", "rail,nic=400Gb/s,link=ethernet", "infiniband-ndr"),
            ("dgx-a100", "rail,nic=200Gb/s,link=ethernet", "infiniband-ndr"),
            ("gh200", "rail", "slingshot-gh200"),
            ("gh200", "rail,nics_per_node=4,nic=200Gb/s", "slingshot-gh200"),
            ("gh200", "rail,link=infiniband", "infiniband-ndr"),
            ("hgx-h100", "rail,nics_per_node=32,nic=100Gb/s", "efa-p5"),
            ("hgx-h100", "rail,nics_per_node=32,nic=100Gb/s,link=infiniband", "infiniband-ndr"),
            ("dgx-a100", "rail,nics_per_node=4,nic=100Gb/s,link=ethernet", "efa-p4de"),
            ("dgx-a100", "rail,nics_per_node=4,nic=100Gb/s,link=infiniband", "infiniband-ndr"),
            ("mi300x", "rail,nic=400Gb/s,link=ethernet", "rccl-verbs"),
            ("mi355x", "rail,nic=400Gb/s", "rccl-verbs"),
            ("hgx-h200", "tcp-loopback", "sockets-loopback"),
            ("hgx-h200", "rail,nics_per_node=2,nic=28.8Gb/s", "infiniband-ndr"),
        ] {
            assert_eq!(profile_name(preset, network), name, "{preset} {network}");
        }
    }

    #[test]
    fn shipped_networks_are_named_after_their_files() {
        for (name, text) in SHIPPED {
            assert_eq!(MeasuredNetwork::parse(text, name).unwrap().name, name);
        }
    }

    #[test]
    fn errors_name_line_and_key() {
        let (name, text) = SHIPPED[0];
        let efficiency = text.lines().find(|line| line.starts_with("efficiency")).unwrap();
        let message =
            MeasuredNetwork::parse(&text.replace(efficiency, "efficiency = 2"), name).unwrap_err().to_string();
        let line = 1 + text.lines().position(|line| line == efficiency).unwrap();
        assert!(message.starts_with(&format!("{name}:{line}:14: efficiency: 2 is not a fraction")), "{message}");
    }
}
