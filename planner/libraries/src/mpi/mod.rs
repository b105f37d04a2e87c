//! Open MPI on GPU memory: choice of the algorithm by its `tuned` component.
//!
//! The decisions are fixed tables by number of ranks and message size ([`switch_points`](self)), independent of the
//! fabric. A message between GPUs is a single stream, so a strategy has one channel, and the whole message is one
//! chunk: the fixed decision rules do not segment messages. The profile `open_mpi-5.0` and the route determine the
//! message transport (eager or rendezvous, staged through host memory or by GPUDirect) and the cost of reductions in
//! host memory. The figures of this profile are from published sources, not measured. The protocol `simple` represents
//! MPI messages; the profile's other protocols have no counterpart in MPI.

mod algorithms;
mod switch_points;

use std::fmt;
use std::str::FromStr;

use fabricast_sim::schedule::{Call, Collective, Protocol, Rank};

use super::{Choice, Library, Unknown};
pub use algorithms::OpenMpiAlgorithm;
use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::strategy::Strategy;

/// Version of Open MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpenMpiVersion {
    /// Version 4.1, the first one with these tables.
    V4_1,
    /// Version 5.0, which has the tables of 4.1.
    V5_0,
}

impl OpenMpiVersion {
    /// Version meant by `open_mpi` without a version number.
    pub const NEWEST: Self = Self::V5_0;
}

impl fmt::Display for OpenMpiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V4_1 => "4.1",
            Self::V5_0 => "5.0",
        })
    }
}

/// Error for an unknown version of Open MPI; contains the version's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Open MPI {0} is not known: expected 4.1 or 5.0, as in open_mpi-5.0")]
pub struct UnknownOpenMpiVersion(pub String);

impl FromStr for OpenMpiVersion {
    type Err = UnknownOpenMpiVersion;

    /// Parses `5.0`, `5.0.6`.
    fn from_str(text: &str) -> Result<Self, UnknownOpenMpiVersion> {
        let mut parts = text.split('.');
        let known = match (parts.next(), parts.next()) {
            (Some("4"), Some("1")) => Some(Self::V4_1),
            (Some("5"), Some("0")) => Some(Self::V5_0),
            _ => None,
        };
        known.ok_or_else(|| UnknownOpenMpiVersion(text.to_owned()))
    }
}

/// Protocol whose costs represent MPI messages.
pub const PROTOCOL: Protocol = Protocol::Simple;

/// Reason why fabricast has no equivalent of a choice.
pub(super) enum NoEquivalent {
    /// Open MPI has no decision table for the collective.
    Collective(Collective),
    /// fabricast has no schedule of the algorithm.
    Algorithm(OpenMpiAlgorithm),
}

impl NoEquivalent {
    pub(super) fn to_unknown(&self, library: Library) -> Unknown {
        match *self {
            Self::Collective(collective) => Unknown::NotModelled { library, collective },
            Self::Algorithm(algorithm) => Unknown::NoSchedule { library, name: algorithm.name().to_owned() },
        }
    }
}

fn table(collective: Collective) -> Option<switch_points::DecisionTable> {
    match collective {
        Collective::AllReduce => Some(switch_points::ALL_REDUCE),
        Collective::AllToAll => Some(switch_points::ALL_TO_ALL),
        Collective::Broadcast => Some(switch_points::BROADCAST),
        Collective::Reduce => Some(switch_points::REDUCE),
        Collective::ReduceScatter => Some(switch_points::REDUCE_SCATTER),
        Collective::AllGather => Some(switch_points::ALL_GATHER),
        Collective::Gather => Some(switch_points::GATHER),
        Collective::Scatter => Some(switch_points::SCATTER),
        Collective::AllToAllV => Some(switch_points::ALL_TO_ALL_V),
        Collective::Barrier => Some(switch_points::BARRIER),
        Collective::SendRecv => None,
    }
}

