//! Candidate restriction for groups over many hosts: fewer candidates, since each takes seconds to simulate.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::fewer::Growth;
use crate::algorithm::Algorithm;
use crate::strategy::Restriction;

/// Channel counts tried for groups over many hosts: those that NCCL's own search arrives at there. More choices gain
/// less than they cost.
pub(super) const CHANNELS_OF_MANY: [u16; 2] = [8, 16];

/// Excluded algorithms: each rank sends to every other, so the number of messages is quadratic in the ranks, for bytes
/// that rings move as fast.
const BETWEEN_ALL: [Algorithm; 5] =
    [Algorithm::Direct, Algorithm::OneShot, Algorithm::TwoShot, Algorithm::Pairwise, Algorithm::LinearSync];

/// Class of candidates by the method that times them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Streams of equal chunks ([`Algorithm::streams`]): large calls are sampled (`sample`).
    Streaming,
    /// Rings: large groups are extrapolated from fewer ranks (`fewer`).
    Ring,
    /// Double binary trees: sampled and extrapolated.
    Tree,
    /// PAT: large groups are extrapolated from fewer ranks.
    Pat,
    /// All others: simulated as they are.
    Other,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [Self::Streaming, Self::Ring, Self::Tree, Self::Pat, Self::Other];

    /// Returns true if a collective has algorithms of this kind.
    pub(super) fn is_of(collective: Collective, kind: Self) -> bool {
        Algorithm::ALL.iter().any(|&one| one.supports(collective) && Self::of(one, collective) == kind)
    }

    fn of(algorithm: Algorithm, collective: Collective) -> Self {
        match Growth::of(algorithm, collective) {
            Some(Growth::ByRank) => Self::Ring,
            Some(Growth::ByDoubling) => Self::Tree,
            Some(Growth::WithParts) => Self::Pat,
            None if algorithm.streams(collective) => Self::Streaming,
            None => Self::Other,
        }
    }
}

/// Largest bytes per rank at which PAT with 16 channels is not tried: up to there it is slower than with 8 (all_gather,
/// Simple, 512 hosts of HGX H100 on rails, dragonfly and torus, simulated), from 1 MiB on equal or faster.
const FEW_CHANNELS: Bytes = Bytes(256 << 10);

/// Candidate strategies for a group that spans many hosts. `on_a_host`: ranks of the group on each host; `part`:
/// largest message of a rank, in bytes. PAT needs one rank per host: NCCL excludes it elsewhere (src/graph/tuning.cc,
/// `ncclPatEnable`), and the number of its routes between hosts grows with the ranks.
pub(super) fn of_many(collective: Collective, on_a_host: u32, (kinds, part): (&[Kind], Bytes)) -> Restriction {
    let mut algorithms: Vec<Algorithm> = match collective.is_between_pairs() {
        // (All-to-all exchanges have no alternative to pairwise messages.)
        true => Vec::new(),
        false => Algorithm::ALL
            .into_iter()
            .filter(|one| !BETWEEN_ALL.contains(one) && (*one != Algorithm::Pat || on_a_host == 1))
            .collect(),
    };
    if kinds.len() < Kind::ALL.len() {
        algorithms.retain(|&one| kinds.contains(&Kind::of(one, collective)));
    }
    let few = kinds == [Kind::Pat] && part <= FEW_CHANNELS;
    let channels = CHANNELS_OF_MANY.get(..if few { 1 } else { CHANNELS_OF_MANY.len() }).unwrap_or_default();
    Restriction { algorithms, channels: channels.to_vec(), ..Restriction::default() }
}
