//! Sends and receives of RCCL: channels per peer.
//!
//! A send uses eight channels to a peer on the host (four, doubled on a single host). Over the network it uses two, or
//! fewer if there are more than two ranks per channel. There are at most 64 channels in total. Each peer has separate
//! channels, because batches of peers are off by default (`RCCL_P2P_BATCH_ENABLE`, CHANGELOG.md of 2.27.7). The
//! division of a send is NCCL's.
//!
//! Source: RCCL 2.21.5 `src/graph/paths.cc` (`ncclTopoGetNchannels`, `ncclTopoComputeP2pChannels`), `src/enqueue.cc`
//! (`addP2pToPlan`); `src/rccl_wrap.cc` of 2.27.7 (`rcclSetP2pNetChunkSize`).

use fabricast_topologies::Bytes;

use super::hosts::{Architecture, GPUS, RcclHosts};
use super::version::RcclVersion;
use crate::nccl::{ChannelLimits, LinkDistance, P2p, PeerChannels, SendHosts, SendParts, Settings};

/// Maximum number of channels of sends (4 × CHANNEL_LIMIT).
const CHANNELS: u16 = 64;

/// Predicts the launch parameters of concurrent sends of `bytes` to each of `peers` peers.
pub(super) fn sends(hosts: RcclHosts, version: RcclVersion, settings: &Settings, bytes: Bytes, peers: u32) -> P2p {
    let total = hosts.channels(version).next_power_of_two().min(CHANNELS);
    let is_network = hosts.hosts > 1;
    let default = match is_network {
        true if 2 * hosts.ranks() > 4 * u32::from(total) => 1,
        true => 2,
        false => 8,
    };
    let per_peer = if is_network { settings.channels_per_net_peer.unwrap_or(default) } else { default };
    let mut settings = settings.clone();
    let network = &mut settings.p2p_chunks[LinkDistance::Network as usize];
    *network = network.or_else(|| Some(Bytes(network_chunk(hosts))));
    let hosts = SendHosts {
        ranks: hosts.ranks(),
        ranks_per_node: GPUS,
        distance: if is_network { LinkDistance::Network } else { LinkDistance::Nvlink },
        limits: ChannelLimits { total, per_peer },
        parts: SendParts::AfterProtocol,
        sharing: PeerChannels::Own,
    };
    hosts.divide(&settings, bytes, peers)
}

/// Chunk size of a send over the network, in bytes.
fn network_chunk(hosts: RcclHosts) -> u64 {
    match (hosts.architecture, hosts.ranks()) {
        (Architecture::Gfx942, 64..) | (Architecture::Gfx950, 32..) => 1 << 19,
        (Architecture::Gfx950, 16..) => 1 << 18,
        _ => 1 << 17,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nccl::Proto;

    #[test]
    fn channels_per_peer_follow_the_source() {
        let divide = |hosts, bytes| {
            let hosts = RcclHosts { architecture: Architecture::Gfx942, hosts };
            sends(hosts, RcclVersion::V2_27_7, &Settings::default(), Bytes(bytes), hosts.ranks() - 1)
        };
        let one = divide(1, 64 << 20);
        assert_eq!((one.per_peer, one.channels, one.proto), (8, 56, Proto::Simple));
        assert_eq!(divide(2, 64 << 20).per_peer, 2);
        assert_eq!(divide(64, 64 << 20).per_peer, 1);
        assert_eq!(divide(1, 64).proto, Proto::Ll);
        assert_eq!(divide(2, 64).proto, Proto::Simple);
    }
}
