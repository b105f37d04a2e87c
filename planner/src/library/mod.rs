//! What a communication library would choose by itself: algorithm, protocol, channels, threads, chunk.
//!
//! A library decides by rules and a cost model of its own, which are facts of its version and not ours to improve.
//! They live here, so that a plan can say what the library would have done and what that costs (its *regret*: the time
//! of its choice by our simulation over the time of ours, less one), and so that a log that does not name its algorithm
//! can be compared.
//!
//! ```text
//! Fabric ─► nccl::System ─► nccl::graph (channels, speeds) ─► nccl::Communicator ─► nccl::Table ─► Choice
//! ranks, bytes ─► mpi::rules ─────────────────────────────────────────────────────────────────────► Choice
//! ```
//!
//! Where a library's choice is not known (a fabric whose search is not modelled, say), the answer is [`Unknown`] with the
//! reason, never a guess.

pub mod nccl;
