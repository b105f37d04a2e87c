//! Sends and receives, and the collectives composed of them: channels per peer, and the choice between LL and Simple.
//!
//! Sources: NCCL 2.30.7 `src/graph/paths.cc` (`ncclTopoComputeP2pChannels`), `src/enqueue.cc`
//! (`scheduleP2pTasksToPlan`, `addP2pToPlan`). Peers are processed in batches of eight; between nodes, the peers of a
//! batch share their channels. Up to 2.28 the protocol is chosen before the number of parts, by the capacity of all
//! channels of a peer: on eight GPUs, sends of 512 KiB still use LL. Connections over a network have buffers for Simple
//! only (src/transport/net.cc, NCCL_ALLOC_P2P_NET_LL_BUFFERS).

use fabricast_sim::schedule::{Call, Collective};
use fabricast_topologies::Bytes;

use super::communicator::{Communicator, Nic};
use super::index::Proto;
use super::nvls_shape::MAX_CHANNELS;
use super::settings::{LinkDistance, Settings};
use super::version::{NcclVersion, NetworkChannels, SendParts};

/// Maximum bytes per channel of sends with LL (NCCL_P2P_LL_THRESHOLD).
const LL_BYTES: u64 = 16 << 10;
/// Number of slots of a connection's buffer (NCCL_STEPS).
const STEPS: u64 = 8;
/// Network bandwidth per channel of sends (NCCL_P2P_PER_CHANNEL_NET_BW), in GB/s.
const NET_GB_PER_S: f64 = 14.0;
/// Number of peers in a batch, which share their channels (NCCL_MAX_DEV_WORK_P2P_PER_BATCH).
const BATCH: u32 = 8;
/// Default chunk sizes in bytes, indexed by [`LinkDistance`] (`ncclParamP2pNvlChunkSize` and similar).
const CHUNKS: [u64; 3] = [512 << 10, 128 << 10, 128 << 10];

/// Launch parameters of concurrent sends to several peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P2p {
    /// Protocol of the sends: LL or Simple.
    pub proto: Proto,
    /// Number of channels per peer.
    pub per_peer: u16,
    /// Number of thread blocks for all peers in total.
    pub channels: u16,
    /// Chunk size of a send, in bytes.
    pub chunk: Bytes,
}

/// Predicts the launch parameters of concurrent sends of `bytes` to each of `peers` peers.
#[must_use]
pub fn p2p(communicator: &Communicator, version: NcclVersion, settings: &Settings, bytes: Bytes, peers: u32) -> P2p {
    let limits = ChannelLimits::new(communicator, version, settings);
    let distance = match (communicator.nodes > 1, communicator.nvlinks) {
        (true, _) => LinkDistance::Network,
        (false, 0) => LinkDistance::Pcie,
        (false, _) => LinkDistance::Nvlink,
    };
    let hosts = SendHosts {
        ranks: communicator.ranks,
        ranks_per_node: communicator.max_ranks_per_node,
        distance,
        limits,
        parts: version.rules().send_parts,
        sharing: PeerChannels::SharedByBatch,
    };
    hosts.divide(settings, bytes, peers)
}

/// Bytes that a rank sends to each peer in a call composed of sends, and the number of its peers.
pub(crate) fn bytes_per_peer(call: &Call) -> (Bytes, u32) {
    match call.collective {
        Collective::SendRecv => (call.bytes, 1),
        _ => (Bytes(call.bytes.0.div_ceil(call.ranks.max(1).into())), call.ranks.saturating_sub(1).max(1)),
    }
}

/// Ranks that send to each other, and the rules by which their sends are divided over channels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendHosts {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of ranks on a node.
    pub ranks_per_node: u32,
    /// Most distant kind of connection.
    pub distance: LinkDistance,
    /// Maximum numbers of channels.
    pub limits: ChannelLimits,
    /// Order of the decisions on the protocol and on the number of parts.
    pub parts: SendParts,
    /// Use of a channel by one or several peers.
    pub sharing: PeerChannels,
}

/// Use of a channel by one or several peers, for sends over the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerChannels {
    /// All peers of a batch share their channels.
    SharedByBatch,
    /// Each peer has separate channels.
    Own,
}

