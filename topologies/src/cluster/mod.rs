//! Clusters: copies of a host, or of a rack of hosts, joined by a network.
//!
//! The ids of a copy's devices get the prefix `n0/`, `n1/` …. A preset of several hosts (a rack) is filled host by
//! host; the last rack may be partly filled. The switches of the network belong to a separate host, `network`. Traffic
//! between racks (or single hosts) uses the network; traffic inside a rack or host uses its internal links.
//!
//! **Equal switches are merged into one.** If a tier of a network consists of equal switches over which every flow is
//! spread, one switch with their total bandwidth represents them, as NCCL merges NVSwitches. The load of each link is
//! the same if flows are spread evenly, and the graph of a large cluster stays small. If `radix` or `ecmp` is given,
//! the switches are modelled individually, which hashed routing and the failure of a single switch require.

mod clos;
mod copy;
mod dragonfly;
mod loopback;
mod network;
mod nics;
mod template;
#[cfg(test)]
mod tests;
mod torus;

pub use loopback::LOOPBACK_NIC;
pub use network::{DEFAULT_NIC, DEFAULT_NIC_LATENCY, DEFAULT_NICS, DEFAULT_SWITCH_LATENCY};

use copy::NvlinkDomains;

use crate::error::{Error, Result};
use crate::network_spec::{NetworkKind, NetworkSpec};
use crate::{Fabric, FabricBuilder, NodeId};

/// Maximum number of devices of a cluster: 16 times the number of devices of 8,192 HGX hosts (65,536 GPUs).
const MAX_DEVICES: u64 = 1 << 22;

/// Builds a cluster of `nodes` copies of `host` (a preset, or a file that describes one host or one rack).
///
/// Without `network` the hosts are joined by a rail network of the preset's own NICs, or by none if they fit into one
/// rack.
///
/// # Errors
/// [`Error::Request`] for an impossible cluster: no hosts, too many hosts, or a network whose figures do not fit them.
pub fn build(host: &Fabric, nodes: u32, network: Option<&NetworkSpec>) -> Result<Fabric> {
    build_with_gpus(host, nodes, None, network)
}

/// Variant of [`build`] in which only the first `gpus` GPUs of each host are ranks.
///
/// # Errors
/// The errors of [`build`], and [`Error::Request`] for 0 GPUs or more than a host has.
pub fn build_with_gpus(host: &Fabric, nodes: u32, gpus: Option<u32>, network: Option<&NetworkSpec>) -> Result<Fabric> {
    if nodes == 0 {
        return Err(Error::Request("a cluster has 1 host or more, not 0".to_owned()));
    }
    let mut template = template::Template::new(host)?;
    let preset_hosts = template.hosts();
    if let Some(nodes_per_domain) = network.and_then(|network| network.nodes_per_domain) {
        template.restrict_hosts(nodes_per_domain)?;
    }
    let nics = network.and_then(|network| network.nics_per_node).unwrap_or(0);
    let per_host = template.vertices_per_host() + u64::from(nics);
    if u64::from(nodes) * per_host > MAX_DEVICES {
        let max_nodes = MAX_DEVICES / per_host;
        let message = format!(
            "{nodes} hosts of {} have more than {MAX_DEVICES} devices: expected at most {max_nodes}",
            host.name()
        );
        return Err(Error::Request(message));
    }
    let kind = network.map(|network| network.kind);
    if network.is_some_and(|network| network.sharp == Some(true))
        && let Some(kind) = kind.filter(|kind| matches!(kind, NetworkKind::Mnnvl | NetworkKind::TcpLoopback))
    {
        let message = format!("sharp: only InfiniBand switches reduce and multicast; {} has none", kind.name());
        return Err(Error::Request(message));
    }
    if kind == Some(NetworkKind::TcpLoopback) && nodes > 1 {
        let spec = network.cloned().unwrap_or_default();
        return loopback::split(host, nodes, gpus, &spec);
    }
    let has_all_hosts = nodes as usize == preset_hosts && template.hosts() == preset_hosts;
    let alone = nodes == 1 || (network.is_none() && nodes as usize <= template.hosts());
    let mut fabric = if has_all_hosts && alone {
        host.clone()
    } else {
        let name = if has_all_hosts { host.name().to_owned() } else { format!("{} x{nodes}", host.name()) };
        let mut builder = FabricBuilder::derived_from(host, &name);
        let spec = network.cloned().unwrap_or_default();
        if !alone {
            nics::check_nics_are_specified(host, &spec)?;
        }
        let plan = nics::NicPlan::new(&template, &spec);
        let nvlink_domains =
            if kind == Some(NetworkKind::Mnnvl) { NvlinkDomains::Shared } else { NvlinkDomains::PerCopy };
        let hosts = template.fill(&mut builder, nodes, &plan, nvlink_domains)?;
        if !alone {
            nics::warn_assumed_rate(&mut builder, &hosts);
            join(&mut builder, &spec, &hosts)?;
        }
        builder.finish()
    };
    if let Some(gpus) = gpus {
        restrict(&mut fabric, gpus)?;
    }
    Ok(fabric)
}

/// Restricts the ranks to the first `gpus` GPUs of each host; the others stay in the fabric as idle GPUs.
///
/// # Errors
/// [`Error::Request`] for 0 GPUs or more than some host has.
pub fn restrict(fabric: &mut Fabric, gpus: u32) -> Result<()> {
    let mut seen = vec![0u32; fabric.hosts().len()];
    let mut selected = Vec::with_capacity(fabric.gpus().len());
    for &gpu in fabric.gpus() {
        if let Some(count) = seen.get_mut(fabric.node(gpu).host.0 as usize) {
            *count += 1;
            if *count <= gpus {
                selected.push(gpu);
            }
        }
    }
    let min_gpus = seen.iter().copied().filter(|&count| count > 0).min().unwrap_or(0);
    if gpus == 0 || gpus > min_gpus {
        let message = format!("{gpus} GPUs per host: a host of {} has from 1 to {min_gpus}", fabric.name());
        return Err(Error::Request(message));
    }
    fabric.gpus = selected;
    Ok(())
}

/// Adds the network between the NICs of the hosts.
fn join(builder: &mut FabricBuilder, spec: &NetworkSpec, hosts: &[Vec<NodeId>]) -> Result<()> {
    let network = network::NetworkFigures::new(spec, builder, hosts)?;
    match spec.kind {
        NetworkKind::Rail => clos::rail(builder, &network, hosts),
        NetworkKind::FatTree => clos::fat_tree(builder, &network, hosts),
        NetworkKind::Dragonfly => dragonfly::join(builder, &network, hosts),
        NetworkKind::Torus => torus::join(builder, &network, hosts),
        // Multi-node NVLink and a single machine need no network switches.
        NetworkKind::Mnnvl | NetworkKind::TcpLoopback => Ok(()),
    }
}
