//! Trees packed into a graph with integer capacities, over which collectives reach the bandwidth bound of any fabric.
//!
//! The method is that of Zhao et al., *ForestColl* (arXiv 2402.06787). The optimal throughput of all_gather is the
//! minimum over all cuts of capacity ÷ terminals on the sending side (`optimum`); switches are removed by edge splitting
//! (`splitting`), and spanning trees of that rate are packed into what remains (`arborescences`).

// Generators of schedules will call these.
#![allow(dead_code)]

mod arborescences;
mod digraph;
mod optimum;
mod requirement;
mod splitting;
#[cfg(test)]
mod tests;
