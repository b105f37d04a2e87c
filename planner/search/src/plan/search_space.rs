//! Search space of a plan: the candidate strategies, and the excluded ones with the reasons.
//!
//! The search prunes candidates by lower bounds only, so none of them is faster than [`super::PlanRow::fastest`]. Other
//! channel counts and chunk sizes can be simulated, and may be faster.

use fabricast_sim::profile::Software;
use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::Bytes;

use super::{PlanError, PlanRequest, PlanRow};
use crate::candidates::{channel_counts, min_bytes, protocols, ring_channel_counts};
use fabricast_collectives::algorithm::{Algorithm, Unsupported};
use fabricast_collectives::capabilities::FabricCapabilities;
use fabricast_collectives::strategy::{Mismatch, check_combination};
use fabricast_libraries::Library;

/// Candidate strategies of a plan, and the excluded ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchSpace {
    /// Algorithms and protocols of the candidates, by collective.
    pub competing: Vec<CompetingAlgorithm>,
    /// Channel counts tried for each algorithm and protocol. Copy engines and barriers have the same time with any
    /// channel count.
    pub channels: Vec<u16>,
    /// Excluded strategies, with the reasons.
    pub excluded: Vec<Exclusion>,
}

/// Algorithm that is a candidate for a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompetingAlgorithm {
    /// Collective for which the algorithm is a candidate.
    pub collective: Collective,
    /// The candidate algorithm.
    pub algorithm: Algorithm,
    /// Protocols with which the algorithm is a candidate.
    pub protocols: Vec<Protocol>,
}

/// Strategies excluded from the search space, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exclusion {
    /// The algorithm does not run on the fabric with any protocol.
    #[error("{algorithm} for {collective}: {reason}")]
    Impossible {
        /// Collective of the excluded strategies.
        collective: Collective,
        /// Algorithm of the excluded strategies.
        algorithm: Algorithm,
        /// Reason why the algorithm does not run.
        reason: Mismatch,
    },
    /// The library to which the plan is restricted does not run the algorithm with these protocols.
    #[error("{algorithm} ({}) for {collective}: {library} does not run it on this fabric", names(.protocols))]
    UnsupportedByLibrary {
        /// Collective of the excluded strategies.
        collective: Collective,
        /// Algorithm of the excluded strategies.
        algorithm: Algorithm,
        /// Protocols with which the library does not run the algorithm.
        protocols: Vec<Protocol>,
        /// Library to which the plan is restricted.
        library: Library,
    },
    /// Schedules that are impossible at this size, or too large to simulate.
    #[error("{algorithm} ({protocol}, {} channels) for {collective} of {bytes}: {reason}", counts(.channels))]
    Omitted {
        /// Collective of the omitted strategies.
        collective: Collective,
        /// Message size at which they are omitted, in bytes.
        bytes: Bytes,
        /// Algorithm of the omitted strategies.
        algorithm: Algorithm,
        /// Protocol of the omitted strategies.
        protocol: Protocol,
        /// Channel counts of the omitted strategies.
        channels: Vec<u16>,
        /// Reason why the first of these strategies was omitted.
        reason: String,
    },
    /// A channel count that is tried only for messages above a minimum size.
    #[error("{channels} channels for calls below {bytes}: no profile predicts the cost of many blocks in small calls")]
    ManyChannels {
        /// Number of channels that is tried for large messages only.
        channels: u16,
        /// Smallest message size at which this number is tried, in bytes.
        bytes: Bytes,
    },
    /// Packed trees, on GPUs that are linked to each other without a switch.
    #[error("tree_packing, often faster where GPUs are linked without a switch; --algorithm tree_packing plans it")]
    PackedTrees,
    /// Channel counts that no table or setting of this library, to which the plan is restricted, can select.
    #[error("channel counts that {0} cannot be configured to use")]
    UnselectableChannels(Library),
    /// All channel counts that [`SearchSpace::channels`] does not list.
    #[error("other channel counts: name them with --channels")]
    OtherChannels,
}

fn names(protocols: &[Protocol]) -> String {
    protocols.iter().map(|protocol| protocol.name()).collect::<Vec<_>>().join(", ")
}

/// Treatment of strategies that send between ranks without a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingRoutes {
    /// The plan fails.
    Error,
    /// The strategy is excluded from the candidates.
    OmitStrategy,
}

/// Converts an error about a simulation that is too large into a reason to omit the strategy. Returns other errors
/// unchanged.
pub(super) fn omission_reason(error: PlanError, missing_routes: MissingRoutes) -> Result<Unsupported, PlanError> {
    match error {
        PlanError::Simulation { source, .. }
            if source.is_unreachable() && missing_routes == MissingRoutes::OmitStrategy =>
        {
            Ok(Unsupported::NoPath { reason: source.to_string() })
        }
        PlanError::Simulation { source, .. } if source.is_too_large() => {
            Ok(Unsupported::TooLarge { reason: source.to_string() })
        }
        error => Err(error),
    }
}

