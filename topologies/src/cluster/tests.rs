//! Tests of clusters: hosts, racks, NICs, switches and bandwidths.

use super::*;
use crate::fabric::{Figures, LinkKind, NodeKind};
use crate::route::{PathClass, RouteOptions, Router};
use crate::{Bandwidth, Picos, preset};

fn cluster(name: &str, nodes: u32, network: &str) -> Fabric {
    try_cluster(name, nodes, network).unwrap_or_else(|error| panic!("{name} x{nodes} {network}: {error}"))
}

fn try_cluster(name: &str, nodes: u32, network: &str) -> Result<Fabric> {
    let network = (!network.is_empty()).then(|| network.parse().unwrap());
    build(&preset::load(name).unwrap(), nodes, network.as_ref())
}

fn ids(fabric: &Fabric, kind: NodeKind) -> Vec<String> {
    fabric.nodes().filter(|(_, node)| node.kind == kind).map(|(_, node)| node.id.to_string()).collect()
}

/// Bandwidth of the link between two devices, in GB/s.
fn link_gb_per_s(fabric: &Fabric, a: &str, b: &str) -> f64 {
    let links = fabric.find_link(&format!("{a}->{b}")).unwrap_or_else(|error| panic!("{error}"));
    links.iter().map(|&link| fabric.link(link).bandwidth.unwrap().gb_per_s()).sum()
}

fn class(fabric: &Fabric, a: &str, b: &str) -> PathClass {
    let router = Router::new(fabric, RouteOptions::default());
    router.path(fabric.find(a).unwrap(), fabric.find(b).unwrap()).unwrap().class
}

#[test]
fn one_host_is_the_preset_itself() {
    let fabric = cluster("hgx-h200", 1, "rail");
    assert_eq!((fabric.name(), fabric.gpus().len(), fabric.hosts().len()), ("hgx-h200", 8, 1));
    assert!(fabric.find("gpu0").is_some());
}

#[test]
fn copies_of_a_slowed_host_keep_both_rates() {
    let host = preset::load("hgx-h200").unwrap().with_slowed("gpu0->nvswitch0", 0.5).unwrap();
    let built = build(&host, 2, None).unwrap();
    for id in ["n0/gpu0->n0/nvswitch0", "n1/gpu0->n1/nvswitch0"] {
        let link = built.link(built.find_link(id).unwrap()[0]);
        assert_eq!(link.bandwidth.unwrap().0 * 2, link.nominal_bandwidth.unwrap().0, "{id}");
    }
}

#[test]
fn copies_are_prefixed_and_in_rank_order() {
    let fabric = cluster("dgx-a100", 3, "");
    assert_eq!(fabric.gpus().len(), 24);
    for (rank, &gpu) in fabric.gpus().iter().enumerate() {
        let node = fabric.node(gpu);
        assert_eq!(*node.id, *format!("n{}/gpu{}", rank / 8, rank % 8));
        assert_eq!(*fabric.hosts()[node.host.0 as usize], *format!("n{}", rank / 8));
        assert!(matches!(&node.figures, Figures::Gpu(figures) if figures.sm_count == Some(108)));
    }
    let host = preset::load("dgx-a100").unwrap();
    assert_eq!(fabric.node_count(), 3 * host.node_count() + 8 + 1);
    assert_eq!(fabric.link_count(), 3 * host.link_count() + 2 * (3 * 8 + 8));
    assert_eq!(fabric.find("n2/nvswitch0").map(|id| fabric.outgoing_links(id).len()), Some(8));
}

