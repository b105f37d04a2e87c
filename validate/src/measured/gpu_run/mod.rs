//! Measurements of `gpu run`: its rows grouped into tables, for the manifest it writes (`--measurements`) and when
//! its JSON is read.

mod executor;
mod read;
mod tables;

pub use executor::{ExecutorKind, UnknownExecutor};
pub(super) use read::read;
pub use read::{FORMAT, is_run};
pub use tables::{TableKey, TimedRow, Versions, tables};
