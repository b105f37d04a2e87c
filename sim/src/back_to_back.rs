//! Time per call in a sequence of back-to-back calls, as benchmarks measure it: total time divided by the number of
//! calls.
//!
//! If every rank waits for every other, that is the time of the call. If data flow one way (broadcast, reduce, gather,
//! scatter) the time per call is less: ranks near the source finish early and begin the next call while the last ranks
//! of the chain or tree still work on this one. A rank begins a call when it has finished the one before; it does not
//! wait for data that its kernel has passed to a link. The result is the time by which all ranks' ends advance from
//! call to call: the largest of the ranks' own times, as in a pipeline (the eigenvalue of a max-plus system; F.
//! Baccelli, G. Cohen, G. J. Olsder, J.-P. Quadrat, "Synchronization and Linearity", 1992, chapter 3).
//!
//! A rank that only receives is assumed to keep pace: the cost of receiving is counted with the send. The distance by
//! which ranks may run ahead (the buffers between them) is not limited.
//!
//! In a send_recv each rank waits for one other rank only ([`send_cycle`]).

mod send_cycle;

use fabricast_topologies::Picos;

use crate::engine::{self, Recording, Watch};
use crate::lower::{self, Environment, LoweredWorkload, ScheduleInstance};
use crate::schedule::{Collective, ScheduleGenerator};
use crate::simulate_error::SimulateError;
use crate::timeline::LaunchMode;

/// Number of simulated calls; the first ones fill the pipeline. A rank behind the slowest one is in step with it from
/// the second call on.
const CALLS: usize = 4;

/// Returns the time per call of back-to-back calls, including launch costs and floors.
///
/// # Errors
/// [`SimulateError`]: ranks without devices or paths, or a deadlock.
pub fn back_to_back_time(
    generator: &dyn ScheduleGenerator,
    setting: Environment<'_>,
    mode: LaunchMode,
) -> Result<Picos, SimulateError> {
    let is_send = generator.header().call.collective == Collective::SendRecv;
    let mut delays = vec![Picos::ZERO; setting.placement.len()];
    let mut step = Picos::ZERO;
    // Only the gap of the last call counts: those before it fill the pipeline.
    for _ in 0..CALLS {
        let lowered = lower::lower(&[ScheduleInstance::new(generator, Environment { delays: &delays, ..setting })])?;
        let watch = Watch { recording: Recording::RunEnds, ..Watch::default() };
        let ends = engine::run(&lowered.workload, watch)?.run_ends;
        let send_ends: Vec<Picos> = (0..delays.len()).map(|rank| sending_end(&lowered, &ends, rank)).collect();
        let gaps = send_ends.iter().zip(&delays).map(|(end, before)| Picos(end.0.saturating_sub(before.0)));
        step = gaps.fold(lowered.workload.startup, Picos::max);
        if is_send {
            step = send_cycle::step(generator, setting, &lowered, &ends, step).unwrap_or(Picos(u64::MAX));
            break;
        }
        delays = send_ends;
    }
    Ok(setting.profile.launch(mode.launch, mode.processes).call_time(step, mode.host_work(generator.header())))
}

/// Returns the time at which a rank has sent its last bytes to a link; 0 if the rank sends nothing.
fn sending_end(lowered: &LoweredWorkload, ends: &[Picos], rank: usize) -> Picos {
    let starts = &lowered.rank_starts;
    let runs = match (starts.get(rank), starts.get(rank + 1)) {
        (Some(&from), Some(&to)) => from..to,
        _ => 0..0,
    };
    let send_ends = runs.filter_map(|run| {
        let last = lowered.workload.runs.get(run as usize)?.len.checked_sub(1)?;
        let end = ends.get(run as usize)?;
        Some(Picos(end.0.saturating_sub(lowered.workload.passage(run, last).latency.0)))
    });
    send_ends.max().unwrap_or_default()
}
