//! Strategies (algorithm × protocol × channels × chunk), and the combinations that a fabric supports.

use std::fmt;

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{Call, Collective, Protocol};
use fabricast_topologies::{Bytes, Picos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::algorithm::tree_packing::pipeline;
use crate::algorithm::{Algorithm, Shape};
use crate::capabilities::{BuffersNotOnDevice, FabricCapabilities, Hosts, NoMulticast, NoPeerAccess};
use crate::packing::{Forests, PackingError};

/// Candidate implementation of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Strategy {
    /// Communication pattern.
    pub algorithm: Algorithm,
    /// Protocol of the transfers.
    pub protocol: Protocol,
    /// Number of channels, which work independently.
    pub channels: u16,
    /// Threads per thread block; the protocol's default if `None`.
    pub threads: Option<u16>,
    /// Maximum chunk size; the protocol's default if `None`.
    pub chunk: Option<Bytes>,
}

/// Maximum number of pieces of a stream. A larger number does not change the simulated time.
const MAX_PIECES: u64 = 64;

impl Strategy {
    /// Creates a strategy with the default threads and chunk of its protocol.
    #[must_use]
    pub fn new(algorithm: Algorithm, protocol: Protocol, channels: u16) -> Self {
        Self { algorithm, protocol, channels, threads: None, chunk: None }
    }

    /// Returns the shape of a call with this strategy on hosts with `ranks_per_node` ranks. The chunk size defaults to
    /// that of the profile.
    #[must_use]
    pub fn shape(&self, call: Call, profile: &Profile, ranks_per_node: u32, abilities: &FabricCapabilities) -> Shape {
        let costs = profile.protocol(self.protocol);
        let bytes_per_channel = call.bytes.0 / u64::from(self.channels.max(1));
        let piece = costs.stream.filter(|_| self.algorithm == Algorithm::Tree);
        let piece = piece.map(|stream| Bytes(stream.0.max(bytes_per_channel / MAX_PIECES)));
        let chunk = self.chunk.or(match self.moves_single_slots(call.collective) {
            true => costs.slot(),
            false => costs.chunk,
        });
        let forests = match self.algorithm {
            Algorithm::TreePacking => abilities.packed_trees(call.collective).ok(),
            _ => None,
        };
        let chunk = match &forests {
            Some(forests) if self.chunk.is_none() => {
                let message_cost = costs.step + costs.copy;
                Some(pipelined_chunk(call, self.channels, forests, message_cost).min(chunk.unwrap_or(Bytes(u64::MAX))))
            }
            _ => chunk,
        };
        // Chunks are streamed in pieces inside a host, and are sent to other hosts as a whole.
        let whole_chunk = chunk.unwrap_or(Bytes(bytes_per_channel)).min(Bytes(bytes_per_channel.max(1)));
        Shape {
            message: piece.filter(|&piece| piece < whole_chunk).map(|_| whole_chunk),
            channels: self.channels,
            threads: self.threads,
            chunk: chunk.map_or(piece, |chunk| Some(piece.map_or(chunk, |piece| piece.min(chunk)))),
            ranks_per_node,
            ranks_per_team: abilities.ranks_per_team(),
            forests,
            reduction_device: profile.processor(call.collective),
            ..Shape::new(call, self.protocol)
        }
        .with_ring_orders(self.algorithm, abilities.nics_per_host, abilities.host_links)
    }

    /// Returns true if a step moves one slot of a connection's buffer, as in double trees and in the chains of
    /// broadcast and reduce. In rings of other collectives a step moves four slots (NCCL 2.28 src/enqueue.cc,
    /// `calcCollChunking`; ALLREDUCE_CHUNKSTEPS, BROADCAST_CHUNKSTEPS and REDUCE_CHUNKSTEPS in
    /// src/include/collectives.h).
    fn moves_single_slots(&self, collective: Collective) -> bool {
        match self.algorithm {
            Algorithm::Tree => collective == Collective::AllReduce,
            Algorithm::Ring => matches!(collective, Collective::Broadcast | Collective::Reduce),
            _ => false,
        }
    }
}

