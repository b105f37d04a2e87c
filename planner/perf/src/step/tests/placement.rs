//! Tests of the effect of rank placement on steps.

use std::collections::BTreeSet;

use fabricast_sim::profile::Profile;
use fabricast_topologies::route::{Hop, RouteOptions, Router};
use fabricast_topologies::{Fabric, FabricRequest, LinkKind, NodeId, NodeKind, load, preset};
use proptest::prelude::*;

use super::super::{Efficiency, Machine, Share, Step, best_step, step_calls};
use super::{fabric, read};
use crate::communication::{SimulatedCosts, TimedCall};
use fabricast_workload::job::Job;

/// Returns the predicted step of a job with the placement that it states, and its calls.
fn predict(fabric: &Fabric, text: &str) -> (Step, Vec<TimedCall>) {
    let job = read(text);
    let ranks = Job::Training(job.clone()).rank_devices(fabric).unwrap().into_owned();
    let router = Router::new(fabric, RouteOptions::default());
    let profile = Profile::for_fabric(fabric).unwrap();
    let simulated = SimulatedCosts::new(&router, &profile, &ranks);
    let machine = Machine { router: &router, ranks: &ranks, simulated: &simulated, curve: Efficiency::new(fabric) };
    let step = best_step(&job, &machine).unwrap().0;
    let calls =
        simulated.restricted_to(job.collectives).timed_calls(&step.layout, &step_calls(&job, &step.layout)).unwrap();
    (step, calls)
}

fn job(parallel: &str, placement: &str) -> String {
    format!(
        "name = \"j\"\nglobal_batch = 16\nflash_attention = true\nplacement = {placement}\nparallel = {parallel}\n\
         model = {{ layers = 4, hidden = 2048, heads = 16, vocab = 32000, seq = 512 }}\n"
    )
}

/// Returns a job with separate groups for experts, contexts, pipeline stages and replicas.
fn job_with_all_dimensions(placement: &str) -> String {
    format!(
        "name = \"j\"\nglobal_batch = 16\nflash_attention = true\nplacement = {placement}\n\
         parallel = {{ tp = 2, cp = 2, dp = 2, ep = 2, pp = 2, sequence = true }}\n\
         model = {{ layers = 4, hidden = 1024, heads = 16, vocab = 32000, seq = 512, experts = 4, experts_per_token = 2 }}\n"
    )
}

fn list(gpus: &[u32]) -> String {
    format!("{gpus:?}")
}

/// Returns a GPU list as a value of `placement`, for hosts of `each` GPUs in the given order.
fn by_hosts(hosts: &[u32], each: u32) -> String {
    list(&hosts.iter().flat_map(|host| (0..each).map(move |gpu| host * each + gpu)).collect::<Vec<_>>())
}

#[test]
fn explicit_block_placement_equals_the_default() {
    let two = fabric("hgx-h100", 2);
    let all: Vec<u32> = (0..16).collect();
    for parallel in ["\"auto\"", "{ tp = 4, pp = 2 }"] {
        let plain = predict(&two, &job(parallel, "\"block\""));
        for placement in [list(&all), "\"0-15\"".to_owned()] {
            assert_eq!(predict(&two, &job(parallel, &placement)), plain);
        }
    }
}

/// Unused GPUs have no effect: a job on two of four hosts takes as long as on two hosts.
#[test]
fn idle_gpus_change_nothing() {
    let (two, four) = (fabric("hgx-h100", 2), fabric("hgx-h100", 4));
    for text in
        [&job_with_all_dimensions as &dyn Fn(&str) -> String, &|placement| job("{ tp = 4 }", placement), &|placement| {
            job("\"auto\"", placement)
        }]
    {
        let time = |fabric, placement: &str| predict(fabric, &text(placement)).0.time;
        assert_eq!(time(&four, "\"16-31\""), time(&two, "\"block\""));
    }
}

