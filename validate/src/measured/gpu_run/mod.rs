//! Measurements of `gpu run`: its rows grouped into tables, for the manifest it writes (`--measurements`) and when
//! its JSON is read.

mod by;
mod read;
mod tables;

pub use by::{By, UnknownExecutor};
pub(super) use read::read;
pub use read::{FORMAT, is_run};
pub use tables::{Key, Timed, Versions, tables};
