//! Which device may pass traffic on to which, and what that makes of the path's class.
//!
//! Switches and CPUs always forward. A GPU that takes part forwards, for its host's sake, from NVLink to what leads to a
//! NIC (PXN); that it may also stand in for a missing NVLink between two others is not a matter of forwarding but of
//! software ([`super::relay`]). A GPU that carries MIG instances has no NVLink and forwards between them and its other links.
//! Other accelerators forward over their own links any number of times (TPU slices do). NICs and MIG instances forward
//! nothing. Classes follow NCCL's `paths.cc`.

use super::PathClass;
use crate::LinkKind;
use crate::fabric::NodeKind;

/// What a path has been through on its way to a device; a search tracks devices with their phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// NVLink only, no accelerator in between.
    Nvlink,
    /// NVLink only, through an accelerator.
    Bridged,
    /// Has used something else than NVLink.
    Mixed,
    /// Came by NVLink to a GPU of the same host and left it another way: may only go on to a NIC.
    Relayed,
}

impl Phase {
    pub const ALL: [Self; 4] = [Self::Nvlink, Self::Bridged, Self::Mixed, Self::Relayed];
}

/// How memory is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Devices read and write each other's memory.
    Direct,
    /// Everything passes a CPU's memory. The phases are then `Nvlink` before that CPU and `Mixed` after it.
    Staged,
}

/// A device as the rules see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub kind: NodeKind,
    /// Where the path starts: a source may send over any of its links.
    pub is_source: bool,
    /// Whether software sends through this device to a NIC (PXN): it takes part, in the source's host.
    pub may_relay: bool,
    /// Whether the device has a C2C link (a Grace CPU does).
    pub has_c2c: bool,
    /// Whether it is a GPU that MIG instances hang on.
    pub carries: bool,
}

/// The phase after crossing a link from `at` to `to`, and the class that this link asks for; `None` where the device
/// does not forward that way.
pub(super) fn step(access: Access, phase: Phase, at: At, link: LinkKind, to: At) -> Option<(Phase, PathClass)> {
    let nvlink = link == LinkKind::Nvlink;
    match access {
        Access::Direct => {
            let next = direct(phase, at, nvlink)?;
            let class = match (next, phase) {
                (Phase::Bridged, Phase::Nvlink) => PathClass::Nvb,
                (Phase::Relayed, Phase::Nvlink) => PathClass::Pxn.max(class_of(link, at, to)),
                _ => class_of(link, at, to),
            };
            // A relay is worth it only where the GPU is nearer to the NIC than a CPU would be.
            (next != Phase::Relayed || class <= PathClass::Pxn).then_some((next, class))
        }
        Access::Staged => {
            let forwards = at.is_source || at.carries || is_switch(at.kind) || at.kind == NodeKind::Cpu;
            // NVLink between peers is peer access; NVLink to a CPU (POWER) is the way to host memory.
            let usable = !nvlink || at.kind == NodeKind::Cpu || to.kind == NodeKind::Cpu;
            let staged = phase == Phase::Mixed || at.kind == NodeKind::Cpu || to.kind == NodeKind::Cpu;
            let next = if staged { Phase::Mixed } else { Phase::Nvlink };
            (forwards && usable).then(|| (next, class_of(link, at, to)))
        }
    }
}

fn direct(phase: Phase, at: At, nvlink: bool) -> Option<Phase> {
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
        NodeKind::Gpu if at.carries => (phase == Phase::Mixed && !nvlink).then_some(Phase::Mixed),
        NodeKind::Gpu | NodeKind::Accelerator => match (phase, nvlink) {
            (Phase::Nvlink | Phase::Bridged, true) if at.kind == NodeKind::Accelerator => Some(Phase::Bridged),
            (Phase::Nvlink, false) if at.may_relay => Some(Phase::Relayed),
            _ => None,
        },
        NodeKind::Nic | NodeKind::Mig => None,
    }
}

/// Devices that pass on whatever comes, network traffic too.
pub(super) fn is_switch(kind: NodeKind) -> bool {
    matches!(kind, NodeKind::Nvswitch | NodeKind::PcieSwitch | NodeKind::Switch)
}

fn class_of(link: LinkKind, a: At, b: At) -> PathClass {
    let either = |test: fn(&At) -> bool| test(&a) || test(&b);
    match link {
        LinkKind::Nvlink => PathClass::Nvl,
        LinkKind::C2c => PathClass::C2c,
        LinkKind::Upi => PathClass::Sys,
        // A NIC may hang on its host by whatever technology a file says.
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
