//! Durations of the passes through a model chunk: kernels, exposed calls, and overlapped communication.

use fabricast_topologies::{Bytes, Picos};

use super::call_costs::CallCosts;
use super::efficiency::Efficiency;
use super::expert_overlap::{LayerCompute, PassExchanges};
use super::host_launch::synchronized_passes;
use super::interference::{OverlapCost, OverlappedCall};
use super::kernel::{Kernel, PassKernels};
use super::kernels::{embedding, fsdp_copy, layer, logits, tensor_parallel_gemms};
use super::peak_rates::PeakRates;
use super::stream_overlap::{GradientStreams, OverlappedLayers};
use super::tensor_overlap::TensorParallelGemms;
use crate::time::scaled;
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{Dimension, Layout, Overlap, Phase, Training, activation_bytes, expert_calls, traffic};

/// Duration of a pass through a model chunk, by share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PassTime {
    pub compute: Picos,
    /// Time by which overlapping calls slow the kernels.
    pub slowed: Picos,
    pub tensor: Picos,
    pub expert: Picos,
    /// Exposed time of context- and data-parallel calls.
    pub context: Picos,
    pub data: Picos,
    /// Time that the pass waits for links which its pipeline transfer needs as well.
    pub transfer: Picos,
    /// Time by which the host launches the pass more slowly than the GPU executes it.
    pub launch: Picos,
    /// Total time of the tensor-, expert-, context- and data-parallel calls, hidden or exposed.
    pub tensor_all: Picos,
    pub expert_all: Picos,
    pub context_all: Picos,
    pub data_all: Picos,
    /// Time during which exchanges of experts use their links: those of the pass, and those that it hides.
    pub expert_links: Picos,
}

impl PassTime {
    /// Time during which calls of these dimensions use their links, except gradients and weights.
    fn links_busy(&self, dimensions: &[Dimension]) -> Picos {
        let time = |dimension: &Dimension| match dimension {
            Dimension::Tensor => self.tensor_all,
            Dimension::Context => self.context_all,
            Dimension::Expert => self.expert_links,
            _ => Picos::ZERO,
        };
        dimensions.iter().map(time).sum()
    }

    /// Variant that lasts at least as long as the links of a pipeline transfer of duration `transfer` are busy with it and
    /// with calls of the pass.
    pub(super) fn with_transfer(self, transfer: Picos, links_busy: Picos) -> Self {
        Self { transfer: (links_busy + transfer) - self.total(), ..self }
    }

    /// Time without the exposed calls of these dimensions.
    fn time_without(&self, dimensions: &[Dimension]) -> Picos {
        let exposed = |dimension: &Dimension| match dimension {
            Dimension::Tensor => self.tensor,
            Dimension::Context => self.context,
            Dimension::Expert => self.expert,
            _ => Picos::ZERO,
        };
        self.total() - dimensions.iter().map(exposed).sum()
    }

    pub(super) fn total(&self) -> Picos {
        self.compute + self.slowed + self.tensor + self.expert + self.context + self.data + self.transfer + self.launch
    }

    pub(super) fn communication(&self) -> Picos {
        self.tensor_all + self.expert_all + self.context_all + self.data_all
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            compute: self.compute + other.compute,
            slowed: self.slowed + other.slowed,
            tensor: self.tensor + other.tensor,
            expert: self.expert + other.expert,
            context: self.context + other.context,
            data: self.data + other.data,
            transfer: self.transfer + other.transfer,
            launch: self.launch + other.launch,
            tensor_all: self.tensor_all + other.tensor_all,
            expert_all: self.expert_all + other.expert_all,
            context_all: self.context_all + other.context_all,
            data_all: self.data_all + other.data_all,
            expert_links: self.expert_links + other.expert_links,
        }
    }

    pub(super) fn times(self, n: u64) -> Self {
        let scale = |time: Picos| scaled(time, n);
        Self {
            compute: scale(self.compute),
            slowed: scale(self.slowed),
            tensor: scale(self.tensor),
            expert: scale(self.expert),
            context: scale(self.context),
            data: scale(self.data),
            transfer: scale(self.transfer),
            launch: scale(self.launch),
            tensor_all: scale(self.tensor_all),
            expert_all: scale(self.expert_all),
            context_all: scale(self.context_all),
            data_all: scale(self.data_all),
            expert_links: scale(self.expert_links),
        }
    }
}

