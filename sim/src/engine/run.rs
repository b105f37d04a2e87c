//! Choice of the method that simulates a workload. All methods give the same times and costs to the picosecond.

use fabricast_topologies::Picos;

use super::lines::LineStates;
use super::steady_state::SteadyState;
use super::{Engine, EngineError, Outcome, Recording, Starts, SteadyStates, Watch, Workload, contention_free, streams};

/// Number of operations per event after which the search for a steady state ends in workloads of streams ([`streams`]),
/// which are simulated with fewer events. The search then needed a fraction of the time of the simulation.
const OPERATIONS_PER_SEARCH_EVENT: u64 = 4;

/// Runs a workload to completion.
///
/// # Errors
/// [`EngineError`]: too many operations, a deadlock, an operation of over 213 days, an interrupt, a missed deadline.
///
/// # Complexity
/// Two events per operation. Rates are solved for the connected part of the system that changed. A transfer that shares
/// no capacity needs no solution.
pub fn run(workload: &Workload, watch: Watch<'_>) -> Result<Outcome, EngineError> {
    match workload.operation_count() {
        operations if operations > Workload::MAX_OPERATIONS => Err(EngineError::TooManyOperations { operations }),
        _ if workload.line_count() > 0 && workload.paces.iter().any(|pace| pace.delay > Picos::ZERO) => {
            let on_time = Watch { recording: Recording::End, until: None, progress: None, ..watch };
            let mut engine = Engine::new(workload, on_time, Starts::OnTime, LineStates::recorded(workload));
            engine.run()?;
            Engine::new(workload, watch, Starts::Given, engine.lines.repeated(workload)).finished()
        }
        _ => {
            if let Some(outcome) = contention_free::outcome(workload, watch)? {
                return Ok(outcome);
            }
            let are_streams = streams::are_streams(workload, watch);
            if !are_streams || SteadyState::is_possible(workload, watch) {
                let mut engine =
                    Engine::new(workload, watch, Starts::Given, LineStates::first_come_first_served(workload));
                engine.stops_without_skip_at =
                    are_streams.then(|| workload.operation_count() / OPERATIONS_PER_SEARCH_EVENT);
                match engine.run() {
                    Ok(()) if engine.is_stopped => {}
                    Ok(()) => return Ok(engine.outcome),
                    // Steps that were skipped hide the operation that cannot proceed; a run of all operations identifies
                    // it.
                    Err(EngineError::Deadlock { .. } | EngineError::TooLong { .. }) if engine.outcome.skipped > 0 => {
                        return run(workload, Watch { steady_states: SteadyStates::Simulate, ..watch });
                    }
                    Err(error) => return Err(error),
                }
            }
            match streams::outcome(workload, watch)? {
                Some(outcome) => Ok(outcome),
                None => run(workload, Watch { steady_states: SteadyStates::Simulate, ..watch }),
            }
        }
    }
}

/// Runs a workload to completion without interrupt, progress, deadline or recorded spans.
///
/// # Errors
/// See [`run`].
pub fn run_to_end(workload: &Workload) -> Result<Outcome, EngineError> {
    run(workload, Watch::default())
}
