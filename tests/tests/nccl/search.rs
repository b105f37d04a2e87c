//! Compares the modelled graph search with NCCL's own dumps and public logs, and checks machines that are not covered.
//!
//! Public logs: NVIDIA/nccl issues 1197 (8 × H100: rings 12 × 30, nvls 8 × 40/60), 1358 (two GPUs on two sockets of 10
//! GB/s: 1 × 10), 892 (H800: 16 channels), nccl-tests 307 (8 × RTX 4090 over sockets of 6 GB/s: 1 × 5).

use fabricast_libraries::nccl::graph::{NvlsUse, SearchNotModelled};
use fabricast_libraries::nccl::{ChannelPaths, Pattern};
use fabricast_libraries::nccl::{Communicator, Settings};
use fabricast_topologies::route::{PathClass, RouteOptions, Router};
use fabricast_topologies::{Fabric, FabricRequest, load};

fn preset(name: &str, nodes: u32, gpus: u32) -> Fabric {
    let network = (nodes > 1).then(|| "rail".parse().unwrap());
    load(&FabricRequest {
        fabric: name.to_owned(),
        nodes: Some(nodes),
        gpus: Some(gpus),
        network,
        gpu: None,
        drives: None,
    })
    .unwrap()
}

fn file(name: &str) -> Fabric {
    let path = format!("{}/data/topologies/{name}", env!("CARGO_MANIFEST_DIR"));
    load(&FabricRequest { fabric: path, nodes: None, gpus: None, network: None, gpu: None, drives: None }).unwrap()
}

fn search(fabric: &Fabric) -> Result<Communicator, SearchNotModelled> {
    let router = Router::new(fabric, RouteOptions::default());
    Communicator::from_fabric(fabric, &router, fabric.gpus(), NvlsUse::Allowed)
}

/// Channels and bandwidths (GB/s) inside and between nodes of rings, trees and NVLS, and the number of channels of
/// rings and trees together.
type Summary = ((u16, f64, f64), (u16, f64, f64), Option<(u16, f64, f64)>, u16);

fn summary(fabric: &Fabric) -> Summary {
    let comm = search(fabric).unwrap();
    let summarize = |graph: fabricast_libraries::nccl::Graph| {
        (graph.channels, graph.intra_bandwidth.gb_per_s(), graph.inter_bandwidth.gb_per_s())
    };
    let graphs = comm.graphs;
    (summarize(graphs.ring), summarize(graphs.tree), graphs.nvls.map(summarize), comm.channels(&Settings::default()))
}

#[test]
fn single_nodes_on_switches_match_public_logs() {
    let (rings, h100) = ((12, 30.0, 30.0), Some((8, 40.0, 60.0)));
    assert_eq!(summary(&preset("hgx-h100", 1, 8)), (rings, rings, h100, 24));
    assert_eq!(summary(&preset("hgx-h200", 1, 8)), (rings, rings, h100, 24));
    let rings = (12, 20.0, 20.0);
    assert_eq!(summary(&preset("dgx-a100", 1, 8)), (rings, rings, None, 24));
    let rings = (16, 45.0, 45.0);
    assert_eq!(summary(&preset("hgx-b200", 1, 8)), (rings, rings, Some((8, 80.0, 90.0)), 32));
}

#[test]
fn dump_of_the_measured_node_is_reproduced() {
    let dump = include_str!("../../data/nccl/h200-2.28.9-no-nvls-graph.xml");
    let comm = search(&file("h200-node.xml")).unwrap();
    for (id, graph) in [(0, comm.graphs.ring), (1, comm.graphs.tree)] {
        let head = dump.lines().find(|line| line.contains(&format!("<graph id=\"{id}\""))).unwrap();
        let value =
            |name: &str| head.split(&format!(" {name}=\"")).nth(1).unwrap().split('"').next().unwrap().to_owned();
        assert_eq!(value("nchannels"), graph.channels.to_string());
        assert_eq!(value("speedintra"), graph.intra_bandwidth.gb_per_s().to_string());
        assert_eq!(value("speedinter"), graph.inter_bandwidth.gb_per_s().to_string());
        assert_eq!(value("typeintra"), graph.intra_class.name());
        assert_eq!(value("typeinter"), graph.inter_class.name());
        assert_eq!(value("samechannels") == "1", graph.paths == ChannelPaths::Same);
        assert_eq!(value("pattern"), if graph.pattern == Pattern::Ring { "4" } else { "1" });
    }
}

#[test]
fn graphs_of_several_nodes_on_rails() {
    let fabric = preset("hgx-h100", 2, 8);
    let (rings, trees, nvls, channels) = summary(&fabric);
    assert_eq!((rings, nvls, channels), ((8, 45.0, 45.0), Some((8, 40.0, 48.0)), 16));
    assert_eq!(trees.0, 8);
    let ring = search(&fabric).unwrap().graphs.ring;
    assert_eq!((ring.intra_class, ring.inter_class), (PathClass::Nvl, PathClass::Pxn));
    let (rings, _, _, channels) = summary(&preset("dgx-a100", 2, 8));
    assert_eq!((rings, channels), ((8, 24.0, 24.0), 16));
    // With two GPUs and two NICs per switch, rings enter through one NIC and leave through the other.
    assert_eq!(search(&preset("dgx-a100", 2, 8)).unwrap().graphs.ring.inter_class, PathClass::Pix);
}

#[test]
fn graphs_of_gpus_on_pcie() {
    let (rings, trees, nvls, _) = summary(&preset("l40s-pcie", 1, 8));
    assert_eq!((rings.0, rings.1, trees.0, nvls), (1, 20.0, 1, None));
    let comm = search(&preset("l40s-pcie", 1, 8)).unwrap();
    assert_eq!(comm.graphs.ring.intra_class, PathClass::Sys);
}

