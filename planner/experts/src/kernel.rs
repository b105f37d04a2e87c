//! Kernels of libraries that dispatch and combine tokens: names and structure, each with its source file.

use std::str::FromStr;

use fabricast_sim::schedule::UnknownName;
use fabricast_topologies::variants::variants;
use strum::{EnumCount, VariantArray};

/// Operation on the tokens of a layer of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Counts tokens per rank and builds their index lists before a dispatch.
    Prepare,
    /// Sends tokens to the ranks of their experts.
    Dispatch,
    /// Sends the experts' outputs back and sums them per token.
    Combine,
}

const OPERATIONS: [(Operation, &str); 3] =
    [(Operation::Prepare, "prepare"), (Operation::Dispatch, "dispatch"), (Operation::Combine, "combine")];

impl Operation {
    /// Name of the operation.
    #[must_use]
    pub fn name(self) -> &'static str {
        OPERATIONS.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }
}

impl FromStr for Operation {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let found = OPERATIONS.iter().find(|row| row.1 == text).map(|row| row.0);
        found.ok_or_else(|| UnknownName::new("operation", text, &OPERATIONS.map(|row| row.1)))
    }
}

/// Kernel of a library for dispatch and combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, EnumCount, VariantArray)]
pub enum ExchangeKernel {
    /// DeepEP's normal kernels (V1): one copy of a token to each NVLink domain over the NIC of the GPU with the same
    /// index there, then over NVLink to the GPUs of its experts (`csrc/kernels/legacy/internode.cu`, `intranode.cu`).
    #[default]
    DeepEp,
    /// DeepEP's low-latency kernels: a copy for every expert, over NVLink inside a domain and by a put that the GPU
    /// posts to the NIC (IBGDA) otherwise (`csrc/kernels/legacy/internode_ll.cu`).
    DeepEpLowLatency,
    /// DeepEP V2 (`ElasticBuffer`): tokens travel as with the normal kernels; the number of SMs is computed so that it
    /// does not limit the rate (README.md).
    DeepEpElastic,
    /// NCCL EP's low-latency kernels (0.1.0): DeepEP's with NCCL's device API, a copy for every rank with an expert in a
    /// dispatch and for every expert in a combine (`contrib/nccl_ep/device/low_latency.cu`).
    NcclEpLowLatency,
    /// pplx-kernels: a copy for every expert by NVSHMEM puts (`csrc/all_to_all/internode_dispatch.cu`).
    Pplx,
    /// TensorRT-LLM's all-to-all through FIFOs in the receiver's memory, a warp per peer and channel
    /// (`cpp/tensorrt_llm/kernels/fusedMoeCommKernels.cu`).
    TensorRtTwoSided,
    /// TensorRT-LLM's all-to-all by stores into, and loads from, other GPUs' memory
    /// (`communicationKernels/moeAlltoAllKernels.cu`).
    TensorRtOneSided,
}

const KERNELS: [(ExchangeKernel, &str); 7] = [
    (ExchangeKernel::DeepEp, "deepep"),
    (ExchangeKernel::DeepEpLowLatency, "deepep-ll"),
    (ExchangeKernel::DeepEpElastic, "deepep-v2"),
    (ExchangeKernel::NcclEpLowLatency, "nccl-ep-ll"),
    (ExchangeKernel::Pplx, "pplx"),
    (ExchangeKernel::TensorRtTwoSided, "trtllm"),
    (ExchangeKernel::TensorRtOneSided, "trtllm-one-sided"),
];

/// Receivers, each of which gets one copy of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyTarget {
    /// One for each expert.
    Expert,
    /// One for each rank with an expert of the token.
    Rank,
    /// One for each NVLink domain with an expert of the token. It is forwarded to the ranks there.
    Domain,
}

impl ExchangeKernel {
    /// All kernels, in the order of the documentation.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Name of the kernel on the command line and in manifests.
    #[must_use]
    pub fn name(self) -> &'static str {
        KERNELS.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }

    /// Copies of a token between ranks.
    pub(crate) fn copies(self, operation: Operation) -> CopyTarget {
        match (self, operation) {
            (Self::DeepEp | Self::DeepEpElastic, _) => CopyTarget::Domain,
            (Self::NcclEpLowLatency, Operation::Prepare | Operation::Dispatch)
            | (Self::TensorRtTwoSided | Self::TensorRtOneSided, _) => CopyTarget::Rank,
            (Self::NcclEpLowLatency, Operation::Combine) | (Self::DeepEpLowLatency | Self::Pplx, _) => {
                CopyTarget::Expert
            }
        }
    }

    /// Copies of a token that a library's benchmark counts as its bytes.
    pub(crate) fn reported_copies(self) -> CopyTarget {
        // If any operation has a copy per expert, the combine has.
        self.copies(Operation::Combine)
    }

    /// Bytes that are sent with a token in addition to its elements and scales. Low latency: the token's index and
    /// padding, 16 bytes. NCCL EP: a token number of 4 bytes and an expert number of 2 bytes for each expert, aligned
    /// to 16 (`contrib/nccl_ep/include/common.hpp`, `DispatchHdr`). TensorRT-LLM's dispatch: expert number and weight
    /// for each expert of the token, 4 bytes each.
    pub(crate) fn header_bytes(self, operation: Operation, top_k: u32) -> f64 {
        match (self, operation) {
            (Self::DeepEpLowLatency | Self::Pplx, _) => 16.0,
            (Self::NcclEpLowLatency, Operation::Prepare | Operation::Dispatch) => {
                f64::from((4 + 2 * top_k).next_multiple_of(16))
            }
            (Self::TensorRtTwoSided | Self::TensorRtOneSided, Operation::Dispatch) => 8.0 * f64::from(top_k),
            _ => 0.0,
        }
    }

    /// Bytes on the link per byte of payload: TensorRT-LLM's FIFOs have a flag of 8 bytes in each line of 128
    /// (`fusedMoeCommKernels.cu`, `FusedMoeProto`).
    pub(crate) fn wire_factor(self) -> f64 {
        if self == Self::TensorRtTwoSided { 16.0 / 15.0 } else { 1.0 }
    }

    /// SMs that the kernel uses by default: 20 for DeepEP (`deep_ep/buffers/legacy.py`, `num_sms`).
    #[must_use]
    pub fn default_sms(self) -> u32 {
        20
    }

    /// Returns true if the kernel occupies SMs until all tokens have arrived. Low-latency kernels return when the tokens are
    /// sent, and a second call receives them (DeepEP, `return_recv_hook`).
    #[must_use]
    pub fn holds_sms(self) -> bool {
        !matches!(self, Self::DeepEpLowLatency | Self::NcclEpLowLatency)
    }

    /// Returns true if a token crosses the network once for each NVLink domain with one of its experts.
    #[must_use]
    pub fn forwards_in_domains(self) -> bool {
        self.copies(Operation::Dispatch) == CopyTarget::Domain
    }

    /// Returns true if the number of SMs can be chosen.
    #[must_use]
    pub fn has_sms(self) -> bool {
        matches!(self, Self::DeepEp)
    }
}

impl FromStr for ExchangeKernel {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let found = KERNELS.iter().find(|row| row.1 == text).map(|row| row.0);
        found.ok_or_else(|| UnknownName::new("kernel", text, &KERNELS.map(|row| row.1)))
    }
}
