//! Tests with topology files of real machines, and with small files for elements that those lack.

use super::*;
use crate::fabric::{Figures, LinkKind};
use crate::{Bandwidth, Picos};

/// Every topology file of the test data.
const FILES: [(&str, &str); 7] = [
    ("h200-node", include_str!("../../../../tests/data/topologies/h200-node.xml")),
    ("aws-p4d", include_str!("../../../../tests/data/topologies/aws_p4d-24xl-topo.xml")),
    ("azure-ndv2", include_str!("../../../../tests/data/topologies/azure_ndv2-topo.xml")),
    ("azure-ndv4", include_str!("../../../../tests/data/topologies/azure_ndv4-topo.xml")),
    ("azure-ndv5", include_str!("../../../../tests/data/topologies/azure_ndv5-topo.xml")),
    ("dgx-a100", include_str!("../../../../tests/data/topologies/infragraph_dgx_a100_nccl_topo.xml")),
    ("oci-h100", include_str!("../../../../tests/data/topologies/oci_H100-topology.xml")),
];

fn read(name: &str) -> Fabric {
    let (_, text) = FILES.iter().find(|(file, _)| *file == name).unwrap();
    parse(text, name).unwrap()
}

fn count(fabric: &Fabric, kind: NodeKind) -> usize {
    fabric.nodes().filter(|(_, node)| node.kind == kind).count()
}

/// Kind, lanes, bandwidth in GB/s and latency of the one link between two devices.
fn link(fabric: &Fabric, name: &str) -> (LinkKind, u16, Option<f64>, Picos) {
    let found = fabric.find_link(name).unwrap();
    assert_eq!(found.len(), 1, "{name}");
    let link = fabric.link(found[0]);
    (link.kind, link.lanes, link.bandwidth.map(Bandwidth::gb_per_s), link.latency)
}

#[test]
fn real_files_match_counts_made_by_hand() {
    // Numbers of GPUs, NICs, CPUs, PCIe switches and NVSwitches; then of warnings.
    let expected = [
        ("h200-node", [8, 1, 1, 0, 1], 0),
        ("aws-p4d", [8, 4, 2, 4, 0], 1),
        ("azure-ndv2", [8, 1, 2, 0, 0], 2),
        ("azure-ndv4", [8, 8, 4, 4, 0], 2),
        ("azure-ndv5", [8, 8, 2, 8, 0], 2),
        ("dgx-a100", [8, 12, 6, 12, 1], 0),
        ("oci-h100", [8, 16, 2, 8, 1], 0),
    ];
    let kinds = [NodeKind::Gpu, NodeKind::Nic, NodeKind::Cpu, NodeKind::PcieSwitch, NodeKind::Nvswitch];
    for (name, counts, warnings) in expected {
        let fabric = read(name);
        assert_eq!(kinds.map(|kind| count(&fabric, kind)), counts, "{name}");
        assert_eq!(fabric.warnings().len(), warnings, "{name}: {:?}", fabric.warnings());
        assert_eq!(fabric.gpus().len(), 8);
        let sockets = counts[2];
        // Every device except CPUs and the NVSwitch has one PCIe link, every pair of sockets has a link, and each GPU
        // has a link to the NVSwitch.
        let links = (counts[0] + counts[1] + counts[3]) + sockets * (sockets - 1) / 2 + counts[4] * 8;
        assert_eq!(fabric.link_count(), 2 * links, "{name}");
    }
}

