//! How long the bound of an all_gather takes to work out, and what it is, on boxes of 8 A100 joined by 25 GB/s a GPU.
//!
//! ```text
//! cargo run --release -p fabricast-planner --example bound
//! ```
//!
//! Beside it, what ForestColl's own Python takes for its optimum on the same fabrics, as published (Zhao et al., arXiv
//! 2402.06787: 0.24 s for 16 GPUs and 12.6 s for 128, on another machine).
#![allow(clippy::print_stdout, missing_docs)] // a program for people

use std::error::Error;
use std::time::{Duration, Instant};

use fabricast_planner::bound::Bounds;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Rank};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, FabricRequest, load};

/// Of so many, the fastest run is shown: the machine may be shared.
const REPEATS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let cases = [
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
    println!(
        "{:<12} {:>6} {:<18} {:>10} {:>10} {:>12} {:>12} {:>11}  set by",
        "fabric", "GPUs", "network", "router ms", "read ms", "all_gather ms", "all nine ms", "ForestColl s"
    );
    for (preset, nodes, network, published) in cases {
        let request = FabricRequest {
            fabric: preset.to_owned(),
            nodes: Some(nodes),
            gpus: None,
            network: Some(network.parse()?),
        };
        let fabric = load(&request)?;
        let mut best = [Duration::MAX; 4];
        let mut words = String::new();
        let mut ranks = 0;
        for _ in 0..REPEATS {
            let mut times = [Duration::ZERO; 4];
            let start = Instant::now();
            let router = Router::new(&fabric, RouteOptions::default());
            times[0] = start.elapsed();
            ranks = fabric.gpus().len() as u32;
            let bounds = Bounds::new(&fabric, &router, fabric.gpus(), 0);
            times[1] = start.elapsed() - times[0];
            let call = |collective| Call {
                collective,
                bytes: Bytes(1 << 30),
                ranks,
                root: Rank(0),
                buffers: BufferUse::OutOfPlace,
            };
            let bound = bounds.of(&call(Collective::AllGather));
            times[2] = start.elapsed() - times[0] - times[1];
            for collective in Collective::ALL {
                let start = Instant::now();
                let _ = bounds.of(&call(collective));
                if std::env::var_os("DETAIL").is_some() {
                    println!("  {collective} {:?}", start.elapsed());
                }
            }
            times[3] = start.elapsed();
            for (best, time) in best.iter_mut().zip(times) {
                *best = time.min(*best);
            }
            words = format!("{}, {:.2} GB/s", bound.set_by, (1u64 << 30) as f64 * 1e3 / bound.transfer.0 as f64);
        }
        let [router, read, gather, all] = best.map(|time| time.as_secs_f64() * 1e3);
        let published = published.map_or(String::new(), |seconds: f64| format!("{seconds}"));
        println!(
            "{preset:<12} {ranks:>6} {network:<18} {router:>10.2} {read:>10.2} {gather:>12.2} {all:>12.2} {published:>11}  {words}"
        );
    }
    Ok(())
}
