//! Reader of specs: fabrics in TOML, written by hand or as built-in presets.
//!
//! ```toml
//! name = "toy"
//! source = ["source of the figures"]
//! ranks = ["gpu1", "gpu0"]          # only if ranks do not follow the order of the nodes
//! idle = ["gpu[4-7]"]               # GPUs that are not ranks
//! routing = { p2p = "off" }         # settings that restrict routes: p2p "off" or "switches", gdr "off", ecmp "hashed=SEED"
//! host_grid = "4x4"                 # side lengths of the grid (torus) of the hosts
//!
//! [device.h200]                      # figures that several nodes share
//! model = "H200 SXM"
//! memory = "141 GB"
//!
//! [[node]]
//! id = "gpu[0-7]"                    # eight nodes
//! kind = "gpu"
//! device = "h200"
//!
//! [[node]]
//! id = "nvswitch0"
//! kind = "nvswitch"
//!
//! [[link]]
//! a = "gpu[0-7]"                     # eight links; two ranges of equal length pair up
//! b = "nvswitch0"
//! kind = "nvlink"
//! lanes = 18
//! bandwidth = "450 GB/s"             # each direction; absent or "unlimited": no limit
//! latency = "350 ns"                 # absent: none
//! slowed_to = "225 GB/s"             # remaining bandwidth from a to b; from b to a: reverse_slowed_to; absent: all
//! failed = "both"                    # out of service: "forward" (a to b), "reverse" or "both"; absent: neither
//!
//! [cluster]                          # instead of, or in addition to, nodes
//! node = "hgx-h200"
//! nodes = 16
//! network = { kind = "rail", nic = "400 Gb/s" }
//! ```
//!
//! Parsing checks all conditions that concern the text alone; [`Spec::build_nodes`] checks the consistency of nodes and
//! links.

mod build;
mod cluster;
mod figures;
pub(crate) mod ids;
mod table;

use std::ops::Range;

use rustc_hash::FxHashMap;
use toml::de::{DeTable, DeValue};

use crate::error::{Origin, Result};
use crate::fabric::{Attributes, Figures, LinkKind, LinkSpec, NodeKind, suggest_names};
use crate::keys;
use crate::network_spec::ClusterSpec;
use crate::route::Routing;
use crate::{Bandwidth, LineIndex, Picos};
use ids::expand;
use table::Table;

/// Name of the host of a node for which the spec states none.
pub const DEFAULT_HOST: &str = "host0";

/// Name of the host of a network switch for which the spec states none.
pub const NETWORK_HOST: &str = "network";

/// Maximum number of nodes, and of links, of one spec: four times the largest supported cluster.
const MAX_ITEMS: usize = 1 << 18;

/// Maximum number of bytes of names and attributes of one `[[node]]` after expansion.
const MAX_TEXT_BYTES: usize = 1 << 26;

/// A parsed spec with expanded ranges.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Name of the fabric; defaults to the name of the file.
    pub name: String,
    /// Origins of the figures, from the key `source`.
    pub sources: Vec<String>,
    /// The explicit nodes, in the order of the file.
    pub nodes: Vec<SpecNode>,
    /// The explicit links, in the order of the file.
    pub links: Vec<SpecLink>,
    /// Ids in rank order; empty if the ranks follow the order of the nodes.
    pub ranks: Vec<SpecId>,
    /// Ids of GPUs that are not ranks.
    pub idle: Vec<SpecId>,
    /// Machine settings that restrict routes.
    pub routing: Routing,
    /// Side lengths of the grid (torus) of the hosts; empty if unknown.
    pub host_grid: Vec<u32>,
    /// Candidate models of the GPUs, if a machine's own file did not identify the model.
    pub gpu_candidates: Vec<String>,
    /// The `[cluster]` table; `None` if the spec has none.
    pub cluster: Option<ClusterSpec>,
    source: String,
    text: String,
    lines: LineIndex,
}

/// A device of a spec: one id of a `[[node]]` table.
#[derive(Clone, Debug)]
pub struct SpecNode {
    /// Id of the device.
    pub id: Box<str>,
    /// Kind of the device.
    pub kind: NodeKind,
    /// Name of the node's host.
    pub host: Box<str>,
    /// Known figures of the device.
    pub figures: Figures,
    /// Attributes that are passed through without interpretation, sorted by name.
    pub attributes: Attributes,
    /// Byte range of the id in the text of the spec.
    bytes: Range<usize>,
}

