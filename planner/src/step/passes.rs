//! Time of passes through a model chunk: kernels, exposed calls, and overlapped communication.

use fabricast_topologies::{Bytes, Picos};
use rayon::prelude::*;

use super::gradients::buckets;
use super::in_pieces::{Cost, Divided};
use super::kernels::{Kernel, Passes, copied, divided, layer, logits, words};
use super::rows::{Rows, Travelling};
use super::slowing::{Beside, Claim};
use super::{Efficiency, Exchange, Speeds, Tariff, exchange, times};
use crate::job::{Dimension, GroupCall, Layout, Overlap, Phase, Training, activations, traffic};
use crate::plan::PlanError;

/// Time of a pass through a model chunk, by share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pub compute: Picos,
    /// Slowdown of kernels by overlapping calls.
    pub slowed: Picos,
    pub tensor: Picos,
    pub expert: Picos,
    /// Exposed time of context- and data-parallel calls.
    pub context: Picos,
    pub data: Picos,
    /// Total time of the calls, hidden or exposed.
    pub tensor_all: Picos,
    pub context_all: Picos,
    pub data_all: Picos,
}

impl Spent {
    pub(super) fn waited(&self) -> Picos {
        self.compute + self.slowed + self.tensor + self.expert + self.context + self.data
    }

    pub(super) fn communication(&self) -> Picos {
        self.tensor_all + self.expert + self.context_all + self.data_all
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            compute: self.compute + other.compute,
            slowed: self.slowed + other.slowed,
            tensor: self.tensor + other.tensor,
            expert: self.expert + other.expert,
            context: self.context + other.context,
            data: self.data + other.data,
            tensor_all: self.tensor_all + other.tensor_all,
            context_all: self.context_all + other.context_all,
            data_all: self.data_all + other.data_all,
        }
    }

    pub(super) fn times(self, n: u64) -> Self {
        let of = |time: Picos| times(time, n);
        Self {
            compute: of(self.compute),
            slowed: of(self.slowed),
            tensor: of(self.tensor),
            expert: of(self.expert),
            context: of(self.context),
            data: of(self.data),
            tensor_all: of(self.tensor_all),
            context_all: of(self.context_all),
            data_all: of(self.data_all),
        }
    }
}

/// Calls of a step with their cost model.
pub(super) struct Prices<'a> {
    pub calls: &'a [GroupCall],
    pub layout: &'a Layout,
    pub tariff: &'a dyn Tariff,
}

impl Prices<'_> {
    /// Total time of the calls of a phase, in sequence, for one dimension or all.
    pub(super) fn of(&self, phase: Phase, dimension: Option<Dimension>) -> Result<Picos, PlanError> {
        self.during(phase, dimension).map(|call| Ok(times(self.time(call, call.bytes)?, call.count))).sum()
    }

    /// Calls of a phase that overlap with kernels, in sequence. `lose` returns the slowdown of the kernels by a call.
    fn beside(
        &self,
        phase: Phase,
        dimension: Option<Dimension>,
        lose: impl Fn(Picos, Claim) -> Beside,
    ) -> Result<Beside, PlanError> {
        self.during(phase, dimension).try_fold(Beside::default(), |sum, call| {
            let one = lose(self.time(call, call.bytes)?, self.claim(call, call.bytes)?);
            Ok(sum.plus(one.times(call.count)))
        })
    }

    /// Returns the calls of a phase, for one dimension or all.
    pub(super) fn during(&self, phase: Phase, dimension: Option<Dimension>) -> impl Iterator<Item = &GroupCall> {
        let of = move |call: &&GroupCall| call.phase == phase && dimension.is_none_or(|one| one == call.dimension);
        self.calls.iter().filter(of)
    }

    /// Computes all call times in parallel, to fill the cache of the cost model. Errors are ignored here and reported
    /// by the later queries.
    pub(super) fn look_up(&self, job: &Training) {
        // Deduplicate: both passes make equal calls, which two threads would otherwise both compute.
        let mut asked: Vec<Exchange> = Vec::with_capacity(self.calls.len());
        for call in self.calls {
            let bytes = if call.phase == Phase::Gradients { buckets(job, self.layout, call).1 } else { call.bytes };
            let exchange = exchange(call, bytes);
            if !asked.contains(&exchange) {
                asked.push(exchange);
            }
        }
        asked.par_iter().with_max_len(1).for_each(|&exchange| drop(self.tariff.time(self.layout, exchange)));
    }

    pub(super) fn time(&self, call: &GroupCall, bytes: Bytes) -> Result<Picos, PlanError> {
        self.tariff.time(self.layout, exchange(call, bytes))
    }

    pub(super) fn claim(&self, call: &GroupCall, bytes: Bytes) -> Result<Claim, PlanError> {
        self.tariff.claim(self.layout, exchange(call, bytes))
    }
}

