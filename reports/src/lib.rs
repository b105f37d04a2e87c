//! What people look at: charts, pictures of fabrics, traces, terminal tables.
//!
//! This crate owns how results are shown. Every function takes finished figures and returns text or bytes; the same
//! input gives the same bytes on every machine (the fonts are in the program, no clock is read, no map is iterated).
//!
//! It never computes a result: what a strategy costs, what binds, which pick wins is the business of the planner and
//! the simulator. It never opens a file, prints, or asks whether there is a terminal: the command does.
//!
//! | module | makes | of |
//! |---|---|---|
//! | [`chart`] | SVG and PNG line charts | a plan: time and bus bandwidth against size |
//! | [`page`] | one self-contained HTML page | studies, plans, comparisons, runs |
//! | [`steps`] | SVG and PNG | a schedule: steps against ranks |
//! | [`topology`] | SVG | a [`Fabric`](fabricast_topologies::Fabric), with the load of its links if wished |
//! | [`trace`] | Chrome trace JSON for Perfetto | the spans of a timeline |
//! | [`table`] | aligned text, CSV, rows of a page | rows of typed values |
//! | [`share`] | bars of text | the shares of a whole |
//! | [`algorithms`] | Markdown | what the planner knows of its algorithms |
//! | [`format`](mod@format) | short figures with the right number of digits | bytes, times, rates, shares |
#![warn(missing_docs)]

pub mod algorithms;
pub mod chart;
pub mod format;
mod markup;
pub mod page;
pub mod share;
pub mod spark;
pub mod steps;
pub mod table;
pub mod topology;
pub mod trace;
