//! What is tried for a group: all that a plan tries inside of an NVLink domain; less where groups span many hosts, whose simulations take long.

use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::{Bytes, NodeId, Picos};

use super::{OwnChoice, Simulated};
use crate::algorithm::Algorithm;
use crate::job::Collectives;
use crate::plan::{PlanError, Priced, Row};
use crate::strategy::{Restriction, Strategy};

/// Channels that are tried where groups span many hosts: what NCCL's own search arrives at there; more choices take more
/// time than they are worth.
const CHANNELS_OF_MANY: [u16; 2] = [8, 16];

/// From so many ranks on in groups that leave their NVLink domain.
pub(super) const MANY: usize = 16;

/// What such groups do not try: each rank sends to every other, so that messages grow with the square of the ranks, for bytes
/// that rings move as fast.
const BETWEEN_ALL: [Algorithm; 5] =
    [Algorithm::Direct, Algorithm::OneShot, Algorithm::TwoShot, Algorithm::Pairwise, Algorithm::LinearSync];

/// Pairs of algorithm and protocol that are tried with all numbers of channels: those that are fastest with the first.
const PAIRS_WITH_ALL: usize = 2;

/// What groups of many try that have so many ranks on a host. PAT is for ranks that have a host each: NCCL leaves it out elsewhere
/// (src/graph/tuning.cc, `ncclPatEnable`), and its ways between hosts are as many as there are ranks.
pub(super) fn of_many(collective: Collective, on_a_host: u32) -> Restriction {
    let algorithms = match collective.is_between_pairs() {
        // (There every rank has something for every other.)
        true => Vec::new(),
        false => Algorithm::ALL
            .into_iter()
            .filter(|one| !BETWEEN_ALL.contains(one) && (*one != Algorithm::Pat || on_a_host == 1))
            .collect(),
    };
    Restriction { algorithms, channels: CHANNELS_OF_MANY.to_vec(), ..Restriction::default() }
}

/// All that was simulated for a row.
pub(super) fn simulated(row: &Row) -> impl Iterator<Item = Priced> {
    let named = row.library_default.iter().map(|own| own.priced).chain(row.runner_up).chain([row.pick]);
    row.pairs.iter().copied().chain(named).chain(row.preference.passed_over().copied())
}

impl Simulated<'_> {
    /// What was simulated for one group alone, the fastest first. For many ranks all pairs of algorithm and protocol are tried with few
    /// channels, and the fastest of them with more.
    pub(super) fn ways(
        &self,
        first: &[NodeId],
        (collective, bytes): (Collective, Bytes),
        collectives: Collectives,
    ) -> Result<Vec<(Picos, Strategy)>, PlanError> {
        let all = self.restriction(first, collective, collectives);
        let mut ways = Vec::new();
        let mut pairs: Vec<(Algorithm, Protocol)> = Vec::new();
        let rounds = if self.is_spread(first) {
            all.channels.iter().map(|&one| vec![one]).collect()
        } else {
            vec![all.channels.clone()]
        };
        for channels in rounds {
            let mut restriction = Restriction { channels, ..all.clone() };
            if !pairs.is_empty() {
                restriction.algorithms = pairs.iter().map(|pair| pair.0).collect();
                restriction.protocols = pairs.iter().map(|pair| pair.1).collect();
            }
            let plan = self.plan_within(first, collective, &[bytes], &restriction, OwnChoice::Inside)?;
            ways.extend(plan.rows.iter().flat_map(simulated).map(|way| (way.time, way.strategy)));
            ways.sort_unstable();
            ways.dedup();
            for (_, Strategy { algorithm, protocol, .. }) in &ways {
                if pairs.len() < PAIRS_WITH_ALL && !pairs.contains(&(*algorithm, *protocol)) {
                    pairs.push((*algorithm, *protocol));
                }
            }
        }
        Ok(ways)
    }
}