/// Calls of a pass that use the links of some other calls.
#[derive(Clone, Debug)]
pub(super) struct SharingCalls {
    /// Dimensions of such calls among those of layers, except gradients and weights.
    dimensions: Vec<Dimension>,
    /// True if gradients and weights of layers are among them.
    includes_data: bool,
}

impl SharingCalls {
    /// Finds the calls of a pass that use links of other calls, by the dimensions of these.
    pub(super) fn new(call_costs: &CallCosts<'_>, others: &[Dimension]) -> Self {
        let data_phases = [Phase::WeightsForward, Phase::WeightsBackward, Phase::LayerGradients];
        let mut data_dimensions = data_phases.into_iter().flat_map(|phase| call_costs.phase_dimensions(phase));
        let includes_data = data_dimensions.any(|data| others.iter().any(|&other| call_costs.share_links(data, other)));
        Self { dimensions: call_costs.layer_dimensions_that_share_links(others), includes_data }
    }

    /// Returns true if no call of a pass uses the links.
    pub(super) fn is_empty(&self) -> bool {
        self.dimensions.is_empty() && !self.includes_data
    }

    /// Time during which the calls use their links in a pass.
    pub(super) fn links_busy(&self, pass: &PassTime) -> Picos {
        let data = if self.includes_data { pass.data_all } else { Picos::ZERO };
        pass.links_busy(&self.dimensions) + data
    }
}

/// Times of the forward and the backward pass, by stage, then by model chunk.
pub(super) struct StagePasses {
    pub times: Vec<Vec<[PassTime; 2]>>,
}

/// Times of layers with the same recomputation setting: of one layer in each pass, and of the communication that
/// overlaps with it.
struct LayerTime {
    each: [PassTime; 2],
    overlapped: [OverlappedLayers; 2],
}

