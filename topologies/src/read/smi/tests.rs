//! Tests with real matrices, and of the errors of invalid ones.

use super::*;
use crate::fabric::{Figures, LinkKind, NodeKind};
use crate::{Bandwidth, Bytes};

const H200: &str = include_str!("../../../../tests/data/topologies/h200-node.topo-m.txt");
const DGX_H100: &str = include_str!("../../../../tests/data/topologies/dgx_h100_8gpu_12nic.topo-m.txt");
const GRACE: &str = include_str!("../../../../tests/data/topologies/grace_blackwell_4gpu_8nic.topo-m.txt");
const L40S: &str = include_str!("../../../../tests/data/topologies/l40s_4gpu_pcie.topo-m.txt");
const A100: &str = include_str!("../../../../tests/data/topologies/stas_a100_8gpu.topo-m.txt");
const H100: &str = include_str!("../../../../tests/data/topologies/stas_h100_8gpu.topo-m.txt");
const DGX1_CUT: &str = include_str!("../../../../tests/data/topologies/msccl_dgx1_v100_8gpu_4ib.topo-m.txt");

fn counts(fabric: &Fabric) -> [usize; 5] {
    let kinds = [NodeKind::Gpu, NodeKind::Nic, NodeKind::Cpu, NodeKind::PcieSwitch, NodeKind::Nvswitch];
    kinds.map(|kind| fabric.nodes().filter(|(_, node)| node.kind == kind).count())
}

/// Kind, bandwidth in GB/s and lanes of the one link between two devices.
fn link(fabric: &Fabric, name: &str) -> (LinkKind, f64, u16) {
    let found = fabric.find_link(name).unwrap();
    assert_eq!(found.len(), 1);
    let link = fabric.link(found[0]);
    (link.kind, link.bandwidth.unwrap().gb_per_s(), link.lanes)
}

/// The device above another in the PCIe tree.
fn up<'a>(fabric: &'a Fabric, id: &str) -> &'a str {
    let links = fabric.outgoing_links(fabric.find(id).unwrap());
    // The uplink of a device is added first, before links to devices below it.
    let pcie = links.iter().find(|&&link| fabric.link(link).kind == LinkKind::Pcie && link.0 % 2 == 0).unwrap();
    &fabric.node(fabric.ends(*pcie).1).id
}

#[test]
fn real_matrices_match_counts_made_by_hand() {
    // Numbers of GPUs, NICs, CPUs, PCIe switches and NVSwitches.
    for (name, text, expected) in [
        ("h200", H200, [8, 0, 1, 0, 1]),
        ("a100", A100, [8, 0, 2, 0, 1]),
        ("h100", H100, [8, 0, 2, 0, 1]),
        ("l40s", L40S, [4, 0, 1, 2, 0]),
        // Each GPU and its NIC share two leaf switches and a top switch, and the two storage ports that have rows share
        // a switch.
        ("dgx-h100", DGX_H100, [8, 12, 2, 8 * 3 + 1, 1]),
        // Eight ports are near no GPU; two pairs of them share a switch.
        ("grace", GRACE, [4, 8, 2 + 6, 2, 1]),
    ] {
        let fabric = parse(text, name).unwrap();
        assert_eq!(counts(&fabric), expected, "{name}");
    }
}

#[test]
fn nvlink_bandwidth_follows_count_and_generation() {
    let bandwidth = |text: &str| link(&parse(text, "t").unwrap(), "gpu0->nvswitch0");
    assert_eq!(bandwidth(H200), (LinkKind::Nvlink, 450.0, 18));
    assert_eq!(bandwidth(A100), (LinkKind::Nvlink, 300.0, 12));
    assert_eq!(bandwidth(GRACE), (LinkKind::Nvlink, 900.0, 18));
    // Four links to each of three peers are a mesh of twelve links without a switch.
    let mesh = parse("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV4\tNV4\nGPU1\tNV4\tX\tNV4\nGPU2\tNV4\tNV4\tX\n", "t").unwrap();
    assert_eq!(link(&mesh, "gpu0->gpu2"), (LinkKind::Nvlink, 100.0, 4));
    assert_eq!(counts(&mesh)[4], 0);
}

#[test]
fn pcie_switches_follow_pix_and_pxb() {
    let l40s = parse(L40S, "t").unwrap();
    assert_eq!(
        (up(&l40s, "gpu0"), up(&l40s, "gpu1"), up(&l40s, "gpu2")),
        ("pcie_switch0", "pcie_switch0", "pcie_switch1")
    );
    assert_eq!(up(&l40s, "pcie_switch1"), "cpu0");
    let dgx = parse(DGX_H100, "t").unwrap();
    let (gpu, nic) = (up(&dgx, "gpu0"), up(&dgx, "nic0"));
    assert_ne!(gpu, nic);
    assert_eq!(up(&dgx, gpu), up(&dgx, nic));
    assert_eq!(up(&dgx, "nic1"), up(&dgx, "nic2"));
    assert_eq!(up(&dgx, up(&dgx, up(&dgx, "gpu7"))), "cpu1");
    assert!(dgx.warnings().iter().any(|warning| warning.contains("no rows of NIC6, NIC7")), "{:?}", dgx.warnings());
}

