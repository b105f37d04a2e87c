//! What a trace calls, and how often: the sizes and weights of a plan for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, NodeId};

use rayon::prelude::*;

use super::{Call, Trace, What};
use crate::job::Collectives;
use crate::plan::{PlanError, Row};
use crate::step::{OwnChoice, Simulated, TimeError};

/// The same call of groups that lie alike on the fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeated {
    /// What is called, by the first of the groups.
    pub call: Call,
    /// The devices of that group.
    pub devices: Vec<NodeId>,
    /// Groups that call it.
    pub groups: usize,
    /// How often all of them together do.
    pub calls: u64,
}

/// A call with its plan.
#[derive(Clone, Debug)]
pub struct Weighted {
    /// How often it occurs.
    pub repeated: Repeated,
    /// What is picked for it, and what the library would choose.
    pub row: Row,
}

impl Repeated {
    /// How often a group calls it, on average.
    #[must_use]
    pub fn each(&self) -> f64 {
        self.calls as f64 / self.groups.max(1) as f64
    }
}

/// Collective, ranks, then how many ranks of a group are on each NVLink domain, in the group's order: `8`, `2 2`.
type Alike = (Collective, usize, Vec<usize>, Bytes);

impl Trace {
    /// Its calls by collective, group and size.
    #[must_use]
    pub fn mix(&self, simulated: &Simulated<'_>) -> Vec<Repeated> {
        let mut found: BTreeMap<Alike, Repeated> = BTreeMap::new();
        let mut groups: BTreeMap<Alike, Vec<Arc<[u32]>>> = BTreeMap::new();
        for event in &self.events {
            let What::Call(call) = &event.what else { continue };
            let devices = simulated.devices(&call.group);
            let mut spread: BTreeMap<u32, usize> = BTreeMap::new();
            for &device in &devices {
                let island = simulated.islands(&[device]).first().copied().unwrap_or_default();
                *spread.entry(island).or_default() += 1;
            }
            let key = (call.collective, call.group.len(), spread.into_values().collect(), call.bytes);
            let known = groups.entry(key.clone()).or_default();
            let first = || Repeated { call: call.clone(), devices, groups: 0, calls: 0 };
            let repeated = found.entry(key).or_insert_with(first);
            repeated.calls += 1;
            if !known.contains(&call.group) {
                known.push(Arc::clone(&call.group));
                repeated.groups += 1;
            }
        }
        found.into_values().collect()
    }

    /// A plan for its calls, on all threads of the current pool.
    ///
    /// # Errors
    /// [`TimeError`]: more ranks than `devices`, or a call that nothing can be planned for; `source` names the trace.
    pub fn plan(
        &self,
        simulated: &Simulated<'_>,
        devices: usize,
        collectives: Collectives,
        source: &str,
    ) -> Result<Vec<Weighted>, TimeError> {
        self.check_ranks(devices, source)?;
        let of = |repeated: Repeated| {
            let Call { collective, bytes, .. } = repeated.call;
            let row = simulated.row(&repeated.devices, collective, bytes, collectives, OwnChoice::Everywhere)?;
            Ok(row.map(|row| Weighted { repeated, row }))
        };
        let found: Vec<Result<Option<Weighted>, PlanError>> =
            self.mix(simulated).into_par_iter().with_max_len(1).map(of).collect();
        let found = found.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(found.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::profile::Profile;
    use fabricast_topologies::route::{RouteOptions, Router};
    use fabricast_topologies::{FabricRequest, load};

    use super::*;
    use crate::trace::read_table;

    #[test]
    fn groups_that_lie_alike_are_counted_together() {
        let fabric = load(&FabricRequest { nodes: Some(2), ..FabricRequest::of("hgx-h100") }).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let profile = Profile::ideal();
        let simulated = Simulated::new(&router, &profile, fabric.gpus());
        let text = "collective,bytes,ranks,count\nall_reduce,1MiB,0-3,10\nall_reduce,1MiB,8-11,10\nall_reduce,1MiB,2-3 8-9,5\n\
                    all_reduce,2MiB,0-3,1\ncompute,,0,\n".replace("compute,,0,\n", "");
        let mix = read_table(&text, "t.csv", 16).unwrap().mix(&simulated);
        let found: Vec<(u64, usize, u64)> =
            mix.iter().map(|one| (one.call.bytes.0 >> 20, one.groups, one.calls)).collect();
        assert_eq!(found, [(1, 1, 5), (1, 2, 20), (2, 1, 1)]);
    }
}
