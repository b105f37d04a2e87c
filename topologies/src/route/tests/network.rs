//! Routes between hosts: rails, neighbours' NICs, several GPUs per NIC, several NICs per GPU, failures.

use super::*;
use crate::cluster;
use crate::preset;
use crate::route::{BufferLocation, Ecmp, GpuDirect, PeerAccess, Pxn, Share};
use crate::{Bandwidth, Error, Picos};

const NO_PXN: RouteOptions = RouteOptions {
    p2p: PeerAccess::Allowed,
    gdr: GpuDirect::Allowed,
    pxn: Pxn::Off,
    ecmp: Ecmp::Averaged,
    buffers: BufferLocation::Device,
};

fn load_cluster(name: &str, nodes: u32, network: &str) -> Fabric {
    cluster::build(&preset::load(name).unwrap(), nodes, Some(&network.parse().unwrap())).unwrap()
}

#[test]
fn equal_ranks_communicate_through_the_leaf_of_their_rail() {
    let fabric = load_cluster("hgx-h200", 3, "rail");
    let path = find_path(&fabric, RouteOptions::default(), "n0/gpu5", "n2/gpu5");
    let expected = ["n0/gpu5", "n0/pcie_switch5", "n0/nic5", "leaf5", "n2/nic5", "n2/pcie_switch5", "n2/gpu5"];
    assert_eq!(stations(&fabric, &path), expected);
    assert_eq!((path.class, path.bandwidth), (PathClass::Net, Some(Bandwidth(50_000_000_000))));
    // Four PCIe links of 150 ns, 1.3 us for the NICs, one switch of 300 ns.
    assert_eq!(path.latency, Picos(4 * 150_000 + 1_300_000 + 300_000));
}

#[test]
fn traffic_across_rails_uses_pxn_or_the_spine() {
    let fabric = load_cluster("hgx-h200", 2, "rail");
    let path = find_path(&fabric, RouteOptions::default(), "n0/gpu0", "n1/gpu6");
    let expected = [
        "n0/gpu0",
        "n0/nvswitch0",
        "n0/gpu6",
        "n0/pcie_switch6",
        "n0/nic6",
        "leaf6",
        "n1/nic6",
        "n1/pcie_switch6",
        "n1/gpu6",
    ];
    assert_eq!(stations(&fabric, &path), expected);
    let path = find_path(&fabric, NO_PXN, "n0/gpu0", "n1/gpu6");
    let expected =
        ["n0/gpu0", "n0/pcie_switch0", "n0/nic0", "leaf0", "spine0", "leaf6", "n1/nic6", "n1/pcie_switch6", "n1/gpu6"];
    assert_eq!(stations(&fabric, &path), expected);
    assert_eq!(path.latency, Picos(4 * 150_000 + 1_300_000 + 3 * 300_000));
    // Without NVLink, no neighbour can relay.
    let fabric = load_cluster("l40s-pcie", 2, "rail");
    let path = find_path(&fabric, RouteOptions::default(), "n0/gpu0", "n1/gpu6");
    assert!(stations(&fabric, &path).contains(&"spine0".to_owned()));
}

#[test]
fn gpus_under_one_pcie_switch_divide_its_nics() {
    let fabric = load_cluster("dgx-a100", 2, "rail");
    for gpu in 0..8 {
        let path = find_path(&fabric, RouteOptions::default(), &format!("n0/gpu{gpu}"), &format!("n1/gpu{gpu}"));
        assert!(stations(&fabric, &path).contains(&format!("leaf{gpu}")), "{gpu}");
        assert_eq!(path.bandwidth, Some(Bandwidth(25_000_000_000)));
    }
    // The neighbour's NIC is reachable by PCIe, so the other rail of the pair needs no NVLink.
    let path = find_path(&fabric, RouteOptions::default(), "n0/gpu0", "n1/gpu1");
    assert_eq!(stations(&fabric, &path)[..4], ["n0/gpu0", "n0/pcie_switch0", "n0/nic1", "leaf1"]);
}