/// Times of the forward and the backward pass, by stage, then by model chunk.
pub(super) struct StagePasses {
    pub spent: Vec<Vec<[Spent; 2]>>,
}

/// Times of layers with the same recomputation setting: each layer alone, and the communication that overlaps with its
/// passes.
struct Alike {
    each: [Spent; 2],
    travelling: [Travelling; 2],
}

impl Alike {
    /// Computes the times from the kernels and the calls of such a layer.
    fn of(
        job: &Training,
        layer: &Passes,
        speeds: &Speeds,
        curve: &Efficiency,
        prices: &Prices<'_>,
    ) -> Result<Self, PlanError> {
        let layout = prices.layout;
        let of = |kernels: &[Kernel]| curve.total(kernels, speeds);
        let mut each = [Spent::default(); 2];
        let products = || divided(job, layer).iter().map(|product| of(&[*product])).collect::<Vec<_>>();
        // Weights and gradients overlap with everything in a pass.
        let mut travelling = [Travelling::default(); 2];
        for ((spent, travelling), (phase, kernels, beside)) in each.iter_mut().zip(&mut travelling).zip([
            (Phase::LayerForward, &layer.forward, &[Phase::WeightsForward][..]),
            (Phase::LayerBackward, &layer.backward, &[Phase::WeightsBackward, Phase::LayerGradients]),
        ]) {
            let copies = beside.iter().flat_map(|&travels| prices.during(travels, None));
            let copies = copies.filter_map(|call| copied(job, call));
            let kernels: &[Kernel] = &kernels.iter().copied().chain(copies).collect::<Vec<_>>();
            spent.compute = of(kernels);
            spent.tensor_all = prices.of(phase, Some(Dimension::Tensor))?;
            let beside_products = match job.tensor_overlap {
                Overlap::On => {
                    let (tokens, parts) = (Bytes(activations(job, layout)), layout.tensor_parts(&job.model));
                    Divided { products: &products(), blocks: speeds.blocks, tokens, parts }.cost(phase, prices)?
                }
                Overlap::Off => Cost { waited: spent.tensor_all, lost: Picos::ZERO },
            };
            spent.tensor = beside_products.waited;
            spent.expert = prices.of(phase, Some(Dimension::Expert))?;
            let context = prices.beside(phase, Some(Dimension::Context), |time, claim| {
                Beside::of(time, claim, kernels, curve, speeds)
            })?;
            spent.context_all = context.call;
            // Keys and values of the next round arrive while this one is computed.
            (spent.slowed, spent.context) = match job.overlap {
                Overlap::On => context.work(spent.compute),
                Overlap::Off => (Picos::ZERO, context.call),
            };
            spent.slowed += beside_products.lost;
            let mut rows = Rows::default();
            for call in beside.iter().flat_map(|&travels| prices.during(travels, None)) {
                let (time, claim) = (prices.time(call, call.bytes)?, prices.claim(call, call.bytes)?);
                rows.add(call.dimension, Beside::of(time, claim, kernels, curve, speeds).times(call.count));
            }
            spent.data_all = rows.communication();
            let (all, last) = rows.together(job, prices);
            *travelling = Travelling { each: all.of_part(spent.compute, spent.waited()), last };
        }
        Ok(Self { each, travelling })
    }
}