#[test]
fn names_in_the_nvidia_smi_table_identify_the_gpus() {
    let fabric = parse(H200, "t").unwrap();
    let gpu = fabric.node(fabric.find("gpu7").unwrap());
    let Figures::Gpu(figures) = &gpu.figures else { panic!() };
    assert_eq!((figures.model.as_deref(), figures.compute_capability), (Some("H200 SXM"), Some(90)));
    assert_eq!(figures.memory, Some(Bytes(143_771 << 20)));
    assert_eq!(&*gpu.attributes[0].1, "00000000:00:0d.0");
    assert!(!fabric.warnings().iter().any(|warning| warning.contains("assumed to be")));
}

/// DGX-1 matrix of a hybrid cube mesh, with four ports that have device names, old relation names, colours and a NIC
/// legend.
#[test]
fn dgx1_is_a_hybrid_cube_mesh() {
    let text = "\u{1b}[4m\tGPU0\tGPU1\tGPU2\tNIC0\tmlx5_1\tCPU Affinity\u{1b}[0m
GPU0\t X \tNV1\tSOC\tPIX\tPHB\t0-19
GPU1\tNV1\t X \tNV2\tPIX\tPHB\t0-19
GPU2\tSOC\tNV2\t X \tSYS\tSYS\t20-39
NIC0\tPIX\tPIX\tSYS\t X \tPHB
mlx5_1\tPHB\tPHB\tSYS\tPHB\t X

NIC Legend:

  NIC0: mlx5_0
";
    let fabric = parse(text, "t").unwrap();
    assert_eq!(counts(&fabric), [3, 2, 2, 1, 0]);
    assert_eq!(link(&fabric, "gpu1->gpu2"), (LinkKind::Nvlink, 50.0, 2));
    assert_eq!(link(&fabric, "gpu0->gpu1"), (LinkKind::Nvlink, 25.0, 1));
    assert_eq!(link(&fabric, "gpu0->pcie_switch0"), (LinkKind::Pcie, 15.753_846_16, 16));
    assert_eq!((up(&fabric, "nic1"), up(&fabric, "gpu2")), ("cpu0", "cpu1"));
    let model = |id: &str| match &fabric.node(fabric.find(id).unwrap()).figures {
        Figures::Nic(nic) => nic.model.clone(),
        _ => None,
    };
    assert_eq!((model("nic0").as_deref(), model("nic1").as_deref()), (Some("mlx5_0"), Some("mlx5_1")));
    assert_eq!(fabric.link(fabric.find_link("cpu0->cpu1").unwrap()[0]).bandwidth, Some(Bandwidth(10_000_000_000)));
}

#[test]
fn errors_have_a_message_and_a_location() {
    let head = "\tGPU0\tGPU1\n";
    let cases = [
        (DGX1_CUT.to_owned(), 1, 1, "the line that names its columns (GPU0 GPU1 …) is missing"),
        ("nothing\nhere\n".to_owned(), 1, 1, "no matrix"),
        (format!("{head}GPU0\tX\tNV4\n"), 1, 7, "there is no row of GPU1"),
        (format!("{head}GPU0\tX\tNV4\nGPU1\tNV4\n"), 3, 1, "the row of GPU1 has 1 cells; the header names 2"),
        (format!("{head}GPU0\tX\tNV4\nGPU1\tNV3\tX\n"), 3, 6, "`NV3` between GPU1 and GPU0, but NV4 above"),
        (format!("{head}GPU0\tX\tNVX\n"), 2, 8, "`NVX` is none of X, NV#"),
        (format!("{head}GPU0\tX\tX\n"), 2, 8, "`X` in the row of GPU0 and the column of GPU1"),
        (format!("{head}GPU0\tX\tSYS\nGPU0\tX\tSYS\n"), 3, 1, "a second row of GPU0"),
        ("\tGPU0\tGPU0\nGPU0\tX\tX\n".to_owned(), 1, 7, "a second column of GPU0"),
        (format!("é\n{head}GPU0\té\tNV0\n"), 3, 6, "`é` is none"),
    ];
    for (text, line, column, message) in cases {
        let error = parse(&text, "t.txt").unwrap_err();
        let location = error.location().unwrap();
        assert_eq!((location.line, location.column), (line, column), "{text}: {error}");
        assert!(error.to_string().contains(message), "{text}: {error}");
    }
}