impl SendHosts {
    /// Divides concurrent sends of `bytes` to each of `peers` peers over channels.
    pub(crate) fn divide(&self, settings: &Settings, bytes: Bytes, peers: u32) -> P2p {
        let (limits, distance) = (self.limits, self.distance);
        let max = limits.per_peer;
        let min = min_channels_per_peer(self.ranks, limits);
        let multi_node = distance == LinkDistance::Network;
        let simple_step = settings.p2p_chunks[distance as usize].map_or(CHUNKS[distance as usize], |setting| setting.0);
        let step = |proto| match proto {
            Proto::Simple => simple_step,
            proto => settings.buffer(proto).0 / STEPS,
        };
        let parts = |proto| {
            let step = step(proto);
            let (min_part, max_part) = if multi_node { (step / 2, step) } else { (step / 8, step * 32) };
            let mut parts = bytes.0.div_ceil(min_part.max(1)).clamp(1, u64::from(min)) as u16;
            while bytes.0.div_ceil(u64::from(parts)) > max_part && parts <= max / 2 {
                parts *= 2;
            }
            parts
        };
        let threshold = settings.p2p_ll_threshold.map_or(LL_BYTES, |setting| setting.0);
        let select_proto = |channels: u16| match bytes.0 <= threshold.saturating_mul(channels.into()) {
            true if !multi_node => Proto::Ll,
            _ => Proto::Simple,
        };
        let (proto, per_peer) = match self.parts {
            SendParts::AfterProtocol => {
                let proto = select_proto(max);
                (proto, parts(proto))
            }
            SendParts::BeforeProtocol => {
                let per_peer = parts(Proto::Simple);
                (select_proto(per_peer), per_peer)
            }
        };
        // Between nodes, all peers of a batch share their channels. A rank's batch contains other ranks of its own
        // node. Peers with one channel each run in parallel, because each has a warp of the batch.
        let shared = self.sharing == PeerChannels::SharedByBatch || per_peer == 1;
        let batches = match self.ranks_per_node {
            per_node if multi_node && peers > 1 && per_node > 1 && shared => (peers + 1).div_ceil(per_node.min(BATCH)),
            _ => peers.max(1),
        };
        let channels = u64::from(per_peer).saturating_mul(batches.into()).min(limits.total.into()) as u16;
        let chunk =
            step(proto) / (lines(proto) * if multi_node { network_pieces(proto, bytes, step(proto)) } else { 1 });
        P2p { proto, per_peer, channels, chunk: Bytes(chunk.max(1)) }
    }
}

/// Number of network messages into which a step is divided.
fn network_pieces(proto: Proto, bytes: Bytes, step: u64) -> u64 {
    match proto {
        Proto::Simple if bytes.0 < step => 4,
        _ if bytes.0 < step.saturating_mul(8) => 2,
        _ => 1,
    }
}

/// Buffer bytes per byte of data: 2 with LL, whose lines are half flags.
fn lines(proto: Proto) -> u64 {
    if proto == Proto::Ll { 2 } else { 1 }
}

/// Number of channels per peer if every peer is to have separate channels.
fn min_channels_per_peer(ranks: u32, limits: ChannelLimits) -> u16 {
    let mut count = limits.per_peer;
    while u32::from(count) * ranks > u32::from(limits.total) && count > 1 {
        count /= 2;
    }
    count
}

/// Maximum numbers of channels, both powers of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelLimits {
    /// Maximum number of channels of all peers in total.
    pub total: u16,
    /// Maximum number of channels of a peer, the minimum over all paths. It applies to all peers, including those on
    /// the same node.
    pub per_peer: u16,
}

impl ChannelLimits {
    fn new(communicator: &Communicator, version: NcclVersion, settings: &Settings) -> Self {
        let max = settings.max_p2p_channels.unwrap_or(MAX_CHANNELS);
        let min = settings.min_p2p_channels.unwrap_or(1);
        let channels = communicator.channels(settings).min(max).max(min).min(MAX_CHANNELS);
        let total = channels.next_power_of_two();
        let inside = match (communicator.nvlinks, communicator.max_ranks_per_node) {
            (_, 0 | 1) => MAX_CHANNELS,
            (0, _) => 2,
            (links, _) => links.saturating_mul(2),
        };
        let network = match (communicator.nodes, communicator.nic) {
            (0 | 1, _) | (_, None) => None,
            (_, Some(nic)) => Some(network_channels(communicator.ranks, nic, total, version, settings)),
        };
        let mut per_peer = channels.min(inside).min(network.unwrap_or(MAX_CHANNELS)).next_power_of_two();
        if let (Some(_), None) = (network, settings.channels_per_net_peer) {
            let batches = communicator.ranks.div_ceil(BATCH);
            while u32::from(per_peer) * batches > u32::from(total) && per_peer > 1 {
                per_peer /= 2;
            }
        }
        Self { total, per_peer }
    }
}

/// Number of channels to a peer on another node, before it is limited by other paths.
fn network_channels(ranks: u32, nic: Nic, total: u16, version: NcclVersion, settings: &Settings) -> u16 {
    let by_version = || match version.rules().network_channels {
        NetworkChannels::ByRate => (nic.bandwidth.gb_per_s().floor() / NET_GB_PER_S).ceil() as u16,
        NetworkChannels::AtMostTwo if 2 * ranks > 4 * u32::from(total) => 1,
        NetworkChannels::AtMostTwo => 2,
    };
    settings.channels_per_net_peer.unwrap_or_else(by_version).max(1)
}
