//! Which ranks work together: degrees of parallelism, and the groups of ranks that they make.
//!
//! Ranks are numbered over the fabric's GPUs, host by host, and a group's stride decides how far apart its ranks are.
//! Innermost, so on neighbouring GPUs, are those who talk most: tensor, then context, then data, then pipeline (as
//! Megatron-LM orders them: tp-cp-ep-dp-pp), unless a job says otherwise ([`Order`]). Experts are divided among ranks that have
//! different tokens, so their degree does not multiply the ranks: among those of the context and data dimensions, and where
//! tensor-parallel ranks have whole experts ([`Experts`]) among these too, innermost first (Megatron Core's
//! `expert_decoder_rank_generator`; Liu et al., "MoE Parallel Folding", arXiv 2504.14960).

use std::ops::Range;

use fabricast_topologies::Place;

use super::{JobError, Model, Order, Parallel, Processes, Serving, Training};

/// How many ways the work is divided in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Degrees {
    /// Ranks that share each matrix.
    pub tensor: u32,
    /// Stages of layers.
    pub pipeline: u32,
    /// Copies of the model.
    pub data: u32,
    /// Ranks that divide a layer's experts.
    pub expert: u32,
    /// Whether tensor-parallel ranks divide the matrices of experts.
    pub experts: Experts,
    /// Ranks that share each sequence.
    pub context: u32,
    /// Stretches of layers on each stage.
    pub interleave: u32,
    /// Whether tensor-parallel ranks divide the sequence where they do not divide matrices.
    pub sequence: Sequence,
    /// Whether words and logits take a layer's place each.
    pub ends: Ends,
    /// Whose ranks are neighbours.
    pub order: Order,
    /// Ranks that a copy of the states is spread over; absent: all that hold copies.
    pub shard: Option<u32>,
}

/// How what stands before the first layer and after the last is divided among stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ends {
    /// Stages have equally many layers, and the first and the last have words and logits besides.
    #[default]
    Beside,
    /// Words and logits count as a layer each, so that the first and the last stage have one layer less (Megatron-LM's
    /// `--account-for-embedding-in-pipeline-split` and `--account-for-loss-in-pipeline-split`; Llama 3 405B, arXiv 2407.21783,
    /// section 3.3.2).
    AsLayers,
}

impl Ends {
    /// Layers whose place the ends take.
    fn layers(self) -> u64 {
        match self {
            Self::Beside => 0,
            Self::AsLayers => 2,
        }
    }
}

/// What tensor-parallel ranks do between their matrices (Korthikanti et al.).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sequence {
    /// Each does all tokens.
    #[default]
    Whole,
    /// Each does its part of the sequence.
    Divided,
}

/// What tensor-parallel ranks do with experts that tokens choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Experts {
    /// Each has a part of the matrices of the same experts, as of all others (Megatron-LM's default).
    #[default]
    Divided,
    /// Each has other experts, whole, for its part of the sequence (Megatron-LM's `--expert-tensor-parallel-size 1`).
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
    /// Ranks in all.
    #[must_use]
    pub fn ranks(&self) -> u64 {
        let degrees = [self.tensor, self.pipeline, self.data, self.context].into_iter().map(u64::from);
        degrees.fold(1, u64::saturating_mul)
    }

    /// Ranks that share the matrices of an expert.
    #[must_use]
    pub fn expert_tensor(&self) -> u32 {
        match self.experts {
            Experts::Divided => self.tensor,
            Experts::Whole => 1,
        }
    }

    /// Ranks of a stage among which experts may be divided, or copied.
    pub(crate) fn expert_ranks(&self) -> u32 {
        self.tensor / self.expert_tensor().max(1) * self.context * self.data
    }

    /// Ranks that hold the same weights: copies, and those that share sequences.
    pub(super) fn copies(&self) -> u32 {
        self.data * self.context
    }

    /// Ranks that hold the same experts.
    pub(super) fn expert_copies(&self) -> u32 {
        self.expert_ranks() / self.expert.max(1)
    }

    /// What tensor-parallel ranks divide the tokens by between matrices.
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

/// Degrees that multiply to the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The degrees.
    pub degrees: Degrees,
}

impl Layout {
    /// A training job's degrees on so many ranks.
    ///
    /// # Errors
    /// [`JobError`] at `parallel`: degrees that do not multiply to the ranks, or that the model or the batch does not
    /// divide by; at `global_batch` or `shard` where that is at fault.
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

    /// An inference job's degrees on so many ranks. Experts and their second copies divide by `ep`.
    /// Within a tensor-parallel group each expert's matrices are divided: experts divided there instead, as vLLM can, would move the
    /// same bytes and hold the same weights.
    ///
    /// # Errors
    /// [`JobError`] at `parallel`: degrees that do not multiply to the ranks, or that the model does not divide by.
    pub fn serving(job: &Serving, ranks: u32, degrees: Degrees) -> Result<Self, JobError> {
        Self::inference(job, ranks, degrees, Asker::Search)
    }

    fn inference(job: &Serving, ranks: u32, degrees: Degrees, asker: Asker) -> Result<Self, JobError> {
        let parts = Parts { model: &job.model, experts: job.expert_slots(), place: &job.places.parallel, asker };
        parts.check(ranks, degrees)?;
        Ok(Self { degrees })
    }

