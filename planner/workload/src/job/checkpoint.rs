//! Checkpoints of a training job: what is written, how often, and how long steps wait for it.

use fabricast_topologies::{Bandwidth, Bytes, Picos};
use serde::Deserialize;

use super::Training;

/// Checkpoints of a training job. `None` means that the job does not state the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpointing {
    /// Work of the step during a write.
    pub write: CheckpointWrite,
    /// Time of steps between checkpoints.
    pub interval: CheckpointInterval,
    /// Speed of the write to storage.
    pub speed: Option<WriteSpeed>,
    /// Time in which steps wait for the copy to host memory; only for asynchronous writes.
    pub copy: Option<Picos>,
}

/// Work of the step during a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckpointWrite {
    /// Steps wait for the copy to host memory, and run while the copy is written (PyTorch's `async_save`, Megatron-LM's
    /// `--async-save`).
    #[default]
    Asynchronous,
    /// Steps wait until the checkpoint is written.
    Blocking,
}

/// Time of steps between checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckpointInterval {
    /// The interval with the highest goodput.
    #[default]
    Optimum,
    /// A fixed time, rounded to whole steps.
    Fixed(Picos),
}

/// Speed of the write to storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteSpeed {
    /// Time of a write.
    Time(Picos),
    /// Bandwidth of all ranks together.
    Bandwidth(Bandwidth),
}

impl Training {
    /// Size of a checkpoint: trained weights and optimizer states of the whole model, each written once. Published sizes agree:
    /// BLOOM-176B has 2.3 TB (Hugging Face, "The Technology Behind BLOOM Training", 2022), 13 bytes per parameter, and 14
    /// follow here.
    #[must_use]
    pub fn checkpoint_bytes(&self) -> Bytes {
        Bytes(self.trained_model_parameters().saturating_mul(self.precision.bytes() + self.state_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::read::tests::job;

    /// 16-bit weights, 32-bit master weights and two 32-bit moments are 14 bytes; without master weights and with 8-bit
    /// moments 4 remain.
    #[test]
    fn checkpoints_have_weights_and_optimizer_states() {
        for (keys, bytes) in
            [("", 14), ("precision = \"fp32\"\n", 12), ("master_weights = false\nmoment_bits = 8\n", 4)]
        {
            let job = job(&format!("{keys}zero = 1\nparallel = {{ tp = 8, dp = 2 }}\n"));
            assert_eq!(job.checkpoint_bytes().0, bytes * job.model.parameters(), "{keys}");
        }
    }
}
