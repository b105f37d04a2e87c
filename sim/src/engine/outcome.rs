//! Results of a run.

use fabricast_topologies::Picos;

use super::Costs;
use crate::quantity::Rate;
use crate::sharing::RouteId;

/// Times and costs of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The run.
    pub run: u32,
    /// The operation within the run.
    pub index: u32,
    /// When its dependencies were done.
    pub ready: Picos,
    /// When its first byte arrived (after software time and latency).
    pub flowing: Picos,
    /// When its last byte arrived.
    pub done: Picos,
    /// Costs of the chain of operations that ends with this one; adds up to `done`.
    pub costs: Costs,
    /// Costs of the chain until the first byte arrived; adds up to `flowing`.
    pub costs_at_first_byte: Costs,
    /// Costs of the chain until the end of its software time.
    pub costs_after_software: Costs,
}

/// Total rate of all transfers of a route from an instant on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateChange {
    /// Start of the rate.
    pub at: Picos,
    /// The route.
    pub route: RouteId,
    /// Sum of its transfers' rates.
    pub total: Rate,
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// End of the last operation.
    pub end: Picos,
    /// Costs of the chain of operations that ended last.
    pub costs: Costs,
    /// Operations done.
    pub operations: u64,
    /// Events handled.
    pub events: u64,
    /// Operations done that were not simulated, since they repeat others in a steady state.
    pub skipped: u64,
    /// End of the last operation of each run (0 for an empty run), if recorded.
    pub run_ends: Vec<Picos>,
    /// Spans of operations, in order of run and index, if recorded.
    pub spans: Vec<Span>,
    /// All changes of routes' rates, in order of time, if spans were recorded.
    pub rates: Vec<RateChange>,
}
