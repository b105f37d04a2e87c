//! Symmetries of fabrics: accepted rotations map routes to routes, and machines that are not symmetric are refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::cluster;
use crate::preset;
use crate::route::{Ecmp, LinkListing, Orbits, Share};
use crate::{LinkId, NodeId};

fn machine(preset: &str, nodes: u32, network: &str) -> Fabric {
    cluster::build(&preset::load(preset).unwrap(), nodes, Some(&network.parse().unwrap())).unwrap()
}

/// Images of the ranks when the hosts rotate by `hosts`.
fn rotated(fabric: &Fabric, hosts: usize) -> Vec<NodeId> {
    let gpus = fabric.gpus();
    let per_host = gpus.len() / fabric.group_by_host(gpus).len();
    (0..gpus.len()).map(|rank| gpus[(rank + hosts * per_host) % gpus.len()]).collect()
}

fn orbits(fabric: &Fabric, hosts: usize) -> Option<Arc<Orbits>> {
    Router::new(fabric, RouteOptions::default()).orbits(fabric.gpus(), &[rotated(fabric, hosts)])
}

#[test]
fn hosts_of_one_leaf_are_interchangeable_and_leaves_as_a_whole() {
    let one_leaf = machine("hgx-h200", 8, "rail,tiers=1");
    assert!((1..8).all(|hosts| orbits(&one_leaf, hosts).is_some()));
    let all = orbits(&one_leaf, 1).unwrap();
    let find = |id| find_device(&one_leaf, id);
    assert_eq!(all.node_orbit(find("n5/gpu3")), crate::route::Orbit { representative: find("n0/gpu3"), size: 8 });
    assert_eq!(all.node_orbit(find("leaf2")).size, 1);
    assert_eq!(orbits(&one_leaf, 4).unwrap().node_orbit(find("n7/nic2")).size, 2);
    // A leaf of the fat tree of radix 16 serves two hosts with four NICs each, and a rotation by one host would
    // separate them.
    let leaves = machine("gh200", 8, "fat_tree,tiers=2,radix=16");
    assert_eq!((1..8).filter(|&hosts| orbits(&leaves, hosts).is_some()).collect::<Vec<_>>(), [2, 4, 6]);
}

/// A fabric with a failed, slowed or additional link has no rotation as a symmetry.
#[test]
fn damaged_machines_are_not_symmetric() {
    let healthy = machine("hgx-h200", 4, "rail");
    assert!(orbits(&healthy, 1).is_some());
    let damaged = [
        healthy.with_failed("n2/nic3").unwrap(),
        healthy.with_slowed("n1/gpu0->n1/nvswitch0", 0.5).unwrap(),
        healthy.with_failed("n3/gpu1->n3/nvswitch0").unwrap(),
    ];
    for fabric in damaged {
        assert_eq!(orbits(&fabric, 1), None);
    }
    let hashed = RouteOptions { ecmp: Ecmp::Hashed { seed: 1 }, ..RouteOptions::default() };
    assert_eq!(Router::new(&healthy, hashed).orbits(healthy.gpus(), &[rotated(&healthy, 1)]), None);
}

/// Flow of a path on each link, by the image of the link.
fn mapped(hops: &[crate::route::Hop], image: impl Fn(LinkId) -> LinkId) -> BTreeMap<LinkId, Share> {
    hops.iter().map(|hop| (image(hop.link), hop.share)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The route between the images of two ranks consists of the images of the links on the route between the ranks.
    #[test]
    fn symmetries_map_routes_to_routes(
        preset in select(vec!["hgx-h200", "dgx-a100", "gh200", "l40s-pcie", "gb200-nvl72", "mi300x"]),
        network in select(vec![
            "rail", "rail,tiers=1", "fat_tree,tiers=2,radix=8", "fat_tree,tiers=3,radix=4", "fat_tree,tiers=2,radix=8,oversubscription=2",
            "dragonfly", "torus", "mnnvl",
        ]),
        nodes in 2u32..=12,
        hosts in 1usize..12,
        failure in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        pairs in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 60),
    ) {
        let Ok(network) = network.parse() else { return Ok(()) };
        let Ok(fabric) = preset::load(preset).and_then(|host| cluster::build(&host, nodes, Some(&network))) else {
            return Ok(());
        };
        let fabric = match failure {
            Some(link) => fabric.with_failed_links(&[LinkId(link.index(fabric.link_count()) as u32)]),
            None => fabric,
        };
        for listing in [LinkListing::All, LinkListing::Representatives] {
            let router = Router::with_link_listing(&fabric, RouteOptions::default(), listing);
            let images = rotated(&fabric, hosts % nodes as usize);
            let found =
                (router.orbits(fabric.gpus(), std::slice::from_ref(&images)), router.permutation(fabric.gpus(), &images));
            let (Some(orbits), Some(permutation)) = found
            else {
                return Ok(());
            };
            let gpus = fabric.gpus();
            for (from, to) in &pairs {
                let (from, to) = (from.index(gpus.len()), to.index(gpus.len()));
                let route = |ends: [NodeId; 2]| {
                    let mut hops = Vec::new();
                    router.route_into(ends[0], ends[1], 0, &mut hops).map(|summary| (summary, hops))
                };
                match (route([gpus[from], gpus[to]]), route([images[from], images[to]])) {
                    (Ok((summary, hops)), Ok((image_summary, image_hops))) => {
                        prop_assert_eq!(summary, image_summary);
                        let image = |link: LinkId| LinkId(permutation.links[link.0 as usize]);
                        // Links are compared by their representative, because the image of a representative may be
                        // another link of its class.
                        let canonical = |link: LinkId| match router.represented_links(link) {
                            Some(members) => members[0],
                            None => link,
                        };
                        let there = mapped(&hops, |link| canonical(image(link)));
                        prop_assert_eq!(there, mapped(&image_hops, canonical));
                        for hop in &hops {
                            prop_assert_eq!(orbits.link_orbit(hop.link), orbits.link_orbit(image(hop.link)));
                        }
                    }
                    (Err(_), Err(_)) => {}
                    (one, other) => prop_assert!(false, "{:?} {:?}", one, other),
                }
            }
        }
    }
}
