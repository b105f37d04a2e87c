//! What groups of many ranks over many hosts try: fewer ways, since each takes seconds to simulate.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::fewer::Growth;
use crate::algorithm::Algorithm;
use crate::strategy::Restriction;

/// Channels that are tried where groups span many hosts: what NCCL's own search arrives at there; more choices take more
/// time than they are worth.
pub(super) const CHANNELS_OF_MANY: [u16; 2] = [8, 16];

/// What they do not try: each rank sends to every other, so that messages grow with the square of the ranks, for bytes
/// that rings move as fast.
const BETWEEN_ALL: [Algorithm; 5] =
    [Algorithm::Direct, Algorithm::OneShot, Algorithm::TwoShot, Algorithm::Pairwise, Algorithm::LinearSync];

/// How a way is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Chunks of one size stream through ([`Algorithm::streams`]): large calls by their parts (`sample`).
    Streaming,
    /// Rings: among very many by those of fewer (`fewer`).
    Ring,
    /// Double trees: both.
    Tree,
    /// PAT: among very many by those of fewer.
    Pat,
    /// As it is.
    Other,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [Self::Streaming, Self::Ring, Self::Tree, Self::Pat, Self::Other];

    /// Whether a collective has ways of a kind.
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

/// Bytes of each rank up to which PAT on 16 channels is not worth trying: of 256 KiB, 512 hosts of HGX H100 took 20 % (dragonfly) to 94 %
/// (rails, torus) longer with them than with 8, of 64 KiB twice as long, of 1 MiB as long, of 4 MiB 4 to 7 % less (all_gather, simple).
const FEW_CHANNELS: Bytes = Bytes(256 << 10);

/// What groups of many try that have so many ranks on a host, of which each has up to `part`. PAT is for ranks that have a host each: NCCL
/// leaves it out elsewhere (src/graph/tuning.cc, `ncclPatEnable`), and its ways between hosts are as many as there are ranks.
pub(super) fn of_many(collective: Collective, on_a_host: u32, (kinds, part): (&[Kind], Bytes)) -> Restriction {
    let mut algorithms: Vec<Algorithm> = match collective.is_between_pairs() {
        // (There every rank has something for every other.)
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
