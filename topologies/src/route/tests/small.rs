//! Routing rules on small fabrics.

use super::*;
use crate::route::{BufferLocation, Ecmp, GpuDirect, PeerAccess, Pxn, Share};
use crate::{Bandwidth, Error, Picos, preset};

const NO_P2P: RouteOptions = RouteOptions {
    p2p: PeerAccess::Off,
    gdr: GpuDirect::Allowed,
    pxn: Pxn::Allowed,
    ecmp: Ecmp::Averaged,
    buffers: BufferLocation::Device,
};
const NO_GDR: RouteOptions = RouteOptions {
    p2p: PeerAccess::Allowed,
    gdr: GpuDirect::Off,
    pxn: Pxn::Allowed,
    ecmp: Ecmp::Averaged,
    buffers: BufferLocation::Device,
};

#[test]
fn a_device_is_local_to_itself() {
    let fabric = preset::load("hgx-h200").unwrap();
    let path = find_path(&fabric, RouteOptions::default(), "gpu3", "gpu3");
    assert_eq!((path.class, path.hops.len(), path.bandwidth), (PathClass::Loc, 0, None));
}

#[test]
fn without_peer_access_gpus_communicate_through_host_memory() {
    let h200 = preset::load("hgx-h200").unwrap();
    let path = find_path(&h200, NO_P2P, "gpu0", "gpu1");
    assert_eq!(path.class, PathClass::Phb);
    assert_eq!(stations(&h200, &path), ["gpu0", "pcie_switch0", "cpu0", "pcie_switch1", "gpu1"]);
    assert_eq!(find_path(&h200, NO_P2P, "gpu0", "gpu4").class, PathClass::Sys);
    // Although a switch joins the two GPUs, the path goes up to the CPU and down the same link.
    let l40s = preset::load("l40s-pcie").unwrap();
    let path = find_path(&l40s, NO_P2P, "gpu0", "gpu1");
    assert_eq!(stations(&l40s, &path), ["gpu0", "pcie_switch0", "cpu0", "pcie_switch0", "gpu1"]);
    let gh200 = preset::load("gh200").unwrap();
    let path = find_path(&gh200, NO_P2P, "gpu0", "gpu1");
    assert_eq!(stations(&gh200, &path), ["gpu0", "cpu0", "cpu1", "gpu1"]);
}

/// `NCCL_P2P_LEVEL=PXB`: peer access ends at the CPU, and does not depend on the number of switches on the way.
#[test]
fn peer_access_of_switches_ends_at_the_cpu() {
    let options = RouteOptions { p2p: PeerAccess::Switches, ..RouteOptions::default() };
    let l40s = preset::load("l40s-pcie").unwrap();
    let near = find_path(&l40s, options, "gpu0", "gpu1");
    assert_eq!(stations(&l40s, &near), ["gpu0", "pcie_switch0", "gpu1"]);
    let far = find_path(&l40s, options, "gpu0", "gpu2");
    assert_eq!(far.staging, find_path(&l40s, NO_P2P, "gpu0", "gpu2").staging);
    assert_ne!(far.staging, find_path(&l40s, RouteOptions::default(), "gpu0", "gpu2").staging);
    let h200 = preset::load("hgx-h200").unwrap();
    assert_eq!(find_path(&h200, options, "gpu0", "gpu7").class, PathClass::Nvl);
}

#[test]
fn without_gpudirect_nics_are_reached_through_the_cpu() {
    let h200 = preset::load("hgx-h200").unwrap();
    let path = find_path(&h200, NO_GDR, "gpu0", "nic0");
    assert_eq!(path.class, PathClass::Phb);
    assert_eq!(stations(&h200, &path), ["gpu0", "pcie_switch0", "cpu0", "pcie_switch0", "nic0"]);
    assert_eq!(find_path(&h200, NO_GDR, "gpu0", "nic1").class, PathClass::Phb);
    // The NICs of the RTX 4090 preset lack GPUDirect RDMA.
    let rtx = preset::load("rtx4090-pcie").unwrap();
    let path = find_path(&rtx, RouteOptions::default(), "gpu5", "nic1");
    assert_eq!(stations(&rtx, &path), ["gpu5", "cpu1", "nic1"]);
}