#[test]
fn h200_node_has_the_expected_links_and_attributes() {
    let fabric = read("h200-node");
    assert_eq!(link(&fabric, "gpu3->nvswitch0"), (LinkKind::Nvlink, 18, Some(450.0), Picos(250_000)));
    assert_eq!(link(&fabric, "nvswitch0->gpu3"), (LinkKind::Nvlink, 18, Some(450.0), Picos(250_000)));
    assert_eq!(link(&fabric, "gpu0->cpu0"), (LinkKind::Pcie, 16, Some(63.015_384_608), Picos(250_000)));
    assert_eq!(link(&fabric, "nic0->cpu0"), (LinkKind::Pcie, 1, None, Picos(250_000)));
    let gpu = fabric.node(fabric.find("gpu7").unwrap());
    let Figures::Gpu(figures) = &gpu.figures else { panic!() };
    assert_eq!((figures.model.as_deref(), figures.compute_capability), (Some("H200 SXM"), Some(90)));
    let attribute = |name: &str| gpu.attributes.iter().find(|(key, _)| &**key == name).map(|(_, value)| &**value);
    assert_eq!((attribute("busid"), attribute("rank"), attribute("sm")), (Some("0000:00:0d.0"), Some("7"), Some("90")));
    let Figures::Nic(nic) = &fabric.node(fabric.find("nic0").unwrap()).figures else { panic!() };
    assert_eq!((nic.speed, nic.gdr), (Some(Bandwidth(1_250_000_000)), Some(false)));
    let Figures::Cpu(cpu) = &fabric.node(fabric.find("cpu0").unwrap()).figures else { panic!() };
    assert_eq!((cpu.numa, cpu.model_id), (Some(-1), Some(207)));
}

#[test]
fn two_level_broadcom_switches_are_merged() {
    // Broadcom generation 5: one upper switch with a lower switch for the GPU and one for the NIC.
    let oci = read("oci-h100");
    let up = |fabric: &Fabric, id: &str| -> String {
        let links = fabric.outgoing_links(fabric.find(id).unwrap());
        let pcie = links.iter().find(|&&link| fabric.link(link).kind == LinkKind::Pcie).unwrap();
        fabric.node(fabric.ends(*pcie).1).id.to_string()
    };
    assert_eq!(
        (up(&oci, "gpu0"), up(&oci, "nic0"), up(&oci, "nic1")),
        ("pcie_switch0".into(), "pcie_switch0".into(), "pcie_switch0".into())
    );
    assert_eq!(link(&oci, "pcie_switch0->cpu0"), (LinkKind::Pcie, 16, Some(8.0), Picos(250_000)));
    // Broadcom generation 4: NVIDIA's own switch below the two levels is not merged. `dev` 2 and 3 are in reverse
    // order.
    let dgx = read("dgx-a100");
    assert_eq!(up(&dgx, "nic0"), "pcie_switch0");
    assert_eq!(up(&dgx, &up(&dgx, "gpu0")), "pcie_switch0");
    let ranks: Vec<&str> = dgx.gpus().iter().map(|&gpu| &*dgx.node(gpu).id).collect();
    assert_eq!(ranks, ["gpu0", "gpu1", "gpu2", "gpu3", "gpu4", "gpu5", "gpu6", "gpu7"]);
    assert_eq!(link(&dgx, "gpu0->nvswitch0").2, Some(300.0));
    assert_eq!(link(&dgx, "cpu3->cpu7"), (LinkKind::Upi, 1, Some(16.0), Picos(120_000)));
}

/// Two V100 joined by two NVLinks, one of them with a link to its POWER CPU and one with C2C; the other socket is
/// Zhaoxin's.
const ODD: &str = r#"<?xml version="1.0"?>
<system version="1">
	<cpu numaid="0" arch="ppc64">
    <pci busid="0000:01:00.0" class="0x030200" vendor="0x10de" device="0x1db5" link_speed="8.0 GT/s PCIe" link_width="8">
      <gpu dev="5" sm="70" rank="1" gdr="1">
        <nvlink target="0000:02:00.0" count="2" tclass="0x030200"/>
        <nvlink target="0004:04:00.1" count="3" tclass="0x068001"/>
      </gpu>
    </pci>
  </cpu>
  <cpu numaid="8" arch="x86_64" vendor="  Shanghai  " familyid="7" modelid="91">
    <pci busid="0000:02:00.0" class="0x030200" vendor="0x10de" device="0x1db5" link_speed="Unknown" link_width="16">
      <gpu dev="2" sm="70" rank="0" gdr="1">
        <nvlink target="0000:01:00.0" count="1" tclass="0x030200"/>
        <c2c bw="44712" count="10"/>
      </gpu>
    </pci>
    <pci busid="0000:03:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16">
      <nic><net name="roce0" dev="0" speed="-1"/><net name="other"/></nic>
    </pci>
  </cpu>
