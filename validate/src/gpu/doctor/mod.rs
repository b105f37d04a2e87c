//! `gpu doctor`: whether the GPUs' links are as fast as they should be, and if not, why and where to look further.
//!
//! A [`Bench`] is held against a [`Fabric`]: the one that the user names, or the one that the machine's own probe makes.
//! Each link and pair is judged on its own, then what several faults have in common is named once: a GPU all of whose
//! ways are slow has slow links; a pair over NVLink at the speed of PCIe does not use its NVLink.

mod expect;
mod groups;
mod host_findings;
mod hosts;
mod links;
mod pairs;
mod text;
mod together;
mod topology;

#[cfg(test)]
mod tests;

use fabricast_topologies::{Fabric, Result};
use serde::Serialize;

use super::bench::Bench;

pub use hosts::HostVerdict;
pub use pairs::PairVerdict;

/// What the doctor says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// The machine.
    pub machine: String,
    /// What it was held against.
    pub fabric: String,
    /// When it was measured.
    pub date: String,
    /// Every ordered pair of GPUs.
    pub pairs: Vec<PairVerdict>,
    /// The host's links, both ways of each GPU.
    pub hosts: Vec<HostVerdict>,
    /// What is wrong, and what is worth knowing.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// Whether something is wrong.
    pub fn is_sound(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity == Severity::Note)
    }
}

/// One thing that the doctor found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Whether something is wrong.
    pub severity: Severity,
    /// What.
    pub fault: Fault,
    /// The GPUs concerned.
    pub gpus: Vec<usize>,
    /// What was seen, with figures.
    pub message: String,
    /// Why, probably.
    pub cause: String,
    /// The command to look further.
    pub look: String,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something is wrong.
    Fault,
    /// Worth knowing.
    Note,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The fabric does not describe this machine.
    WrongTopology,
    /// NVLinks are down.
    MissingLinks,
    /// NVLinks correct errors.
    LinkErrors,
    /// GPUs that should reach each other's memory do not.
    NoPeerAccess,
    /// Bytes that should go over NVLink go over PCIe or through the host.
    PcieFallback,
    /// A link or pair is slower than it should be.
    SlowLink,
    /// Thread blocks send slower than they should where copy engines do not.
    SlowBlocks,
    /// A flag takes longer than between other pairs, or than its way explains.
    SlowFlag,
    /// What is fast alone is slow together.
    SlowTogether,
    /// The host's link is slower than it should be.
    SlowHostLink,
    /// A GPU is far from the memory that was used.
    NumaDistance,
    /// A pair, or a GPU's way to or from the host, was not measured.
    NotMeasured,
}

impl Severity {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Note => "note",
        }
    }
}

impl Fault {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::WrongTopology => "wrong_topology",
            Self::MissingLinks => "missing_links",
            Self::LinkErrors => "link_errors",
            Self::NoPeerAccess => "no_peer_access",
            Self::PcieFallback => "pcie_fallback",
            Self::SlowLink => "slow_link",
            Self::SlowBlocks => "slow_blocks",
            Self::SlowFlag => "slow_flag",
            Self::SlowTogether => "slow_together",
            Self::SlowHostLink => "slow_host_link",
            Self::NumaDistance => "numa_distance",
            Self::NotMeasured => "not_measured",
        }
    }
}

/// Judges what was measured. `named` is a fabric that should describe the machine; absent: what its own probe makes.
///
/// # Errors
/// The probe makes no fabric, or the fabric joins no two of its GPUs.
pub fn judge(bench: &Bench, named: Option<&Fabric>) -> Result<Diagnosis> {
    let own = bench.probe.fabric()?;
    let mut findings = Vec::new();
    if let Some(named) = named {
        findings.extend(topology::differences(bench, named, &own)?);
    }
    // Figures are held against what was named, unless that is another machine: then every further word would mislead.
    let misled = findings.iter().any(|finding: &Finding| finding.fault == Fault::WrongTopology);
    let fabric = named.filter(|_| !misled).unwrap_or(&own);
    let pairs = pairs::verdicts(bench, fabric)?;
    let hosts = hosts::verdicts(bench, fabric);
    findings.extend(links::findings(&bench.probe));
    findings.extend(groups::findings(bench, &pairs));
    findings.extend(together::findings(bench, &pairs));
    findings.extend(host_findings::findings(bench, &hosts));
    findings.sort_by_key(|finding| (finding.severity, finding.fault));
    Ok(Diagnosis {
        machine: bench.machine.clone(),
        fabric: named.unwrap_or(&own).name().to_owned(),
        date: bench.date.clone(),
        pairs,
        hosts,
        findings,
    })
}
