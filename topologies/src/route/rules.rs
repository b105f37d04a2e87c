//! Forwarding rules: the links over which a device may forward traffic, and the class of the resulting path.
//!
//! Switches and CPUs always forward. A participating GPU forwards traffic of its host from NVLink to links that lead to
//! a NIC (PXN). A relay for a missing NVLink between two other GPUs is not forwarding, because software copies the data
//! ([`super::relay`]). A GPU that carries MIG instances has no NVLink and forwards between them and its other links.
//! Other accelerators forward over their own links any number of times, as in TPU slices. NICs and MIG instances
//! forward nothing. Classes follow NCCL's `paths.cc`.

use strum::{EnumCount, VariantArray};

use super::PathClass;
use crate::LinkKind;
use crate::fabric::NodeKind;
use crate::variants::variants;

/// State of a partial path that depends on the kinds of links used so far; a search tracks pairs of device and phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, VariantArray)]
pub(super) enum Phase {
    /// NVLink only, with no accelerator in between.
    Nvlink,
    /// NVLink only, through an accelerator.
    Bridged,
    /// Has used a link other than NVLink.
    Mixed,
    /// Arrived by NVLink at a GPU of the same host and left it by another link; may only continue to a NIC.
    Relayed,
}

impl Phase {
    pub const ALL: [Self; Self::COUNT] = variants();
}

/// Memory access between the two ends of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Devices access each other's memory directly.
    Direct,
    /// All traffic passes a CPU's memory. The phase is `Nvlink` before that CPU and `Mixed` after it.
    Staged,
}

/// Properties of a device that the forwarding rules use.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceContext {
    pub kind: NodeKind,
    /// True for the source of the path, which may send over any of its links.
    pub is_source: bool,
    /// True if software can send through this device to a NIC (PXN): it participates and is on the source's host.
    pub may_relay: bool,
    /// True if the device has a C2C link (as a Grace CPU does).
    pub has_c2c: bool,
    /// True for a GPU that carries MIG instances.
    pub carries_mig: bool,
}

/// The phase after crossing a link from `at` to `to`, and the class that this link requires; `None` if the device does
/// not forward onto it.
pub(super) fn step(
    access: Access,
    phase: Phase,
    at: DeviceContext,
    link: LinkKind,
    to: DeviceContext,
) -> Option<(Phase, PathClass)> {
    let nvlink = link == LinkKind::Nvlink;
    match access {
        Access::Direct => {
            let next = next_phase(phase, at, link)?;
            let class = match (next, phase) {
                (Phase::Bridged, Phase::Nvlink) => PathClass::Nvb,
                (Phase::Relayed, Phase::Nvlink) => PathClass::Pxn.max(link_class(link, at, to)),
                _ => link_class(link, at, to),
            };
            // Sending through a GPU is only useful if the GPU is nearer to the NIC than the CPU is.
            (next != Phase::Relayed || class <= PathClass::Pxn).then_some((next, class))
        }
        Access::Staged => {
            let forwards = at.is_source || at.carries_mig || is_switch(at.kind) || at.kind == NodeKind::Cpu;
            // NVLink between GPUs is peer access; NVLink to a CPU (POWER) is the path to host memory.
            let usable = !nvlink || at.kind == NodeKind::Cpu || to.kind == NodeKind::Cpu;
            let staged = phase == Phase::Mixed || at.kind == NodeKind::Cpu || to.kind == NodeKind::Cpu;
            let next = if staged { Phase::Mixed } else { Phase::Nvlink };
            (forwards && usable).then(|| (next, link_class(link, at, to)))
        }
    }
}

/// Returns the phase of peer access after crossing a link from `at`; `None` if the device does not forward onto it.
fn next_phase(phase: Phase, at: DeviceContext, link: LinkKind) -> Option<Phase> {
    let nvlink = link == LinkKind::Nvlink;
    if at.is_source {
        return Some(if nvlink { Phase::Nvlink } else { Phase::Mixed });
    }
    match at.kind {
        NodeKind::Nvswitch | NodeKind::PcieSwitch | NodeKind::Cpu | NodeKind::Switch => match (phase, nvlink) {
            (Phase::Nvlink | Phase::Bridged, true) => Some(phase),
            (Phase::Nvlink, false) | (Phase::Mixed, _) => Some(Phase::Mixed),
            (Phase::Relayed, false) => Some(Phase::Relayed),
            (Phase::Bridged, false) | (Phase::Relayed, true) => None,
        },
        NodeKind::Gpu if at.carries_mig => (phase == Phase::Mixed && !nvlink).then_some(Phase::Mixed),
        NodeKind::Gpu | NodeKind::Accelerator => match (phase, nvlink) {
            (Phase::Nvlink | Phase::Bridged, true) if at.kind == NodeKind::Accelerator => Some(Phase::Bridged),
            (Phase::Nvlink, false) if at.may_relay => Some(Phase::Relayed),
            _ => None,
        },
        NodeKind::Nic | NodeKind::Mig => None,
    }
}

/// Returns true for devices that forward all traffic, including network traffic.
pub(super) fn is_switch(kind: NodeKind) -> bool {
    matches!(kind, NodeKind::Nvswitch | NodeKind::PcieSwitch | NodeKind::Switch)
}

fn link_class(link: LinkKind, a: DeviceContext, b: DeviceContext) -> PathClass {
    let either = |test: fn(&DeviceContext) -> bool| test(&a) || test(&b);
    match link {
        LinkKind::Nvlink => PathClass::Nvl,
        LinkKind::C2c => PathClass::C2c,
        LinkKind::Upi => PathClass::Sys,
        // A file may attach a NIC to its host by any technology.
        LinkKind::Pcie | LinkKind::Infiniband | LinkKind::Ethernet => {
            if either(|at| at.kind == NodeKind::Cpu && at.has_c2c) {
                PathClass::P2c
            } else if either(|at| at.kind == NodeKind::Cpu) {
                PathClass::Phb
            } else if a.kind == NodeKind::PcieSwitch && b.kind == NodeKind::PcieSwitch {
                PathClass::Pxb
            } else {
                PathClass::Pix
            }
        }
    }
}
