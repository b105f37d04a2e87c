//! Path classes of all pairs on the presets, compared with `nvidia-smi topo -m` and NCCL on such machines.

use super::*;
use crate::preset;
use crate::{Bandwidth, Picos};

/// Counts the classes of ordered GPU pairs.
fn census(name: &str) -> Vec<(PathClass, usize)> {
    let fabric = preset::load(name).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let mut counts = std::collections::BTreeMap::new();
    for &from in fabric.gpus() {
        let table = router.paths_from(from);
        for rank in 0..table.len() {
            let (_, summary) = table.get(rank).unwrap();
            *counts.entry(summary.class).or_insert(0) += 1;
        }
    }
    counts.remove(&PathClass::Loc);
    counts.into_iter().collect()
}

#[test]
fn gpu_pairs_have_the_classes_of_their_machine() {
    use PathClass::{Nvb, Nvl, Phb, Pix, Sys};
    let expected: &[(&str, &[(PathClass, usize)])] = &[
        ("hgx-h200", &[(Nvl, 56)]),
        ("hgx-b300", &[(Nvl, 56)]),
        ("hgx-h20-96gb", &[(Nvl, 56)]),
        ("hgx-h800", &[(Nvl, 56)]),
        ("dgx-a100", &[(Nvl, 56)]),
        ("dgx-a100-40gb", &[(Nvl, 56)]),
        ("gh200", &[(Nvl, 12)]),
        ("gb200-nvl72", &[(Nvl, 72 * 71)]),
        ("mi300x", &[(Nvl, 56)]),
        // Each GPU has four NVLink neighbours and reaches the other three through one of them.
        ("dgx-v100", &[(Nvl, 32), (Nvb, 24)]),
        // A GPU has one neighbour under its PCIe switch, two more on its socket, and four on the other socket.
        ("l40s-pcie", &[(Pix, 8), (Phb, 16), (Sys, 32)]),
        ("rtx-pro-6000-pcie", &[(Pix, 8), (Phb, 16), (Sys, 32)]),
        ("rtx4090-pcie", &[(Phb, 24), (Sys, 32)]),
        ("rtx5090-pcie", &[(Phb, 24), (Sys, 32)]),
        ("a100-pcie", &[(Nvl, 8), (Phb, 16), (Sys, 32)]),
    ];
    for (name, classes) in expected {
        assert_eq!(census(name), *classes, "{name}");
    }
}

#[test]
fn h200_nvlink_path_has_the_measured_bandwidth_and_latency() {
    let fabric = preset::load("hgx-h200").unwrap();
    let path = find_path(&fabric, RouteOptions::default(), "gpu0", "gpu7");
    assert_eq!(stations(&fabric, &path), ["gpu0", "nvswitch0", "gpu7"]);
    assert_eq!((path.bandwidth, path.latency), (Some(Bandwidth(450_000_000_000)), Picos(500_000)));
}

#[test]
fn peers_under_a_pcie_switch_bypass_the_cpu() {
    let fabric = preset::load("l40s-pcie").unwrap();
    let path = find_path(&fabric, RouteOptions::default(), "gpu2", "gpu3");
    assert_eq!(stations(&fabric, &path), ["gpu2", "pcie_switch1", "gpu3"]);
    let path = find_path(&fabric, RouteOptions::default(), "gpu0", "gpu2");
    assert_eq!(stations(&fabric, &path), ["gpu0", "pcie_switch0", "cpu0", "pcie_switch1", "gpu2"]);
    let path = find_path(&fabric, RouteOptions::default(), "gpu0", "gpu7");
    assert_eq!(path.hops.len(), 5);
    assert_eq!(path.bandwidth, Some(Bandwidth(22_000_000_000)));
}

#[test]
fn nic_classes_match_published_matrices() {
    let h200 = preset::load("hgx-h200").unwrap();
    assert_eq!(class(&h200, "gpu0", "nic0"), PathClass::Pix);
    assert_eq!(class(&h200, "nic0", "gpu0"), PathClass::Pix);
    // The path to a neighbour's NIC passes through the neighbour; the path from it passes through the CPU.
    assert_eq!(class(&h200, "gpu0", "nic5"), PathClass::Pxn);
    assert_eq!(class(&h200, "nic5", "gpu0"), PathClass::Sys);
    assert_eq!(class(&h200, "nic1", "gpu0"), PathClass::Phb);
    let v100 = preset::load("dgx-v100").unwrap();
    assert_eq!(class(&v100, "gpu1", "nic0"), PathClass::Pix);
    assert_eq!(class(&v100, "gpu2", "nic1"), PathClass::Pix);
    let gb200 = preset::load("gb200-nvl72").unwrap();
    assert_eq!(class(&gb200, "n0/gpu0", "n0/nic0"), PathClass::P2c);
    assert_eq!(class(&gb200, "n0/nic1", "n0/gpu0"), PathClass::P2c);
    assert_eq!(class(&gb200, "n0/gpu0", "n0/nic2"), PathClass::Pxn);
    let gb300 = preset::load("gb300-nvl72").unwrap();
    assert_eq!(class(&gb300, "n3/gpu2", "n3/nic2"), PathClass::Pix);
}

