//! What packets of a network carry besides their headers.
//!
//! Transfers are cut into packets of a power of two of bytes, each with headers of its own. Those of RoCE are larger than
//! InfiniBand's, and where Ethernet's frames have their usual size its packets carry a fourth as much: 100 Gb/s become 92.6.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::{Fabric, LinkKind, NodeKind};

/// Bytes that a packet carries at most, whatever the network (InfiniBand Architecture Specification 1.4, volume 1, table 20).
const MOST: u32 = 4096;

/// The least that packets may be set to carry.
const LEAST: u32 = 256;

/// Headers of InfiniBand inside of a subnet: LRH 8, BTH 12, ICRC 4, VCRC 2 (the same, chapter 5.2). Those of first packets of a
/// message are as good as none.
const INFINIBAND_HEADERS: u32 = 26;

/// Headers of RoCE v2: preamble 8, Ethernet 14 and 4, gap between frames 12 (IEEE 802.3); IPv4 20, UDP 8, BTH 12, ICRC 4 (the same,
/// annex A17).
const ROCE_HEADERS: u32 = 82;

/// What Linux leaves of a frame for headers where it chooses how much packets of RoCE carry, though most have fewer (include/rdma/ib_addr.h,
/// `iboe_get_mtu`: GRH 40, UDP 8, BTH 12, XRC 4, atomic 28, ICRC 4).
const LEFT_FOR_HEADERS: u32 = 96;

/// The usual size of Ethernet's frames, without their own headers.
const USUAL_MTU: u32 = 1500;

/// How a network cuts what it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packets {
    /// InfiniBand's, of 4 KiB.
    Infiniband,
    /// RoCE's, in frames of so many bytes.
    Roce {
        /// Largest IP packet.
        mtu: u32,
    },
}

impl Packets {
    /// Those of a fabric between its hosts: RoCE's where a link is Ethernet's, by the NIC with the smallest frames.
    pub(super) fn of(fabric: &Fabric) -> Self {
        if !fabric.links().any(|(_, link)| link.kind == LinkKind::Ethernet) {
            return Self::Infiniband;
        }
        let mtus =
            fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Nic).filter_map(|(_, node)| match &node.figures {
                Figures::Nic(figures) => figures.mtu,
                _ => None,
            });
        Self::Roce { mtu: mtus.min().unwrap_or(USUAL_MTU) }
    }

    /// Bytes that a full packet carries.
    fn payload(self) -> u32 {
        let room = match self {
            Self::Infiniband => MOST,
            Self::Roce { mtu } => mtu.saturating_sub(LEFT_FOR_HEADERS).clamp(LEAST, MOST),
        };
        1 << room.ilog2()
    }

    /// The part of a line rate that is left for bytes, over 0 to 1.
    pub(super) fn carried(self) -> f64 {
        let headers = match self {
            Self::Infiniband => INFINIBAND_HEADERS,
            Self::Roce { .. } => ROCE_HEADERS,
        };
        f64::from(self.payload()) / f64::from(self.payload() + headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `ibv_devinfo` says (active_mtu) of Ethernet's frames, and what is left of 100 Gb/s.
    #[test]
    fn frames_hold_what_they_hold() {
        let of = |mtu| (Packets::Roce { mtu }.payload(), (Packets::Roce { mtu }.carried() * 1000.0).round());
        assert_eq!(
            [1500, 4200, 9000, 2200, 0].map(of).to_vec(),
            [(1024, 926.0), (4096, 980.0), (4096, 980.0), (2048, 962.0), (256, 757.0)]
        );
        assert_eq!((Packets::Infiniband.payload(), (Packets::Infiniband.carried() * 1000.0).round()), (4096, 994.0));
    }
}
