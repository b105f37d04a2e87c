//! Findings on host links, by kind of fault, with the cause that the probe indicates.

use super::expectations::gpus;
use super::hosts::{HostDirection, HostVerdict};
use super::{DoctorFinding, FaultKind, Severity};
use crate::gpu::bench::Bench;

/// Findings on host links, one per kind of fault.
pub(super) fn findings(bench: &Bench, verdicts: &[HostVerdict]) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    for fault in [FaultKind::NumaDistance, FaultKind::SlowHostLink, FaultKind::SlowUnderLoad, FaultKind::NotMeasured] {
        let faulty: Vec<&HostVerdict> = verdicts.iter().filter(|verdict| verdict.fault == Some(fault)).collect();
        let mut affected: Vec<usize> = faulty.iter().map(|verdict| verdict.gpu).collect();
        affected.dedup();
        let rate = |verdict: &HostVerdict| {
            let figure =
                if fault == FaultKind::SlowUnderLoad { verdict.concurrent_gb_per_s } else { verdict.measured_gb_per_s };
            figure.unwrap_or(0.0)
        };
        let Some(slowest) = faulty.iter().min_by(|a, b| rate(a).total_cmp(&rate(b))) else { continue };
        let best = verdicts.iter().map(rate).fold(0.0, f64::max);
        let against =
            slowest.expected_gb_per_s.map_or_else(String::new, |expected| format!(" of an expected {expected:.1}"));
        let figures = format!("{:.1} GB/s{against}; the best GPU has {best:.1}", rate(slowest));
        let first = affected.first().copied().unwrap_or(0);
        findings.push(match fault {
            FaultKind::NumaDistance => DoctorFinding {
                severity: Severity::Fault,
                fault,
                message: format!("{}, to and from the host: {figures}", gpus(&affected)),
                cause: format!(
                    "the host buffer was on another NUMA node than {}, because this process ran on that node",
                    gpus(&affected)
                ),
                command:
                    "nvidia-smi topo -m; numactl --hardware; numactl --cpunodebind N --membind N fabricast gpu bench"
                        .to_owned(),
                gpus: affected,
            },
            FaultKind::SlowUnderLoad => DoctorFinding {
                severity: Severity::Fault,
                fault,
                message: format!(
                    "{}, to and from the host while all GPUs copy: {:.1} GB/s of an expected {:.1}; alone {:.1}",
                    gpus(&affected),
                    rate(slowest),
                    slowest.expected_concurrent_gb_per_s.unwrap_or(0.0),
                    slowest.measured_gb_per_s.unwrap_or(0.0)
                ),
                cause:
                    "the host's memory is busy or has empty channels, or a PCIe switch that is not shown is shared by \
                        many GPUs"
                        .to_owned(),
                command: "nvidia-smi topo -m; lspci -tv; numactl --hardware; dmidecode -t memory".to_owned(),
                gpus: affected,
            },
            FaultKind::NotMeasured => DoctorFinding {
                severity: Severity::Fault,
                fault,
                message: format!(
                    "{}, to and from the host: not measured: {}",
                    gpus(&affected),
                    direction_text(&faulty)
                ),
                cause: "the run was cut short, or the GPU was skipped".to_owned(),
                command: "fabricast gpu bench --quick".to_owned(),
                gpus: affected,
            },
            _ => DoctorFinding {
                severity: Severity::Fault,
                fault,
                message: format!("{}, to and from the host: {figures}", gpus(&affected)),
                cause: slow_pcie_cause(bench, &affected),
                command: format!("nvidia-smi -q -d PCIE -i {first}; lspci -vv | grep -e NVIDIA -e LnkSta"),
                gpus: affected,
            },
        });
    }
    findings
}

/// Directions among the verdicts, as text.
fn direction_text(verdicts: &[&HostVerdict]) -> &'static str {
    let has = |direction: HostDirection| verdicts.iter().any(|verdict| verdict.direction == direction);
    match (has(HostDirection::ToGpu), has(HostDirection::FromGpu)) {
        (true, false) => "copies to the GPU",
        (false, true) => "copies from the GPU",
        _ => "copies both ways",
    }
}

/// Probable cause of a slow PCIe link.
fn slow_pcie_cause(bench: &Bench, affected: &[usize]) -> String {
    for device in bench.probe.devices.iter().filter(|device| affected.contains(&device.ordinal)) {
        let pci = &device.pci;
        if let (Some(width), Some(max_width)) = (pci.width, pci.max_width)
            && width < max_width
        {
            let gpu = device.ordinal;
            return format!("GPU {gpu} runs {width} of its {max_width} PCIe lanes: a card or riser badly seated");
        }
    }
    "the PCIe link runs at a lower generation or width, is shared with busy devices, or the machine's memory is busy"
        .to_owned()
}
