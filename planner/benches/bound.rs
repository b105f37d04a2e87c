//! Benchmark of the lower bounds on fabrics of 16 to 65,536 GPUs: reading the routes, and the searches for all
//! collectives.
//!
//! `cargo bench -p fabricast-planner --bench bound`
#![allow(missing_docs, clippy::panic)] // criterion's macros make functions; a preset that does not load stops the run

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fabricast_collectives::bound::Bounds;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Rank};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, Fabric, FabricRequest, load};

fn hosts(preset: &str, nodes: u32, network: &str) -> Fabric {
    let network = network.parse().ok();
    let request =
        FabricRequest { fabric: preset.to_owned(), nodes: Some(nodes), gpus: None, network, gpu: None, drives: None };
    load(&request).unwrap_or_else(|error| panic!("{error}"))
}

fn compute_bounds(fabric: &Fabric, router: &Router<'_>, collectives: &[Collective]) {
    let bounds = Bounds::new(fabric, router, fabric.gpus(), 0);
    let ranks = fabric.gpus().len() as u32;
    for &collective in collectives {
        let call = Call { collective, bytes: Bytes(1 << 30), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
        black_box(bounds.bound(&call));
    }
}

fn bound(criterion: &mut Criterion) {
    let cases = [
        ("dgx-a100", 2, "rail,nic=200Gb/s"),
        ("dgx-a100", 16, "rail,nic=200Gb/s"),
        ("hgx-h200", 8, "rail"),
        ("hgx-h200", 128, "rail"),
        ("hgx-h200", 128, "fat_tree"),
        ("gb200-nvl72", 36, "rail"),
        ("hgx-h200", 8192, "rail"),
    ];
    for (preset, nodes, network) in cases {
        let fabric = hosts(preset, nodes, network);
        let router = Router::new(&fabric, RouteOptions::default());
        let mut group = criterion.benchmark_group(format!("{nodes} x {preset}, {network}"));
        group.sample_size(10);
        for (name, collectives) in [("all_gather", &[Collective::AllGather][..]), ("all", &Collective::ALL)] {
            group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                bencher.iter(|| compute_bounds(&fabric, &router, collectives));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, bound);
criterion_main!(benches);