/// A link of a spec: one pair of ids of a `[[link]]` table.
#[derive(Clone, Debug)]
pub struct SpecLink {
    /// Id of one end.
    pub a: Box<str>,
    /// Id of the other end.
    pub b: Box<str>,
    /// Technology, lanes, bandwidth and latency of the link.
    pub spec: LinkSpec,
    /// Failure of each direction: from `a` to `b`, then back.
    pub failed: [bool; 2],
    /// Remaining bandwidth of each direction, in the order of `failed`; `None` if the direction is not slowed.
    pub slowed: [Option<Bandwidth>; 2],
    a_bytes: Range<usize>,
    b_bytes: Range<usize>,
}

/// Id of a GPU in the lists `ranks` or `idle`.
#[derive(Clone, Debug)]
pub struct SpecId {
    /// The id of the device.
    pub id: Box<str>,
    bytes: Range<usize>,
}

/// Parses a spec.
///
/// # Errors
/// [`Error::Syntax`](crate::Error::Syntax) if the text is not TOML, [`Error::Invalid`](crate::Error::Invalid) for
/// unknown or missing keys, kinds and units; each with line and column.
pub fn parse(text: &str, source: &str) -> Result<Spec> {
    let lines = LineIndex::new(text);
    let origin = Origin::new(source, text).with_line_index(&lines);
    let document = DeTable::parse(text)
        .map_err(|error| origin.syntax(error.span().unwrap_or_default(), first_line(error.message())))?;
    let root = Table::new(origin, "a spec", document.get_ref(), 0..0);
    root.expect_keys(&[
        "name",
        "source",
        "ranks",
        "idle",
        "routing",
        "host_grid",
        "gpu_candidates",
        "device",
        "node",
        "link",
        "cluster",
    ])?;

    let spec = Spec {
        name: root.keyed::<String>("name")?.map_or_else(|| origin.stem(), |name| name.value),
        sources: root.texts("source")?.into_iter().map(|line| line.value.to_owned()).collect(),
        nodes: read_nodes(&root)?,
        links: read_links(&root)?,
        ranks: read_ids(&root, "ranks")?,
        idle: read_ids(&root, "idle")?,
        routing: read_routing(&root)?,
        host_grid: read_host_grid(&root)?,
        gpu_candidates: root.texts("gpu_candidates")?.into_iter().map(|name| name.value.to_owned()).collect(),
        cluster: root.table("cluster", "[cluster]")?.as_ref().map(cluster::read).transpose()?,
        source: source.to_owned(),
        text: text.to_owned(),
        lines: lines.clone(),
    };
    if spec.nodes.is_empty() && spec.cluster.is_none() {
        let end = text.len();
        return Err(origin.invalid(end..end, "a spec needs at least one [[node]], or a [cluster]"));
    }
    Ok(spec)
}

/// Joins the lines of an error message of the TOML parser.
fn first_line(message: &str) -> String {
    message.lines().map(str::trim).collect::<Vec<_>>().join(", ")
}

/// Returns an error if a spec expands to more items than any machine has.
fn check_limit(count: usize, table: &Table<'_>) -> Result<()> {
    if count <= MAX_ITEMS {
        return Ok(());
    }
    Err(table.origin.invalid(table.bytes.clone(), format!("more than {MAX_ITEMS} of {}", table.name)))
}

fn read_nodes(root: &Table<'_>) -> Result<Vec<SpecNode>> {
    let mut devices: FxHashMap<&str, Table<'_>> = FxHashMap::default();
    for entry in root.table("device", "[device.NAME]")?.iter().flat_map(Table::entries) {
        let DeValue::Table(figures) = entry.value else {
            return Err(root.origin.invalid(entry.value_bytes, format!("write [device.{}]", entry.key)));
        };
        devices.insert(entry.key, Table::new(root.origin, "a device", figures, entry.key_bytes));
    }
    let mut nodes = Vec::new();
    for table in root.tables("node", "[[node]]")? {
        read_node(&table, &devices, &mut nodes)?;
        check_limit(nodes.len(), &table)?;
    }
    Ok(nodes)
}

