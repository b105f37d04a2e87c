//! Software with which a job dispatches tokens to their experts and combines the outputs.

use fabricast_experts::{ExchangeKernel, TokenType};
use serde::Deserialize;

use super::Precision;

/// Software that exchanges the tokens of layers with experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub enum Dispatcher {
    /// An all_to_all with a copy of a token for each of its experts (Megatron-LM, `--moe-token-dispatcher-type alltoall`).
    #[default]
    #[serde(rename = "all_to_all")]
    AllToAll,
    /// An all_gather of all tokens, and a reduce_scatter of the outputs (vLLM, `--all2all-backend allgather_reducescatter`).
    #[serde(rename = "all_gather")]
    AllGather,
    /// DeepEP: in inference the low-latency kernels for steps without prefill and the normal kernels for the others
    /// (SGLang, `--deepep-mode auto`), in training the normal kernels.
    #[serde(rename = "deepep")]
    DeepEp,
    /// DeepEP's normal kernels in all steps (vLLM, `deepep_high_throughput`).
    #[serde(rename = "deepep-normal")]
    DeepEpNormal,
    /// DeepEP's low-latency kernels in all steps (vLLM, `deepep_low_latency`).
    #[serde(rename = "deepep-low-latency")]
    DeepEpLowLatency,
    /// DeepEP V2 (`ElasticBuffer`).
    #[serde(rename = "deepep-v2")]
    DeepEpElastic,
    /// NCCL EP's low-latency kernels.
    #[serde(rename = "nccl-ep")]
    NcclEp,
    /// pplx-kernels.
    #[serde(rename = "pplx")]
    Pplx,
    /// TensorRT-LLM's all-to-all through FIFOs.
    #[serde(rename = "trtllm")]
    TensorRt,
    /// TensorRT-LLM's one-sided all-to-all.
    #[serde(rename = "trtllm-one-sided")]
    TensorRtOneSided,
}

/// Kind of step whose tokens are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// Training, or inference with prefill.
    Prefill,
    /// Inference without prefill.
    Decode,
}

impl Dispatcher {
    /// Kernel that exchanges the tokens of a step; `None` if collectives do.
    #[must_use]
    pub fn kernel(self, step: StepKind) -> Option<ExchangeKernel> {
        match (self, step) {
            (Self::AllToAll | Self::AllGather, _) => None,
            (Self::DeepEp, StepKind::Prefill) | (Self::DeepEpNormal, _) => Some(ExchangeKernel::DeepEp),
            (Self::DeepEp, StepKind::Decode) | (Self::DeepEpLowLatency, _) => Some(ExchangeKernel::DeepEpLowLatency),
            (Self::DeepEpElastic, _) => Some(ExchangeKernel::DeepEpElastic),
            (Self::NcclEp, _) => Some(ExchangeKernel::NcclEpLowLatency),
            (Self::Pplx, _) => Some(ExchangeKernel::Pplx),
            (Self::TensorRt, _) => Some(ExchangeKernel::TensorRtTwoSided),
            (Self::TensorRtOneSided, _) => Some(ExchangeKernel::TensorRtOneSided),
        }
    }
}

/// Element type of dispatched tokens; tokens are combined in 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DispatchPrecision {
    /// 16 bits per element.
    Bf16,
    /// 8 bits per element and a scale of 32 bits per 128 elements.
    Fp8,
    /// 4 bits per element and a scale of 8 bits per 16 elements.
    Nvfp4,
}

impl DispatchPrecision {
    fn token_type(self) -> TokenType {
        match self {
            Self::Bf16 => TokenType::Bf16,
            Self::Fp8 => TokenType::Fp8,
            Self::Nvfp4 => TokenType::Nvfp4,
        }
    }
}

/// Origin of a job's choice of dispatcher, which determines the behaviour on GPUs without support for the dispatcher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DispatcherOrigin {
    /// The job states it. Machines that do not support it are rejected.
    Stated,
    /// It is the default of the software, which uses an all_to_all on machines that do not support it.
    #[default]
    Software,
}

