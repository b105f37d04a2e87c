//! Rules by which NCCL uses peer access and GPUDirect RDMA: path classes, by release and CPU.
//!
//! The rules apply if the environment does not override them. Source: `src/graph/paths.cc` (`ncclTopoCheckP2p`,
//! `ncclTopoCheckGdr`) of NCCL 2.9.6 to 2.30.7.

use fabricast_topologies::fabric::{CpuArch, CpuFigures, Figures};
use fabricast_topologies::route::{PathClass, RouteOptions, Router};
use fabricast_topologies::{Fabric, LinkKind, NodeId, NodeKind};

use crate::measured::LibraryName;
use crate::measured::manifest::Measurement;

/// Release of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Release {
    major: u32,
    minor: u32,
    /// Patch number; `None` if the measurement states none.
    patch: Option<u32>,
}

impl Release {
    pub(super) const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch: Some(patch) }
    }

    /// Returns true if the release is `first` or a later one. Without a patch number, every release of its minor version
    /// is meant.
    pub(super) fn is_from(self, first: Self) -> bool {
        (self.major, self.minor, self.patch.unwrap_or(u32::MAX)) >= (first.major, first.minor, first.patch.unwrap_or(0))
    }

    /// Returns true if the release is `last` or an earlier one, as for [`is_from`](Self::is_from).
    pub(super) fn is_until(self, last: Self) -> bool {
        (self.major, self.minor, self.patch.unwrap_or(0)) <= (last.major, last.minor, last.patch.unwrap_or(u32::MAX))
    }
}

/// Release of NCCL that a measurement states; `None` for other libraries and if it states none.
pub(super) fn release(measurement: &Measurement) -> Option<Release> {
    let library = measurement.configuration.library.as_ref().filter(|library| library.name == LibraryName::Nccl)?;
    let mut numbers = library.version.split('.').map(str::parse::<u32>);
    let mut next = || numbers.next()?.ok();
    Some(Release { major: next()?, minor: next()?, patch: next() })
}

fn is_set(measurement: &Measurement, names: &[&str]) -> bool {
    names.iter().any(|name| measurement.variable(name).is_some())
}

/// GPUs in use on the first host.
fn first_gpus(measurement: &Measurement) -> &[NodeId] {
    let gpus = measurement.fabric.gpus();
    gpus.get(..measurement.configuration.gpus as usize).unwrap_or(gpus)
}

/// Returns true if the default of the measured release ends peer access at the CPU and GPUs of a host are connected through
/// it, so that NCCL stages their traffic in host memory. False if the release is not stated.
pub(in super::super) fn ends_peer_access_at_cpu(measurement: &Measurement) -> bool {
    let Some(release) = release(measurement) else { return false };
    let fabric = &*measurement.fabric;
    if is_set(measurement, &["NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE"]) {
        return false;
    }
    let Some(limit) = cpu(fabric).and_then(|cpu| peer_access_limit(release, cpu, measurement.configuration.gpus))
    else {
        return false;
    };
    limit <= PathClass::Pxb && has_pairs_through_cpu(fabric, first_gpus(measurement))
}

/// Farthest class of paths over which a release of NCCL uses peer access by default; `None` for unknown CPUs.
fn peer_access_limit(release: Release, cpu: &CpuFigures, gpus: u32) -> Option<PathClass> {
    let is_amd = match (cpu.arch, cpu.vendor.as_deref()) {
        (Some(CpuArch::X86), Some("AuthenticAMD")) => true,
        (Some(CpuArch::X86), Some("GenuineIntel")) | (Some(CpuArch::Arm), _) => false,
        _ => return None,
    };
    // From 2.23.4 on, machines with AMD CPUs follow the rule of others if they have more than two GPUs.
    let is_everywhere = is_amd && (!release.is_from(Release::new(2, 23, 4)) || gpus <= 2);
    Some(if is_everywhere { PathClass::Sys } else { PathClass::Pxb })
}