#[test]
fn racks_fill_in_order() {
    for (nodes, racks) in [(1, 1), (9, 1), (18, 1), (19, 2), (36, 2), (40, 3)] {
        let fabric = cluster("gb200-nvl72", nodes, "");
        assert_eq!(fabric.gpus().len(), 4 * nodes as usize, "{nodes}");
        let switches = ids(&fabric, NodeKind::Nvswitch);
        assert_eq!(switches.len(), racks, "{nodes}");
        let on_last = fabric.outgoing_links(fabric.find(switches.last().unwrap()).unwrap()).len();
        let in_last = nodes - 18 * (racks as u32 - 1);
        assert_eq!(on_last, 4 * in_last as usize, "{nodes}");
        assert_eq!(ids(&fabric, NodeKind::Switch).is_empty(), racks == 1, "{nodes}");
    }
    let two = cluster("gb200-nvl72", 36, "");
    assert_eq!(class(&two, "n0/gpu0", "n17/gpu3"), PathClass::Nvl);
    assert_eq!(class(&two, "n17/gpu3", "n18/gpu0"), PathClass::Net);
    assert_eq!(class(&two, "n18/gpu0", "n35/gpu0"), PathClass::Nvl);
    // A single host has the NVSwitch of its rack.
    let one = cluster("gb200-nvl72", 1, "");
    assert_eq!(class(&one, "gpu0", "gpu3"), PathClass::Nvl);
}

#[test]
fn nodes_per_domain_leaves_hosts_of_racks_out() {
    let fabric = cluster("gb300-nvl72", 32, "rail,nodes_per_domain=16");
    assert_eq!((fabric.gpus().len(), ids(&fabric, NodeKind::Nvswitch).len()), (128, 2));
    assert_eq!(class(&fabric, "n0/gpu0", "n15/gpu3"), PathClass::Nvl);
    assert_eq!(class(&fabric, "n15/gpu3", "n16/gpu0"), PathClass::Net);
    assert_eq!(class(&fabric, "n16/gpu0", "n31/gpu0"), PathClass::Nvl);
    for switch in ids(&fabric, NodeKind::Nvswitch) {
        assert_eq!(fabric.outgoing_links(fabric.find(&switch).unwrap()).len(), 64);
    }
    // The number of hosts of one rack, spread over two racks.
    assert_eq!(ids(&cluster("gb300-nvl72", 18, "rail,nodes_per_domain=9"), NodeKind::Nvswitch).len(), 2);
    let error = try_cluster("gb300-nvl72", 40, "rail,nodes_per_domain=19").unwrap_err().to_string();
    assert!(error.contains("an NVLink domain of gb300-nvl72 has 18 hosts, not 19"), "{error}");
    let error = try_cluster("hgx-h200", 4, "rail,nodes_per_domain=2").unwrap_err().to_string();
    assert!(error.contains("has 1 host, not 2"), "{error}");
}

#[test]
fn mnnvl_joins_hosts_in_one_nvlink_domain() {
    let fabric = cluster("hgx-h200", 4, "mnnvl");
    assert_eq!(ids(&fabric, NodeKind::Nvswitch), ["nvswitch0"]);
    assert!(ids(&fabric, NodeKind::Switch).is_empty());
    assert_eq!(class(&fabric, "n0/gpu0", "n3/gpu7"), PathClass::Nvl);
    assert_eq!(ids(&cluster("gb200-nvl72", 36, "mnnvl"), NodeKind::Nvswitch).len(), 1);
    for name in ["l40s-pcie", "dgx-v100"] {
        assert!(try_cluster(name, 2, "mnnvl").unwrap_err().to_string().contains("NVSwitch"), "{name}");
    }
}

#[test]
fn rail_networks_honour_oversubscription_and_radix() {
    let fabric = cluster("hgx-h200", 16, "rail,oversubscription=2");
    assert_eq!(ids(&fabric, NodeKind::Switch).len(), 9);
    assert_eq!(link_gb_per_s(&fabric, "n3/nic5", "leaf5"), 50.0);
    // Sixteen hosts are below the leaf; the uplinks have half of their bandwidth.
    assert_eq!(link_gb_per_s(&fabric, "leaf5", "spine0"), 400.0);
    // A leaf with 64 ports serves a group of 32 hosts and has uplinks to 32 spines.
    let fabric = cluster("hgx-h200", 40, "rail,radix=64");
    assert_eq!(ids(&fabric, NodeKind::Switch).len(), 2 * 8 + 32);
    assert_eq!(link_gb_per_s(&fabric, "n39/nic0", "g1/leaf0"), 50.0);
    assert_eq!(link_gb_per_s(&fabric, "g0/leaf0", "spine31"), 50.0);
    let fabric = cluster("hgx-h200", 4, "rail,tiers=1");
    assert_eq!(ids(&fabric, NodeKind::Switch).len(), 8);
    assert!(try_cluster("hgx-h200", 40, "rail,tiers=1,radix=64").is_err());
}

