//! Plans of single calls, as recorded jobs make them. Calls of the same group and collective share one search.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, NodeId};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::calls::GroupCall;
use super::candidate_search::LibraryChoiceScope;
use super::simulated::SimulatedCosts;
use fabricast_search::plan::{PlanError, PlanRow};
use fabricast_workload::job::CollectiveCandidates;

/// Largest number of message sizes in one search, so that searches of one group run on several threads.
const SIZES_PER_SEARCH: usize = 64;

/// Calls with a common group and collective, as indices into the list of calls.
struct Batch<'g> {
    devices: &'g [NodeId],
    collective: Collective,
    calls: Vec<usize>,
}

impl SimulatedCosts<'_> {
    /// Plans each call without regard to the others, on all threads. The results are in the order of `calls`; `result`
    /// selects the needed part of a row. A call without a plan has the [`PlanError`] of its search. The monitor counts
    /// planned calls.
    pub(crate) fn plan_calls<T: Send>(
        &self,
        calls: &[GroupCall<'_>],
        collectives: CollectiveCandidates,
        scope: LibraryChoiceScope,
        result: impl Fn(PlanRow) -> T + Sync,
    ) -> Vec<Result<T, PlanError>> {
        let plan = |batch: &Batch<'_>| -> Vec<(usize, Result<T, PlanError>)> {
            let sizes: Vec<Bytes> =
                batch.calls.iter().filter_map(|&index| calls.get(index)).map(|call| call.bytes).collect();
            let rows = self.search().single_rows(batch.devices, batch.collective, &sizes, collectives, scope);
            self.monitor().add_done(batch.calls.len());
            batch.calls.iter().copied().zip(rows.into_iter().map(|row| row.map(&result))).collect()
        };
        self.monitor().add_total(calls.len());
        let batches = self.batches(calls);
        let mut planned: Vec<_> = batches.par_iter().with_max_len(1).flat_map_iter(plan).collect();
        planned.sort_unstable_by_key(|(index, _)| *index);
        planned.into_iter().map(|(_, row)| row).collect()
    }

    /// Groups calls by group and collective. Barriers have no message size, and the candidates of a large group depend
    /// on it, so these calls are planned one by one.
    fn batches<'g>(&self, calls: &[GroupCall<'g>]) -> Vec<Batch<'g>> {
        let mut batches: Vec<Batch<'g>> = Vec::new();
        let mut open: FxHashMap<(&[NodeId], Collective), usize> = FxHashMap::default();
        for (index, &GroupCall { devices, collective, .. }) in calls.iter().enumerate() {
            let is_single = collective == Collective::Barrier || self.placement().is_large_group(devices);
            let limit = if is_single { 1 } else { SIZES_PER_SEARCH };
            let known = open.get(&(devices, collective)).and_then(|&batch| batches.get_mut(batch));
            match known.filter(|batch| batch.calls.len() < limit) {
                Some(batch) => batch.calls.push(index),
                None => {
                    open.insert((devices, collective), batches.len());
                    batches.push(Batch { devices, collective, calls: vec![index] });
                }
            }
        }
        batches
    }
}