/// Returns true if any two of the GPUs are connected through a CPU only.
pub(super) fn has_pairs_through_cpu(fabric: &Fabric, gpus: &[NodeId]) -> bool {
    let router = Router::new(fabric, RouteOptions::default());
    let is_far = |a: NodeId, b: NodeId| {
        let class = router.path(a, b).map(|path| path.class);
        class.is_ok_and(|class| class > PathClass::Pxb && class <= PathClass::Sys)
    };
    gpus.iter().enumerate().any(|(number, &a)| gpus.iter().skip(number + 1).any(|&b| is_far(a, b)))
}

/// Returns true if the default of the measured release leaves GPUDirect RDMA off, because no GPU in use has a NIC near
/// enough. False if the release is not stated.
pub(in super::super) fn leaves_gpu_direct_off(measurement: &Measurement) -> bool {
    let Some(release) = release(measurement).filter(|_| measurement.configuration.nodes > 1) else { return false };
    if is_set(measurement, &["NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_C2C"]) {
        return false;
    }
    // NCCL_NET_GDR_C2C exists from 2.26.2 on and is 1 by default from 2.27.3 on.
    let limit = if release.is_from(Release::new(2, 27, 3)) { PathClass::P2c } else { PathClass::Pxb };
    let nearest = nearest_nics(measurement);
    !nearest.is_empty() && nearest.iter().all(|&class| class > limit && class != PathClass::Pxn)
}

/// Class of the path from a GPU in use to its nearest NIC, of the GPU where it is farthest; `None` without NICs.
pub(in super::super) fn farthest_nic(measurement: &Measurement) -> Option<PathClass> {
    nearest_nics(measurement).into_iter().max()
}

/// Returns true if the environment forbids rings to leave a host by another NIC than they entered it, on hosts with several
/// NICs.
pub(in super::super) fn forbids_other_nics(measurement: &Measurement) -> bool {
    let nics = super::candidates::nics_of_first_host(&measurement.fabric).len();
    measurement.variable("NCCL_CROSS_NIC") == Some("0") && measurement.configuration.nodes > 1 && nics > 1
}

/// Class of the path from each GPU in use on the first host to its nearest NIC.
fn nearest_nics(measurement: &Measurement) -> Vec<PathClass> {
    let fabric = &*measurement.fabric;
    let router = Router::new(fabric, RouteOptions::default());
    let nics = super::candidates::nics_of_first_host(fabric);
    let nearest = |&gpu: &NodeId| nics.iter().filter_map(|&nic| Some(router.path(gpu, nic).ok()?.class)).min();
    first_gpus(measurement).iter().filter_map(nearest).collect()
}

/// Returns true if the topology search of the measured release may find no balanced tree and fall back to ranks in order: a
/// search for plain trees follows on compute capability 9.0 and later only (NVIDIA/nccl issues 1876 and 1946, which name
/// 2.25.1 as the first affected release and announce a repair after 2.28.9).
pub(super) fn may_fall_back(measurement: &Measurement) -> bool {
    let is_affected = release(measurement)
        .is_some_and(|release| release.is_from(Release::new(2, 25, 1)) && release.is_until(Release::new(2, 28, 9)));
    let is_ampere = super::defects::capability(measurement).is_some_and(|capability| (80..90).contains(&capability));
    is_affected && is_ampere && measurement.configuration.nodes > 1 && has_one_gpu_per_nic(measurement)
}

/// Returns true if each NIC of the first host has exactly one GPU that reaches it without a CPU.
fn has_one_gpu_per_nic(measurement: &Measurement) -> bool {
    let fabric = &*measurement.fabric;
    let options = RouteOptions { pxn: fabricast_topologies::route::Pxn::Off, ..RouteOptions::default() };
    let router = Router::new(fabric, options);
    let nics = super::candidates::nics_of_first_host(fabric);
    let near = |nic: NodeId| {
        let is_near = |&&gpu: &&NodeId| router.path(gpu, nic).is_ok_and(|path| path.class <= PathClass::Pxb);
        first_gpus(measurement).iter().filter(is_near).count()
    };
    !nics.is_empty() && nics.into_iter().all(|nic| near(nic) == 1)
}

