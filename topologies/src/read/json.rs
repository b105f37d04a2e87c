//! Reader of the JSON of `fabric show`, for scripts that modify a fabric and for saved fabrics.
//!
//! Names, nodes, links and the order of `gpus` are read. `paths` and unknown keys are ignored, because paths follow
//! from the nodes and links.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{Origin, Result};
use crate::fabric::{Fabric, FabricBuilder, Figures, LinkKind, LinkSpec, Node, NodeId, NodeKind};
use crate::gpus::{self, GpuModel};
use crate::read::spec::DEFAULT_HOST;
use crate::route::Routing;
use crate::{Bandwidth, LineIndex, Picos};

#[derive(Deserialize)]
struct Document<'a> {
    name: Option<String>,
    #[serde(default)]
    sources: Vec<String>,
    #[serde(borrow)]
    nodes: Vec<&'a RawValue>,
    #[serde(borrow)]
    links: Vec<&'a RawValue>,
    gpus: Option<Vec<String>>,
    #[serde(default)]
    host_grid: Vec<u32>,
    #[serde(default)]
    routing: BTreeMap<String, String>,
    #[serde(default)]
    gpu_candidates: Vec<String>,
}

#[derive(Deserialize)]
struct JsonNode {
    id: String,
    kind: NodeKind,
    host: Option<String>,
    figures: Option<Value>,
    #[serde(default)]
    attributes: BTreeMap<Box<str>, Box<str>>,
}

#[derive(Clone, Deserialize)]
struct JsonLink {
    a: String,
    b: String,
    kind: LinkKind,
    #[serde(alias = "bandwidth_gbps")]
    bandwidth_gb_per_s: Option<f64>,
    /// Bandwidth in GB/s before the link was slowed; `None` if it was not slowed.
    #[serde(alias = "built_gbps")]
    built_gb_per_s: Option<f64>,
    #[serde(default)]
    latency_ns: f64,
    #[serde(default = "default_lanes")]
    lanes: u16,
    #[serde(default)]
    failed: bool,
}

fn default_lanes() -> u16 {
    1
}

/// A checked direction of a link whose other direction has not been read yet.
struct Direction {
    bandwidth: Option<Bandwidth>,
    built: Option<Bandwidth>,
    latency: Picos,
    lanes: u16,
    failed: bool,
    bytes: Range<usize>,
    /// Index of its entry in `links`.
    order: usize,
}

/// A link with both directions.
struct LinkPair {
    order: usize,
    ends: (NodeId, NodeId),
    spec: LinkSpec,
    /// Failure of each direction: from the first of `ends` to the second, then back.
    failed: [bool; 2],
    /// Bandwidth of each direction with any slowdown, in the order of `failed`; `None` is unlimited.
    slowed: [Option<Bandwidth>; 2],
}

/// Reads a fabric from the JSON of `fabric show`.
///
/// # Errors
/// [`Error::Syntax`](crate::Error::Syntax) if the text is not JSON, [`Error::Invalid`](crate::Error::Invalid) for
/// missing keys, duplicate ids, links to missing nodes or with one direction only; each with line and column.
pub fn parse(text: &str, source: &str) -> Result<Fabric> {
    parse_with_gpu(text, source, None)
}

/// Variant of [`parse`] with a GPU model for texts that do not state it.
///
/// # Errors
/// The errors of [`parse`], and [`Error::Request`](crate::Error::Request) if the text states another model.
pub fn parse_with_gpu(text: &str, source: &str, gpu: Option<&'static GpuModel>) -> Result<Fabric> {
    let lines = LineIndex::new(text);
    let origin = Origin::new(source, text).with_line_index(&lines);
    let document: Document<'_> =
        serde_json::from_str(text).map_err(|error| match json_error(origin, 0..text.len(), &error) {
            crate::Error::Invalid { location: place, message, .. } => {
                let help = Some("a fabric in JSON is what `fabric show --format json` writes".to_owned());
                crate::Error::Invalid { location: place, message, help }
            }
            other => other,
        })?;
    let mut builder = FabricBuilder::new(&document.name.unwrap_or_else(|| origin.stem()));
    for source in document.sources {
        builder.add_source(source);
    }
    for raw in &document.nodes {
        add_node(origin, raw, &mut builder)?;
    }
    add_links(origin, &document.links, &mut builder)?;
    builder.set_host_grid(document.host_grid);
    let mut routing = Routing::default();
    for (key, value) in &document.routing {
        crate::keys::set_routing(&mut routing, key, value).map_err(|message| {
            let at = origin.text.find("\"routing\"").unwrap_or_default();
            origin.invalid(at..at + 9, format!("routing: {message}"))
        })?;
    }
    builder.set_routing(routing);
    if let Some(gpus) = document.gpus {
        let order = rank_order(origin, &gpus, &builder)?;
        builder.set_rank_order(order);
    }
    builder.gpu_candidates(document.gpu_candidates);
    // The output of `fabric show` states all figures, so no GPU model is inferred.
    if let Some(model) = gpu {
        gpus::set_model(&mut builder, model)?;
    }
    Ok(builder.finish())
}

