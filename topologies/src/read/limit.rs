//! Size limits of each kind of input.

/// Maximum size of a kind of input. Larger input is rejected, with the kind and this limit in the message. At most one
/// byte beyond the limit is read, from files, pipes and devices. Limits on counts (events, ranks, chunks) and nesting
/// are checked by each reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Kind of input in error messages: `a topology`.
    pub kind: &'static str,
    /// Maximum size in bytes, inclusive.
    pub bytes: u64,
}

impl Limit {
    /// A preset's spec, a topology file, a matrix of `nvidia-smi`, the JSON of `fabric show`.
    pub const TOPOLOGY: Self = Self::mib("a topology", 64);
    /// A profile of software costs.
    pub const PROFILE: Self = Self::mib("a profile", 64);
    /// A job or a study in TOML, and the lists that it names.
    pub const STUDY: Self = Self::mib("a study", 64);
    /// A trace as a table, or a log of NCCL.
    pub const TRACE: Self = Self::mib("a trace", 256);
    /// A JSON trace of PyTorch's profiler or of NCCL's profilers of one rank, as stored and decompressed.
    pub const JSON_TRACE: Self = Self::mib("a JSON trace", 2048);
    /// A Chakra trace of one rank.
    pub const CHAKRA: Self = Self::mib("a Chakra trace", 1024);
    /// The Chakra traces of all ranks together.
    pub const ALL_CHAKRA: Self = Self::mib("the Chakra traces of a job", 4096);
    /// The files of a folder of traces together, as they are stored.
    pub const ALL_TRACES: Self = Self::mib("the traces of a job", 4096);
    /// Flows with their start times, as CSV.
    pub const FLOWS: Self = Self::mib("flows", 64);
    /// Matrix of an all_to_allv: 4096 × 4096 sizes of up to 15 characters.
    pub const MATRIX: Self = Self::mib("a matrix", 256);
    /// A manifest of measurements.
    pub const MANIFEST: Self = Self::mib("a manifest", 64);
    /// Measured times: a log of nccl-tests (hundreds of megabytes with NCCL's messages at the highest level), CSV, JSON
    /// of `gpu run`.
    pub const LOG: Self = Self::mib("a log", 256);
    /// Output of `gpu bench`.
    pub const BENCHMARK: Self = Self::mib("a benchmark", 64);
    /// A saved plan, or a decision table of any library.
    pub const TABLE: Self = Self::mib("a table", 256);
    /// A schedule. Those of direct exchanges grow with the square of the number of ranks.
    pub const SCHEDULE: Self = Self::mib("a schedule", 1024);
    /// An input file of `report`.
    pub const RESULT: Self = Self::mib("a result", 256);
    /// Runs of a study that are stored in its folder.
    pub const RUNS: Self = Self::mib("the runs of a study", 1024);
    /// The file that states which shard of a study a folder contains.
    pub const SHARD: Self = Self::mib("the label of a shard", 1);

    const fn mib(kind: &'static str, mib: u64) -> Self {
        Self { kind, bytes: mib << 20 }
    }

    /// Returns the error message for input that is larger.
    #[must_use]
    pub fn exceeded(self) -> String {
        format!("larger than {} MiB, the most that is read as {}", self.bytes >> 20, self.kind)
    }
}
