//! Where ranks sit: what placements change of a step and what they do not.

use std::collections::BTreeSet;

use fabricast_sim::profile::Profile;
use fabricast_topologies::route::{Hop, RouteOptions, Router};
use fabricast_topologies::{Fabric, FabricRequest, LinkKind, NodeId, NodeKind, load, preset};
use proptest::prelude::*;

use super::tests::{fabric, read};
use super::{Efficiency, Machine, PricedCall, Share, Simulated, Step, best_step, calls};
use crate::job::Job;

/// The step of a job where it says that its ranks sit, and its calls.
fn placed(fabric: &Fabric, text: &str) -> (Step, Vec<PricedCall>) {
    let job = read(text);
    let ranks = Job::Training(job.clone()).ranks_on(fabric).unwrap().into_owned();
    let router = Router::new(fabric, RouteOptions::default());
    let profile = Profile::for_fabric(fabric).unwrap();
    let simulated = Simulated::new(&router, &profile, &ranks);
    let machine = Machine { router: &router, ranks: &ranks, simulated: &simulated, curve: Efficiency::of(fabric) };
    let step = best_step(&job, &machine).unwrap().0;
    let priced = simulated.allowing(job.collectives).priced(&step.layout, &calls(&job, &step.layout)).unwrap();
    (step, priced)
}

fn job(parallel: &str, placement: &str) -> String {
    format!(
        "name = \"j\"\nglobal_batch = 16\nflash_attention = true\nplacement = {placement}\nparallel = {parallel}\n\
         model = {{ layers = 4, hidden = 2048, heads = 16, vocab = 32000, seq = 512 }}\n"
    )
}

/// A job whose experts, sequences, stages and copies all have groups of their own.
fn of_all_kinds(placement: &str) -> String {
    format!(
        "name = \"j\"\nglobal_batch = 16\nflash_attention = true\nplacement = {placement}\n\
         parallel = {{ tp = 2, cp = 2, dp = 2, ep = 2, pp = 2, sequence = true }}\n\
         model = {{ layers = 4, hidden = 1024, heads = 16, vocab = 32000, seq = 512, experts = 4, experts_per_token = 2 }}\n"
    )
}

fn list(gpus: &[u32]) -> String {
    format!("{gpus:?}")
}

/// The order in which hosts of so many GPUs stand, as the GPUs of ranks.
fn by_hosts(hosts: &[u32], each: u32) -> String {
    list(&hosts.iter().flat_map(|host| (0..each).map(move |gpu| host * each + gpu)).collect::<Vec<_>>())
}

#[test]
fn ranks_in_order_are_ranks_that_nobody_placed() {
    let two = fabric("hgx-h100", 2);
    let all: Vec<u32> = (0..16).collect();
    for parallel in ["\"auto\"", "{ tp = 4, pp = 2 }"] {
        let plain = placed(&two, &job(parallel, "\"block\""));
        for placement in [list(&all), "\"0-15\"".to_owned()] {
            assert_eq!(placed(&two, &job(parallel, &placement)), plain);
        }
    }
}

/// GPUs without a rank change nothing: a job on two of four hosts takes what it takes on two.
#[test]
fn spare_gpus_change_nothing() {
    let (two, four) = (fabric("hgx-h100", 2), fabric("hgx-h100", 4));
    for text in [&of_all_kinds as &dyn Fn(&str) -> String, &|placement| job("{ tp = 4 }", placement), &|placement| {
        job("\"auto\"", placement)
    }] {
        let time = |fabric, placement: &str| placed(fabric, &text(placement)).0.time;
        assert_eq!(time(&four, "\"16-31\""), time(&two, "\"block\""));
    }
}