/// Loops of packed trees per edge of their longest chain. Filling the pipeline adds at most the reciprocal of this
/// number to the time.
const LOOPS_PER_EDGE: u64 = 64;

/// Maximum number of transfers of packed trees, a limit on the time of simulations.
const MAX_TREE_TRANSFERS: u64 = 6_000_000;

/// Chunk size with which packed trees fill their pipeline in a small part of the time, if each message costs
/// `message_cost`.
///
/// With l loops of T ÷ l each, d slots to fill the pipeline and k messages per stream and loop of cost c, a call needs
/// T + d·T/l + l·k·c, which is minimal for l = √(d·T ÷ (k·c)).
fn pipelined_chunk(call: Call, channels: u16, forests: &Forests, message_cost: Picos) -> Bytes {
    let pipeline = pipeline(call.collective, forests, call.ranks, channels);
    let roots = [&forests.collect, &forests.spread].into_iter().flatten().map(|forest| forest.roots.count(call.ranks));
    let units = u64::from(pipeline.units) * u64::from(roots.max().unwrap_or(1));
    let message = (call.bytes.0 / units.max(1)).saturating_mul(pipeline.widest.into());
    let mut loops = LOOPS_PER_EDGE * u64::from(pipeline.depth);
    if let Some(proof) = forests.proof.as_ref().filter(|_| message_cost > Picos::ZERO) {
        let time = proof.upper.value() * call.bytes.0 as f64 * 1e12;
        let cost = message_cost.0 as f64 * f64::from(pipeline.messages);
        loops = loops.min((f64::from(pipeline.depth) * time / cost).sqrt() as u64);
    }
    let loops = loops.min(MAX_TREE_TRANSFERS / pipeline.transfers.max(1)).max(1);
    Bytes(message.div_ceil(loops).max(1))
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} × {}", self.algorithm, self.protocol, self.channels)
    }
}

