//! The library as NCCL meets it: opened by its file, its symbols read as NCCL's structures, its functions called.
//!
//! What is expected is worked out by a reader of the table that is written here from the format's facts ([`oracle`]), not by ours.
#![allow(unsafe_code, reason = "calls a C library")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod answers;
mod files;
mod hostile;
mod library;
mod many;
mod oracle;
