//! Time of an inference step, from its kernels and collectives.

use fabricast_topologies::{Bytes, Picos};
use rayon::prelude::*;

use super::adapters::mean_swap_wait;
use super::attention_context::AttentionContext;
use super::custom_all_reduce::custom_all_reduce_time;
use super::kernels::{AttentionKernel, Work, embedding, layer, logits};
use super::steady_state::{SteadyBatch, StepTokens};
use super::stream_step::{StreamStep, TimeShares};
use super::traffic::{expert_calls, traffic};
use crate::communication::{CommunicationCostModel, Exchange, replaced_dispatch};
use crate::step::{
    Efficiency, ExpertExchanges, Kernel, LayerCompute, OverlapCost, OverlappedCall, PeakRates, half_batch_cost,
};
use crate::time::{scaled, share};
use fabricast_search::plan::PlanError;
use fabricast_sim::schedule::Collective;
use fabricast_workload::job::{
    Degrees, Dimension, DraftMethod, ExpertCall, ExpertOverlap, GroupCall, Layout, LoadedServing, Phase, Serving,
    Speculation, TensorAllReduce,
};

/// Cost models from which the time of an inference step is computed.
#[derive(Clone, Copy)]
pub struct StepCosts<'a> {
    /// Peak compute and memory rates of the GPU.
    pub speeds: &'a PeakRates,
    /// Efficiency of kernels, relative to the peak rates.
    pub curve: &'a Efficiency,
    /// Cost model of collectives.
    pub collective_costs: &'a dyn CommunicationCostModel,
}

/// Returns true if the exchanges of one half of a step's tokens overlap with the computation of the other.
pub(super) fn overlaps_halves(job: &Serving, layout: &Layout, mix: &StepTokens) -> bool {
    job.dispatch.overlap == ExpertOverlap::TwoBatches && mix.tokens() >= 2.0 && layout.degrees.expert > 1
}

/// Times of a layer's kernels and calls, each alone.
#[derive(Clone, Copy, Debug, Default)]
struct LayerParts {
    compute: LayerCompute,
    tensor: Picos,
    exchanges: ExpertExchanges,
}