/// Of racks of 72 GPUs jobs take 64 each: their groups of experts stay inside of racks then, which some leave where all are taken.
#[test]
fn spares_keep_groups_inside_of_racks() {
    let racks = fabric("gb200-nvl72", 32);
    let text = |placement: &str| {
        format!(
            "name = \"j\"\nglobal_batch = 128\nflash_attention = true\nplacement = {placement}\nparallel = {{ dp = 128, ep = 32 }}\n\
             model = {{ layers = 4, hidden = 1024, heads = 16, vocab = 32000, seq = 512, experts = 32, experts_per_token = 2 }}\n"
        )
    };
    let spare = fabric("gb200-nvl72", 36);
    let [torn, whole] = [placed(&racks, &text("\"block\"")), placed(&spare, &text("\"0-63,72-135\""))]
        .map(|one| one.0.of(Share::Expert));
    assert!(whole.0 * 2 < torn.0, "{whole:?} {torn:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    /// Hosts are alike, and a switch joins all: which host is the first changes no time.
    #[test]
    fn hosts_may_change_places(
        hosts in Just(vec![0u32, 1, 2, 3]).prop_shuffle(),
        network in prop::sample::select(vec!["rail,nics_per_node=4,nic=400Gb/s", "fat_tree,nics_per_node=4,nic=200Gb/s"]),
    ) {
        let network = Some(network.parse().unwrap());
        let request = FabricRequest { nodes: Some(4), gpus: Some(4), network, ..FabricRequest::of("hgx-h100") };
        let four = load(&request).unwrap();
        for text in [
            &of_all_kinds as &dyn Fn(&str) -> String,
            &|placement| job("{ tp = 8 }", placement),
            &|placement| job("\"auto\"", placement),
        ] {
            prop_assert_eq!(placed(&four, &text(&by_hosts(&hosts, 4))), placed(&four, &text("\"block\"")));
        }
    }

    /// Who sits where changes what calls take, not what they are of; whatever the groups are then, there is a price.
    #[test]
    fn bytes_of_groups_are_theirs_wherever_they_sit(gpus in Just((0u32..16).collect::<Vec<_>>()).prop_shuffle()) {
        let two = fabric("hgx-h100", 2);
        let (here, there) = (placed(&two, &of_all_kinds("\"block\"")), placed(&two, &of_all_kinds(&list(&gpus))));
        let what = |calls: &[PricedCall]| calls.iter().map(|one| one.call).collect::<Vec<_>>();
        prop_assert_eq!(what(&here.1), what(&there.1));
        prop_assert_eq!(here.0.layout, there.0.layout);
        prop_assert_eq!(there.0.shares.iter().map(|share| share.1).sum::<super::Picos>(), there.0.time);
    }

    /// Tensor-parallel ranks of a host that change places with those of another wait longer for each other, if anything.
    #[test]
    fn groups_that_are_torn_apart_are_not_faster(gpus in Just((0u32..16).collect::<Vec<_>>()).prop_shuffle(), tensor in 1u32..4) {
        let two = fabric("hgx-h100", 2);
        let parallel = format!("{{ tp = {}, sequence = true }}", 1 << tensor);
        let [near, torn] = ["\"block\"".to_owned(), list(&gpus)].map(|placement| placed(&two, &job(&parallel, &placement)).0);
        prop_assert!(torn.of(Share::Tensor) >= near.of(Share::Tensor), "{:?} {:?}", torn, near);
    }
}

/// Tensor-parallel groups inside of an NVLink domain are no slower than those with half of their ranks on another host, on every
/// preset whose GPUs all reach each other over it. (Where PCIe and the link between sockets join the GPUs of a host, NICs may be faster:
/// half of each of two `a100-pcie`, on one socket, is; and rings of all eight GPUs of a `dgx-v100` go through other GPUs.)
#[test]
fn tensor_groups_belong_inside_of_hosts() {
    let mut seen = 0;
    for name in preset::names() {
        let request = FabricRequest { nodes: Some(2), ..FabricRequest::of(name) };
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
        let [near, far] = ["\"block\"", "\"cyclic\""].map(|placement| placed(&two, &job(&parallel, placement)).0);
        assert!(far.of(Share::Tensor) >= near.of(Share::Tensor), "{name}: {far:?} {near:?}");
        assert!(far.time >= near.time, "{name}: {far:?} {near:?}");
        seen += 1;
    }
    assert!(seen >= 5, "{seen}");
}

/// Degrees that nobody named are those of the machine as the ranks find it.
#[test]
fn the_search_honours_where_ranks_sit() {
    let network = Some("rail,nics_per_node=1,nic=100Gb/s".parse().unwrap());
    let two = load(&FabricRequest { nodes: Some(2), network, ..FabricRequest::of("hgx-h100") }).unwrap();
    let large = |placement: &str| job("\"auto\"", placement).replace("global_batch = 16", "global_batch = 2");
    let [near, far] = ["\"block\"", "\"cyclic\""].map(|placement| placed(&two, &large(placement)).0);
    assert_ne!(near.layout, far.layout);
    // What it finds for ranks in turn is better than what is best of ranks in a row.
    let d = near.layout.degrees;
    let same =
        format!("{{ tp = {}, pp = {}, dp = {}, sequence = {} }}", d.tensor, d.pipeline, d.data, d.token_shares() > 1);
    let forced = placed(&two, &large("\"cyclic\"").replace("parallel = \"auto\"", &format!("parallel = {same}"))).0;
    assert!(far.time < forced.time, "{far:?} {forced:?}");
}
