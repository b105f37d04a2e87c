//! Writer of the JSON of `fabric show`; [`read::json`](crate::read::json) reads it into an equal fabric.
//!
//! Each direction of a link is a separate entry, next to that of the other direction. `_gb_per_s` is 10⁹ bytes per
//! second, and `null` means unlimited. Each device, link and path is on a separate line.

use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::fabric::{Fabric, Figures, Node, NodeId};
use crate::{Bandwidth, Picos};

/// The path between two devices, as found by a router.
#[derive(Clone, Debug)]
pub struct PathEntry {
    /// Device at which the path starts.
    pub src: NodeId,
    /// Device at which the path ends.
    pub dst: NodeId,
    /// Path class in NCCL's notation: `NVL`, `PIX`, `SYS`, …
    pub class: &'static str,
    /// Bandwidth of the path; `None` is unlimited.
    pub bandwidth: Option<Bandwidth>,
    /// Sum of the latencies of the links on the path.
    pub latency: Picos,
}

#[derive(Serialize)]
struct NodeJson<'a> {
    id: &'a str,
    kind: &'static str,
    host: &'a str,
    #[serde(skip_serializing_if = "Value::is_null")]
    figures: Value,
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    attributes: serde_json::Map<String, Value>,
}

#[derive(Serialize)]
struct LinkJson<'a> {
    id: &'a str,
    a: &'a str,
    b: &'a str,
    kind: &'static str,
    bandwidth_gb_per_s: Option<f64>,
    /// Bandwidth in GB/s before the link was slowed; `None` if it was not slowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    built_gb_per_s: Option<f64>,
    latency_ns: f64,
    lanes: u16,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    failed: bool,
}

#[derive(Serialize)]
struct JsonPath<'a> {
    src: &'a str,
    dst: &'a str,
    class: &'static str,
    bandwidth_gb_per_s: Option<f64>,
    latency_ns: f64,
}

/// Writes the fabric and its paths as JSON.
///
/// # Errors
/// [`Error::Request`] if JSON cannot represent a number of the fabric, which no reader accepts.
pub fn write(fabric: &Fabric, paths: &[PathEntry]) -> Result<String> {
    document(fabric, paths).map_err(|error| Error::Request(format!("this fabric has no JSON: {error}")))
}

fn document(fabric: &Fabric, paths: &[PathEntry]) -> Result<String, serde_json::Error> {
    let id = |node: NodeId| &*fabric.node(node).id;
    let names = fabric.link_names();
    let nodes = fabric.nodes().map(|(_, node)| json_node(fabric, node)).collect::<Result<Vec<_>, _>>()?;
    let links: Vec<_> = fabric
        .links()
        .zip(&names)
        .map(|((_, link), name)| LinkJson {
            id: name,
            a: id(link.from),
            b: id(link.to),
            kind: link.kind.name(),
            bandwidth_gb_per_s: link.bandwidth.map(Bandwidth::gb_per_s),
            built_gb_per_s: link
                .nominal_bandwidth
                .filter(|_| link.nominal_bandwidth != link.bandwidth)
                .map(Bandwidth::gb_per_s),
            latency_ns: link.latency.ns(),
            lanes: link.lanes,
            failed: link.failed,
        })
        .collect();
    let gpus: Vec<&str> = fabric.gpus().iter().map(|&gpu| id(gpu)).collect();
    let candidates = match fabric.gpu_candidates() {
        [] => String::new(),
        candidates => format!("  \"gpu_candidates\": {},\n", serde_json::to_string(candidates)?),
    };
    let paths: Vec<_> = paths
        .iter()
        .map(|path| JsonPath {
            src: id(path.src),
            dst: id(path.dst),
            class: path.class,
            bandwidth_gb_per_s: path.bandwidth.map(Bandwidth::gb_per_s),
            latency_ns: path.latency.ns(),
        })
        .collect();
    let mut settings = String::new();
    if !fabric.host_grid().is_empty() {
        settings.push_str(&format!("  \"host_grid\": {},\n", serde_json::to_string(fabric.host_grid())?));
    }
    let routing: std::collections::BTreeMap<_, _> =
        crate::keys::routing_settings(fabric.routing()).into_iter().collect();
    if !routing.is_empty() {
        settings.push_str(&format!("  \"routing\": {},\n", serde_json::to_string(&routing)?));
    }
    Ok(format!(
        "{{\n  \"name\": {},\n  \"sources\": {},\n  \"warnings\": {},\n{settings}  \"nodes\": {},\n  \"links\": {},\n  \"gpus\": {},\n{}  \
         \"paths\": {}\n}}\n",
        serde_json::to_string(fabric.name())?,
        lines(fabric.sources())?,
        lines(fabric.warnings())?,
        lines(&nodes)?,
        lines(&links)?,
        serde_json::to_string(&gpus)?,
        candidates,
        lines(&paths)?,
    ))
}

