//! Degrees of parallelism, and the groups of ranks that result from them.
//!
//! Ranks are numbered over the fabric's GPUs, host by host, so the stride of a group determines the distance between
//! its ranks. The dimensions with the most communication are innermost, on neighbouring GPUs: tensor, context, data,
//! pipeline (Megatron-LM's order tp-cp-ep-dp-pp), unless the job sets another [`Order`]. Experts are divided among
//! ranks with different tokens, so their degree does not multiply the ranks. They are divided among ranks of the
//! context and data dimensions, and also among tensor-parallel ranks if experts are undivided ([`ExpertSharding`]),
//! innermost first (Megatron Core's `expert_decoder_rank_generator`; Liu et al., "MoE Parallel Folding", arXiv
//! 2504.14960).

use std::ops::Range;

use fabricast_topologies::SourceLocation;

use super::{JobError, Model, Order, Parallel, Processes, Serving, Training};

/// Degrees of parallelism, and the other settings that define a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Degrees {
    /// Tensor-parallel degree: number of ranks that shard the same matrices.
    pub tensor: u32,
    /// Number of pipeline stages (pipeline-parallel degree).
    pub pipeline: u32,
    /// Data-parallel degree: number of replicas.
    pub data: u32,
    /// Expert-parallel degree: number of ranks over which the experts of a layer are divided.
    pub expert: u32,
    /// Division of experts' matrices among tensor-parallel ranks.
    pub experts: ExpertSharding,
    /// Context-parallel degree: number of ranks over which a sequence is divided.
    pub context: u32,
    /// Number of model chunks on each stage (virtual pipeline stages); 1 without interleaving.
    pub interleave: u32,
    /// Sequence parallelism among tensor-parallel ranks, for the operations between matrix multiplications.
    pub sequence: SequenceParallelism,
    /// Treatment of the embedding and the logits in the division of layers among stages.
    pub ends: EndAccounting,
    /// Order of the parallel dimensions in the numbering of ranks.
    pub order: Order,
    /// Number of ranks over which one copy of the states is sharded; `None` if it is all ranks with replicas.
    pub shard: Option<u32>,
}

/// Treatment of the embedding and the logits in the division of layers among pipeline stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndAccounting {
    /// All stages have the same number of layers. The first stage also has the embedding, and the last stage also has
    /// the logits.
    #[default]
    Extra,
    /// Embedding and logits count as one layer each, so the first and the last stage have one layer less (Megatron-LM's
    /// `--account-for-embedding-in-pipeline-split` and `--account-for-loss-in-pipeline-split`; Llama 3 405B, arXiv
    /// 2407.21783, section 3.3.2).
    AsLayers,
}

impl EndAccounting {
    /// Returns the number of layers that the embedding and the logits count as: 0 or 2.
    fn layers(self) -> u64 {
        match self {
            Self::Extra => 0,
            Self::AsLayers => 2,
        }
    }
}

/// Sequence parallelism (Korthikanti et al., arXiv 2205.05198): division of the operations between matrix
/// multiplications among tensor-parallel ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SequenceParallelism {
    /// Off: each rank processes all tokens.
    #[default]
    Undivided,
    /// On: each rank processes its part of the sequence.
    TensorSharded,
}

/// Division of routed experts among tensor-parallel ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExpertSharding {
    /// Each rank has a shard of the same experts' matrices, as for all other matrices (Megatron-LM's default).
    #[default]
    Divided,
    /// Each rank has different, undivided experts and processes its part of the sequence (Megatron-LM's
    /// `--expert-tensor-parallel-size 1`).
    Whole,
}

impl Default for Degrees {
    fn default() -> Self {
        Self {
            tensor: 1,
            pipeline: 1,
            data: 1,
            expert: 1,
            experts: ExpertSharding::default(),
            context: 1,
            interleave: 1,
            sequence: SequenceParallelism::Undivided,
            ends: EndAccounting::default(),
            order: Order::default(),
            shard: None,
        }
    }
}

