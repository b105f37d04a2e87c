//! Bandwidths in NCCL's search: channel speeds, and NCCL's values of link bandwidths, in GB/s.
//!
//! Sources: NCCL 2.30.7 `src/graph/search.cc` (speeds), `src/graph/topo.h` and `topo.cc` (links). NCCL's link
//! bandwidths are below the nominal rates to account for framing. A fabric states nominal rates, which are converted
//! here.

use fabricast_topologies::fabric::{CpuArch, CpuFigures, Figures};
use fabricast_topologies::{Bandwidth, Fabric, LinkId, LinkKind, NodeId, NodeKind};

/// Number of nodes of a communicator (one or several), which selects the channel speeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommunicatorExtent {
    /// The communicator is on one node.
    Inside,
    /// The communicator spans several nodes.
    Between,
}

pub(super) fn speeds(compute_capability: u32, extent: CommunicatorExtent) -> &'static [f64] {
    match (compute_capability, extent) {
        (100.., CommunicatorExtent::Inside) => {
            &[90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0]
        }
        (100.., CommunicatorExtent::Between) => &[
            96.0, 86.0, 80.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2,
            0.24, 0.12,
        ],
        (90.., CommunicatorExtent::Inside) => &[60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0],
        (90.., CommunicatorExtent::Between) => {
            &[48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24, 0.12]
        }
        (_, CommunicatorExtent::Inside) => &[40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0],
        (_, CommunicatorExtent::Between) => {
            &[48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24, 0.12]
        }
    }
}

/// NCCL's bandwidth of one NVLink, GB/s, by compute capability × 10.
fn nvlink(compute_capability: u32) -> f64 {
    match compute_capability {
        100.. => 40.1,
        90.. => 20.6,
        86 => 12.0,
        70.. => 20.0,
        60.. => 18.0,
        _ => 20.0,
    }
}

/// Nominal rate of one NVLink, GB/s, as stated by presets and readers; by compute capability × 10.
fn nominal_nvlink(compute_capability: u32) -> f64 {
    match compute_capability {
        100.. => 50.0,
        86 => 14.0625,
        70.. => 25.0,
        60.. => 20.0,
        _ => 25.0,
    }
}

/// Bandwidth of a PCIe lane in GB/s, from generation 1 to 6: the nominal rate, and NCCL's value. NCCL states 15, 30,
/// 60, 120, 240 and 480 for the generations (`kvDictPciGen` in `src/graph/topo.cc`) and divides by 80.
const LANES: [(f64, f64); 6] =
    [(0.25, 0.1875), (0.5, 0.375), (0.984_615, 0.75), (1.969_231, 1.5), (3.938_462, 3.0), (7.562_5, 6.0)];

/// Bandwidth of a NIC without a stated speed, GB/s (10 Gb/s).
const UNSTATED_NIC: f64 = 1.25;

/// NCCL's bandwidth of a direction of a link, GB/s; infinite if the link has no limit.
pub(super) fn link(fabric: &Fabric, id: LinkId, compute_capability: u32) -> f64 {
    let link = fabric.link(id);
    let nominal = link.bandwidth.map_or(f64::INFINITY, Bandwidth::gb_per_s);
    match link.kind {
        LinkKind::Nvlink => lanes(fabric, id, compute_capability) * nvlink(compute_capability),
        LinkKind::Pcie => pcie(nominal, link.lanes),
        LinkKind::Upi => between_sockets(fabric, link.from).min(between_sockets(fabric, link.to)),
        LinkKind::C2c | LinkKind::Infiniband | LinkKind::Ethernet => nominal,
    }
}

/// Number of NVLinks that a link represents. If the fabric does not state it, it follows from their total bandwidth.
pub(super) fn lanes(fabric: &Fabric, id: LinkId, compute_capability: u32) -> f64 {
    let link = fabric.link(id);
    let nominal = link.bandwidth.map_or(f64::INFINITY, Bandwidth::gb_per_s);
    match link.lanes {
        0 | 1 => (nominal / nominal_nvlink(compute_capability)).round().clamp(1.0, 64.0),
        lanes => f64::from(lanes),
    }
}

fn pcie(nominal: f64, lanes: u16) -> f64 {
    if nominal.is_infinite() {
        return f64::INFINITY;
    }
    // NCCL assumes a width of 16 lanes if none is stated (topo.cc).
    let width = if lanes <= 1 { 16.0 } else { f64::from(lanes) };
    let per_lane = nominal / width;
    let distance = |known: &(f64, f64)| (known.0 / per_lane).ln().abs();
    let nearest = LANES.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
    nearest.map_or(nominal, |&(_, value)| width * value)
}

/// NCCL's bandwidth between CPU sockets, GB/s, by CPU model (`ncclTopoGetInterCpuBw`).
fn between_sockets(fabric: &Fabric, node: NodeId) -> f64 {
    const INTEL: &str = "GenuineIntel";
    let Some(figures) = cpu(fabric, node) else { return f64::INFINITY };
    match (figures.arch, figures.vendor.as_deref()) {
        (Some(CpuArch::Power), _) => 32.0,
        (Some(CpuArch::Arm), _) => 6.0,
        (_, Some("AuthenticAMD")) => 16.0,
        (_, Some(INTEL)) => match (figures.family, figures.model_id) {
            (Some(6), Some(0xcf..)) => 40.0,
            (Some(6), Some(0x8f..)) => 22.0,
            (Some(6), Some(0x55..)) => 10.0,
            _ => 6.0,
        },
        _ => f64::INFINITY,
    }
}

/// Figures of a CPU socket; `None` for other devices.
pub(super) fn cpu(fabric: &Fabric, node: NodeId) -> Option<&CpuFigures> {
    match (&fabric.node(node).kind, &fabric.node(node).figures) {
        (NodeKind::Cpu, Figures::Cpu(figures)) => Some(figures),
        _ => None,
    }
}

/// NCCL's bandwidth of a NIC's network side, GB/s.
pub(super) fn nic(fabric: &Fabric, node: NodeId) -> f64 {
    let Figures::Nic(figures) = &fabric.node(node).figures else { return UNSTATED_NIC };
    // The loopback interface has no speed; the fabric's value is the measured socket bandwidth.
    if figures.model.as_deref() == Some("loopback") {
        return UNSTATED_NIC;
    }
    figures.speed.map_or(UNSTATED_NIC, Bandwidth::gb_per_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nominal_rates_convert_to_nccl_bandwidths() {
        for (nominal, lanes, expected) in
            [(63.0, 16, 48.0), (31.5, 16, 24.0), (15.75, 16, 12.0), (63.0, 1, 48.0), (31.5, 8, 24.0)]
        {
            assert!((pcie(nominal, lanes) - expected).abs() < 1e-9, "{nominal} over {lanes}");
        }
        assert!((18.0 * nvlink(90) - 370.8).abs() < 1e-9 && (18.0 * nvlink(100) - 721.8).abs() < 1e-9);
    }
}
