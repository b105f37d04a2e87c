//! Reader of profile files (TOML), the shipped profiles, and selection of the best match for a fabric.

use fabricast_topologies::fabric::{Figures, suggest_names};
use fabricast_topologies::gpus;
use fabricast_topologies::{Bandwidth, Bytes, Fabric, Picos};
use serde::Deserialize;

use super::band_file::BandsFile;
use super::message_file::MessageFile;
use super::network_file::{MeasuredNetwork, NetworkFile};
use super::reader::{ProfileError, ProfileReader};
use super::{ChannelLimit, LaunchCosts, LinkEfficiency, Passes, Profile, ProtocolCosts};

/// Names of the shipped profiles, and the texts of their files.
const SHIPPED: [(&str, &str); 12] = [
    ("nccl-2.28-h200", include_str!("../../profiles/nccl-2.28-h200.toml")),
    ("nccl-2.29-h100", include_str!("../../profiles/nccl-2.29-h100.toml")),
    ("nccl-2.27-a100", include_str!("../../profiles/nccl-2.27-a100.toml")),
    ("nccl-2.29-b200", include_str!("../../profiles/nccl-2.29-b200.toml")),
    ("nccl-2.29-gb200", include_str!("../../profiles/nccl-2.29-gb200.toml")),
    ("nccl-2.27-l40s", include_str!("../../profiles/nccl-2.27-l40s.toml")),
    ("rccl-2.22-mi300x", include_str!("../../profiles/rccl-2.22-mi300x.toml")),
    ("rccl-2.27-mi355x", include_str!("../../profiles/rccl-2.27-mi355x.toml")),
    ("kernels-h200", include_str!("../../profiles/kernels-h200.toml")),
    ("kernels-h200-pair", include_str!("../../profiles/kernels-h200-pair.toml")),
    ("kernels-h100", include_str!("../../profiles/kernels-h100.toml")),
    ("open_mpi-5.0", include_str!("../../profiles/open_mpi-5.0.toml")),
];

/// Library name of profiles for the kernels that fabricast generates from schedules.
const KERNELS: &str = "fabricast";

/// Fraction of NVLink bandwidth that switch multicast and reduction reach on Blackwell without a measurement (NCCL
/// 2.30.7 src/graph/tuning.cc, `nvlsEfficiency`).
const BLACKWELL_MULTICAST: f64 = 0.74;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    name: String,
    library: String,
    compute_capability: u32,
    #[serde(default)]
    gpus: Vec<String>,
    date: String,
    source: Vec<String>,
    band: BandsFile,
    links: LinksFile,
    network: Option<NetworkFile>,
    message: Option<MessageFile>,
    protocol: ProtocolsFile,
    launch: LaunchesFile,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinksFile {
    nvlink: f64,
    c2c: f64,
    pcie: f64,
    /// Fraction of `pcie` for transfers between GPUs of a host; 1 if the file does not have the key.
    #[serde(default = "whole")]
    pcie_peers: f64,
    upi: f64,
    multicast: f64,
    network: f64,
}

