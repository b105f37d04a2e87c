//! Findings from the driver's link states: NVLinks that are down or report errors.

use super::expectations::gpus;
use super::{DoctorFinding, FaultKind, Severity};
use crate::gpu::probe::Probe;

/// Minimum number of replays and recoveries for a link to be reported. A link without faults counts a few at most.
const MANY_ERRORS: u64 = 1000;

/// Findings on NVLinks that are down or report errors.
pub(super) fn findings(probe: &Probe) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    for device in &probe.devices {
        let down: Vec<String> =
            device.nvlinks.iter().filter(|link| !link.active).map(|link| link.link.to_string()).collect();
        let total = device.nvlinks.len();
        if !down.is_empty() {
            findings.push(DoctorFinding {
                severity: Severity::Fault,
                fault: FaultKind::MissingLinks,
                gpus: vec![device.ordinal],
                message: format!(
                    "{}: {} of {total} NVLinks are up; down: {}",
                    gpus(&[device.ordinal]),
                    total - down.len(),
                    down.join(", ")
                ),
                cause: if down.len() == total {
                    "the fabric manager does not run, or the GPU did not join the NVLink fabric".to_owned()
                } else {
                    "a link failed to train: a loose or broken baseboard, bridge or cable".to_owned()
                },
                command: format!(
                    "nvidia-smi nvlink --status -i {0}; nvidia-smi -q -i {0} | grep -A3 Fabric; \
                     systemctl status nvidia-fabricmanager",
                    device.ordinal
                ),
            });
        }
        let failing = device.nvlinks.iter().filter(|link| link.errors.is_some_and(|errors| errors >= MANY_ERRORS));
        for link in failing {
            findings.push(DoctorFinding {
                severity: Severity::Note,
                fault: FaultKind::LinkErrors,
                gpus: vec![device.ordinal],
                message: format!(
                    "GPU {}, NVLink {}: {} replays and recoveries since the driver was loaded",
                    device.ordinal,
                    link.link,
                    link.errors.unwrap_or(0)
                ),
                cause: "a link with a poor signal, with retransmissions".to_owned(),
                command: format!("nvidia-smi nvlink -e -i {}", device.ordinal),
            });
        }
    }
    findings
}