fn read_node<'a>(table: &Table<'a>, devices: &FxHashMap<&'a str, Table<'a>>, nodes: &mut Vec<SpecNode>) -> Result<()> {
    let origin = table.origin;
    let id = table.required::<String>("id")?;
    let kind = table.required::<NodeKind>("kind")?.value;
    let ids = expand(&id.value).map_err(|message| origin.invalid(id.bytes.clone(), message))?;
    let default_host = if kind == NodeKind::Switch { NETWORK_HOST } else { DEFAULT_HOST };
    let hosts = match table.keyed::<String>("host")? {
        None => vec![default_host.into()],
        Some(host) => {
            let hosts = expand(&host.value).map_err(|message| origin.invalid(host.bytes.clone(), message))?;
            if hosts.len() != 1 && hosts.len() != ids.len() {
                let message = format!("{} hosts for {} ids; give one, or one for each", hosts.len(), ids.len());
                return Err(origin.invalid(host.bytes, message));
            }
            hosts
        }
    };
    let device = match table.keyed::<String>("device")? {
        None => None,
        Some(name) => Some(devices.get(name.value.as_str()).ok_or_else(|| unknown_device(origin, &name, devices))?),
    };
    let figures = figures::read(kind, table, device)?;
    let attributes = read_attributes(table)?;
    let text = attributes.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() + figures.name_bytes();
    if ids.len().saturating_mul(text) > MAX_TEXT_BYTES {
        let message = format!("{} nodes with {text} bytes of names and attributes each are too many", ids.len());
        return Err(origin.invalid(id.bytes, message));
    }
    for (i, one) in ids.into_iter().enumerate() {
        let host = hosts.get(i).or_else(|| hosts.first()).cloned().unwrap_or_default();
        let (figures, attributes) = (figures.clone(), attributes.clone());
        nodes.push(SpecNode { id: one, kind, host, figures, attributes, bytes: id.bytes.clone() });
    }
    Ok(())
}

fn unknown_device(
    origin: Origin<'_>,
    name: &table::Located<String>,
    devices: &FxHashMap<&str, Table<'_>>,
) -> crate::Error {
    let message = format!("there is no [device.{}]", name.value);
    match suggest_names(&name.value, devices.keys().copied()).as_slice() {
        [] => origin.invalid(name.bytes.clone(), message),
        near => origin.invalid_with_help(name.bytes.clone(), message, format!("did you mean {}?", near.join(", "))),
    }
}

fn read_attributes(table: &Table<'_>) -> Result<Attributes> {
    // Entries are sorted by key, as `Node::attributes` requires.
    let attributes = table.table("attributes", "attributes = { name = \"text\" }")?;
    attributes
        .iter()
        .flat_map(Table::entries)
        .map(|entry| match entry.value {
            DeValue::String(text) => Ok((entry.key.into(), text.as_ref().into())),
            _ => Err(table.origin.invalid(entry.value_bytes, format!("the attribute {} must be a text", entry.key))),
        })
        .collect()
}

fn read_links(root: &Table<'_>) -> Result<Vec<SpecLink>> {
    let mut links = Vec::new();
    for table in root.tables("link", "[[link]]")? {
        table.expect_keys(&[
            "a",
            "b",
            "kind",
            "bandwidth",
            "reverse_bandwidth",
            "slowed_to",
            "reverse_slowed_to",
            "latency",
            "lanes",
            "failed",
        ])?;
        let origin = table.origin;
        let (a, b) = (table.required::<String>("a")?, table.required::<String>("b")?);
        let kind = table.required::<LinkKind>("kind")?.value;
        let forward = read_limit(&table, "bandwidth")?.flatten();
        let backward = read_limit(&table, "reverse_bandwidth")?.unwrap_or(forward);
        let latency = table.keyed::<Picos>("latency")?.map_or(Picos::ZERO, |latency| latency.value);
        let spec = LinkSpec { kind, lanes: read_lanes(&table)?, forward, backward, latency };
        let failed = read_failed(&table)?;
        let slowed = [read_slowed(&table, "slowed_to", forward)?, read_slowed(&table, "reverse_slowed_to", backward)?];
        let expand_end = |end: &table::Located<String>| {
            expand(&end.value).map_err(|message| origin.invalid(end.bytes.clone(), message))
        };
        let (from, to) = (expand_end(&a)?, expand_end(&b)?);
        let count = from.len().max(to.len());
        if from.len() != to.len() && from.len() != 1 && to.len() != 1 {
            let message = format!("`{}` expands to {} ids and `{}` to {}", a.value, from.len(), b.value, to.len());
            let help = "ranges on both sides must have the same length; they pair up";
            return Err(origin.invalid_with_help(b.bytes, message, help));
        }
        check_limit(links.len() + count, &table)?;
        let pick = |ids: &[Box<str>], i: usize| ids.get(i).or_else(|| ids.first()).cloned().unwrap_or_default();
        links.extend((0..count).map(|i| SpecLink {
            a: pick(&from, i),
            b: pick(&to, i),
            spec: spec.clone(),
            failed,
            slowed,
            a_bytes: a.bytes.clone(),
            b_bytes: b.bytes.clone(),
        }));
    }
    Ok(links)
}

