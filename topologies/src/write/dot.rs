//! Graphviz writer: hosts as boxes, one edge per link labelled with its bandwidth.

use crate::fabric::{Fabric, Link, LinkKind, Node, NodeKind};

/// Writes the fabric in the DOT language, for `dot`, `neato` and other Graphviz tools.
#[must_use]
pub fn write(fabric: &Fabric) -> String {
    let mut out = format!("graph {} {{\n  node [fontname=\"sans-serif\"];\n", quoted(fabric.name()));
    let settings: Vec<String> =
        crate::keys::routing_settings(fabric.routing()).iter().map(|(key, value)| format!("{key} {value}")).collect();
    if !settings.is_empty() {
        out.push_str(&format!("  label={};\n", quoted(&settings.join(", "))));
    }
    let idle: rustc_hash::FxHashSet<&str> = fabric.idle_gpus().iter().map(|&gpu| &*fabric.node(gpu).id).collect();
    let mut nodes_by_host: Vec<Vec<&Node>> = vec![Vec::new(); fabric.hosts().len()];
    for (_, node) in fabric.nodes() {
        if let Some(host) = nodes_by_host.get_mut(node.host.0 as usize) {
            host.push(node);
        }
    }
    for ((number, nodes), name) in nodes_by_host.iter().enumerate().zip(fabric.hosts()) {
        out.push_str(&format!("  subgraph cluster_{number} {{\n    label={};\n", quoted(name)));
        for node in nodes {
            let style = if idle.contains(&*node.id) { ", style=dashed, tooltip=\"not in use\"" } else { "" };
            out.push_str(&format!("    {} [shape={}{style}];\n", quoted(&node.id), shape(node.kind)));
        }
        out.push_str("  }\n");
    }
    for (_, [link, back]) in fabric.link_pairs() {
        let (a, b) = (&fabric.node(link.from).id, &fabric.node(link.to).id);
        let has_one_direction = link.failed != back.failed;
        let rate = |direction: &Link| match direction.bandwidth {
            _ if has_one_direction && direction.failed => "out of service".to_owned(),
            Some(rate) => rate.to_string(),
            None => "unlimited".to_owned(),
        };
        let mut label = rate(link);
        if back.bandwidth != link.bandwidth || has_one_direction {
            label = format!("{label} / {}", rate(back));
        }
        if link.lanes > 1 {
            label = format!("{label} ×{}", link.lanes);
        }
        let style = if link.failed || back.failed { "dotted" } else { style(link.kind) };
        let (a, b, label) = (quoted(a), quoted(b), quoted(&label));
        out.push_str(&format!("  {a} -- {b} [label={label}, style={style}, tooltip=\"{}\"];\n", link.kind.name()));
    }
    out.push_str("}\n");
    out
}

fn shape(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Gpu | NodeKind::Mig | NodeKind::Accelerator => "box",
        NodeKind::Cpu => "box3d",
        NodeKind::Nic => "cds",
        NodeKind::Nvswitch | NodeKind::PcieSwitch | NodeKind::Switch => "ellipse",
    }
}

fn style(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Nvlink | LinkKind::C2c => "bold",
        LinkKind::Pcie | LinkKind::Upi => "solid",
        LinkKind::Infiniband | LinkKind::Ethernet => "dashed",
    }
}

/// Formats a quoted string of DOT. Backslashes are escaped too, because they would start an escape sequence in labels.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_output_has_every_device_and_link_once() {
        let text = "name = \"a \\\"b\\\"\"\n[[node]]\nid = \"g[0-1]\"\nkind = \"gpu\"\n[[node]]\nid = \"s\"\nkind = \"switch\"\n[[link]]\na = \"g[0-1]\"\n\
                    b = \"s\"\nkind = \"ethernet\"\nlanes = 2\nbandwidth = \"50 GB/s\"\nreverse_bandwidth = \"unlimited\"\n";
        let fabric = crate::read::spec::parse(text, "t").and_then(|spec| spec.build_nodes()).unwrap();
        let expected = "graph \"a \\\"b\\\"\" {
  node [fontname=\"sans-serif\"];
  subgraph cluster_0 {
    label=\"host0\";
    \"g0\" [shape=box];
    \"g1\" [shape=box];
  }
  subgraph cluster_1 {
    label=\"network\";
    \"s\" [shape=ellipse];
  }
  \"g0\" -- \"s\" [label=\"50 GB/s / unlimited ×2\", style=dashed, tooltip=\"ethernet\"];
  \"g1\" -- \"s\" [label=\"50 GB/s / unlimited ×2\", style=dashed, tooltip=\"ethernet\"];
}
";
        assert_eq!(write(&fabric), expected);
    }
}