/// Formats an array with one item per line.
fn lines<T: Serialize>(items: &[T]) -> Result<String, serde_json::Error> {
    if items.is_empty() {
        return Ok("[]".to_owned());
    }
    let items = items.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    Ok(format!("[\n    {}\n  ]", items.join(",\n    ")))
}

fn json_node<'a>(fabric: &'a Fabric, node: &'a Node) -> Result<NodeJson<'a>, serde_json::Error> {
    let mut figures = match &node.figures {
        Figures::None => Value::Null,
        Figures::Gpu(figures) => serde_json::to_value(&**figures)?,
        Figures::Cpu(figures) => serde_json::to_value(&**figures)?,
        Figures::Nic(figures) => serde_json::to_value(&**figures)?,
        Figures::Switch(figures) => serde_json::to_value(&**figures)?,
    };
    if let Some(known) = figures.as_object_mut() {
        known.retain(|_, value| !value.is_null());
    }
    let text = |text: &str| Value::String(text.to_owned());
    Ok(NodeJson {
        id: &node.id,
        kind: node.kind.name(),
        host: fabric.hosts().get(node.host.0 as usize).map_or("", |host| host),
        figures,
        attributes: node.attributes.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::{comparable_properties, fabric};
    use crate::read;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn written_fabrics_read_back_equal(fabric in fabric()) {
            let text = write(&fabric, &[]).unwrap();
            let again = read::json::parse(&text, "again");
            let again = again.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
            prop_assert_eq!(comparable_properties(&again), comparable_properties(&fabric), "{}", text);
        }
    }

    /// Idle GPUs are still idle after reading the file.
    #[test]
    fn idle_gpus_read_back_as_idle() {
        let request = crate::FabricRequest { gpus: Some(4), ..crate::FabricRequest::new("hgx-h100") };
        let fabric = crate::load(&request).unwrap();
        let again = read::json::parse(&write(&fabric, &[]).unwrap(), "again").unwrap();
        assert_eq!((again.gpus().len(), comparable_properties(&again)), (4, comparable_properties(&fabric)));
    }

    #[test]
    fn json_keys_match_the_documented_format() {
        let fabric = read::spec::parse(
            "name = \"t\"\n[[node]]\nid = \"g[0-1]\"\nkind = \"gpu\"\nhost = \"h\"\n[[link]]\na = \"g0\"\nb = \"g1\"\nkind = \"pcie\"\n\
             bandwidth = \"400 Gb/s\"\nlatency = \"1.5 us\"\n",
            "t",
        );
        let fabric = fabric.and_then(|spec| spec.build_nodes()).unwrap();
        let path =
            PathEntry { src: NodeId(0), dst: NodeId(1), class: "PIX", bandwidth: None, latency: Picos(1_500_000) };
        let json: Value = serde_json::from_str(&write(&fabric, &[path]).unwrap()).unwrap();
        let expected = serde_json::json!({
            "name": "t", "sources": [], "warnings": [],
            "nodes": [{"id": "g0", "kind": "gpu", "host": "h"}, {"id": "g1", "kind": "gpu", "host": "h"}],
            "links": [
                {"id": "g0->g1", "a": "g0", "b": "g1", "kind": "pcie", "bandwidth_gb_per_s": 50.0, "latency_ns": 1500.0, "lanes": 1},
                {"id": "g1->g0", "a": "g1", "b": "g0", "kind": "pcie", "bandwidth_gb_per_s": 50.0, "latency_ns": 1500.0, "lanes": 1},
            ],
            "gpus": ["g0", "g1"],
            "paths": [{"src": "g0", "dst": "g1", "class": "PIX", "bandwidth_gb_per_s": null, "latency_ns": 1500.0}],
        });
        assert_eq!(json, expected);
    }
}
