//! Timed flows: the order of the lines in their file does not matter, for any fabric, traffic and routing.

use fabricast_sim::engine::Watch;
use fabricast_sim::flows::{self, Flow};
use fabricast_sim::lower::Setting;
use fabricast_sim::profile::Profile;
use fabricast_topologies::route::{Ecmp, RouteOptions, Router};
use fabricast_topologies::{Fabric, Picos};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::worlds::plants;

/// A line of the file, with indices of the GPUs; few distinct sizes and starts, so that flows coincide.
type Line = (Index, Index, u64, u64);

fn lines() -> impl Strategy<Value = Vec<Line>> {
    let sizes = select(vec![0, 1, 4096, 1 << 20, 45_000_000]);
    vec((any::<Index>(), any::<Index>(), sizes, select(vec![0, 0, 7, 100])), 1..40)
}

/// Flows of a file with their end times, sorted.
fn outcome(fabric: &Fabric, ecmp: Ecmp, lines: &[String]) -> Option<Vec<(Flow, Picos)>> {
    let text = format!("src,dst,bytes,start_us\n{}\n", lines.join("\n"));
    let given = flows::parse(&text, "flows.csv", fabric).unwrap();
    let router = Router::new(fabric, RouteOptions { ecmp, ..RouteOptions::default() });
    let profile = Profile::ideal();
    let setting = Setting { fabric, router: &router, placement: fabric.gpus(), profile: &profile, delays: &[] };
    let outcome = flows::simulate(&given, setting, Watch::default()).ok()?;
    let mut ends: Vec<(Flow, Picos)> = given.into_iter().zip(outcome.ends).collect();
    ends.sort_unstable_by_key(|&(flow, end)| (flow.src, flow.dst, flow.bytes, flow.start, end));
    Some(ends)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn order_of_lines_does_not_matter(
        plant in plants(24),
        given in lines(),
        hashed in any::<bool>(),
        seed in any::<u64>(),
        places in vec(any::<Index>(), 40),
    ) {
        let fabric = plant.build();
        let ecmp = if hashed { Ecmp::Hashed { seed } } else { Ecmp::Averaged };
        let name = |place: &Index| &fabric.node(*place.get(fabric.gpus())).id;
        let mut lines: Vec<String> = given
            .iter()
            .map(|(src, dst, bytes, start)| format!("{},{},{bytes},{start}", name(src), name(dst)))
            .collect();
        let ends = outcome(&fabric, ecmp, &lines);
        for (line, place) in (0..lines.len()).rev().zip(&places) {
            lines.swap(line, place.index(line + 1));
        }
        prop_assert_eq!(outcome(&fabric, ecmp, &lines), ends);
    }
}