#[test]
fn mig_instances_have_no_peer_access() {
    let fabric = spec(
        r#"
        [[node]]
        id = "mig[0-1]"
        kind = "mig"
        [[node]]
        id = "sw"
        kind = "pcie_switch"
        [[node]]
        id = "cpu"
        kind = "cpu"
        [[link]]
        a = "mig[0-1]"
        b = "sw"
        kind = "pcie"
        [[link]]
        a = "sw"
        b = "cpu"
        kind = "pcie"
        "#,
    );
    let path = find_path(&fabric, RouteOptions::default(), "mig0", "mig1");
    assert_eq!(stations(&fabric, &path), ["mig0", "sw", "cpu", "sw", "mig1"]);
}

/// A chain of GPUs or accelerators.
fn chain(gpus: u32, kind: &str) -> Fabric {
    let last = gpus - 1;
    let mut text = format!("[[node]]\nid = \"gpu[0-{last}]\"\nkind = \"{kind}\"\n");
    for i in 0..last {
        text += &format!(
            "[[link]]\na = \"gpu{i}\"\nb = \"gpu{}\"\nkind = \"nvlink\"\nbandwidth = \"{} GB/s\"\nlatency = \"100 ns\"\n",
            i + 1,
            50 - i
        );
    }
    spec(&text)
}

#[test]
fn a_gpu_forwards_nvlink_once() {
    let gpus = chain(4, "gpu");
    assert_eq!(class(&gpus, "gpu0", "gpu1"), PathClass::Nvl);
    let path = find_path(&gpus, RouteOptions::default(), "gpu0", "gpu2");
    assert_eq!((path.class, path.bandwidth), (PathClass::Nvb, Some(Bandwidth(49_000_000_000))));
    let router = Router::new(&gpus, RouteOptions::default());
    let Err(Error::Unreachable { from, to, reason }) =
        router.path(find_device(&gpus, "gpu0"), find_device(&gpus, "gpu3"))
    else {
        panic!("reached")
    };
    assert_eq!((from.as_str(), to.as_str()), ("gpu0", "gpu3"));
    assert!(reason.contains("do not forward"), "{reason}");
    // Accelerators of a slice forward any number of times.
    let path = find_path(&chain(4, "accelerator"), RouteOptions::default(), "gpu0", "gpu3");
    assert_eq!((path.class, path.latency), (PathClass::Nvb, Picos(300_000)));
}

/// Joins `left` and `right` through several GPUs, each by links with the given bandwidth (GB/s) and latency (ns).
fn fork(middle: &[(u32, u32)]) -> Fabric {
    let mut text = "[[node]]\nid = \"left\"\nkind = \"gpu\"\n[[node]]\nid = \"right\"\nkind = \"gpu\"\n".to_owned();
    for (i, (bandwidth, latency)) in middle.iter().enumerate() {
        text += &format!("[[node]]\nid = \"m{i}\"\nkind = \"nvswitch\"\n");
        for end in ["left", "right"] {
            text += &format!(
                "[[link]]\na = \"{end}\"\nb = \"m{i}\"\nkind = \"nvlink\"\nbandwidth = \"{bandwidth} GB/s\"\nlatency = \"{latency} ns\"\n"
            );
        }
    }
    spec(&text)
}

#[test]
fn bandwidth_precedes_latency_and_equal_paths_share_the_flow() {
    let find_flow = |middle: &[(u32, u32)]| {
        let fabric = fork(middle);
        let path = find_path(&fabric, RouteOptions::default(), "left", "right");
        let shares: Vec<(String, Share)> = path
            .hops
            .iter()
            .filter(|hop| fabric.ends(hop.link).0 == find_device(&fabric, "left"))
            .map(|hop| (fabric.node(fabric.ends(hop.link).1).id.to_string(), hop.share))
            .collect();
        (shares, path.bandwidth.unwrap().gb_per_s(), path.latency.ns())
    };
    let third = Share { numerator: 1, denominator: 3 };
    let half = Share { numerator: 1, denominator: 2 };
    assert_eq!(find_flow(&[(10, 5), (20, 50), (10, 1)]), (vec![("m1".to_owned(), Share::WHOLE)], 20.0, 100.0));
    assert_eq!(find_flow(&[(10, 5), (10, 3)]), (vec![("m1".to_owned(), Share::WHOLE)], 10.0, 6.0));
    let named = |names: &[&str], share| names.iter().map(|&name| (name.to_owned(), share)).collect::<Vec<_>>();
    assert_eq!(find_flow(&[(10, 5), (10, 5)]), (named(&["m0", "m1"], half), 20.0, 10.0));
    // Four paths that share a bottleneck may carry more than three that do not, or less if one of the four is too slow.
    let fourth = Share { numerator: 1, denominator: 4 };
    assert_eq!(find_flow(&[(10, 5), (9, 5), (10, 5), (10, 5)]), (named(&["m0", "m1", "m2", "m3"], fourth), 36.0, 10.0));
    assert_eq!(find_flow(&[(10, 5), (7, 5), (10, 5), (10, 5)]), (named(&["m0", "m2", "m3"], third), 30.0, 10.0));
}