impl Degrees {
    /// Returns the total number of ranks: the product of all degrees except the expert-parallel degree.
    #[must_use]
    pub fn ranks(&self) -> u64 {
        let degrees = [self.tensor, self.pipeline, self.data, self.context].into_iter().map(u64::from);
        degrees.fold(1, u64::saturating_mul)
    }

    /// Returns the number of tensor-parallel ranks among which the matrices of an expert are divided.
    #[must_use]
    pub fn expert_tensor(&self) -> u32 {
        match self.experts {
            ExpertSharding::Divided => self.tensor,
            ExpertSharding::Whole => 1,
        }
    }

    /// Returns the number of ranks of a stage over which experts may be divided or replicated.
    pub fn expert_ranks(&self) -> u32 {
        self.tensor / self.expert_tensor().max(1) * self.context * self.data
    }

    /// Returns the number of ranks that have the same weights: data- and context-parallel ranks.
    pub(super) fn weight_replicas(&self) -> u32 {
        self.data * self.context
    }

    /// Returns the number of ranks that have the same experts.
    pub(super) fn expert_replicas(&self) -> u32 {
        self.expert_ranks() / self.expert.max(1)
    }

    /// Returns the number of parts into which tensor-parallel ranks divide the tokens between matrix multiplications.
    #[must_use]
    pub fn token_shares(&self) -> u64 {
        match self.sequence {
            SequenceParallelism::Undivided => 1,
            SequenceParallelism::TensorSharded => u64::from(self.tensor),
        }
    }
}

impl std::fmt::Display for Degrees {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tp {} × pp {} × dp {}", self.tensor, self.pipeline, self.data)?;
        for (name, degree) in [("cp", self.context), ("ep", self.expert), ("interleave", self.interleave)] {
            if degree > 1 {
                write!(f, ", {name} {degree}")?;
            }
        }
        if self.experts == ExpertSharding::Whole {
            f.write_str(", etp 1")?;
        }
        self.shard.map_or(Ok(()), |shard| write!(f, ", shard {shard}"))
    }
}

/// Parallel layout of a job: degrees whose product is the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Degrees, which are valid for the job.
    pub degrees: Degrees,
}

impl Layout {
    /// Creates the layout of a training job on `ranks` ranks.
    ///
    /// # Errors
    /// [`JobError`] at `parallel` if the product of the degrees is not the number of ranks, or the degrees do not
    /// divide the model or the batch; at `global_batch` or `shard` if these are the cause.
    pub fn new(job: &Training, ranks: u32, degrees: Degrees) -> Result<Self, JobError> {
        Self::training(job, ranks, degrees, CheckPurpose::Search)
    }

    fn training(job: &Training, ranks: u32, degrees: Degrees, purpose: CheckPurpose) -> Result<Self, JobError> {
        let divisibility =
            DivisibilityCheck { model: &job.model, experts: job.model.experts, location: &job.spans.parallel, purpose };
        divisibility.check(ranks, degrees)?;
        let Degrees { tensor, pipeline, data, context, interleave, .. } = degrees;
        if job.processes == Processes::Single && (u64::from(data) != degrees.ranks() || degrees.expert > 1) {
            let message = format!("one process (processes) replicates whole models: expected dp {ranks} alone");
            return Err(JobError::at(&job.spans.parallel, message));
        }
        let seq = job.model.seq;
        divisibility.divide("tokens of a sequence", seq, "cp", context.into())?;
        if degrees.token_shares() > 1 {
            divisibility.divide("tokens of a sequence", seq, "cp × tp", u64::from(context) * u64::from(tensor))?;
        }
        let wrong = |message: String| Err(JobError::at(&job.spans.parallel, message));
        if degrees.experts == ExpertSharding::Whole && degrees.sequence == SequenceParallelism::Undivided {
            return wrong("etp 1: ranks of a tensor group have the same tokens: expected sequence = true".to_owned());
        }
        if degrees.experts == ExpertSharding::Whole && !degrees.order.has_tensor_inside_data() {
            return wrong(
                "etp 1: experts are distributed over tensor groups first: expected tp right before dp in order"
                    .to_owned(),
            );
        }
        if degrees.experts == ExpertSharding::Whole && job.model.experts == 0 {
            return wrong("etp 1, and the model has no experts".to_owned());
        }
        if interleave > 1 && pipeline == 1 {
            return wrong(format!("interleave {interleave} needs pipeline stages, and pp is 1"));
        }
        let round_sequences = u64::from(data) * job.micro_batch;
        if !job.global_batch.is_multiple_of(round_sequences) {
            let message = format!(
                "global_batch {} is not a multiple of dp {data} × micro_batch {}",
                job.global_batch, job.micro_batch
            );
            return Err(JobError::at(&job.spans.batch, message));
        }
        let micro_batches = job.global_batch / round_sequences;
        if interleave > 1 && !micro_batches.is_multiple_of(u64::from(pipeline)) {
            return wrong(format!(
                "interleave {interleave} needs a multiple of pp {pipeline} micro-batches, and there are {micro_batches}"
            ));
        }
        Ok(Self { degrees: Degrees { shard: job.validated_shard(degrees)?, ..degrees } })
    }

