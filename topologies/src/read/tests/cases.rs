//! Tests with topology files that users published (`tests/data/topologies/cases`). Each file is read as its README
//! states, or rejected with a specific message.

use std::sync::Arc;

use crate::check;
use crate::fabric::{Fabric, Figures, GpuFigures, LinkKind, NodeKind};
use crate::gpus;
use crate::load::{FabricRequest, read_request, read_text};
use crate::{Error, NetworkSpec};

macro_rules! case {
    ($name:literal) => {
        include_str!(concat!("../../../../tests/data/topologies/cases/", $name))
    };
}

fn read(text: &str) -> Fabric {
    read_text(text, "case").unwrap_or_else(|error| panic!("{error}"))
}

fn read_with(text: &str, gpu: &str) -> Fabric {
    let request = FabricRequest { gpu: Some(gpu.to_owned()), ..FabricRequest::new("case") };
    read_request(text, &request).unwrap_or_else(|error| panic!("{error}"))
}

fn capability(fabric: &Fabric) -> Option<u32> {
    match &fabric.node(*fabric.gpus().first()?).figures {
        Figures::Gpu(figures) => figures.compute_capability,
        _ => None,
    }
}

fn findings_text(fabric: &Fabric) -> String {
    check::check(fabric).into_iter().map(|finding| format!("{}: {}\n", finding.severity, finding.message)).collect()
}

fn count(fabric: &Fabric, kind: NodeKind) -> usize {
    fabric.nodes().filter(|(_, node)| node.kind == kind).count()
}

/// Kind and bandwidth in GB/s of the first link between two devices.
fn link(fabric: &Fabric, name: &str) -> (LinkKind, f64) {
    let link = fabric.link(fabric.find_link(name).unwrap()[0]);
    (link.kind, link.bandwidth.unwrap().gb_per_s())
}

/// With every reader, NVSwitches of Hopper and later support multicast, and those of Ampere do not.
#[test]
fn nvswitches_support_multicast_from_hopper_on() {
    for (text, multicasts) in [
        (case!("ibm-vsi-h100.xml"), true),
        (case!("h100-232.topo"), true),
        (case!("h20-vm-321.topo"), true),
        (case!("gb200-sgl-numalist.topo"), true),
        (case!("b300-sgl-header.topo"), true),
        (case!("vr200-mlopart.xml"), true),
        (include_str!("../../../../tests/data/topologies/h200-node.xml"), true),
        (include_str!("../../../../tests/data/topologies/h200-node.topo-m.txt"), true),
        (include_str!("../../../../tests/data/topologies/stas_h100_8gpu.topo-m.txt"), true),
        (include_str!("../../../../tests/data/topologies/dgx_h100_8gpu_12nic.topo-m.txt"), true),
        (include_str!("../../../../tests/data/topologies/stas_a100_8gpu.topo-m.txt"), false),
        (include_str!("../../../../tests/data/topologies/infragraph_dgx_a100_nccl_topo.xml"), false),
    ] {
        let fabric = read(text);
        let mut switches = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Nvswitch).peekable();
        assert!(switches.peek().is_some(), "{text}");
        assert!(switches.all(|(_, node)| node.figures.supports_multicast() == multicasts), "{text}");
    }
}

/// A machine's own file yields the GPU and NVLink figures of the preset of that machine.
#[test]
fn dumps_and_matrices_match_the_figures_of_presets() {
    // Memory sizes differ, because presets use data sheets and machines report the size known to the driver.
    let gpu = |fabric: &Fabric| match fabric.node(fabric.gpus()[0]).figures.clone() {
        Figures::Gpu(figures) => Figures::Gpu(Arc::new(GpuFigures { memory: None, ..(*figures).clone() })),
        other => other,
    };
    let preset = crate::preset::load("hgx-h200").unwrap();
    let xml = read(include_str!("../../../../tests/data/topologies/h200-node.xml"));
    assert_eq!(gpu(&xml), gpu(&preset));
    let h100 = read_with(case!("h100-232.topo"), "h100");
    assert_eq!(gpu(&h100), gpu(&crate::preset::load("hgx-h100").unwrap()));
    assert_eq!(link(&h100, "gpu0->nvswitch0"), (LinkKind::Nvlink, 450.0));
    assert_eq!(gpu(&read(case!("ibm-vsi-h100.xml"))), gpu(&h100));
}

