//! Comparison of times derived from a nearby size with simulations.

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::route::{LinkListing, RouteOptions, Router};
use fabricast_topologies::{Bytes, FabricRequest, load};

use super::super::calls::CallWithStrategy;
use super::super::extrapolation::near_size::SizedTime;
use super::super::simulated::SimulatedCosts;
use super::super::timing_method::KnownTime;
use super::slowest;
use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::strategy::Strategy;
use fabricast_workload::job::{Degrees, Dimension, Layout};

/// Checks groups on separate rails, and groups that share links of a dragonfly.
#[test]
fn nearby_sizes_are_within_one_percent_of_simulation() {
    for network in ["rail", "dragonfly"] {
        let network = Some(format!("{network},nic=400Gb/s").parse().unwrap());
        let fabric = load(&FabricRequest { nodes: Some(520), network, ..FabricRequest::new("hgx-h100") }).unwrap();
        let router = Router::with_link_listing(&fabric, RouteOptions::default(), LinkListing::Representatives);
        let profile = Profile::for_fabric(&fabric).unwrap();
        let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
        let layout = Layout { degrees: Degrees { tensor: 8, data: 520, ..Degrees::default() } };
        let collective = Collective::AllGather;
        let groups = simulated.placement().concurrent_groups(&layout.groups(Dimension::Data), collective);
        let (algorithm, protocol) = (Algorithm::Pat, Protocol::Simple);
        let strategy = Strategy::new(algorithm, protocol, 8);
        let call = |kib: u64| CallWithStrategy { collective, bytes: Bytes(kib * 1024 * 520), strategy };
        let simulate = |kib| slowest(&simulated, &groups, call(kib));
        let known = KnownTime::AllGroups(SizedTime { bytes: call(64).bytes, time: simulate(64) });
        for kib in [64, 63, 62, 50, 40] {
            let interpolated = simulated.timer().sample_time(&groups, call(kib), known).unwrap();
            let error = interpolated.0 as f64 / simulate(kib).0 as f64 - 1.0;
            assert!(error.abs() < 0.01 && (kib < 64 || error == 0.0), "{}: {kib} {error:+.4}", fabric.name());
        }
    }
}
