//! Many hosts from one: copies of a preset, joined by a network.
//!
//! A host is copied as it is, its device ids behind `n0/`, `n1/` …; a preset of several hosts (a rack) is filled host
//! by host, and the last rack may stay part-filled. The network's switches stand in a host of their own, `network`.
//! Between racks (or single hosts) traffic takes the network; inside them their own links.
//!
//! **Equal switches are drawn as one.** Where a tier of a network consists of equal switches that every flow spreads
//! over, one vertex with the bandwidth of all stands for them, as NCCL merges NVSwitches: the evenly spread load of
//! each link is the same, and a large cluster stays small. Stating `radix` or `ecmp` draws them one by one, which
//! hashed routing and the failure of a single switch need.

mod clos;
mod copy;
mod dragonfly;
mod loopback;
mod network;
mod nics;
#[cfg(test)]
mod tests;
mod torus;

pub use loopback::LOOPBACK_NIC;
pub use network::{DEFAULT_NIC, DEFAULT_NIC_LATENCY, DEFAULT_NICS, DEFAULT_SWITCH_LATENCY};

use crate::error::{Error, Result};
use crate::network_spec::{NetworkKind, NetworkSpec};
use crate::{Fabric, FabricBuilder, NodeId};

/// Most vertices of a cluster: sixteen times those of 65,536 GPUs on HGX hosts.
const MOST_VERTICES: u64 = 1 << 22;

/// `nodes` hosts like those of `host` (a preset, or a file that describes one host or one rack) on a network.
///
/// `network` `None` is a rail network with the preset's own NICs, or none where the hosts fit into one rack.
///
/// # Errors
/// [`Error::Request`] where no such cluster can be: no hosts, too many, a network that the figures do not fit.
pub fn build(host: &Fabric, nodes: u32, network: Option<&NetworkSpec>) -> Result<Fabric> {
    build_with_gpus(host, nodes, None, network)
}

/// The same, with only the first `gpus` GPUs of each host as ranks.
///
/// # Errors
/// As [`build`], and [`Error::Request`] for 0 GPUs or more than a host has.
pub fn build_with_gpus(host: &Fabric, nodes: u32, gpus: Option<u32>, network: Option<&NetworkSpec>) -> Result<Fabric> {
    if nodes == 0 {
        return Err(Error::Request("a cluster has 1 host or more, not 0".to_owned()));
    }
    let template = copy::Template::new(host)?;
    let nics = network.and_then(|network| network.nics_per_node).unwrap_or(0);
    let per_host = template.vertices_per_host() + u64::from(nics);
    if u64::from(nodes) * per_host > MOST_VERTICES {
        let most = MOST_VERTICES / per_host;
        let message =
            format!("{nodes} hosts of {} have more than {MOST_VERTICES} devices: expected at most {most}", host.name());
        return Err(Error::Request(message));
    }
    let kind = network.map(|network| network.kind);
    if kind == Some(NetworkKind::TcpLoopback) && nodes > 1 {
        let spec = network.cloned().unwrap_or_default();
        return loopback::split(host, nodes, gpus, &spec);
    }
    let whole = nodes as usize == template.hosts();
    let alone = nodes == 1 || (network.is_none() && nodes as usize <= template.hosts());
    let mut fabric = if whole && alone {
        host.clone()
    } else {
        let name = if whole { host.name().to_owned() } else { format!("{} x{nodes}", host.name()) };
        let mut builder = FabricBuilder::new(&name);
        builder.gpu_candidates(host.gpu_candidates().to_vec());
        for source in host.sources() {
            builder.source(source);
        }
        for warning in host.warnings() {
            builder.warn(warning);
        }
        builder.routing(host.routing());
        let spec = network.cloned().unwrap_or_default();
        if !alone {
            nics::known(host, &spec)?;
        }
        let plan = nics::Plan::new(&template, &spec);
        let hosts = template.fill(&mut builder, nodes, &plan, kind == Some(NetworkKind::Mnnvl))?;
        if !alone {
            nics::say_assumed_rate(&mut builder, &hosts);
            join(&mut builder, &spec, &hosts)?;
        }
        builder.finish()
    };
    if let Some(gpus) = gpus {
        restrict(&mut fabric, gpus)?;
    }
    Ok(fabric)
}

/// Keeps the first `gpus` GPUs of each host as ranks; the others stay in the fabric, and are no ranks.
///
/// # Errors
/// [`Error::Request`] for 0 GPUs or more than some host has.
pub fn restrict(fabric: &mut Fabric, gpus: u32) -> Result<()> {
    let mut seen = vec![0u32; fabric.hosts().len()];
    let mut kept = Vec::with_capacity(fabric.gpus().len());
    for &gpu in fabric.gpus() {
        if let Some(count) = seen.get_mut(fabric.node(gpu).host.0 as usize) {
            *count += 1;
            if *count <= gpus {
                kept.push(gpu);
            }
        }
    }
    let least = seen.iter().copied().filter(|&count| count > 0).min().unwrap_or(0);
    if gpus == 0 || gpus > least {
        let message = format!("{gpus} GPUs per host: a host of {} has from 1 to {least}", fabric.name());
        return Err(Error::Request(message));
    }
    fabric.gpus = kept;
    Ok(())
}

/// Joins the NICs of the hosts.
fn join(builder: &mut FabricBuilder, spec: &NetworkSpec, hosts: &[Vec<NodeId>]) -> Result<()> {
    let network = network::Network::new(spec, builder, hosts)?;
    match spec.kind {
        NetworkKind::Rail => clos::rail(builder, &network, hosts),
        NetworkKind::FatTree => clos::fat_tree(builder, &network, hosts),
        NetworkKind::Dragonfly => dragonfly::join(builder, &network, hosts),
        NetworkKind::Torus => torus::join(builder, &network, hosts),
        // One NVLink domain, and one host: nothing else joins them.
        NetworkKind::Mnnvl | NetworkKind::TcpLoopback => Ok(()),
    }
}