#[test]
fn capability_follows_from_the_sum_of_nvlinks() {
    for (text, expected) in [
        (case!("a100-4gpu-nv4-2nic.topo"), Some(80)),
        (case!("c4140-v100.topo"), Some(70)),
        (case!("h100-232.topo"), Some(90)),
        (case!("h20-vm-321.topo"), Some(90)),
        (case!("gb200-sgl-numalist.topo"), Some(100)),
        (case!("a6000-pair.topo"), None),
        (case!("a10g-8-phb.topo"), None),
        (case!("gb10.topo"), None),
        (case!("t-243.topo"), None),
        // Four H100 with NVLinks between all pairs, as on four-GPU HGX boards.
        (
            "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\tX\tNV6\tNV6\tNV6\nGPU1\tNV6\tX\tNV6\tNV6\nGPU2\tNV6\tNV6\tX\tNV6\nGPU3\tNV6\tNV6\tNV6\tX\n",
            Some(90),
        ),
        // Bridges of twelve links: A100 PCIe or H100 NVL.
        ("\tGPU0\tGPU1\nGPU0\tX\tNV12\nGPU1\tNV12\tX\n", None),
    ] {
        let fabric = read(text);
        assert_eq!(capability(&fabric), expected, "{text}\n{:?}", fabric.warnings());
        // An unknown capability is reported with the compatible models.
        let capabilities: std::collections::BTreeSet<u32> =
            fabric.gpu_candidates().iter().map(|name| gpus::model(name).unwrap().compute_capability).collect();
        assert_eq!(capabilities.len() > 1, expected.is_none(), "{text}: {capabilities:?}");
        let warns = fabric.warnings().iter().any(|warning| warning.contains("--gpu-model"));
        assert!(warns || fabric.gpu_candidates().is_empty(), "{text}");
    }
    let a100 = read(case!("a100-4gpu-nv4-2nic.topo"));
    assert_eq!(link(&a100, "gpu0->gpu1"), (LinkKind::Nvlink, 100.0));
}

#[test]
fn named_models_complete_the_figures_of_a_file() {
    let a6000 = read_with(case!("a6000-pair.topo"), "A6000");
    assert_eq!((capability(&a6000), link(&a6000, "gpu0->gpu1")), (Some(86), (LinkKind::Nvlink, 56.25)));
    assert!(a6000.gpu_candidates().is_empty());
    assert_eq!(capability(&read_with(case!("a10g-8-phb.topo"), "NVIDIA A10G")), Some(86));
    let gb10 = read_with(case!("gb10.topo"), "gb10");
    assert_eq!(capability(&gb10), Some(121));
    let b200 = read_with(case!("h100-232.topo"), "b200");
    assert_eq!((capability(&b200), link(&b200, "gpu0->nvswitch0").1), (Some(100), 900.0));
    // A model that contradicts the file is rejected.
    let request = FabricRequest { gpu: Some("a100".to_owned()), ..FabricRequest::new("case") };
    let error = read_request(case!("ibm-vsi-h100.xml"), &request).unwrap_err().to_string();
    assert!(error.contains("H100 SXM") && error.contains("A100"), "{error}");
    let error =
        read_request(case!("gb10.topo"), &FabricRequest { gpu: Some("h999".to_owned()), ..request }).unwrap_err();
    assert!(matches!(error, Error::Unknown { item: "GPU model", .. }), "{error}");
}

#[test]
fn gpu_names_around_a_matrix_identify_the_model() {
    let matrix = case!("a10g-8-phb.topo");
    for (around, expected) in [
        ("GPU 0: NVIDIA A10G (UUID: GPU-1)\nGPU 1: NVIDIA A10G (UUID: GPU-2)\n", "A10G"),
        ("GPU models and configuration: \nGPU 0: NVIDIA L4\nGPU 1: NVIDIA L4\n\nNvidia driver version: 550\n", "L4"),
        ("GPU 0,1,2,3,4,5,6,7: NVIDIA GeForce RTX 4090\nGPU 0,1,2,3,4,5,6,7 Compute Capability: 8.9\n", "RTX 4090"),
        ("#  Rank  0 Group  0 Pid   1 on  host device  0 [0000:1b:00] NVIDIA A10G\n", "A10G"),
        ("|   0  NVIDIA L40S                    On  |   00000000:1B:00.0 Off |                    0 |\n", "L40S"),
    ] {
        for text in [format!("{around}\n{matrix}"), format!("{matrix}\n{around}")] {
            let fabric = read(&text);
            let Figures::Gpu(figures) = &fabric.node(fabric.gpus()[0]).figures else { panic!("{text}") };
            assert_eq!(figures.model.as_deref(), Some(expected), "{text}");
            assert_eq!(figures.compute_capability, Some(gpus::model(expected).unwrap().compute_capability));
            assert!(fabric.gpu_candidates().is_empty());
        }
    }
}

