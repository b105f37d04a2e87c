//! Consistency checks of a fabric: faults of the machine, or of the file that describes it.
//!
//! Every finding names devices and states what was compared, so that a user can verify it on the machine.

mod hosts;
mod pcie;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use rustc_hash::FxHashMap;

use crate::Bandwidth;
use crate::fabric::{Fabric, Figures, HostId, LinkKind, NodeId, NodeKind};
use crate::route::{RouteOptions, Router};

/// Severity of a finding, most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Collectives over all GPUs are impossible.
    Error,
    /// A device or link is slower than comparable ones, or further away.
    Warning,
    /// Information that needs no action, such as GPUs of several models.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        })
    }
}

/// A fault or a note that a check reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Severity, by which findings are ordered.
    pub severity: Severity,
    /// Description for the user; it names the devices concerned.
    pub message: String,
}

/// Runs all checks on a fabric and returns the findings, most severe first.
#[must_use]
pub fn check(fabric: &Fabric) -> Vec<Finding> {
    let checks = [
        connection,
        unrouted,
        nvlink_counts,
        hosts::straddled_domains,
        hosts::unequal_hosts,
        pcie_siblings,
        pcie_bottlenecks,
        pcie::fast_nics,
        pcie::slow_generations,
        pcie::virtual_switches,
        gpus_far_from_nics,
        pcie::gpus_without_gpu_direct,
        no_nics,
        mixed_gpus,
        unlinked,
        failures,
    ];
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| check(fabric)).collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}

fn finding(severity: Severity, message: String) -> Finding {
    Finding { severity, message }
}

/// Formats the ids of devices for a message: at most three of them, then the number of the others.
fn list_ids(fabric: &Fabric, nodes: &[NodeId]) -> String {
    let ids: Vec<&str> = nodes.iter().take(3).map(|&node| &*fabric.node(node).id).collect();
    match nodes.len().saturating_sub(3) {
        0 => ids.join(", "),
        more => format!("{} and {more} more", ids.join(", ")),
    }
}

/// Marks, by [`NodeId`], the devices that are reachable from `from` over working links whose kind satisfies `follows`.
fn reachable_devices(
    fabric: &Fabric,
    from: impl IntoIterator<Item = NodeId>,
    follows: impl Fn(LinkKind) -> bool,
) -> Vec<bool> {
    let mut reached = vec![false; fabric.node_count()];
    let mut queue: VecDeque<NodeId> = from.into_iter().collect();
    for node in &queue {
        if let Some(mark) = reached.get_mut(node.0 as usize) {
            *mark = true;
        }
    }
    while let Some(node) = queue.pop_front() {
        for link in
            fabric.outgoing_links(node).into_iter().map(|link| fabric.link(link)).filter(|link| follows(link.kind))
        {
            if let Some(mark) = reached.get_mut(link.to.0 as usize).filter(|mark| !**mark) {
                *mark = true;
                queue.push_back(link.to);
            }
        }
    }
    reached
}

fn is_reached(reached: &[bool], node: NodeId) -> bool {
    reached.get(node.0 as usize).copied().unwrap_or_default()
}

/// Finds fabrics without GPUs, and GPUs that are not connected to the others.
fn connection(fabric: &Fabric) -> Vec<Finding> {
    let Some(&first) = fabric.gpus().first() else {
        return vec![finding(Severity::Error, "there is no GPU or accelerator".to_owned())];
    };
    let (alone, linked): (Vec<NodeId>, Vec<NodeId>) =
        fabric.gpus().iter().partition(|&&gpu| fabric.outgoing_links(gpu).is_empty());
    let mut findings = Vec::new();
    if !alone.is_empty() && fabric.gpus().len() > 1 {
        findings.push(finding(Severity::Error, format!("no usable link at {}", list_ids(fabric, &alone))));
    }
    let start = linked.first().copied().unwrap_or(first);
    let near = reachable_devices(fabric, [start], |_| true);
    let cut_off: Vec<NodeId> = linked.into_iter().filter(|&gpu| !is_reached(&near, gpu)).collect();
    if !cut_off.is_empty() {
        let message = format!("{} cannot be reached from {}", list_ids(fabric, &cut_off), fabric.node(start).id);
        findings.push(finding(Severity::Error, message));
    }
    findings
}