#[test]
fn numbers_of_nics_and_gpus_may_differ() {
    // Two NICs per GPU: a flow between equal ranks is spread over both rails.
    let fabric = load_cluster("hgx-h200", 2, "rail,nics_per_node=16,nic=400Gb/s");
    let path = find_path(&fabric, RouteOptions::default(), "n0/gpu3", "n1/gpu3");
    assert_eq!(path.bandwidth, Some(Bandwidth(63_000_000_000)), "PCIe is the narrowest");
    let halves = path.hops.iter().filter(|hop| hop.share == Share { numerator: 1, denominator: 2 });
    assert_eq!(halves.count(), 2 * 4);
    // Two GPUs share one NIC.
    let fabric = load_cluster("hgx-h200", 2, "rail,nics_per_node=4,nic=400Gb/s");
    assert_eq!(fabric.find("n0/nic4"), None);
    let path = find_path(&fabric, RouteOptions::default(), "n0/gpu1", "n1/gpu0");
    assert!(stations(&fabric, &path).contains(&"n0/nic0".to_owned()));
    assert!(
        Router::new(&fabric, RouteOptions::default()).paths_from(find_device(&fabric, "n0/gpu1")).get(15).is_some()
    );
}

#[test]
fn spread_over_spines_is_even_and_exact() {
    let fabric = load_cluster("hgx-h200", 2, "rail,ecmp=3");
    let path = find_path(&fabric, NO_PXN, "n0/gpu0", "n1/gpu1");
    let thirds = path.hops.iter().filter(|hop| hop.share == Share { numerator: 1, denominator: 3 }).count();
    assert_eq!((thirds, path.hops.len()), (6, 6 + 6));
    // The spines share a leaf's 2 x 50 GB/s in thirds, so the NIC is the bottleneck.
    assert_eq!(path.bandwidth, Some(Bandwidth(50_000_000_000)));
}

#[test]
fn failures_are_routed_around_or_reported() {
    let fabric = load_cluster("hgx-h200", 2, "rail");
    let healthy = find_path(&fabric, RouteOptions::default(), "n0/gpu0", "n1/gpu0");
    // The leaf of rail 0 has failed: the receiver's own NIC is unreachable and a neighbour's replaces it.
    let broken = fabric.with_failed("leaf0").unwrap();
    let path = find_path(&broken, RouteOptions::default(), "n0/gpu0", "n1/gpu0");
    assert_eq!(path.class, PathClass::Net);
    assert!(!stations(&broken, &path).contains(&"leaf0".to_owned()));
    assert_eq!(broken.node_count(), fabric.node_count());
    assert_eq!(find_path(&fabric, RouteOptions::default(), "n0/gpu0", "n1/gpu0"), healthy);
    // The NVLink of one GPU has failed: traffic uses the host's PCIe.
    let broken = fabric.with_failed("n0/gpu0-n0/nvswitch0").unwrap();
    assert_eq!(class(&broken, "n0/gpu0", "n0/gpu1"), PathClass::Phb);
    assert_eq!(class(&broken, "n0/gpu1", "n0/gpu2"), PathClass::Nvl);
    // The link has failed in one direction only.
    let broken = fabric.with_failed("n0/gpu0->n0/nvswitch0").unwrap();
    assert_eq!(class(&broken, "n0/gpu0", "n0/gpu1"), PathClass::Phb);
    assert_eq!(class(&broken, "n0/gpu1", "n0/gpu0"), PathClass::Nvl);
    // A host has failed.
    let broken = fabric.with_failed("n1").unwrap();
    let router = Router::new(&broken, RouteOptions::default());
    let error = router.path(find_device(&broken, "n0/gpu3"), find_device(&broken, "n1/gpu3")).unwrap_err();
    let Error::Unreachable { to, reason, .. } = &error else { panic!("{error}") };
    assert!(to == "n1/gpu3" && reason.contains("out of service"), "{error}");
    assert!(router.paths_from(find_device(&broken, "n0/gpu0")).get(8).is_none());
    // Failed devices are no longer ranks; the others keep their order.
    assert_eq!(broken.gpus(), &fabric.gpus()[..8]);
    assert_eq!(fabric.with_failed("n0/gpu3").unwrap().gpus().len(), 15);
    assert_eq!(fabric.with_failed("n0/nic3").unwrap().gpus(), fabric.gpus());
}

