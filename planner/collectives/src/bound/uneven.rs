//! Lower bounds of an all_to_allv from its matrix, as shares of all its bytes.
//!
//! For every examined set (devices, hosts, racks, groups under switches), the bytes from its ranks to others cross its
//! boundary. All blocks on their shortest paths must fit into the total capacity of the links (`lengths`). The
//! completion time is at least the latency of the longest path of a block. Other sets are not examined.

use fabricast_sim::schedule::{MatrixBlock, TrafficMatrix};
use fabricast_topologies::Picos;

use super::demand::Demand;
use super::device_demand::DeviceDemand;
use super::graph::Graph;
use super::line::{LinearBound, Share};
use super::memory;
use super::parts::{Level, RankSet};

/// Returns lower bounds from the traffic across the boundaries of the sets of a level.
pub(super) fn level_bounds(level: &Level, matrix: &TrafficMatrix) -> Vec<LinearBound> {
    let mut crossing = vec![(0u128, 0u128); level.parts.len()];
    let part_index = |rank: u32| level.part_of_rank.get(rank as usize).map(|&part| part as usize);
    for MatrixBlock { from, to, bytes } in matrix.blocks() {
        let (Some(from), Some(to)) = (part_index(from), part_index(to)) else { continue };
        if from != to {
            crossing[from].1 += u128::from(bytes.0);
            crossing[to].0 += u128::from(bytes.0);
        }
    }
    let total = u128::from(matrix.total().0);
    let part_bounds = |(part, (into, out)): (&RankSet, (u128, u128))| {
        let (into, out) = (share(into, total), share(out, total));
        let line = |share: Option<Share>, way| Some(LinearBound::crossing(share?, way, level.source.clone()));
        let memory = (into.is_some() || out.is_some()).then(|| memory(&Demand { into, out }, part)).flatten();
        [line(into, part.into), line(out, part.out), memory]
    };
    level.parts.iter().zip(crossing).flat_map(part_bounds).flatten().collect()
}

/// Returns lower bounds from the graph as a whole.
pub(super) fn graph_bounds(graph: &Graph, matrix: &TrafficMatrix, first_byte: Picos) -> Vec<LinearBound> {
    let demand = DeviceDemand::new(matrix, graph.devices(), |rank| graph.device(rank));
    if demand.crossing == 0 { Vec::new() } else { graph.demand_bounds(&demand, first_byte) }
}

fn share(bytes: u128, total: u128) -> Option<Share> {
    (bytes > 0).then(|| Share::new(bytes, total))
}
