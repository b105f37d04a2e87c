//! Calls of a step done another way than what is picked: what a library would choose by itself, and the step with it.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Fabric, NodeId, Picos};

use super::price::{Exchange, Simulated, Tariff};
use super::slowing::Claim;
use super::together::Planned;
use crate::job::{Dimension, Layout};
use crate::library::Library;
use crate::plan::PlanError;
use crate::strategy::Strategy;

/// What a call takes, and what it holds of its GPUs meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedCall {
    pub exchange: Exchange,
    pub time: Picos,
    pub claim: Claim,
}

/// A tariff that says what it was told; what it was not told of takes no time.
pub(crate) struct Listed(pub Vec<ListedCall>);

impl Listed {
    fn find(&self, exchange: Exchange) -> Option<&ListedCall> {
        self.0.iter().find(|one| one.exchange == exchange)
    }
}

impl Tariff for Listed {
    fn time(&self, _: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        Ok(self.find(exchange).map_or(Picos::ZERO, |one| one.time))
    }

    fn claim(&self, _: &Layout, exchange: Exchange) -> Result<Claim, PlanError> {
        Ok(self.find(exchange).map_or_else(Claim::default, |one| one.claim))
    }
}

impl Simulated<'_> {
    /// The library of the profile.
    pub(super) fn library(&self) -> Library {
        self.profile.library.parse().unwrap_or(Library::NEWEST_NCCL)
    }

    /// The library that jobs keep to, where it does not run on these GPUs, so that they take any strategy.
    #[must_use]
    pub fn library_not_for_these(&self) -> Option<Library> {
        let library = self.library();
        (!library.runs_on(self.router.fabric(), self.ranks)).then_some(library)
    }

    /// The fabric.
    pub(crate) fn fabric(&self) -> &Fabric {
        self.router.fabric()
    }

    /// The group of a dimension that stands for all where strategies are picked.
    pub(crate) fn first_group(
        &self,
        layout: &Layout,
        dimension: Dimension,
        collective: Collective,
    ) -> Option<Vec<NodeId>> {
        self.together(&layout.groups(dimension), collective).into_iter().next()
    }

    /// What a call takes that is done this way, all groups at once.
    pub(crate) fn time_as(&self, layout: &Layout, exchange: Exchange, strategy: Strategy) -> Result<Picos, PlanError> {
        let Exchange { dimension, collective, bytes } = exchange;
        let parties = self.together(&layout.groups(dimension), collective);
        let Some(first) = parties.first() else { return Ok(Picos::ZERO) };
        match self.streamed(&parties, &Planned { collective, bytes, strategy }) {
            Some(time) => time,
            None => {
                self.sample(first, bytes).time(|bytes| self.taken(&parties, &Planned { collective, bytes, strategy }))
            }
        }
    }

    /// A call that takes so long and is done this way.
    pub(crate) fn listed(&self, layout: &Layout, exchange: Exchange, strategy: &Strategy, time: Picos) -> ListedCall {
        ListedCall { exchange, time, claim: self.claim_of(layout, exchange, strategy) }
    }
}
