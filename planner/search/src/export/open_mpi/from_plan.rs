//! Converts a plan to rules of Open MPI.

use fabricast_topologies::Bytes;

use super::{Communicator, Distribution, Routine, Rule, Rules};
use crate::export::expressible::{self, ExportedStrategy, MissingEntry};
use crate::export::{DroppedStrategy, SavedPick, SavedPlan, SavedRange, SavedRow, header};
use fabricast_libraries::mpi;

/// Rules, and the strategies of the plan that they cannot express.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertedRules {
    /// Dynamic rules of Open MPI's `coll_tuned` for the plan's collectives.
    pub rules: Rules,
    /// Strategies that the rules cannot express.
    pub dropped: Vec<DroppedStrategy>,
}

impl ConvertedRules {
    /// Creates the rules of a plan, for communicators with the plan's number of ranks.
    #[must_use]
    pub fn new(plan: &SavedPlan) -> Self {
        let expressible::Choices { ranges, dropped } = expressible::choose_entries(
            plan,
            ExportedStrategy::Selected,
            MissingEntry::UseNeighbour,
            algorithm,
            library_default,
        );
        let mut routines: Vec<(Routine, Vec<Communicator>)> = Vec::new();
        for range in ranges {
            let (routine, algorithm) = range.key;
            let max_bytes = if range.max_bytes == expressible::LAST_BYTES { Bytes(u64::MAX) } else { range.max_bytes };
            let rule = Rule { min_bytes: range.min_bytes, max_bytes, algorithm, fanout: 0, segment: 0 };
            match routines.last_mut() {
                Some((last, communicators)) if *last == routine => {
                    communicators.iter_mut().for_each(|communicator| communicator.rules.push(rule));
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
        comments.push(format!("communicators of more than {} ranks use these rules too", plan.ranks));
        Self { rules: Rules { comments, routines }, dropped }
    }
}

/// Returns algorithm 0, with which Open MPI uses its own decision, for sizes outside the planned ones; `None` if Open
/// MPI has no such collective.
fn library_default(range: &SavedRange) -> Option<(Routine, u32)> {
    Routine::from_collective(range.collective).map(|routine| (routine, 0))
}

/// Returns Open MPI's number of a strategy's algorithm. If several algorithms have an equal schedule, the one that Open
/// MPI uses by default is preferred, then the first.
fn algorithm(row: &SavedRow, pick: &SavedPick) -> Result<(Routine, u32), String> {
    let Some(routine) = Routine::from_collective(row.collective) else {
        return Err("the rules cannot select this collective by size".to_owned());
    };
    let default_algorithm = row.library_default.as_ref().filter(|default| default.algorithm == pick.algorithm);
    let default_algorithm = default_algorithm.and_then(|default| default.name.as_deref());
    let default_algorithm =
        routine.modelled_algorithms().find(|(_, algorithm)| Some(algorithm.name()) == default_algorithm);
    let equivalent = routine
        .modelled_algorithms()
        .find(|&(_, algorithm)| mpi::equivalent_schedule(algorithm, row.collective) == Some(pick.algorithm));
    let known = default_algorithm.or(equivalent).filter(|_| pick.protocol == mpi::PROTOCOL && pick.channels == 1);
    known.map(|(number, _)| (routine, number)).ok_or_else(|| "no algorithm of Open MPI's".to_owned())
}
