//! Run time of the lower bounds, and the bound of all_gather: hosts of 8 A100 with 25 GB/s of network per GPU, and
//! others.
//!
//! ```text
//! cargo run --release -p fabricast-planner --example bound
//! ```
//!
//! For comparison, the published run time of ForestColl's Python implementation on the same fabrics (Zhao et al., arXiv
//! 2402.06787: 0.24 s for 16 GPUs and 12.6 s for 128, on another machine).
#![allow(clippy::print_stdout, missing_docs)] // a program for people

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use fabricast_collectives::bound::{Bound, Bounds};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Rank};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, Fabric, FabricRequest, load};

/// Number of runs, of which the fastest is reported: the machine may be shared.
const REPEATS: usize = 5;

/// Preset, hosts, network, and ForestColl's run time in seconds.
const CASES: [(&str, u32, &str, Option<f64>); 9] = [
    ("dgx-a100", 2, "rail,nic=200Gb/s", Some(0.24)),
    ("dgx-a100", 16, "rail,nic=200Gb/s", Some(12.6)),
    ("dgx-a100", 128, "rail,nic=200Gb/s", None),
    ("hgx-h200", 8, "rail", None),
    ("hgx-h200", 128, "rail", None),
    ("hgx-h200", 128, "fat_tree", None),
    ("hgx-h200", 128, "torus", None),
    ("gb200-nvl72", 36, "rail", None),
    ("hgx-h200", 8192, "rail", None),
];

const BYTES: Bytes = Bytes(1 << 30);

/// Times of one run in seconds (reading the routes, all_gather, the other collectives after it), and the bound.
struct Run {
    routes_s: f64,
    all_gather: f64,
    others: f64,
    bound: Bound,
}

fn run(fabric: &Fabric) -> Run {
    let ranks = fabric.gpus().len() as u32;
    let call = |collective| Call { collective, bytes: BYTES, ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
    let start = Instant::now();
    let router = Router::new(fabric, RouteOptions::default());
    let bounds = Bounds::new(fabric, &router, fabric.gpus(), 0);
    let routes_s = start.elapsed().as_secs_f64();
    let bound = bounds.bound(&call(Collective::AllGather));
    let all_gather = start.elapsed().as_secs_f64() - routes_s;
    for collective in Collective::ALL {
        black_box(bounds.bound(&call(collective)));
    }
    let others = start.elapsed().as_secs_f64() - routes_s - all_gather;
    Run { routes_s, all_gather, others, bound }
}

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "{:<12} {:>6}  {:<17} {:>9} {:>11} {:>10} {:>13}  bound of all_gather",
        "hosts", "GPUs", "network", "routes ms", "all_gather", "others ms", "ForestColl ms"
    );
    for (preset, nodes, network, published) in CASES {
        let network_spec = Some(network.parse()?);
        let request = FabricRequest {
            fabric: preset.to_owned(),
            nodes: Some(nodes),
            gpus: None,
            network: network_spec,
            gpu: None,
            drives: None,
        };
        let fabric = load(&request)?;
        let runs: Vec<Run> = (0..REPEATS).map(|_| run(&fabric)).collect();
        let best = |time: fn(&Run) -> f64| runs.iter().map(time).fold(f64::MAX, f64::min) * 1e3;
        let published = published.map_or(String::new(), |seconds| format!("{:.0}", seconds * 1e3));
        println!(
            "{preset:<12} {:>6}  {network:<17} {:>9.2} {:>11.2} {:>10.2} {published:>13}  {:.2} GB/s, {}",
            fabric.gpus().len(),
            best(|run| run.routes_s),
            best(|run| run.all_gather),
            best(|run| run.others),
            BYTES.0 as f64 * 1e3 / runs[0].bound.transfer.0 as f64,
            runs[0].bound.limited_by,
        );
    }
    Ok(())
}