    /// Creates the layout of an inference job on `ranks` ranks. `ep` divides experts and their redundant copies. The
    /// matrices of each expert are divided within a tensor-parallel group. (vLLM can divide the experts instead, which
    /// moves the same number of bytes and stores the same weights.)
    ///
    /// # Errors
    /// [`JobError`] at `parallel` if the product of the degrees is not the number of ranks, or the degrees do not
    /// divide the model.
    pub fn serving(job: &Serving, ranks: u32, degrees: Degrees) -> Result<Self, JobError> {
        Self::inference(job, ranks, degrees, CheckPurpose::Search)
    }

    fn inference(job: &Serving, ranks: u32, degrees: Degrees, purpose: CheckPurpose) -> Result<Self, JobError> {
        let divisibility = DivisibilityCheck {
            model: &job.model,
            experts: job.expert_slots(),
            location: &job.spans.parallel,
            purpose,
        };
        divisibility.check(ranks, degrees)?;
        Ok(Self { degrees })
    }

    /// Returns the layout that a training job specifies on `ranks` ranks; `None` if the job requests a search.
    ///
    /// # Errors
    /// Errors of [`Layout::new`].
    pub fn specified_by(job: &Training, ranks: u32) -> Result<Option<Self>, JobError> {
        job.parallel.degrees(ranks).map(|degrees| Self::training(job, ranks, degrees, CheckPurpose::Report)).transpose()
    }

    /// Returns the layout that an inference job specifies on `ranks` ranks; `None` if the job requests a search.
    ///
    /// # Errors
    /// Errors of [`Layout::serving`].
    pub fn specified_by_serving(job: &Serving, ranks: u32) -> Result<Option<Self>, JobError> {
        job.parallel
            .degrees(ranks)
            .map(|degrees| Self::inference(job, ranks, degrees, CheckPurpose::Report))
            .transpose()
    }

    /// Returns the number of micro-batches of a rank in a step.
    #[must_use]
    pub fn micro_batches(&self, job: &Training) -> u64 {
        job.global_batch / (u64::from(self.degrees.data) * job.micro_batch).max(1)
    }

    /// Returns the number of layers in a model chunk of a stage (see [`Self::chunk_range`]); stages and chunks are
    /// numbered from 0.
    #[must_use]
    pub fn chunk_layers(&self, model: &Model, stage: u32, chunk: u32) -> u64 {
        let Degrees { pipeline, interleave, ends, .. } = self.degrees;
        let slots = self.chunk_slots(model);
        let is_first = stage == 0 && chunk == 0;
        let is_last = stage + 1 == pipeline && chunk + 1 == interleave;
        match ends {
            EndAccounting::Extra => slots,
            EndAccounting::AsLayers => slots.saturating_sub(u64::from(is_first) + u64::from(is_last)),
        }
    }

