//! Software by name: the values of a job's keys that it sets.
//!
//! One table, [`frameworks`], holds them with their sources (`planner/workload/data/frameworks.toml`). A job states its
//! software as `framework = "NAME"` or `"NAME@VERSION"`; keys that the job states itself take precedence.

use std::sync::OnceLock;

use serde::Deserialize;

use super::{
    AlgorithmConnection, Batching, DispatchPrecision, Dispatcher, FirstToken, GradientAddition, KernelFusion,
    LaunchMode, Precision, Processes, StatePartition, StepScheduling, TensorAllReduce, TransferUnit, UpdatedGradients,
};

/// Kind of work that a framework supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FrameworkKind {
    /// Training.
    #[default]
    Training,
    /// Inference.
    Inference,
}

impl FrameworkKind {
    /// Returns the name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Inference => "inference",
        }
    }
}

/// Values of a job's keys that software sets; absent values are the defaults of jobs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Framework {
    /// Name by which jobs state it.
    pub name: String,
    /// Other names.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Kind of work that the framework supports.
    #[serde(default)]
    pub kind: FrameworkKind,
    /// First version with these values; `None` for the first version.
    pub since: Option<String>,
    /// Fusion of elementwise and normalization kernels.
    pub kernels: Option<KernelFusion>,
    /// True if attention is one fused kernel.
    pub flash_attention: Option<bool>,
    /// Bits of a gradient in communication.
    pub gradient_bits: Option<u32>,
    /// Bits of each of Adam's moments.
    pub moment_bits: Option<u32>,
    /// True if a 32-bit copy of narrower weights is stored.
    pub master_weights: Option<bool>,
    /// Size of the software's buffers on each GPU, in MiB.
    pub buffers_mb: Option<u32>,
    /// Addition of weight gradients over micro-batches.
    pub gradient_addition: Option<GradientAddition>,
    /// Addition of weight gradients over micro-batches in fp16, if it differs.
    pub gradient_addition_fp16: Option<GradientAddition>,
    /// Temporary copies of the parameters that the optimizer's kernels write.
    pub optimizer_temporaries: Option<u64>,
    /// Gradients that the optimizer reads.
    pub updated_gradients: Option<UpdatedGradients>,
    /// NCCL's connection of a communicator's algorithms.
    pub connection: Option<AlgorithmConnection>,
    /// Pieces in which logits and loss are computed.
    pub loss_chunks: Option<u64>,
    /// True if communication overlaps with independent computation.
    pub overlap: Option<bool>,
    /// Stage of ZeRO: 0 to 3.
    pub zero: Option<u8>,
    /// Division of the optimizer states among ranks with ZeRO-1.
    pub zero_partition: Option<StatePartition>,
    /// Gradient bucket size in MiB.
    pub bucket_mb: Option<u32>,
    /// Processes that drive the GPUs of a host.
    pub processes: Option<Processes>,
    /// Launch of the step's kernels.
    pub launch: Option<LaunchMode>,
    /// Largest number of requests in a step.
    pub max_num_seqs: Option<u64>,
    /// Largest number of tokens in a step.
    pub max_batched_tokens: Option<u64>,
    /// Tokens that steps with prefill process.
    pub batching: Option<Batching>,
    /// Time at which the host plans a step.
    pub scheduling: Option<StepScheduling>,
    /// Milliseconds of a request outside of steps ([`HostTimes::request`](super::HostTimes::request)).
    pub request_ms: Option<f64>,
    /// Milliseconds to launch a dense layer in a step with prefill.
    pub prefill_layer_ms: Option<f64>,
    /// Milliseconds to launch a layer with experts in a step with prefill.
    pub prefill_expert_layer_ms: Option<f64>,
    /// Milliseconds to launch a layer with experts in 8 or 4 bits in a step with prefill.
    pub prefill_quantized_expert_layer_ms: Option<f64>,
    /// Additional milliseconds to launch a layer with latent attention in a step with prefill.
    pub prefill_latent_layer_ms: Option<f64>,
    /// Factor on the time to launch a layer with experts in 8 or 4 bits in a step with prefill, on AMD's GPUs.
    pub amd_quantized_prefill_factor: Option<f64>,
    /// Largest number of tokens of a step with prefill that consists of CUDA graphs between attention kernels.
    pub graph_tokens: Option<u64>,
    /// Milliseconds to launch a dense layer of such a step.
    pub graph_layer_ms: Option<f64>,
    /// Milliseconds to launch a layer with experts of such a step.
    pub graph_expert_layer_ms: Option<f64>,
    /// Milliseconds between steps in which the GPUs wait.
    pub step_ms: Option<f64>,
    /// Microseconds of the host for each request of a step ([`HostTimes::step_request`](super::HostTimes::step_request)).
    pub step_request_us: Option<f64>,
    /// Share of a GPU's memory that may be filled.
    pub gpu_memory_utilization: Option<f64>,
    /// Additional microseconds of the GPU for a layer with experts in 8 or 4 bits on AMD's GPUs.
    pub amd_quantized_expert_layer_us: Option<f64>,
    /// Kernels of all-reduces among tensor-parallel ranks.
    pub all_reduce: Option<TensorAllReduce>,
    /// Software that exchanges the tokens of experts.
    pub dispatcher: Option<Dispatcher>,
    /// Type of dispatched tokens, if it does not follow from the precision.
    pub dispatch_precision: Option<DispatchPrecision>,
    /// Part of a prompt's keys and values that is sent to GPUs for decode as soon as it is computed.
    pub kv_transfer: Option<TransferUnit>,
    /// Source of the first token if other GPUs decode.
    pub first_token: Option<FirstToken>,
    /// Files of the software, or publications, from which the values were read.
    pub source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    framework: Vec<Framework>,
}

