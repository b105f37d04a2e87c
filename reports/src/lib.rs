//! Presentation of results: charts, pictures of fabrics, traces, terminal tables.
//!
//! Every function converts given results to text or bytes. The same input gives the same bytes on every machine: fonts
//! are embedded, no clock is read, and no hash map is iterated.
//!
//! This crate never computes a result: costs, bottlenecks and selected strategies come from the planner and the
//! simulator. It never opens a file, prints, or detects a terminal; the commands do that.
//!
//! | module | output | content |
//! |---|---|---|
//! | [`chart`] | SVG and PNG line charts | a plan: time and bus bandwidth against size |
//! | [`page`] | one self-contained HTML page | studies, plans, comparisons, runs |
//! | [`steps`] | SVG and PNG | a schedule: steps against ranks |
//! | [`topology`] | SVG | a [`Fabric`](fabricast_topologies::Fabric), optionally with the load of its links |
//! | [`tree_load`] | numbers | loads of links by the trees of a certificate, for [`topology`] |
//! | [`trace`] | Chrome trace JSON for Perfetto | the spans of a timeline |
//! | [`table`] | aligned text, CSV, HTML | rows of typed values |
//! | [`share`] | text bars | the shares of a total |
//! | [`algorithms`] | Markdown | the planner's facts about its algorithms |
//! | [`markup`] | escaped SVG and HTML | elements, attributes, text |
//! | [`format`](mod@format) | short figures with an appropriate number of digits | bytes, times, rates, shares |
//!
//! # Example
//! Draws a preset and a schedule as SVG.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_reports::chart::Format;
//! use fabricast_reports::{steps, topology};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_topologies::{Bytes, FabricRequest, load};
//!
//! let fabric = load(&FabricRequest::new("hgx-h200"))?;
//! let picture = topology::svg(&fabric, &topology::Options::default());
//! assert!(picture.starts_with("<svg") && picture.contains("<title>hgx-h200</title>"));
//! assert!(picture.contains("8 GPUs"));
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(1 << 20), ranks: 4, root: Rank(0), buffers };
//! let schedule = Schedule::build(&*generator(Algorithm::Ring, &Shape::new(call, Protocol::Simple))?)?;
//! let picture = String::from_utf8(steps::render(&schedule, Format::Svg)?)?;
//! assert!(picture.contains("ring: all_reduce") && picture.contains("rank 3"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

pub mod algorithms;
pub mod chart;
pub mod format;
pub mod junit;
pub mod markup;
pub mod page;
pub mod prometheus;
pub mod share;
pub mod spark;
pub mod steps;
pub mod table;
pub mod topology;
pub mod trace;
pub mod tree_load;
