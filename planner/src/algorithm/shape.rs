//! What a strategy fixes besides its algorithm, and why there may be no schedule for it.

use fabricast_sim::schedule::{
    Blocks, Call, Collective, Header, Layout, Matrix, Program, Protocol, Rank, RotationDigit, Schedule, Workplace,
};
use fabricast_topologies::Bytes;

use super::facts::Count;
use super::rails::Rails;
use super::{Algorithm, cut};

/// What a strategy fixes besides its algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The call.
    pub call: Call,
    /// How transfers move bytes. Programs do not depend on it; it is passed on.
    pub protocol: Protocol,
    /// Number of channels; the bytes are divided equally among them.
    pub channels: u16,
    /// Threads of a channel's block; what the profile says if left out.
    pub threads: Option<u16>,
    /// The most bytes of one chunk; larger calls take several loops. None: one loop whatever the size.
    pub chunk: Option<Bytes>,
    /// What goes to other hosts at once, where chunks are pieces that stream; whole chunks if left out.
    pub message: Option<Bytes>,
    /// Ranks of a host, which are numbered one after the other; 0: all ranks are of one host.
    pub ranks_per_node: u32,
    /// Ranks of an NVLink domain whose switches combine and copy, which are numbered one after the other; 0: there is no
    /// multicast.
    pub ranks_per_team: u32,
    /// Sides of the grid that the hosts stand in, those of neighbouring hosts first; empty where they stand in none.
    pub grid: Vec<u32>,
    /// Ring orders: channel c goes round `orders[c mod orders.len()]`. Empty: 0, 1, 2, … on every channel.
    pub orders: Vec<Vec<Rank>>,
    /// NICs of a host, over which trees spread; 0: as many as it has ranks.
    pub nics_per_node: u32,
    /// Who sends how much to whom, of an all_to_allv.
    pub matrix: Option<Matrix>,
    /// Where ranks work; in host memory reductions are between copies there and back.
    pub workplace: Workplace,
}

impl Shape {
    /// One channel, one loop, one host, ranks in order. Of an all_to_allv: equal blocks.
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
            workplace: Workplace::Device,
            matrix: match call.collective {
                Collective::AllToAllV => Matrix::even(call.ranks, call.bytes).ok(),
                _ => None,
            },
        }
    }

    /// Spread over so many NICs of each host, if the algorithm is one whose channels go different ways; 0: hosts are not
    /// joined by NICs.
    #[must_use]
    pub fn over_nics(self, algorithm: Algorithm, nics_per_node: u32) -> Self {
        if nics_per_node == 0 {
            return self;
        }
        let orders = match algorithm {
            Algorithm::Ring => Rails::new(self.ranks_per_node, nics_per_node).orders(self.call.ranks),
            _ => Vec::new(),
        };
        Self { nics_per_node, orders, ..self }
    }

    pub(super) fn header(&self, algorithm: Algorithm, layout: Layout, scratch_chunks: u32) -> Header {
        Header {
            name: algorithm.name().to_owned(),
            call: self.call,
            protocol: self.protocol,
            channels: self.channels,
            blocks: Blocks { threads: self.threads, message: self.message, ..Blocks::default() },
            layout,
            scratch_chunks,
            teams: Vec::new(),
        }
    }

    /// Ranks of a host if hosts are equal, all ranks otherwise.
    pub(super) fn ranks_per_host(&self) -> u32 {
        Count::on_hosts(self.call.ranks, self.ranks_per_node).per_host
    }

    /// What a pattern that is the same from every rank may be turned by without a host's ranks parting.
    pub(super) fn rotation(&self) -> RotationDigit {
        let (ranks, per_host) = (self.call.ranks, self.ranks_per_host());
        if per_host == ranks {
            RotationDigit { stride: 1, length: ranks }
        } else {
            RotationDigit { stride: per_host, length: ranks / per_host }
        }
    }

    /// As [`Self::ranks_per_host`], for algorithms that need equal hosts.
    pub(super) fn equal_hosts(&self, algorithm: Algorithm) -> Result<u32, Unsupported> {
        let (ranks, ranks_per_node) = (self.call.ranks, self.ranks_per_node);
        if ranks_per_node > 0 && !ranks.is_multiple_of(ranks_per_node) {
            return Err(Unsupported::UnequalHosts { algorithm, ranks, ranks_per_node });
        }
        Ok(self.ranks_per_host())
    }
}

