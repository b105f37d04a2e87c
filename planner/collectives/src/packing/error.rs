//! Reasons why no trees are packed.

use fabricast_sim::schedule::Collective;

use super::packer::MAX_PACKED_RANKS;

/// Reason why no trees are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackingError {
    /// The caller did not ask for trees.
    #[error(
        "is tried only if it is named, because packing and simulating trees takes longer than all other candidates"
    )]
    NotPrepared,
    /// The collective is not computed over spanning trees.
    #[error("has no trees for {0}")]
    OtherCollective(Collective),
    /// Fewer than two ranks.
    #[error("needs at least two ranks")]
    TooFewRanks,
    /// More ranks than trees are packed for.
    #[error("packs trees for at most {MAX_PACKED_RANKS} ranks that are not alike, not {0}")]
    TooManyRanks(usize),
    /// Several ranks share a device.
    #[error("needs a separate device for each rank")]
    SharedDevices,
    /// Some rank cannot receive from all others.
    #[error("needs links between all ranks: rank {rank} is cut off from others")]
    Disconnected {
        /// Rank on the receiving side of a cut without bandwidth.
        rank: u32,
    },
    /// No link has a limited rate, so that there is no best schedule.
    #[error("needs links with stated bandwidths")]
    UnlimitedLinks,
    /// Trees of equal rates do not exist at a whole rate.
    #[error("finds no trees of equal rates, because bandwidths differ too much")]
    NoTrees,
    /// The linear program of a collective with a block for each rank has no solution in floating point.
    #[error("finds no rates on paths, because bandwidths differ too much")]
    NoMixture,
    /// Routes are divided among numbers of paths with a common multiple of more than 128 bits.
    #[error("cannot compute loads exactly, because routes are divided among too many different numbers of equal paths")]
    TooManyPaths,
    /// An edge of the trees has no route.
    #[error("needs a route between ranks {from} and {to}, but there is none")]
    NoRoute {
        /// Sender.
        from: u32,
        /// Receiver.
        to: u32,
    },
}