impl LayerTime {
    /// Computes the times of a layer from its kernels and calls.
    fn new(
        job: &Training,
        layer: &PassKernels,
        speeds: &PeakRates,
        curve: &Efficiency,
        call_costs: &CallCosts<'_>,
    ) -> Result<Self, PlanError> {
        let layout = call_costs.layout;
        let mut each = [PassTime::default(); 2];
        // Weights and gradients overlap with everything in a pass.
        let mut overlapped = [OverlappedLayers::default(); 2];
        let tensor_costs = tensor_costs(job, layer, speeds, curve, call_costs)?;
        let exchanges = pass_exchanges(layer, speeds, curve, call_costs, tensor_costs)?;
        let pass_costs = match job.overlaps_experts(layout) {
            true => exchanges.overlapped_costs(),
            false => exchanges.exposed_costs(),
        };
        let expert_costs = exchanges.exchanges.into_iter().zip(pass_costs);
        for (((pass_time, overlapped), ((exchanges, expert_cost), tensor_cost)), (phase, kernels, overlapped_phases)) in
            each.iter_mut().zip(&mut overlapped).zip(expert_costs.zip(tensor_costs)).zip([
                (Phase::LayerForward, &layer.forward, &[Phase::WeightsForward][..]),
                (Phase::LayerBackward, &layer.backward, &[Phase::WeightsBackward, Phase::LayerGradients]),
            ])
        {
            let overlapped_calls = || {
                overlapped_phases.iter().flat_map(|&overlapped_phase| call_costs.phase_calls(overlapped_phase, None))
            };
            let copies = overlapped_calls().filter_map(|call| fsdp_copy(job, call));
            let kernels: &[Kernel] = &kernels.iter().copied().chain(copies).collect::<Vec<_>>();
            pass_time.compute = curve.total(kernels, speeds);
            (pass_time.tensor, pass_time.tensor_all) = (tensor_cost.overlap.exposed, tensor_cost.all);
            (pass_time.expert, pass_time.expert_all) = (expert_cost.exposed, exchanges.call());
            pass_time.expert_links = expert_cost.links_busy;
            let context = call_costs.overlapped(phase, Some(Dimension::Context), |time, sm_usage| {
                OverlappedCall::new(time, sm_usage, kernels, curve, speeds)
            })?;
            pass_time.context_all = context.call;
            // Kernels that hide other calls on the same links hide no keys and values.
            let hidden_exchanges =
                HiddenCalls { time: expert_cost.links_busy - expert_cost.exposed, slowdown: expert_cost.slowdown };
            let context_kernels = pass_time.compute
                - hidden_exchanges.kernels(call_costs, Dimension::Expert, Dimension::Context)
                - tensor_cost.hidden().kernels(call_costs, Dimension::Tensor, Dimension::Context);
            // Keys and values of the next round arrive while this one is computed.
            let context_overlap = match job.overlap {
                Overlap::On => context.cost(context_kernels),
                Overlap::Off => OverlapCost { exposed: context.call, slowdown: Picos::ZERO },
            };
            pass_time.context = context_overlap.exposed;
            pass_time.slowed = context_overlap.slowdown + tensor_cost.overlap.slowdown + expert_cost.slowdown;
            let mut streams = GradientStreams::default();
            for call in overlapped_calls() {
                let (time, sm_usage) = (call_costs.time(call, call.bytes)?, call_costs.sm_usage(call, call.bytes)?);
                streams
                    .add(call.dimension, OverlappedCall::new(time, sm_usage, kernels, curve, speeds).times(call.count));
            }
            pass_time.data_all = streams.communication();
            let sharing = |dimensions: &[Dimension]| call_costs.layer_dimensions_that_share_links(dimensions);
            let combined = streams.overlap(job, call_costs, |dimensions| pass_time.links_busy(&sharing(dimensions)));
            let kernel_share_time = pass_time.time_without(&sharing(&streams.dimensions()));
            *overlapped = OverlappedLayers {
                each: combined.call.scaled_to_share(pass_time.compute, kernel_share_time),
                last: combined.last,
                links_busy: combined.links_busy,
            };
        }
        Ok(Self { each, overlapped })
    }
}

/// Calls of a dimension that kernels of a pass hide.
#[derive(Clone, Copy, Debug)]
struct HiddenCalls {
    time: Picos,
    /// Time by which they slow the kernels.
    slowdown: Picos,
}

impl HiddenCalls {
    /// Time of the kernels that hide these calls of `dimension`, and therefore no calls of `other` on the same links.
    fn kernels(self, call_costs: &CallCosts<'_>, dimension: Dimension, other: Dimension) -> Picos {
        let shares_links = self.time > Picos::ZERO && call_costs.share_links(dimension, other);
        if shares_links { self.time - self.slowdown } else { Picos::ZERO }
    }
}

/// Tensor-parallel calls of a pass of a layer.
#[derive(Clone, Copy, Debug, Default)]
struct TensorCost {
    overlap: OverlapCost,
    /// Total time of the calls, hidden or exposed.
    all: Picos,
}

impl TensorCost {
    fn hidden(&self) -> HiddenCalls {
        HiddenCalls { time: self.all - self.overlap.exposed, slowdown: self.overlap.slowdown }
    }
}

