//! What a call takes among others that follow it at once, as benchmarks count: many calls, and their time divided by their
//! number.
//!
//! Where every rank waits for every other that is the time of the call. Where data flow one way (broadcast, reduce, gather,
//! scatter) it is less: the ranks at the near end are through early and begin the next call while those at the far end
//! still work at this one. A rank begins a call when it is through with the one before; what its kernel has handed to a
//! link it does not wait for. The time that all ranks' ends move on by from call to call is the answer: the greatest of
//! the ranks' own times, as of a pipeline's stages (the eigenvalue of a max-plus system; F. Baccelli, G. Cohen, G. J. Olsder,
//! J.-P. Quadrat, "Synchronization and Linearity", 1992, chapter 3).
//!
//! A rank that only receives is taken to keep pace: what receiving costs is counted with the send. How far ranks may run
//! ahead (the buffers between them) is not limited.

use fabricast_topologies::Picos;

use crate::engine::{self, Recording, Watch};
use crate::lower::{self, Lowered, Party, Setting};
use crate::schedule::Generate;
use crate::timeline::{LaunchMode, SimulateError};

/// Calls that are run: the first fill the pipeline. Whoever runs behind the slowest rank is in step with it from the second
/// call on.
const CALLS: usize = 4;

/// The time from call to call, launch costs and floors included.
///
/// # Errors
/// [`SimulateError`]: ranks without devices or paths, a deadlock.
pub fn time_in_a_row(generator: &dyn Generate, setting: Setting<'_>, mode: LaunchMode) -> Result<Picos, SimulateError> {
    let mut through = vec![Picos::ZERO; setting.placement.len()];
    let mut step = Picos::ZERO;
    // The last call's gap counts: those before it fill the pipeline.
    for _ in 0..CALLS {
        let lowered = lower::lower(&[Party { generator, setting: Setting { delays: &through, ..setting } }])?;
        let watch = Watch { recording: Recording::RunEnds, ..Watch::default() };
        let ends = engine::run(&lowered.workload, watch)?.run_ends;
        let now: Vec<Picos> = (0..through.len()).map(|rank| through_with(&lowered, &ends, rank)).collect();
        let gaps = now.iter().zip(&through).map(|(now, before)| Picos(now.0.saturating_sub(before.0)));
        step = gaps.fold(lowered.workload.startup, Picos::max);
        through = now;
    }
    Ok(setting.profile.launch(mode.launch, mode.processes).apply(step, mode.host_work(generator.header())))
}

/// When a rank has handed its last bytes to a link; 0 for one that sends nothing.
fn through_with(lowered: &Lowered, ends: &[Picos], rank: usize) -> Picos {
    let starts = &lowered.rank_starts;
    let runs = match (starts.get(rank), starts.get(rank + 1)) {
        (Some(&from), Some(&to)) => from..to,
        _ => 0..0,
    };
    let handed_over = runs.filter_map(|run| {
        let last = lowered.workload.runs.get(run as usize)?.len.checked_sub(1)?;
        let end = ends.get(run as usize)?;
        Some(Picos(end.0.saturating_sub(lowered.workload.passage(run, last).latency.0)))
    });
    handed_over.max().unwrap_or_default()
}