/// Why there is no such schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// The algorithm does not compute the collective.
    #[error("{algorithm} does not offer {collective}; it offers {}", .algorithm.collectives().iter().map(|c| c.name()).collect::<Vec<_>>().join(", "))]
    Collective {
        /// The algorithm.
        algorithm: Algorithm,
        /// The collective.
        collective: Collective,
    },
    /// A reduction in host memory, of an algorithm whose sums in scratch begin with no chunk of the call.
    #[error("{algorithm} adds in scratch what is no chunk of the call, and is not staged through host memory")]
    NotStaged {
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// A call of no ranks.
    #[error("a call needs at least one rank")]
    NoRanks,
    /// A barrier that is to move something.
    #[error("a barrier moves no bytes, not {bytes}")]
    BarrierOfBytes {
        /// Bytes of the call.
        bytes: Bytes,
    },
    /// An all_to_allv without its matrix.
    #[error("an all_to_allv needs a matrix of at most {} ranks", Matrix::MOST_RANKS)]
    NoMatrix,
    /// Its simulation has more runs or operations than are simulated.
    #[error("{reason}")]
    TooLarge {
        /// How many, and how many are simulated.
        reason: String,
    },
    /// The matrix is of another call.
    #[error("the matrix is of {ranks} ranks and {bytes}; the call is of {call_ranks} ranks and {call_bytes}")]
    OtherMatrix {
        /// Ranks of the matrix.
        ranks: u32,
        /// Bytes of the matrix.
        bytes: Bytes,
        /// Ranks of the call.
        call_ranks: u32,
        /// Bytes of the call.
        call_bytes: Bytes,
    },
    /// The root is not one of the ranks.
    #[error("the root is rank {} of {ranks}", .root.0)]
    NoSuchRoot {
        /// The root.
        root: Rank,
        /// How many ranks there are.
        ranks: u32,
    },
    /// No channels.
    #[error("a schedule needs at least one channel")]
    NoChannels,
    /// Chunks of no bytes.
    #[error("a chunk needs at least one byte")]
    EmptyChunk,
    /// The algorithm needs hosts with equally many ranks.
    #[error("{algorithm} needs hosts with equally many ranks; {ranks} ranks are not a multiple of {ranks_per_node}")]
    UnequalHosts {
        /// The algorithm.
        algorithm: Algorithm,
        /// Ranks of the call.
        ranks: u32,
        /// Ranks per host.
        ranks_per_node: u32,
    },
    /// No multicast team holds what the algorithm needs.
    #[error("{algorithm} needs NVSwitches that combine and copy between {}", if *.algorithm == Algorithm::Nvls { "all ranks" } else { "equally many ranks each" })]
    NoTeam {
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// A ring order is not an order of all ranks.
    #[error("ring order {index} does not hold every one of the {ranks} ranks once")]
    RingOrder {
        /// Which of [`Shape::orders`].
        index: usize,
        /// Ranks of the call.
        ranks: u32,
    },
    /// More chunks than can be numbered.
    #[error("{chunks} chunks are too many (at most {}); larger chunks or fewer channels are needed", cut::MAX_CHUNKS)]
    TooManyChunks {
        /// Chunks of the buffer or of the scratch that this would take.
        chunks: u64,
    },
    /// The call is so large that it takes more loops than are simulated.
    #[error(
        "{chunks} chunks are too many to simulate (at most {}); larger chunks or a smaller call are needed",
        cut::MAX_LOOPED_CHUNKS
    )]
    TooManyLoops {
        /// Chunks of the buffer.
        chunks: u64,
    },
    /// A rank does so many things one after the other that they are not written down.
    #[error(
        "more operations than are held one by one (runs: at most {} of a rank, {} of all); larger chunks or a smaller call are needed",
        Program::MOST_RUNS,
        Schedule::MOST_RUNS
    )]
    TooManyRuns,
}
