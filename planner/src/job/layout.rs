//! Degrees of parallelism and the groups of ranks that follow from them.
//!
//! Ranks are numbered over the fabric's GPUs, host by host, so the stride of a group decides the distance between its
//! ranks. The dimensions with the most communication are innermost, on neighbouring GPUs: tensor, context, data,
//! pipeline (Megatron-LM's order tp-cp-ep-dp-pp), unless the job sets another [`Order`]. Experts are divided among
//! ranks with different tokens, so their degree does not multiply the ranks. These are ranks of the context and data
//! dimensions, and also tensor-parallel ranks if experts are undivided ([`Experts`]), innermost first (Megatron Core's
//! `expert_decoder_rank_generator`; Liu et al., "MoE Parallel Folding", arXiv 2504.14960).

use std::ops::Range;

use fabricast_topologies::Place;

use super::{JobError, Model, Order, Parallel, Processes, Serving, Training};

/// Degrees of parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Degrees {
    /// Tensor-parallel degree.
    pub tensor: u32,
    /// Pipeline stages.
    pub pipeline: u32,
    /// Data-parallel degree (replicas).
    pub data: u32,
    /// Expert-parallel degree.
    pub expert: u32,
    /// Division of experts' matrices among tensor-parallel ranks.
    pub experts: Experts,
    /// Context-parallel degree.
    pub context: u32,
    /// Model chunks on each stage (virtual pipeline stages).
    pub interleave: u32,
    /// Sequence parallelism among tensor-parallel ranks, outside the matrices.
    pub sequence: Sequence,
    /// Accounting for embedding and logits in the pipeline split.
    pub ends: Ends,
    /// Numbering order of ranks.
    pub order: Order,
    /// Ranks over which one copy of the states is sharded; `None` for all replicas.
    pub shard: Option<u32>,
}

/// Division of embedding and logits among stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ends {
    /// All stages have the same number of layers; the first and the last also have the embedding and the logits.
    #[default]
    Beside,
    /// Embedding and logits count as one layer each, so the first and the last stage have one layer less (Megatron-LM's
    /// `--account-for-embedding-in-pipeline-split` and `--account-for-loss-in-pipeline-split`; Llama 3 405B, arXiv
    /// 2407.21783, section 3.3.2).
    AsLayers,
}

impl Ends {
    /// Number of layers that embedding and logits count as.
    fn layers(self) -> u64 {
        match self {
            Self::Beside => 0,
            Self::AsLayers => 2,
        }
    }
}

/// Sequence parallelism (Korthikanti et al.): work of tensor-parallel ranks between their matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sequence {
    /// Off: each rank processes all tokens.
    #[default]
    Whole,
    /// On: each rank processes its part of the sequence.
    Divided,
}

/// Division of routed experts among tensor-parallel ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Experts {
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
            experts: Experts::default(),
            context: 1,
            interleave: 1,
            sequence: Sequence::Whole,
            ends: Ends::default(),
            order: Order::default(),
            shard: None,
        }
    }
}

impl Degrees {
    /// Total number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u64 {
        let degrees = [self.tensor, self.pipeline, self.data, self.context].into_iter().map(u64::from);
        degrees.fold(1, u64::saturating_mul)
    }

    /// Tensor-parallel degree of experts.
    #[must_use]
    pub fn expert_tensor(&self) -> u32 {
        match self.experts {
            Experts::Divided => self.tensor,
            Experts::Whole => 1,
        }
    }

    /// Ranks of a stage over which experts may be divided or replicated.
    pub(crate) fn expert_ranks(&self) -> u32 {
        self.tensor / self.expert_tensor().max(1) * self.context * self.data
    }

    /// Ranks that hold the same weights: data- and context-parallel ranks.
    pub(super) fn copies(&self) -> u32 {
        self.data * self.context
    }

    /// Ranks that hold the same experts.
    pub(super) fn expert_copies(&self) -> u32 {
        self.expert_ranks() / self.expert.max(1)
    }

    /// Number of parts into which tensor-parallel ranks divide the tokens between matrices.
    #[must_use]
    pub fn token_shares(&self) -> u64 {
        match self.sequence {
            Sequence::Whole => 1,
            Sequence::Divided => u64::from(self.tensor),
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
        if self.experts == Experts::Whole {
            f.write_str(", etp 1")?;
        }
        self.shard.map_or(Ok(()), |shard| write!(f, ", shard {shard}"))
    }
}

