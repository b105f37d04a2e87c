//! Plans as files: reads saved plans and converts them to the tuning tables that libraries load.
//!
//! ```text
//! plan --format json ─► SavedPlan ─► nccl_tuner (CSV of NCCL's example tuner), …
//!                                    ─► the library, the tuner plugin, `table --check`
//! ```
//!
//! Each format has one reader, which also reads files from other tools. Strategies that a format cannot express are
//! dropped and listed.

pub mod all_reduce_limit;
mod any;
mod departures;
mod error;
mod expressible;
mod finding;
mod from_plan;
mod header;
pub mod json;
mod json_text;
pub mod nccl_env;
pub mod nccl_tuner;
pub mod ncclx;
pub mod open_mpi;
mod saved;
pub mod schedules;

pub use any::AnyTable;
pub use departures::{ComparedStrategies, Departure, departures};
pub use error::TableError;
pub use expressible::{DroppedStrategy, LAST_BYTES};
pub use finding::{Finding, Severity};
pub use saved::{FabricQuery, SavedPick, SavedPlan, SavedRange, SavedRow};
