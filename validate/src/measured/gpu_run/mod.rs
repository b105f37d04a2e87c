//! Measurements of `gpu run`. Rows are grouped into tables when `gpu run` writes a manifest (`--measurements`) and when
//! its JSON is read.

mod executor;
mod read;
mod tables;

pub use executor::{ExecutorKind, UnknownExecutor};
pub(super) use read::read;
pub use read::{FORMAT, is_run};
pub use tables::{TableKey, TimedRow, Versions, tables};