/// Degrees whose product is the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The degrees.
    pub degrees: Degrees,
}

impl Layout {
    /// Creates the layout of a training job on `ranks` ranks.
    ///
    /// # Errors
    /// [`JobError`] at `parallel`: the product of the degrees is not the number of ranks, or the degrees do not divide
    /// the model or the batch. At `global_batch` or `shard` if these are the cause.
    pub fn new(job: &Training, ranks: u32, degrees: Degrees) -> Result<Self, JobError> {
        Self::training(job, ranks, degrees, Asker::Search)
    }

    fn training(job: &Training, ranks: u32, degrees: Degrees, asker: Asker) -> Result<Self, JobError> {
        let parts = Parts { model: &job.model, experts: job.model.experts, place: &job.places.parallel, asker };
        parts.check(ranks, degrees)?;
        let Degrees { tensor, pipeline, data, context, interleave, .. } = degrees;
        if job.processes == Processes::Single && (u64::from(data) != degrees.ranks() || degrees.expert > 1) {
            let message = format!("one process (processes) copies whole models: expected dp {ranks} alone");
            return Err(JobError::at(&job.places.parallel, message));
        }
        let seq = job.model.seq;
        parts.divide("tokens of a sequence", seq, "cp", context.into())?;
        if degrees.token_shares() > 1 {
            parts.divide("tokens of a sequence", seq, "cp × tp", u64::from(context) * u64::from(tensor))?;
        }
        let wrong = |message: String| Err(JobError::at(&job.places.parallel, message));
        if degrees.experts == Experts::Whole && degrees.sequence == Sequence::Whole {
            return wrong("etp 1: ranks of a tensor group have the same tokens: expected sequence = true".to_owned());
        }
        if degrees.experts == Experts::Whole && !degrees.order.has_tensor_inside_data() {
            return wrong(
                "etp 1: experts go round tensor groups first: expected tp right before dp in order".to_owned(),
            );
        }
        if degrees.experts == Experts::Whole && job.model.experts == 0 {
            return wrong("etp 1, and the model has no experts".to_owned());
        }
        if interleave > 1 && pipeline == 1 {
            return wrong(format!("interleave {interleave} needs stages, and pp is 1"));
        }
        let at_once = u64::from(data) * job.micro_batch;
        if !job.global_batch.is_multiple_of(at_once) {
            let message = format!(
                "global_batch {} is no whole number of times dp {data} × micro_batch {}",
                job.global_batch, job.micro_batch
            );
            return Err(JobError::at(&job.places.batch, message));
        }
        let micro_batches = job.global_batch / at_once;
        if interleave > 1 && !micro_batches.is_multiple_of(u64::from(pipeline)) {
            return wrong(format!(
                "interleave {interleave} takes micro-batches in rounds of pp {pipeline}, and there are {micro_batches}"
            ));
        }
        Ok(Self { degrees: Degrees { shard: job.shard_of(degrees)?, ..degrees } })
    }

    /// Creates the layout of an inference job on `ranks` ranks. `ep` divides experts and their redundant copies. Within
    /// a tensor-parallel group each expert's matrices are divided. Dividing the experts instead, as vLLM can, would
    /// move the same bytes and hold the same weights.
    ///
    /// # Errors
    /// [`JobError`] at `parallel`: the product of the degrees is not the number of ranks, or the degrees do not divide
    /// the model.
    pub fn serving(job: &Serving, ranks: u32, degrees: Degrees) -> Result<Self, JobError> {
        Self::inference(job, ranks, degrees, Asker::Search)
    }

    fn inference(job: &Serving, ranks: u32, degrees: Degrees, asker: Asker) -> Result<Self, JobError> {
        let parts = Parts { model: &job.model, experts: job.expert_slots(), place: &job.places.parallel, asker };
        parts.check(ranks, degrees)?;
        Ok(Self { degrees })
    }

