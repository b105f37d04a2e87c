//! Checks crossovers on the measured host with 8 H200 GPUs: the best protocol of a ring all_reduce changes at the sizes
//! where the curves of the nccl-tests logs cross, within a factor of two.

use fabricast_collectives::algorithm::Algorithm;
use fabricast_search::candidates::Restriction;
use fabricast_search::plan::{Effort, Plan, PlanRequest, plan};
use fabricast_sim::LaunchMode;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::{Launch, Processes, Profile};
use fabricast_sim::schedule::{BufferUse, Collective, Protocol};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, Fabric, FabricRequest, load};

/// Folder of the shipped measurements.
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../validate/data/h200-node");

/// Exponents (base 2) of the sizes in bytes that both the logs and the plan have.
const SIZES: std::ops::RangeInclusive<u32> = 10..=28;

/// Sizes in bytes with their times in µs.
type Curve = Vec<(f64, f64)>;

/// Reads the out-of-place times of an all_reduce log of nccl-tests, whose columns are size, count, type, redop, root,
/// time, …
fn measured(protocol: &str) -> Curve {
    let text = std::fs::read_to_string(format!("{DATA}/logs/g_allreduce_x8_Ring_{protocol}.txt")).unwrap();
    let rows = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let columns = rows.map(|row| row.split_whitespace().collect::<Vec<_>>()).filter(|columns| columns.len() > 5);
    let curve: Curve = columns.map(|columns| (columns[0].parse().unwrap(), columns[5].parse().unwrap())).collect();
    let sizes: Vec<f64> = SIZES.map(|power| f64::from(power).exp2()).collect();
    let curve: Curve = curve.into_iter().filter(|(size, _)| sizes.contains(size)).collect();
    assert_eq!(curve.len(), sizes.len(), "{protocol}");
    curve
}

/// Plans for the measured host in the configuration of the measurement: graphs, one process for all GPUs, rings only.
fn predicted(fabric: &str) -> Plan {
    let fabric: Fabric = load(&FabricRequest::new(fabric)).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let sizes: Vec<Bytes> = SIZES.map(|power| Bytes(1 << power)).collect();
    let restriction = Restriction {
        algorithms: vec![Algorithm::Ring],
        protocols: vec![Protocol::Ll, Protocol::Ll128, Protocol::Simple],
        ..Restriction::default()
    };
    let request = PlanRequest {
        library: None,
        fabric: &fabric,
        router: &router,
        placement: fabric.gpus(),
        profile: &Profile::for_fabric(&fabric).unwrap(),
        ranks_per_node: 8,
        mode: LaunchMode { launch: Launch::Graph, processes: Processes::Single, gpus_per_host: 8 },
        buffers: BufferUse::OutOfPlace,
        root: 0,
        matrix: None,
        collectives: &[Collective::AllReduce],
        sizes: &sizes,
        restriction: &restriction,
        effort: Effort::EveryPair,
    };
    plan(&request, Monitor::default()).unwrap()
}

fn predicted_curve(plan: &Plan, protocol: Protocol) -> Curve {
    let time = |row: &fabricast_search::plan::PlanRow| {
        row.pairs.iter().find(|priced| priced.strategy.protocol == protocol).unwrap().time.us()
    };
    plan.rows.iter().map(|row| (row.bytes.0 as f64, time(row))).collect()
}

/// Returns the size in bytes from which `after` is always faster than `before`, interpolated linearly in logarithms.
fn crossing(before: &Curve, after: &Curve) -> f64 {
    let lead: Vec<(f64, f64)> = before.iter().zip(after).map(|(b, a)| (b.0.ln(), (b.1 / a.1).ln())).collect();
    let last = lead.iter().rposition(|&(_, lead)| lead <= 0.0).expect("slower at some size");
    let [(x0, y0), (x1, y1)] = [lead[last], lead[last + 1]];
    (x0 + (x1 - x0) * -y0 / (y1 - y0)).exp()
}

#[test]
fn protocol_crossovers_match_the_logs_within_a_factor_of_two() {
    let logs = ["LL", "LL128", "Simple"].map(measured);
    let measured = [crossing(&logs[0], &logs[1]), crossing(&logs[1], &logs[2])];
    // These sizes were read from the logs by hand.
    let mib = |mib: u32| f64::from(mib << 20);
    assert!((mib(2)..mib(4)).contains(&measured[0]) && (mib(16)..mib(32)).contains(&measured[1]), "{measured:?}");
    for fabric in ["hgx-h200", &format!("{DATA}/topology.xml")] {
        let plan = predicted(fabric);
        let curves = [Protocol::Ll, Protocol::Ll128, Protocol::Simple].map(|protocol| predicted_curve(&plan, protocol));
        let predicted = [crossing(&curves[0], &curves[1]), crossing(&curves[1], &curves[2])];
        for (predicted, measured) in predicted.into_iter().zip(measured) {
            let factor = predicted / measured;
            assert!((0.5..=2.0).contains(&factor), "{fabric}: {predicted:.0} bytes, {measured:.0} in the logs");
        }
        // Each protocol is selected in one contiguous range of sizes.
        let mut picks: Vec<Protocol> = plan.rows.iter().map(|row| row.pick.strategy.protocol).collect();
        picks.dedup();
        assert_eq!(picks, [Protocol::Ll, Protocol::Ll128, Protocol::Simple], "{fabric}");
    }
}