/// An error names the failed links on short paths between the two devices, with their direction, and no other failed
/// links.
#[test]
fn missing_routes_name_the_failed_links_between_the_devices() {
    let host = preset::load("hgx-h200").unwrap();
    let cases: [(&[&str], &str); 3] = [
        (&["gpu3-nvswitch0", "gpu3-pcie_switch3"], "gpu3-nvswitch0, gpu3-pcie_switch3"),
        (&["nvswitch0->gpu3", "pcie_switch3->gpu3"], "nvswitch0->gpu3, pcie_switch3->gpu3"),
        (&["gpu0-nvswitch0", "gpu7", "gpu3-nvswitch0", "pcie_switch3->gpu3"], "gpu3-nvswitch0, pcie_switch3->gpu3"),
    ];
    for (failed, expected) in cases {
        let broken = failed.iter().fold(host.clone(), |fabric, name| fabric.with_failed(name).unwrap());
        let router = Router::new(&broken, RouteOptions::default());
        let error = router.path(find_device(&broken, "gpu2"), find_device(&broken, "gpu3")).unwrap_err();
        let Error::Unreachable { reason, .. } = &error else { panic!("{error}") };
        assert_eq!(*reason, format!("all paths are out of service ({expected} failed)"));
    }
}

#[test]
fn slowed_links_keep_their_ids_and_lower_the_bandwidth() {
    let fabric = load_cluster("hgx-h200", 2, "rail");
    let slow = fabric.with_slowed("n0/nic2-leaf2", 0.5).unwrap();
    let path = find_path(&slow, RouteOptions::default(), "n0/gpu2", "n1/gpu2");
    assert_eq!(path.bandwidth, Some(Bandwidth(25_000_000_000)));
    let slow = fabric.with_slowed("n1/gpu2->n1/nvswitch0", 0.25).unwrap();
    let path = find_path(&slow, RouteOptions::default(), "n1/gpu2", "n1/gpu3");
    assert_eq!(path.bandwidth, Some(Bandwidth(112_500_000_000)));
    assert_eq!(
        find_path(&slow, RouteOptions::default(), "n1/gpu3", "n1/gpu2").bandwidth,
        Some(Bandwidth(450_000_000_000))
    );
    for part in [0.0, -1.0, 1.5, f64::NAN] {
        assert!(fabric.with_slowed("leaf2", part).is_err(), "{part}");
    }
    for name in ["leaf99", "n0/gpu0-leaf0", "n9", ""] {
        assert!(matches!(fabric.with_failed(name), Err(Error::Unknown { .. })), "{name}");
    }
}

#[test]
fn equal_hosts_share_their_searches() {
    let fabric = load_cluster("hgx-h200", 64, "rail");
    let shapes = |fabric: &Fabric| crate::route::islands::Islands::new(fabric).shapes.len();
    // The fabric has three shapes: host, leaf and spine.
    assert_eq!(shapes(&fabric), 3);
    assert_eq!(shapes(&fabric.with_failed("n5/gpu3").unwrap()), 4);
}