impl StepCosts<'_> {
    /// Simulates a step with prefill and one without. `streams`: number of concurrent batches of a replica.
    pub(super) fn simulate_steps(
        &self,
        job: &LoadedServing<'_>,
        layout: &Layout,
        batch: &SteadyBatch,
        streams: f64,
    ) -> Result<[StreamStep; 2], PlanError> {
        let context = AttentionContext::in_steady_state(job, batch.chunks);
        let mixes = [batch.with_prefill, batch.without_prefill];
        let steps: Vec<Result<StreamStep, PlanError>> =
            mixes.par_iter().with_max_len(1).map(|mix| self.step(job, layout, mix, &context, streams)).collect();
        Ok(<[StreamStep; 2]>::try_from(steps.into_iter().collect::<Result<Vec<_>, _>>()?).unwrap_or_default())
    }

    /// Simulates one step of a stream with the tokens `mix`. `streams`: concurrent batches of a replica.
    pub(super) fn step(
        &self,
        job: &LoadedServing<'_>,
        layout: &Layout,
        mix: &StepTokens,
        context: &AttentionContext,
        streams: f64,
    ) -> Result<StreamStep, PlanError> {
        if mix.is_empty() {
            return Ok(StreamStep::default());
        }
        // An all_to_all replaces a dispatcher whose kernels do not run on the machine.
        let replaced = replaced_dispatch(job.dispatch, &expert_calls(job, layout, mix), layout, self.collective_costs);
        let replaced = replaced.map(|dispatch| Serving { dispatch, ..job.job.clone() });
        let job = &LoadedServing { job: replaced.as_ref().unwrap_or(job.job), ..*job };
        let calls = traffic(job, layout, mix);
        let times: Vec<Result<Picos, PlanError>> =
            calls.par_iter().with_max_len(1).map(|call| self.call_time(job, layout, call)).collect();
        let times = times.into_iter().collect::<Result<Vec<Picos>, PlanError>>()?;
        let total = |phase: Phase| -> Picos {
            let matching = calls.iter().zip(&times).filter(|(call, _)| call.phase == phase);
            matching.map(|(call, &time)| scaled(time, call.count)).sum()
        };
        let stages = u64::from(layout.degrees.pipeline);
        let draft = self.draft(job, layout, mix, context)?;
        let device = self.layer_shares(job, layout, mix, context)?;
        // A layer takes at least the time to launch its kernels. Steps without prefill are one CUDA graph, small ones with
        // prefill may have a graph for each piece of a layer.
        // Two overlapped halves of a batch are launched one after the other.
        let launches = if overlaps_halves(job, layout, mix) { 2 } else { 1 };
        let times = if self.collective_costs.has_amd_gpus() { job.host.on_amd() } else { job.host };
        let host = if mix.prefill > 0.0 { scaled(times.prefill_layer(mix.tokens()), launches) } else { Picos::ZERO };
        Ok(StreamStep {
            // (A negative difference of times is 0.)
            layer: TimeShares { launch: host - device.time(), ..device },
            layer_launch: host,
            host_time: job.host.step + mean_swap_wait(job, layout, mix, self.speeds, self.curve),
            requests_host_time: share(job.host.step_request, mix.decode + mix.chunks),
            first: (self.work(&embedding(job, mix)), total(Phase::Embedding)),
            last: (self.work(&logits(job, layout, mix)) + draft.compute, total(Phase::Logits) + draft.tensor),
            pipeline_transfer: if stages > 1 { total(Phase::PipelineTransfer) } else { Picos::ZERO },
            stages,
            layers: job.model.layers,
            streams,
        })
    }

    /// Time to propose the tokens that the next step verifies: a layer and the logits for each step of the draft, on the
    /// last pipeline stage. Layers of a drafter are dense unless it is a layer of the model.
    fn draft(
        &self,
        job: &LoadedServing<'_>,
        layout: &Layout,
        mix: &StepTokens,
        context: &AttentionContext,
    ) -> Result<TimeShares, PlanError> {
        let Some(Speculation { method, draft_steps, .. }) = job.speculation.filter(|_| mix.decode > 0.0) else {
            return Ok(TimeShares::default());
        };
        let drafter = match method {
            DraftMethod::Ngram => return Ok(TimeShares::default()),
            DraftMethod::Mtp => None,
            DraftMethod::Eagle => Some(Serving { model: job.model.with_dense_layers(), ..job.job.clone() }),
        };
        let job = &LoadedServing { job: drafter.as_ref().unwrap_or(job.job), ..*job };
        let pass = StepTokens { decode: mix.decode, ..StepTokens::default() };
        let layer = self.layer_shares(job, layout, &pass, context)?;
        let gathers = traffic(job, layout, &pass).into_iter().filter(|call| call.phase == Phase::Logits);
        let gathers: Result<Vec<Picos>, PlanError> =
            gathers.map(|call| Ok(scaled(self.call_time(job, layout, &call)?, call.count))).collect();
        let gathers: Picos = gathers?.into_iter().sum();
        Ok(TimeShares {
            compute: scaled(layer.compute + self.work(&logits(job, layout, &pass)), draft_steps),
            tensor: scaled(layer.tensor + layer.expert + gathers, draft_steps),
            ..TimeShares::default()
        })
    }

    /// Times of a layer. With two overlapped batches, each half of the tokens is computed while the tokens of the other
    /// half are exchanged (`step/expert_overlap`).
    fn layer_shares(
        &self,
        job: &LoadedServing<'_>,
        layout: &Layout,
        mix: &StepTokens,
        context: &AttentionContext,
    ) -> Result<TimeShares, PlanError> {
        match overlaps_halves(job, layout, mix) {
            true => {
                let half = self.layer_parts(job, layout, &mix.times(0.5), context)?;
                let OverlapCost { exposed, slowdown } = half_batch_cost(&half.exchanges, &half.compute);
                Ok(TimeShares {
                    compute: scaled(half.compute.attention + half.compute.experts, 2),
                    tensor: scaled(half.tensor, 2),
                    expert: exposed + slowdown,
                    ..TimeShares::default()
                })
            }
            false => {
                let LayerParts { compute, tensor, exchanges } = self.layer_parts(job, layout, mix, context)?;
                let compute = compute.attention + compute.experts;
                Ok(TimeShares { compute, tensor, expert: exchanges.call(), ..TimeShares::default() })
            }
        }
    }

    fn layer_parts(
        &self,
        job: &LoadedServing<'_>,
        layout: &Layout,
        mix: &StepTokens,
        context: &AttentionContext,
    ) -> Result<LayerParts, PlanError> {
        let (costs, work) = (self.collective_costs, layer(job, layout, mix, context));
        let kernels: Vec<Kernel> =
            work.kernels.iter().copied().chain(work.attention.iter().map(|reading| reading.kernel)).collect();
        let overlapped = |time, sm_usage| OverlappedCall::new(time, sm_usage, &kernels, self.curve, self.speeds);
        let experts: Vec<Kernel> = work.kernels.iter().copied().filter(Kernel::is_of_experts).collect();
        let experts = self.curve.total(&experts, self.speeds) + self.amd_expert_overhead(job);
        let compute = LayerCompute { attention: self.work(&work) + self.amd_expert_overhead(job) - experts, experts };
        let (mut tensor, mut exchanged) = (Picos::ZERO, Vec::new());
        for call in traffic(job, layout, mix).iter().filter(|call| call.phase == Phase::LayerForward) {
            let exchange = Exchange::new(call, call.bytes);
            let time = self.call_time(job, layout, call)?;
            match call.dimension {
                Dimension::Expert => {
                    exchanged.push(overlapped(time, costs.sm_usage(layout, exchange)?).times(call.count));
                }
                _ => tensor += scaled(time, call.count),
            }
        }
        for ExpertCall { exchange, count, .. } in expert_calls(job, layout, mix) {
            let time = costs.token_exchange_time(layout, &exchange)?;
            exchanged.push(overlapped(time, costs.token_exchange_sm_usage(layout, &exchange)?).times(count));
        }
        Ok(LayerParts { compute, tensor, exchanges: ExpertExchanges::from_calls(&exchanged) })
    }

    /// Additional time of the experts of a layer on AMD's GPUs.
    fn amd_expert_overhead(&self, job: &Serving) -> Picos {
        if self.collective_costs.has_amd_gpus() { job.amd_expert_overhead } else { Picos::ZERO }
    }

    /// Computing time of a step on one GPU, as if its memory held the whole model.
    pub(super) fn single_gpu_time(
        &self,
        job: &LoadedServing<'_>,
        mix: &StepTokens,
        context: &AttentionContext,
    ) -> Picos {
        if mix.is_empty() {
            return Picos::ZERO;
        }
        let layout = Layout { degrees: Degrees::default() };
        let local_costs = StepCosts { speeds: &PeakRates { offload_bandwidth: None, ..*self.speeds }, ..*self };
        scaled(local_costs.work(&layer(job, &layout, mix, context)) + self.amd_expert_overhead(job), job.model.layers)
            + local_costs.work(&embedding(job, mix))
            + local_costs.work(&logits(job, &layout, mix))
    }

    /// Time of a call, by the kernel of the serving software where that is faster.
    fn call_time(&self, job: &Serving, layout: &Layout, call: &GroupCall) -> Result<Picos, PlanError> {
        let time = self.collective_costs.time(layout, Exchange::new(call, call.bytes))?;
        let costs = self.collective_costs;
        let is_custom = job.all_reduce == TensorAllReduce::Custom
            && call.dimension == Dimension::Tensor
            && call.collective == Collective::AllReduce;
        let custom = Some(layout.size(call.dimension)).filter(|_| is_custom);
        let custom = custom.and_then(|ranks| custom_all_reduce_time(call.bytes, ranks));
        let faster = custom.filter(|&custom| custom < time && !costs.has_amd_gpus());
        Ok(faster.filter(|_| costs.is_connected_by_nvlink(layout, call.dimension)).unwrap_or(time))
    }

    fn work(&self, work: &Work) -> Picos {
        let attention = work.attention.iter().map(|reading| self.kernel_time(reading));
        self.curve.total(&work.kernels, self.speeds) + attention.sum()
    }

    /// Time of a kernel, including its reads of a KV cache in another memory tier.
    pub(super) fn kernel_time(&self, reading: &AttentionKernel) -> Picos {
        let AttentionKernel { kernel, kv_bytes } = *reading;
        match self.speeds.offload_bandwidth {
            None => {
                let combined = Kernel { bytes: Bytes(kernel.bytes.0 + kv_bytes.0), ..kernel };
                self.curve.time(&combined, self.speeds)
            }
            Some(rate) => self.curve.time(&kernel, self.speeds).max(self.curve.transfer_time(kv_bytes, rate)),
        }
    }
}
