//! Clos networks: rail networks and fat trees.

use super::network::NetworkFigures;
use crate::NodeId;
use crate::error::{Error, Result};
use crate::fabric::FabricBuilder;

/// Default number of ports of a switch in a fat tree: 64 ports of 400 Gb/s (NVIDIA Quantum-2 QM9700).
const DEFAULT_RADIX: u32 = 64;

/// A leaf switch and the total line rate of the NICs that its ports can connect, in bytes per second.
struct Leaf {
    switch: NodeId,
    downlink_bandwidth: u64,
}

/// Builds a rail network: NIC *i* of every host is on a leaf of rail *i*. With a `radix`, each rail has as many leaves
/// as the hosts need.
pub(super) fn rail(builder: &mut FabricBuilder, network: &NetworkFigures, hosts: &[Vec<NodeId>]) -> Result<()> {
    let per_leaf = network.spec.radix.map_or(hosts.len(), |radix| ports_below(network, radix)).max(1);
    let groups = hosts.chunks(per_leaf);
    let several = groups.len() > 1;
    let mut pods = Vec::new();
    for (number, group) in groups.enumerate() {
        let mut leaves = Vec::new();
        for rail in 0..network.nics {
            let id = if several { format!("g{number}/leaf{rail}") } else { format!("leaf{rail}") };
            let switch = network.switch(builder, &id)?;
            for nics in group {
                if let Some(&nic) = nics.get(rail) {
                    network.plug(builder, nic, rail, switch);
                }
            }
            let rate = network.rates.get(rail).map_or(0, |rate| rate.0);
            leaves.push(Leaf { switch, downlink_bandwidth: rate.saturating_mul(per_leaf as u64) });
        }
        pods.push(leaves);
    }
    let tiers = network.spec.tiers.unwrap_or(2);
    if several && tiers == 1 {
        let message = format!("a rail network of one tier and radix {} supports {per_leaf} hosts", radix(network));
        return Err(Error::Request(message));
    }
    add_upper_tiers(builder, network, pods, tiers)
}

/// Builds a fat tree: all NICs of a host are on one leaf, and a leaf has as many hosts as its ports allow.
pub(super) fn fat_tree(builder: &mut FabricBuilder, network: &NetworkFigures, hosts: &[Vec<NodeId>]) -> Result<()> {
    let radix = radix(network);
    let per_leaf = (ports_below(network, radix) / network.nics.max(1)).max(1);
    let mut leaves = Vec::new();
    for (number, group) in hosts.chunks(per_leaf).enumerate() {
        let switch = network.switch(builder, &format!("leaf{number}"))?;
        for (rail, &nic) in group.iter().flat_map(|nics| nics.iter().enumerate()) {
            network.plug(builder, nic, rail, switch);
        }
        leaves.push(Leaf { switch, downlink_bandwidth: network.host_rate().saturating_mul(per_leaf as u64) });
    }
    let (count, two_tiers) = (leaves.len(), radix as usize);
    let needed = if count == 1 {
        1
    } else if count <= two_tiers {
        2
    } else {
        3
    };
    let tiers = network.spec.tiers.unwrap_or(needed);
    let max_leaves = match tiers {
        1 => 1,
        2 => two_tiers,
        _ => two_tiers * (two_tiers / 2).max(1),
    };
    if count > max_leaves {
        let message = format!(
            "a fat tree of {tiers} tiers of {radix}-port switches supports {} hosts, not {}; give more tiers or a larger radix",
            max_leaves * per_leaf,
            hosts.len()
        );
        return Err(Error::Request(message));
    }
    let pods = if tiers == 3 { chunk(leaves, (two_tiers / 2).max(1)) } else { vec![leaves] };
    add_upper_tiers(builder, network, pods, tiers)
}

fn radix(network: &NetworkFigures) -> u32 {
    network.spec.radix.unwrap_or(DEFAULT_RADIX)
}

/// Number of a leaf's ports that face hosts. The ratio of these ports to the uplinks is the oversubscription.
fn ports_below(network: &NetworkFigures, radix: u32) -> usize {
    let share = network.oversubscription / (1.0 + network.oversubscription);
    ((f64::from(radix) * share).round() as usize).clamp(1, radix as usize)
}

fn chunk(leaves: Vec<Leaf>, size: usize) -> Vec<Vec<Leaf>> {
    let mut pods: Vec<Vec<Leaf>> = Vec::new();
    for leaf in leaves {
        match pods.last_mut().filter(|pod| pod.len() < size) {
            Some(pod) => pod.push(leaf),
            None => pods.push(vec![leaf]),
        }
    }
    pods
}

/// Adds the tiers above the leaves. Two tiers: spines over all leaves; three: spines over each pod and cores over all
/// pods.
fn add_upper_tiers(
    builder: &mut FabricBuilder,
    network: &NetworkFigures,
    pods: Vec<Vec<Leaf>>,
    tiers: u32,
) -> Result<()> {
    let leaves: usize = pods.iter().map(Vec::len).sum();
    if leaves < 2 || tiers < 2 {
        return Ok(());
    }
    if tiers == 2 {
        let all: Vec<Leaf> = pods.into_iter().flatten().collect();
        return add_spines(builder, network, &all, "spine").map(drop);
    }
    let several = pods.len() > 1;
    let mut spines = Vec::new();
    for (number, pod) in pods.iter().enumerate() {
        let prefix = if several { format!("pod{number}/spine") } else { "spine".to_owned() };
        spines.push(add_spines(builder, network, pod, &prefix)?);
    }
    if !several {
        return Ok(());
    }
    // Spine k of every pod connects to the cores of plane k, so any core reaches any pod.
    let planes = spines.iter().map(Vec::len).max().unwrap_or(0);
    for plane in 0..planes {
        let id = if planes == 1 { "core".to_owned() } else { format!("plane{plane}/core") };
        let members: Vec<(NodeId, u64)> = spines.iter().filter_map(|pod| pod.get(plane).copied()).collect();
        let cores = modelled_switches(network);
        for number in 0..cores {
            let core = network.switch(builder, &format!("{id}{number}"))?;
            for &(spine, below) in &members {
                network.trunk(builder, spine, core, below / cores as u64);
            }
        }
    }
    Ok(())
}

/// Adds spines that are linked to all of `leaves`; their ids are `prefix` and a number. Returns each spine with the sum
/// of the bandwidths of its links to leaves, in bytes per second.
fn add_spines(
    builder: &mut FabricBuilder,
    network: &NetworkFigures,
    leaves: &[Leaf],
    prefix: &str,
) -> Result<Vec<(NodeId, u64)>> {
    let count = modelled_switches(network);
    let mut spines = Vec::new();
    for number in 0..count {
        let spine = network.switch(builder, &format!("{prefix}{number}"))?;
        let mut below = 0u64;
        for leaf in leaves {
            let rate = network.uplink_bandwidth(leaf.downlink_bandwidth) / count as u64;
            network.trunk(builder, leaf.switch, spine, rate);
            below = below.saturating_add(rate);
        }
        spines.push((spine, below));
    }
    Ok(spines)
}

/// Number of individually modelled switches of a tier. One merged switch represents the tier unless `ecmp` or `radix`
/// is given.
fn modelled_switches(network: &NetworkFigures) -> usize {
    let ports_above = |radix: u32| (radix as usize).saturating_sub(ports_below(network, radix)).max(1);
    match (network.spec.ecmp, network.spec.radix) {
        (Some(ecmp), _) => ecmp as usize,
        (None, Some(radix)) => ports_above(radix),
        (None, None) => 1,
    }
}
