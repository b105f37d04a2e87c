//! Traversal of a ring, shared by the ring and hierarchical algorithms.
//!
//! In every loop each rank makes the same number of *steps*; at step t it forwards to its successor the data that it
//! received from its predecessor at step t − 1. Loops of a lane are sequential: a rank starts a loop once it has
//! received everything of the previous one, as an NCCL thread block does.

use fabricast_sim::schedule::{Buffer, Dependency, OpKind, Program, Rank, Walk};

use super::cut::Chunking;
use super::lane::Lane;

/// Consecutive steps that move data in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingPhase {
    pub(super) kind: OpKind,
    pub(super) src: Buffer,
    pub(super) dst: Buffer,
    pub(super) steps: u32,
}

/// Merges adjacent stages that differ only in their number of steps, and drops empty stages.
pub(super) fn merge_stages(stages: &[RingPhase]) -> Vec<RingPhase> {
    let mut joined: Vec<RingPhase> = Vec::with_capacity(stages.len());
    for stage in stages.iter().filter(|stage| stage.steps > 0) {
        match joined.last_mut() {
            Some(last) if (RingPhase { steps: stage.steps, ..*last }) == *stage => last.steps += stage.steps,
            _ => joined.push(*stage),
        }
    }
    joined
}

/// Traversal of a ring by one rank on one lane.
pub(super) struct RingTraversal<'a> {
    pub(super) stages: &'a [RingPhase],
    pub(super) cut: &'a Chunking,
    pub(super) lane: u32,
    /// Number of this lane's first run, equal on all ranks.
    pub(super) first_run: u32,
    pub(super) at: Lane,
    pub(super) next: u32,
    pub(super) previous: u32,
}

impl RingTraversal<'_> {
    /// Number of steps in one loop.
    pub(super) fn steps(stages: &[RingPhase]) -> u32 {
        stages.iter().map(|stage| stage.steps).sum()
    }

    /// Returns the number of runs of the lane that [`Self::write`] writes for a walk.
    pub(super) fn runs(&self, walk: Option<Walk>) -> u32 {
        let by_loop = (self.stages.len() as u32).saturating_mul(self.cut.loops);
        let by_step = Self::steps(self.stages);
        if walk.is_some() { by_loop.min(by_step) } else { by_step }
    }

    /// Writes the runs of the lane. `part` returns the part of the buffer that the rank forwards at each step; `walk`
    /// is the equivalent walk, if there is one.
    pub(super) fn write(&self, program: &mut Program, part: impl Fn(u32) -> u32, walk: Option<Walk>) {
        let by_loop = (self.stages.len() as u32).saturating_mul(self.cut.loops);
        match walk {
            Some(walk) if by_loop <= Self::steps(self.stages) => self.write_by_loop(program, walk),
            _ => self.write_by_step(program, part),
        }
    }

    fn write_by_loop(&self, program: &mut Program, parts: Walk) {
        let mut number = self.first_run;
        let last = self.stages.last().map_or(0, |stage| stage.steps);
        for round in 0..self.cut.loops {
            let mut before: Option<u32> = None;
            let mut parts = parts;
            for stage in self.stages {
                let chunks = self.cut.over_parts(parts, round, self.lane);
                let run = self.at.transfer(
                    stage.kind,
                    stage.steps,
                    Walk::fixed(self.next),
                    (stage.src, chunks),
                    (stage.dst, chunks),
                );
                let previous = Rank(self.previous);
                let within = Dependency::shifted(previous, number, -1);
                match before {
                    // The first step of a stage continues from the last step of the previous stage.
                    Some(steps) => {
                        let start = steps as i32 - 1;
                        program.push(run, &[within, Dependency { rank: previous, run: number - 1, start, step: 1 }]);
                    }
                    None if round > 0 => {
                        let start = last as i32 - 1;
                        let received = Dependency { rank: previous, run: number - 1, start, step: 1 };
                        program.push(run, &[within, received]);
                    }
                    None => {
                        program.push(run, &[within]);
                    }
                }
                before = Some(stage.steps);
                parts = parts.advanced(stage.steps);
                number += 1;
            }
        }
    }

    fn write_by_step(&self, program: &mut Program, part: impl Fn(u32) -> u32) {
        let steps = Self::steps(self.stages);
        let mut step = 0;
        for stage in self.stages {
            for _ in 0..stage.steps {
                let chunks = self.cut.over_loops(part(step), self.lane);
                let run = self.at.transfer(
                    stage.kind,
                    self.cut.loops,
                    Walk::fixed(self.next),
                    (stage.src, chunks),
                    (stage.dst, chunks),
                );
                let dependency = if step > 0 {
                    Dependency::shifted(Rank(self.previous), self.first_run + step - 1, 0)
                } else {
                    Dependency::shifted(Rank(self.previous), self.first_run + steps - 1, -1)
                };
                program.push(run, &[dependency]);
                step += 1;
            }
        }
    }
}
