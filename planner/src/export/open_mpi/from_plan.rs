//! Converts a plan to rules of Open MPI.

use fabricast_topologies::Bytes;

use super::{Communicator, Distribution, Routine, Rule, Rules};
use crate::export::choices::{self, Unsaid, Wanted};
use crate::export::{Dropped, SavedPick, SavedPlan, SavedRange, SavedRow, header};
use crate::library::mpi;

/// Rules, and the strategies of the plan that they cannot express.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FromPlan {
    /// The rules.
    pub rules: Rules,
    /// Strategies that the rules cannot express.
    pub dropped: Vec<Dropped>,
}

impl FromPlan {
    /// Creates the rules of a plan, for communicators of its number of ranks.
    #[must_use]
    pub fn new(plan: &SavedPlan) -> Self {
        let choices::Choices { stretches, dropped } =
            choices::choices(plan, (Wanted::Pick, Unsaid::AsNeighbours), algorithm, own);
        let mut routines: Vec<(Routine, Vec<Communicator>)> = Vec::new();
        for stretch in stretches {
            let (routine, algorithm) = stretch.key;
            let max_bytes = if stretch.max_bytes == choices::LAST_BYTES { Bytes(u64::MAX) } else { stretch.max_bytes };
            let rule = Rule { min_bytes: stretch.min_bytes, max_bytes, algorithm, fanout: 0, segment: 0 };
            match routines.last_mut() {
                Some((last, communicators)) if *last == routine => {
                    communicators.iter_mut().for_each(|one| one.rules.push(rule));
                }
                _ => {
                    let (ranks, distribution) = (plan.ranks, Distribution::Any);
                    let communicator =
                        Communicator { min_ranks: ranks, max_ranks: ranks, distribution, rules: vec![rule] };
                    routines.push((routine, vec![communicator]));
                }
            }
        }
        routines.sort_by_key(|routine| routine.0);
        let mut comments = header::lines(plan, "Rules of Open MPI's tuned collectives", &dropped);
        comments
            .push("load: --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename FILE".to_owned());
        comments.push(format!("communicators of more than {} ranks take them too", plan.ranks));
        Self { rules: Rules { comments, routines }, dropped }
    }
}

/// Algorithm 0 outside the planned sizes: Open MPI decides by itself.
fn own(range: &SavedRange) -> Option<(Routine, u32)> {
    Routine::of(range.collective).map(|routine| (routine, 0))
}

/// Returns Open MPI's number of a strategy: that of its default if that is the strategy, otherwise the first of its
/// algorithms with an equal schedule.
fn algorithm(row: &SavedRow, pick: &SavedPick) -> Result<(Routine, u32), String> {
    let Some(routine) = Routine::of(row.collective) else {
        return Err("the rules have no such collective by size".to_owned());
    };
    let own = row.library_default.as_ref().filter(|default| default.algorithm == pick.algorithm);
    let own = own.and_then(|default| default.name.as_deref());
    let own = routine.ways().find(|(_, way)| Some(way.name()) == own);
    let ours = routine.ways().find(|&(_, way)| mpi::schedule_of(way, row.collective) == Some(pick.algorithm));
    let known = own.or(ours).filter(|_| pick.protocol == mpi::PROTOCOL && pick.channels == 1);
    known.map(|(number, _)| (routine, number)).ok_or_else(|| "no algorithm of Open MPI's".to_owned())
}