/// Converts an error of the JSON parser, which parsed the bytes `range`.
fn json_error(origin: Origin<'_>, range: Range<usize>, error: &serde_json::Error) -> crate::Error {
    let (at, message) = origin.locate_json_error(range, error);
    if error.is_data() {
        origin.invalid(at, message)
    } else {
        origin.syntax(at, format!("not well-formed JSON: {message}"))
    }
}

fn item<T: DeserializeOwned>(origin: Origin<'_>, raw: &RawValue) -> Result<T> {
    serde_json::from_str(raw.get()).map_err(|error| json_error(origin, origin.byte_range(raw.get()), &error))
}

fn add_node(origin: Origin<'_>, raw: &RawValue, builder: &mut FabricBuilder) -> Result<()> {
    let node: JsonNode = item(origin, raw)?;
    let refuse = |message: String| origin.invalid(origin.byte_range(raw.get()), message);
    if node.id.is_empty() {
        return Err(refuse("an id must not be empty".to_owned()));
    }
    let host = builder.host(node.host.as_deref().unwrap_or(DEFAULT_HOST));
    let figures = match node.figures {
        None => Figures::None,
        Some(value) => figures(node.kind, value).map_err(|error| refuse(format!("figures: {error}")))?,
    };
    let attributes = node.attributes.into_iter().collect();
    let vertex = Node { id: node.id.as_str().into(), kind: node.kind, host, figures, attributes };
    builder.add_node(vertex).map(|_| ()).ok_or_else(|| refuse(format!("the id `{}` is taken", node.id)))
}

fn figures(kind: NodeKind, value: Value) -> Result<Figures, serde_json::Error> {
    fn read<T: DeserializeOwned>(value: Value) -> Result<Arc<T>, serde_json::Error> {
        serde_json::from_value(value).map(Arc::new)
    }
    Ok(match kind {
        NodeKind::Gpu | NodeKind::Mig | NodeKind::Accelerator => Figures::Gpu(read(value)?),
        NodeKind::Cpu => Figures::Cpu(read(value)?),
        NodeKind::Nic => Figures::Nic(read(value)?),
        NodeKind::Nvswitch | NodeKind::PcieSwitch | NodeKind::Switch => Figures::Switch(read(value)?),
    })
}

/// Pairs the two directions of each link: a direction from `a` to `b` with the next unpaired one of its kind from `b`
/// to `a`.
fn add_links(origin: Origin<'_>, raws: &[&RawValue], builder: &mut FabricBuilder) -> Result<()> {
    let mut waiting: FxHashMap<(NodeId, NodeId, LinkKind), VecDeque<Direction>> = FxHashMap::default();
    let mut links: Vec<LinkPair> = Vec::new();
    for (order, raw) in raws.iter().enumerate() {
        let bytes = origin.byte_range(raw.get());
        let link: JsonLink = item(origin, raw)?;
        let refuse = |message: String| origin.invalid(bytes.clone(), message);
        let end = |id: &str| builder.find(id).ok_or_else(|| refuse(format!("there is no node `{id}`")));
        let (a, b) = (end(&link.a)?, end(&link.b)?);
        if a == b {
            return Err(refuse(format!("a link joins `{}` to itself", link.a)));
        }
        let direction = direction(&link, bytes.clone(), order).map_err(refuse)?;
        let back = waiting.get_mut(&(b, a, link.kind)).and_then(VecDeque::pop_front);
        let Some(first) = back else {
            waiting.entry((a, b, link.kind)).or_default().push_back(direction);
            continue;
        };
        if (first.latency, first.lanes) != (direction.latency, direction.lanes) {
            let line = origin.locate(first.bytes).line;
            return Err(refuse(format!("latency and lanes must be those of the other direction, in line {line}")));
        }
        let spec = LinkSpec {
            kind: link.kind,
            lanes: first.lanes,
            forward: first.built,
            backward: direction.built,
            latency: first.latency,
        };
        let failed = [first.failed, direction.failed];
        let slowed = [first.bandwidth, direction.bandwidth];
        links.push(LinkPair { order: first.order, ends: (b, a), spec, failed, slowed });
    }
    if let Some(left) = waiting.into_values().flatten().min_by_key(|direction| direction.order) {
        let message = "this direction of a link has no other; each direction is an entry of its own";
        return Err(origin.invalid(left.bytes, message));
    }
    links.sort_by_key(|joined| joined.order);
    for LinkPair { ends: (a, b), spec, failed, slowed, .. } in &links {
        let added = builder.link(*a, *b, spec);
        builder.degrade(added, *failed, *slowed);
    }
    Ok(())
}

