//! Parameters of a strategy other than its algorithm, and reasons why a schedule may not exist.

use fabricast_sim::certify::Certificate;
use fabricast_sim::schedule::{
    BlockSplit, Blocks, Call, ChunkMessages, Collective, Header, Layout, Processor, Program, Protocol, Rank,
    RotationDigit, Schedule, TrafficMatrix,
};
use fabricast_topologies::Bytes;

use super::facts::Count;
use super::rails::Rails;
use super::{Algorithm, cut, mesh};
use crate::capabilities::HostLinks;
use crate::packing::Forests;

/// Parameters of a strategy other than its algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Call that the schedule implements.
    pub call: Call,
    /// Protocol of the transfers. Programs do not depend on the protocol; it is copied to the header.
    pub protocol: Protocol,
    /// Number of channels; the bytes are divided equally among them.
    pub channels: u16,
    /// Number of threads of a channel's thread block; `None` selects the value of the profile.
    pub threads: Option<u16>,
    /// Maximum bytes per chunk; larger calls need several loops. `None`: one loop for any size.
    pub chunk: Option<Bytes>,
    /// Size of a message to another host if chunks are streamed in pieces; `None` if chunks are sent as a whole.
    pub message: Option<Bytes>,
    /// Number of ranks per host, numbered consecutively; 0: all ranks are on one host.
    pub ranks_per_node: u32,
    /// Number of ranks per NVLink domain whose switches reduce and multicast, numbered consecutively; 0: no multicast.
    pub ranks_per_team: u32,
    /// Sides of the grid of hosts, fastest-varying first; empty if hosts do not form a grid.
    pub grid: Vec<u32>,
    /// Ring orders: channel c uses `orders[c mod orders.len()]`. Empty: 0, 1, 2, … on every channel.
    pub orders: Vec<Vec<Rank>>,
    /// Number of NICs per host over which trees are distributed; 0: one per rank.
    pub nics_per_node: u32,
    /// Links between the ranks of a host, over which chains of trees are distributed.
    pub host_links: HostLinks,
    /// Bytes from each rank to each rank in an all_to_allv; `None` for other collectives.
    pub matrix: Option<TrafficMatrix>,
    /// Trees of a packing; stars between all ranks if `None`. Other algorithms ignore it.
    pub forests: Option<Forests>,
    /// Location of the reduction. In host memory, reductions are preceded and followed by copies.
    pub reduction_device: Processor,
}

impl Shape {
    /// Creates a shape with one channel, one loop, one host and ranks in order. An all_to_allv has equal blocks.
    #[must_use]
    pub fn new(call: Call, protocol: Protocol) -> Self {
        Self {
            call,
            protocol,
            channels: 1,
            threads: None,
            chunk: None,
            message: None,
            ranks_per_node: 0,
            ranks_per_team: 0,
            grid: Vec::new(),
            orders: Vec::new(),
            nics_per_node: 0,
            host_links: HostLinks::Other,
            forests: None,
            reduction_device: Processor::Device,
            matrix: match call.collective {
                Collective::AllToAllV => TrafficMatrix::even(call.ranks, call.bytes).ok(),
                _ => None,
            },
        }
    }

    /// Distributes the channels over `nics_per_node` NICs per host and over the links between the ranks of a host, as
    /// far as the channels of the algorithm can use different ones. `nics_per_node` is 0 if hosts are not connected by
    /// NICs.
    #[must_use]
    pub fn with_ring_orders(self, algorithm: Algorithm, nics_per_node: u32, host_links: HostLinks) -> Self {
        let orders = match algorithm {
            Algorithm::Ring if nics_per_node > 0 => {
                Rails::new(self.ranks_per_node, nics_per_node).with_host_links(host_links).orders(self.call.ranks)
            }
            Algorithm::Ring if host_links == HostLinks::Pairs && self.ranks_per_host() == self.call.ranks => {
                let rings = mesh::rings(self.call.ranks).into_iter();
                rings.map(|ring| ring.into_iter().map(Rank).collect()).collect()
            }
            _ => Vec::new(),
        };
        Self { nics_per_node, orders, host_links, ..self }
    }

    pub(super) fn header(&self, algorithm: Algorithm, layout: Layout, scratch_chunks: u32) -> Header {
        Header {
            name: algorithm.name().to_owned(),
            call: self.call,
            protocol: self.protocol,
            channels: self.channels,
            blocks: Blocks {
                threads: self.threads,
                message: self.message,
                chunk_messages: chunk_messages(algorithm, self.call.collective),
                ..Blocks::default()
            },
            layout,
            scratch_chunks,
            teams: Vec::new(),
            certificate: self.certificate(algorithm),
        }
    }

