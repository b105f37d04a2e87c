//! Reasons to expect a cause before times are compared: the log states it, or NCCL's rules and published defects of its
//! release apply to the machine.
//!
//! Reasons change the prior probability of a cause, and never the likelihood of the times. Conversely, a log may refute
//! a cause: no hypothesis assumes host memory between GPUs or hosts where NCCL reports only direct connections.

use std::fmt;

use fabricast_topologies::LinkKind;

use super::cause::Cause;
use super::rules;
use crate::measured::manifest::Measurement;
use crate::measured::{ConnectionCounts, TopologySearch};

/// Reason to expect a cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Basis {
    /// None: any machine may have the fault or setting.
    #[default]
    Assumed,
    /// A rule or a published defect of the library's release applies to the machine; with its source.
    Documented(String),
    /// The log shows the cause; with what it shows.
    Stated(String),
}

/// Prior odds of a documented cause against the absence of a fault. Of the machines to which a rule or defect applies,
/// some have settings that the log does not state or are not affected (NVLSTree of 2.19.3: one of two public logs).
const DOCUMENTED_ODDS: f64 = 1.0;
/// Prior odds of a cause that the log states against the absence of a fault. The statement is certain; that it explains the
/// times is not.
const STATED_ODDS: f64 = 100.0;

impl Basis {
    /// Returns true if the log states the cause.
    #[must_use]
    pub fn is_stated(&self) -> bool {
        matches!(self, Self::Stated(_))
    }

    /// Prior odds of the cause against the absence of a fault; `None` if any machine may have it.
    pub(super) fn odds(&self) -> Option<f64> {
        match self {
            Self::Assumed => None,
            Self::Documented(_) => Some(DOCUMENTED_ODDS),
            Self::Stated(_) => Some(STATED_ODDS),
        }
    }
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Assumed => Ok(()),
            Self::Documented(source) => write!(f, "documented: {source}"),
            Self::Stated(statement) => write!(f, "the log shows: {statement}"),
        }
    }
}

/// Returns the reason to expect a cause.
pub(super) fn basis(cause: &Cause, measurement: &Measurement) -> Basis {
    stated(cause, measurement)
        .map(Basis::Stated)
        .or_else(|| documented(cause, measurement).map(Basis::Documented))
        .unwrap_or_default()
}

/// Returns true if the log excludes a cause: NCCL reports connections of the kind in question, and all are direct.
pub(super) fn is_refuted(cause: &Cause, measurement: &Measurement) -> bool {
    let ConnectionCounts { peer_access, host_memory, gpu_direct, staged, sockets } =
        measurement.context.report.connections;
    match cause {
        Cause::PeerAccessOff { .. } | Cause::PeerAccessInSwitches { .. } => peer_access > 0 && host_memory == 0,
        Cause::GpuDirectOff { .. } | Cause::HiddenTopology { .. } => gpu_direct > 0 && staged + sockets == 0,
        Cause::Sockets { .. } => gpu_direct + staged > 0 && sockets == 0,
        _ => false,
    }
}