/// Maximum number of GPUs for which [`unrouted`] examines every pair. In a larger fabric, [`unrouted`] examines the
/// first two GPUs of each host, up to this number of GPUs in total.
const MAX_ROUTED_GPUS: usize = 128;

/// Finds GPUs that are connected by links, but not by any path that the router of `plan` and `simulate` permits.
fn unrouted(fabric: &Fabric) -> Vec<Finding> {
    if !connection(fabric).is_empty() {
        return Vec::new();
    }
    let router = Router::new(fabric, RouteOptions::default());
    let gpus = fabric.gpus();
    let mut sampled: Vec<NodeId> = gpus.to_vec();
    if gpus.len() > MAX_ROUTED_GPUS {
        sampled = fabric
            .group_by_host(gpus)
            .iter()
            .flat_map(|host| host.iter().take(2).copied())
            .take(MAX_ROUTED_GPUS)
            .collect();
    }
    for &from in &sampled {
        for &to in sampled.iter().filter(|&&to| to != from) {
            if let Err(error) = router.path(from, to) {
                return vec![finding(Severity::Error, error.to_string())];
            }
        }
    }
    Vec::new()
}

/// Finds fabrics that were read from a machine's own file and have no NIC. A cluster of such machines needs the NICs
/// from `--network`.
fn no_nics(fabric: &Fabric) -> Vec<Finding> {
    // A spec is complete; a file written by a machine may omit its NICs.
    let is_machine = fabric.sources().iter().any(|source| MACHINE_FILES.iter().any(|file| source.starts_with(file)));
    let has_nic = fabric.nodes().any(|(_, node)| node.kind == NodeKind::Nic);
    if has_nic || !is_machine {
        return Vec::new();
    }
    let message = "no NIC is described: --nodes needs nics_per_node and nic in --network".to_owned();
    vec![finding(Severity::Note, message)]
}

/// Prefixes of the source line that marks a fabric as read from a machine's own file.
const MACHINE_FILES: [&str; 3] = ["NCCL topology file", "nvidia-smi topo -m", "rocm-smi --showtopo"];

/// Returns the most frequent value. If several values are equally frequent, the greatest of them is returned. `None` if
/// there are no values.
fn most_frequent<T: Ord + Copy>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut counts: BTreeMap<T, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    counts.into_iter().max_by_key(|&(value, count)| (count, value)).map(|(value, _)| value)
}

/// Ranks by host. MIG instances are omitted, because they have no links to compare.
fn gpus_by_host(fabric: &Fabric) -> BTreeMap<HostId, Vec<NodeId>> {
    let mut hosts: BTreeMap<HostId, Vec<NodeId>> = BTreeMap::new();
    for &gpu in fabric.gpus().iter().filter(|&&gpu| fabric.node(gpu).kind != NodeKind::Mig) {
        hosts.entry(fabric.node(gpu).host).or_default().push(gpu);
    }
    hosts
}

/// Finds GPUs whose number of NVLinks differs from the most frequent one of their host.
fn nvlink_counts(fabric: &Fabric) -> Vec<Finding> {
    let lanes = |gpu: NodeId| -> u32 {
        let links = fabric.outgoing_links(gpu).into_iter().map(|link| fabric.link(link));
        links.filter(|link| link.kind == LinkKind::Nvlink).map(|link| u32::from(link.lanes)).sum()
    };
    let mut findings = Vec::new();
    for gpus in gpus_by_host(fabric).into_values() {
        let counts: Vec<(NodeId, u32)> = gpus.into_iter().map(|gpu| (gpu, lanes(gpu))).collect();
        let Some(usual) = most_frequent(counts.iter().map(|&(_, count)| count)) else { continue };
        let mut odd: BTreeMap<u32, Vec<NodeId>> = BTreeMap::new();
        for (gpu, count) in counts.into_iter().filter(|&(_, count)| count != usual) {
            odd.entry(count).or_default().push(gpu);
        }
        for (count, gpus) in odd {
            let message =
                format!("{} has {count} NVLinks where most GPUs of its host have {usual}", list_ids(fabric, &gpus));
            findings.push(finding(Severity::Warning, message));
        }
    }
    findings
}