#[test]
fn a_model_in_a_spec_fills_capability_memory_sms_and_multicast() {
    let text = "[[node]]\nid = \"gpu[0-7]\"\nkind = \"gpu\"\nmodel = \"H100 SXM\"\nmemory = \"96 GB\"\n\
                [[node]]\nid = \"sw\"\nkind = \"nvswitch\"\n\
                [[link]]\na = \"gpu[0-7]\"\nb = \"sw\"\nkind = \"nvlink\"\nlanes = 18\nbandwidth = \"450 GB/s\"\n";
    let fabric = read(text);
    let Figures::Gpu(figures) = &fabric.node(fabric.gpus()[0]).figures else { panic!() };
    assert_eq!((figures.compute_capability, figures.sm_count), (Some(90), Some(132)));
    // Figures that the spec states take precedence.
    assert_eq!(figures.memory, Some(crate::Bytes(96_000_000_000)));
    assert!(fabric.node(fabric.find("sw").unwrap()).figures.supports_multicast());
    // Without a model the links identify the generation, as for a matrix; all other figures are the spec's own.
    let silent = text.replace("model = \"H100 SXM\"\n", "");
    let hopper = read(&silent);
    assert_eq!(
        (capability(&hopper), hopper.node(hopper.find("sw").unwrap()).figures.supports_multicast()),
        (Some(90), false)
    );
    assert!(hopper.warnings().iter().any(|warning| warning.contains("assumed to be Hopper, based on 18 NVLinks")));
    let silent = silent.replace("memory = \"96 GB\"\n", "");
    let open = read(&silent.replace("lanes = 18\nbandwidth = \"450 GB/s\"", "bandwidth = \"450 GB/s\""));
    assert_eq!((capability(&open), open.node(open.find("sw").unwrap()).figures.supports_multicast()), (None, false));
    assert!(open.gpu_candidates().iter().any(|name| name == "A40"), "{:?}", open.gpu_candidates());
    let off = text.replace("kind = \"nvswitch\"\n", "kind = \"nvswitch\"\nmulticast = false\n");
    assert!(!read(&off).node(fabric.find("sw").unwrap()).figures.supports_multicast());
}

#[test]
fn graces_are_joined_by_clink() {
    let fabric = read(case!("gb200-sgl-numalist.topo"));
    assert_eq!(link(&fabric, "gpu0->cpu0"), (LinkKind::C2c, 225.0));
    assert_eq!(link(&fabric, "cpu0->cpu1").1, 150.0);
    assert_eq!(link(&fabric, "gpu3->nvswitch0"), (LinkKind::Nvlink, 900.0));
}