fn stated(cause: &Cause, measurement: &Measurement) -> Option<String> {
    let report = &measurement.context.report;
    let ConnectionCounts { peer_access, host_memory, gpu_direct, staged, sockets } = report.connections;
    let set = |names: &[&str], has_effect: &dyn Fn(&str) -> bool| {
        let found = names.iter().filter_map(|&name| Some((name, report.variable(name)?)));
        found.filter(|(_, value)| has_effect(value)).map(|(name, value)| format!("{name}={value}")).next()
    };
    let is_positive = |value: &str| value.parse::<i64>().is_ok_and(|number| number > 0);
    let is_one = |value: &str| value.trim() == "1";
    let has_nvlink = measurement.fabric.links().any(|(_, link)| link.kind == LinkKind::Nvlink);
    let connections = |count: u32| format!("{count} connection{}", if count == 1 { "" } else { "s" });
    let is_zero = |value: &str| value.trim() == "0";
    match *cause {
        Cause::NvlsOff => set(&["NCCL_NVLS_ENABLE"], &is_zero),
        Cause::PeerAccessOff { .. } => set(&["NCCL_P2P_DISABLE"], &is_one)
            .or_else(|| {
                // Levels of `ncclGetLevel` (src/graph/paths.cc).
                set(&["NCCL_P2P_LEVEL"], &|value| match value {
                    "LOC" | "0" => true,
                    "NVL" | "NVB" | "C2C" => !has_nvlink,
                    _ => false,
                })
            })
            .or_else(|| {
                (host_memory > 0 && peer_access == 0)
                    .then(|| format!("{} via SHM, none via P2P", connections(host_memory)))
            }),
        Cause::PeerAccessInSwitches { .. } => {
            set(&["NCCL_P2P_LEVEL"], &|value| ["PIX", "PXB", "1", "2"].contains(&value)).or_else(|| {
                (host_memory > 0 && peer_access > 0)
                    .then(|| format!("{} via SHM, {peer_access} via P2P", connections(host_memory)))
            })
        }
        Cause::GpuDirectOff { .. } => (staged > 0)
            .then(|| format!("{staged} of {} network connections without GDRDMA", staged + gpu_direct))
            .or_else(|| set(&["NCCL_NET_GDR_LEVEL"], &|value| value == "LOC" || value == "0")),
        Cause::Sockets { .. } => (sockets > 0)
            .then(|| format!("{} via NET/Socket", connections(sockets)))
            .or_else(|| set(&["NCCL_IB_DISABLE"], &is_positive))
            .or_else(|| set(&["NCCL_NET"], &|value| value.eq_ignore_ascii_case("socket"))),
        Cause::MaxChannels(count) => set(&["NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"], &|value| {
            value.parse::<u16>().is_ok_and(|limit| limit == count)
        }),
        Cause::MaxChannelsPerPeer(count) => set(&["NCCL_NCHANNELS_PER_NET_PEER", "NCCL_MAX_P2P_NCHANNELS"], &|value| {
            value.parse::<u16>().is_ok_and(|limit| limit == count)
        }),
        Cause::Strategy { algorithm, protocol } => {
            let names = |value: &str, name: &str| value.replace('_', "").eq_ignore_ascii_case(&name.replace('_', ""));
            let algorithm = algorithm.map(|algorithm| set(&["NCCL_ALGO"], &|value| names(value, algorithm.name())));
            let protocol = protocol.map(|protocol| set(&["NCCL_PROTO"], &|value| names(value, protocol.name())));
            match (algorithm, protocol) {
                (Some(Some(algorithm)), Some(Some(protocol))) => Some(format!("{algorithm} {protocol}")),
                (Some(Some(one)), None) | (None, Some(Some(one))) => Some(one),
                _ => None,
            }
        }
        Cause::HiddenTopology { .. } => {
            measurement.context.adjacent_gpus.filter(|_| rules::are_behind_different_switches(measurement)).map(
                |gpus| {
                    format!("{gpus} GPUs are on one PCI bus or on consecutive ones, without the switches in between")
                },
            )
        }
        Cause::FallbackGraph => {
            (report.search == TopologySearch::FellBack).then(|| "falling back to simple order".to_owned())
        }
        _ => None,
    }
}

fn documented(cause: &Cause, measurement: &Measurement) -> Option<String> {
    match *cause {
        Cause::PeerAccessInSwitches { .. } => rules::ends_peer_access_at_cpu(measurement)
            .then(|| "default of NCCL_P2P_LEVEL for this release and CPU (NCCL src/graph/paths.cc)".to_owned()),
        Cause::GpuDirectOff { .. } => rules::leaves_gpu_direct_off(measurement)
            .then(|| "default of NCCL_NET_GDR_LEVEL at this distance (NCCL src/graph/paths.cc)".to_owned()),
        Cause::FallbackGraph => rules::may_fall_back(measurement).then(|| {
            "NCCL 2.25.1 to 2.28.9 on Ampere with one GPU near each NIC (NVIDIA/nccl issues 1876, 1946)".to_owned()
        }),
        Cause::KnownDefect(defect, _) => Some(defect.source().to_owned()),
        _ => None,
    }
}
