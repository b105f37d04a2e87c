//! Results of a run.

use fabricast_topologies::Picos;

use super::Costs;
use crate::quantity::Rate;
use crate::sharing::RouteId;

/// Times and costs of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Number of the run in the workload.
    pub run: u32,
    /// Index of the operation within the run.
    pub index: u32,
    /// Time at which the operation was ready: its dependencies were done and its rank had started.
    pub ready: Picos,
    /// Time at which the operation's first byte arrived: after its software time, latency, and any wait for earlier
    /// operations of its run or line.
    pub flowing: Picos,
    /// Time at which the operation's last byte arrived.
    pub done: Picos,
    /// Costs of the chain of operations that ends with this one. They add up to `done`.
    pub costs: Costs,
    /// Costs of the chain until the first byte arrived. They add up to `flowing`.
    pub costs_at_first_byte: Costs,
    /// Costs of the chain until the end of the operation's software time. They add up to that time.
    pub costs_after_software: Costs,
}

/// Total rate of all transfers of a route from an instant on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateChange {
    /// Time from which the rate applies.
    pub at: Picos,
    /// Route whose rate changed.
    pub route: RouteId,
    /// Sum of the rates of the route's active transfers.
    pub total: Rate,
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Time at which the last operation ended, background runs excluded.
    pub end: Picos,
    /// Costs of the chain of operations that ended last. They add up to `end`.
    pub costs: Costs,
    /// Number of operations done, including `skipped` ones.
    pub operations: u64,
    /// Number of events that the engine handled.
    pub events: u64,
    /// Number of operations that are done but were not simulated, because they repeat others in a steady state.
    pub skipped: u64,
    /// Time at which the last operation of each run ended (0 for an empty run); empty if not recorded.
    pub run_ends: Vec<Picos>,
    /// Spans of operations, in order of run and index, if recorded.
    pub spans: Vec<Span>,
    /// All changes of routes' rates, in order of time; empty unless spans were recorded.
    pub rates: Vec<RateChange>,
}