/// Reason why an algorithm and a protocol cannot be combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Copy engines only move data; they cannot reduce.
    #[error("copy engines cannot reduce")]
    CopyEnginesCannotReduce,
    /// Copy engines only move data, and the collective moves none.
    #[error("moves no data, so copy engines have nothing to copy")]
    NothingToCopy,
    /// FIFO protocols forward chunk by chunk, while one-sided algorithms write directly into the peers' buffers.
    #[error("writes directly into peers' buffers, which needs symmetric memory or copy engines")]
    NeedsOneSided,
    /// Ranks cannot access each other's memory.
    #[error(transparent)]
    NoPeerAccess(#[from] NoPeerAccess),
    /// The combination needs symmetric or registered device memory.
    #[error(transparent)]
    BuffersElsewhere(#[from] BuffersNotOnDevice),
    /// Multicast is not available.
    #[error(transparent)]
    NoMulticast(#[from] NoMulticast),
    /// Switches reach only their own NVLink domain.
    #[error("needs all ranks in one NVLink domain; use nvls_tree for several domains")]
    NeedsOneDomain,
    /// The trees connect NVLink domains, and there is only one.
    #[error("needs several NVLink domains, but there is only one")]
    NeedsDomains,
    /// Multicast operations are implemented for one protocol only.
    #[error("supports only the protocol simple")]
    NeedsSimple,
    /// The algorithm's levels are hosts, and there is only one.
    #[error("needs several hosts, but there is only one")]
    NeedsHosts,
    /// Copy engines execute algorithms of a single step only, because every copy is queued before any data arrives.
    #[error("forwards received data, but copy engines run only algorithms of one step")]
    NeedsThreads,
    /// No trees are packed into the links of the fabric.
    #[error(transparent)]
    NoPacking(#[from] PackingError),
    /// The one-sided protocols do not implement pipelined chains.
    #[error("is pipelined over FIFO slots, which copy engines do not have")]
    NeedsFifo,
}

/// Checks whether an algorithm can use a protocol for a collective. This function is the only definition of valid
/// combinations.
///
/// # Errors
/// [`Mismatch`] with the reason why the combination is not possible.
pub fn check_combination(
    algorithm: Algorithm,
    protocol: Protocol,
    collective: Collective,
    abilities: &FabricCapabilities,
) -> Result<(), Mismatch> {
    let reduces = matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce);
    let device_memory = matches!(protocol, Protocol::Symmetric | Protocol::CopyEngine)
        || matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree);
    // The flags of a barrier are not in user buffers.
    if device_memory && collective != Collective::Barrier {
        abilities.buffer_placement?;
    }
    // Without peer access, the driver copies between GPUs through host memory, except for MIG instances.
    match (protocol, abilities.peer_access) {
        (Protocol::Symmetric, Err(reason)) | (Protocol::CopyEngine, Err(reason @ NoPeerAccess::Mig)) => {
            return Err(reason.into());
        }
        _ => {}
    }
    match (algorithm, protocol) {
        (Algorithm::Hierarchical | Algorithm::NvlsTree, _) if abilities.hosts == Hosts::One => {
            Err(Mismatch::NeedsHosts)
        }
        (_, Protocol::CopyEngine) if reduces => Err(Mismatch::CopyEnginesCannotReduce),
        (_, Protocol::CopyEngine) if collective == Collective::Barrier => Err(Mismatch::NothingToCopy),
        (Algorithm::OneShot | Algorithm::TwoShot, Protocol::Symmetric) => Ok(()),
        (Algorithm::OneShot | Algorithm::TwoShot, _) => Err(Mismatch::NeedsOneSided),
        (Algorithm::Direct | Algorithm::Pairwise | Algorithm::Linear, _) => Ok(()),
        (Algorithm::Nvls | Algorithm::NvlsTree, Protocol::Simple) => match abilities.multicast {
            Err(reason) => Err(Mismatch::NoMulticast(reason)),
            Ok(team) if (team == abilities.ranks) == (algorithm == Algorithm::Nvls) => Ok(()),
            Ok(_) if algorithm == Algorithm::Nvls => Err(Mismatch::NeedsOneDomain),
            Ok(_) => Err(Mismatch::NeedsDomains),
        },
        (Algorithm::Nvls | Algorithm::NvlsTree, _) => Err(Mismatch::NeedsSimple),
        (Algorithm::Ring | Algorithm::Tree | Algorithm::Hierarchical, Protocol::CopyEngine) => Err(Mismatch::NeedsFifo),
        // Forwarding received data needs threads that wait for it.
        (_, Protocol::CopyEngine) => Err(Mismatch::NeedsThreads),
        (Algorithm::TreePacking, _) => Ok(abilities.check_packed_trees(collective)?),
        (
            Algorithm::Ring
            | Algorithm::Tree
            | Algorithm::Hierarchical
            | Algorithm::RecursiveDoubling
            | Algorithm::RecursiveHalvingDoubling
            | Algorithm::Bruck
            | Algorithm::Pat
            | Algorithm::GridRing
            | Algorithm::ScatterAllGather
            | Algorithm::Dissemination
            | Algorithm::LinearSync
            | Algorithm::Knomial
            | Algorithm::BinaryTree
            | Algorithm::InOrderTree
            | Algorithm::SplitTree
            | Algorithm::Chains
            | Algorithm::NeighbourExchange
            | Algorithm::Butterfly
            | Algorithm::ReduceThenBroadcast
            | Algorithm::ReduceThenScatter,
            _,
        ) => Ok(()),
    }
}

/// Returns the possible combinations for a collective, one text per algorithm: `ring (ll, ll128, simple, symmetric)`.
#[must_use]
pub fn describe_combinations(collective: Collective, abilities: &FabricCapabilities) -> Vec<String> {
    let offered = Algorithm::ALL.into_iter().filter(|algorithm| algorithm.supports(collective));
    let described = offered.filter_map(|algorithm| {
        let fits = |protocol: &Protocol| check_combination(algorithm, *protocol, collective, abilities).is_ok();
        let protocols: Vec<&str> = Protocol::ALL.into_iter().filter(fits).map(Protocol::name).collect();
        (!protocols.is_empty()).then(|| format!("{algorithm} ({})", protocols.join(", ")))
    });
    described.collect()
}
