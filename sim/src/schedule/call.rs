//! Description of a collective call: the collective, its size and its ranks.

use std::fmt;
use std::str::FromStr;

use fabricast_topologies::Bytes;
use fabricast_topologies::fabric::suggest_names;
use fabricast_topologies::variants::variants;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumCount, VariantArray};

use super::Rank;

/// Collective operation, with the semantics of nccl-tests.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    EnumCount,
    VariantArray,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every rank ends with the sum of all inputs.
    AllReduce,
    /// Every rank ends with all ranks' inputs, in rank order.
    AllGather,
    /// Rank r ends with block r of the sum of all inputs.
    ReduceScatter,
    /// Every rank ends with the root's input.
    Broadcast,
    /// The root ends with the sum of all inputs.
    Reduce,
    /// Rank r ends with block r of every rank's input, in rank order.
    AllToAll,
    /// The root ends with all ranks' inputs, in rank order.
    Gather,
    /// Rank r ends with block r of the root's input.
    Scatter,
    /// Shift by one rank, as nccl-tests' sendrecv: rank r ends with the input of rank r − 1, and rank 0 with that of
    /// the last rank.
    SendRecv,
    /// Rank r ends with the data that every rank has for it, in the amounts of a [`TrafficMatrix`](super::TrafficMatrix).
    AllToAllV,
    /// Synchronization without data: no rank continues before all ranks have arrived.
    Barrier,
}

/// Protocol of data transfers.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    EnumCount,
    VariantArray,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// NCCL's LL: 8-byte stores of 4 data and 4 flag bytes through FIFO slots.
    Ll,
    /// NCCL's LL128: 128-byte lines of 120 data and 8 flag bytes through FIFO slots.
    Ll128,
    /// NCCL's Simple: full-rate stores through FIFO slots, then a fence and a flag.
    Simple,
    /// One-sided stores and loads directly in symmetric, registered buffers, with signals, as in NVSHMEM.
    Symmetric,
    /// Copies by the GPUs' copy engines, with stream signals.
    CopyEngine,
}

/// Element type of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, EnumCount, VariantArray, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataType {
    /// IEEE 754 floating-point number of 32 bits.
    #[default]
    F32,
    /// IEEE 754 floating-point number of 64 bits.
    F64,
    /// IEEE 754 floating-point number of 16 bits.
    F16,
    /// Floating-point number of 16 bits with 8 exponent bits (bfloat16).
    Bf16,
    /// Floating-point number of 8 bits with 4 exponent bits (FP8 E4M3).
    F8e4m3,
    /// Floating-point number of 8 bits with 5 exponent bits (FP8 E5M2).
    F8e5m2,
    /// 8-bit signed integer.
    I8,
    /// 8-bit unsigned integer.
    U8,
    /// 32-bit signed integer.
    I32,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit signed integer.
    I64,
    /// 64-bit unsigned integer.
    U64,
}

/// Reduction operation on two elements, applied element by element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, EnumCount, VariantArray, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceOp {
    /// Sum of the elements.
    #[default]
    Sum,
    /// Product of the elements.
    Prod,
    /// Larger one of the elements.
    Max,
    /// Smaller one of the elements.
    Min,
}

impl DataType {
    /// All data types, in the order of their variants.
    pub const ALL: [Self; Self::COUNT] = variants();
}

impl ReduceOp {
    /// All reduction operations, in the order of their variants.
    pub const ALL: [Self; Self::COUNT] = variants();
}

/// Relation between the memory of a call's input and output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BufferUse {
    /// Input and output are different buffers; the input is unchanged.
    #[default]
    OutOfPlace,
    /// Chunk i of the input is the same memory as chunk i of the output, in the numbering of
    /// [`Schedule`](super::Schedule).
    InPlace,
}

/// Parameters of one collective call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Collective that the ranks call.
    pub collective: Collective,
    /// Size in bytes as in nccl-tests: the larger buffer of a rank. For all_to_allv, the bytes of the whole matrix; 0
    /// for a barrier.
    pub bytes: Bytes,
    /// Number of ranks that take part in the call.
    pub ranks: u32,
    /// Root of broadcast, reduce, gather and scatter; 0 for other collectives.
    pub root: Rank,
    /// Memory relation of input and output: in place or out of place.
    pub buffers: BufferUse,
}