#[test]
fn failed_parallel_cables_carry_no_traffic() {
    let fabric = spec(
        r#"
        [[node]]
        id = "gpu[0-1]"
        kind = "gpu"
        [[node]]
        id = "sw[0-1]"
        kind = "switch"
        [[link]]
        a = "gpu[0-1]"
        b = "sw[0-1]"
        kind = "infiniband"
        bandwidth = "50 GB/s"
        [[link]]
        a = "sw0"
        b = "sw1"
        kind = "infiniband"
        bandwidth = "20 GB/s"
        [[link]]
        a = "sw0"
        b = "sw1"
        kind = "infiniband"
        bandwidth = "20 GB/s"
        "#,
    );
    let bandwidth = |fabric: &Fabric, a: &str, b: &str| {
        find_path(fabric, RouteOptions::default(), a, b).bandwidth.unwrap().gb_per_s()
    };
    assert_eq!(bandwidth(&fabric, "gpu0", "gpu1"), 40.0);
    // One direction of one cable has failed.
    let broken = fabric.with_failed("sw0->sw1#1").unwrap();
    assert_eq!((bandwidth(&broken, "gpu0", "gpu1"), bandwidth(&broken, "gpu1", "gpu0")), (20.0, 40.0));
}

#[test]
fn neighbours_of_other_hosts_do_not_relay() {
    let fabric = preset::load("gb200-nvl72").unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    assert!(router.path(find_device(&fabric, "n0/gpu0"), find_device(&fabric, "n1/nic0")).is_err());
}

/// NIC at which each route from a GPU of another host enters the receiver's host.
fn entry_nics(fabric: &Fabric, to: &str) -> Vec<(String, String)> {
    let router = Router::new(fabric, RouteOptions::default());
    let receiver = find_device(fabric, to);
    let host = |node: NodeId| fabric.node(node).host;
    let senders = fabric.gpus().iter().filter(|&&from| host(from) != host(receiver));
    let entry = |&from: &NodeId| {
        let path = router.path(from, receiver).unwrap();
        let into = path.links().map(|link| fabric.ends(link).1).find(|&at| host(at) == host(receiver)).unwrap();
        (fabric.node(from).id.to_string(), fabric.node(into).id.to_string())
    };
    senders.map(entry).collect()
}

/// On separate rails, ranks that have lost a rail enter other hosts by another NIC, and their data is charged to the
/// NIC that it would have used as well. All other traffic keeps its route.
#[test]
fn ranks_that_lost_a_rail_enter_by_another_nic() {
    let fabric = load_cluster("hgx-h200", 3, "rail,tiers=1");
    let broken = fabric.with_failed("n1/nic0").unwrap();
    for (from, nic) in entry_nics(&broken, "n0/gpu0") {
        assert_eq!(nic, if from.starts_with("n1/") { "n0/nic1" } else { "n0/nic0" }, "{from}");
    }
    let (from, to) = (find_device(&broken, "n1/gpu0"), find_device(&broken, "n0/gpu0"));
    let (mut hops, mut replaced) = (Vec::new(), Vec::new());
    let router = Router::new(&broken, RouteOptions::default());
    let route = router.route_and_replaced(None, from, to, 0, &mut hops, &mut replaced).unwrap();
    assert!(route.replaced.is_some());
    let enters = |hop: &crate::route::Hop| &*broken.node(broken.ends(hop.link).1).id == "n0/nic0";
    assert!(replaced.iter().any(enters) && !hops.iter().any(enters));
    // With a spine, every sender still reaches every NIC.
    let spine = load_cluster("hgx-h200", 3, "rail").with_failed("n1/nic0").unwrap();
    assert!(entry_nics(&spine, "n0/gpu0").iter().all(|(_, nic)| nic == "n0/nic0"));
}

/// If every rail is lost by some rank, each sender uses the rails that it still reaches.
#[test]
fn ranks_without_a_common_rail_stay_connected() {
    let mut fabric = load_cluster("l40s-pcie", 3, "rail,tiers=1,nics_per_node=2");
    for part in ["n1/nic0", "n2/nic1"] {
        fabric = fabric.with_failed(part).unwrap();
    }
    let router = Router::new(&fabric, RouteOptions::default());
    let [a, b, c] = ["n0/gpu0", "n1/gpu0", "n2/gpu0"].map(|id| find_device(&fabric, id));
    assert!([(a, b), (b, a), (a, c), (c, a)].iter().all(|&(from, to)| router.path(from, to).is_ok()));
    assert!(router.path(b, c).is_err());
}
