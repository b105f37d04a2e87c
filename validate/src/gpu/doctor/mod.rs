//! `gpu doctor`: compares measured link performance with expectations, and reports faults with probable causes and
//! commands for further diagnosis.
//!
//! A [`Bench`] is compared with a [`Fabric`]: the one named by the user, or the one derived from the machine's own
//! probe. Each link and each pair of GPUs gets a separate verdict. Faults with a common cause are then merged into one
//! finding. For example, if all paths of a GPU are slow, the finding is about its links; a pair that has an NVLink and
//! reaches only PCIe rates does not use the NVLink.

mod concurrent_load;
mod expectations;
mod groups;
mod host_findings;
mod hosts;
mod links;
mod pairs;
mod text;
mod topology;

#[cfg(test)]
mod tests;

use fabricast_topologies::{Fabric, Result};
use schemars::JsonSchema;
use serde::Serialize;

use super::bench::Bench;

pub use hosts::HostVerdict;
pub use pairs::PairVerdict;

/// Report of the doctor.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Diagnosis {
    /// Description of the machine.
    pub machine: String,
    /// Name of the fabric with which rates are compared: the detected fabric if the named one describes another
    /// machine.
    pub fabric: String,
    /// Date of the measurement.
    pub date: String,
    /// Verdict on each ordered pair of GPUs.
    pub pairs: Vec<PairVerdict>,
    /// Verdict on the host links, in both directions of each GPU.
    pub hosts: Vec<HostVerdict>,
    /// Faults and notes.
    pub findings: Vec<DoctorFinding>,
}

impl Diagnosis {
    /// Returns true if no finding is a fault.
    pub fn is_healthy(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity == Severity::Note)
    }
}

/// A single finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Finding")]
pub struct DoctorFinding {
    /// Fault or note.
    pub severity: Severity,
    /// Kind of fault.
    pub fault: FaultKind,
    /// Affected GPUs, by ordinal.
    pub gpus: Vec<usize>,
    /// Description of the observation, with measured values.
    pub message: String,
    /// Probable cause.
    pub cause: String,
    /// Command for further diagnosis.
    #[serde(rename = "look")]
    pub command: String,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A fault.
    Fault,
    /// An observation without a fault.
    Note,
}

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Fault")]
pub enum FaultKind {
    /// The fabric does not describe this machine.
    WrongTopology,
    /// NVLinks are down.
    MissingLinks,
    /// NVLinks report corrected errors.
    LinkErrors,
    /// GPUs lack expected access to each other's memory.
    NoPeerAccess,
    /// Traffic that should use NVLink goes over PCIe or through the host.
    PcieFallback,
    /// A link or pair is slower than expected.
    SlowLink,
    /// Thread blocks are slower than expected, copy engines are not.
    SlowBlocks,
    /// The latency of a flag is higher than between other pairs, or higher than its path explains.
    SlowFlag,
    /// Rates that are normal alone drop too far under concurrent load.
    SlowUnderLoad,
    /// The host link is slower than expected.
    SlowHostLink,
    /// A GPU is at another NUMA node than the host memory in use.
    NumaDistance,
    /// A pair, or one direction of a host link, was not measured.
    NotMeasured,
}

impl Severity {
    /// Returns the name of the severity in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Note => "note",
        }
    }
}

impl FaultKind {
    /// Returns the name of the kind of fault in JSON.
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
            Self::SlowUnderLoad => "slow_under_load",
            Self::SlowHostLink => "slow_host_link",
            Self::NumaDistance => "numa_distance",
            Self::NotMeasured => "not_measured",
        }
    }
}

/// Diagnoses a benchmark. `named`: the fabric that should describe the machine; `None` to use the fabric from the
/// machine's own probe.
///
/// # Errors
/// The probe does not yield a fabric, or the fabric does not connect two of its GPUs.
pub fn judge(bench: &Bench, named: Option<&Fabric>) -> Result<Diagnosis> {
    let detected = bench.probe.fabric()?;
    let mut findings = Vec::new();
    if let Some(named) = named {
        findings.extend(topology::differences(bench, named, &detected)?);
    }
    // Rates are compared with the named fabric. If it describes another machine, they are compared with the detected
    // fabric, because the findings would be misleading.
    let misled = findings.iter().any(|finding: &DoctorFinding| finding.fault == FaultKind::WrongTopology);
    let fabric = named.filter(|_| !misled).unwrap_or(&detected);
    let pairs = pairs::verdicts(bench, fabric)?;
    let hosts = hosts::verdicts(bench, fabric);
    findings.extend(links::findings(&bench.probe));
    findings.extend(groups::findings(bench, &pairs));
    findings.extend(concurrent_load::findings(bench, &pairs));
    findings.extend(host_findings::findings(bench, &hosts));
    findings.sort_by_key(|finding| (finding.severity, finding.fault));
    Ok(Diagnosis {
        machine: bench.machine.clone(),
        fabric: fabric.name().to_owned(),
        date: bench.date.clone(),
        pairs,
        hosts,
        findings,
    })
}
