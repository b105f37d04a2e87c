//! What is changed to see how the answer changes: each setting of `[sensitivity]`, and what it makes of a candidate.

use fabricast_topologies::fabric::LinkKind;
use fabricast_topologies::{Fabric, FabricRequest, NetworkSpec, Place, preset};

use super::{Assumptions, Candidate};

/// What is other than the study says.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// Nothing.
    AsGiven,
    /// Cables between hosts carry so many times as much.
    LinkRate(f64),
    /// NVLink, or xGMI between AMD's GPUs, carries so many times as much.
    NvlinkRate(f64),
    /// Bandwidth below a leaf over bandwidth above it.
    Oversubscription(f64),
    /// NICs of each host.
    NicsPerNode(u32),
    /// These are out of service, as `--fail` takes them.
    Failed {
        /// Links, devices, hosts.
        names: Vec<String>,
        /// Where they are named.
        place: Place,
    },
    /// All prices are so many times as much.
    GpuPrice(f64),
    /// Machines work so much of the time.
    Utilization(f64),
    /// A kWh costs so much.
    PerKwh(f64),
}

/// Loads a fabric; what cannot be is told.
pub type Load<'a> = &'a (dyn Fn(&FabricRequest) -> fabricast_topologies::Result<Fabric> + Sync);

/// What a setting makes of a candidate's fabric.
#[derive(Debug)]
pub enum Under {
    /// What it was: prices change no fabric.
    Same,
    /// What it was, since the setting does not apply to it.
    Unchanged {
        /// Why not.
        why: String,
    },
    /// Another one.
    Changed(Box<Fabric>),
}

impl Setting {
    /// As the study's key has it.
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
            Self::PerKwh(_) => "usd_per_kwh",
        }
    }

    /// What it is set to, as it is written.
    #[must_use]
    pub fn value(&self) -> String {
        match self {
            Self::AsGiven => String::new(),
            Self::LinkRate(value)
            | Self::NvlinkRate(value)
            | Self::Oversubscription(value)
            | Self::GpuPrice(value)
            | Self::Utilization(value)
            | Self::PerKwh(value) => value.to_string(),
            Self::NicsPerNode(count) => count.to_string(),
            Self::Failed { names, .. } => names.join(", "),
        }
    }

    /// Name and value, for people.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{} {}", self.name(), self.value()).trim_end().to_owned()
    }

    /// The fabric of a candidate, which is `given` as the study says.
    #[must_use]
    pub fn fabric(&self, candidate: &Candidate, given: &Fabric, load: Load<'_>) -> Under {
        let unchanged = |why: &str| Under::Unchanged { why: why.to_owned() };
        let with = |change: &dyn Fn(&mut NetworkSpec)| {
            if given.with_rates_times(&LinkKind::NETWORK, 1.0).is_none() {
                return unchanged(ALONE);
            }
            let request = &candidate.fabric;
            if request.network.is_none() && preset::text(&request.fabric).is_none() {
                return unchanged("its file states its network");
            }
            let mut network = request.network.clone().unwrap_or_default();
            change(&mut network);
            match load(&FabricRequest { network: Some(network), ..request.clone() }) {
                Ok(fabric) => Under::Changed(fabric.into()),
                Err(error) => Under::Unchanged { why: error.to_string() },
            }
        };
        match self {
            Self::AsGiven | Self::GpuPrice(_) | Self::Utilization(_) | Self::PerKwh(_) => Under::Same,
            Self::LinkRate(factor) => match given.with_rates_times(&LinkKind::NETWORK, *factor) {
                Some(fabric) => Under::Changed(fabric.into()),
                None => unchanged(ALONE),
            },
            Self::NvlinkRate(factor) => match given.with_rates_times(&[LinkKind::Nvlink], *factor) {
                Some(fabric) => Under::Changed(fabric.into()),
                None => unchanged("no NVLink"),
            },
            Self::Oversubscription(factor) => with(&|network| network.oversubscription = Some(*factor)),
            Self::NicsPerNode(count) => with(&|network| network.nics_per_node = Some(*count)),
            Self::Failed { names, .. } => {
                let mut left = given.clone();
                for name in names {
                    match left.without(name) {
                        Ok(fabric) => left = fabric,
                        Err(error) => return Under::Unchanged { why: error.to_string() },
                    }
                }
                match left.gpus() {
                    [] => unchanged("no GPU would be left"),
                    _ => Under::Changed(left.into()),
                }
            }
        }
    }

    /// What costs are worked out with.
    #[must_use]
    pub fn assumptions(&self, given: Assumptions) -> Assumptions {
        match *self {
            Self::Utilization(utilization) => Assumptions { utilization, ..given },
            Self::PerKwh(per_kwh) => Assumptions { per_kwh, ..given },
            _ => given,
        }
    }

    /// What prices are multiplied by.
    #[must_use]
    pub fn price_factor(&self) -> f64 {
        match *self {
            Self::GpuPrice(factor) => factor,
            _ => 1.0,
        }
    }
}

/// Of a candidate of one host, or of one NVLink domain alone.
const ALONE: &str = "no network between its hosts";
