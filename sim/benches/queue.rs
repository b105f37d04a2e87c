//! Benchmark of the event queue against two alternatives: a heap of events, and a heap of instants with a bucket of
//! events each.
//!
//! Two loads that resemble the engine's: *lockstep*, with all pending events at a few instants, and *skewed*, with
//! hardly any two events at one instant. Each step pops the next event and pushes a later one.
#![allow(missing_docs)] // made by criterion's macros

mod workloads;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fabricast_sim::engine::queue::EventQueue;
use fabricast_topologies::Picos;
use workloads::random;

/// Number of steps (one pop and one push each) of a measurement.
const STEPS: u64 = 100_000;

/// Interface that the engine needs of a queue: order of time, then of arrival.
trait Queue: Default {
    fn push(&mut self, time: u64, event: u64);
    fn pop(&mut self) -> Option<(u64, u64)>;
}

impl Queue for EventQueue<u64> {
    fn push(&mut self, time: u64, event: u64) {
        Self::push(self, Picos(time), event);
    }

    fn pop(&mut self) -> Option<(u64, u64)> {
        let time = self.next_time()?;
        Self::pop(self).map(|event| (time.0, event))
    }
}

/// Binary heap with one entry per event.
#[derive(Default)]
struct Heap {
    entries: BinaryHeap<Reverse<(u64, u64, u64)>>,
    pushed: u64,
}

impl Queue for Heap {
    fn push(&mut self, time: u64, event: u64) {
        self.entries.push(Reverse((time, self.pushed, event)));
        self.pushed += 1;
    }

    fn pop(&mut self) -> Option<(u64, u64)> {
        self.entries.pop().map(|Reverse((time, _, event))| (time, event))
    }
}

/// Heap of instants, and a bucket of events for each. The most recent instants are cached, so that pushing an event at
/// one of them costs an append.
#[derive(Default)]
struct Instants {
    instants: BinaryHeap<Reverse<(u64, u64, usize)>>,
    buckets: Vec<Vec<u64>>,
    free: Vec<usize>,
    recent: [Option<(u64, usize)>; 4],
    pushed: u64,
    /// Bucket that is being emptied: its instant, its number, the next entry.
    current: Option<(u64, usize, usize)>,
}

impl Queue for Instants {
    fn push(&mut self, time: u64, event: u64) {
        if let Some(&(_, bucket)) = self.recent.iter().flatten().find(|&&(instant, _)| instant == time) {
            self.buckets[bucket].push(event);
            return;
        }
        let bucket = self.free.pop().unwrap_or_else(|| {
            self.buckets.push(Vec::new());
            self.buckets.len() - 1
        });
        self.buckets[bucket].push(event);
        self.instants.push(Reverse((time, self.pushed, bucket)));
        self.recent[self.pushed as usize % self.recent.len()] = Some((time, bucket));
        self.pushed += 1;
    }

    fn pop(&mut self) -> Option<(u64, u64)> {
        loop {
            if let Some((time, bucket, next)) = self.current {
                if let Some(&event) = self.buckets[bucket].get(next) {
                    self.current = Some((time, bucket, next + 1));
                    return Some((time, event));
                }
                self.buckets[bucket].clear();
                self.free.push(bucket);
                let is_emptied =
                    |recent: &Option<(u64, usize)>| recent.is_some_and(|(_, recent_bucket)| recent_bucket == bucket);
                self.recent.iter_mut().filter(|recent| is_emptied(recent)).for_each(|recent| *recent = None);
            }
            let Reverse((time, _, bucket)) = self.instants.pop()?;
            self.current = Some((time, bucket, 0));
        }
    }
}

/// Function that returns the distance in time of the event pushed at step `i`, in picoseconds.
type Gap = fn(u64) -> u64;

/// Returns a fixed latency at even steps and a fixed transfer time at odd steps, in picoseconds, so that events
/// coincide.
fn lockstep(i: u64) -> u64 {
    if i.is_multiple_of(2) { 700_000 } else { 2_276 }
}

/// Returns a random time around a latency, in picoseconds, so that few events coincide.
fn skewed(i: u64) -> u64 {
    1 + random(i) % 1_400_000
}

/// Runs `STEPS` steps with `pending` events in the queue. Each step pops one event and pushes one.
fn run_hold_model<Q: Queue>(pending: u64, gap: Gap) -> u64 {
    let mut queue = Q::default();
    for i in 0..pending {
        queue.push(gap(i), i);
    }
    let mut sum = 0;
    for i in 0..STEPS {
        if let Some((time, event)) = queue.pop() {
            sum ^= time.wrapping_mul(event | 1).rotate_left((i % 64) as u32);
            queue.push(time + gap(event), event);
        }
    }
    sum
}

fn queue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue");
    group.sample_size(10).warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(500));
    group.throughput(Throughput::Elements(STEPS));
    let loads: [(&str, Gap); 2] = [("lockstep", lockstep), ("skewed", skewed)];
    for (load, gap) in loads {
        for pending in [100, 1_000, 10_000, 100_000] {
            let sums = [
                run_hold_model::<EventQueue<u64>>(pending, gap),
                run_hold_model::<Heap>(pending, gap),
                run_hold_model::<Instants>(pending, gap),
            ];
            assert!(sums.iter().all(|&sum| sum == sums[0]), "the queues disagree: {sums:?}");
            let id = |name: &str| BenchmarkId::new(format!("{load}, {name}"), pending);
            group.bench_function(id("ours"), |bencher| {
                bencher.iter(|| run_hold_model::<EventQueue<u64>>(black_box(pending), gap));
            });
            group
                .bench_function(id("heap"), |bencher| bencher.iter(|| run_hold_model::<Heap>(black_box(pending), gap)));
            group.bench_function(id("instants"), |bencher| {
                bencher.iter(|| run_hold_model::<Instants>(black_box(pending), gap));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, queue);
criterion_main!(benches);