/// Times of the forward and backward pass of a model chunk, given the number of layers of each kind.
fn of_stretch(job: &Training, kinds: &[(&Alike, u64)]) -> [Spent; 2] {
    std::array::from_fn(|way| {
        let one_of = |alike: &Alike| alike.each.get(way).copied().unwrap_or_default();
        let travelling = |alike: &Alike| alike.travelling.get(way).copied().unwrap_or_default();
        let mut stretch = kinds.iter().fold(Spent::default(), |sum, (alike, n)| sum.plus(one_of(alike).times(*n)));
        (stretch.data, stretch.slowed) = match job.overlap {
            Overlap::On => {
                let kinds = kinds.iter().map(|(alike, n)| (travelling(alike), *n));
                let (data, hidden) = Travelling::of_layers(kinds, stretch.waited());
                (data, stretch.slowed + hidden)
            }
            Overlap::Off => (stretch.data_all, stretch.slowed),
        };
        stretch
    })
}

impl StagePasses {
    /// Computes the passes from the layers and from the embedding and the logits. `anew` holds the kernels of layers
    /// that recompute; with partial recomputation the other layers are computed as well.
    pub(super) fn new(
        job: &Training,
        anew: &Passes,
        speeds: &Speeds,
        curve: &Efficiency,
        prices: &Prices<'_>,
    ) -> Result<Self, PlanError> {
        let layout = prices.layout;
        let (stages, chunks) = (layout.degrees.pipeline, layout.degrees.interleave);
        let of = |kernels: &[Kernel]| curve.total(kernels, speeds);
        let anew = Alike::of(job, anew, speeds, curve, prices)?;
        let whole = job.keeping().map(|keeping| {
            let (layer, calls) = (layer(&keeping, layout), traffic(&keeping, layout));
            Alike::of(&keeping, &layer, speeds, curve, &Prices { calls: &calls, ..*prices })
        });
        let whole = whole.transpose()?;
        let of_layers = |stage: u32, stretch: u32| {
            let (all, some) =
                (layout.stretch_layers(&job.model, stage, stretch), job.recomputed(layout, stage, stretch));
            match &whole {
                None => of_stretch(job, &[(&anew, all)]),
                Some(whole) => of_stretch(job, &[(&anew, some), (whole, all - some)]),
            }
        };
        let of_stage =
            |stage: u32| -> Vec<[Spent; 2]> { (0..chunks).map(|stretch| of_layers(stage, stretch)).collect() };
        let mut spent: Vec<Vec<[Spent; 2]>> = (0..stages).map(of_stage).collect();
        let ends = |passes: &Passes, phase| -> Result<[Spent; 2], PlanError> {
            let tensor = prices.of(phase, None)?;
            let waits = |wanted| if phase == wanted { tensor } else { Picos::ZERO };
            let spent = |kernels: &[Kernel], call: Picos| Spent {
                compute: of(kernels),
                tensor: call,
                tensor_all: call,
                ..Spent::default()
            };
            Ok([spent(&passes.forward, waits(Phase::Words)), spent(&passes.backward, waits(Phase::Logits))])
        };
        let add = |to: Option<&mut [Spent; 2]>, more: [Spent; 2]| {
            if let Some([forward, backward]) = to {
                *forward = forward.plus(more[0]);
                *backward = backward.plus(more[1]);
            }
        };
        add(spent.first_mut().and_then(|stage| stage.first_mut()), ends(&words(job, layout), Phase::Words)?);
        add(spent.last_mut().and_then(|stage| stage.last_mut()), ends(&logits(job, layout), Phase::Logits)?);
        Ok(Self { spent })
    }
}
