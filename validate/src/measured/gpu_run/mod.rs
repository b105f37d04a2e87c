//! What `gpu run` measured: its rows as tables, for the manifest that it writes (`--measurements`) and from its JSON alike.

mod by;
mod read;
mod tables;

pub use by::{By, UnknownExecutor};
pub(super) use read::read;
pub use read::{FORMAT, is_run};
pub use tables::{Key, Timed, Versions, tables};