    /// Returns the number of layer slots of a model chunk. The embedding and the logits use one slot each if they count
    /// as layers.
    fn chunk_slots(&self, model: &Model) -> u64 {
        let Degrees { pipeline, interleave, ends, .. } = self.degrees;
        (model.layers + ends.layers()) / (u64::from(pipeline) * u64::from(interleave)).max(1)
    }

    /// Returns the indices of the layers of a model chunk, counted from the model's first layer. Chunk `i` of every
    /// stage precedes chunk `i + 1` of the first stage.
    #[must_use]
    pub fn chunk_range(&self, model: &Model, stage: u32, chunk: u32) -> Range<u64> {
        let index = u64::from(chunk) * u64::from(self.degrees.pipeline) + u64::from(stage);
        // Chunks after the first start one layer earlier if the embedding counts as a layer.
        let shift = u64::from(index > 0 && self.degrees.ends == EndAccounting::AsLayers);
        let first = (index * self.chunk_slots(model)).saturating_sub(shift);
        first..first + self.chunk_layers(model, stage, chunk)
    }

    /// Returns the number of layers of a pipeline stage; stages are numbered from 0.
    #[must_use]
    pub fn stage_layers(&self, model: &Model, stage: u32) -> u64 {
        (0..self.degrees.interleave).map(|chunk| self.chunk_layers(model, stage, chunk)).sum()
    }

    /// Returns the candidates for the stage with the highest memory use: the last stage, which computes the logits; the
    /// second, which may have more layers; and the first, which has the embedding. The first stage is listed last, so
    /// that it is selected if several are equal.
    pub(crate) fn fullest_stages(&self) -> [u32; 3] {
        let last = self.degrees.pipeline.saturating_sub(1);
        [last, last.min(1), 0]
    }

    /// Returns true for the last pipeline stage.
    pub(crate) fn is_last(&self, stage: u32) -> bool {
        stage + 1 >= self.degrees.pipeline
    }

    /// Returns true if every rank has the whole model and its own sequences, as in DistributedDataParallel or FSDP.
    #[must_use]
    pub fn is_pure_data_parallel(&self) -> bool {
        let Degrees { tensor, pipeline, expert, context, .. } = self.degrees;
        [tensor, pipeline, expert, context] == [1; 4]
    }

    /// Returns the number of parts of a layer before and after which tensor-parallel ranks gather and reduce all
    /// tokens: attention, and the feed-forward layer. If routed experts receive their tokens in another way, only
    /// shared experts count as a feed-forward layer.
    #[must_use]
    pub fn tensor_parts(&self, model: &Model) -> u64 {
        let routes_separately = self.degrees.experts == ExpertSharding::Whole || self.gathers_routed_tokens(model);
        if routes_separately && model.shared_experts == 0 { 1 } else { 2 }
    }

    /// Returns the load of the rank with the most loaded experts divided by the mean load. The job's `skew` is limited
    /// by the number of expert-parallel ranks.
    #[must_use]
    pub fn expert_imbalance(&self, skew: f64) -> f64 {
        skew.min(f64::from(self.degrees.expert))
    }

    /// Returns true if tensor-parallel ranks gather routed tokens after the all-to-all, because the matrices of experts
    /// are divided among them. Each token arrives once per selected expert. Without expert parallelism they gather all
    /// tokens first, as for any feed-forward layer (Megatron Core, `MoEAlltoAllTokenDispatcher` and
    /// `MoEAllGatherTokenDispatcher`).
    #[must_use]
    pub fn gathers_routed_tokens(&self, model: &Model) -> bool {
        let Degrees { experts, expert, sequence, .. } = self.degrees;
        model.experts > 0
            && experts == ExpertSharding::Divided
            && expert > 1
            && sequence == SequenceParallelism::TensorSharded
    }
}

impl Parallel {
    /// Returns the specified degrees on `ranks` ranks, or `None` if the job specifies none. An absent data-parallel
    /// degree is computed from the number of ranks.
    fn degrees(&self, ranks: u32) -> Option<Degrees> {
        let Self::Given { degrees, data } = self else { return None };
        let remaining = u64::from(ranks) / Degrees { data: 1, ..*degrees }.ranks().max(1);
        let data = data.unwrap_or(u32::try_from(remaining).unwrap_or(ranks).max(1));
        Some(Degrees { data, ..*degrees })
    }
}