#[test]
fn hashed_flows_use_one_path_each_and_spread_evenly() {
    let fabric = fork(&[(10, 5); 8]);
    let router = Router::new(&fabric, RouteOptions { ecmp: Ecmp::Hashed { seed: 1 }, ..RouteOptions::default() });
    let (left, right) = (find_device(&fabric, "left"), find_device(&fabric, "right"));
    let mut counts = std::collections::BTreeMap::new();
    for flow in 0..800 {
        let path = router.flow_path(left, right, flow).unwrap();
        assert_eq!((path.hops.len(), path.bandwidth), (2, Some(Bandwidth(10_000_000_000))));
        assert_eq!(path, router.flow_path(left, right, flow).unwrap());
        *counts.entry(path.hops[0].link).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 8);
    // 100 expected per path; five standard deviations of a uniform draw are 47.
    assert!(counts.values().all(|&count| (53..=147).contains(&count)), "{counts:?}");
}

#[test]
fn gpus_attached_to_a_network_switch_need_no_nic() {
    let fabric = spec(
        r#"
        [[node]]
        id = "gpu[0-3]"
        kind = "gpu"
        [[node]]
        id = "sw"
        kind = "switch"
        [[link]]
        a = "gpu[0-3]"
        b = "sw"
        kind = "infiniband"
        bandwidth = "50 GB/s"
        latency = "1 us"
        "#,
    );
    let path = find_path(&fabric, RouteOptions::default(), "gpu0", "gpu3");
    assert_eq!((path.class, path.hops.len(), path.latency), (PathClass::Net, 2, Picos(2_000_000)));
    // Options for hosts do not affect accelerators.
    assert_eq!(find_path(&fabric, NO_GDR, "gpu0", "gpu3"), path);
}

#[test]
fn back_to_back_nics_need_no_switch() {
    let fabric = spec(
        r#"
        [[node]]
        id = "gpu[0-1]"
        kind = "gpu"
        host = "h[0-1]"
        [[node]]
        id = "nic[0-1]"
        kind = "nic"
        host = "h[0-1]"
        [[link]]
        a = "gpu[0-1]"
        b = "nic[0-1]"
        kind = "pcie"
        bandwidth = "60 GB/s"
        latency = "100 ns"
        [[link]]
        a = "nic0"
        b = "nic1"
        kind = "ethernet"
        bandwidth = "25 GB/s"
        latency = "900 ns"
        "#,
    );
    let path = find_path(&fabric, RouteOptions::default(), "gpu0", "gpu1");
    assert_eq!(stations(&fabric, &path), ["gpu0", "nic0", "nic1", "gpu1"]);
    assert_eq!((path.latency, path.bandwidth), (Picos(1_100_000), Some(Bandwidth(25_000_000_000))));
}

#[test]
fn network_is_the_last_resort_within_a_host() {
    // The network between the two NICs is shorter and faster than the path over the sockets.
    let mut fabric = preset::load("l40s-pcie").unwrap();
    let text = "[[node]]\nid = \"sw\"\nkind = \"switch\"\n";
    let mut builder = crate::FabricBuilder::reopen(fabric);
    crate::read::spec::parse(text, "sw").unwrap().add_to(&mut builder).unwrap();
    let switch = builder.find("sw").unwrap();
    for nic in ["nic0", "nic3"] {
        let nic = builder.find(nic).unwrap();
        let link = crate::LinkSpec::symmetric(crate::LinkKind::Infiniband, Bandwidth(1 << 40), Picos(1));
        builder.link(nic, switch, &link);
    }
    fabric = builder.finish();
    assert_eq!(class(&fabric, "gpu0", "gpu7"), PathClass::Sys);
    // The network joins the two if no other path is left.
    let broken = fabric.with_failed("cpu0-cpu1").unwrap();
    assert_eq!(class(&broken, "gpu0", "gpu7"), PathClass::Net);
}
