//! Tests of the library as NCCL uses it: opened by path, its symbols read as NCCL's structs, its functions called.
//!
//! Expected results come from an independent reader of the table format ([`oracle`]), not from the plugin's own code.
#![allow(unsafe_code, reason = "calls a C library")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod answers;
mod concurrency;
mod files;
mod hostile;
mod library;
mod oracle;
