//! Check if a fabric that the user names describes this machine.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Fabric, Result};

use super::expectations::{IMPOSSIBLE, gpus};
use super::pairs::is_nvlink;
use super::{DoctorFinding, FaultKind, Severity};
use crate::gpu::bench::{Bench, Load, PointKind};
use crate::gpu::probe::vertex;

/// Findings on contradictions between the named fabric and the machine: number of GPUs, architecture, paths, or
/// measured rates above the bandwidth of the fabric's links.
pub(super) fn differences(bench: &Bench, named: &Fabric, detected: &Fabric) -> Result<Vec<DoctorFinding>> {
    let (described, detected_gpus) = (named.gpus().len(), detected.gpus().len());
    if described != detected_gpus {
        let message = format!("fabric `{}` has {described} GPUs, this machine {detected_gpus}", named.name());
        return Ok(vec![wrong_topology(
            (0..detected_gpus).collect(),
            message,
            "it is the file of another machine, or of more or fewer GPUs",
        )]);
    }
    let mut findings = Vec::new();
    findings.extend(kinds(bench, named));
    findings.extend(path_differences(bench, named, detected)?);
    Ok(findings)
}

fn wrong_topology(gpus: Vec<usize>, message: String, cause: &str) -> DoctorFinding {
    DoctorFinding {
        severity: Severity::Fault,
        fault: FaultKind::WrongTopology,
        gpus,
        message,
        cause: cause.to_owned(),
        command: "nvidia-smi topo -m; fabricast gpu probe --fabric here.toml; fabricast fabric show auto".to_owned(),
    }
}

/// Finding on GPUs whose compute capability differs from that in the fabric.
fn kinds(bench: &Bench, named: &Fabric) -> Option<DoctorFinding> {
    let differing: Vec<(usize, u32, u32)> = bench
        .probe
        .devices
        .iter()
        .filter_map(|device| {
            let Figures::Gpu(figures) = &named.node(vertex(named, device.ordinal)?).figures else { return None };
            let described = figures.compute_capability?;
            (described != device.compute_capability).then_some((device.ordinal, described, device.compute_capability))
        })
        .collect();
    let &(_, described, detected) = differing.first()?;
    let affected: Vec<usize> = differing.iter().map(|&(gpu, ..)| gpu).collect();
    let message = format!(
        "{}: fabric `{}` has sm_{described}, but the driver reports sm_{detected}",
        gpus(&affected),
        named.name()
    );
    Some(wrong_topology(affected, message, "it describes other GPUs"))
}

/// Finding on pairs whose path in the named fabric differs from the machine's, and on pairs faster than the fabric
/// allows.
fn path_differences(bench: &Bench, named: &Fabric, detected: &Fabric) -> Result<Option<DoctorFinding>> {
    let (described_router, detected_router) =
        (Router::new(named, RouteOptions::default()), Router::new(detected, RouteOptions::default()));
    let count = detected.gpus().len();
    // GPUs with links that are down are not compared, because the file may describe the state without the fault.
    let is_complete =
        |gpu: usize| bench.probe.devices.get(gpu).is_some_and(|device| device.nvlinks.iter().all(|link| link.active));
    let mut example = None;
    let mut differing = Vec::new();
    for src in 0..count {
        for dst in (0..count).filter(|&dst| dst != src) {
            let ends = |fabric| vertex(fabric, src).zip(vertex(fabric, dst));
            let (Some((a, b)), Some((c, d))) = (ends(named), ends(detected)) else { continue };
            let (file, machine) = (described_router.path(a, b)?, detected_router.path(c, d)?);
            let nominal = file.bandwidth.map(fabricast_topologies::Bandwidth::gb_per_s);
            let measured = bench.rate(PointKind::CopyEngine, Load::Alone, Some(src), Some(dst));
            let cause = if is_nvlink(file.class) != is_nvlink(machine.class) && is_complete(src) && is_complete(dst) {
                Some(format!("`{}` joins them by {}, the machine by {}", named.name(), file.class, machine.class))
            } else if let (Some(nominal), Some(machine)) =
                (nominal, machine.bandwidth.filter(|_| is_nvlink(file.class)))
                && is_complete(src)
                && is_complete(dst)
                && (machine.gb_per_s() / nominal - 1.0).abs() > 0.1
            {
                Some(format!(
                    "`{}` gives them {nominal:.0} GB/s, the machine's links {:.0}",
                    named.name(),
                    machine.gb_per_s()
                ))
            } else if let (Some(nominal), Some(measured)) = (nominal, measured)
                && measured > nominal * IMPOSSIBLE
            {
                Some(format!("{measured:.0} GB/s measured, where `{}` allows {nominal:.0}", named.name()))
            } else {
                None
            };
            if let Some(cause) = cause {
                example.get_or_insert_with(|| format!("from GPU {src} to GPU {dst}: {cause}"));
                differing.extend([src, dst]);
            }
        }
    }
    differing.sort_unstable();
    differing.dedup();
    Ok(example.map(|example| {
        let message = format!("{example}; so for {}", gpus(&differing));
        wrong_topology(
            differing,
            message,
            "the file is that of another machine, or was written before this one was changed",
        )
    }))
}
