//! Tests of pictures of known and random fabrics: they are well-formed, without overlaps, and complete.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::{Bandwidth, Fabric, FabricBuilder, LinkKind, LinkSpec, NodeKind, Picos};
use proptest::prelude::*;
use roxmltree::{Document, Node};

use super::{Options, svg};

#[path = "../../examples/gallery/fabrics.rs"]
mod fabrics;

fn draw(fabric: &Fabric) -> String {
    svg(fabric, &Options::default())
}

fn attribute(node: Node<'_, '_>, name: &str) -> f64 {
    let text = node.attribute(name).unwrap_or_else(|| panic!("{name} is missing"));
    text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`"))
}

fn nodes_with_class<'a>(document: &'a Document<'_>, class: &str) -> Vec<Node<'a, 'a>> {
    let has = |node: &Node<'_, '_>| {
        node.attribute("class").is_some_and(|classes| classes.split(' ').any(|name| name == class))
    };
    document.descendants().filter(has).collect()
}

fn texts(text: &str) -> Vec<String> {
    let document = Document::parse(text).unwrap();
    let nodes = document.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "text")));
    nodes.filter_map(|node| node.text()).map(str::to_owned).collect()
}

/// Returns the left, top, right and bottom edge of an SVG rectangle.
fn corners(rectangle: Node<'_, '_>) -> [f64; 4] {
    let [x, y, w, h] = ["x", "y", "width", "height"].map(|name| attribute(rectangle, name));
    [x, y, x + w, y + h]
}

/// Asserts that devices do not overlap and lie inside the picture and their boxes, and that all path coordinates are
/// numbers.
fn check(text: &str) {
    let document = Document::parse(text).unwrap();
    let sheet = document.root_element();
    let (width, height) = (attribute(sheet, "width"), attribute(sheet, "height"));
    let devices: Vec<[f64; 4]> = nodes_with_class(&document, "node").into_iter().map(corners).collect();
    for (number, a) in devices.iter().enumerate() {
        assert!(a[0] >= 0.0 && a[1] >= 0.0 && a[2] <= width && a[3] <= height, "{a:?} leaves {width} x {height}");
        for b in &devices[..number] {
            let is_disjoint = a[0] >= b[2] || b[0] >= a[2] || a[1] >= b[3] || b[1] >= a[3];
            assert!(is_disjoint, "{a:?} lies on {b:?}");
        }
    }
    for frame in nodes_with_class(&document, "host").into_iter().map(corners) {
        for device in &devices {
            let is_outside = device[0] >= frame[2] || frame[0] >= device[2];
            let above = device[3] <= frame[1];
            let below = device[1] >= frame[3];
            let inside = (0..2).all(|i| device[i] >= frame[i]) && (2..4).all(|i| device[i] <= frame[i]);
            assert!(is_outside || above || below || inside, "{device:?} sticks out of {frame:?}");
        }
    }
    for path in nodes_with_class(&document, "link") {
        let shape = path.attribute("d").unwrap();
        for number in shape.split(|c: char| c.is_whitespace() || c.is_ascii_alphabetic()).filter(|n| !n.is_empty()) {
            let value: f64 = number.parse().unwrap_or_else(|_| panic!("`{number}` in `{shape}`"));
            assert!(value.is_finite());
        }
    }
    for node in document.descendants().filter(|node| node.tag_name().name() == "text") {
        let (x, y) = (attribute(node, "x"), attribute(node, "y"));
        assert!((0.0..=width).contains(&x) && (0.0..=height).contains(&y), "a text at {x},{y} of {width} x {height}");
    }
}

#[test]
fn a_host_shows_all_its_devices_and_links() {
    let fabric = fabrics::switched();
    let text = draw(&fabric);
    check(&text);
    let document = Document::parse(&text).unwrap();
    assert_eq!(nodes_with_class(&document, "node").len(), fabric.node_count());
    // The legend has a sample for each of three link classes.
    assert_eq!(nodes_with_class(&document, "link").len(), fabric.link_count() / 2 + 3);
    insta::assert_snapshot!(texts(&text).join("\n"), @r"
        hgx-h200
        8 GPUs · 4 NVSwitches · 4 PCIe switches · 2 CPUs · 8 NICs
        host0 · 8 × H200 SXM
        gpu0
        gpu1
        gpu2
        gpu3
        gpu4
        gpu5
        gpu6
        gpu7
        nvswitch0
        nvswitch1
        nvswitch2
        nvswitch3
        pcie0
        pcie1
        pcie2
        pcie3
        cpu0
        cpu1
        nic0
        nic1
        nic2
        nic3
        nic4
        nic5
        nic6
        nic7
        32 × NVLink 112.5 GB/s · 4 lanes
        20 × PCIe 63 GB/s · 16 lanes
        1 × UPI 48 GB/s · 3 lanes
        ");
}

#[test]
fn links_with_one_failed_direction_have_a_legend_entry() {
    let fabric = fabrics::switched();
    let nvlinks = fabric.links().filter(|(_, link)| link.kind == LinkKind::Nvlink).map(|(id, _)| id);
    for direction in nvlinks.take(2) {
        let texts = texts(&draw(&fabric.with_failed_links(&[direction])));
        let expected = "1 × NVLink 112.5 GB/s · 4 lanes · one direction failed";
        assert!(texts.iter().any(|text| text == expected), "{texts:?}");
    }
}

#[test]
fn every_shape_of_fabric_is_readable() {
    for fabric in [fabrics::cube_mesh(), fabrics::rails(), fabrics::rack(), fabrics::pcie_tree()] {
        check(&draw(&fabric));
    }
}

#[test]
fn large_clusters_state_their_hidden_hosts() {
    let text = draw(&fabrics::rails());
    let texts = texts(&text);
    assert!(texts.contains(&"+ 14 hosts".to_owned()), "{texts:?}");
    assert!(texts.contains(&"128 × InfiniBand 50 GB/s".to_owned()), "{texts:?}");
    let document = Document::parse(&text).unwrap();
    assert_eq!(nodes_with_class(&document, "switch").len(), 12);
    let complete = svg(&fabrics::rails(), &Options { hosts: Some(16), ..Options::default() });
    check(&complete);
    assert!(!complete.contains("hosts</text>"));
}

#[test]
fn parallel_links_are_merged_and_summed() {
    let mut builder = FabricBuilder::new("pair");
    let host = builder.host("h");
    let a = builder.node("a", NodeKind::Gpu, host, Figures::None).unwrap();
    let b = builder.node("b", NodeKind::Gpu, host, Figures::None).unwrap();
    let link = LinkSpec::symmetric(LinkKind::Nvlink, Bandwidth::from_gb_per_s(25.0), Picos(700_000));
    let (first, second) = (builder.link(a, b, &link), builder.link(b, a, &link));
    let mut load = vec![0.0; 4];
    load[first.0 as usize] = 0.25;
    load[second.reverse().0 as usize] = 0.5;
    let text = svg(&builder.finish(), &Options { utilization: Some(&load), ..Options::default() });
    assert!(text.contains("a – b: NVLink, 2 links, 50 GB/s each way, 700 ns, 50 % busy"), "{text}");
    let document = Document::parse(&text).unwrap();
    let drawn = nodes_with_class(&document, "link").into_iter().find(Node::has_children).unwrap();
    assert_eq!(drawn.attribute("style"), Some("stroke:#f0a03c"));
}

#[test]
fn hostile_names_stay_text() {
    let mut builder = FabricBuilder::new("<b> & \"quotes\" \u{1b}[31m");
    let host = builder.host("</svg><script>alert(1)</script>");
    builder.node("]]>&\u{0}", NodeKind::Gpu, host, Figures::None).unwrap();
    let text = draw(&builder.finish());
    check(&text);
    assert!(!text.contains("<script"));
}

#[test]
fn hosts_with_many_devices_are_split_into_lines() {
    let mut builder = FabricBuilder::new("heap");
    let host = builder.host("h");
    for k in 0..200 {
        builder.node(&format!("gpu{k}"), NodeKind::Gpu, host, Figures::None).unwrap();
    }
    let text = draw(&builder.finish());
    check(&text);
    assert!(texts(&text).contains(&"+ 136 more".to_owned()));
}

const KINDS: [NodeKind; 8] = [
    NodeKind::Gpu,
    NodeKind::Mig,
    NodeKind::Accelerator,
    NodeKind::Nvswitch,
    NodeKind::PcieSwitch,
    NodeKind::Cpu,
    NodeKind::Nic,
    NodeKind::Switch,
];
const LINKS: [LinkKind; 6] =
    [LinkKind::Nvlink, LinkKind::C2c, LinkKind::Pcie, LinkKind::Upi, LinkKind::Infiniband, LinkKind::Ethernet];

fn any_fabric() -> impl Strategy<Value = Fabric> {
    let nodes = prop::collection::vec((0..KINDS.len(), 0..4_u32), 0..50);
    let links = prop::collection::vec((any::<u32>(), any::<u32>(), 0..LINKS.len(), 0..1_u64 << 40, 0..20_u16), 0..80);
    (nodes, links).prop_map(|(nodes, links)| {
        let mut builder = FabricBuilder::new("any");
        let add = |(number, (kind, host)): (usize, (usize, u32))| {
            let host = builder.host(&format!("host{host}"));
            builder.node(&format!("n{number}"), KINDS[kind], host, Figures::None).unwrap()
        };
        let ids: Vec<_> = nodes.into_iter().enumerate().map(add).collect();
        for (a, b, kind, bandwidth, lanes) in links {
            if ids.len() < 2 {
                break;
            }
            let (a, b) = (ids[a as usize % ids.len()], ids[b as usize % ids.len()]);
            if a != b {
                builder.link(a, b, &LinkSpec::symmetric(LINKS[kind], Bandwidth(bandwidth), Picos(0)).lanes(lanes));
            }
        }
        builder.finish()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn any_fabric_renders_a_valid_picture(fabric in any_fabric(), load in prop::collection::vec(any::<f64>(), 0..40)) {
        let options = Options { utilization: Some(&load), hosts: None };
        let text = svg(&fabric, &options);
        check(&text);
        prop_assert_eq!(&text, &svg(&fabric, &options));
        check(&svg(&fabric, &Options { hosts: Some(1), ..Options::default() }));
    }
}