/// Divisibility checks that all kinds of jobs have in common.
struct DivisibilityCheck<'a> {
    model: &'a Model,
    /// Number of experts of a layer, redundant copies included.
    experts: u64,
    location: &'a SourceLocation,
    purpose: CheckPurpose,
}

/// Purpose of a divisibility check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckPurpose {
    /// Report to the user who specified the degrees; errors suggest alternatives.
    Report,
    /// Search over many degrees; error texts are not used.
    Search,
}

/// Returns the divisors of `number` nearest to `divisor` as text: the largest smaller one, and the smallest larger one
/// if a bounded search finds it.
fn nearest_divisors(number: u64, divisor: u64) -> String {
    let divides = |candidate: &u64| number.is_multiple_of(*candidate);
    let below = (1..divisor.min(number + 1)).rev().find(divides).unwrap_or(1);
    match (divisor + 1..=number).take(1 << 18).find(divides) {
        Some(above) => format!("{below} or {above}"),
        None => below.to_string(),
    }
}

impl DivisibilityCheck<'_> {
    fn divide(&self, label: &str, number: u64, name: &str, divisor: u64) -> Result<(), JobError> {
        match number % divisor.max(1) {
            0 => Ok(()),
            _ => {
                let error =
                    JobError::at(self.location, format!("{number} {label} cannot be divided by {name} {divisor}"));
                let help = (self.purpose == CheckPurpose::Report)
                    .then(|| format!("{name} can be {}", nearest_divisors(number, divisor)));
                Err(JobError { help, ..error })
            }
        }
    }

    /// Checks that the product of the degrees is the number of ranks, and that the model can be divided by the degrees.
    ///
    /// # Errors
    /// [`JobError`] at `parallel` otherwise.
    fn check(&self, ranks: u32, degrees: Degrees) -> Result<(), JobError> {
        let wrong = |message: String| Err(JobError::at(self.location, message));
        let Degrees { tensor, pipeline, data, expert, context, interleave, .. } = degrees;
        if degrees.ranks() != u64::from(ranks) {
            let context = if context > 1 { format!(" × cp {context}") } else { String::new() };
            return wrong(format!(
                "tp {tensor} × pp {pipeline} × dp {data}{context} is {}, and there are {ranks} ranks",
                degrees.ranks()
            ));
        }
        let model = self.model;
        let tensor_ranks = u64::from(tensor);
        self.divide("heads", model.heads, "tp", tensor_ranks)?;
        if !model.kv_heads.is_multiple_of(tensor_ranks) && !tensor_ranks.is_multiple_of(model.kv_heads) {
            return wrong(format!("{} key-value heads cannot be divided by tp {tensor}", model.kv_heads));
        }
        self.divide("feed-forward columns", model.ffn, "tp", tensor_ranks)?;
        self.divide("vocabulary entries", model.vocab, "tp", tensor_ranks)?;
        let chunks = u64::from(pipeline) * u64::from(interleave);
        let name = if interleave > 1 { "pp × interleave" } else { "pp" };
        let layers_label = match degrees.ends {
            EndAccounting::Extra => "layers",
            EndAccounting::AsLayers => "layers, embedding and logits included,",
        };
        self.divide(layers_label, model.layers + degrees.ends.layers(), name, chunks)?;
        if self.experts == 0 && expert > 1 {
            return wrong(format!("ep {expert}, and the model has no experts"));
        }
        self.divide("experts", self.experts, "ep", expert.into())?;
        let ranks_label = match degrees.experts {
            ExpertSharding::Divided if context == 1 => "data-parallel ranks",
            ExpertSharding::Divided => "ranks of cp × dp",
            ExpertSharding::Whole => "ranks of tp × cp × dp",
        };
        self.divide(ranks_label, degrees.expert_ranks().into(), "ep", expert.into())
    }
}