/// Bandwidth of the first PCIe link of a device that states a bandwidth; this link is assumed to lead towards the CPU.
fn uplink(fabric: &Fabric, device: NodeId) -> Option<Bandwidth> {
    let links = fabric.outgoing_links(device).into_iter().map(|link| fabric.link(link));
    links.filter(|link| link.kind == LinkKind::Pcie).find_map(|link| link.bandwidth)
}

/// Finds GPUs and NICs whose PCIe link is slower than the most frequent one of their kind and host.
fn pcie_siblings(fabric: &Fabric) -> Vec<Finding> {
    let mut groups: BTreeMap<(HostId, NodeKind), Vec<(NodeId, Bandwidth)>> = BTreeMap::new();
    for (id, node) in fabric.nodes().filter(|(_, node)| matches!(node.kind, NodeKind::Gpu | NodeKind::Nic)) {
        if let Some(bandwidth) = uplink(fabric, id) {
            groups.entry((node.host, node.kind)).or_default().push((id, bandwidth));
        }
    }
    let mut findings = Vec::new();
    for ((_, kind), devices) in groups {
        let Some(usual) = most_frequent(devices.iter().map(|&(_, bandwidth)| bandwidth)) else { continue };
        let slower: Vec<(NodeId, Bandwidth)> =
            devices.into_iter().filter(|&(_, bandwidth)| bandwidth < usual).collect();
        if let Some(&(_, min_bandwidth)) = slower.iter().min_by_key(|&&(_, bandwidth)| bandwidth) {
            let nodes: Vec<NodeId> = slower.iter().map(|&(id, _)| id).collect();
            let device_kind = if kind == NodeKind::Gpu { "GPUs" } else { "NICs" };
            let names = list_ids(fabric, &nodes);
            let message =
                format!("PCIe of {names} carries {min_bandwidth} where most {device_kind} of the host have {usual}");
            findings.push(finding(Severity::Warning, message));
        }
    }
    findings
}

/// Finds PCIe switches whose link to the CPU is slower than the fastest link to a GPU or NIC directly below them.
fn pcie_bottlenecks(fabric: &Fabric) -> Vec<Finding> {
    let mut findings: BTreeMap<(Bandwidth, Bandwidth, String), Vec<NodeId>> = BTreeMap::new();
    for (id, _) in fabric.nodes().filter(|(_, node)| node.kind == NodeKind::PcieSwitch) {
        let (mut up, mut down) = (None, None);
        let mut name = String::new();
        for link in fabric.outgoing_links(id).into_iter().map(|link| fabric.link(link)) {
            let Some(bandwidth) = link.bandwidth.filter(|_| link.kind == LinkKind::Pcie) else { continue };
            match fabric.node(link.to).kind {
                NodeKind::Cpu => {
                    name = pcie::pcie_name(link).map_or_else(String::new, |name| format!(" ({name})"));
                    up = up.max(Some(bandwidth));
                }
                NodeKind::Gpu | NodeKind::Nic => down = down.max(Some(bandwidth)),
                _ => {}
            }
        }
        if let (Some(up), Some(down)) = (up, down)
            && up < down
        {
            findings.entry((up, down, name)).or_default().push(id);
        }
    }
    let worded = findings.into_iter().map(|((up, down, name), switches)| {
        let names = list_ids(fabric, &switches);
        let message = format!(
            "{names}: {up}{name} towards the CPU, {down} to a device behind it \
             (PCIe links that idle while a file is written show a lower speed)"
        );
        finding(Severity::Warning, message)
    });
    worded.collect()
}

/// Finds GPUs that reach none of their host's NICs over PCIe and C2C alone, because all NICs are at another CPU.
fn gpus_far_from_nics(fabric: &Fabric) -> Vec<Finding> {
    let nics: Vec<NodeId> = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Nic).map(|(id, _)| id).collect();
    if nics.is_empty() {
        return Vec::new();
    }
    let with_nic: std::collections::BTreeSet<HostId> = nics.iter().map(|&nic| fabric.node(nic).host).collect();
    let near = reachable_devices(fabric, nics, |kind| matches!(kind, LinkKind::Pcie | LinkKind::C2c));
    let far_gpus: Vec<NodeId> = fabric
        .gpus()
        .iter()
        .copied()
        .filter(|&gpu| with_nic.contains(&fabric.node(gpu).host) && !is_reached(&near, gpu))
        .collect();
    if far_gpus.is_empty() {
        return Vec::new();
    }
    let message = format!("{}: every NIC of the host is on another CPU", list_ids(fabric, &far_gpus));
    vec![finding(Severity::Warning, message)]
}

