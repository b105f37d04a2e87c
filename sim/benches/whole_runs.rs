//! Benchmark of the engine on whole collectives, from the first event to the last.
#![allow(missing_docs)] // made by criterion's macros

mod workloads;

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fabricast_sim::engine::run_to_end;
use workloads::{Start, all_to_all, hierarchical, ring};

fn whole_runs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("whole_runs");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    let cases = [
        ("ring of 64", ring(64, 1 << 20, Start::Simultaneous)),
        ("ring of 1024", ring(1024, 1 << 20, Start::Simultaneous)),
        ("ring of 1024, skewed", ring(1024, 1 << 20, Start::Skewed)),
        ("hierarchical, 64 hosts of 8", hierarchical(64, 8, 1 << 30)),
        ("all_to_all of 256", all_to_all(256, 64 << 20)),
    ];
    for (name, workload) in &cases {
        group.throughput(Throughput::Elements(workload.operation_count()));
        group.bench_function(*name, |bencher| bencher.iter(|| run_to_end(black_box(workload))));
    }
    group.finish();
}

criterion_group!(benches, whole_runs);
criterion_main!(benches);
