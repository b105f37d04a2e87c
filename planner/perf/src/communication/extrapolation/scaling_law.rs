//! Growth of the completion time of algorithms with the number of ranks.

use fabricast_sim::schedule::Collective;

use fabricast_collectives::algorithm::Algorithm;

/// Growth law of the completion time with the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::communication) enum ScalingLaw {
    /// Linear in the number of ranks at constant bytes per rank: rings.
    Rank,
    /// Constant increment per doubling of the number of ranks at constant total bytes: double binary trees.
    Doubling,
    /// Linear in the number of ranks if the two simulations confirm it, which they do not for very small messages: PAT.
    RankIfConfirmed,
}

impl ScalingLaw {
    /// Returns the growth law of an algorithm's completion time; `None` if it is unknown.
    pub(in crate::communication) fn new(algorithm: Algorithm, collective: Collective) -> Option<Self> {
        match (algorithm, collective) {
            (Algorithm::Ring, Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter) => {
                Some(Self::Rank)
            }
            (Algorithm::Tree | Algorithm::NvlsTree, Collective::AllReduce) => Some(Self::Doubling),
            (Algorithm::Pat, Collective::AllGather | Collective::ReduceScatter) => Some(Self::RankIfConfirmed),
            _ => None,
        }
    }
}
