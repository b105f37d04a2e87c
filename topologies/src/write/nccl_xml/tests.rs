//! Tests that fabrics read from files are written back unchanged, and that unrepresentable parts are rejected by name.

use super::*;
use crate::arbitrary::comparable_properties;
use crate::read::{nccl_xml, spec};

/// Topology files of real machines. `odd_files` covers elements that they lack: peers, links to CPUs, C2C, xGMI,
/// several hosts, peer links of PCIe switches.
const FILES: [&str; 7] = [
    include_str!("../../../../tests/data/topologies/h200-node.xml"),
    include_str!("../../../../tests/data/topologies/aws_p4d-24xl-topo.xml"),
    include_str!("../../../../tests/data/topologies/azure_ndv2-topo.xml"),
    include_str!("../../../../tests/data/topologies/azure_ndv4-topo.xml"),
    include_str!("../../../../tests/data/topologies/azure_ndv5-topo.xml"),
    include_str!("../../../../tests/data/topologies/infragraph_dgx_a100_nccl_topo.xml"),
    include_str!("../../../../tests/data/topologies/oci_H100-topology.xml"),
];

const PCI: &str = "class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"";

fn odd_files() -> Vec<String> {
    let gpu = |bus: u8, inner: &str| {
        format!("<pci busid=\"{bus}\" {PCI}><gpu dev=\"{bus}\" sm=\"70\" rank=\"{}\">{inner}</gpu></pci>", 9 - bus)
    };
    let cpu = |hash: u8, inner: &str| {
        format!("<cpu host_hash=\"{hash}\" numaid=\"0\" arch=\"ppc64\" odd=\"a &lt; &quot;b&quot;\">{inner}</cpu>")
    };
    let peers = gpu(
        1,
        "<nvlink target=\"2\" count=\"2\" tclass=\"0x030200\"/><nvlink target=\"x\" count=\"3\" tclass=\"0x068001\"/>",
    ) + &gpu(2, "<nvlink target=\"1\" count=\"1\" tclass=\"0x030200\"/><c2c bw=\"44712\" count=\"10\"/>");
    let switch = |bus: u8, inner: &str| {
        format!("<pci busid=\"{bus}\" class=\"0x060400\" link_speed=\"8 GT/s\" link_width=\"8\">{inner}</pci>")
    };
    let sideways = switch(5, &(gpu(6, "") + "<pcilink target=\"7\"/>")) + &switch(7, &switch(8, ""));
    let amd = gpu(1, "<xgmi target=\"2\" count=\"1\" tclass=\"0x120000\"/>")
        .replace("sm=\"70\"", "sm=\"304\" gcn=\"942\"")
        + &gpu(2, "<xgmi target=\"1\" count=\"1\" tclass=\"0x120000\"/>")
            .replace("sm=\"70\"", "sm=\"304\" gcn=\"gfx942\"");
    let nvswitch = gpu(1, "<nvlink target=\"s\" count=\"18\" tclass=\"0x068000\"/>");
    [
        cpu(1, &(peers + &sideways)),
        cpu(1, &amd),
        cpu(1, &nvswitch) + &cpu(2, &nvswitch.replace("rank=\"8\"", "rank=\"0\"")),
    ]
    .map(|cpus| format!("<system version=\"1\">{cpus}</system>"))
    .to_vec()
}

#[test]
fn files_are_written_back_as_the_same_graph() {
    for text in FILES.into_iter().map(str::to_owned).chain(odd_files()) {
        let fabric = nccl_xml::parse(&text, "t").unwrap();
        let written = write(&fabric).unwrap();
        let again = nccl_xml::parse(&written, "t").unwrap_or_else(|error| panic!("{error}\n{written}"));
        assert_eq!(comparable_properties(&again), comparable_properties(&fabric), "{written}");
        assert_eq!(write(&again).unwrap(), written);
        assert!(!written.contains('\t') && !written.starts_with("<?xml"));
    }
}

fn built(text: &str) -> Fabric {
    spec::parse(text, "t").and_then(|spec| spec.build_nodes()).unwrap()
}