/// Tensor-parallel calls of the forward and the backward pass of a layer.
fn tensor_costs(
    job: &Training,
    layer: &PassKernels,
    speeds: &PeakRates,
    curve: &Efficiency,
    call_costs: &CallCosts<'_>,
) -> Result<[TensorCost; 2], PlanError> {
    let layout = call_costs.layout;
    let mut costs = [TensorCost::default(); 2];
    for (cost, phase) in costs.iter_mut().zip([Phase::LayerForward, Phase::LayerBackward]) {
        let all = call_costs.phase_time(phase, Some(Dimension::Tensor))?;
        let overlap = match job.tensor_overlap {
            Overlap::On => {
                let gemms = tensor_parallel_gemms(job, layer);
                let gemms: Vec<Picos> = gemms.iter().map(|&gemm| curve.total(&[gemm], speeds)).collect();
                let (tokens, parts) = (Bytes(activation_bytes(job, layout)), layout.tensor_parts(&job.model));
                TensorParallelGemms { gemms: &gemms, blocks: speeds.block_scheduling, tokens, parts }
                    .cost(phase, call_costs)?
            }
            Overlap::Off => OverlapCost { exposed: all, slowdown: Picos::ZERO },
        };
        *cost = TensorCost { overlap, all };
    }
    Ok(costs)
}

/// Dispatch and combine in the passes of a layer, and the kernels that they can overlap with.
fn pass_exchanges(
    layer: &PassKernels,
    speeds: &PeakRates,
    curve: &Efficiency,
    call_costs: &CallCosts<'_>,
    tensor_costs: [TensorCost; 2],
) -> Result<PassExchanges, PlanError> {
    let mut passes = PassExchanges::default();
    let phases = [(Phase::LayerForward, &layer.forward), (Phase::LayerBackward, &layer.backward)];
    let parts = passes.exchanges.iter_mut().zip(&mut passes.compute);
    for (((exchanges, compute), (phase, kernels)), tensor) in parts.zip(phases).zip(tensor_costs) {
        *exchanges =
            call_costs.experts(phase, |time, sm_usage| OverlappedCall::new(time, sm_usage, kernels, curve, speeds))?;
        let experts: Vec<Kernel> = kernels.iter().copied().filter(Kernel::is_of_experts).collect();
        let experts = curve.total(&experts, speeds);
        // Kernels that hide tensor-parallel calls on the same links hide no exchanges.
        let hides_tensor = tensor.hidden().kernels(call_costs, Dimension::Tensor, Dimension::Expert);
        *compute = LayerCompute { attention: curve.total(kernels, speeds) - experts - hides_tensor, experts };
    }
    Ok(passes)
}

/// Times of the forward and the backward pass of a model chunk, given the number of layers of each recomputation
/// setting.
fn model_chunk_time(job: &Training, kinds: &[(&LayerTime, u64)]) -> [PassTime; 2] {
    std::array::from_fn(|pass| {
        let layer_time = |kind: &LayerTime| kind.each.get(pass).copied().unwrap_or_default();
        let overlapped = |kind: &LayerTime| kind.overlapped.get(pass).copied().unwrap_or_default();
        let mut chunk = kinds.iter().fold(PassTime::default(), |sum, (kind, n)| sum.plus(layer_time(kind).times(*n)));
        (chunk.data, chunk.slowed) = match job.overlap {
            Overlap::On => {
                let kinds = kinds.iter().map(|(kind, n)| (overlapped(kind), *n));
                let cost = OverlappedLayers::cost(kinds, chunk.total());
                (cost.exposed, chunk.slowed + cost.slowdown)
            }
            Overlap::Off => (chunk.data_all, chunk.slowed),
        };
        chunk
    })
}

impl StagePasses {
    /// Variant whose passes share links with the pipeline transfers that follow them, of duration `transfer`.
    pub(super) fn with_transfers(mut self, transfer: Picos, call_costs: &CallCosts<'_>) -> Self {
        let sharing = SharingCalls::new(call_costs, &[Dimension::Pipeline]);
        if sharing.is_empty() {
            return self;
        }
        let with_transfer = |pass: &mut PassTime| *pass = pass.with_transfer(transfer, sharing.links_busy(pass));
        // The last chunk sends no activations, and the first no gradients.
        let stages = self.times.len();
        for (stage, chunks) in self.times.iter_mut().enumerate() {
            let count = chunks.len();
            for (chunk, [forward, backward]) in chunks.iter_mut().enumerate() {
                if stage + 1 < stages || chunk + 1 < count {
                    with_transfer(forward);
                }
                if stage > 0 || chunk > 0 {
                    with_transfer(backward);
                }
            }
        }
        self
    }