fn counts(channels: &[u16]) -> String {
    channels.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

impl SearchSpace {
    /// Adds the strategies that rows omitted, with one entry for each algorithm and protocol.
    pub fn add_omitted(&mut self, rows: &[PlanRow]) {
        for row in rows {
            let first = self.excluded.len();
            for (strategy, reason) in &row.omitted {
                let row_channels = self.excluded.iter_mut().skip(first).find_map(|excluded| match excluded {
                    Exclusion::Omitted { algorithm, protocol, channels, .. }
                        if (*algorithm, *protocol) == (strategy.algorithm, strategy.protocol) =>
                    {
                        Some(channels)
                    }
                    _ => None,
                });
                match row_channels {
                    Some(channels) if channels.contains(&strategy.channels) => {}
                    Some(channels) => channels.push(strategy.channels),
                    None => self.excluded.push(Exclusion::Omitted {
                        collective: row.collective,
                        bytes: row.bytes,
                        algorithm: strategy.algorithm,
                        protocol: strategy.protocol,
                        channels: vec![strategy.channels],
                        reason: reason.to_string(),
                    }),
                }
            }
            for excluded in self.excluded.iter_mut().skip(first) {
                if let Exclusion::Omitted { channels, .. } = excluded {
                    channels.sort_unstable();
                }
            }
        }
    }

    /// Returns the search space of a request. Algorithms and protocols that its restriction excludes by name are not
    /// listed.
    #[must_use]
    pub fn new(request: &PlanRequest<'_>) -> Self {
        let (abilities, restriction) = (request.fabric_capabilities(), request.restriction);
        let mut space = Self { competing: Vec::new(), channels: Vec::new(), excluded: Vec::new() };
        for &collective in request.collectives {
            let is_named = |algorithm: &Algorithm| {
                let named = &restriction.algorithms;
                algorithm.supports(collective) && (named.is_empty() || named.contains(algorithm))
            };
            for algorithm in Algorithm::ALL.into_iter().filter(is_named) {
                let candidates: Vec<Protocol> = protocols(collective, algorithm, &abilities, restriction).collect();
                let check = |protocol: Protocol| check_combination(algorithm, protocol, collective, &abilities);
                let is_named = |p: &Protocol| restriction.protocols.is_empty() || restriction.protocols.contains(p);
                let mut named = Protocol::ALL.into_iter().filter(is_named);
                let unsupported: Vec<Protocol> = named
                    .clone()
                    .filter(|&protocol| check(protocol).is_ok() && !candidates.contains(&protocol))
                    .collect();
                // The reason is taken from the protocol `simple`, which most algorithms support, because it is least
                // specific to a protocol.
                let simple = named.clone().find(|&protocol| protocol == Protocol::Simple).or_else(|| named.next());
                match (simple.map(check), restriction.library) {
                    (Some(Err(reason)), _) if candidates.is_empty() && unsupported.is_empty() => {
                        space.excluded.push(Exclusion::Impossible { collective, algorithm, reason });
                    }
                    (_, Some(offer)) if !unsupported.is_empty() => {
                        let (protocols, library) = (unsupported, offer.library);
                        space.excluded.push(Exclusion::UnsupportedByLibrary {
                            collective,
                            algorithm,
                            protocols,
                            library,
                        });
                    }
                    _ => {}
                }
                if !candidates.is_empty() {
                    space.competing.push(CompetingAlgorithm { collective, algorithm, protocols: candidates });
                }
            }
        }
        let can_pack = request.collectives.iter().any(|&collective| Algorithm::TreePacking.supports(collective));
        if can_pack && restriction.leaves_mesh_unpacked(&request.placed_ranks()) {
            space.excluded.push(Exclusion::PackedTrees);
        }
        space.add_channels(request, &abilities);
        space
    }

    fn add_channels(&mut self, request: &PlanRequest<'_>, abilities: &FabricCapabilities) {
        let restriction = request.restriction;
        if let (Some(offer), Some(_)) = (restriction.library, request.library) {
            self.excluded.push(Exclusion::UnselectableChannels(offer.library));
        }
        self.channels.clone_from(&restriction.channels);
        if !self.channels.is_empty() {
            return;
        }
        if restriction.library.and_then(fabricast_libraries::LibraryCapabilities::max_channels) == Some(1) {
            self.channels.push(1);
            return;
        }
        let software = request.profile.software();
        self.channels.extend(ring_channel_counts(abilities, software, Bytes::MAX));
        let smallest = request.sizes.iter().copied().min().unwrap_or(Bytes::MAX);
        if software == Software::Kernels {
            let small_counts = channel_counts(software, smallest);
            let large_counts = self.channels.iter().filter(|channels| !small_counts.contains(channels));
            self.excluded
                .extend(large_counts.map(|&channels| Exclusion::ManyChannels { channels, bytes: min_bytes(channels) }));
        }
        self.excluded.push(Exclusion::OtherChannels);
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::SimulateError;
    use fabricast_sim::engine::EngineError;
    use fabricast_sim::lower::LowerError;
    use fabricast_sim::schedule::ScheduleError;

    use super::*;
    use fabricast_collectives::strategy::Strategy;

    #[test]
    fn only_oversized_simulations_are_omitted() {
        let strategy = Strategy::new(Algorithm::Ring, Protocol::Simple, 1);
        let failed = |source: SimulateError| {
            let (collective, bytes) = (Collective::AllReduce, Bytes(1));
            let error = PlanError::Simulation { strategy, collective, bytes, source: Box::new(source) };
            omission_reason(error, MissingRoutes::Error)
        };
        let operations = failed(EngineError::TooManyOperations { operations: 1 << 30 }.into());
        assert!(operations.is_ok_and(|reason| reason.to_string().contains("1073741824 operations")));
        assert!(failed(LowerError::TooLarge(ScheduleError::TooManyRuns).into()).is_ok());
        assert!(failed(EngineError::Interrupted.into()).is_err());
        assert!(failed(EngineError::TooLong { run: 0, index: 0 }.into()).is_err());
    }
}
