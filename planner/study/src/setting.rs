//! Settings of the sensitivity analysis, and their effect on a candidate.

use fabricast_topologies::fabric::LinkKind;
use fabricast_topologies::{Fabric, FabricRequest, NetworkSpec, SourceLocation, preset};

use super::{Assumptions, Candidate};

/// Setting of the sensitivity analysis: a single change of the study.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// The study as stated, without a change.
    AsGiven,
    /// Factor on the bandwidth of links between hosts.
    LinkRate(f64),
    /// Factor on the bandwidth of NVLink, or of xGMI between AMD GPUs.
    NvlinkRate(f64),
    /// Oversubscription of the network: ratio of the bandwidth below a leaf switch to that above it.
    Oversubscription(f64),
    /// Number of NICs per host.
    NicsPerNode(u32),
    /// Devices out of service, as with the option `--fail`.
    Failed {
        /// Names of links, devices or hosts.
        names: Vec<String>,
        /// Source location of the names.
        location: SourceLocation,
    },
    /// Factor on the prices of all candidates.
    GpuPrice(f64),
    /// Fraction of the time that machines are in use, 0 to 1.
    Utilization(f64),
    /// Price of a kWh of energy, in the study's currency.
    EnergyPrice(f64),
}

/// Function that loads the fabric of a request.
pub type Load<'a> = &'a (dyn Fn(&FabricRequest) -> fabricast_topologies::Result<Fabric> + Sync);

/// Effect of a setting on the fabric of a candidate.
#[derive(Debug)]
pub enum SettingEffect {
    /// The fabric does not change, because the setting affects only costs.
    Same,
    /// The fabric does not change, because the setting does not apply to the candidate.
    Unchanged {
        /// Reason why the setting does not apply.
        reason: String,
    },
    /// Fabric to which the setting was applied.
    Changed(Box<Fabric>),
}

impl Setting {
    /// Returns the key of the setting in `[sensitivity]`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::AsGiven => "as_given",
            Self::LinkRate(_) => "link_rate",
            Self::NvlinkRate(_) => "nvlink_rate",
            Self::Oversubscription(_) => "oversubscription",
            Self::NicsPerNode(_) => "nics_per_node",
            Self::Failed { .. } => "fail",
            Self::GpuPrice(_) => "gpu_price",
            Self::Utilization(_) => "utilization",
            Self::EnergyPrice(_) => "usd_per_kwh",
        }
    }

    /// Returns the value of the setting as text; empty for the unchanged study.
    #[must_use]
    pub fn value(&self) -> String {
        match self {
            Self::AsGiven => String::new(),
            Self::LinkRate(value)
            | Self::NvlinkRate(value)
            | Self::Oversubscription(value)
            | Self::GpuPrice(value)
            | Self::Utilization(value)
            | Self::EnergyPrice(value) => value.to_string(),
            Self::NicsPerNode(count) => count.to_string(),
            Self::Failed { names, .. } => names.join(", "),
        }
    }

    /// Returns the display name of the setting: its key and value.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{} {}", self.name(), self.value()).trim_end().to_owned()
    }

    /// Returns the fabric of a candidate under the setting. `base`: the unchanged fabric; `load`: function that loads
    /// fabrics with other networks.
    #[must_use]
    pub fn fabric(&self, candidate: &Candidate, base: &Fabric, load: Load<'_>) -> SettingEffect {
        let unchanged = |reason: &str| SettingEffect::Unchanged { reason: reason.to_owned() };
        let change_network = |change: &dyn Fn(&mut NetworkSpec)| {
            if base.with_scaled_bandwidth(&LinkKind::NETWORK, 1.0).is_none() {
                return unchanged(NO_NETWORK);
            }
            let request = &candidate.fabric;
            if request.network.is_none() && preset::text(&request.fabric).is_none() {
                return unchanged("its file states its network");
            }
            let mut network = request.network.clone().unwrap_or_default();
            change(&mut network);
            match load(&FabricRequest { network: Some(network), ..request.clone() }) {
                Ok(fabric) => SettingEffect::Changed(fabric.into()),
                Err(error) => SettingEffect::Unchanged { reason: error.to_string() },
            }
        };
        match self {
            Self::AsGiven | Self::GpuPrice(_) | Self::Utilization(_) | Self::EnergyPrice(_) => SettingEffect::Same,
            Self::LinkRate(factor) => match base.with_scaled_bandwidth(&LinkKind::NETWORK, *factor) {
                Some(fabric) => SettingEffect::Changed(fabric.into()),
                None => unchanged(NO_NETWORK),
            },
            Self::NvlinkRate(factor) => match base.with_scaled_bandwidth(&[LinkKind::Nvlink], *factor) {
                Some(fabric) => SettingEffect::Changed(fabric.into()),
                None => unchanged("no NVLink"),
            },
            Self::Oversubscription(factor) => change_network(&|network| network.oversubscription = Some(*factor)),
            Self::NicsPerNode(count) => change_network(&|network| network.nics_per_node = Some(*count)),
            Self::Failed { names, .. } => {
                let mut remaining = base.clone();
                for name in names {
                    match remaining.with_failed(name) {
                        Ok(fabric) => remaining = fabric,
                        Err(error) => return SettingEffect::Unchanged { reason: error.to_string() },
                    }
                }
                match remaining.gpus() {
                    [] => unchanged("no GPU would remain"),
                    _ => SettingEffect::Changed(remaining.into()),
                }
            }
        }
    }

    /// Returns the assumptions for costs under the setting.
    #[must_use]
    pub fn assumptions(&self, base: Assumptions) -> Assumptions {
        match *self {
            Self::Utilization(utilization) => Assumptions { utilization, ..base },
            Self::EnergyPrice(per_kwh) => Assumptions { per_kwh, ..base },
            _ => base,
        }
    }

    /// Returns the factor on all prices under the setting.
    #[must_use]
    pub fn price_factor(&self) -> f64 {
        match *self {
            Self::GpuPrice(factor) => factor,
            _ => 1.0,
        }
    }
}

/// Reason why network settings do not apply to candidates with a single host or a single NVLink domain.
const NO_NETWORK: &str = "no network between its hosts";
