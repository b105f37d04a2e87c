//! Restriction of the candidate strategies for groups over many hosts, because each candidate takes seconds to
//! simulate.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;
use fabricast_topologies::variants::variants;
use strum::{EnumCount, VariantArray};

use super::extrapolation::scaling_law::ScalingLaw;
use fabricast_collectives::algorithm::Algorithm;
use fabricast_search::candidates::Restriction;

/// Channel counts that are simulated for groups over many hosts: those that NCCL's own search selects for them. Other
/// counts improve the time by less than their simulation costs.
pub(super) const LARGE_GROUP_CHANNELS: [u16; 2] = [8, 16];

/// Algorithms that are excluded for groups over many hosts. Each rank sends to every other rank, so the number of
/// messages is quadratic in the number of ranks, whereas rings move the bytes equally fast.
const QUADRATIC_ALGORITHMS: [Algorithm; 5] =
    [Algorithm::Direct, Algorithm::OneShot, Algorithm::TwoShot, Algorithm::Pairwise, Algorithm::LinearSync];

/// Class of candidates, by the method that determines their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, VariantArray)]
pub(super) enum CandidateClass {
    /// Streams of equal chunks ([`Algorithm::is_pipelined`]): large calls are sampled (`size_sampling`).
    Streaming,
    /// Rings. Large groups are extrapolated from scaled-down groups (`rank_scaling`).
    Ring,
    /// Double binary trees. Large calls are sampled, and large groups are extrapolated.
    Tree,
    /// PAT. Large groups are extrapolated from scaled-down groups (`rank_scaling`).
    Pat,
    /// All other algorithms. Calls are simulated without sampling or extrapolation.
    Other,
}

impl CandidateClass {
    pub(super) const ALL: [Self; Self::COUNT] = variants();

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

/// Number of bytes per rank up to which PAT is not simulated with 16 channels, because it is slower than with 8
/// channels. From 1 MiB per rank it is at least as fast. Source: simulations of all_gather with Simple on 512 hosts of
/// HGX H100 (rails, dragonfly and torus).
const PAT_FEW_CHANNELS_BYTES: Bytes = Bytes(256 << 10);

/// Candidate strategies for a group that spans many hosts. `ranks_per_host`: ranks of the group on each host; `part`:
/// largest message of a rank, in bytes. PAT is a candidate only with one rank per host: NCCL excludes it otherwise
/// (src/graph/tuning.cc, `ncclPatEnable`), and the number of its routes between hosts grows with the number of ranks.
pub(super) fn large_group_restriction(
    collective: Collective,
    ranks_per_host: u32,
    classes: &[CandidateClass],
    part: Bytes,
) -> Restriction {
    let mut algorithms: Vec<Algorithm> = match collective.is_pairwise() {
        // All-to-all exchanges have no alternative to pairwise messages.
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