fn direction(link: &JsonLink, bytes: Range<usize>, order: usize) -> Result<Direction, String> {
    let rate = |key: &str, gb_per_s: Option<f64>| match gb_per_s {
        None => Ok(None),
        Some(gb_per_s) if gb_per_s > 0.0 && gb_per_s * 1e9 <= Bandwidth::MAX.0 as f64 => {
            Ok(Some(Bandwidth::from_gb_per_s(gb_per_s)).filter(|rate| rate.0 > 0))
        }
        Some(gb_per_s) => Err(format!("{key}: {gb_per_s} is not a positive number of GB/s up to 1000000")),
    };
    let bandwidth = rate("bandwidth_gb_per_s", link.bandwidth_gb_per_s)?;
    let built = rate("built_gb_per_s", link.built_gb_per_s)?.or(bandwidth);
    if bandwidth > built || (bandwidth.is_none() && built.is_some()) {
        return Err("built_gb_per_s: a slowed link carries less than it was built for".to_owned());
    }
    if !(0.0..=1e12).contains(&link.latency_ns) {
        return Err(format!("latency_ns: {} is not from 0 to 1e12", link.latency_ns));
    }
    if link.lanes == 0 {
        return Err("lanes: 0 is not from 1 to 65535".to_owned());
    }
    Ok(Direction {
        bandwidth,
        built,
        latency: Picos::from_ns(link.latency_ns),
        lanes: link.lanes,
        failed: link.failed,
        bytes,
        order,
    })
}

/// The GPUs in use, in rank order; all others are idle.
fn rank_order(origin: Origin<'_>, gpus: &[String], builder: &FabricBuilder) -> Result<Vec<NodeId>> {
    let at = origin.text.find("\"gpus\"").unwrap_or_default();
    let refuse = |message: String| origin.invalid(at..at + 6, message);
    let known: FxHashSet<NodeId> = builder.ranks().iter().copied().collect();
    let mut seen = FxHashSet::default();
    let mut order = Vec::with_capacity(gpus.len());
    for id in gpus {
        let gpu = builder.find(id).filter(|&gpu| builder.get(gpu).kind.is_rank());
        let gpu = gpu.ok_or_else(|| refuse(format!("gpus: there is no GPU or accelerator `{id}`")))?;
        if !known.contains(&gpu) {
            return Err(refuse(format!("gpus: `{id}` cannot be a rank: its MIG instances are")));
        }
        if !seen.insert(gpu) {
            return Err(refuse(format!("gpus: `{id}` is two ranks")));
        }
        order.push(gpu);
    }
    if order.is_empty() && !known.is_empty() {
        let message = "gpus names none of the GPUs: expected those in use, in the order of their ranks";
        return Err(refuse(message.to_owned()));
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_a_message_and_a_location() {
        let links = |links: &str| {
            format!(
                "{{\"nodes\": [\n{{\"id\": \"a\", \"kind\": \"gpu\"}},\n{{\"id\": \"b\", \"kind\": \"nic\"}}],\n\"links\": [\n{links}]}}"
            )
        };
        let link = |rest: &str| format!("{{\"a\": \"a\", \"b\": \"b\", \"kind\": \"pcie\"{rest}}}");
        let back = "{\"a\": \"b\", \"b\": \"a\", \"kind\": \"pcie\"}";
        let cases = [
            ("{".to_owned(), 1, 1, "not well-formed JSON: EOF"),
            ("{\"nodes\": []}".to_owned(), 1, 13, "missing field `links`"),
            (
                "{\"nodes\": [\n {\"id\": \"a\", \"kind\": \"gpuu\"}], \"links\": []}".to_owned(),
                2,
                27,
                "unknown variant `gpuu`",
            ),
            (
                "{\"nodes\": [{\"id\": \"a\", \"kind\": \"gpu\"},\n{\"id\": \"a\", \"kind\": \"gpu\"}], \"links\": []}"
                    .to_owned(),
                2,
                1,
                "`a` is taken",
            ),
            (links(&link("")), 5, 1, "has no other"),
            (links(&link(", \"bandwidth_gb_per_s\": 0")), 5, 1, "bandwidth_gb_per_s: 0"),
            (links(&link(", \"bandwidth_gb_per_s\": -3")), 5, 1, "bandwidth_gb_per_s: -3"),
            (links(&link(", \"latency_ns\": -3")), 5, 1, "latency_ns: -3"),
            (
                links(&format!("{},\n{back}", link(", \"latency_ns\": 3"))),
                6,
                1,
                "those of the other direction, in line 5",
            ),
            (links("{\"a\": \"a\", \"b\": \"c\", \"kind\": \"pcie\"}"), 5, 1, "there is no node `c`"),
            (links("{\"a\": \"a\", \"b\": \"a\", \"kind\": \"pcie\"}"), 5, 1, "to itself"),
            (links("").replace("\"links\"", "\"gpus\": [\"b\"], \"links\""), 4, 1, "no GPU or accelerator `b`"),
            (links("").replace("\"links\"", "\"gpus\": [], \"links\""), 4, 1, "names none of the GPUs"),
        ];
        for (text, line, column, message) in cases {
            let error = parse(&text, "t.json").unwrap_err();
            let location = error.location().unwrap();
            assert_eq!((location.line, location.column), (line, column), "{text}: {error}");
            assert!(error.to_string().contains(message), "{text}: {error}");
        }
    }
}
