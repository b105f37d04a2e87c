//! Properties of AMD hosts that RCCL's cost model uses.

use std::collections::BTreeMap;

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::{Fabric, NodeId};

use super::version::RcclVersion;

/// Architecture of AMD GPUs for which RCCL has a tuning table of hosts with eight GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// MI300A, MI300X, MI325X.
    Gfx942,
    /// MI350X, MI355X.
    Gfx950,
}

/// Number of GPUs of the hosts that RCCL's tables describe (`src/graph/rome_models.cc`, models 79 and 81).
pub(super) const GPUS: u32 = 8;

/// Hosts of a communicator, with the properties that RCCL's choices depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RcclHosts {
    /// Architecture of all GPUs.
    pub architecture: Architecture,
    /// Number of hosts, each with eight ranks.
    pub hosts: u32,
}

/// Reason why RCCL's choices on some hosts are not predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum HostsNotModelled {
    /// A GPU is not from AMD.
    #[error("it runs on AMD GPUs only")]
    NotAmd,
    /// The choice depends on a table of the host's model, and a topology does not identify the model.
    #[error("only MI300 and MI350 GPUs are modelled; on others its tables depend on the model of the host")]
    Architecture,
    /// With fewer than eight GPUs on a host, RCCL runs its own topology search, which is not modelled.
    #[error("its search for rings is modelled for hosts of eight GPUs only")]
    NotEight,
    /// RCCL rejects several ranks on a GPU.
    #[error("it supports one rank per GPU only")]
    SharedGpu,
}

impl Architecture {
    /// Architecture of a GPU by the number in its name: gfx942 is 942.
    fn from_number(number: u32) -> Result<Self, HostsNotModelled> {
        match number {
            942 => Ok(Self::Gfx942),
            950 => Ok(Self::Gfx950),
            // Compute capabilities × 10 of NVIDIA GPUs have two or three digits, up to 129.
            0..=129 => Err(HostsNotModelled::NotAmd),
            _ => Err(HostsNotModelled::Architecture),
        }
    }

    /// Bandwidth of an xGMI link in RCCL's cost model, in GB/s (`src/graph/topo.h`, `GFX94X_XGMI_WIDTH`,
    /// `GFX95X_XGMI_WIDTH`).
    fn link_gb_per_s(self) -> f64 {
        48.0
    }
}

impl RcclHosts {
    /// Determines the hosts of ranks on a fabric.
    ///
    /// # Errors
    /// Returns [`HostsNotModelled`] with the reason for hosts that are not modelled.
    pub fn from_fabric(fabric: &Fabric, placement: &[NodeId]) -> Result<Self, HostsNotModelled> {
        let mut ranks: BTreeMap<_, Vec<NodeId>> = BTreeMap::new();
        let mut architecture = None;
        for &gpu in placement {
            let node = fabric.node(gpu);
            let number = match &node.figures {
                Figures::Gpu(figures) => figures.compute_capability,
                _ => None,
            };
            let own = Architecture::from_number(number.unwrap_or(0))?;
            if *architecture.get_or_insert(own) != own {
                return Err(HostsNotModelled::Architecture);
            }
            ranks.entry(node.host).or_default().push(gpu);
        }
        for gpus in ranks.values_mut() {
            let count = gpus.len();
            gpus.sort_unstable();
            gpus.dedup();
            if gpus.len() != count {
                return Err(HostsNotModelled::SharedGpu);
            }
            if count != GPUS as usize {
                return Err(HostsNotModelled::NotEight);
            }
        }
        let architecture = architecture.ok_or(HostsNotModelled::NotEight)?;
        Ok(Self { architecture, hosts: ranks.len() as u32 })
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.hosts * GPUS
    }

    /// Total bandwidth of a GPU's links in RCCL's cost model, in GB/s. The rings of a host share this bandwidth
    /// (`src/graph/rome_models.cc`: a ring has `totalBw / nChannels`).
    #[must_use]
    pub fn total_gb_per_s(&self) -> f64 {
        f64::from(GPUS - 1) * self.architecture.link_gb_per_s()
    }

    /// Number of channels of rings and trees before the message size limits it: 28 rings of a host, used twice, or 64
    /// over the network (`src/graph/connect.cc`, `ncclTopoPostset`). MI350 has 112 on a host before 2.28.3, and 48 over
    /// the network since 2.28.3 (CHANGELOG.md of 2.26.6 and 2.28.3).
    #[must_use]
    pub fn channels(&self, version: RcclVersion) -> u16 {
        match (self.architecture, self.hosts) {
            (Architecture::Gfx950, 1) if version < RcclVersion::V2_28_3 => 112,
            (_, 1) => 56,
            (Architecture::Gfx950, _) if version >= RcclVersion::V2_28_3 => 48,
            _ => 64,
        }
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::preset;

    use super::*;

    fn hosts(name: &str, gpus: usize) -> Result<RcclHosts, HostsNotModelled> {
        let fabric = preset::load(name).unwrap();
        RcclHosts::from_fabric(&fabric, &fabric.gpus()[..gpus])
    }

    #[test]
    fn presets_have_their_architecture() {
        let one = |architecture| Ok(RcclHosts { architecture, hosts: 1 });
        assert_eq!(hosts("mi300x", 8), one(Architecture::Gfx942));
        assert_eq!(hosts("mi325x", 8), one(Architecture::Gfx942));
        assert_eq!(hosts("mi355x", 8), one(Architecture::Gfx950));
        assert_eq!(hosts("mi300x", 4), Err(HostsNotModelled::NotEight));
        assert_eq!(hosts("mi250x", 8), Err(HostsNotModelled::Architecture));
        assert_eq!(hosts("hgx-h100", 8), Err(HostsNotModelled::NotAmd));
    }

    #[test]
    fn channels_follow_the_rings_of_a_host() {
        let mi300 = RcclHosts { architecture: Architecture::Gfx942, hosts: 1 };
        let mi355 = RcclHosts { architecture: Architecture::Gfx950, hosts: 2 };
        assert_eq!(mi300.channels(RcclVersion::NEWEST), 2 * 28);
        assert_eq!(mi355.channels(RcclVersion::V2_27_7), 64);
        assert_eq!(mi355.channels(RcclVersion::V2_28_3), 48);
        assert!((mi300.total_gb_per_s() - 336.0).abs() < 1e-9);
    }
}