fn whole() -> f64 {
    1.0
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProtocolsFile {
    ll: ProtocolFile,
    ll128: ProtocolFile,
    simple: ProtocolFile,
    symmetric: ProtocolFile,
    copy_engine: ProtocolFile,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProtocolFile {
    startup: String,
    startup_p2p: Option<String>,
    startup_per_warp: Option<String>,
    startup_per_peer: Option<String>,
    step: String,
    step_per_warp: Option<String>,
    reduce: Option<String>,
    copy: Option<String>,
    reload: Option<String>,
    fan: Option<String>,
    add: Option<String>,
    settle: Option<String>,
    settle_half: Option<String>,
    wire_efficiency: f64,
    channel: Option<String>,
    pass: Option<PassFile>,
    threads: Option<u16>,
    split: Option<f64>,
    chunk: Option<String>,
    slices: Option<u16>,
    stream: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PassFile {
    bytes_per_thread: String,
    send: String,
    forward: String,
    take: String,
    store: Option<String>,
    per_warp: String,
    first_take: String,
    exchange: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LaunchesFile {
    graph: ModesFile,
    stream: ModesFile,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModesFile {
    per_gpu: LaunchFile,
    single: LaunchFile,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LaunchFile {
    added: String,
    added_per_gpu: Option<String>,
    floor_per_peer: Option<String>,
    floor_one_way: Option<String>,
    floor: String,
    floor_per_gpu: String,
    jitter: Option<String>,
}

impl Profile {
    /// Names of the built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        std::iter::once("ideal").chain(SHIPPED.iter().map(|&(name, _)| name))
    }

    /// Loads a built-in profile.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`] for any other name.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        if name == "ideal" {
            return Ok(Self::ideal());
        }
        match SHIPPED.iter().find(|&&(shipped, _)| shipped == name) {
            Some((_, text)) => Self::parse(text, name),
            None => {
                let known = Self::names().collect::<Vec<_>>().join(", ");
                let near = suggest_names(name, Self::names());
                Err(ProfileError::Unknown { name: name.to_owned(), near, known })
            }
        }
    }

    /// Returns the shipped NCCL or RCCL profile that fits the fabric's GPUs best. If the GPU generation was not
    /// measured, it is the profile of the nearest generation, with wider intervals and "(derived)" in its name.
    ///
    /// # Errors
    /// [`ProfileError::UnknownGpu`] if the machine file permits GPU models of several compute capabilities.
    pub fn for_fabric(fabric: &Fabric) -> Result<Self, ProfileError> {
        Self::nearest(fabric, Software::Nccl)
    }

    /// Returns the shipped profile of the given software that fits the fabric's GPUs best, selected as by
    /// [`Self::for_fabric`].
    ///
    /// # Errors
    /// The errors of [`Profile::for_fabric`].
    pub fn nearest(fabric: &Fabric, software: Software) -> Result<Self, ProfileError> {
        let figures = fabric.gpus().iter().find_map(|&gpu| match &fabric.node(gpu).figures {
            Figures::Gpu(figures) => Some(figures),
            _ => None,
        });
        let candidates = fabric.gpu_candidates();
        let capability = figures.and_then(|gpu| gpu.compute_capability);
        if capability.is_none() && !candidates.is_empty() {
            let candidates = group_by_capability(candidates);
            return Err(ProfileError::UnknownGpu { fabric: fabric.name().to_owned(), candidates });
        }
        let wanted = capability.unwrap_or(0);
        let model = figures.and_then(|gpu| gpu.model.as_deref());
        let is_other_model = |p: &Self| model.is_some_and(|model| !p.gpus.iter().any(|gpu| model.starts_with(gpu)));
        let mut best: Option<Self> = None;
        for (name, text) in SHIPPED {
            let profile = Self::parse(text, name)?;
            let distance = |p: &Self| (p.compute_capability.abs_diff(wanted), is_other_model(p));
            if profile.software() == software && best.as_ref().is_none_or(|b| distance(&profile) < distance(b)) {
                best = Some(profile);
            }
        }
        let mut profile = best.unwrap_or_else(Self::ideal);
        if profile.compute_capability != wanted || is_other_model(&profile) {
            profile.name = format!("{} (derived)", profile.name);
            profile.bands = profile.bands.for_other_hardware();
            if wanted >= 100 && profile.compute_capability < 100 {
                profile.links.multicast = profile.links.multicast.min(BLACKWELL_MULTICAST);
            }
        }
        if candidates.len() > 1 && model.is_none() {
            // The interval covers all candidate GPUs.
            profile.name = format!("{} (for any of {})", profile.name, candidates.join(", "));
            profile.bands = profile.bands.for_other_hardware();
        }
        profile.with_network_of_fabric(fabric)
    }

    /// Software that the profile describes.
    #[must_use]
    pub fn software(&self) -> Software {
        match &self.messages {
            Some(_) => Software::Mpi,
            None if self.library == KERNELS => Software::Kernels,
            None => Software::Nccl,
        }
    }

    /// Parses the text of a profile file; `source` is its name in errors.
    ///
    /// # Errors
    /// [`ProfileError`] with line and column, or the key.
    pub fn parse(text: &str, source: &str) -> Result<Self, ProfileError> {
        let reader = ProfileReader { source, text };
        reader.read::<ProfileFile>()?.into_profile(&reader)
    }
}

/// Lists GPU models by compute capability, such as `A100 SXM 80GB, A30 (8.0); A10, A40 (8.6)`.
fn group_by_capability(names: &[String]) -> String {
    let capability = |name: &String| gpus::model(name).map_or_else(String::new, gpus::GpuModel::capability);
    let groups = names.chunk_by(|a, b| capability(a) == capability(b));
    let worded =
        groups.map(|group| format!("{} ({})", group.join(", "), group.first().map_or_else(String::new, capability)));
    worded.collect::<Vec<_>>().join("; ")
}

/// Software whose cost a profile describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Software {
    /// NCCL, or a library built alike (RCCL): thread blocks move the data.
    Nccl,
    /// Kernels that fabricast generates from schedules (`gpu run`).
    Kernels,
    /// An MPI: two-sided messages.
    Mpi,
}

impl ProfileReader<'_> {
    fn protocol(&self, key: &str, file: &ProtocolFile) -> Result<ProtocolCosts, ProfileError> {
        let at = |field: &str| format!("protocol.{key}.{field}");
        let time = |field: &str, text: &Option<String>| -> Result<Picos, ProfileError> {
            Ok(self.optional(&at(field), text.as_deref())?.unwrap_or(Picos::ZERO))
        };
        let rate = self.optional::<Bandwidth>(&at("channel"), file.channel.as_deref())?;
        let channel_limit = match (rate, &file.pass) {
            (Some(_), Some(_)) => {
                return Err(self.error(&at("pass"), "a channel has a rate or works by passes, not both"));
            }
            (Some(rate), None) => ChannelLimit::Rate(rate),
            (None, Some(pass)) => ChannelLimit::Passes(self.passes(key, pass)?),
            (None, None) => ChannelLimit::Unlimited,
        };
        let free = ProtocolCosts::FREE;
        let threads = file.threads.unwrap_or(free.threads);
        if !(32..=1024).contains(&threads) {
            return Err(self.error(&at("threads"), format!("{threads}: a block has 32 to 1024 threads")));
        }
        Ok(ProtocolCosts {
            startup: self.quantity(&at("startup"), &file.startup)?,
            startup_p2p: self.optional(&at("startup_p2p"), file.startup_p2p.as_deref())?,
            startup_per_warp: time("startup_per_warp", &file.startup_per_warp)?,
            startup_per_peer: time("startup_per_peer", &file.startup_per_peer)?,
            step: self.quantity(&at("step"), &file.step)?,
            step_per_warp: time("step_per_warp", &file.step_per_warp)?,
            reduce: time("reduce", &file.reduce)?,
            copy: time("copy", &file.copy)?,
            reload: time("reload", &file.reload)?,
            split_block: time("fan", &file.fan)?,
            add: self.optional(&at("add"), file.add.as_deref())?,
            settle: time("settle", &file.settle)?,
            settle_half: self.optional(&at("settle_half"), file.settle_half.as_deref())?.unwrap_or(Bytes(0)),
            wire_efficiency: self.fraction(&at("wire_efficiency"), file.wire_efficiency)?,
            channel_limit,
            threads,
            split: file.split.map_or(Ok(free.split), |split| self.fraction(&at("split"), split))?,
            chunk: self.optional(&at("chunk"), file.chunk.as_deref())?,
            slices: file.slices.unwrap_or(free.slices).max(1),
            stream: self.optional(&at("stream"), file.stream.as_deref())?,
        })
    }

    fn passes(&self, key: &str, file: &PassFile) -> Result<Passes, ProfileError> {
        let at = |field: &str| format!("protocol.{key}.pass.{field}");
        Ok(Passes {
            bytes_per_thread: self.quantity(&at("bytes_per_thread"), &file.bytes_per_thread)?,
            send: self.quantity(&at("send"), &file.send)?,
            forward: self.quantity(&at("forward"), &file.forward)?,
            receive: self.quantity(&at("take"), &file.take)?,
            store: self.optional(&at("store"), file.store.as_deref())?.unwrap_or(Picos::ZERO),
            per_warp: self.quantity(&at("per_warp"), &file.per_warp)?,
            first_receive: self.quantity(&at("first_take"), &file.first_take)?,
            exchange: self.optional(&at("exchange"), file.exchange.as_deref())?,
        })
    }

    fn launch(&self, key: &str, file: &LaunchFile) -> Result<LaunchCosts, ProfileError> {
        let at = |field: &str| format!("launch.{key}.{field}");
        Ok(LaunchCosts {
            added: self.quantity(&at("added"), &file.added)?,
            added_per_gpu: self.optional(&at("added_per_gpu"), file.added_per_gpu.as_deref())?.unwrap_or(Picos::ZERO),
            floor: self.quantity(&at("floor"), &file.floor)?,
            floor_per_gpu: self.quantity(&at("floor_per_gpu"), &file.floor_per_gpu)?,
            floor_per_peer: self
                .optional(&at("floor_per_peer"), file.floor_per_peer.as_deref())?
                .unwrap_or(Picos::ZERO),
            floor_one_way: self.optional(&at("floor_one_way"), file.floor_one_way.as_deref())?.unwrap_or(Picos::ZERO),
            jitter: self.optional(&at("jitter"), file.jitter.as_deref())?.unwrap_or(Picos::ZERO),
        })
    }
}

impl ProfileFile {
    fn into_profile(self, reader: &ProfileReader<'_>) -> Result<Profile, ProfileError> {
        let bands = self.band.bands().map_err(|(key, message)| reader.error(key, message))?;
        let links = LinkEfficiency {
            nvlink: reader.fraction("links.nvlink", self.links.nvlink)?,
            c2c: reader.fraction("links.c2c", self.links.c2c)?,
            pcie: reader.fraction("links.pcie", self.links.pcie)?,
            pcie_peers: reader.fraction("links.pcie_peers", self.links.pcie_peers)?,
            upi: reader.fraction("links.upi", self.links.upi)?,
            multicast: reader.fraction("links.multicast", self.links.multicast)?,
            network: reader.fraction("links.network", self.links.network)?,
        };
        Ok(Profile {
            protocols: [
                reader.protocol("ll", &self.protocol.ll)?,
                reader.protocol("ll128", &self.protocol.ll128)?,
                reader.protocol("simple", &self.protocol.simple)?,
                reader.protocol("symmetric", &self.protocol.symmetric)?,
                reader.protocol("copy_engine", &self.protocol.copy_engine)?,
            ],
            launches: [
                [
                    reader.launch("graph.per_gpu", &self.launch.graph.per_gpu)?,
                    reader.launch("graph.single", &self.launch.graph.single)?,
                ],
                [
                    reader.launch("stream.per_gpu", &self.launch.stream.per_gpu)?,
                    reader.launch("stream.single", &self.launch.stream.single)?,
                ],
            ],
            name: self.name,
            library: self.library,
            compute_capability: self.compute_capability,
            gpus: self.gpus,
            date: self.date,
            sources: self.source,
            links,
            bands,
            messages: self.message.as_ref().map(|message| message.costs(reader)).transpose()?,
            network: match &self.network {
                Some(network) => network.costs(reader)?,
                None => MeasuredNetwork::default_network()?.costs,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(from: &str, to: &str) -> String {
        let (name, text) = SHIPPED[0];
        assert!(text.contains(from), "{from}");
        Profile::parse(&text.replacen(from, to, 1), name).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_line_and_column() {
        let text = SHIPPED[0].1;
        let find_line = |part: &str| 1 + text.lines().position(|line| line.contains(part)).unwrap();
        let startup = text.lines().find(|line| line.starts_with("startup")).unwrap();
        let negative = error(startup, "startup = \"-1 us\"");
        let line = find_line(startup);
        assert!(
            negative.starts_with(&format!("nccl-2.28-h200:{line}:11: protocol.ll.startup: `-1 us` is not")),
            "{negative}"
        );
        let share = error("upi = 0.85", "upi = 85");
        assert!(
            share.starts_with(&format!("nccl-2.28-h200:{}:7: links.upi: 85 is not", find_line("upi = 0.85"))),
            "{share}"
        );
        let key = error("wire_efficiency = 0.5", "wire_eficiency = 0.5");
        assert!(key.contains("unknown field `wire_eficiency`"), "{key}");
    }

    #[test]
    fn fabrics_get_the_profile_of_their_gpu_model() {
        let profile_name =
            |preset: &str| Profile::for_fabric(&fabricast_topologies::preset::load(preset).unwrap()).unwrap().name;
        for (preset, name) in [
            ("hgx-h200", "nccl-2.28-h200"),
            ("hgx-h100", "nccl-2.29-h100"),
            ("dgx-a100", "nccl-2.27-a100"),
            ("hgx-b200", "nccl-2.29-b200"),
            ("gb200-nvl72", "nccl-2.29-gb200"),
            ("l40s-pcie", "nccl-2.27-l40s"),
            ("mi300x", "rccl-2.22-mi300x"),
            ("mi355x", "rccl-2.27-mi355x"),
        ] {
            assert_eq!(profile_name(preset), name, "{preset}");
        }
        // Preference: another GPU model of the same generation, then other generations.
        for (preset, near) in [
            ("hgx-b300", "nccl-2.29-b200"),
            ("gh200", "nccl-2.28-h200"),
            ("dgx-v100", "nccl-2.27-a100"),
            ("mi325x", "rccl-2.22-mi300x"),
        ] {
            assert_eq!(profile_name(preset), format!("{near} (derived)"), "{preset}");
        }
    }

    #[test]
    fn kernels_have_separate_profiles() {
        let profile_name = |preset: &str| {
            Profile::nearest(&fabricast_topologies::preset::load(preset).unwrap(), Software::Kernels).unwrap().name
        };
        assert_eq!(profile_name("hgx-h200"), "kernels-h200");
        assert_eq!(profile_name("hgx-h100"), "kernels-h100");
        assert_eq!(profile_name("hgx-b200"), "kernels-h200 (derived)");
    }

    #[test]
    fn unknown_names_suggest_similar_ones() {
        let message = Profile::named("nccl-2.28-h2000").unwrap_err().to_string();
        assert!(message.contains("did you mean nccl-2.28-h200 or"), "{message}");
    }
}
