//! Tests of specs: contents, and errors with their source locations.

use super::*;
use crate::error::Error;
use crate::network_spec::NetworkKind;
use crate::{Bytes, Fabric, LinkId};

fn build(text: &str) -> Result<Fabric> {
    parse(text, "toy.toml").and_then(|spec| spec.build_nodes())
}

/// The example of the module documentation, without the cluster.
const TOY: &str = r#"
name = "toy"
[[node]]
id = "gpu0"
kind = "gpu"
host = "a"
[[node]]
id = "sw"
kind = "nvswitch"
[[link]]
a = "gpu0"
b = "sw"
kind = "nvlink"
bandwidth = "450 GB/s"
latency = "350 ns"
"#;

#[test]
fn documentation_example_parses() {
    let fabric = build(TOY).unwrap();
    assert_eq!((fabric.name(), fabric.node_count(), fabric.link_count()), ("toy", 2, 2));
    let link = fabric.link(LinkId(0));
    assert_eq!((link.bandwidth, link.latency, link.lanes), (Some(Bandwidth(450_000_000_000)), Picos(350_000), 1));
    assert_eq!(fabric.hosts().iter().map(|host| &**host).collect::<Vec<_>>(), ["a", DEFAULT_HOST]);
}

#[test]
fn ranges_devices_and_ranks() {
    let fabric = build(
        r#"
source = "a data sheet"
ranks = ["gpu[2-3]", "gpu1", "gpu0"]
[device.h200]
model = "H200 SXM"
compute_capability = 90
memory = "141 GB"
bf16_tflops = 989.5
[[node]]
id = "gpu[0-3]"
kind = "gpu"
device = "h200"
host = "n[0-3]"
sm_count = 132
attributes = { b = "2", a = "1" }
[[node]]
id = "nic[0-3]"
kind = "nic"
speed = "400 Gb/s"
[[node]]
id = "leaf"
kind = "switch"
[[link]]
a = "gpu[0-3]"
b = "nic[0-3]"
kind = "pcie"
lanes = 16
bandwidth = "64 GB/s"
reverse_bandwidth = "unlimited"
[[link]]
a = "leaf"
b = "nic[0-3]"
kind = "infiniband"
reverse_bandwidth = "50 GB/s"
"#,
    )
    .unwrap();
    assert_eq!(fabric.name(), "toy");
    assert_eq!(fabric.sources(), ["a data sheet"]);
    let order: Vec<&str> = fabric.gpus().iter().map(|&gpu| &*fabric.node(gpu).id).collect();
    assert_eq!(order, ["gpu2", "gpu3", "gpu1", "gpu0"]);
    let gpu3 = fabric.node(fabric.find("gpu3").unwrap());
    assert_eq!(&*fabric.hosts()[gpu3.host.0 as usize], "n3");
    assert_eq!(gpu3.attributes[0], ("a".into(), "1".into()));
    let Figures::Gpu(figures) = &gpu3.figures else { panic!("no figures") };
    assert_eq!((figures.memory, figures.sm_count), (Some(Bytes(141_000_000_000)), Some(132)));
    assert_eq!(figures.bf16_tflops, Some(989.5));

    assert_eq!(fabric.link_count(), 16);
    let (first, fifth) = (fabric.link(LinkId(6)), fabric.link(LinkId(8)));
    assert_eq!(fabric.ends(LinkId(6)), (fabric.find("gpu3").unwrap(), fabric.find("nic3").unwrap()));
    assert_eq!((first.bandwidth, first.lanes), (Some(Bandwidth(64_000_000_000)), 16));
    assert_eq!(fabric.link(LinkId(7)).bandwidth, None);
    assert_eq!(fabric.ends(LinkId(8)), (fabric.find("leaf").unwrap(), fabric.find("nic0").unwrap()));
    assert_eq!((fifth.bandwidth, fabric.link(LinkId(9)).bandwidth), (None, Some(Bandwidth(50_000_000_000))));
    let leaf = fabric.node(fabric.find("leaf").unwrap());
    assert_eq!(&*fabric.hosts()[leaf.host.0 as usize], NETWORK_HOST);
}