    /// Returns the layout that a training job specifies, on `ranks` ranks; `None` if the job requests a search.
    ///
    /// # Errors
    /// Errors of [`Layout::new`].
    pub fn given(job: &Training, ranks: u32) -> Result<Option<Self>, JobError> {
        job.parallel.degrees(ranks).map(|degrees| Self::training(job, ranks, degrees, Asker::Person)).transpose()
    }

    /// Returns the layout that an inference job specifies, on `ranks` ranks; `None` if the job requests a search.
    ///
    /// # Errors
    /// Errors of [`Layout::serving`].
    pub fn given_to_serve(job: &Serving, ranks: u32) -> Result<Option<Self>, JobError> {
        job.parallel.degrees(ranks).map(|degrees| Self::inference(job, ranks, degrees, Asker::Person)).transpose()
    }

    /// Number of micro-batches of a rank in a step.
    #[must_use]
    pub fn micro_batches(&self, job: &Training) -> u64 {
        job.global_batch / (u64::from(self.degrees.data) * job.micro_batch).max(1)
    }

    /// Number of layers in a model chunk (`stretch`) of a stage, both counted from 0.
    #[must_use]
    pub fn stretch_layers(&self, model: &Model, stage: u32, stretch: u32) -> u64 {
        let Degrees { pipeline, interleave, ends, .. } = self.degrees;
        let each = self.each_stretch(model);
        let is_first = stage == 0 && stretch == 0;
        let is_last = stage + 1 == pipeline && stretch + 1 == interleave;
        match ends {
            Ends::Beside => each,
            Ends::AsLayers => each.saturating_sub(u64::from(is_first) + u64::from(is_last)),
        }
    }

    /// Layer slots of a model chunk. Embedding and logits may use one each.
    fn each_stretch(&self, model: &Model) -> u64 {
        let Degrees { pipeline, interleave, ends, .. } = self.degrees;
        (model.layers + ends.layers()) / (u64::from(pipeline) * u64::from(interleave)).max(1)
    }

    /// Layers of a model chunk, counted from the model's first. Chunk `i` of every stage comes before chunk `i + 1` of
    /// the first.
    #[must_use]
    pub fn stretch(&self, model: &Model, stage: u32, stretch: u32) -> Range<u64> {
        let before = u64::from(stretch) * u64::from(self.degrees.pipeline) + u64::from(stage);
        // Chunks after the first start one layer earlier if the embedding counts as a layer.
        let less = u64::from(before > 0 && self.degrees.ends == Ends::AsLayers);
        let first = (before * self.each_stretch(model)).saturating_sub(less);
        first..first + self.stretch_layers(model, stage, stretch)
    }

    /// Number of layers of a stage, counted from 0.
    #[must_use]
    pub fn stage_layers(&self, model: &Model, stage: u32) -> u64 {
        (0..self.degrees.interleave).map(|stretch| self.stretch_layers(model, stage, stretch)).sum()
    }

    /// Returns the stages of which one uses the most memory: the last, which computes the logits; the second, which may
    /// have more layers; and the first, which has the embedding. The first comes last, so that it wins ties.
    pub(crate) fn fullest_stages(&self) -> [u32; 3] {
        let last = self.degrees.pipeline.saturating_sub(1);
        [last, last.min(1), 0]
    }

    /// Returns true for the last stage.
    pub(crate) fn is_last(&self, stage: u32) -> bool {
        stage + 1 >= self.degrees.pipeline
    }

    /// Returns true if every rank has the whole model and its own sequences, as in DistributedDataParallel or FSDP.
    #[must_use]
    pub fn only_copies(&self) -> bool {
        let Degrees { tensor, pipeline, expert, context, .. } = self.degrees;
        [tensor, pipeline, expert, context] == [1; 4]
    }

    /// Number of parts of a layer around which tensor-parallel ranks gather and reduce all tokens: attention, and the
    /// feed-forward. If routed experts get their tokens otherwise, only shared experts count as a feed-forward.
    #[must_use]
    pub fn tensor_parts(&self, model: &Model) -> u64 {
        let is_apart = self.degrees.experts == Experts::Whole || self.gathers_routed(model);
        if is_apart && model.shared_experts == 0 { 1 } else { 2 }
    }