#[test]
fn glued_and_shifted_headers_are_rejected_by_name() {
    let glued = case!("b200-glued-header2.topo");
    let error = read_text(glued, "case").unwrap_err();
    assert!(error.to_string().contains("`NIC10NIC11`"), "{error}");
    assert_eq!(error.location().map(|location| location.line), Some(2));
    let head = "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\n";
    let rows = "GPU0\tX\tNV18\tPIX\tSYS\t0-31\nGPU1\tNV18\tX\tSYS\tPIX\t0-31\nNIC0\tPIX\tSYS\tX\tSYS\nNIC1\tSYS\tPIX\tSYS\tX\n";
    assert_eq!(read(&format!("{head}{rows}")).gpus().len(), 2);
    for (header, word) in [
        ("\tGPU0\tGPU1\tNIC0NIC1\tCPU Affinity\n", "`NIC0NIC1`"),
        ("\tGPU0\tGPU1NIC0\tNIC1\tCPU Affinity\n", "`GPU1NIC0`"),
        ("\tGPU0\tGPU1\tNIC0\tNIC1CPU Affinity\n", "`NIC1CPU`"),
        ("\tGPU0\tGPU1\tNIC1\tCPU Affinity\n", "`SYS`"),
        ("\tGPU0\tGPU1\tNIC0\tCPU Affinity\n", "`SYS`"),
    ] {
        let error = read_text(&format!("{header}{rows}"), "case").unwrap_err().to_string();
        assert!(error.contains(word), "{header}: {error}");
    }
    // Glued names of devices are detected from the row labels.
    let named = format!("{head}{rows}").replace("NIC0", "ibp24s0").replace("NIC1", "ibp41s0");
    let error =
        read_text(&named.replace("ibp24s0\tibp41s0\tCPU", "ibp24s0ibp41s0\tCPU"), "case").unwrap_err().to_string();
    assert!(error.contains("`ibp24s0ibp41s0`"), "{error}");
}

#[test]
fn nic_legends_are_recognized_anywhere() {
    let fabric = read(case!("min-annotated-nic.topo"));
    let Figures::Nic(nic) = &fabric.node(fabric.find("nic0").unwrap()).figures else { panic!() };
    assert_eq!(nic.model.as_deref(), Some("rocep80s0"));
    let above = format!("NIC0: mlx5_3\n{}", case!("min-annotated-nic.topo").replace("NIC0: rocep80s0", "note:"));
    // The reader takes the first line of the matrix as its header and ignores the lines above.
    assert_eq!(read(&above).gpus().len(), 2);
}

#[test]
fn colours_are_stripped_with_and_without_their_escape() {
    let plain = case!("b300-sgl-header.topo").replace("[4m", "").replace("[0m", "");
    for escape in ["", "\u{1b}", "^[", "\\033", "\\x1b", "\\e"] {
        let text = case!("b300-sgl-header.topo")
            .replace("[4m", &format!("{escape}[4m"))
            .replace("[0m", &format!("{escape}[0m"));
        let fabric = read(&text);
        assert_eq!((fabric.gpus().len(), count(&fabric, NodeKind::Nic)), (4, 2), "{escape}");
        assert_eq!(fabric.link_count(), read(&plain).link_count());
    }
}

#[test]
fn sys_relations_imply_two_sockets() {
    let fabric = read(case!("h200nvl-pairs-clean.topo"));
    assert_eq!((count(&fabric, NodeKind::Cpu), count(&fabric, NodeKind::Nvswitch)), (2, 0));
    assert_eq!(link(&fabric, "gpu2->gpu3"), (LinkKind::Nvlink, 450.0));
    // NVLink domains of two GPUs cannot hold a group of four ranks.
    assert!(findings_text(&fabric).contains("2 + 2 in NVLink domains"), "{}", findings_text(&fabric));
    // The matrix hides affinity and no devices are `SYS` apart, so there is one NUMA node.
    let near = case!("h200nvl-pairs-clean.topo").replace("SYS", "PHB");
    assert_eq!(count(&read(&near), NodeKind::Cpu), 1);
}

#[test]
fn gpus_without_nvlinks_do_not_remove_the_nvswitch_of_others() {
    let size = 8;
    let label = |i: usize| format!("GPU{i}");
    let header: String = (0..size).map(|i| format!("\t{}", label(i))).collect();
    let cell = |i: usize, j: usize| match (i, j) {
        _ if i == j => "X",
        _ if i == 5 || j == 5 => "SYS",
        _ => "NV18",
    };
    let row =
        |i: usize| format!("{}{}\n", label(i), (0..size).map(|j| format!("\t{}", cell(i, j))).collect::<String>());
    let text = format!("{header}\tCPU Affinity\tNUMA Affinity\n{}", (0..size).map(row).collect::<String>());
    let fabric = read(&text);
    assert_eq!(count(&fabric, NodeKind::Nvswitch), 1);
    assert_eq!(fabric.outgoing_links(fabric.find("nvswitch0").unwrap()).len(), 7);
    assert!(
        findings_text(&fabric).contains("gpu5 has 0 NVLinks where most GPUs of its host have 18"),
        "{}",
        findings_text(&fabric)
    );
}

