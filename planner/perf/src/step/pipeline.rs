//! Pipeline schedule: one-forward-one-backward (1F1B), with or without interleaved model chunks.
//!
//! The order of a stage's passes is that of Megatron-LM (`megatron/core/pipeline_parallel/schedules.py`; Narayanan et
//! al., arXiv 2104.04473, section 2.2): warm-up forward passes, then one forward and one backward pass in turn, then
//! the remaining backward passes. A pass starts when the previous pass of its stage has ended and its activations or
//! gradients have arrived. Bubbles are a result of these dependencies; no formula is used.

use fabricast_topologies::Picos;

use super::gradients::{Buckets, PassWork, ReductionProgress};
use fabricast_workload::job::Overlap;

/// Pass of one micro-batch through one model chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Forward { chunk: usize, micro: usize },
    Backward { chunk: usize, micro: usize },
}

/// Passes and transfers to be scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pipeline {
    /// Forward and backward pass, indexed by stage, then by model chunk.
    pub passes: Vec<Vec<[PassWork; 2]>>,
    /// Number of micro-batches of a stage.
    pub micro: usize,
    /// Time of a point-to-point transfer between adjacent stages.
    pub transfer: Picos,
    /// Setting for the overlap of transfers with the passes of the sending stage.
    pub overlap: Overlap,
    /// Gradient buckets that overlap with the last backward passes; `None` if gradients are reduced after all passes.
    pub buckets: Option<Buckets>,
}

/// Timing of one stage that results from the schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StageTime {
    /// End of the stage's last pass.
    pub end: Picos,
    /// Total time of the stage's passes, slowdown included.
    pub busy: Picos,
    /// Time of transfers during which the stage is idle.
    pub transfer: Picos,
    /// Total slowdown of passes due to gradient reduction.
    pub slowed: Picos,
    /// Gradient reduction that overlaps with the passes.
    pub reduction: ReductionProgress,
}

/// Pass with its start and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimedPass {
    pub stage: usize,
    pub pass: Pass,
    pub begin: Picos,
    /// End of the pass, at which its transfer starts.
    pub end: Picos,
    /// Time from which the stage can run the next pass. If transfers do not overlap, it is after the transfer.
    pub free: Picos,
}

impl Pipeline {
    /// Returns the passes of a stage in execution order.
    fn order(&self, stage: usize) -> Vec<Pass> {
        let (stages, chunks) = (self.passes.len(), self.passes.first().map_or(1, Vec::len).max(1));
        let total = self.micro * chunks;
        let warmup = match chunks {
            1 => stages - stage - 1,
            _ if self.micro == stages => total,
            _ => 2 * (stages - stage - 1) + (chunks - 1) * stages,
        };
        let warmup = warmup.min(total);
        // The passes change to the next model chunk after as many micro-batches as there are stages.
        let position = |k: usize| match chunks {
            1 => (0, k),
            _ => (k % (stages * chunks) / stages, k / (stages * chunks) * stages + k % stages),
        };
        let forward = |k: usize| {
            let (chunk, micro) = position(k);
            Pass::Forward { chunk, micro }
        };
        let backward = |k: usize| {
            let (chunk, micro) = position(k);
            Pass::Backward { chunk: chunks - 1 - chunk, micro }
        };
        let mut order: Vec<Pass> = (0..warmup).map(forward).collect();
        for k in warmup..total {
            order.extend([forward(k), backward(k - warmup)]);
        }
        order.extend((total - warmup..total).map(backward));
        order
    }

    /// Runs the schedule and returns the timing of each stage.
    pub fn run(&self) -> Vec<StageTime> {
        self.run_with(|_| ())
    }

