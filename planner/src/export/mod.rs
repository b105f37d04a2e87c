//! Plans as files: saved plans read back, and the tables that libraries load made of them.
//!
//! ```text
//! plan --format json ─► SavedPlan ─► nccl_tuner (CSV of NCCL's example tuner), … ─► the library, the tuner plugin, `table --check`
//! ```
//!
//! One reader of each format, which also reads files that others wrote; what a format cannot say is dropped and listed.

mod error;
pub mod nccl_tuner;
mod saved;

pub use error::TableError;
pub use saved::{SavedPick, SavedPlan, SavedRange, SavedRow};