#[test]
fn p2p_status_matrices_are_rejected_with_advice() {
    let error = read_text(case!("topo-p2p.txt"), "case").unwrap_err();
    assert!(error.to_string().contains("nvidia-smi topo -p2p"), "{error}");
    assert!(error.help().is_some_and(|help| help.contains("topo -m")));
}

#[test]
fn nics_are_read_without_dev_and_never_assumed() {
    for text in [case!("dgx-spark-gb10.xml"), case!("dgx-spark-gb10-dev.xml")] {
        let fabric = read(text);
        assert_eq!(count(&fabric, NodeKind::Nic), 2);
        // 200 Gb/s over PCIe 5.0 x4.
        assert!(
            findings_text(&fabric).contains("nic0, nic1: 200 Gb/s, over a PCIe link"),
            "{}",
            findings_text(&fabric)
        );
        let two = crate::cluster::build(&fabric, 2, None).unwrap();
        assert_eq!(count(&two, NodeKind::Nic), 4);
    }
    let none = read(case!("a10g-8-phb.topo"));
    assert!(findings_text(&none).contains("no NIC is described"), "{}", findings_text(&none));
    for (network, missing) in [
        (None, "how many it has and how fast they are"),
        (Some("rail,nic=200Gb/s"), "how many it has"),
        (Some("rail,nics_per_node=2"), "how fast they are"),
    ] {
        let network: Option<NetworkSpec> = network.map(|text| text.parse().unwrap());
        let error = crate::cluster::build(&none, 2, network.as_ref()).unwrap_err().to_string();
        assert!(error.contains(missing), "{error}");
    }
    let network: NetworkSpec = "rail,nics_per_node=2,nic=100Gb/s".parse().unwrap();
    assert_eq!(count(&crate::cluster::build(&none, 2, Some(&network)).unwrap(), NodeKind::Nic), 4);
    // A matrix states no rates of NICs; the assumed rate is reported.
    let matrix = crate::cluster::build(&read(case!("h20-vm-321.topo")), 2, None).unwrap();
    assert!(matrix.warnings().iter().any(|warning| warning.contains("400 Gb/s is assumed")), "{:?}", matrix.warnings());
}

#[test]
fn check_finds_the_faults_reported_by_users() {
    let dual = findings_text(&read(case!("a100pcie-dualport-x8.xml")));
    assert!(dual.contains("nic0, nic1: 2 ports of a card, 200 Gb/s together, over a PCIe link"), "{dual}");
    assert!(dual.contains("PCIe 4.0 x8"), "{dual}");
    assert!(dual.contains("gpu0: no NIC nearer than PHB"), "{dual}");
    let ibm = findings_text(&read(case!("ibm-vsi-h100.xml")));
    assert!(ibm.contains("PHB") && ibm.contains("GPUDirect"), "{ibm}");
    assert!(ibm.contains("PCIe 1.0 x1"), "{ibm}");
    // A GPU whose PCIe link is one generation slower than its own.
    let slow = case!("ibm-vsi-h100.xml").replace(r#"link_speed="32.0 GT/s PCIe""#, r#"link_speed="16.0 GT/s PCIe""#);
    let slow = findings_text(&read(&slow));
    assert!(slow.contains("PCIe 4.0 x16") && slow.contains("H100 SXM has PCIe 5.0 x16"), "{slow}");
}

#[test]
fn other_files_read_with_expected_sizes() {
    let sizes = |text: &str| {
        let fabric = read(text);
        (fabric.gpus().len(), count(&fabric, NodeKind::Nic), count(&fabric, NodeKind::Cpu), fabric.link_count() / 2)
    };
    assert_eq!(sizes(case!("t-243.topo")), (6, 2, 2, 8 + 4 + 1));
    assert_eq!(sizes(case!("h100nvl-amd-fam25.xml")), (2, 1, 3, 3 + 3));
    assert_eq!(sizes(case!("a6000-trimmed-merged-nic.xml")), (2, 1, 2, 3 + 1 + 1));
    assert_eq!(sizes(case!("vr200-mlopart.xml")).0, 2);
    assert_eq!(sizes(case!("dcu-rccl-1185.xml")), (2, 0, 1, 5));
    assert_eq!(capability(&read(case!("h100nvl-amd-fam25.xml"))), Some(90));
}