impl Framework {
    /// Values of unnamed software: all keys are absent.
    pub(super) fn unnamed() -> &'static Self {
        static UNNAMED: OnceLock<Framework> = OnceLock::new();
        UNNAMED.get_or_init(Self::default)
    }

    /// Addition of weight gradients over micro-batches in a precision.
    pub(super) fn gradient_addition_in(&self, precision: Precision) -> Option<GradientAddition> {
        let of_fp16 = self.gradient_addition_fp16.filter(|_| precision == Precision::Fp16);
        of_fp16.or(self.gradient_addition)
    }
}

/// All entries of the table, in the order of the data file; versions of a framework ascend.
#[must_use]
pub fn frameworks() -> &'static [Framework] {
    static FRAMEWORKS: OnceLock<Vec<Framework>> = OnceLock::new();
    // A test reads the built-in file, so it always parses here.
    FRAMEWORKS.get_or_init(|| {
        toml::from_str::<File>(include_str!("../../data/frameworks.toml"))
            .map(|file| file.framework)
            .unwrap_or_default()
    })
}

/// Entries of all versions of a framework, by its name or another.
fn named(name: &str) -> impl Iterator<Item = &'static Framework> {
    frameworks().iter().filter(move |entry| entry.name == name || entry.aliases.iter().any(|alias| alias == name))
}

/// Finds the entry for `NAME` or `NAME@VERSION`: the last one that the version includes, or the last without version.
/// `None` if no framework has this name.
#[must_use]
pub fn find_framework(name: &str) -> Option<&'static Framework> {
    let (name, version) = match name.split_once('@') {
        Some((name, version)) => (name, Some(version)),
        None => (name, None),
    };
    let entries: Vec<&Framework> = named(name).collect();
    let is_included = |entry: &&&Framework| match (version, entry.since.as_deref()) {
        (Some(version), Some(since)) => numbers(version) >= numbers(since),
        _ => true,
    };
    entries.iter().rfind(is_included).or(entries.first()).copied()
}

/// Describes the versions of the software in `NAME@VERSION` if the version is not one of them: numbers, or the month of
/// a release if the table has months.
pub(super) fn expected_version(name: &str) -> Option<&'static str> {
    let (name, version) = name.split_once('@')?;
    let has_months = named(name).filter_map(|entry| entry.since.as_deref()).any(is_month);
    let is_number = numbers(version).first().is_some_and(|&first| first < FIRST_YEAR);
    match (is_month(version), has_months) {
        (true, true) => None,
        (false, false) if is_number => None,
        // A framework without entries by version accepts both.
        (true, false) if find_framework(name)?.since.is_none() => None,
        (_, true) => Some("a month such as 2024-05"),
        (_, false) => Some("a number such as 0.7.3"),
    }
}

/// Smallest first number of a version that is a month.
const FIRST_YEAR: u64 = 2000;

fn is_month(version: &str) -> bool {
    numbers(version).first().is_some_and(|&year| year >= FIRST_YEAR)
}

/// Numbers of a version, which compare like versions.
fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_table_is_read_and_unambiguous() {
        let file: File = toml::from_str(include_str!("../../data/frameworks.toml")).unwrap();
        assert_eq!(file.framework.len(), frameworks().len());
        for entry in frameworks() {
            assert!(!entry.source.is_empty(), "{}", entry.name);
            for name in std::iter::once(&entry.name).chain(&entry.aliases) {
                assert_eq!(find_framework(name).unwrap().name, entry.name, "{name}");
            }
            let same = frameworks().iter().filter(|other| other.name == entry.name);
            assert!(same.is_sorted_by_key(|entry| entry.since.as_deref().map(numbers)), "{}", entry.name);
        }
        assert_eq!(find_framework("fortran"), None);
    }

    #[test]
    fn versions_that_name_no_release_are_refused() {
        for name in ["vllm@latest", "megatron@nightly", "fms-fsdp@1.2", "vllm@2025-04"] {
            assert!(expected_version(name).is_some(), "{name}");
        }
        for name in ["vllm", "vllm@0.7.3", "fms-fsdp@2024-06", "internevo@2023-07", "megatron@0.12"] {
            assert_eq!(expected_version(name), None, "{name}");
        }
    }

    #[test]
    fn version_selects_the_last_entry_that_includes_it() {
        let kernels = |name: &str| find_framework(name).unwrap().kernels;
        assert_eq!(kernels("fms-fsdp"), Some(KernelFusion::Compiled));
        assert_eq!(kernels("fms-fsdp@2024-08"), Some(KernelFusion::Compiled));
        assert_eq!(kernels("fms-fsdp@2024-04"), Some(KernelFusion::Eager));
        assert_eq!(kernels("fms-fsdp@2020"), Some(KernelFusion::Eager));
    }
}