    /// Load of the rank with the most loaded experts, divided by the mean. The job's `skew` is limited by the number of
    /// expert-parallel ranks.
    #[must_use]
    pub fn fullest(&self, skew: f64) -> f64 {
        skew.min(f64::from(self.degrees.expert))
    }

    /// Returns true if tensor-parallel ranks gather routed tokens after the all-to-all, for experts whose matrices they
    /// divide; each token arrives once per expert chosen here. Without expert parallelism they gather all tokens first,
    /// as for any feed-forward (Megatron Core, `MoEAlltoAllTokenDispatcher` and `MoEAllGatherTokenDispatcher`).
    #[must_use]
    pub fn gathers_routed(&self, model: &Model) -> bool {
        let Degrees { experts, expert, sequence, .. } = self.degrees;
        model.experts > 0 && experts == Experts::Divided && expert > 1 && sequence == Sequence::Divided
    }
}

impl Parallel {
    /// Returns the specified degrees on `ranks` ranks. An absent data-parallel degree is computed from the remaining
    /// ranks.
    fn degrees(&self, ranks: u32) -> Option<Degrees> {
        let Self::Given { degrees, data } = self else { return None };
        let left = u64::from(ranks) / Degrees { data: 1, ..*degrees }.ranks().max(1);
        let data = data.unwrap_or(u32::try_from(left).unwrap_or(ranks).max(1));
        Some(Degrees { data, ..*degrees })
    }
}

/// Divisibility checks shared by all kinds of jobs.
struct Parts<'a> {
    model: &'a Model,
    /// Experts of a layer, redundant copies included.
    experts: u64,
    place: &'a Place,
    asker: Asker,
}

/// Requester of a check of degrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asker {
    /// User who specified the degrees; errors suggest alternatives.
    Person,
    /// Search over many degrees, which ignores error texts.
    Search,
}

/// Returns the divisors of `whole` nearest to `by`, as text: the largest below, and the smallest above if it is within
/// reach of a bounded scan.
fn around(whole: u64, by: u64) -> String {
    let divides = |one: &u64| whole.is_multiple_of(*one);
    let below = (1..by.min(whole + 1)).rev().find(divides).unwrap_or(1);
    match (by + 1..=whole).take(1 << 18).find(divides) {
        Some(above) => format!("{below} or {above}"),
        None => below.to_string(),
    }
}

impl Parts<'_> {
    fn divide(&self, what: &str, whole: u64, name: &str, by: u64) -> Result<(), JobError> {
        match whole % by.max(1) {
            0 => Ok(()),
            _ => {
                let error = JobError::at(self.place, format!("{whole} {what} cannot be divided by {name} {by}"));
                let help = (self.asker == Asker::Person).then(|| format!("{name} can be {}", around(whole, by)));
                Err(JobError { help, ..error })
            }
        }
    }

    /// Checks that the product of the degrees is the number of ranks, and that the model is divisible by them.
    fn check(&self, ranks: u32, degrees: Degrees) -> Result<(), JobError> {
        let wrong = |message: String| Err(JobError::at(self.place, message));
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
            return wrong(format!("{} heads of keys and values cannot be divided by tp {tensor}", model.kv_heads));
        }
        self.divide("columns of the feed-forward", model.ffn, "tp", tensor_ranks)?;
        self.divide("words of the vocabulary", model.vocab, "tp", tensor_ranks)?;
        let stretches = u64::from(pipeline) * u64::from(interleave);
        let name = if interleave > 1 { "pp × interleave" } else { "pp" };
        let what = match degrees.ends {
            Ends::Beside => "layers",
            Ends::AsLayers => "layers, both ends among them,",
        };
        self.divide(what, model.layers + degrees.ends.layers(), name, stretches)?;
        if self.experts == 0 && expert > 1 {
            return wrong(format!("ep {expert}, and the model has no experts"));
        }
        self.divide("experts", self.experts, "ep", expert.into())?;
        let among = match degrees.experts {
            Experts::Divided if context == 1 => "data-parallel ranks",
            Experts::Divided => "ranks of cp × dp",
            Experts::Whole => "ranks of tp × cp × dp",
        };
        self.divide(among, degrees.expert_ranks().into(), "ep", expert.into())
    }
}