/// A machine without a source file: two GPUs on an NVSwitch and a CPU, a NIC behind a switch, C2C as on Grace.
const HOST: &str = r#"
[[node]]
id = "cpu0"
kind = "cpu"
[[node]]
id = "sw"
kind = "pcie_switch"
[[node]]
id = "gpu[0-2]"
kind = "gpu"
compute_capability = 90
[[node]]
id = "nic0"
kind = "nic"
speed = "400 Gb/s"
[[node]]
id = "nvswitch0"
kind = "nvswitch"
[[link]]
a = "cpu0"
b = "sw"
kind = "pcie"
bandwidth = "63 GB/s"
[[link]]
a = "gpu[0-1]"
b = "sw"
kind = "pcie"
lanes = 16
bandwidth = "63 GB/s"
[[link]]
a = "nic0"
b = "sw"
kind = "pcie"
bandwidth = "63 GB/s"
[[link]]
a = "gpu[0-2]"
b = "nvswitch0"
kind = "nvlink"
lanes = 18
bandwidth = "450 GB/s"
[[link]]
a = "gpu2"
b = "cpu0"
kind = "c2c"
lanes = 10
bandwidth = "450 GB/s"
"#;

#[test]
fn other_fabrics_are_written_as_far_as_the_format_allows() {
    let written = write(&built(HOST)).unwrap();
    let again = nccl_xml::parse(&written, "t").unwrap();
    let known = |warning: &String| warning.contains("--gpu-model");
    assert!(again.warnings().iter().all(known), "{:?}\n{written}", again.warnings());
    for link in ["gpu0->pcie_switch0", "nic0->pcie_switch0", "pcie_switch0->cpu0", "gpu1->nvswitch0", "gpu2->cpu0#1"] {
        assert!(again.find_link(link).is_ok(), "{link}\n{written}");
    }
    let lanes = again.link(again.find_link("gpu1->nvswitch0").unwrap()[0]).lanes;
    assert_eq!((lanes, again.gpus().len()), (18, 3));
    assert!(written.contains("speed=\"400000\"") && written.contains("link_speed=\"32.0 GT/s PCIe\""), "{written}");
}

#[test]
fn unrepresentable_devices_and_links_are_rejected_by_name() {
    let refuse = |more: &str| write(&built(&format!("{HOST}{more}"))).unwrap_err().to_string();
    let node = |id: &str, kind: &str| format!("[[node]]\nid = \"{id}\"\nkind = \"{kind}\"\n");
    let link = |a: &str, b: &str, kind: &str| format!("[[link]]\na = \"{a}\"\nb = \"{b}\"\nkind = \"{kind}\"\n");
    assert!(refuse(&node("leaf", "switch")).contains("`leaf`, of kind switch"));
    assert!(refuse(&node("mig0", "mig")).contains("`mig0`, of kind mig"));
    assert!(refuse(&node("gpu9", "gpu")).contains("`gpu9`, which is attached to no CPU"));
    assert!(refuse(&link("gpu0", "nic0", "infiniband")).contains("infiniband link gpu0->nic0"));
    assert!(refuse(&link("gpu0", "cpu0", "pcie")).contains("pcie link"));
    assert!(refuse(&link("gpu0", "nic0", "nvlink")).contains("NVLink gpu0->nic0"));
    let deep: String = (0..100).map(|i| node(&format!("s{i}"), "pcie_switch")).collect::<String>()
        + &link("s0", "cpu0", "pcie")
        + &link("s[1-99]", "s[0-98]", "pcie");
    assert!(refuse(&deep).contains("nested more than 64 deep"));
}

/// Figures that a reader replaces are described; there are none where a file is read and written.
#[test]
fn replaced_figures_are_described() {
    let described = |fabric: &Fabric| replaced_figures(fabric, &write(fabric).unwrap()).unwrap();
    for file in FILES {
        assert_eq!(described(&nccl_xml::parse(file, "f").unwrap()), Vec::<String>::new());
    }
    let fast = described(&built(&HOST.replace("450 GB/s", "478.5 GB/s")));
    assert!(fast.iter().any(|text| text.contains("NVLink 450 GB/s instead of 478.5 GB/s")), "{fast:?}");
    let slow = described(&built(&HOST.replace("lanes = 18", "lanes = 18\nlatency = \"1.5 us\"")));
    assert!(slow.iter().any(|text| text.contains("NVLink 250 ns instead of 1.5 us")), "{slow:?}");
}
