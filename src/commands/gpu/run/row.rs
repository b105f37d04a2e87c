//! Result of one call on one executor.

use fabricast_sim::profile::Launch;
use fabricast_topologies::Picos;
use fabricast_validate::execute::{ExecuteError, Job, Times};
use fabricast_validate::kernel::{Carrier, GridShape};
pub(super) use fabricast_validate::measured::gpu_run::ExecutorKind;
use fabricast_validate::measured::gpu_run::TimedRow;

/// Predicted time with its prediction interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct PredictedTime {
    pub(super) time: Picos,
    pub(super) low: Picos,
    pub(super) high: Picos,
}

/// Result of one call on one executor.
pub(super) struct RunRow {
    pub(super) job: Job,
    pub(super) executor: ExecutorKind,
    pub(super) carrier: Option<Carrier>,
    pub(super) shape: Option<GridShape>,
    pub(super) times: Option<Times>,
    pub(super) predicted: Option<PredictedTime>,
    pub(super) tried: Vec<(GridShape, Picos)>,
    pub(super) fault: Option<String>,
    /// Number of channels that NCCL was forced to use; `None` if it was not forced.
    forced: Option<u16>,
    call: String,
}

impl RunRow {
    pub(super) fn new(
        job: &Job,
        executor: ExecutorKind,
        carrier: Option<Carrier>,
        shape: Option<GridShape>,
        times: Option<&Times>,
    ) -> Self {
        Self {
            job: job.clone(),
            executor,
            carrier,
            shape,
            times: times.cloned(),
            predicted: None,
            tried: Vec::new(),
            fault: None,
            forced: None,
            call: format!("{:?} {:?} {:?}", job.header.call, job.dtype, job.op),
        }
    }

    /// Description of the call, the executor and the strategy.
    pub(super) fn description(&self) -> String {
        match self.strategy() {
            strategy if strategy.is_empty() => format!("{} by {}", self.job, self.executor.name()),
            strategy => format!("{} by {}, {strategy}", self.job, self.executor.name()),
        }
    }

    pub(super) fn with_forced_channels(self, channels: u16) -> Self {
        Self { forced: Some(channels), ..self }
    }

    pub(super) fn channels(&self) -> u16 {
        self.forced.unwrap_or(self.job.header.channels)
    }

    pub(super) fn with_tried(self, tried: Vec<(GridShape, Picos)>) -> Self {
        Self { tried, ..self }
    }

    pub(super) fn with_fault(self, error: &ExecuteError) -> Self {
        Self { fault: Some(error.to_string()), ..self }
    }

    /// Number of thread blocks per rank: one per channel, or several per channel if the kernel shape has several.
    pub(super) fn blocks(&self) -> u32 {
        u32::from(self.channels()) * self.shape.map_or(1, |shape| shape.split)
    }

    /// Time of a call with a launch mode; `None` if the row was not timed.
    pub(super) fn time(&self, launch: Launch) -> Option<Picos> {
        self.times.as_ref().map(|times| match launch {
            Launch::Graph => times.graph,
            Launch::Stream => times.stream,
        })
    }

    /// Entry for measurement files; `None` if the row was not timed.
    pub(super) fn timed_row(&self) -> Option<TimedRow> {
        let header = &self.job.header;
        let strategy = || (header.name.clone(), header.protocol, self.blocks());
        Some(TimedRow {
            collective: header.call.collective,
            executor: self.executor,
            strategy: self.executor.has_strategy().then(strategy),
            carrier: self.carrier,
            dtype: self.job.dtype,
            bytes: header.call.bytes,
            time: self.times.as_ref()?.graph,
            line: 0,
        })
    }

    /// Key that rows of the same call share.
    pub(super) fn call(&self) -> &str {
        &self.call
    }

    /// Name of the strategy; empty if the executor has none.
    pub(super) fn strategy(&self) -> String {
        let header = &self.job.header;
        if self.executor.has_strategy() {
            format!("{} {} × {}", header.name, header.protocol, self.channels())
        } else {
            String::new()
        }
    }
}
