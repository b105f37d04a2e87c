//! Tests of representative links: after expansion to the links that they represent, each link carries its share of the
//! flow.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::cluster;
use crate::preset;
use crate::route::{Ecmp, Hop, LinkListing, Share};
use crate::{LinkId, NodeId};

fn gh200(nodes: u32, network: &str) -> Fabric {
    cluster::build(&preset::load("gh200").unwrap(), nodes, Some(&network.parse().unwrap())).unwrap()
}

/// Expands representative links to all links, with their shares.
fn spread(router: &Router<'_>, hops: &[Hop]) -> BTreeMap<LinkId, Share> {
    let mut all = BTreeMap::new();
    for hop in hops {
        for &link in router.represented_links(hop.link).unwrap_or(&[hop.link]) {
            assert_eq!(all.insert(link, hop.share), None, "{link:?} twice");
        }
    }
    all
}

/// Number of links listed for a path: with all links, then with representatives. `None` if there is no path.
fn check(fabric: &Fabric, [all, representatives]: [&Router<'_>; 2], from: NodeId, to: NodeId) -> Option<[usize; 2]> {
    let (mut all_hops, mut representative_hops) = (Vec::new(), Vec::new());
    match (
        all.route_into(from, to, 0, &mut all_hops),
        representatives.route_into(from, to, 0, &mut representative_hops),
    ) {
        (Ok(all_summary), Ok(representative_summary)) => assert_eq!(all_summary, representative_summary),
        (Err(_), Err(_)) => return None,
        (all_summary, representative_summary) => panic!("{all_summary:?} {representative_summary:?}"),
    }
    let expected: BTreeMap<LinkId, Share> = all_hops.iter().map(|hop| (hop.link, hop.share)).collect();
    assert_eq!(expected.len(), all_hops.len());
    assert_eq!(
        spread(representatives, &representative_hops),
        expected,
        "{} {}",
        fabric.node(from).id,
        fabric.node(to).id
    );
    Some([all_hops.len(), representative_hops.len()])
}

#[test]
fn fat_trees_list_one_link_of_each_tier() {
    let fabric = gh200(256, "fat_tree,tiers=3,radix=16");
    let options = RouteOptions::default();
    let routers =
        [Router::new(&fabric, options), Router::with_link_listing(&fabric, options, LinkListing::Representatives)];
    let gpu = |host: usize| fabric.gpus()[host];
    // Three links lead out of the first host and three into the other. Within a pod, the path passes up and down
    // through eight switches; across pods, through eight times eight.
    let [same_pod, other_pod] = [8, 255].map(|to| check(&fabric, [&routers[0], &routers[1]], gpu(0), gpu(to)).unwrap());
    assert_eq!(same_pod, [6 + 2 * 8, 6 + 2]);
    assert_eq!(other_pod, [6 + 2 * (8 + 64), 6 + 4]);
    let hashed = RouteOptions { ecmp: Ecmp::Hashed { seed: 1 }, ..options };
    assert!((0..2048).all(|link| {
        Router::with_link_listing(&fabric, hashed, LinkListing::Representatives)
            .represented_links(LinkId(link))
            .is_none()
    }));
}

/// Two hosts joined by a chain of switches, with `parallel` links between each two.
fn row(switches: usize, parallel: usize, figures: &str) -> Fabric {
    let link = |a: &str, b: &str, kind: &str| {
        format!("[[link]]\na = \"{a}\"\nb = \"{b}\"\nkind = \"{kind}\"\nbandwidth = \"50 GB/s\"\n")
    };
    let mut text = format!("name = \"row\"\nsource = [\"test\"]\n[device.switch]\n{figures}\n");
    for (host, switch) in [("a", 0), ("b", switches - 1)] {
        for kind in ["gpu", "cpu", "nic"] {
            text += &format!("[[node]]\nid = \"{host}-{kind}\"\nkind = \"{kind}\"\nhost = \"{host}\"\n");
        }
        text += &link(&format!("{host}-gpu"), &format!("{host}-cpu"), "pcie");
        text += &link(&format!("{host}-nic"), &format!("{host}-cpu"), "pcie");
        text += &link(&format!("{host}-nic"), &format!("s{switch}"), "infiniband");
    }
    for switch in 0..switches {
        text += &format!("[[node]]\nid = \"s{switch}\"\nkind = \"switch\"\ndevice = \"switch\"\n");
        if switch > 0 {
            text += &link(&format!("s{}", switch - 1), &format!("s{switch}"), "infiniband").repeat(parallel);
        }
    }
    spec(&text)
}

/// All links are listed if a switch has a capacity, or if there are so many equal paths that a flow uses one of them.
#[test]
fn all_links_are_listed_where_representatives_do_not_suffice() {
    let has_equal_routes = |fabric: &Fabric| {
        let router = Router::with_link_listing(fabric, RouteOptions::default(), LinkListing::Representatives);
        let routers = [&Router::new(fabric, RouteOptions::default()), &router];
        check(fabric, routers, fabric.gpus()[0], fabric.gpus()[1]).unwrap();
        fabric.links().any(|(link, _)| router.represented_links(link).is_some())
    };
    assert!(has_equal_routes(&row(3, 4, "model = \"any\"")));
    assert!(!has_equal_routes(&row(3, 4, "capacity = \"60 GB/s\"")));
    assert!(has_equal_routes(&row(17, 2, "model = \"any\"")));
    assert!(!has_equal_routes(&row(18, 2, "model = \"any\"")));
}

proptest! {
    /// Expanded representative links carry the same flow as all links. Covers failed links, trees of two and three
    /// tiers with and without oversubscription, and networks without equivalent links.
    #[test]
    fn representative_links_carry_the_same_flow_as_all_links(
        network in prop::sample::select(vec![
            (32, "fat_tree,radix=8,tiers=3"),
            (32, "fat_tree,radix=8,tiers=3,oversubscription=3"),
            (30, "fat_tree,radix=16,oversubscription=3"),
            (24, "rail,nics_per_node=2"),
            (20, "dragonfly"),
            (12, "torus"),
        ]),
        failed in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ends in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..20),
    ) {
        let complete = gh200(network.0, network.1);
        let failed: Vec<LinkId> = failed.iter().map(|index| LinkId(index.index(complete.link_count()) as u32)).collect();
        let fabric = complete.with_failed_links(&failed);
        let options = RouteOptions::default();
        let routers = [Router::new(&fabric, options), Router::with_link_listing(&fabric, options, LinkListing::Representatives)];
        for (from, to) in ends {
            let (from, to) = (*from.get(fabric.gpus()), *to.get(fabric.gpus()));
            if let Some([all_count, representative_count]) = check(&fabric, [&routers[0], &routers[1]], from, to) {
                prop_assert!(representative_count <= all_count);
            }
        }
    }
}