    /// Header of an algorithm in whose blocks some threads reduce while the others copy.
    ///
    /// # Errors
    /// [`Unsupported::TooManyChunks`] if there are too many channels.
    pub(super) fn split_header(
        &self,
        algorithm: Algorithm,
        layout: Layout,
        scratch_chunks: u32,
    ) -> Result<Header, Unsupported> {
        let mut header = self.header(algorithm, layout, scratch_chunks);
        header.blocks.split = BlockSplit::ReduceAndCopy;
        let channels = header.channels.checked_mul(algorithm.channels_per_block());
        header.channels = channels.ok_or(Unsupported::TooManyChunks { chunks: u64::MAX })?;
        Ok(header)
    }

    /// Certificate of a schedule of packed trees.
    fn certificate(&self, algorithm: Algorithm) -> Option<Certificate> {
        let forests = self.forests.as_ref().filter(|_| algorithm == Algorithm::TreePacking)?;
        forests.certificate(&self.call)
    }

    /// Number of ranks per host if hosts are equal, otherwise the number of all ranks.
    pub(super) fn ranks_per_host(&self) -> u32 {
        Count::on_hosts(self.call.ranks, self.ranks_per_node).per_host
    }

    /// Returns the rotation under which a pattern that is equal from every rank is invariant. The rotation maps the
    /// ranks of a host to ranks of one host.
    pub(super) fn rotation(&self) -> RotationDigit {
        let (ranks, per_host) = (self.call.ranks, self.ranks_per_host());
        if per_host == ranks {
            RotationDigit { stride: 1, length: ranks }
        } else {
            RotationDigit { stride: per_host, length: ranks / per_host }
        }
    }

    /// Returns the number of ranks per host for algorithms that need equal hosts.
    ///
    /// # Errors
    /// [`Unsupported::UnequalHosts`] if the number of ranks is not a multiple of the number of ranks per host.
    pub(super) fn checked_ranks_per_host(&self, algorithm: Algorithm) -> Result<u32, Unsupported> {
        let (ranks, ranks_per_node) = (self.call.ranks, self.ranks_per_node);
        if ranks_per_node > 0 && !ranks.is_multiple_of(ranks_per_node) {
            return Err(Unsupported::UnequalHosts { algorithm, ranks, ranks_per_node });
        }
        Ok(self.ranks_per_host())
    }

    /// Returns the number of ranks per team for algorithms over several equal teams.
    ///
    /// # Errors
    /// [`Unsupported::NoTeam`] if a team has a single rank, or the number of ranks is not a multiple of a team's.
    pub(super) fn checked_ranks_per_team(&self, algorithm: Algorithm) -> Result<u32, Unsupported> {
        let (ranks, per_team) = (self.call.ranks, self.ranks_per_team);
        match per_team >= 2 && ranks.is_multiple_of(per_team) {
            true => Ok(per_team),
            false => Err(Unsupported::NoTeam { algorithm }),
        }
    }
}

/// Teams of `size` successive ranks each.
pub(super) fn successive_teams(ranks: u32, size: u32) -> impl Iterator<Item = Vec<Rank>> {
    (0..ranks / size).map(move |team| (team * size..(team + 1) * size).map(Rank).collect())
}

/// Teams of the ranks at the same position of each `size` successive ranks.
pub(super) fn position_teams(ranks: u32, size: u32) -> impl Iterator<Item = Vec<Rank>> {
    (0..size).map(move |position| (0..ranks / size).map(|group| Rank(group * size + position)).collect())
}