/// Reads a bandwidth that may be `"unlimited"`; the outer `None` means an absent key.
fn read_limit(table: &Table<'_>, key: &str) -> Result<Option<Option<Bandwidth>>> {
    match table.get(key).map(toml::Spanned::get_ref) {
        Some(DeValue::String(text)) if text == "unlimited" => Ok(Some(None)),
        _ => Ok(table.keyed::<Bandwidth>(key)?.map(|bandwidth| Some(bandwidth.value))),
    }
}

/// Reads the remaining bandwidth of a slowed direction with the bandwidth `built`.
fn read_slowed(table: &Table<'_>, key: &str, built: Option<Bandwidth>) -> Result<Option<Bandwidth>> {
    let Some(left) = table.keyed::<Bandwidth>(key)? else { return Ok(None) };
    match built {
        Some(built) if left.value <= built => Ok(Some(left.value)),
        Some(built) => Err(table.origin.invalid(left.bytes, format!("{key}: {} is more than {built}", left.value))),
        None => {
            Err(table.origin.invalid(left.bytes, format!("{key}: the link has no bandwidth of which this is left")))
        }
    }
}

fn read_lanes(table: &Table<'_>) -> Result<u16> {
    let Some(lanes) = table.keyed::<u32>("lanes")? else {
        return Ok(1);
    };
    match u16::try_from(lanes.value) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(table.origin.invalid(lanes.bytes, format!("lanes: `{}` is not from 1 to 65535", lanes.value))),
    }
}

/// Reads which directions of a link have failed: from `a` to `b`, then back.
fn read_failed(table: &Table<'_>) -> Result<[bool; 2]> {
    let Some(failed) = table.keyed::<String>("failed")? else { return Ok([false; 2]) };
    match failed.value.as_str() {
        "both" => Ok([true; 2]),
        "forward" => Ok([true, false]),
        "reverse" => Ok([false, true]),
        other => {
            let message = format!("failed: `{other}` is none of forward, reverse, both");
            Err(table.origin.invalid(failed.bytes, message))
        }
    }
}

/// Reads the machine settings that restrict routes.
fn read_routing(root: &Table<'_>) -> Result<Routing> {
    let mut routing = Routing::default();
    let table = root.table("routing", "routing = { p2p = \"off\" }")?;
    for entry in table.iter().flat_map(Table::entries) {
        let DeValue::String(text) = entry.value else {
            return Err(root.origin.invalid(entry.value_bytes, format!("routing: {} must be a text", entry.key)));
        };
        keys::set_routing(&mut routing, entry.key, text)
            .map_err(|message| root.origin.invalid(entry.value_bytes, format!("routing: {message}")))?;
    }
    Ok(routing)
}

fn read_host_grid(root: &Table<'_>) -> Result<Vec<u32>> {
    let Some(text) = root.keyed::<String>("host_grid")? else { return Ok(Vec::new()) };
    let sides =
        text.value.split('x').map(|side| side.parse::<u32>().ok().filter(|&side| side > 0)).collect::<Option<_>>();
    sides.ok_or_else(|| {
        let message = format!("host_grid: `{}` is no list of sides, as in 4x4", text.value);
        root.origin.invalid(text.bytes, message)
    })
}

fn read_ids(root: &Table<'_>, key: &str) -> Result<Vec<SpecId>> {
    let mut ranks = Vec::new();
    for text in root.texts(key)? {
        let ids = expand(text.value).map_err(|message| root.origin.invalid(text.bytes.clone(), message))?;
        check_limit(ranks.len() + ids.len(), root)?;
        ranks.extend(ids.into_iter().map(|id| SpecId { id, bytes: text.bytes.clone() }));
    }
    Ok(ranks)
}

#[cfg(test)]
mod tests;