    /// Variant whose passes take at least as long as the host needs to launch them, if it cannot launch ahead of the GPU.
    pub(super) fn with_launches(mut self, job: &Training, layout: &Layout) -> Self {
        for (stage, chunks) in (0..).zip(&mut self.times) {
            for (chunk, passes) in (0..).zip(chunks) {
                let layers = layout.chunk_layers(&job.model, stage, chunk);
                let recomputed = job.recomputed_chunk_layers(layout, stage, chunk);
                let launches = synchronized_passes(job, layout, layers, recomputed);
                for (pass, launch) in passes.iter_mut().zip(launches) {
                    pass.launch = launch - pass.total();
                }
            }
        }
        self
    }

    /// Computes the times of all passes from the layers and from the embedding and the logits. `recomputed` holds the
    /// kernels of layers that recompute; with partial recomputation the kernels of the other layers are derived from
    /// the job.
    pub(super) fn new(
        job: &Training,
        recomputed: &PassKernels,
        speeds: &PeakRates,
        curve: &Efficiency,
        call_costs: &CallCosts<'_>,
    ) -> Result<Self, PlanError> {
        let layout = call_costs.layout;
        let (stages, chunks) = (layout.degrees.pipeline, layout.degrees.interleave);
        let kernel_time = |kernels: &[Kernel]| curve.total(kernels, speeds);
        let recomputed = LayerTime::new(job, recomputed, speeds, curve, call_costs)?;
        let saving = job.without_recomputation().map(|saving_job| {
            let layer = layer(&saving_job, layout);
            let (calls, experts) = (traffic(&saving_job, layout), expert_calls(&saving_job, layout));
            let call_costs = CallCosts { calls: &calls, experts: &experts, ..*call_costs };
            LayerTime::new(&saving_job, &layer, speeds, curve, &call_costs)
        });
        let saving = saving.transpose()?;
        let chunk_times = |stage: u32, chunk: u32| {
            let (layer_count, recomputed_count) =
                (layout.chunk_layers(&job.model, stage, chunk), job.recomputed_chunk_layers(layout, stage, chunk));
            match &saving {
                None => model_chunk_time(job, &[(&recomputed, layer_count)]),
                Some(saving) => {
                    model_chunk_time(job, &[(&recomputed, recomputed_count), (saving, layer_count - recomputed_count)])
                }
            }
        };
        let stage_times =
            |stage: u32| -> Vec<[PassTime; 2]> { (0..chunks).map(|chunk| chunk_times(stage, chunk)).collect() };
        let mut times: Vec<Vec<[PassTime; 2]>> = (0..stages).map(stage_times).collect();
        let end_layer_times = |passes: &PassKernels, phase| -> Result<[PassTime; 2], PlanError> {
            let tensor = call_costs.phase_time(phase, None)?;
            let exposed_time = |exposed_phase| if phase == exposed_phase { tensor } else { Picos::ZERO };
            let pass_time = |kernels: &[Kernel], call: Picos| PassTime {
                compute: kernel_time(kernels),
                tensor: call,
                tensor_all: call,
                ..PassTime::default()
            };
            Ok([
                pass_time(&passes.forward, exposed_time(Phase::Embedding)),
                pass_time(&passes.backward, exposed_time(Phase::Logits)),
            ])
        };
        let add = |target: Option<&mut [PassTime; 2]>, added: [PassTime; 2]| {
            if let Some([forward, backward]) = target {
                *forward = forward.plus(added[0]);
                *backward = backward.plus(added[1]);
            }
        };
        add(
            times.first_mut().and_then(|stage| stage.first_mut()),
            end_layer_times(&embedding(job, layout), Phase::Embedding)?,
        );
        add(times.last_mut().and_then(|stage| stage.last_mut()), end_layer_times(&logits(job, layout), Phase::Logits)?);
        Ok(Self { times })
    }
}
