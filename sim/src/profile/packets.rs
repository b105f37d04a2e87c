//! Packet sizes and header overhead of networks.
//!
//! Transfers are split into packets whose payload is a power of two in bytes. RoCE has larger headers than InfiniBand,
//! and with standard Ethernet frames a quarter of the payload: 92.6 of 100 Gb/s remain.

use fabricast_topologies::{Fabric, LinkKind};

use super::transport::{default_port_protocol, nic_figures};

/// Largest payload of a packet in bytes, on any network (InfiniBand Architecture Specification 1.4, volume 1, table
/// 20).
const MAX_PAYLOAD: u32 = 4096;

/// Smallest payload of a packet in bytes that can be configured.
const MIN_PAYLOAD: u32 = 256;

/// Headers of InfiniBand within a subnet in bytes: LRH 8, BTH 12, ICRC 4, VCRC 2 (InfiniBand specification, chapter
/// 5.2). The additional headers of a message's first packet are negligible.
const INFINIBAND_HEADERS: u32 = 26;

/// Headers of RoCE v2 in bytes: preamble 8, Ethernet 14 and 4, inter-frame gap 12 (IEEE 802.3); IPv4 20, UDP 8, BTH 12,
/// ICRC 4 (InfiniBand specification, annex A17).
const ROCE_HEADERS: u32 = 82;

/// Part of a frame, in bytes, that Linux reserves for headers when it selects the RoCE payload; more than most packets
/// need (include/rdma/ib_addr.h, `iboe_get_mtu`: GRH 40, UDP 8, BTH 12, XRC 4, atomic 28, ICRC 4).
const RESERVED_HEADERS: u32 = 96;

/// Standard MTU of Ethernet in bytes, without the frame's own headers.
const USUAL_MTU: u32 = 1500;

/// Packet format of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packets {
    /// InfiniBand packets of 4 KiB.
    Infiniband,
    /// RoCE packets in Ethernet frames.
    Roce {
        /// Largest IP packet in bytes.
        mtu: u32,
    },
}

impl Packets {
    /// Returns the packet format between the hosts of a fabric: RoCE with the smallest MTU of all NICs if the ports of
    /// any NIC are Ethernet (any link, if the fabric has no NICs), otherwise InfiniBand.
    pub(super) fn for_fabric(fabric: &Fabric) -> Self {
        let default = default_port_protocol(fabric);
        let is_ethernet = match nic_figures(fabric).next() {
            None => default == LinkKind::Ethernet,
            Some(_) => nic_figures(fabric).any(|nic| nic.link.unwrap_or(default) == LinkKind::Ethernet),
        };
        if !is_ethernet {
            return Self::Infiniband;
        }
        let mtus = nic_figures(fabric).filter_map(|nic| nic.mtu);
        Self::Roce { mtu: mtus.min().unwrap_or(USUAL_MTU) }
    }

    /// Payload of a full packet in bytes.
    fn payload(self) -> u32 {
        let room = match self {
            Self::Infiniband => MAX_PAYLOAD,
            Self::Roce { mtu } => mtu.saturating_sub(RESERVED_HEADERS).clamp(MIN_PAYLOAD, MAX_PAYLOAD),
        };
        1 << room.ilog2()
    }

    /// Fraction of the line rate that is left for payload, above 0 and at most 1.
    pub(super) fn payload_fraction(self) -> f64 {
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

    /// RoCE payloads equal those that `ibv_devinfo` reports (active_mtu) for Ethernet MTUs; the payload rates follow
    /// for a line rate of 100 Gb/s.
    #[test]
    fn payloads_match_ibv_devinfo() {
        let roce_payload =
            |mtu| (Packets::Roce { mtu }.payload(), (Packets::Roce { mtu }.payload_fraction() * 1000.0).round());
        assert_eq!(
            [1500, 4200, 9000, 2200, 0].map(roce_payload).to_vec(),
            [(1024, 926.0), (4096, 980.0), (4096, 980.0), (2048, 962.0), (256, 757.0)]
        );
        assert_eq!(
            (Packets::Infiniband.payload(), (Packets::Infiniband.payload_fraction() * 1000.0).round()),
            (4096, 994.0)
        );
    }
}
