//! Candidate restriction for groups over many hosts: fewer candidates, since each takes seconds to simulate.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::extrapolation::scaling_law::ScalingLaw;
use fabricast_collectives::algorithm::Algorithm;
use fabricast_search::candidates::Restriction;

/// Channel counts tried for groups over many hosts: those that NCCL's own search arrives at there. More choices gain
/// less than they cost.
pub(super) const LARGE_GROUP_CHANNELS: [u16; 2] = [8, 16];

/// Algorithms excluded for groups over many hosts: each rank sends to every other, so the number of messages is
/// quadratic in the ranks, for bytes that rings move as fast.
const QUADRATIC_ALGORITHMS: [Algorithm; 5] =
    [Algorithm::Direct, Algorithm::OneShot, Algorithm::TwoShot, Algorithm::Pairwise, Algorithm::LinearSync];

/// Class of candidates by the method that times them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CandidateClass {
    /// Streams of equal chunks ([`Algorithm::is_pipelined`]): large calls are sampled (`size_sampling`).
    Streaming,
    /// Rings: large groups are extrapolated from fewer ranks (`rank_scaling`).
    Ring,
    /// Double binary trees: sampled and extrapolated.
    Tree,
    /// PAT: large groups are extrapolated from fewer ranks.
    Pat,
    /// All other algorithms: calls are simulated without sampling or extrapolation.
    Other,
}

impl CandidateClass {
    pub(super) const ALL: [Self; 5] = [Self::Streaming, Self::Ring, Self::Tree, Self::Pat, Self::Other];

    /// Returns true if a collective has algorithms of this class.
    pub(super) fn has_candidates(self, collective: Collective) -> bool {
        Algorithm::ALL.iter().any(|&one| one.supports(collective) && Self::new(one, collective) == self)
    }

    fn new(algorithm: Algorithm, collective: Collective) -> Self {
        match ScalingLaw::new(algorithm, collective) {
            Some(ScalingLaw::Rank) => Self::Ring,
            Some(ScalingLaw::Doubling) => Self::Tree,
            Some(ScalingLaw::RankIfConfirmed) => Self::Pat,
            None if algorithm.is_pipelined(collective) => Self::Streaming,
            None => Self::Other,
        }
    }
}

/// Largest bytes per rank at which PAT with 16 channels is not tried: up to there it is slower than with 8 (all_gather,
/// Simple, 512 hosts of HGX H100 on rails, dragonfly and torus, simulated), from 1 MiB on equal or faster.
const PAT_FEW_CHANNELS_BYTES: Bytes = Bytes(256 << 10);

/// Candidate strategies for a group that spans many hosts. `ranks_per_host`: ranks of the group on each host; `part`:
/// largest message of a rank, in bytes. PAT needs one rank per host: NCCL excludes it elsewhere (src/graph/tuning.cc,
/// `ncclPatEnable`), and the number of its routes between hosts grows with the ranks.
pub(super) fn large_group_restriction(
    collective: Collective,
    ranks_per_host: u32,
    classes: &[CandidateClass],
    part: Bytes,
) -> Restriction {
    let mut algorithms: Vec<Algorithm> = match collective.is_pairwise() {
        // (All-to-all exchanges have no alternative to pairwise messages.)
        true => Vec::new(),
        false => Algorithm::ALL
            .into_iter()
            // Trees are packed for plans of calls only.
            .filter(|&one| one != Algorithm::TreePacking)
            .filter(|one| !QUADRATIC_ALGORITHMS.contains(one) && (*one != Algorithm::Pat || ranks_per_host == 1))
            .collect(),
    };
    if classes.len() < CandidateClass::ALL.len() {
        algorithms.retain(|&one| classes.contains(&CandidateClass::new(one, collective)));
    }
    let is_small_pat = classes == [CandidateClass::Pat] && part <= PAT_FEW_CHANNELS_BYTES;
    let channels =
        LARGE_GROUP_CHANNELS.get(..if is_small_pat { 1 } else { LARGE_GROUP_CHANNELS.len() }).unwrap_or_default();
    Restriction { algorithms, channels: channels.to_vec(), ..Restriction::default() }
}