    /// Runs the schedule, and reports each pass to `report`; the passes of a stage are reported in execution order. In
    /// all other respects this is [`Self::run`].
    pub fn run_with(&self, mut report: impl FnMut(TimedPass)) -> Vec<StageTime> {
        let (stages, chunks) = (self.passes.len(), self.passes.first().map_or(1, Vec::len).max(1));
        let cell = |stage: usize, chunk: usize, micro: usize| (stage * chunks + chunk) * self.micro + micro;
        let cells = stages * chunks * self.micro;
        let mut forward_ends: Vec<Option<Picos>> = vec![None; cells];
        let mut backward_ends: Vec<Option<Picos>> = vec![None; cells];
        let orders: Vec<Vec<Pass>> = (0..stages).map(|stage| self.order(stage)).collect();
        let mut next = vec![0usize; stages];
        let mut times = vec![StageTime::default(); stages];
        let end_at = |ends: &[Option<Picos>], at: usize| ends.get(at).copied().flatten();
        let mut progressed = true;
        while progressed {
            progressed = false;
            for (stage, ((order, next), time)) in orders.iter().zip(&mut next).zip(&mut times).enumerate() {
                while let Some(&pass) = order.get(*next) {
                    // Time at which the inputs of the pass are available, including transfers from other stages.
                    let ready = match pass {
                        Pass::Forward { chunk: 0, .. } if stage == 0 => Some(Picos::ZERO),
                        Pass::Forward { chunk, micro } => {
                            let from = if stage > 0 {
                                cell(stage - 1, chunk, micro)
                            } else {
                                cell(stages - 1, chunk - 1, micro)
                            };
                            end_at(&forward_ends, from).map(|end| end + self.transfer)
                        }
                        Pass::Backward { chunk, micro } if stage + 1 == stages && chunk + 1 == chunks => {
                            end_at(&forward_ends, cell(stage, chunk, micro))
                        }
                        Pass::Backward { chunk, micro } => {
                            let from = if stage + 1 < stages {
                                cell(stage + 1, chunk, micro)
                            } else {
                                cell(0, chunk + 1, micro)
                            };
                            end_at(&backward_ends, from).map(|end| end + self.transfer)
                        }
                    };
                    let Some(ready) = ready else { break };
                    let begin = ready.max(time.end);
                    let [forward, backward] = self
                        .passes
                        .get(stage)
                        .and_then(|stage_passes| stage_passes.get(pass.chunk()))
                        .copied()
                        .unwrap_or_default();
                    let has_receiver = self.has_receiver(stage, pass, chunks);
                    let (work, ends) = match pass {
                        Pass::Forward { .. } => (forward, &mut forward_ends),
                        Pass::Backward { .. } => (backward, &mut backward_ends),
                    };
                    let is_last = matches!(pass, Pass::Backward { micro, .. } if micro + 1 == self.micro);
                    let end = match &self.buckets {
                        Some(buckets) if is_last => {
                            time.reduction.last_backward_pass_end(buckets, chunks as u64, begin, work)
                        }
                        Some(buckets) => time.reduction.work_end(buckets, begin, work),
                        None => begin + work.time,
                    };
                    time.slowed += end - begin - work.time;
                    if let Some(slot) = ends.get_mut(cell(stage, pass.chunk(), pass.micro())) {
                        *slot = Some(end);
                    }
                    time.end = end;
                    time.busy += end - begin;
                    if self.overlap == Overlap::Off && has_receiver {
                        time.end += self.transfer;
                        time.transfer += self.transfer;
                    }
                    report(TimedPass { stage, pass, begin, end, free: time.end });
                    *next += 1;
                    progressed = true;
                }
            }
        }
        times
    }

    /// Returns true if another stage waits for the output of a pass.
    fn has_receiver(&self, stage: usize, pass: Pass, chunks: usize) -> bool {
        let last = self.passes.len() - 1;
        last > 0
            && match pass {
                Pass::Forward { chunk, .. } => stage < last || chunk + 1 < chunks,
                Pass::Backward { chunk, .. } => stage > 0 || chunk > 0,
            }
    }
}

impl Pass {
    pub(super) fn chunk(self) -> usize {
        match self {
            Self::Forward { chunk, .. } | Self::Backward { chunk, .. } => chunk,
        }
    }

    pub(super) fn micro(self) -> usize {
        match self {
            Self::Forward { micro, .. } | Self::Backward { micro, .. } => micro,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pipeline(stages: usize, chunks: usize, micro: usize, transfer: u64) -> Pipeline {
        let pass = |time: u64| PassWork { time: Picos(time), links_busy: Picos::ZERO };
        let passes = vec![vec![[pass(100), pass(200)]; chunks]; stages];
        Pipeline { passes, micro, transfer: Picos(transfer), overlap: Overlap::On, buckets: None }
    }

    proptest! {
        /// Closed form of Narayanan et al., sections 2.2.1 and 2.2.2: the bubble is (p − 1)(f + b) / v, where p is the
        /// number of stages, v the number of model chunks per stage, and f and b are the times of all model chunks.
        #[test]
        fn bubble_matches_closed_form(stages in 1usize..9, chunks in 1usize..4, rounds in 2usize..5) {
            prop_assume!(stages > 1 || chunks == 1);
            let micro = stages * rounds;
            let times = pipeline(stages, chunks, micro, 0).run();
            for time in &times {
                prop_assert_eq!(time.busy, Picos(300 * (micro * chunks) as u64));
            }
            let end = times.iter().map(|time| time.end).max().unwrap();
            prop_assert_eq!(end, Picos(300 * (micro * chunks + stages - 1) as u64));
        }

        #[test]
        fn blocking_transfers_are_never_faster(stages in 2usize..6, chunks in 1usize..4, rounds in 1usize..4, transfer in 0u64..150) {
            let overlapped = pipeline(stages, chunks, stages * rounds, transfer);
            let end = |pipeline: &Pipeline| pipeline.run().iter().map(|time| time.end).max().unwrap();
            let blocking = Pipeline { overlap: Overlap::Off, ..overlapped.clone() };
            let slower = Pipeline { transfer: Picos(transfer + 10), ..overlapped.clone() };
            prop_assert!(end(&overlapped) <= end(&blocking) && end(&overlapped) <= end(&slower));
            prop_assert!(end(&overlapped) >= end(&pipeline(stages, chunks, stages * rounds, 0)));
        }
    }
}