/// Reason why no schedule exists for a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// The algorithm does not implement the collective.
    #[error("{algorithm} does not offer {collective}; it offers {}", .algorithm.collectives().iter().map(|c| c.name()).collect::<Vec<_>>().join(", "))]
    Collective {
        /// Algorithm that was requested.
        algorithm: Algorithm,
        /// Collective that the algorithm does not implement.
        collective: Collective,
    },
    /// The reduction is in host memory, and scratch sums of the algorithm do not start from a chunk of the call.
    #[error("{algorithm} reduces partial results in scratch, which staging through host memory does not support")]
    NotStaged {
        /// Algorithm that has such sums.
        algorithm: Algorithm,
    },
    /// The call has no ranks.
    #[error("a call needs at least one rank")]
    NoRanks,
    /// The call is a barrier with a nonzero size.
    #[error("a barrier moves no data: expected a size of 0, not {bytes}")]
    BarrierWithData {
        /// Message size of the call, in bytes.
        bytes: Bytes,
    },
    /// The call is an all_to_allv without a matrix.
    #[error("an all_to_allv needs a matrix of at most {} ranks", TrafficMatrix::MAX_RANKS)]
    NoMatrix,
    /// The simulation would exceed the limit on runs or operations.
    #[error("{reason}")]
    TooLarge {
        /// Message with the number of runs or operations that the simulation needs, and the limit.
        reason: String,
    },
    /// Two ranks that exchange data have no path.
    #[error("{reason}")]
    NoPath {
        /// Message that names the ranks' devices and the reason.
        reason: String,
    },
    /// The matrix does not match the call.
    #[error("the matrix has {ranks} ranks and {bytes}, but the call has {call_ranks} ranks and {call_bytes}")]
    MatrixMismatch {
        /// Number of ranks of the matrix.
        ranks: u32,
        /// Total bytes of the matrix.
        bytes: Bytes,
        /// Number of ranks of the call.
        call_ranks: u32,
        /// Message size of the call, in bytes.
        call_bytes: Bytes,
    },
    /// The root is not one of the ranks.
    #[error("the root is rank {} of {ranks}", .root.0)]
    NoSuchRoot {
        /// Rank that was given as the root.
        root: Rank,
        /// Number of ranks of the call.
        ranks: u32,
    },
    /// The schedule has no channels.
    #[error("a schedule needs at least one channel")]
    NoChannels,
    /// The chunk size is zero bytes.
    #[error("a chunk needs at least one byte")]
    EmptyChunk,
    /// The algorithm needs hosts with equally many ranks.
    #[error("{algorithm} needs hosts with equally many ranks; {ranks} ranks are not a multiple of {ranks_per_node}")]
    UnequalHosts {
        /// Algorithm that needs equal hosts.
        algorithm: Algorithm,
        /// Number of ranks of the call.
        ranks: u32,
        /// Number of ranks per host.
        ranks_per_node: u32,
    },
    /// No multicast team meets the requirements of the algorithm.
    #[error("{algorithm} needs NVSwitches that reduce and multicast between {}", if *.algorithm == Algorithm::Nvls { "all ranks" } else { "equally many ranks each" })]
    NoTeam {
        /// Algorithm that needs multicast teams.
        algorithm: Algorithm,
    },
    /// A ring order is not a permutation of all ranks.
    #[error("ring order {index} does not contain each of the {ranks} ranks once")]
    RingOrder {
        /// Index of the order in [`Shape::orders`], from 0.
        index: usize,
        /// Number of ranks of the call.
        ranks: u32,
    },
    /// The call needs more chunks than can be numbered.
    #[error("{chunks} chunks are too many (at most {}); use larger chunks or fewer channels", cut::MAX_CHUNKS)]
    TooManyChunks {
        /// Number of chunks that the buffer or the scratch needs.
        chunks: u64,
    },
    /// The call needs more loops than can be simulated.
    #[error(
        "{chunks} chunks are too many to simulate (at most {}); use larger chunks or a smaller call",
        cut::MAX_LOOPED_CHUNKS
    )]
    TooManyLoops {
        /// Number of chunks that the buffer needs.
        chunks: u64,
    },
    /// Packed trees of another collective, other roots or another number of ranks.
    #[error("the packed trees do not belong to {collective} on {ranks} ranks")]
    OtherTrees {
        /// Number of ranks of the call.
        ranks: u32,
        /// Collective of the call.
        collective: Collective,
    },
    /// A program needs more runs or operations than memory can hold.
    #[error(
        "too many operations to store (runs: at most {} of a rank, {} of all); use larger chunks or a smaller call",
        Program::MAX_RUNS,
        Schedule::MAX_RUNS
    )]
    TooManyRuns,
}
/// Returns the division of an algorithm's chunks into messages. Rings send slices, other algorithms whole chunks (NCCL
/// 2.30.7 src/include/collectives.h, `ALLREDUCE_SLICESTEPS` and similar compared with `BROADCAST_SLICESTEPS`;
/// src/device/all_reduce.h, `ProtoSimple<1, 1>`).
fn chunk_messages(algorithm: Algorithm, collective: Collective) -> ChunkMessages {
    match algorithm {
        Algorithm::Ring | Algorithm::GridRing | Algorithm::Hierarchical
            if !collective.is_one_way() && !collective.is_pairwise() =>
        {
            ChunkMessages::Slices
        }
        _ => ChunkMessages::One,
    }
}
