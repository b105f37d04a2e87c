//! Tests that the [`IslandTraffic`] of some devices covers the links and turns of all routes between them.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::properties::{Host, host, networks, options};
use super::*;
use crate::route::island_routes::IslandRoute;
use crate::route::link_usage::SurveyScope;
use crate::route::twins::Pair;
use crate::route::{Ecmp, IslandTraffic, Participants};
use crate::{LinkId, LinkKind, NetworkSpec, Picos, cluster, preset};

/// Links and turns in use according to `transits`, in all their islands.
fn passed(router: &Router<'_>, transits: &[IslandTraffic]) -> (BTreeSet<LinkId>, BTreeSet<(LinkId, LinkId)>) {
    let (mut links, mut turns) = (BTreeSet::new(), BTreeSet::new());
    for transit in transits {
        for &island in &transit.islands {
            let link = |&number: &u32| router.island_link(island, number);
            links.extend(transit.links.iter().map(link));
            turns.extend(router.island_turns(island, transit));
        }
    }
    (links, turns)
}

/// Checks that the surveyed traffic contains every link, and every pair of consecutive links (turn), of the routes
/// between `devices`, and that its latencies are at most those of the routes.
fn holds(fabric: &Fabric, devices: &[NodeId], options: RouteOptions, max_pairs: usize) -> Result<(), TestCaseError> {
    let router = Router::new(fabric, options);
    let participants = Participants::new(devices);
    let transits = router.survey_islands(devices, max_pairs, SurveyScope::OneOfTwins);
    let (links, turns) = passed(&router, &transits);
    let shortest = |latency: fn(&IslandTraffic) -> Option<Picos>| transits.iter().filter_map(latency).min();
    for (from, to) in devices.iter().flat_map(|&from| devices.iter().map(move |&to| (from, to))) {
        let mut hops = Vec::new();
        let Ok(summary) = router.route_for_participants(&participants, from, to, 7, &mut hops) else { continue };
        for hop in &hops {
            let (start, end) = fabric.ends(hop.link);
            let trunk = router.forwards(start) && router.forwards(end);
            prop_assert!(trunk || links.contains(&hop.link), "{}", fabric.link_name(hop.link));
        }
        // A flow that is spread over equal-cost paths lists their links next to each other, so its hops are no
        // sequence.
        if matches!(options.ecmp, Ecmp::Hashed { .. }) {
            for pair in hops.windows(2) {
                // Turns at a device that relays for a missing NVLink are unrestricted.
                let (_, at) = fabric.ends(pair[0].link);
                let relays =
                    pair.iter().all(|hop| fabric.link(hop.link).kind == LinkKind::Nvlink) && devices.contains(&at);
                let inside = !router.forwards(at) && !relays;
                let turn = (pair[0].link, pair[1].link);
                prop_assert!(!inside || turns.contains(&turn), "{turn:?}, at most {max_pairs} pairs");
            }
        }
        if from != to && summary.class != PathClass::Loc {
            let same_host = fabric.node(from).host == fabric.node(to).host;
            let min_latency = match (summary.class == PathClass::Net, same_host) {
                (true, _) => shortest(|transit| transit.network_latency),
                (false, true) => shortest(|transit| transit.host_latency),
                (false, false) => shortest(|transit| transit.inter_host_latency),
            };
            prop_assert!(
                min_latency.is_some_and(|min_latency| min_latency <= summary.latency),
                "{min_latency:?} and {:?}",
                summary.latency
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn transits_cover_every_route(
        (name, nodes, network) in networks(),
        options in options(),
        broken in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..3),
        left_out in any::<prop::sample::Index>(),
    ) {
        let network: NetworkSpec = network.parse().unwrap();
        let Ok(fabric) = cluster::build(&preset::load(name).unwrap(), nodes, Some(&network)) else { return Ok(()) };
        let failed = broken.iter().flat_map(|(broken, both_directions)| {
            let link = LinkId(broken.index(fabric.link_count()) as u32);
            [link, if *both_directions { link.reverse() } else { link }]
        });
        let fabric = fabric.with_failed_links(&failed.collect::<Vec<_>>());
        let mut devices = fabric.gpus().to_vec();
        devices.remove(left_out.index(devices.len()));
        holds(&fabric, &devices, options, usize::MAX)?;
        // Limit of 0 pairs: forces the approximation for many kinds of islands.
        holds(&fabric, &devices, options, 0)?;
    }
}

/// Checks that a survey of twins equals a survey of all devices, link by link and turn by turn. Returns the number of
/// turns saved.
fn check_twin_survey(fabric: &Fabric, devices: &[NodeId], options: RouteOptions) -> Result<usize, TestCaseError> {
    let router = Router::new(fabric, options);
    let mut saved = 0;
    for max_pairs in [usize::MAX, 0] {
        let by_twins = router.survey_islands(devices, max_pairs, SurveyScope::OneOfTwins);
        let by_device = router.survey_islands(devices, max_pairs, SurveyScope::EveryDevice);
        prop_assert_eq!(passed(&router, &by_twins), passed(&router, &by_device));
        prop_assert_eq!(by_twins.len(), by_device.len());
        for (by_twins, by_device) in by_twins.iter().zip(&by_device) {
            let latencies =
                |transit: &IslandTraffic| (transit.host_latency, transit.inter_host_latency, transit.network_latency);
            prop_assert_eq!(latencies(by_twins), latencies(by_device));
            prop_assert_eq!((&by_twins.islands, &by_twins.links), (&by_device.islands, &by_device.links));
            saved += by_device.turns.len() - by_twins.turns.len();
        }
    }
    Ok(saved)
}

/// Checks that routes mapped from twins equal those found by a search from each device.
fn check_twin_routes(fabric: &Fabric, options: RouteOptions) -> Result<(), TestCaseError> {
    let router = Router::new(fabric, options);
    let Some(&device) = fabric.gpus().first() else { return Ok(()) };
    let shape = router.islands.shape(router.island_of(device));
    let nodes = 0..shape.nodes().len() as u32;
    for (from, to) in nodes.clone().flat_map(|from| nodes.clone().map(move |to| (from, to))) {
        let (route, searched) =
            (shape.route_between(from, to, &options), shape.search_route(Pair { from, to }, &options));
        let parts = |route: &IslandRoute| {
            let parts = route.segment.parts.iter().map(|part| (part.layer, part.link, part.share));
            (
                route.class,
                route.segment.paths,
                route.segment.latency,
                route.segment.bandwidth,
                parts.collect::<Vec<_>>(),
            )
        };
        prop_assert_eq!(route.as_deref().map(parts), searched.map(parts), "{} to {}", from, to);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn twins_represent_all_devices_of_random_hosts(
        host in host(),
        twins in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        options in options(),
        broken in prop::collection::vec(any::<prop::sample::Index>(), 0..2),
        left_out in any::<prop::sample::Index>(),
    ) {
        let fabric = twins.into_iter().fold(host, Host::with_twin).build();
        let broken: Vec<LinkId> = match fabric.link_count() {
            0 => Vec::new(),
            links => broken.iter().map(|broken| LinkId(broken.index(links) as u32)).collect(),
        };
        let fabric = fabric.with_failed_links(&broken);
        let mut devices = fabric.gpus().to_vec();
        check_twin_routes(&fabric, options)?;
        check_twin_survey(&fabric, &devices, options)?;
        if !devices.is_empty() {
            devices.remove(left_out.index(devices.len()));
            check_twin_survey(&fabric, &devices, options)?;
        }
    }

    #[test]
    fn twins_represent_all_devices_of_clusters(
        (name, nodes, network) in networks(),
        options in options(),
        broken in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..3),
    ) {
        let network: NetworkSpec = network.parse().unwrap();
        let Ok(fabric) = cluster::build(&preset::load(name).unwrap(), nodes, Some(&network)) else { return Ok(()) };
        let failed = broken.iter().flat_map(|(broken, both_directions)| {
            let link = LinkId(broken.index(fabric.link_count()) as u32);
            [link, if *both_directions { link.reverse() } else { link }]
        });
        let fabric = fabric.with_failed_links(&failed.collect::<Vec<_>>());
        check_twin_survey(&fabric, fabric.gpus(), options)?;
    }
}

#[test]
fn twins_of_one_switch_are_surveyed_once() {
    let text = "[[node]]\nid = \"gpu[0-63]\"\nkind = \"gpu\"\n[[node]]\nid = \"sw\"\nkind = \"nvswitch\"\n\
                [[link]]\na = \"gpu[0-63]\"\nb = \"sw\"\nkind = \"nvlink\"\nbandwidth = \"50 GB/s\"\n";
    let fabric = spec(text);
    assert_eq!(check_twin_survey(&fabric, fabric.gpus(), RouteOptions::default()).unwrap(), 2 * (64 * 63 - 1));
}

#[test]
fn twins_are_not_used_where_link_numbers_select_the_path() {
    // 2¹⁷ paths through 17 pairs of twin switches, of which one path is used.
    let mut text = String::from("[[node]]\nid = \"gpu[0-3]\"\nkind = \"gpu\"\n");
    let mut link = |a: &str, b: &str| {
        text += &format!("[[link]]\na = \"{a}\"\nb = \"{b}\"\nkind = \"pcie\"\nbandwidth = \"50 GB/s\"\n");
    };
    link("gpu[0-1]", "s00");
    link("gpu[2-3]", "s18");
    for layer in 0..18 {
        let side = |layer: u32| if layer.is_multiple_of(18) { vec![""] } else { vec!["", "b"] };
        for (a, b) in side(layer).iter().flat_map(|a| side(layer + 1).into_iter().map(move |b| (a, b))) {
            link(&format!("s{layer:02}{a}"), &format!("s{:02}{b}", layer + 1));
        }
    }
    for layer in 0..=18u32 {
        for b in if layer.is_multiple_of(18) { vec![""] } else { vec!["", "b"] } {
            text += &format!("[[node]]\nid = \"s{layer:02}{b}\"\nkind = \"pcie_switch\"\n");
        }
    }
    let fabric = spec(&text);
    assert_eq!(check_twin_survey(&fabric, fabric.gpus(), RouteOptions::default()).unwrap(), 0);
}

#[test]
fn transits_cover_loopback_clusters_and_racks() {
    for (name, nodes, network) in
        [("hgx-h200", 4, "tcp-loopback"), ("gb200-nvl72", 20, "rail"), ("gb200-nvl72", 6, "mnnvl")]
    {
        let fabric = cluster::build(&preset::load(name).unwrap(), nodes, Some(&network.parse().unwrap())).unwrap();
        let hashed = RouteOptions { ecmp: Ecmp::Hashed { seed: 3 }, ..RouteOptions::default() };
        for options in [RouteOptions::default(), hashed] {
            holds(&fabric, fabric.gpus(), options, usize::MAX).unwrap();
            holds(&fabric, fabric.gpus(), options, 0).unwrap();
        }
    }
}

#[test]
fn network_traffic_enters_only_through_the_own_nic() {
    // Two A100s and two NICs share a PCIe switch: each GPU receives through its own NIC.
    let network = "fat_tree".parse().unwrap();
    let fabric = cluster::build(&preset::load("dgx-a100").unwrap(), 2, Some(&network)).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let transits = router.island_traffic(fabric.gpus());
    assert_eq!(transits.len(), 1, "the hosts are alike");
    let (_, turns) = passed(&router, &transits);
    let link = |name: &str| fabric.links().map(|(id, _)| id).find(|&id| fabric.link_name(id) == name).unwrap();
    let turn = |a: &str, b: &str| turns.contains(&(link(a), link(b)));
    assert!(turn("n0/nic0->n0/pcie_switch0", "n0/pcie_switch0->n0/gpu0"));
    assert!(!turn("n0/nic1->n0/pcie_switch0", "n0/pcie_switch0->n0/gpu0"));
    assert!(!turn("n0/gpu1->n0/pcie_switch0", "n0/pcie_switch0->n0/gpu0"));
    assert!(!turn("n1/nic0->n1/pcie_switch0", "n1/pcie_switch0->n1/nic1"));
}
