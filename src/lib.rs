//! The commands of fabricast: arguments, JSON documents and exit codes. The other crates do the work.
//!
//! [`command_line::main`] is the `fabricast` program. [`request`] runs the same commands inside another program, such as
//! the Python module: a [`request::Request`] has the command's flags by name and is answered by its JSON document.
//!
//! ```
//! use std::sync::Arc;
//!
//! use fabricast::request::{Control, Request, Setting};
//!
//! let settings = [("fabric", Setting::value("hgx-h200")), ("collective", Setting::value("all_reduce")), ("bytes", Setting::value("1MiB"))];
//! let answer = Request::new(&["simulate"], &[], &settings)?.run(&Arc::<Control>::default())?;
//! assert!(answer.result.is_some_and(|json| json.contains("\"time_us\"")));
//! # Ok::<(), fabricast::request::RequestError>(())
//! ```

mod args;
pub mod command_line;
mod commands;
mod control;
mod document;
mod excerpt;
mod failure;
mod failure_report;
mod files;
mod output;
mod output_format;
pub mod request;
mod run_control;
#[cfg(feature = "serve")]
mod serve;
mod setup;
mod stop;
mod terminal;
mod warning_queue;

pub use document::Document;

/// Version of fabricast.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