/// Returns true if GPUs in use on the first host are behind different PCIe switches, so that a machine without switches hides
/// its topology.
pub(super) fn are_behind_different_switches(measurement: &Measurement) -> bool {
    let fabric = &*measurement.fabric;
    let switch = |&gpu: &NodeId| {
        let mut ends = fabric.outgoing_links(gpu).into_iter().map(|link| fabric.link(link).to);
        ends.find(|&end| fabric.node(end).kind == NodeKind::PcieSwitch)
    };
    let switches: Vec<NodeId> = first_gpus(measurement).iter().filter_map(switch).collect();
    switches.windows(2).any(|pair| pair[0] != pair[1])
}

/// Rate of a NIC's PCIe link ÷ its share of the links between CPUs, if half of the copies between host memory and devices
/// cross them, as without known NUMA nodes. `None` on hosts with one CPU.
pub(super) fn cross_socket_divisor(fabric: &Fabric) -> Option<u16> {
    let nics = super::candidates::nics_of_first_host(fabric);
    let host = fabric.gpus().first().map(|&gpu| fabric.node(gpu).host)?;
    let rate = |id: NodeId, kind: LinkKind| {
        let links = fabric.outgoing_links(id).into_iter().map(|link| fabric.link(link));
        links.filter(|link| link.kind == kind).filter_map(|link| Some(link.bandwidth?.gb_per_s())).sum::<f64>()
    };
    let cpus = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Cpu && node.host == host);
    let between: f64 = cpus.map(|(cpu, _)| rate(cpu, LinkKind::Upi)).sum::<f64>() / 2.0;
    let pcie = nics.first().map(|&nic| rate(nic, LinkKind::Pcie))?;
    // Half of the copies of all NICs share the link in each direction.
    let divisor = pcie * nics.len() as f64 / 2.0 / between;
    (between > 0.0 && divisor > 1.0).then(|| divisor.min(f64::from(u16::MAX)).round() as u16)
}

/// CPU of the first host; the first one that the fabric describes.
fn cpu(fabric: &Fabric) -> Option<&CpuFigures> {
    fabric.nodes().find_map(|(_, node)| match &node.figures {
        Figures::Cpu(figures) => Some(&**figures),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(release: Release, arch: CpuArch, vendor: &str, gpus: u32) -> Option<PathClass> {
        let cpu = CpuFigures { arch: Some(arch), vendor: Some(vendor.to_owned()), ..CpuFigures::default() };
        peer_access_limit(release, &cpu, gpus)
    }

    /// NCCL's code: 2.22.3 has `PATH_SYS` except on Arm and Intel, 2.23.4 has `PATH_PXB` except for pairs on AMD.
    #[test]
    fn peer_access_ends_at_the_cpu_by_release_and_vendor() {
        let (amd, intel) = ("AuthenticAMD", "GenuineIntel");
        assert_eq!(limit(Release::new(2, 22, 3), CpuArch::X86, amd, 8), Some(PathClass::Sys));
        assert_eq!(limit(Release::new(2, 23, 4), CpuArch::X86, amd, 8), Some(PathClass::Pxb));
        assert_eq!(limit(Release::new(2, 28, 3), CpuArch::X86, amd, 2), Some(PathClass::Sys));
        assert_eq!(limit(Release::new(2, 22, 3), CpuArch::X86, intel, 2), Some(PathClass::Pxb));
        assert_eq!(limit(Release::new(2, 28, 3), CpuArch::Arm, "", 2), Some(PathClass::Pxb));
        assert_eq!(limit(Release::new(2, 28, 3), CpuArch::Power, "", 2), None);
        assert_eq!(limit(Release { major: 2, minor: 23, patch: None }, CpuArch::X86, amd, 8), Some(PathClass::Pxb));
    }
}
