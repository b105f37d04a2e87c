//! Incumbents of a search: the best simulated strategies of all, and of those that the library can run, whose settings
//! the plan advises on. A candidate is simulated if it may be selected in either set.

use fabricast_libraries::Chooser;
use fabricast_sim::schedule::Call;
use fabricast_topologies::Picos;

use super::simulated_candidates::SimulatedCandidates;
use super::{PlanRequest, TimedStrategy};
use crate::candidates::Restriction;
use fabricast_collectives::strategy::Strategy;

/// Strategies of a call that the library of a request can be configured to run.
pub(super) struct LibraryStrategies<'a> {
    chooser: &'a Chooser,
    restriction: Restriction,
    call: Call,
}

impl<'a> LibraryStrategies<'a> {
    /// `None` if the request has no library.
    pub(super) fn new(request: &PlanRequest<'a>, call: Call) -> Option<Self> {
        let chooser = request.library?;
        let restriction = Restriction { library: Some(chooser.capabilities()), ..request.restriction.clone() };
        Some(Self { chooser, restriction, call })
    }

    /// Returns true if the library has the kernel of a strategy, and can use as many channels.
    pub(super) fn includes(&self, strategy: &Strategy) -> bool {
        self.restriction.allows(strategy, self.call.collective) && self.chooser.can_use_channels(&self.call, strategy)
    }
}

/// Simulated strategies of a search, and the pruning rules that follow from them.
pub(super) struct Incumbents<'a> {
    pub all: SimulatedCandidates,
    /// Those of `all` that the library can run; empty without a library.
    of_library: SimulatedCandidates,
    library: Option<LibraryStrategies<'a>>,
}

impl<'a> Incumbents<'a> {
    pub(super) fn new(library: Option<LibraryStrategies<'a>>) -> Self {
        Self { all: SimulatedCandidates::default(), of_library: SimulatedCandidates::default(), library }
    }

    pub(super) fn insert(&mut self, timed: TimedStrategy) {
        if self.is_of_library(&timed.strategy) {
            self.of_library.insert(timed);
        }
        self.all.insert(timed);
    }

    /// Returns the best strategy of the library for each algorithm and protocol, fastest first.
    pub(super) fn library_pairs(&self) -> Vec<TimedStrategy> {
        self.of_library.best_per_pair()
    }

    /// Returns true if a strategy with this lower bound could still be selected or become the runner-up, or be the best
    /// of the library.
    pub(super) fn may_be_selected(&self, lower_bound: Picos, strategy: Strategy) -> bool {
        self.time_limit(strategy).is_none_or(|limit| lower_bound <= limit)
    }

    /// Longest time with which a strategy can still be selected, become the runner-up, be the best of the library, or be
    /// preferred to one of these with the same algorithm and protocol.
    pub(super) fn time_limit(&self, strategy: Strategy) -> Option<Picos> {
        let limit = self.all.time_limit(strategy)?;
        let of_library = self.is_of_library(&strategy).then(|| self.of_library.best_time_limit());
        Some(limit.max(of_library.flatten().unwrap_or_default()))
    }

    /// Returns true if strategies with fewer channels are preferred to this one wherever it may be selected.
    pub(super) fn is_dominated_by_fewer_channels(&self, lower_bound: Picos, strategy: Strategy) -> bool {
        let is_dominated = |set: &SimulatedCandidates| set.is_dominated_by_fewer_channels(lower_bound, strategy);
        is_dominated(&self.all) && (!self.is_of_library(&strategy) || is_dominated(&self.of_library))
    }

    /// Finds a pruned strategy with fewer channels that may be preferred to a selected one. Returns its index in
    /// `pruned` and the time limit of its simulation.
    pub(super) fn find_preferable_pruned(&self, pruned: &[(Picos, Strategy)]) -> Option<(usize, Picos)> {
        let of_library = || self.of_library.find_preferable_pruned(pruned, 1, |strategy| self.is_of_library(strategy));
        self.all.find_preferable_pruned(pruned, 2, |_| true).or_else(of_library)
    }

    fn is_of_library(&self, strategy: &Strategy) -> bool {
        self.library.as_ref().is_some_and(|library| library.includes(strategy))
    }
}