#[test]
fn fat_trees_connect_all_nics_of_a_host_to_one_leaf() {
    // 32 of 64 ports face hosts: four hosts of eight NICs each.
    let fabric = cluster("hgx-h200", 16, "fat_tree");
    assert_eq!(ids(&fabric, NodeKind::Switch), ["leaf0", "leaf1", "leaf2", "leaf3", "spine0"]);
    for nic in 0..8 {
        assert_eq!(link_gb_per_s(&fabric, &format!("n7/nic{nic}"), "leaf1"), 50.0);
    }
    assert_eq!(link_gb_per_s(&fabric, "leaf3", "spine0"), 32.0 * 50.0);
    let fabric = cluster("hgx-h200", 12, "fat_tree,oversubscription=3");
    assert_eq!(ids(&fabric, NodeKind::Switch), ["leaf0", "leaf1", "spine0"]);
    assert_eq!(link_gb_per_s(&fabric, "leaf0", "spine0"), 48.0 * 50.0 / 3.0);
    // With three tiers a pod has half the radix in leaves, and spines have as much bandwidth to the cores as to the
    // leaves.
    let fabric = cluster("hgx-h200", 16, "fat_tree,radix=4,nics_per_node=1,tiers=3");
    assert_eq!(ids(&fabric, NodeKind::Switch).iter().filter(|id| id.starts_with("leaf")).count(), 8);
    assert_eq!(ids(&fabric, NodeKind::Switch).iter().filter(|id| id.starts_with("pod")).count(), 8);
    let up = |id: &str| {
        let links = fabric.outgoing_links(fabric.find(id).unwrap());
        let to_core = links.iter().filter(|&&link| fabric.node(fabric.ends(link).1).id.contains("core"));
        to_core.map(|&link| fabric.link(link).bandwidth.unwrap().gb_per_s()).sum::<f64>()
    };
    assert_eq!(up("pod0/spine0") + up("pod0/spine1"), 4.0 * 50.0);
    let error = try_cluster("hgx-h200", 300, "fat_tree,tiers=2").unwrap_err().to_string();
    assert!(error.contains("supports 256 hosts, not 300"), "{error}");
}

#[test]
fn dragonflies_join_every_pair_of_groups() {
    let fabric = cluster("hgx-h200", 12, "dragonfly,groups=4");
    assert_eq!(ids(&fabric, NodeKind::Switch).len(), 12);
    for (a, b) in [("n0", "n1"), ("n0", "n11"), ("n4", "n8")] {
        assert_eq!(class(&fabric, &format!("{a}/gpu0"), &format!("{b}/gpu0")), PathClass::Net);
    }
    let group = |id: &str| id.split('/').next().unwrap().to_owned();
    let mut global = std::collections::BTreeMap::new();
    for router in ids(&fabric, NodeKind::Switch) {
        let links = fabric.outgoing_links(fabric.find(&router).unwrap());
        let leaves_group = |&&link: &&crate::LinkId| group(&fabric.node(fabric.ends(link).1).id) != group(&router);
        // A router has eight NICs, two neighbours in its group, and one of the three cables of its group.
        let cables =
            links.iter().filter(leaves_group).filter(|&&link| fabric.link(link).bandwidth.unwrap().gb_per_s() > 50.0);
        assert_eq!((links.len(), cables.count()), (8 + 2 + 1, 1), "{router}");
    }
    for (_, link) in fabric.links() {
        let (a, b) = (&fabric.node(link.from).id, &fabric.node(link.to).id);
        if a.contains("router") && b.contains("router") && group(a) < group(b) {
            *global.entry((group(a), group(b))).or_insert(0.0) += link.bandwidth.unwrap().gb_per_s();
        }
    }
    // A group of three hosts injects 1,200 GB/s and sends a third of it to each other group.
    assert_eq!(global.len(), 6);
    assert!(global.values().all(|&gb_per_s| gb_per_s == 400.0), "{global:?}");
}

