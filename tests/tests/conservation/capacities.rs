//! Capacities of links, memories, channels, SMs and copy engines, from fabric and profile.

use fabricast_sim::lower::Resource;
use fabricast_sim::profile::ChannelLimit;
use fabricast_sim::schedule::{Protocol, Schedule};
use fabricast_topologies::fabric::{Figures, GpuFigures, Link};
use fabricast_topologies::{Bandwidth, LinkKind, NodeId, NodeKind};

use crate::testbed::Testbed;

/// Bytes that represent a picosecond of the time of a block, or of a thread that posts messages: such times are loads
/// in units of ten picoseconds.
pub(super) const BYTES_OF_A_PICOSECOND: f64 = 0.1;

/// Returns a capacity in bytes per picosecond, from fabric and profile; `None` if unlimited.
pub(super) fn capacity(testbed: &Testbed, schedule: &Schedule, resource: Resource) -> Option<f64> {
    let stated = match resource {
        Resource::Link(id) => {
            let link = testbed.fabric.link(id);
            return link.bandwidth.map(|b| b.0 as f64 * 1e-12 * testbed.profile.links.for_kind(link.kind));
        }
        Resource::Memory(node) => match &testbed.fabric.node(node).figures {
            Figures::Gpu(figures) => figures.memory_bandwidth,
            Figures::Cpu(figures) => figures.memory_bandwidth,
            _ => None,
        },
        Resource::Processors(node) => return processors(testbed, schedule, node),
        Resource::CopyEngines(node) => return copy_engines(testbed, node),
        Resource::Crossbar(node) => match &testbed.fabric.node(node).figures {
            Figures::Switch(figures) => figures.capacity,
            _ => None,
        },
        Resource::Channel(..) => return lane(testbed, schedule),
        Resource::Proxy(_) => return Some(BYTES_OF_A_PICOSECOND),
    };
    stated.map(|b: Bandwidth| b.0 as f64 * 1e-12)
}

fn gpu(testbed: &Testbed, node: NodeId) -> GpuFigures {
    match &testbed.fabric.node(node).figures {
        Figures::Gpu(figures) => (**figures).clone(),
        _ => GpuFigures::default(),
    }
}

/// Returns the capacity of a channel in bytes per picosecond: payload at a rate, or the time of its block.
fn lane(testbed: &Testbed, schedule: &Schedule) -> Option<f64> {
    match testbed.profile.protocol(schedule.header().protocol).channel_limit {
        ChannelLimit::Unlimited => None,
        ChannelLimit::Rate(rate) => Some(rate.0 as f64 * 1e-12),
        ChannelLimit::Passes(_) => Some(BYTES_OF_A_PICOSECOND),
    }
}

/// Returns the capacity of all SMs at the rate of a channel, if there are more thread blocks than SMs.
fn processors(testbed: &Testbed, schedule: &Schedule, node: NodeId) -> Option<f64> {
    let header = schedule.header();
    let lane = lane(testbed, schedule)?;
    let ranks = testbed.placement().iter().filter(|&&device| device == node).count() as u32;
    let sms = gpu(testbed, node).sm_count?;
    let blocks = header.channels.div_ceil(header.blocks.split.channels());
    let crowded = header.protocol != Protocol::CopyEngine && ranks * u32::from(blocks) > sms;
    crowded.then(|| lane * f64::from(sms))
}

/// Returns the capacity of all copy engines at the rate of the fastest external link, if the links could carry more
/// than that.
fn copy_engines(testbed: &Testbed, node: NodeId) -> Option<f64> {
    let engines = f64::from(gpu(testbed, node).copy_engines?);
    let is_mig = |node: NodeId| testbed.fabric.node(node).kind == NodeKind::Mig;
    let parent = if is_mig(node) { testbed.fabric.ends(testbed.fabric.outgoing_links(node)[0]).1 } else { node };
    let is_external = |link: &Link| {
        let ends = [link.from, link.to];
        let is_attached = ends.contains(&parent) && !link.failed && !ends.into_iter().any(is_mig);
        is_attached && (parent == node || link.kind != LinkKind::Nvlink)
    };
    let links = testbed.fabric.links().map(|(_, link)| link).filter(|link| is_external(link));
    let rate = |link: &Link| Some(link.bandwidth?.0 as f64 * 1e-12 * testbed.profile.links.for_kind(link.kind));
    let rates: Vec<f64> = links.map(rate).collect::<Option<_>>()?;
    let engine_rate = engines * rates.iter().copied().fold(0.0, f64::max);
    (rates.iter().sum::<f64>() > engine_rate).then_some(engine_rate)
}