/// Reports GPUs of several models.
fn mixed_gpus(fabric: &Fabric) -> Vec<Finding> {
    let mut models: BTreeMap<&str, usize> = BTreeMap::new();
    for &gpu in fabric.gpus() {
        if let Figures::Gpu(figures) = &fabric.node(gpu).figures
            && let Some(model) = &figures.model
        {
            *models.entry(model).or_default() += 1;
        }
    }
    if models.len() < 2 {
        return Vec::new();
    }
    let counted: Vec<String> = models.iter().map(|(model, count)| format!("{count} × {model}")).collect();
    vec![finding(Severity::Note, format!("GPUs of several models: {}", counted.join(", ")))]
}

/// Finds NICs and switches without usable links.
fn unlinked(fabric: &Fabric) -> Vec<Finding> {
    let mut kinds: BTreeMap<NodeKind, Vec<NodeId>> = BTreeMap::new();
    for (id, node) in fabric.nodes() {
        // GPUs have a separate check, and a single CPU needs no link.
        if !node.kind.is_rank() && node.kind != NodeKind::Cpu && fabric.outgoing_links(id).is_empty() {
            kinds.entry(node.kind).or_default().push(id);
        }
    }
    kinds
        .into_values()
        .map(|nodes| finding(Severity::Warning, format!("no usable link at {}", list_ids(fabric, &nodes))))
        .collect()
}