#[test]
fn dgx1_cube_mesh_matches_its_matrix() {
    // Rows of `nvidia-smi topo -m` on a DGX-1 (microsoft/msccl, MIT): lanes between GPUs, 0 for SYS.
    let lanes = [
        [0, 1, 1, 2, 2, 0, 0, 0],
        [1, 0, 2, 1, 0, 2, 0, 0],
        [1, 2, 0, 2, 0, 0, 1, 0],
        [2, 1, 2, 0, 0, 0, 0, 1],
        [2, 0, 0, 0, 0, 1, 1, 2],
        [0, 2, 0, 0, 1, 0, 2, 1],
        [0, 0, 1, 0, 1, 2, 0, 2],
        [0, 0, 0, 1, 2, 1, 2, 0],
    ];
    let fabric = preset::load("dgx-v100").unwrap();
    for (a, row) in lanes.iter().enumerate() {
        for (b, &lanes) in row.iter().enumerate().filter(|&(b, _)| a != b) {
            let path = find_path(&fabric, RouteOptions::default(), &format!("gpu{a}"), &format!("gpu{b}"));
            if lanes == 0 {
                assert_eq!((path.class, path.latency), (PathClass::Nvb, Picos(500_000)), "{a} {b}");
            } else {
                assert_eq!((path.class, path.hops.len()), (PathClass::Nvl, 1), "{a} {b}");
                assert_eq!(path.bandwidth, Some(Bandwidth(lanes * 25_000_000_000)), "{a} {b}");
            }
        }
    }
    // From GPU 0 to 7, relay 4 has double links on both sides and relay 3 a single link on one side. The relay with
    // more bandwidth is selected.
    let path = find_path(&fabric, RouteOptions::default(), "gpu0", "gpu7");
    assert_eq!(stations(&fabric, &path), ["gpu0", "gpu4", "gpu7"]);
}

/// The folder with files of real machines.
const REAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/topologies");

/// Cells of an `nvidia-smi topo -m` matrix (row, column, word), of GPUs and NICs only.
fn cells(text: &str) -> Vec<(String, String, String)> {
    let is_device =
        |token: &&str| token.starts_with("GPU") && token[3..].parse::<u32>().is_ok() || token.starts_with("NIC");
    let mut columns: Vec<String> = Vec::new();
    let mut cells = Vec::new();
    for line in text.lines() {
        let tokens: Vec<&str> = line.split_whitespace().collect();
        let heading = tokens.len() > 1 && tokens[..2].iter().all(is_device);
        if heading {
            columns = tokens.iter().filter(|token| is_device(token)).map(|token| token.to_lowercase()).collect();
        } else if tokens.first().is_some_and(is_device) {
            for (column, cell) in columns.iter().zip(&tokens[1..]) {
                cells.push((tokens[0].to_lowercase(), column.clone(), (*cell).to_owned()));
            }
        }
    }
    cells
}

#[test]
fn classes_match_real_matrices() {
    let mut compared = 0;
    let mut files: Vec<_> = std::fs::read_dir(REAL).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for path in files.iter().filter(|path| path.to_str().unwrap().ends_with("topo-m.txt")) {
        let text = std::fs::read_to_string(path).unwrap();
        // One matrix lacks the header and is rejected.
        let Ok(fabric) = crate::load(&crate::FabricRequest::new(path.to_str().unwrap())) else { continue };
        let router = Router::new(&fabric, RouteOptions { pxn: crate::route::Pxn::Off, ..RouteOptions::default() });
        for (from, to, word) in cells(&text) {
            let (Some(a), Some(b)) = (fabric.find(&from), fabric.find(&to)) else { continue };
            let class = router.path(a, b).unwrap_or_else(|error| panic!("{}: {error}", path.display())).class;
            let expected: &[PathClass] = match word.as_str() {
                "X" => &[PathClass::Loc],
                nvlink if nvlink.starts_with("NV") => &[PathClass::Nvl],
                "PIX" => &[PathClass::Pix],
                "PXB" => &[PathClass::Pxb],
                "PHB" | "NODE" => &[PathClass::Phb],
                // The matrix reports `SYS` even if a path over a neighbour's NVLink, or over C2C, is nearer.
                "SYS" => &[PathClass::Sys, PathClass::Nvb],
                other => panic!("{}: {other}", path.display()),
            };
            assert!(expected.contains(&class), "{} {from} {to}: {class} for {word}", path.display());
            compared += 1;
        }
    }
    assert!(compared > 500, "{compared}");
}

#[test]
fn gpus_of_real_topology_files_reach_each_other() {
    let mut files = 0;
    for entry in std::fs::read_dir(REAL).unwrap() {
        let path = entry.unwrap().path();
        let Ok(fabric) = crate::load(&crate::FabricRequest::new(path.to_str().unwrap())) else { continue };
        // Matrices without NICs need the figures of a network.
        let network = "rail,nics_per_node=2,nic=200Gb/s".parse().unwrap();
        let two =
            crate::cluster::build(&fabric, 2, None).or_else(|_| crate::cluster::build(&fabric, 2, Some(&network)));
        for two in [fabric.clone(), two.unwrap()] {
            let router = Router::new(&two, RouteOptions::default());
            for &from in two.gpus() {
                let table = router.paths_from(from);
                assert!((0..table.len()).all(|rank| table.get(rank).is_some()), "{}", path.display());
            }
        }
        files += 1;
    }
    assert!(files >= 8, "{files}");
}
