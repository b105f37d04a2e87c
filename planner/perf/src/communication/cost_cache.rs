//! Caches of a communication cost model, keyed by query, so that jobs on the same fabric share results.

use std::sync::Arc;

use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, NodeId, Picos};

use super::cache::Cache;
use super::calls::{CallRequest, CallWithStrategy, SelectedStrategy};
use super::extrapolation::busiest_link::Pattern;
use super::link_sharing::Representatives;
use super::token_exchange::TokenQuery;
use fabricast_collectives::bound::Bounds;
use fabricast_workload::job::GroupShape;

/// Largest group size, in ranks, for which tight bounds are searched.
const MAX_BOUNDED_RANKS: usize = 64;

/// Cache key: a call that all groups of a dimension make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallQuery {
    pub groups: GroupShape,
    pub request: CallRequest,
}

impl CallQuery {
    /// Returns the query with another message size.
    pub(super) fn with_bytes(self, bytes: Bytes) -> Self {
        Self { request: self.request.with_bytes(bytes), ..self }
    }
}

/// Cache key: part of a call with fewer bytes or fewer ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PartKey {
    /// Devices of the first group, in order.
    pub first_group: Vec<NodeId>,
    /// Number of groups that make the call concurrently.
    pub groups: usize,
    pub call: CallWithStrategy,
}

/// Cache key: communication pattern of several groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PatternKey {
    /// Devices of the first group, in order.
    pub first_group: Vec<NodeId>,
    /// Number of groups that communicate concurrently.
    pub groups: usize,
    pub pattern: Pattern,
}

/// Caches of a communication cost model.
#[derive(Default)]
pub(super) struct CostCache {
    /// Selected strategies and times of whole calls.
    pub answers: Cache<CallQuery, SelectedStrategy>,
    /// Strategies of large groups, at the message size at which they were compared.
    pub large_group_picks: Cache<CallQuery, SelectedStrategy>,
    /// Strategies of other groups, at the message size of the call or of its sample.
    pub picks: Cache<CallQuery, SelectedStrategy>,
    /// Completion times of calls with fewer bytes or fewer ranks.
    pub parts: Cache<PartKey, Picos>,
    /// Transfer times of the busiest link between domains, in seconds.
    pub busiest_links: Cache<PatternKey, f64>,
    /// Lower bounds on the completion times of calls whose groups leave their NVLink domain.
    pub lower_bounds: Cache<CallQuery, Picos>,
    /// Completion times of token exchanges by kernels; `None` if the kernel does not run.
    pub token_exchanges: Cache<TokenQuery, Option<Picos>>,
    /// Groups that represent all groups of a call.
    pub representatives: Representatives,
    /// Schedule-independent bounds on the calls of a group, by its devices in order.
    bounds: Cache<Vec<NodeId>, Arc<Bounds>>,
}

impl CostCache {
    /// Returns the schedule-independent bounds on the calls of a group, computed on first use.
    pub(super) fn bounds(&self, router: &Router<'_>, group: &[NodeId]) -> Arc<Bounds> {
        self.bounds.get(group).unwrap_or_else(|| {
            // For large groups, searching the bounds takes longer than simulating the candidates that they would rule
            // out.
            let bounds = if group.len() > MAX_BOUNDED_RANKS { Bounds::from_parts } else { Bounds::new };
            let bounds = Arc::new(bounds(router.fabric(), router, group, 0));
            self.bounds.insert(group.to_vec(), Arc::clone(&bounds));
            bounds
        })
    }
}
