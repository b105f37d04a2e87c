//! Benchmark of folding, for workloads with and without symmetry.
#![allow(missing_docs)] // made by criterion's macros

mod workloads;

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use fabricast_sim::fold::fold;
use workloads::{Start, all_to_all, hierarchical, ring};

fn folding(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("folding");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    let cases = [
        ("ring of 4096", ring(4096, 1 << 20, Start::Simultaneous)),
        ("ring of 4096, which does not fold", ring(4096, 1 << 20, Start::Skewed)),
        ("hierarchical, 1024 hosts of 8", hierarchical(1024, 8, 1 << 30)),
        ("all_to_all of 256", all_to_all(256, 64 << 20)),
    ];
    for (name, workload) in &cases {
        group.bench_function(*name, |bencher| bencher.iter(|| fold(black_box(workload))));
    }
    group.finish();
}

criterion_group!(benches, folding);
criterion_main!(benches);