</system>"#;

#[test]
fn peer_cpu_and_c2c_links_are_read() {
    let fabric = parse(ODD, "dir/odd.xml").unwrap();
    assert_eq!(fabric.name(), "odd");
    let ranks: Vec<&str> = fabric.gpus().iter().map(|&gpu| &*fabric.node(gpu).id).collect();
    assert_eq!(ranks, ["gpu2", "gpu5"]);
    assert_eq!(link(&fabric, "gpu5->gpu2"), (LinkKind::Nvlink, 2, Some(50.0), Picos(500_000)));
    assert_eq!(link(&fabric, "gpu2->gpu5"), (LinkKind::Nvlink, 2, Some(25.0), Picos(500_000)));
    assert_eq!(link(&fabric, "gpu5->cpu0#1"), (LinkKind::Nvlink, 3, Some(75.0), Picos(250_000)));
    assert_eq!(link(&fabric, "gpu5->cpu0#0"), (LinkKind::Pcie, 8, Some(7.876_923_08), Picos(250_000)));
    assert_eq!(link(&fabric, "gpu2->cpu8#1"), (LinkKind::C2c, 10, Some(447.12), Picos(200_000)));
    assert_eq!(link(&fabric, "cpu0->cpu8").2, Some(32.0));
    assert_eq!(link(&fabric, "cpu8->cpu0").2, Some(9.0));
    let Figures::Nic(nic) = &fabric.node(fabric.find("nic0").unwrap()).figures else { panic!() };
    assert_eq!(nic.speed, Some(Bandwidth(1_250_000_000)));
    let warnings = fabric.warnings().join("\n");
    for expected in ["<?xml", "line 3: NCCL itself refuses tabs", "does not know", "lists 2 NVLinks", "without `dev`"] {
        assert!(warnings.contains(expected), "{expected}: {warnings}");
    }
}

#[test]
fn amd_gpus_are_joined_by_xgmi() {
    let text = r#"<system version="2"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="17">
        <pci busid="0021:00:00.0" class="0x120000" vendor="0x1002" device="0x74a1" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="304" gcn="gfx942" arch="38911" rank="0" gdr="1"><xgmi target="0011:00:00.0" count="1" tclass="0x120000"/></gpu></pci>
        <pci busid="0011:00:00.0" class="0x120000" vendor="0x1002" device="0x74a1" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="304" gcn="942" arch="38911" rank="1" gdr="1"><xgmi target="0021:00:00.0" count="1" tclass="0x120000"/></gpu></pci>
        </cpu></system>"#;
    let fabric = parse(text, "amd.xml").unwrap();
    assert_eq!(link(&fabric, "gpu0->gpu1"), (LinkKind::Nvlink, 1, Some(64.0), Picos(500_000)));
    let Figures::Gpu(figures) = &fabric.node(fabric.gpus()[0]).figures else { panic!() };
    assert_eq!((figures.compute_capability, figures.sm_count), (Some(942), Some(304)));
    assert_eq!(&*fabric.node(fabric.gpus()[0]).id, "gpu1");
}

