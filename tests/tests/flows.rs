//! Tests of timed flows: the order of the lines in their file has no effect, for any fabric, traffic and routing.

use fabricast_sim::engine::Watch;
use fabricast_sim::flows::{self, Flow};
use fabricast_sim::lower::Environment;
use fabricast_sim::profile::Profile;
use fabricast_topologies::route::{Ecmp, RouteOptions, Router};
use fabricast_topologies::{Fabric, Picos};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::testbed::fabric_specs;

/// Line of the file: source and destination as indices of the GPUs, bytes, and start. Few distinct sizes and starts are
/// generated, so that flows coincide.
type Line = (Index, Index, u64, u64);

fn lines() -> impl Strategy<Value = Vec<Line>> {
    let sizes = select(vec![0, 1, 4096, 1 << 20, 45_000_000]);
    vec((any::<Index>(), any::<Index>(), sizes, select(vec![0, 0, 7, 100])), 1..40)
}

/// Returns the flows of a file with their end times, sorted.
fn outcome(fabric: &Fabric, ecmp: Ecmp, lines: &[String]) -> Option<Vec<(Flow, Picos)>> {
    let text = format!("src,dst,bytes,start_us\n{}\n", lines.join("\n"));
    let parsed = flows::parse(&text, "flows.csv", fabric).unwrap();
    let router = Router::new(fabric, RouteOptions { ecmp, ..RouteOptions::default() });
    let profile = Profile::ideal();
    let setting = Environment { fabric, router: &router, placement: fabric.gpus(), profile: &profile, delays: &[] };
    let outcome = flows::simulate(&parsed, setting, Watch::default()).ok()?;
    let mut ends: Vec<(Flow, Picos)> = parsed.into_iter().zip(outcome.ends).collect();
    ends.sort_unstable_by_key(|&(flow, end)| (flow.src, flow.dst, flow.bytes, flow.start, end));
    Some(ends)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn order_of_lines_does_not_matter(
        fabric_spec in fabric_specs(24),
        line_specs in lines(),
        hashed in any::<bool>(),
        seed in any::<u64>(),
        swaps in vec(any::<Index>(), 40),
    ) {
        let fabric = fabric_spec.build();
        let ecmp = if hashed { Ecmp::Hashed { seed } } else { Ecmp::Averaged };
        let name = |index: &Index| &fabric.node(*index.get(fabric.gpus())).id;
        let mut lines: Vec<String> = line_specs
            .iter()
            .map(|(src, dst, bytes, start)| format!("{},{},{bytes},{start}", name(src), name(dst)))
            .collect();
        let ends = outcome(&fabric, ecmp, &lines);
        for (line, index) in (0..lines.len()).rev().zip(&swaps) {
            lines.swap(line, index.index(line + 1));
        }
        prop_assert_eq!(outcome(&fabric, ecmp, &lines), ends);
    }
}