/// With 64 of 72 GPUs per rack in use, expert groups stay inside racks. With all GPUs in use, some groups span racks.
#[test]
fn idle_gpus_keep_expert_groups_inside_racks() {
    let racks = fabric("gb200-nvl72", 32);
    let text = |placement: &str| {
        format!(
            "name = \"j\"\nglobal_batch = 128\nflash_attention = true\nplacement = {placement}\nparallel = {{ dp = 128, ep = 32 }}\n\
             model = {{ layers = 4, hidden = 1024, heads = 16, vocab = 32000, seq = 512, experts = 32, experts_per_token = 2 }}\n"
        )
    };
    let larger = fabric("gb200-nvl72", 36);
    let [split, intact] = [predict(&racks, &text("\"block\"")), predict(&larger, &text("\"0-63,72-135\""))]
        .map(|one| one.0.share_time(Share::Expert));
    assert!(intact.0 * 2 < split.0, "{intact:?} {split:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    /// With identical hosts below one switch, the order of the hosts has no effect on times.
    #[test]
    fn host_order_changes_no_time(
        hosts in Just(vec![0u32, 1, 2, 3]).prop_shuffle(),
        network in prop::sample::select(vec!["rail,nics_per_node=4,nic=400Gb/s", "fat_tree,nics_per_node=4,nic=200Gb/s"]),
    ) {
        let network = Some(network.parse().unwrap());
        let request = FabricRequest { nodes: Some(4), gpus: Some(4), network, ..FabricRequest::new("hgx-h100") };
        let four = load(&request).unwrap();
        for text in [
            &job_with_all_dimensions as &dyn Fn(&str) -> String,
            &|placement| job("{ tp = 8 }", placement),
            &|placement| job("\"auto\"", placement),
        ] {
            prop_assert_eq!(predict(&four, &text(&by_hosts(&hosts, 4))), predict(&four, &text("\"block\"")));
        }
    }

    /// Placement affects the times of calls, not their sizes. Every placement has a predicted time.
    #[test]
    fn placement_changes_no_message_sizes(gpus in Just((0u32..16).collect::<Vec<_>>()).prop_shuffle()) {
        let two = fabric("hgx-h100", 2);
        let (block, shuffled) = (predict(&two, &job_with_all_dimensions("\"block\"")), predict(&two, &job_with_all_dimensions(&list(&gpus))));
        let untimed_calls = |calls: &[TimedCall]| calls.iter().map(|one| one.call).collect::<Vec<_>>();
        prop_assert_eq!(untimed_calls(&block.1), untimed_calls(&shuffled.1));
        prop_assert_eq!(block.0.layout, shuffled.0.layout);
        prop_assert_eq!(shuffled.0.shares.iter().map(|share| share.1).sum::<fabricast_topologies::Picos>(), shuffled.0.time);
    }

    /// Moving tensor-parallel ranks to another host never reduces the exposed time of their calls.
    #[test]
    fn spreading_tensor_groups_is_never_faster(gpus in Just((0u32..16).collect::<Vec<_>>()).prop_shuffle(), tensor in 1u32..4) {
        let two = fabric("hgx-h100", 2);
        let parallel = format!("{{ tp = {}, sequence = true }}", 1 << tensor);
        let [near, spread] = ["\"block\"".to_owned(), list(&gpus)].map(|placement| predict(&two, &job(&parallel, &placement)).0);
        prop_assert!(spread.share_time(Share::Tensor) >= near.share_time(Share::Tensor), "{:?} {:?}", spread, near);
    }
}

/// Tensor-parallel groups inside an NVLink domain are no slower than groups over two hosts, on every preset whose GPUs
/// have direct NVLink paths to each other. (If GPUs are connected by PCIe and a socket link, NICs may be faster, as on
/// two `a100-pcie`; rings of all eight GPUs of a `dgx-v100` pass through other GPUs.)
#[test]
fn tensor_groups_are_fastest_inside_hosts() {
    let mut seen = 0;
    for name in preset::names() {
        let request = FabricRequest { nodes: Some(2), ..FabricRequest::new(name) };
        let Ok(two) = load(&request) else { continue };
        let hosts: BTreeSet<_> = two.gpus().iter().map(|&gpu: &NodeId| two.node(gpu).host).collect();
        let each = two.gpus().len() / hosts.len();
        let router = Router::new(&two, RouteOptions::default());
        let is_near = |&to: &NodeId| {
            let hops = router.path(two.gpus()[0], to).unwrap().hops;
            let passes = |hop: &Hop| two.ends(hop.link).1 != to && two.node(two.ends(hop.link).1).kind == NodeKind::Gpu;
            !hops.iter().any(|hop| passes(hop) || matches!(two.link(hop.link).kind, LinkKind::Pcie | LinkKind::Upi))
        };
        if !two.gpus()[1..each].iter().all(is_near) || hosts.len() != 2 || each < 2 || !each.is_power_of_two() {
            continue;
        }
        let parallel = format!("{{ tp = {each}, dp = 2, sequence = true }}");
        let [near, far] = ["\"block\"", "\"cyclic\""].map(|placement| predict(&two, &job(&parallel, placement)).0);
        assert!(far.share_time(Share::Tensor) >= near.share_time(Share::Tensor), "{name}: {far:?} {near:?}");
        assert!(far.time >= near.time, "{name}: {far:?} {near:?}");
        seen += 1;
    }
    assert!(seen >= 5, "{seen}");
}

/// The search takes the placement into account.
#[test]
fn search_takes_placement_into_account() {
    let network = Some("rail,nics_per_node=1,nic=100Gb/s".parse().unwrap());
    let two = load(&FabricRequest { nodes: Some(2), network, ..FabricRequest::new("hgx-h100") }).unwrap();
    let large = |placement: &str| job("\"auto\"", placement).replace("global_batch = 16", "global_batch = 2");
    let [near, far] = ["\"block\"", "\"cyclic\""].map(|placement| predict(&two, &large(placement)).0);
    assert_ne!(near.layout, far.layout);
    // The layout found for cyclic placement is faster than the best layout for block placement.
    let degrees = near.layout.degrees;
    let parallel = format!(
        "{{ tp = {}, pp = {}, dp = {}, sequence = {} }}",
        degrees.tensor,
        degrees.pipeline,
        degrees.data,
        degrees.token_shares() > 1
    );
    let forced =
        predict(&two, &large("\"cyclic\"").replace("parallel = \"auto\"", &format!("parallel = {parallel}"))).0;
    assert!(far.time < forced.time, "{far:?} {forced:?}");
}