/// Returns the algorithm that a version chooses; `None` for collectives without a decision table.
#[must_use]
pub fn fixed_decision(_version: OpenMpiVersion, call: &Call) -> Option<OpenMpiAlgorithm> {
    let table = table(call.collective)?;
    let blocks = match call.collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
        _ => u64::from(call.ranks.max(1)),
    };
    let bytes = call.bytes.0 / blocks;
    let row = table.iter().find(|(below, _)| call.ranks < *below).or(table.last())?;
    let algorithm = row.1.iter().find(|(below, _)| bytes < *below).or(row.1.last())?.1;
    // Fallbacks of algorithms that do not support a call. For all_gather (coll_base_allgather.c), recursive doubling
    // needs a power of two, and neighbour exchange needs pairs.
    Some(match (call.collective, algorithm) {
        (Collective::AllGather, OpenMpiAlgorithm::RecursiveDoubling) if !call.ranks.is_power_of_two() => {
            OpenMpiAlgorithm::Bruck
        }
        (Collective::AllGather, OpenMpiAlgorithm::NeighbourExchange) if call.ranks % 2 == 1 => OpenMpiAlgorithm::Ring,
        // Recursive halving needs at least as many elements as ranks (coll_base_reduce.c). This rule applies to
        // messages of few bytes, which are assumed to be one element of 4 bytes.
        (Collective::Reduce, OpenMpiAlgorithm::Rabenseifner) => OpenMpiAlgorithm::Linear,
        (_, algorithm) => algorithm,
    })
}

/// Returns the algorithm of fabricast that is equivalent to Open MPI's for a collective; `None` if there is none.
#[must_use]
pub fn equivalent_schedule(algorithm: OpenMpiAlgorithm, collective: Collective) -> Option<Algorithm> {
    algorithm.equivalent(collective)
}

/// Algorithms that the library chooses for a collective at some size, or can be forced to choose.
pub(super) fn algorithms(collective: Collective) -> Vec<Algorithm> {
    let rows = table(collective).into_iter().flatten();
    let algorithms = rows.flat_map(|(_, rules)| rules.iter().map(|&(_, algorithm)| algorithm));
    let mut equivalents: Vec<Algorithm> =
        algorithms.filter_map(|algorithm| equivalent_schedule(algorithm, collective)).collect();
    match collective {
        Collective::SendRecv => equivalents.push(Algorithm::Direct),
        // Several chains are not part of the fixed decision rules, which set a fan-out of one.
        Collective::Broadcast | Collective::Reduce => equivalents.push(Algorithm::Chains),
        _ => {}
    }
    equivalents.sort_unstable();
    equivalents.dedup();
    equivalents
}

/// Returns fabricast's algorithm that is equivalent to Open MPI's for a call; `None` if Open MPI combines two
/// collectives whose algorithms differ from those in fabricast's schedule.
fn equivalent_algorithm(version: OpenMpiVersion, call: &Call, algorithm: OpenMpiAlgorithm) -> Option<Algorithm> {
    let resolve = |collective: Collective| {
        fixed_decision(version, &Call { collective, root: Rank(0), ..*call })
            .and_then(|algorithm| equivalent_schedule(algorithm, collective))
    };
    let parts = match algorithm {
        OpenMpiAlgorithm::ReduceThenBroadcast => Some((Collective::Broadcast, Algorithm::Knomial)),
        OpenMpiAlgorithm::ReduceThenScatter => Some((Collective::Scatter, Algorithm::Direct)),
        _ => None,
    };
    if let Some((second, expected)) = parts
        && (resolve(Collective::Reduce) != Some(Algorithm::Tree) || resolve(second) != Some(expected))
    {
        return None;
    }
    equivalent_schedule(algorithm, call.collective)
}