#[test]
fn graphs_of_partial_nodes_and_racks() {
    assert_eq!(summary(&preset("hgx-h100", 1, 2)).0, (12, 30.0, 30.0));
    assert_eq!(summary(&preset("hgx-h100", 1, 1)).0.0, 1);
    let rack = load(&FabricRequest {
        fabric: "gb200-nvl72".to_owned(),
        nodes: Some(4),
        gpus: None,
        network: None,
        gpu: None,
        drives: None,
    })
    .unwrap();
    let comm = search(&rack).unwrap();
    assert_eq!((comm.nodes, comm.ranks, comm.graphs.ring.channels), (1, 16, 16));
}

/// Balanced trees need two GPUs near a NIC; from Hopper on, NCCL tries plain trees before more distant paths.
#[test]
fn one_nic_per_gpu_gives_plain_trees() {
    let tree = |fabric: &Fabric| search(fabric).unwrap().graphs.tree;
    for name in ["hgx-h100", "hgx-b200"] {
        let tree = tree(&preset(name, 2, 8));
        assert_eq!((tree.pattern, tree.inter_class), (Pattern::Tree, PathClass::Pix), "{name}");
    }
    // Ampere uses balanced trees only, and so does any GPU on a single node.
    assert_eq!(tree(&preset("dgx-a100", 2, 8)).pattern, Pattern::BalancedTree);
    assert_eq!(tree(&preset("hgx-h100", 1, 8)).pattern, Pattern::BalancedTree);
    // Two H100 PCIe GPUs share a switch with their NIC.
    assert_eq!(tree(&preset("h100-pcie", 2, 8)).pattern, Pattern::BalancedTree);
}

/// NCCL searches a mesh if NICs limit it: four GH200 with a NIC of 200 Gb/s each.
#[test]
fn nics_limit_meshes() {
    let hosts = load(&FabricRequest {
        network: Some("rail,nics_per_node=4,nic=200Gb/s".parse().unwrap()),
        ..request("gh200", 2)
    });
    let comm = search(&hosts.unwrap()).unwrap();
    assert_eq!((comm.nodes, comm.ranks), (2, 8));
    let graphs = comm.graphs;
    assert_eq!(
        (graphs.ring.channels, graphs.ring.intra_bandwidth.gb_per_s(), graphs.ring.inter_bandwidth.gb_per_s()),
        (4, 24.0, 24.0)
    );
    assert_eq!((graphs.tree.channels, graphs.tree.intra_bandwidth.gb_per_s(), graphs.nvls), (4, 48.0, None));
}

/// Four NICs behind one GPU's switch are treated as one NIC of four times the speed.
#[test]
fn nics_of_one_gpu_are_aggregated() {
    let spec = |network: &str| {
        let request = FabricRequest { network: Some(network.parse().unwrap()), ..request("hgx-h100", 2) };
        search(&load(&request).unwrap()).unwrap().graphs
    };
    assert_eq!(spec("rail,nics_per_node=32,nic=100Gb/s"), spec("rail,nics_per_node=8,nic=400Gb/s"));
}

fn request(preset: &str, nodes: u32) -> FabricRequest {
    FabricRequest { nodes: Some(nodes), ..FabricRequest::new(preset) }
}

#[test]
fn uncovered_machines_give_a_reason() {
    for name in ["dgx-v100", "gh200"] {
        assert_eq!(
            search(
                &load(&FabricRequest {
                    fabric: name.to_owned(),
                    nodes: None,
                    gpus: None,
                    network: None,
                    gpu: None,
                    drives: None
                })
                .unwrap()
            )
            .err(),
            Some(SearchNotModelled::Mesh),
            "{name}"
        );
    }
    assert_eq!(search(&preset("mi300x", 1, 8)).err(), Some(SearchNotModelled::NotNvidia));
    let rack = load(&FabricRequest {
        fabric: "gb200-nvl72".to_owned(),
        nodes: None,
        gpus: None,
        network: None,
        gpu: None,
        drives: None,
    })
    .unwrap();
    // The number of heads is NCCL's maximum (NCCL_MAX_NVLS_ARITY), at the highest speed at which 33 channels fit a
    // GPU's NVLinks.
    let heads = search(&rack).unwrap().graphs.nvls.unwrap();
    assert_eq!((heads.channels, heads.intra_bandwidth.gb_per_s()), (32, 20.0));
    let router = Router::new(&rack, RouteOptions::default());
    assert!(Communicator::from_fabric(&rack, &router, rack.gpus(), NvlsUse::Off).is_ok());
    let node = preset("hgx-h100", 1, 8);
    let router = Router::new(&node, RouteOptions::default());
    let duplicated = [node.gpus(), node.gpus()].concat();
    assert_eq!(
        Communicator::from_fabric(&node, &router, &duplicated, NvlsUse::Allowed).err(),
        Some(SearchNotModelled::SharedGpu)
    );
}

#[test]
fn topology_files_are_covered_or_rejected() {
    let folder = format!("{}/data/topologies", env!("CARGO_MANIFEST_DIR"));
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let request = FabricRequest {
            fabric: path.display().to_string(),
            nodes: None,
            gpus: None,
            network: None,
            gpu: None,
            drives: None,
        };
        let Ok(fabric) = load(&request) else { continue };
        if fabric.gpus().is_empty() {
            continue;
        }
        if let Ok(comm) = search(&fabric) {
            let channels = comm.channels(&Settings::default());
            assert!((1..=64).contains(&channels), "{}: {channels}", path.display());
        }
    }
}