#[test]
fn tori_wrap_around() {
    let fabric = cluster("hgx-h200", 12, "torus,dimensions=4x3");
    // Four cables per host share 400 GB/s of NICs.
    assert_eq!(link_gb_per_s(&fabric, "router0", "router1"), 100.0);
    assert_eq!(link_gb_per_s(&fabric, "router0", "router3"), 100.0);
    assert_eq!(link_gb_per_s(&fabric, "router0", "router8"), 100.0);
    let two = cluster("hgx-h200", 2, "torus,dimensions=2");
    assert_eq!(link_gb_per_s(&two, "router0", "router1"), 400.0);
    assert_eq!(ids(&cluster("hgx-h200", 8, "torus"), NodeKind::Switch).len(), 8);
    assert!(try_cluster("hgx-h200", 8, "torus,dimensions=3x3").unwrap_err().to_string().contains("3 x 3"));
}

#[test]
fn network_keys_replace_the_nics_of_the_preset() {
    let preset = cluster("dgx-a100", 2, "rail");
    assert_eq!(link_gb_per_s(&preset, "n0/nic0", "leaf0"), 25.0);
    let faster = cluster("dgx-a100", 2, "rail,nic=400Gb/s");
    assert_eq!(link_gb_per_s(&faster, "n0/nic0", "leaf0"), 50.0);
    assert_eq!(ids(&faster, NodeKind::Nic).len(), 16);
    assert_eq!(class(&faster, "n0/gpu0", "n0/nic0"), PathClass::Pix);
    let two_nics = cluster("dgx-a100", 2, "rail,nics_per_node=2");
    assert_eq!(ids(&two_nics, NodeKind::Nic), ["n0/nic0", "n0/nic1", "n1/nic0", "n1/nic1"]);
    assert_eq!(link_gb_per_s(&two_nics, "n0/nic1", "leaf1"), 25.0);
    assert_eq!(class(&two_nics, "n0/gpu4", "n0/nic1"), PathClass::Pix);
    let jumbo = cluster("dgx-a100", 2, "rail,link=ethernet,mtu=9000");
    assert_eq!((link_gb_per_s(&jumbo, "n0/nic0", "leaf0"), ids(&jumbo, NodeKind::Nic).len()), (25.0, 16));
    let cable = jumbo.find_link("n0/nic0->leaf0").unwrap()[0];
    assert_eq!(jumbo.link(cable).kind, LinkKind::Ethernet);
    let nics = jumbo.nodes().filter_map(|(_, node)| match &node.figures {
        Figures::Nic(nic) => Some((nic.mtu, nic.model.clone())),
        _ => None,
    });
    assert!(nics.into_iter().all(|(mtu, model)| mtu == Some(9000) && model.is_some()));
    for network in ["rail", "rail,nic=400Gb/s"] {
        let routed = cluster("dgx-a100", 2, &format!("{network},adaptive_routing=false,queue_pairs=4"));
        let mut nics = routed.nodes().filter_map(|(_, node)| match &node.figures {
            Figures::Nic(nic) => Some((nic.adaptive_routing, nic.queue_pairs)),
            _ => None,
        });
        assert!(nics.all(|settings| settings == (Some(false), Some(4))));
    }
    let slow = cluster("dgx-a100", 2, "rail,nic_latency=3us,switch_latency=1us");
    let path = Router::new(&slow, RouteOptions::default())
        .path(slow.find("n0/gpu0").unwrap(), slow.find("n1/gpu0").unwrap())
        .unwrap();
    assert_eq!(path.latency, Picos(4 * 150_000 + 3_000_000 + 1_000_000));
}