/// Reports the number of link directions out of service, by kind of link.
fn failures(fabric: &Fabric) -> Vec<Finding> {
    let mut counts: FxHashMap<LinkKind, usize> = FxHashMap::default();
    for (_, link) in fabric.links().filter(|(_, link)| link.failed) {
        *counts.entry(link.kind).or_default() += 1;
    }
    let mut kinds: Vec<(LinkKind, usize)> = counts.into_iter().collect();
    kinds.sort_unstable();
    let worded = kinds.into_iter().map(|(kind, directions)| {
        finding(Severity::Note, format!("{directions} directions of {} links are out of service", kind.name()))
    });
    worded.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::fabric;
    use crate::read::{nccl_xml, smi, spec};

    fn built(text: &str) -> Fabric {
        spec::parse(text, "t").and_then(|spec| spec.build_nodes()).unwrap()
    }

    fn finding_texts(fabric: &Fabric) -> Vec<String> {
        check(fabric).into_iter().map(|finding| format!("{}: {}", finding.severity, finding.message)).collect()
    }

    #[test]
    fn findings_on_real_machines() {
        let xml = |text| finding_texts(&nccl_xml::parse(text, "t").unwrap());
        let none: [&str; 0] = [];
        let phb = "no NIC nearer than PHB (the CPU's host bridge), where NCCL does not use GPUDirect RDMA (NCCL_NET_GDR_LEVEL)";
        let h200 = xml(include_str!("../../../tests/data/topologies/h200-node.xml"));
        assert_eq!(h200, [format!("warning: gpu0, gpu1, gpu2 and 5 more: {phb}")]);
        // AWS's topology file states 8 GT/s (PCIe 3.0).
        let p4d = xml(include_str!("../../../tests/data/topologies/aws_p4d-24xl-topo.xml"));
        let slow = "PCIe 3.0 x16 (15.754 GB/s), where A100 SXM 40GB has PCIe 4.0 x16 (idle links show a lower speed)";
        assert_eq!(p4d, [format!("warning: gpu0, gpu1, gpu2 and 5 more: {slow}")]);
        // The machine has one NIC for eight GPUs on two sockets.
        let ndv2 = xml(include_str!("../../../tests/data/topologies/azure_ndv2-topo.xml"));
        assert_eq!(
            ndv2,
            [
                "warning: gpu4, gpu5, gpu6 and 1 more: every NIC of the host is on another CPU".to_owned(),
                format!("warning: gpu0, gpu1, gpu2 and 1 more: {phb}")
            ]
        );
        // The file was written while the PCIe links of the GPUs were idle, so it states reduced link speeds.
        let oci = xml(include_str!("../../../tests/data/topologies/oci_H100-topology.xml"));
        assert_eq!(oci.len(), 1, "{oci:?}");
        assert!(oci[0].starts_with(
            "warning: pcie_switch0, pcie_switch1, pcie_switch2 and 5 more: 8 GB/s (PCIe 2.0 x16) towards the CPU, 63.015 GB/s"
        ));
        let h100 = include_str!("../../../tests/data/topologies/dgx_h100_8gpu_12nic.topo-m.txt");
        assert_eq!(finding_texts(&smi::parse(h100, "t").unwrap()), none);
    }

    #[test]
    fn faults_are_found_and_reported() {
        let gpus = "[[node]]\nid = \"gpu[0-3]\"\nkind = \"gpu\"\n[[node]]\nid = \"sw\"\nkind = \"nvswitch\"\n";
        let link =
            |a: &str, lanes: u32| format!("[[link]]\na = \"{a}\"\nb = \"sw\"\nkind = \"nvlink\"\nlanes = {lanes}\n");
        assert_eq!(
            finding_texts(&built("[[node]]\nid = \"s\"\nkind = \"switch\"\n")),
            ["error: there is no GPU or accelerator", "warning: no usable link at s"]
        );
        assert_eq!(finding_texts(&built(&format!("{gpus}{}", link("gpu[0-3]", 18)))), [""; 0]);
        let odd = finding_texts(&built(&format!("{gpus}{}{}", link("gpu[0-2]", 18), link("gpu3", 16))));
        assert_eq!(odd, ["warning: gpu3 has 16 NVLinks where most GPUs of its host have 18"]);
        let alone = finding_texts(&built(&format!("{gpus}{}", link("gpu[0-2]", 18))));
        assert_eq!(alone[0], "error: no usable link at gpu3");
        let halves = format!(
            "{gpus}{}[[link]]\na = \"gpu2\"\nb = \"gpu3\"\nkind = \"nvlink\"\nlanes = 18\n",
            link("gpu[0-1]", 18)
        );
        let halves = finding_texts(&built(&halves));
        assert_eq!(halves[0], "error: gpu2, gpu3 cannot be reached from gpu0");
        assert_eq!(
            halves[1],
            "note: the GPUs of a host are 2 + 2 in NVLink domains: groups of more than 2 leave NVLink"
        );
        let pcie = |id: &str, rate: u32| {
            format!("[[link]]\na = \"{id}\"\nb = \"cpu\"\nkind = \"pcie\"\nbandwidth = \"{rate} GB/s\"\n")
        };
        let narrow = format!(
            "{gpus}[[node]]\nid = \"cpu\"\nkind = \"cpu\"\n{}{}{}",
            link("gpu[0-3]", 18),
            pcie("gpu[0-2]", 48),
            pcie("gpu3", 24)
        );
        assert_eq!(
            finding_texts(&built(&narrow)),
            ["warning: PCIe of gpu3 carries 24 GB/s where most GPUs of the host have 48 GB/s"]
        );
        let mixed = "[[node]]\nid = \"a\"\nkind = \"gpu\"\nmodel = \"A\"\n[[node]]\nid = \"b\"\nkind = \"gpu\"\nmodel = \"B\"\n[[link]]\na = \"a\"\nb = \"b\"\nkind = \"pcie\"\n";
        assert_eq!(finding_texts(&built(mixed)), ["note: GPUs of several models: 1 × A, 1 × B"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn errors_are_reported_exactly_if_some_pair_of_gpus_has_no_path(fabric in fabric()) {
            // Brute force: reachability from each GPU separately.
            let connected = fabric.gpus().iter().all(|&a| {
                let mut seen = vec![a];
                let mut at = 0;
                while let Some(&node) = seen.get(at) {
                    for (_, link) in fabric.links().filter(|(_, link)| link.from == node) {
                        if !seen.contains(&link.to) {
                            seen.push(link.to);
                        }
                    }
                    at += 1;
                }
                fabric.gpus().iter().all(|b| seen.contains(b))
            });
            let router = Router::new(&fabric, RouteOptions::default());
            let routed = fabric.gpus().iter().all(|&a| fabric.gpus().iter().all(|&b| a == b || router.path(a, b).is_ok()));
            let wrong = check(&fabric).iter().any(|finding| finding.severity == Severity::Error);
            prop_assert_eq!(wrong, !connected || !routed || fabric.gpus().is_empty());
        }
    }
}