#[test]
fn hosts_of_an_nvlink_domain_share_one_nvswitch() {
    let host = |hash: &str| {
        format!(
            r#"<cpu host_hash="{hash}" numaid="0" arch="arm64"><pci busid="0000:01:00.0" class="0x030200" link_speed="32 GT/s" link_width="16">
            <gpu dev="0" sm="100" rank="{hash}" gdr="1"><nvlink target="f" count="18" tclass="0x068000"/></gpu></pci></cpu>"#
        )
    };
    let fabric = parse(&format!("<system version=\"1\">{}{}</system>", host("1"), host("0")), "x").unwrap();
    let ranks: Vec<&str> = fabric.gpus().iter().map(|&gpu| &*fabric.node(gpu).id).collect();
    assert_eq!(ranks, ["n1/gpu0", "n0/gpu0"]);
    assert_eq!(link(&fabric, "n1/gpu0->nvswitch0").2, Some(900.0));
    assert!(fabric.find_link("n0/cpu0->n1/cpu0").is_err());
}

#[test]
fn errors_have_a_message_and_a_location() {
    let pci = r#"<pci busid="1" class="0x030200" link_speed="8 GT/s" link_width="16""#;
    let in_cpu = |inner: &str| format!("<system version=\"1\">\n<cpu numaid=\"0\">\n{inner}\n</cpu></system>");
    let in_gpu = |inner: &str| in_cpu(&format!("{pci}><gpu dev=\"0\">\n{inner}\n</gpu></pci>"));
    let cases = [
        ("<graphs version=\"1\"/>".to_owned(), 1, 1, "this is a graph file"),
        ("<html/>".to_owned(), 1, 1, "starts with <system>, not <html>"),
        ("<system>\n  <cpu>\n</system>".to_owned(), 3, 1, "not well-formed XML: expected 'cpu' tag, not 'system'"),
        ("".to_owned(), 1, 1, "not well-formed XML"),
        (in_cpu(&format!("{pci}/>\n{pci}/>")), 4, 13, "the bus id `1` is taken by line 3"),
        (in_cpu("<pci class=\"0x030200\"/>"), 3, 1, "<pci> needs the attribute `busid`"),
        (in_cpu("<pci busid=\"1\"/>"), 3, 1, "needs the attribute `class`"),
        (in_cpu("<pci busid=\"1\" class=\"0x03\" link_width=\"-4\"/>"), 3, 41, "link_width: -4"),
        (in_cpu("<pci busid=\"1\" class=\"0x03\" link_width=\"wide\"/>"), 3, 41, "`wide` is not a whole number"),
        (in_gpu("<nvlink target=\"x\" count=\"0\" tclass=\"0x068000\"/>"), 4, 27, "count: 0 is not from 1"),
        (in_gpu("<nvlink target=\"x\" count=\"2\"/>"), 4, 1, "<nvlink> needs `tclass`"),
        (in_gpu("<c2c bw=\"-1\" count=\"2\"/>"), 4, 10, "bw: not a positive"),
        (in_cpu("<nic><net dev=\"zero\"/></nic>"), 3, 16, "dev: `zero`"),
    ];
    for (text, line, column, message) in cases {
        let error = parse(&text, "t.xml").unwrap_err();
        let location = error.location().unwrap();
        assert_eq!((location.line, location.column), (line, column), "{text}: {error}");
        assert!(error.to_string().contains(message), "{text}: {error}");
    }
}

#[test]
fn deep_and_wide_files_are_rejected_or_read_quickly() {
    let deep = |tag: &str, n: usize| {
        format!(
            "<system><cpu>{}{}</cpu></system>",
            format!("<{tag} busid=\"1\">").repeat(n),
            format!("</{tag}>").repeat(n)
        )
    };
    assert!(parse(&deep("nic", 100_000), "deep").is_ok());
    let nested: String = (0..1000).map(|i| format!("<pci busid=\"{i}\" class=\"0x060400\">")).collect();
    let error = parse(&format!("<system><cpu>{nested}{}</cpu></system>", "</pci>".repeat(1000)), "deep").unwrap_err();
    assert!(error.to_string().contains("nested more than 64 deep"), "{error}");
    let sockets = format!("<system>{}</system>", "<cpu/>".repeat(10_000));
    assert!(parse(&sockets, "wide").unwrap_err().to_string().contains("more than 256 CPUs"));
}