/// A key changes the links, or the NICs with a network link, for exactly those kinds of networks that its help names.
#[test]
fn keys_have_an_effect_for_the_kinds_in_their_help() {
    use crate::keys::Keys;
    use crate::network_spec::NetworkKind;

    let values = |key: &str| -> &[&str] {
        match key {
            "nics_per_node" => &["2"],
            "nic" => &["100Gb/s"],
            "nic_latency" | "switch_latency" => &["7us"],
            "oversubscription" => &["2"],
            "tiers" | "groups" => &["1"],
            "radix" => &["16"],
            "dimensions" => &["16"],
            "ecmp" => &["3"],
            "link" => &["ethernet", "infiniband"],
            "mtu" => &["9000"],
            "adaptive_routing" => &["true"],
            "queue_pairs" => &["4"],
            "nodes_per_domain" => &["2"],
            "sharp" => &["true"],
            other => panic!("no value of {other}"),
        }
    };
    for kind in NetworkKind::ALL {
        for key in NetworkSpec::KEYS {
            let preset = if key.name == "nodes_per_domain" { "gb200-nvl72" } else { "hgx-h200" };
            let nodes = if *kind == NetworkKind::TcpLoopback { 4 } else { 16 };
            // Sockets have a latency as a whole unless that of the NICs is given.
            let other = if key.name == "switch_latency" { ",nic_latency=1us" } else { "" };
            let network = |setting: &str| {
                let fabric = try_cluster(preset, nodes, &format!("{}{other}{setting}", kind.name())).ok()?;
                let end = |id: NodeId| &fabric.node(id).id;
                let describe = |link: &crate::Link| {
                    let crate::Link { kind, lanes, bandwidth, latency, .. } = link;
                    format!("{} {} {kind:?} {lanes} {bandwidth:?} {latency}", end(link.from), end(link.to))
                };
                let mut links: Vec<String> = fabric.links().map(|(_, link)| describe(link)).collect();
                links.sort_unstable();
                let is_cabled = |&(id, node): &(NodeId, &crate::Node)| {
                    let links = fabric.outgoing_links(id);
                    let is_cable = |link| matches!(fabric.link(link).kind, LinkKind::Infiniband | LinkKind::Ethernet);
                    node.kind == NodeKind::Nic && links.into_iter().any(is_cable)
                };
                let nics: Vec<Figures> =
                    fabric.nodes().filter(is_cabled).map(|(_, node)| node.figures.clone()).collect();
                let switches: Vec<Figures> = fabric
                    .nodes()
                    .filter(|(_, node)| node.kind == NodeKind::Switch)
                    .map(|(_, node)| node.figures.clone())
                    .collect();
                Some((links, nics, switches))
            };
            let default = network("");
            // Networks without InfiniBand switches refuse `sharp`.
            let changes = |value: &&str| match network(&format!(",{}={value}", key.name)) {
                None if key.name == "sharp" => false,
                changed => changed != default,
            };
            let has_effect = values(key.name).iter().any(changes);
            let is_named = NetworkSpec::kinds(key.name).contains(kind);
            assert_eq!(has_effect, is_named, "{} of {}", key.name, kind.name());
        }
    }
}

#[test]
fn only_infiniband_switches_reduce() {
    let multicast = |network: &str| -> Result<Vec<bool>, String> {
        let fabric = try_cluster("hgx-h200", 2, network).map_err(|error| error.to_string())?;
        let switches = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Switch);
        Ok(switches.map(|(_, node)| node.figures.supports_multicast()).collect())
    };
    assert_eq!(multicast("rail,sharp=true"), Ok(vec![true; 9]));
    for network in ["rail", "rail,sharp=false"] {
        assert_eq!(multicast(network), Ok(vec![false; 9]), "{network}");
    }
    for network in ["rail,link=ethernet,sharp=true", "mnnvl,sharp=true", "tcp-loopback,sharp=true"] {
        let message = multicast(network).unwrap_err();
        assert!(message.contains("sharp: ") && message.contains("InfiniBand"), "{network}: {message}");
    }
}