#[test]
fn clusters_parse_with_source_locations() {
    let text = "[cluster]\nnode = \"hgx-h200\"\nnodes = 16\nnetwork = { kind = \"rail\", nics_per_node = 8, \
                nic = \"400 Gb/s\", oversubscription = 1.0, dimensions = [2, 3] }\n";
    let cluster = parse(text, "c.toml").unwrap().cluster.unwrap();
    assert_eq!((cluster.node.as_str(), cluster.nodes), ("hgx-h200", 16));
    assert_eq!((cluster.node_location.line, cluster.node_location.column), (2, 8));
    let network = cluster.network.unwrap();
    assert_eq!((network.kind, network.nics_per_node), (NetworkKind::Rail, Some(8)));
    assert_eq!((network.nic, network.oversubscription), (Some(Bandwidth(50_000_000_000)), Some(1.0)));
    assert_eq!(network.dimensions, Some(vec![2, 3]));
    let again = format!("[cluster]\nnode = \"x\"\nnodes = 1\nnetwork = {}\n", network.to_toml());
    assert_eq!(parse(&again, "c").unwrap().cluster.unwrap().network, Some(network));
}

#[test]
fn errors_have_a_message_and_a_location() {
    // Each case: text appended to the toy spec, line and column of the error relative to it, and the message.
    let node = "[[node]]\nid = \"gpu1\"\nkind = \"gpu\"\n";
    let cases: &[(&str, u32, u32, &str)] = &[
        ("[[node]]\nid = \"gpu0\"\nkind = \"gpu\"\n", 2, 6, "the id `gpu0` is taken"),
        ("[[node]]\nid = \"x\"\nkind = \"gpuu\"\n", 3, 8, "kind: `gpuu` is not one of `gpu`, `mig`"),
        ("[[node]]\nkind = \"gpu\"\n", 1, 1, "[[node]] needs `id`"),
        ("[[node]]\nid = 3\nkind = \"gpu\"\n", 2, 6, "id: `3` is not a text"),
        ("[[node]]\nid = \"\"\nkind = \"gpu\"\n", 2, 6, "must not be empty"),
        ("[[node]]\nid = \"x\"\nkind = \"gpu\"\nspeed = \"1 GB/s\"\n", 4, 1, "unknown key `speed` in [[node]]"),
        ("[[node]]\nid = \"x\"\nkind = \"gpu\"\ndevice = \"h\"\n", 4, 10, "there is no [device.h]"),
        ("[[node]]\nid = \"x\"\nkind = \"gpu\"\nmemory = \"-1\"\n", 4, 10, "memory: `-1` is not a size"),
        ("[[node]]\nid = \"x[0-2]\"\nkind = \"gpu\"\nhost = \"n[0-1]\"\n", 4, 8, "2 hosts for 3 ids"),
        ("[[link]]\na = \"gpu0\"\nb = \"gpu1\"\nkind = \"pcie\"\n", 3, 5, "there is no node `gpu1`"),
        ("[[link]]\na = \"gpu0\"\nb = \"gpu0\"\nkind = \"pcie\"\n", 3, 5, "joins `gpu0` to itself"),
        ("[[link]]\na = \"gpu0\"\nb = \"sw\"\nkind = \"usb\"\n", 4, 8, "one of `nvlink`, `c2c`, `pcie`"),
        (
            "[[link]]\na = \"gpu0\"\nb = \"sw\"\nkind = \"upi\"\nbandwidth = \"0 GB/s\"\n",
            5,
            13,
            "`0 GB/s` is not a bandwidth",
        ),
        ("[[link]]\na = \"gpu0\"\nb = \"sw\"\nkind = \"upi\"\nbandwidth = \"-5 GB/s\"\n", 5, 13, "is not a bandwidth"),
        ("[[link]]\na = \"gpu0\"\nb = \"sw\"\nkind = \"upi\"\nbandwidth = 450\n", 5, 13, "`450` is not a bandwidth"),
        ("[[link]]\na = \"gpu0\"\nb = \"sw\"\nkind = \"upi\"\nbandwith = \"4 GB/s\"\n", 5, 1, "unknown key `bandwith`"),
        ("[[link]]\na = \"gpu0\"\nb = \"sw\"\nkind = \"upi\"\nlatency = \"-5 ns\"\n", 5, 11, "is not a time"),
        ("[[link]]\na = \"gpu0\"\nb = \"sw\"\nkind = \"upi\"\nlanes = 0\n", 5, 9, "lanes: `0`"),
        ("[[link]]\na = \"gpu[0-1]\"\nb = \"sw[0-2]\"\nkind = \"upi\"\n", 3, 5, "2 ids and `sw[0-2]` to 3"),
        ("[cluster]\nnode = \"x\"\nnodes = 0\n", 3, 9, "1 host or more"),
        ("[cluster]\nnode = \"x\"\nnodes = 2\nnetwork = { kind = \"star\" }\n", 4, 20, "one of `rail`"),
        ("[cluster]\nnode = \"x\"\nnodes = 2\nnetwork = { kind = \"rail\", nic = \"1\" }\n", 4, 34, "nic: `1`"),
        ("[clutser]\nnode = \"x\"\n", 1, 2, "unknown key `clutser`"),
        ("[[node]\n", 1, 8, ""),
        ("x = \n", 1, 5, ""),
        ("node = 3\n", 1, 1, ""),
    ];
    let before = TOY.lines().count() as u32;
    for &(text, line, column, message) in cases {
        let error = build(&format!("{TOY}{text}")).unwrap_err();
        let location = error.location().unwrap_or_else(|| panic!("{text}: {error} has no place"));
        assert_eq!((location.line - before, location.column), (line, column), "{text}: {error}");
        assert!(error.to_string().contains(message), "{text}: {error}");
    }
    let ranks = |ranks: &str| build(&format!("ranks = {ranks}\n{TOY}{node}")).unwrap_err().to_string();
    assert!(ranks(r#"["gpu0"]"#).contains("ranks omits `gpu1`"));
    assert!(ranks(r#"["gpu0", "gpu0"]"#).contains("is two ranks"));
    assert!(ranks(r#"["sw", "gpu0"]"#).contains("cannot be a rank"));
    assert!(build("name = \"none\"\n").unwrap_err().to_string().contains("at least one [[node]]"));
}

#[test]
fn unknown_names_suggest_similar_ones() {
    let help = |text: &str| build(&format!("{TOY}{text}")).unwrap_err().help().map(str::to_owned);
    let link = help("[[link]]\na = \"gpu\"\nb = \"sw\"\nkind = \"pcie\"\n");
    assert_eq!(link.as_deref(), Some("did you mean gpu0?"));
    let key = help("[[link]]\na = \"gpu0\"\nb = \"sw\"\nkind = \"upi\"\nbandwith = \"4 GB/s\"\n");
    assert_eq!(key.as_deref(), Some("did you mean `bandwidth`?"));
    let twice = help("[[node]]\nid = \"sw\"\nkind = \"gpu\"\n");
    assert_eq!(twice.as_deref(), Some("it is first given in line 8"));
}

#[test]
fn huge_ranges_are_rejected_quickly() {
    let error = build("[[node]]\nid = \"g[0-99999999]\"\nkind = \"gpu\"\n").unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let spec = "[[node]]\nid = \"g[0-262143]\"\nkind = \"gpu\"\n".repeat(2);
    assert!(build(&spec).unwrap_err().to_string().contains("more than"));
}
