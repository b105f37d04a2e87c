//! Ends that the operations of a run wait for, and the number of operations for which they grow equally.

use super::end_sequence::{EndSequence, Growth, ProgressionPoint};
use super::operation::{Durations, GrowingEnd, OperationTimes};
use super::{ChainEnd, dependencies};
use crate::engine::costs::ChainCosts;
use crate::engine::graph::EdgeRange;
use crate::engine::{Edge, Workload};

/// Operations that those of a run wait for.
pub(super) struct RunInputs {
    /// Dependencies on other runs.
    others: Vec<RunInput>,
    /// Dependencies on earlier operations of the run.
    own: Vec<RunInput>,
    /// True if operations are in turn ([`RunOrder::InTurn`](crate::engine::RunOrder::InTurn)).
    pub(super) is_in_turn: bool,
    /// Start of operations that wait for nothing.
    pub(super) begun: ChainEnd,
}

/// Dependency of a run.
struct RunInput {
    edge: Edge,
    /// Operations of the run that wait by this dependency.
    waiting: EdgeRange,
    /// Position of the last query in the ends of the awaited run.
    hint: usize,
}

impl RunInputs {
    pub(super) fn new(workload: &Workload, run: u32) -> Self {
        let len = workload.runs[run as usize].len;
        let input = |edge: Edge| RunInput { edge, waiting: edge.waiting(len, workload), hint: 0 };
        let waits = workload.run_waits(run);
        let is_own = |edge: &&Edge| edge.run == run && !edge.is_turn();
        let start = workload.startup;
        Self {
            others: dependencies(workload, run).map(input).collect(),
            own: waits.iter().filter(is_own).copied().map(input).collect(),
            is_in_turn: waits.iter().any(|edge| edge.is_turn()),
            begun: ChainEnd { time: start, costs: ChainCosts { software: start, ..ChainCosts::default() } },
        }
    }

    /// Returns the ends that operation `index` waits for, apart from those of the operation before it in turn. `ends`:
    /// ends of all runs; `own`: ends of the run itself.
    pub(super) fn points<'a>(
        &'a mut self,
        ends: &'a [EndSequence],
        own: &'a EndSequence,
        index: u32,
    ) -> impl Iterator<Item = ProgressionPoint> + 'a {
        let others = self.others.iter_mut().map(|input| (&ends[input.edge.run as usize], input));
        let all = others.chain(self.own.iter_mut().map(move |input| (own, input)));
        all.filter_map(move |(ends, input)| input.point(ends, index))
    }

    /// Returns the number of operations after `index` whose times grow by `growth` each, if their properties are equal.
    /// `previous`: times of the operation before `index`, from which those of `index` have grown by `growth`.
    pub(super) fn steady_steps(
        &mut self,
        ends: &[EndSequence],
        own: &EndSequence,
        index: u32,
        durations: &Durations,
        previous: OperationTimes<ChainEnd>,
        growth: OperationTimes<Growth>,
    ) -> u32 {
        let mut steps = u32::MAX;
        let inputs = self.others.iter_mut().map(|input| (&ends[input.edge.run as usize], input));
        let inputs = inputs.chain(self.own.iter_mut().map(|input| (own, input)));
        let growing: Vec<GrowingEnd> =
            inputs.filter_map(|(ends, input)| input.growing_end(ends, index, &mut steps)).collect();
        let previous = Some(previous.with_growth(&growth)).filter(|_| self.is_in_turn);
        let begun = GrowingEnd { end: self.begun, growth: Growth::ZERO };
        let times = OperationTimes::new(durations, growing.into_iter(), previous, begun, &mut steps);
        let grows = times.is_some_and(|times| {
            [times.prepared.growth, times.free.growth, times.end.growth] == [growth.prepared, growth.free, growth.end]
        });
        if grows { steps } else { 0 }
    }
}

impl RunInput {
    fn point(&mut self, ends: &EndSequence, index: u32) -> Option<ProgressionPoint> {
        ends.point(self.edge.target(index, ends.len())?, &mut self.hint)
    }

    /// Returns the end that operation `index` waits for, with its growth; `None` if there is none. `steps` is lowered to
    /// the number of further operations whose awaited ends grow equally.
    fn growing_end(&mut self, ends: &EndSequence, index: u32, steps: &mut u32) -> Option<GrowingEnd> {
        let EdgeRange { start, end } = self.waiting;
        if !self.waiting.contains(&index) {
            *steps = (*steps).min(if index < start { start - 1 - index } else { u32::MAX });
            return None;
        }
        *steps = (*steps).min(end - 1 - index);
        let ProgressionPoint { end, growth, further } = self.point(ends, index)?;
        let step = self.edge.index_step();
        if let Some(further) = further.filter(|_| step > 0) {
            *steps = (*steps).min(further / step);
        }
        Some(GrowingEnd { end, growth: growth.times(step) })
    }
}
