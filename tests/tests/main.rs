//! Behaviours across crates, one module each.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test binary: it states expectations

mod algorithms_page;
mod barriers;
mod blocks;
mod closed_forms;
mod compare;
mod conservation;
mod corpus;
mod costs;
mod crossovers;
mod damaged;
mod devices;
mod engine;
mod flows;
mod folding;
mod formats;
mod generators;
mod in_a_row;
mod logs;
mod matrices;
mod messages;
mod monotone;
mod mutations;
mod nccl;
mod network;
mod nvls;
mod one_rank;
mod parties;
mod pipelines;
mod sharing;
mod survivors;
mod templates;
mod timed;
mod turns;
mod uneven;
mod worlds;
