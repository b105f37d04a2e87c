//! Checks for unequal hosts and for rank groups that span several NVLink domains.

use std::collections::BTreeMap;

use super::{Finding, Severity, finding, gpus_by_host, most_frequent};
use crate::fabric::{Fabric, HostId, LinkKind, NodeId, NodeKind};

/// Finds hosts whose number of GPUs or NICs differs from the most frequent one.
pub(super) fn unequal_hosts(fabric: &Fabric) -> Vec<Finding> {
    let mut gpus: BTreeMap<HostId, u32> = BTreeMap::new();
    for &gpu in fabric.gpus() {
        *gpus.entry(fabric.node(gpu).host).or_default() += 1;
    }
    let mut nics: BTreeMap<HostId, u32> = gpus.keys().map(|&host| (host, 0)).collect();
    for (_, node) in fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Nic) {
        if let Some(count) = nics.get_mut(&node.host) {
            *count += 1;
        }
    }
    let mut findings = Vec::new();
    for (counts, device_kind) in [(gpus, "GPUs"), (nics, "NICs")] {
        let Some(usual) = most_frequent(counts.values().copied()) else { continue };
        let mut odd: BTreeMap<u32, Vec<HostId>> = BTreeMap::new();
        for (host, count) in counts.into_iter().filter(|&(_, count)| count != usual) {
            odd.entry(count).or_default().push(host);
        }
        for (count, hosts) in odd {
            let names: Vec<&str> = hosts
                .iter()
                .take(3)
                .filter_map(|host| fabric.hosts().get(host.0 as usize))
                .map(|name| &**name)
                .collect();
            let more = hosts.len().saturating_sub(3);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let message =
                format!("hosts differ: {}{more} with {count} {device_kind}, most with {usual}", names.join(", "));
            findings.push(finding(Severity::Warning, message));
        }
    }
    findings
}

/// NVLink domain of each device, indexed by [`NodeId`]. A domain consists of the devices connected by NVLinks that work
/// in both directions; its number is the smallest id among them.
fn nvlink_domains(fabric: &Fabric) -> Vec<u32> {
    let mut domain: Vec<u32> = (0..fabric.node_count() as u32).collect();
    let root = |domain: &[u32], mut device: u32| {
        while domain[device as usize] != device {
            device = domain[device as usize];
        }
        device
    };
    for (_, [link, back]) in fabric.link_pairs() {
        if link.kind != LinkKind::Nvlink || link.failed || back.failed {
            continue;
        }
        let (a, b) = (root(&domain, link.from.0), root(&domain, link.to.0));
        domain[a.max(b) as usize] = a.min(b);
    }
    (0..fabric.node_count() as u32).map(|device| root(&domain, device)).collect()
}

/// Finds hosts whose GPUs are in several NVLink domains. The finding is a warning if a group of consecutive ranks spans
/// several domains, otherwise a note that states the size of the largest domain.
pub(super) fn straddled_domains(fabric: &Fabric) -> Vec<Finding> {
    let domain = nvlink_domains(fabric);
    let mut findings = BTreeMap::new();
    for gpus in gpus_by_host(fabric).into_values() {
        let gpu_domain = |gpu: &NodeId| domain[gpu.0 as usize];
        let mut domains: BTreeMap<u32, Vec<NodeId>> = BTreeMap::new();
        for gpu in &gpus {
            domains.entry(gpu_domain(gpu)).or_default().push(*gpu);
        }
        let largest = domains.values().map(Vec::len).max().unwrap_or(0);
        if domains.len() < 2 || largest < 2 {
            continue;
        }
        let sizes: Vec<String> = domains.values().map(|domain| domain.len().to_string()).collect();
        let straddles =
            gpus.chunks(largest).any(|group| group.iter().any(|gpu| gpu_domain(gpu) != gpu_domain(&group[0])));
        let ids = |domain: &Vec<NodeId>| domain.iter().map(|&gpu| &*fabric.node(gpu).id).collect::<Vec<_>>().join(", ");
        let split: Vec<String> = domains.values().take(4).map(ids).collect();
        let (severity, message) = if straddles {
            let message =
                format!("groups of {largest} neighbouring ranks straddle NVLink domains: {}", split.join(" | "));
            (Severity::Warning, message)
        } else {
            let sizes = sizes.join(" + ");
            (
                Severity::Note,
                format!("the GPUs of a host are {sizes} in NVLink domains: groups of more than {largest} leave NVLink"),
            )
        };
        findings.entry((severity, domains.len(), largest)).or_insert(message);
    }
    findings.into_iter().map(|((severity, ..), message)| finding(severity, message)).collect()
}
