//! Sends and receives, and the collectives that NCCL makes of them: channels a peer, and when they are LL.
//!
//! NCCL 2.30.7 `src/graph/paths.cc` (`ncclTopoComputeP2pChannels`), `src/enqueue.cc` (`scheduleP2pTasksToPlan`,
//! `addP2pToPlan`). Peers are visited in rounds, eight at a time; all of them share the thread blocks.

use fabricast_topologies::Bytes;

use super::communicator::{Communicator, MAX_CHANNELS};
use super::index::Proto;
use super::settings::Settings;

/// Bytes a channel up to which sends are LL (NCCL_P2P_LL_THRESHOLD).
const LL_BYTES: u64 = 16 << 10;
/// Bandwidth of the network that a channel of sends drives (NCCL_P2P_PER_CHANNEL_NET_BW), GB/s.
const NET_GBPS: f64 = 14.0;
/// Chunks by what is farthest: NVLink, PCIe, network (NCCL_P2P_NVL_CHUNKSIZE and the like).
const CHUNKS: [u64; 3] = [512 << 10, 128 << 10, 128 << 10];

/// How sends run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P2p {
    /// Protocol.
    pub proto: Proto,
    /// Channels of each peer.
    pub per_peer: u16,
    /// Thread blocks of all peers together.
    pub channels: u16,
    /// Bytes moved at once.
    pub chunk: Bytes,
}

/// Sends of so many bytes to each of so many peers at once.
#[must_use]
pub fn p2p(communicator: &Communicator, settings: &Settings, bytes: Bytes, peers: u32) -> P2p {
    let (all, most) = channels(communicator, settings);
    let mut fewest = most;
    while u32::from(fewest) * communicator.ranks > u32::from(all) && fewest > 1 {
        fewest /= 2;
    }
    let several = communicator.nodes > 1;
    let step = match (several, communicator.nvlinks) {
        (true, _) => CHUNKS[2],
        (false, 0) => CHUNKS[1],
        (false, _) => CHUNKS[0],
    };
    let (least_part, most_part) = if several { (step / 2, step) } else { (step / 8, step * 32) };
    let mut per_peer = bytes.0.div_ceil(least_part).clamp(1, u64::from(fewest)) as u16;
    while bytes.0.div_ceil(u64::from(per_peer)) > most_part && per_peer <= most / 2 {
        per_peer *= 2;
    }
    let threshold = settings.p2p_ll_threshold.map_or(LL_BYTES, |given| given.0);
    let is_ll = bytes.0 <= u64::from(per_peer) * threshold;
    let (proto, chunk) = if is_ll { (Proto::Ll, settings.buffer(Proto::Ll).0 / 16) } else { (Proto::Simple, step) };
    let channels = u64::from(per_peer).saturating_mul(u64::from(peers.max(1))).min(u64::from(all)) as u16;
    P2p { proto, per_peer, channels, chunk: Bytes(chunk) }
}

/// Channels in all, and of a peer: powers of two.
fn channels(communicator: &Communicator, settings: &Settings) -> (u16, u16) {
    let most = settings.most_p2p_channels.unwrap_or(MAX_CHANNELS);
    let least = settings.fewest_p2p_channels.unwrap_or(1);
    let channels = communicator.channels(settings).min(most).max(least).min(MAX_CHANNELS);
    let inside = match (communicator.nvlinks, communicator.most_ranks) {
        (_, 0 | 1) => MAX_CHANNELS,
        (0, _) => 2,
        (links, _) => links.saturating_mul(2),
    };
    let between = match (communicator.nodes, communicator.nic) {
        (0 | 1, _) | (_, None) => MAX_CHANNELS,
        (_, Some(nic)) => ((nic.bandwidth.gbps() / NET_GBPS) as u16).max(2),
    };
    (channels.next_power_of_two(), channels.min(inside).min(between).next_power_of_two())
}
