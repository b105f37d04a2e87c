//! Plans as files: reads saved plans and converts them to the tuning tables that libraries load.
//!
//! ```text
//! plan --format json ─► SavedPlan ─► nccl_tuner (CSV of NCCL's example tuner), … ─► the library, the tuner plugin, `table --check`
//! ```
//!
//! Each format has one reader, which also reads files from other tools. Strategies that a format cannot express are
//! dropped and listed.

mod any;
mod choices;
mod departures;
mod error;
mod finding;
mod header;
pub mod json;
mod json_text;
pub mod nccl_env;
pub mod nccl_tuner;
mod of_plan;
pub mod open_mpi;
mod saved;
pub mod schedules;

pub use any::AnyTable;
pub use choices::{Dropped, LAST_BYTES};
pub use departures::{Departure, Taken, departures};
pub use error::TableError;
pub use finding::{Finding, Severity};
pub use saved::{Asked, SavedPick, SavedPlan, SavedRange, SavedRow};