/// Collectives with their names and aliases, which are the spellings of nccl-tests.
const COLLECTIVES: [(Collective, &str, &[&str]); 11] = [
    (Collective::AllReduce, "all_reduce", &["allreduce", "all_reduce_perf"]),
    (Collective::AllGather, "all_gather", &["allgather", "all_gather_perf"]),
    (Collective::ReduceScatter, "reduce_scatter", &["reducescatter", "reduce_scatter_perf"]),
    (Collective::Broadcast, "broadcast", &["bcast", "broadcast_perf"]),
    (Collective::Reduce, "reduce", &["reduce_perf"]),
    (Collective::AllToAll, "all_to_all", &["alltoall", "alltoall_perf"]),
    (Collective::Gather, "gather", &["gather_perf"]),
    (Collective::Scatter, "scatter", &["scatter_perf"]),
    (Collective::SendRecv, "send_recv", &["sendrecv", "sendrecv_perf"]),
    (Collective::AllToAllV, "all_to_allv", &["alltoallv", "alltoallv_perf", "all_to_all_v"]),
    (Collective::Barrier, "barrier", &[]),
];

impl Collective {
    /// All collectives, in the order of the documentation.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Returns the name, such as `all_reduce`.
    #[must_use]
    pub fn name(self) -> &'static str {
        COLLECTIVES.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }

    /// Returns true if ranks send their data directly to the ranks that it is for, in pairs.
    #[must_use]
    pub fn is_pairwise(self) -> bool {
        matches!(self, Self::AllToAll | Self::AllToAllV | Self::SendRecv | Self::Gather | Self::Scatter)
    }

    /// Returns the number of peers with which a rank exchanges its own data directly in a call of `ranks` ranks; 0 if
    /// data passes through other ranks.
    #[must_use]
    pub fn peers(self, ranks: u32) -> u32 {
        match self {
            Self::SendRecv => 1,
            collective if collective.is_pairwise() => ranks.saturating_sub(1),
            _ => 0,
        }
    }

    /// Returns true if data flows only from or to a root, so that ranks complete the call at different times.
    #[must_use]
    pub fn is_one_way(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Returns true if ranks may begin the next call while others still work on this one, because they do not all wait
    /// for each other ([`back_to_back_time`](crate::back_to_back_time)).
    #[must_use]
    pub fn overlaps_next_call(self) -> bool {
        self.is_one_way() || self == Self::SendRecv
    }

    /// Returns true if the caller chooses the size of the call. The size of an all_to_allv is that of its matrix; a
    /// barrier moves no data.
    #[must_use]
    pub fn has_variable_size(self) -> bool {
        !matches!(self, Self::AllToAllV | Self::Barrier)
    }

    /// Ratio busbw ÷ algbw for `ranks` ranks, as nccl-tests defines it (doc/PERFORMANCE.md of nccl-tests).
    #[must_use]
    pub fn busbw_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            _ if ranks < 2 => 1.0,
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll | Self::AllToAllV | Self::Gather | Self::Scatter => {
                (n - 1.0) / n
            }
            Self::Broadcast | Self::Reduce | Self::SendRecv | Self::Barrier => 1.0,
        }
    }
}

/// Error for a word that is not a known name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} `{word}`; expected one of {}{}", .expected.join(", "), did_you_mean(.suggestions))]
pub struct UnknownName {
    /// Type of name that was expected, such as `protocol`.
    pub kind: &'static str,
    /// Word that is not a known name.
    pub word: String,
    /// Known names similar to the word, best first.
    pub suggestions: Vec<String>,
    /// All known names of this type.
    pub expected: Vec<&'static str>,
}

fn did_you_mean(suggestions: &[String]) -> String {
    if suggestions.is_empty() { String::new() } else { format!("; did you mean {}?", suggestions.join(" or ")) }
}