/// Dispatch and combine of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Dispatch {
    /// Software that exchanges the tokens.
    pub dispatcher: Dispatcher,
    /// Origin of the choice.
    pub origin: DispatcherOrigin,
    /// Type of dispatched tokens; `None`: determined by the precision of the job ([`Self::token_type`]).
    pub precision: Option<DispatchPrecision>,
    /// Overlap of dispatch and combine with the computation of another micro-batch.
    pub overlap: ExpertOverlap,
}

/// Overlap of dispatch and combine with computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExpertOverlap {
    /// A layer waits for its dispatch and its combine.
    #[default]
    Off,
    /// Dispatch and combine of one micro-batch run during the computation of another: half of the batch in inference
    /// (SGLang, `--enable-two-batch-overlap`; vLLM, `--enable-dbo`), a forward and a backward pass in training
    /// (DualPipe, arXiv 2412.19437, section 3.2.1; Megatron-LM, `--overlap-moe-expert-parallel-comm`).
    TwoBatches,
}

/// Copies of tokens that separate kernels make around dispatch and combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCopies {
    /// True if tokens are permuted by destination rank before the dispatch, and back after the combine.
    pub by_rank: bool,
    /// True if received tokens are sorted by expert, and back.
    pub by_expert: bool,
}

impl Dispatch {
    /// Variant with an all_to_all, which software uses where its dispatcher does not run.
    #[must_use]
    pub fn with_collectives(self) -> Self {
        Self { dispatcher: Dispatcher::AllToAll, ..self }
    }

    /// Copies of tokens in a kind of step. An all_to_all needs contiguous blocks (Megatron Core,
    /// `MoEAlltoAllTokenDispatcher`); kernels of libraries need no contiguous blocks. Those that send a copy for each
    /// expert store it at the expert (DeepEP, `internode_ll.cu`; `contrib/nccl_ep`; pplx-kernels).
    #[must_use]
    pub fn copies(&self, step: StepKind) -> TokenCopies {
        match self.dispatcher.kernel(step) {
            // Every rank receives all tokens as they are.
            None if self.dispatcher == Dispatcher::AllGather => TokenCopies { by_rank: false, by_expert: true },
            None => TokenCopies { by_rank: true, by_expert: true },
            Some(ExchangeKernel::DeepEpLowLatency | ExchangeKernel::NcclEpLowLatency | ExchangeKernel::Pplx) => {
                TokenCopies { by_rank: false, by_expert: false }
            }
            Some(
                ExchangeKernel::DeepEp
                | ExchangeKernel::DeepEpElastic
                | ExchangeKernel::TensorRtOneSided
                | ExchangeKernel::TensorRtTwoSided,
            ) => TokenCopies { by_rank: false, by_expert: true },
        }
    }

    /// Type of dispatched tokens: by default 8 bits with 8-bit weights, 4 bits with 4-bit weights if the kernel
    /// supports such tokens (TensorRT-LLM), and 16 bits otherwise.
    #[must_use]
    pub fn token_type(&self, kernel: ExchangeKernel, precision: Precision) -> TokenType {
        let sends_4_bits = matches!(kernel, ExchangeKernel::TensorRtTwoSided | ExchangeKernel::TensorRtOneSided);
        match (self.precision, precision) {
            (Some(stated), _) => stated.token_type(),
            (None, Precision::Fp8) => TokenType::Fp8,
            (None, Precision::Nvfp4) if sends_4_bits => TokenType::Nvfp4,
            (None, _) => TokenType::Bf16,
        }
    }

    /// Bytes of an element of a dispatched token in a collective; `None` if the job does not state its type.
    #[must_use]
    pub fn stated_element_bytes(&self) -> Option<f64> {
        self.precision.map(|precision| match precision {
            DispatchPrecision::Bf16 => Precision::Bf16.served_bytes(),
            DispatchPrecision::Fp8 => Precision::Fp8.served_bytes(),
            DispatchPrecision::Nvfp4 => Precision::Nvfp4.served_bytes(),
        })
    }
}