    /// The degrees that a training job names, on so many ranks; `None` where they are to be looked for.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn given(job: &Training, ranks: u32) -> Result<Option<Self>, JobError> {
        job.parallel.degrees(ranks).map(|degrees| Self::training(job, ranks, degrees, Asker::Person)).transpose()
    }

    /// The degrees that an inference job names, on so many ranks; `None` where they are to be looked for.
    ///
    /// # Errors
    /// As [`Layout::serving`].
    pub fn given_to_serve(job: &Serving, ranks: u32) -> Result<Option<Self>, JobError> {
        job.parallel.degrees(ranks).map(|degrees| Self::inference(job, ranks, degrees, Asker::Person)).transpose()
    }

    /// Forward passes of a rank in a step.
    #[must_use]
    pub fn micro_batches(&self, job: &Training) -> u64 {
        job.global_batch / (u64::from(self.degrees.data) * job.micro_batch).max(1)
    }

    /// Layers of a stretch of a stage, both counted from 0.
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

    /// Places of layers in a stretch, of which words and scores may take one each.
    fn each_stretch(&self, model: &Model) -> u64 {
        let Degrees { pipeline, interleave, ends, .. } = self.degrees;
        (model.layers + ends.layers()) / (u64::from(pipeline) * u64::from(interleave)).max(1)
    }

    /// Those layers, counted from the model's first: a stretch of all stages comes before the next one of the first.
    #[must_use]
    pub fn stretch(&self, model: &Model, stage: u32, stretch: u32) -> Range<u64> {
        let before = u64::from(stretch) * u64::from(self.degrees.pipeline) + u64::from(stage);
        // The first has a layer less where words take the place of one.
        let less = u64::from(before > 0 && self.degrees.ends == Ends::AsLayers);
        let first = (before * self.each_stretch(model)).saturating_sub(less);
        first..first + self.stretch_layers(model, stage, stretch)
    }

    /// Layers of a stage, counted from 0.
    #[must_use]
    pub fn stage_layers(&self, model: &Model, stage: u32) -> u64 {
        (0..self.degrees.interleave).map(|stretch| self.stretch_layers(model, stage, stretch)).sum()
    }

    /// The stages of which one holds the most: the last, which scores tokens, the second, which may have more layers, and the first,
    /// which has the words and stands behind the others, so that it is the greatest of equals.
    pub(crate) fn fullest_stages(&self) -> [u32; 3] {
        let last = self.degrees.pipeline.saturating_sub(1);
        [last, last.min(1), 0]
    }

    /// Whether no stage comes after this one.
    pub(crate) fn is_last(&self, stage: u32) -> bool {
        stage + 1 >= self.degrees.pipeline
    }

    /// Whether every rank has the whole model and sequences of its own, as ranks of DistributedDataParallel or FSDP have.
    #[must_use]
    pub fn only_copies(&self) -> bool {
        let Degrees { tensor, pipeline, expert, context, .. } = self.degrees;
        [tensor, pipeline, expert, context] == [1; 4]
    }

    /// Parts of a layer for which tensor-parallel ranks gather and reduce all tokens: attention, and the feed-forward, or those experts
    /// that all tokens go to, where the others have their tokens from elsewhere.
    #[must_use]
    pub fn tensor_parts(&self, model: &Model) -> u64 {
        let is_apart = self.degrees.experts == Experts::Whole || self.gathers_routed(model);
        if is_apart && model.shared_experts == 0 { 1 } else { 2 }
    }

    /// The load of the rank with the fullest experts over the mean, of a job that says so much of it: no rank has more than all of it.
    #[must_use]
    pub fn fullest(&self, skew: f64) -> f64 {
        skew.min(f64::from(self.degrees.expert))
    }

    /// Whether tensor-parallel ranks gather tokens for the experts that they divide after these have come from other ranks, each as
    /// often as experts here want it; where experts are not divided among others they gather all tokens first, as for any feed-forward
    /// (Megatron Core, `MoEAlltoAllTokenDispatcher` and `MoEAllGatherTokenDispatcher`).
    #[must_use]
    pub fn gathers_routed(&self, model: &Model) -> bool {
        let Degrees { experts, expert, sequence, .. } = self.degrees;
        model.experts > 0 && experts == Experts::Divided && expert > 1 && sequence == Sequence::Divided
    }
}

impl Parallel {
    /// What is named, on so many ranks: data-parallel is what is left of them, where it is not named.
    fn degrees(&self, ranks: u32) -> Option<Degrees> {
        let Self::Given { degrees, data } = self else { return None };
        let left = u64::from(ranks) / Degrees { data: 1, ..*degrees }.ranks().max(1);
        let data = data.unwrap_or(u32::try_from(left).unwrap_or(ranks).max(1));
        Some(Degrees { data, ..*degrees })
    }
}

/// What is divided, of any kind of job.
struct Parts<'a> {
    model: &'a Model,
    /// Experts of a layer, second copies included.
    experts: u64,
    place: &'a Place,
    asker: Asker,
}

/// Who wants to know whether degrees can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asker {
    /// Somebody who named them, and is told what could be instead.
    Person,
    /// A search, which tries many and reads no errors.
    Search,
}

/// What divides a number, next to one that does not: the largest below it, and the least above it if that is no degree beyond all ranks.
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

    /// Whether degrees multiply to the ranks, and the model divides by them.
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