#[test]
fn hosts_without_nics_use_the_nics_of_the_network() {
    let text = "[[node]]\nid = \"gpu[0-1]\"\nkind = \"gpu\"\n[[node]]\nid = \"cpu\"\nkind = \"cpu\"\n[[link]]\na = \"gpu[0-1]\"\nb = \"cpu\"\nkind = \"pcie\"\n";
    let host = crate::read_text(text, "host").unwrap();
    assert!(build(&host, 2, None).unwrap_err().to_string().contains("describes no NIC"));
    let network: NetworkSpec = "rail,nics_per_node=8,nic=400Gb/s".parse().unwrap();
    let fabric = build(&host, 2, Some(&network)).unwrap();
    assert_eq!(ids(&fabric, NodeKind::Nic).len(), 16);
    assert_eq!(link_gb_per_s(&fabric, "n1/nic7", "leaf7"), 50.0);
    assert_eq!(class(&fabric, "n0/gpu0", "n1/gpu1"), PathClass::Net);
}

#[test]
fn gpus_per_host_limit_the_ranks() {
    let host = preset::load("hgx-h200").unwrap();
    let fabric = build_with_gpus(&host, 2, Some(4), None).unwrap();
    let names: Vec<String> = fabric.gpus().iter().map(|&gpu| fabric.node(gpu).id.to_string()).collect();
    assert_eq!(names[3..5], ["n0/gpu3", "n1/gpu0"]);
    assert_eq!(ids(&fabric, NodeKind::Gpu).len(), 16);
    for gpus in [0, 9] {
        assert!(matches!(build_with_gpus(&host, 2, Some(gpus), None), Err(Error::Request(_))), "{gpus}");
    }
    assert_eq!(build_with_gpus(&preset::load("gb200-nvl72").unwrap(), 18, Some(1), None).unwrap().gpus().len(), 18);
}

#[test]
fn loopback_splits_one_machine_into_nodes() {
    let host = preset::load("hgx-h200").unwrap();
    let network = "tcp-loopback".parse().unwrap();
    let fabric = build_with_gpus(&host, 2, Some(4), Some(&network)).unwrap();
    assert_eq!(fabric.gpus().len(), 8);
    assert_eq!(fabric.node(fabric.gpus()[4]).id, "n1/gpu0".into());
    assert_eq!(class(&fabric, "n0/gpu0", "n0/gpu3"), PathClass::Nvl);
    let path = Router::new(&fabric, RouteOptions::default()).path(fabric.gpus()[0], fabric.gpus()[4]).unwrap();
    assert_eq!((path.class, path.bandwidth), (PathClass::Net, Some(Bandwidth(3_600_000_000))));
    let passes = |kind| path.links().any(|link| fabric.node(fabric.ends(link).1).kind == kind);
    assert!(passes(NodeKind::Cpu) && passes(NodeKind::Switch));
    assert!(path.latency > Picos(40_000_000));
    assert_eq!(build(&host, 8, Some(&network)).unwrap().gpus().len(), 8);
    assert!(matches!(build_with_gpus(&host, 2, Some(5), Some(&network)), Err(Error::Request(_))));
    assert!(matches!(build(&host, 9, Some(&network)), Err(Error::Request(_))));
}

#[test]
fn clusters_keep_the_warnings_of_their_host() {
    let mut builder = FabricBuilder::reopen(preset::load("hgx-h200").unwrap());
    builder.warn("an assumed link");
    let host = builder.finish();
    for kind in ["rail", "tcp-loopback"] {
        let network = kind.parse().unwrap();
        let fabric = build(&host, 2, Some(&network)).unwrap();
        assert!(fabric.warnings().iter().any(|warning| warning == "an assumed link"), "{kind}");
    }
}

#[test]
fn impossible_clusters_are_rejected() {
    assert!(matches!(try_cluster("hgx-h200", 0, ""), Err(Error::Request(_))));
    assert!(matches!(try_cluster("hgx-h200", u32::MAX, ""), Err(Error::Request(_))));
    let switch = crate::read_text("[[node]]\nid = \"s\"\nkind = \"switch\"\n", "s").unwrap();
    assert!(matches!(build(&switch, 2, None), Err(Error::Request(_))));
}

#[test]
fn the_largest_cluster_builds_and_routes() {
    let fabric = cluster("hgx-h200", 8192, "");
    assert_eq!(fabric.gpus().len(), 65_536);
    let table = Router::new(&fabric, RouteOptions::default()).paths_from(fabric.gpus()[12_345]);
    assert!((0..table.len()).all(|rank| table.get(rank).is_some()));
}
