//! Completion times of the calls of a step.

use fabricast_topologies::{Bytes, Picos};
use rayon::prelude::*;

use super::expert_overlap::ExpertExchanges;
use super::gradient_buckets::buckets;
use super::interference::OverlappedCall;
use crate::communication::{CommunicationCostModel, Exchange, SmUsage};
use crate::time::scaled;
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{Dimension, ExpertCall, GroupCall, Layout, Phase, Training};

/// Calls of a step, with the cost model that times them.
pub(super) struct CallCosts<'a> {
    pub calls: &'a [GroupCall],
    /// Dispatches and combines by kernels of libraries.
    pub experts: &'a [ExpertCall],
    pub layout: &'a Layout,
    pub collective_costs: &'a dyn CommunicationCostModel,
}

impl CallCosts<'_> {
    /// Total time of the calls of a phase in sequence, for one dimension; `None`: for all dimensions.
    pub(super) fn phase_time(&self, phase: Phase, dimension: Option<Dimension>) -> Result<Picos, PlanError> {
        self.phase_calls(phase, dimension).map(|call| Ok(scaled(self.time(call, call.bytes)?, call.count))).sum()
    }

    /// Total time of a phase's calls in sequence, and the slowdown of the kernels that they overlap with.
    /// `overlap_call` computes both for one call from its time and SM usage.
    pub(super) fn overlapped(
        &self,
        phase: Phase,
        dimension: Option<Dimension>,
        overlap_call: impl Fn(Picos, SmUsage) -> OverlappedCall,
    ) -> Result<OverlappedCall, PlanError> {
        self.phase_calls(phase, dimension).try_fold(OverlappedCall::default(), |sum, call| {
            let overlapped_call = overlap_call(self.time(call, call.bytes)?, self.sm_usage(call, call.bytes)?);
            Ok(sum.plus(overlapped_call.times(call.count)))
        })
    }

    /// Dispatch and combine of a phase, by collectives or by kernels of libraries. `overlap_call` computes the slowdown of
    /// the kernels that overlap with a call from its time and SM usage.
    pub(super) fn experts(
        &self,
        phase: Phase,
        overlap_call: impl Fn(Picos, SmUsage) -> OverlappedCall,
    ) -> Result<ExpertExchanges, PlanError> {
        let mut calls = Vec::new();
        for call in self.phase_calls(phase, Some(Dimension::Expert)) {
            let (time, sm_usage) = (self.time(call, call.bytes)?, self.sm_usage(call, call.bytes)?);
            calls.push(overlap_call(time, sm_usage).times(call.count));
        }
        for call in self.experts.iter().filter(|call| call.phase == phase) {
            let time = self.collective_costs.token_exchange_time(self.layout, &call.exchange)?;
            let sm_usage = self.collective_costs.token_exchange_sm_usage(self.layout, &call.exchange)?;
            calls.push(overlap_call(time, sm_usage).times(call.count));
        }
        Ok(ExpertExchanges::from_calls(&calls))
    }

    /// Returns true if calls of two dimensions use the same links when they run concurrently.
    pub(super) fn share_links(&self, one: Dimension, other: Dimension) -> bool {
        self.layout.size(one) > 1
            && self.layout.size(other) > 1
            && self.collective_costs.share_links(self.layout, one, other)
    }

    /// Returns the dimensions of calls within a layer's passes that use links of some other dimensions' calls.
    pub(super) fn layer_dimensions_that_share_links(&self, others: &[Dimension]) -> Vec<Dimension> {
        let layer_dimensions = [Dimension::Tensor, Dimension::Context, Dimension::Expert].into_iter();
        layer_dimensions.filter(|&one| others.iter().any(|&other| self.share_links(one, other))).collect()
    }

    /// Returns the dimensions of the calls of a phase.
    pub(super) fn phase_dimensions(&self, phase: Phase) -> Vec<Dimension> {
        self.phase_calls(phase, None).map(|call| call.dimension).collect()
    }

    /// Returns the calls of a phase by the groups of one dimension; `None`: of all dimensions.
    pub(super) fn phase_calls(&self, phase: Phase, dimension: Option<Dimension>) -> impl Iterator<Item = &GroupCall> {
        let is_in_phase =
            move |call: &&GroupCall| call.phase == phase && dimension.is_none_or(|one| one == call.dimension);
        self.calls.iter().filter(is_in_phase)
    }

    /// Computes all call times in parallel, to fill the cache of the cost model. Errors are ignored here and reported
    /// by the later queries.
    pub(super) fn fill_cache(&self, job: &Training) {
        // Deduplicate: both passes make equal calls, which two threads would otherwise both compute.
        let mut queries: Vec<Exchange> = Vec::with_capacity(self.calls.len());
        for call in self.calls {
            let bytes = if call.phase == Phase::Gradients { buckets(job, self.layout, call).1 } else { call.bytes };
            let exchange = Exchange::new(call, bytes);
            if !queries.contains(&exchange) {
                queries.push(exchange);
            }
        }
        queries
            .par_iter()
            .with_max_len(1)
            .for_each(|&exchange| drop(self.collective_costs.time(self.layout, exchange)));
        self.experts
            .par_iter()
            .with_max_len(1)
            .for_each(|call| drop(self.collective_costs.token_exchange_time(self.layout, &call.exchange)));
    }

    pub(super) fn time(&self, call: &GroupCall, bytes: Bytes) -> Result<Picos, PlanError> {
        self.collective_costs.time(self.layout, Exchange::new(call, bytes))
    }

    pub(super) fn sm_usage(&self, call: &GroupCall, bytes: Bytes) -> Result<SmUsage, PlanError> {
        self.collective_costs.sm_usage(self.layout, Exchange::new(call, bytes))
    }
}