pub(super) fn choose(version: OpenMpiVersion, call: &Call) -> Result<Choice, NoEquivalent> {
    let chosen = match call.collective {
        // Every message is sent directly to its receiver.
        Collective::SendRecv => OpenMpiAlgorithm::Linear,
        collective => fixed_decision(version, call).ok_or(NoEquivalent::Collective(collective))?,
    };
    let algorithm = equivalent_algorithm(version, call, chosen).ok_or(NoEquivalent::Algorithm(chosen))?;
    let strategy = Strategy::new(algorithm, PROTOCOL, 1);
    Ok(Choice { strategy, name: chosen.name().to_owned(), max_channels: strategy.channels, expected: None })
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::BufferUse;
    use fabricast_topologies::Bytes;

    use super::*;

    fn decide(collective: Collective, ranks: u32, bytes: u64) -> Option<OpenMpiAlgorithm> {
        let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
        fixed_decision(OpenMpiVersion::NEWEST, &call)
    }

    #[test]
    fn tables_are_ascending_and_complete() {
        for collective in Collective::ALL {
            let Some(table) = table(collective) else { continue };
            assert!(table.is_sorted_by(|a, b| a.0 < b.0) && table.last().unwrap().0 == u32::MAX, "{collective}");
            for (ranks, rules) in table {
                let is_complete = rules.is_sorted_by(|a, b| a.0 < b.0) && rules.last().unwrap().0 == u64::MAX;
                assert!(is_complete, "{collective} below {ranks}");
            }
        }
    }

    #[test]
    fn switch_points_match_open_mpi() {
        assert_eq!(decide(Collective::AllReduce, 8, 8191), Some(OpenMpiAlgorithm::RecursiveDoubling));
        assert_eq!(decide(Collective::AllReduce, 8, 8192), Some(OpenMpiAlgorithm::Rabenseifner));
        assert_eq!(decide(Collective::AllReduce, 3, 100_000), Some(OpenMpiAlgorithm::SegmentedRing));
        // 32 ranks with blocks of 511 and 512 bytes, below and above a switch point.
        assert_eq!(decide(Collective::AllToAll, 32, 32 * 511), Some(OpenMpiAlgorithm::Bruck));
        assert_eq!(decide(Collective::AllToAll, 32, 32 * 512), Some(OpenMpiAlgorithm::Linear));
        assert_eq!(decide(Collective::AllGather, 12, 1 << 20), Some(OpenMpiAlgorithm::Bruck));
        assert_eq!(decide(Collective::AllGather, 16, 1 << 20), Some(OpenMpiAlgorithm::RecursiveDoubling));
        assert_eq!(decide(Collective::AllGather, 65, 65 * 4096), Some(OpenMpiAlgorithm::Ring));
        assert_eq!(decide(Collective::AllGather, 66, 66 * 4096), Some(OpenMpiAlgorithm::NeighbourExchange));
        assert_eq!(decide(Collective::AllToAllV, 8, 1 << 20), Some(OpenMpiAlgorithm::Linear));
        assert_eq!(decide(Collective::AllToAllV, 100, 1 << 20), Some(OpenMpiAlgorithm::Pairwise));
        assert_eq!(decide(Collective::Barrier, 8, 0), Some(OpenMpiAlgorithm::RecursiveDoubling));
        assert_eq!(decide(Collective::Barrier, 300, 0), Some(OpenMpiAlgorithm::Binomial));
        assert_eq!(decide(Collective::SendRecv, 2, 8), None);
    }

    /// Every choice has a schedule, except for some collectives that combine other algorithms, and except for recursive
    /// doubling of reduce_scatter, which sends data that no rank needs.
    #[test]
    fn every_choice_has_a_schedule() {
        for collective in Collective::ALL {
            for ranks in (2..70).chain([100, 128, 200, 256, 300, 512, 1000, 1024, 2048, 5000]) {
                for bytes in (0..34).flat_map(|k| [1u64 << k, (1 << k) - 1, 3 << k]) {
                    let call =
                        Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
                    let is_exempt = match fixed_decision(OpenMpiVersion::NEWEST, &call) {
                        Some(OpenMpiAlgorithm::ReduceThenBroadcast | OpenMpiAlgorithm::ReduceThenScatter) => true,
                        Some(OpenMpiAlgorithm::RecursiveDoubling) => collective == Collective::ReduceScatter,
                        _ => false,
                    };
                    assert!(is_exempt || choose(OpenMpiVersion::NEWEST, &call).is_ok(), "{call:?}");
                }
            }
        }
        let all_reduce = |ranks, bytes| {
            let collective = Collective::AllReduce;
            let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
            choose(OpenMpiVersion::NEWEST, &call).ok().map(|choice| choice.strategy.algorithm)
        };
        assert_eq!(all_reduce(256, 1024), Some(Algorithm::ReduceThenBroadcast));
        // Between 128 and 255 ranks, Open MPI broadcasts 1 KiB over a binary tree.
        assert_eq!(all_reduce(128, 1024), None);
    }
}