impl UnknownName {
    /// Creates the error for a word that is not in `known`.
    #[must_use]
    pub fn new(kind: &'static str, word: &str, known: &[&'static str]) -> Self {
        let suggestions = suggest_names(word, known.iter().copied());
        Self { kind, word: word.to_owned(), suggestions, expected: known.to_vec() }
    }
}

fn lookup<T: Copy>(kind: &'static str, word: &str, known: &[(T, &'static str)]) -> Result<T, UnknownName> {
    known.iter().find(|(_, name)| *name == word).map(|&(value, _)| value).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|&(_, name)| name).collect();
        UnknownName::new(kind, word, &names)
    })
}

impl FromStr for Collective {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        let lower = word.to_ascii_lowercase();
        let named = COLLECTIVES.iter().find(|row| row.1 == lower || row.2.contains(&lower.as_str()));
        named.map(|row| row.0).ok_or_else(|| {
            // A misspelled alias suggests the collective's canonical name.
            let spellings = COLLECTIVES.iter().flat_map(|row| std::iter::once(row.1).chain(row.2.iter().copied()));
            let similar =
                suggest_names(&lower, spellings).into_iter().filter_map(|similar| similar.parse::<Self>().ok());
            let mut names: Vec<String> = similar.map(|collective| collective.name().to_owned()).collect();
            let mut seen = Vec::new();
            names.retain(|name| {
                !seen.contains(name) && {
                    seen.push(name.clone());
                    true
                }
            });
            UnknownName { suggestions: names, ..UnknownName::new("collective", word, &COLLECTIVES.map(|row| row.1)) }
        })
    }
}

const PROTOCOLS: [(Protocol, &str); 5] = [
    (Protocol::Ll, "ll"),
    (Protocol::Ll128, "ll128"),
    (Protocol::Simple, "simple"),
    (Protocol::Symmetric, "symmetric"),
    (Protocol::CopyEngine, "copy_engine"),
];

impl Protocol {
    /// All protocols, in the order of their variants.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Returns the name, such as `ll128`.
    #[must_use]
    pub fn name(self) -> &'static str {
        PROTOCOLS.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }
}

impl FromStr for Protocol {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        lookup("protocol", &word.to_ascii_lowercase(), &PROTOCOLS)
    }
}

const DATA_TYPES: [(DataType, &str, u64); 12] = [
    (DataType::F32, "f32", 4),
    (DataType::F64, "f64", 8),
    (DataType::F16, "f16", 2),
    (DataType::Bf16, "bf16", 2),
    (DataType::F8e4m3, "f8e4m3", 1),
    (DataType::F8e5m2, "f8e5m2", 1),
    (DataType::I8, "i8", 1),
    (DataType::U8, "u8", 1),
    (DataType::I32, "i32", 4),
    (DataType::U32, "u32", 4),
    (DataType::I64, "i64", 8),
    (DataType::U64, "u64", 8),
];

impl DataType {
    /// Returns the size of one element.
    #[must_use]
    pub fn size(self) -> Bytes {
        Bytes(DATA_TYPES.iter().find(|row| row.0 == self).map_or(1, |row| row.2))
    }

    /// Returns the name, such as `bf16`.
    #[must_use]
    pub fn name(self) -> &'static str {
        DATA_TYPES.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }
}

impl FromStr for DataType {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        let lower = word.to_ascii_lowercase();
        let alias = match lower.as_str() {
            "float" | "fp32" => "f32",
            "double" | "fp64" => "f64",
            "half" | "fp16" => "f16",
            "bfloat16" => "bf16",
            "int8" | "char" => "i8",
            "uint8" => "u8",
            "int32" | "int" => "i32",
            "uint32" => "u32",
            "int64" => "i64",
            "uint64" => "u64",
            other => other,
        };
        lookup("data type", alias, &DATA_TYPES.map(|row| (row.0, row.1)))
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        lookup(
            "reduction",
            &word.to_ascii_lowercase(),
            &[(Self::Sum, "sum"), (Self::Prod, "prod"), (Self::Max, "max"), (Self::Min, "min")],
        )
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
