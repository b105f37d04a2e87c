//! Writer of TOML specs; [`read::spec`](crate::read::spec) reads the spec into an equal fabric, in the same order.
//!
//! Consecutive devices or links that differ only by a number at the end of their ids are written as one table with a
//! range, so that the spec of a regular machine is as short as a hand-written one. The state of the machine is
//! included: idle GPUs, links out of service, settings that restrict routes.

use crate::error::{Error, Result};
use crate::fabric::{Fabric, Figures, Link, LinkId, Node, NodeId, NodeKind};
use crate::keys::{Keyed, Keys, quoted};
use crate::read::spec::{DEFAULT_HOST, NETWORK_HOST, ids};
use crate::visible::visible_in_strings;

/// Writes the spec of a fabric.
///
/// # Errors
/// [`Error::Request`] with the name of the device whose id or figures a spec cannot represent: an id that is empty or
/// parses as a range, figures of another kind of device, a bandwidth of 0 or above
/// [`Bandwidth::MAX`](crate::Bandwidth::MAX).
pub fn write(fabric: &Fabric) -> Result<String> {
    let mut out = format!("name = {}\n", quoted(fabric.name()));
    if !fabric.sources().is_empty() {
        let lines: String = fabric.sources().iter().map(|source| format!("    {},\n", quoted(source))).collect();
        out.push_str(&format!("source = [\n{lines}]\n"));
    }
    write_ranks(fabric, &mut out);
    write_idle(fabric, &mut out);
    write_routing(fabric, &mut out);
    if !fabric.gpu_candidates().is_empty() {
        let names: Vec<String> = fabric.gpu_candidates().iter().map(|name| quoted(name)).collect();
        out.push_str(&format!("gpu_candidates = [{}]\n", names.join(", ")));
    }

    let nodes: Vec<&Node> = fabric.nodes().map(|(_, node)| node).collect();
    let mut remaining = nodes.as_slice();
    while let Some((&first, _)) = remaining.split_first() {
        check_expressible(fabric, first)?;
        let run = remaining.iter().enumerate().take_while(|&(i, node)| extends_range(first, node, i)).count().max(1);
        write_node(fabric, first, &format_range(&first.id, run), &mut out);
        remaining = remaining.get(run..).unwrap_or_default();
    }

    let links: Vec<[&Link; 2]> = (0..fabric.link_count() as u32 / 2)
        .map(|k| [fabric.link(LinkId(2 * k)), fabric.link(LinkId(2 * k + 1))])
        .collect();
    let mut remaining = links.as_slice();
    while let Some((first, others)) = remaining.split_first() {
        let step = others.first().and_then(|next| step_between(fabric, first, next));
        let run = step.map_or(1, |step| {
            1 + others.iter().zip(1..).take_while(|&(link, i)| is_step(fabric, first, link, step, i)).count()
        });
        write_link(fabric, first, step.unwrap_or_default(), run, &mut out)?;
        remaining = remaining.get(run..).unwrap_or_default();
    }
    Ok(visible_in_strings(&out).into_owned())
}

/// Splits an id into the text before its last number and that number; `None` if the number has leading zeros or is
/// missing.
fn numbered(id: &str) -> Option<(&str, u32)> {
    let digits = id.len() - id.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (stem, number) = id.split_at(id.len() - digits);
    if number.len() > 1 && number.starts_with('0') {
        return None;
    }
    Some((stem, number.parse().ok()?))
}

/// Returns true if `id` is `first` with its number increased by `steps`.
fn is_successor(first: &str, id: &str, steps: usize) -> bool {
    if steps == 0 {
        return first == id;
    }
    match (numbered(first), numbered(id)) {
        (Some((a, i)), Some((b, j))) => a == b && i as usize + steps == j as usize && steps < ids::MAX_IDS as usize,
        _ => false,
    }
}

/// Formats a range: `gpu0` and 8 as `gpu[0-7]`.
fn format_range(first: &str, count: usize) -> String {
    match numbered(first) {
        Some((stem, number)) if count > 1 => format!("{stem}[{number}-{}]", number as usize + count - 1),
        _ => first.to_owned(),
    }
}

fn extends_range(first: &Node, node: &Node, steps: usize) -> bool {
    is_successor(&first.id, &node.id, steps)
        && (first.kind, first.host) == (node.kind, node.host)
        && first.figures == node.figures
        && first.attributes == node.attributes
}

/// Returns an error for a device that a spec cannot represent.
fn check_expressible(fabric: &Fabric, node: &Node) -> Result<()> {
    let refuse = |property: &str| Err(Error::Request(format!("a spec cannot state {property} of `{}`", node.id)));
    if !ids::is_plain_id(&node.id) {
        return refuse("the id");
    }
    let host = fabric.hosts().get(node.host.0 as usize);
    if !host.is_some_and(|host| ids::is_plain_id(host)) {
        return refuse("the host");
    }
    match (&node.figures, node.kind) {
        (Figures::None, _)
        | (Figures::Gpu(_), NodeKind::Gpu | NodeKind::Mig | NodeKind::Accelerator)
        | (Figures::Cpu(_), NodeKind::Cpu)
        | (Figures::Nic(_), NodeKind::Nic)
        | (Figures::Switch(_), NodeKind::Nvswitch | NodeKind::PcieSwitch | NodeKind::Switch) => Ok(()),
        _ => refuse("the figures"),
    }
}

fn write_ranks(fabric: &Fabric, out: &mut String) {
    if fabric.gpus().is_sorted() {
        return;
    }
    out.push_str(&format!("ranks = [{}]\n", listed(fabric, fabric.gpus())));
}

/// Lists GPUs by id, with ranges for consecutive numbers.
fn listed(fabric: &Fabric, gpus: &[NodeId]) -> String {
    let id = |gpu: &NodeId| &*fabric.node(*gpu).id;
    let mut ranges = Vec::new();
    let mut rest = gpus;
    while let Some(first) = rest.first().map(id) {
        let run = rest.iter().enumerate().take_while(|&(i, gpu)| is_successor(first, id(gpu), i)).count().max(1);
        ranges.push(quoted(&format_range(first, run)));
        rest = rest.get(run..).unwrap_or_default();
    }
    ranges.join(", ")
}

/// Writes idle GPUs. GPUs that carry MIG instances are omitted, because their links identify them.
fn write_idle(fabric: &Fabric, out: &mut String) {
    let idle = fabric.idle_gpus();
    if !idle.is_empty() {
        out.push_str(&format!("idle = [{}]\n", listed(fabric, &idle)));
    }
}

/// Writes the machine settings, and the grid of the hosts, that differ from the defaults.
fn write_routing(fabric: &Fabric, out: &mut String) {
    if !fabric.host_grid().is_empty() {
        let sides: Vec<String> = fabric.host_grid().iter().map(u32::to_string).collect();
        out.push_str(&format!("host_grid = \"{}\"\n", sides.join("x")));
    }
    let settings = crate::keys::routing_settings(fabric.routing());
    if !settings.is_empty() {
        let settings: Vec<String> = settings.iter().map(|(key, value)| format!("{key} = {}", quoted(value))).collect();
        out.push_str(&format!("routing = {{ {} }}\n", settings.join(", ")));
    }
}

fn write_node(fabric: &Fabric, node: &Node, id: &str, out: &mut String) {
    out.push_str(&format!("\n[[node]]\nid = {}\nkind = {}\n", quoted(id), node.kind.write()));
    let host = fabric.hosts().get(node.host.0 as usize).map_or(DEFAULT_HOST, |host| host);
    let assumed = if node.kind == NodeKind::Switch { NETWORK_HOST } else { DEFAULT_HOST };
    if host != assumed {
        out.push_str(&format!("host = {}\n", quoted(host)));
    }
    match &node.figures {
        Figures::None => {}
        Figures::Gpu(figures) => write_keys(&**figures, out),
        Figures::Cpu(figures) => write_keys(&**figures, out),
        Figures::Nic(figures) => write_keys(&**figures, out),
        Figures::Switch(figures) => write_keys(&**figures, out),
    }
    if !node.attributes.is_empty() {
        let attributes: Vec<String> =
            node.attributes.iter().map(|(name, text)| format!("{} = {}", quoted(name), quoted(text))).collect();
        out.push_str(&format!("attributes = {{ {} }}\n", attributes.join(", ")));
    }
}

fn write_keys<T: Keys>(figures: &T, out: &mut String) {
    for key in T::KEYS {
        if let Some(value) = (key.get)(figures) {
            out.push_str(&format!("{} = {value}\n", key.name));
        }
    }
}

/// Increments (0 or 1) of the numbers at the ends of a link's two ids, from one link of a range to the next.
type IdIncrements = (usize, usize);

fn step_between(fabric: &Fabric, first: &[&Link; 2], next: &[&Link; 2]) -> Option<IdIncrements> {
    [(1, 0), (0, 1), (1, 1)].into_iter().find(|&step| is_step(fabric, first, next, step, 1))
}

fn is_step(fabric: &Fabric, first: &[&Link; 2], link: &[&Link; 2], step: IdIncrements, steps: usize) -> bool {
    let id = |node: NodeId| &*fabric.node(node).id;
    let facts =
        |link: &Link| (link.kind, link.lanes, link.bandwidth, link.nominal_bandwidth, link.latency, link.failed);
    let same = |a: &Link, b: &Link| facts(a) == facts(b);
    first.iter().zip(link).all(|(a, b)| same(a, b))
        && is_successor(id(first[0].from), id(link[0].from), step.0 * steps)
        && is_successor(id(first[0].to), id(link[0].to), step.1 * steps)
}

fn write_link(
    fabric: &Fabric,
    [forward, backward]: &[&Link; 2],
    step: IdIncrements,
    run: usize,
    out: &mut String,
) -> Result<()> {
    let end = |node: NodeId, step: usize| {
        let id = &fabric.node(node).id;
        quoted(&if step == 0 { id.to_string() } else { format_range(id, run) })
    };
    let (a, b) = (end(forward.from, step.0), end(forward.to, step.1));
    for rate in [forward, backward].into_iter().flat_map(|link| [link.bandwidth, link.nominal_bandwidth]).flatten() {
        if rate.0 == 0 || rate > crate::Bandwidth::MAX {
            return Err(Error::Request(format!(
                "a spec cannot state a bandwidth of {} B/s between {a} and {b}",
                rate.0
            )));
        }
    }
    out.push_str(&format!("\n[[link]]\na = {a}\nb = {b}\nkind = {}\n", forward.kind.write()));
    if forward.lanes != 1 {
        out.push_str(&format!("lanes = {}\n", forward.lanes));
    }
    let rate = |rate: Option<crate::Bandwidth>| rate.map_or_else(|| quoted("unlimited"), |rate| rate.write());
    if forward.nominal_bandwidth.is_some() {
        out.push_str(&format!("bandwidth = {}\n", rate(forward.nominal_bandwidth)));
    }
    if backward.nominal_bandwidth != forward.nominal_bandwidth {
        out.push_str(&format!("reverse_bandwidth = {}\n", rate(backward.nominal_bandwidth)));
    }
    for (key, link) in [("slowed_to", forward), ("reverse_slowed_to", backward)] {
        if link.bandwidth != link.nominal_bandwidth {
            out.push_str(&format!("{key} = {}\n", rate(link.bandwidth)));
        }
    }
    if forward.latency != crate::Picos::ZERO {
        out.push_str(&format!("latency = {}\n", forward.latency.write()));
    }
    let failed = match (forward.failed, backward.failed) {
        (true, true) => "both",
        (true, false) => "forward",
        (false, true) => "reverse",
        (false, false) => return Ok(()),
    };
    out.push_str(&format!("failed = {}\n", quoted(failed)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::{comparable_properties, fabric};
    use crate::fabric::{FabricBuilder, LinkKind, LinkSpec};
    use crate::read;
    use crate::{Bandwidth, Picos};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn written_fabrics_read_back_equal(fabric in fabric()) {
            let text = write(&fabric).unwrap();
            let again = read::spec::parse(&text, "again").and_then(|spec| spec.build_nodes());
            let again = again.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
            prop_assert_eq!(comparable_properties(&again), comparable_properties(&fabric), "{}", text);
        }
    }

    /// Eight GPUs on a switch and eight NICs, one for each GPU.
    fn regular() -> Fabric {
        let mut builder = FabricBuilder::new("regular");
        let host = builder.host(DEFAULT_HOST);
        let mut nodes = |stem: &str, kind| -> Vec<NodeId> {
            (0..8).map(|i| builder.node(&format!("{stem}{i}"), kind, host, Figures::None).unwrap()).collect()
        };
        let (gpus, nics) = (nodes("gpu", NodeKind::Gpu), nodes("nic", NodeKind::Nic));
        let switch = builder.node("nvswitch0", NodeKind::Nvswitch, host, Figures::None).unwrap();
        let spec = LinkSpec::symmetric(LinkKind::Nvlink, Bandwidth(450_000_000_000), Picos(350_000)).lanes(18);
        for &gpu in &gpus {
            builder.link(gpu, switch, &spec);
        }
        let spec = LinkSpec::symmetric(LinkKind::Pcie, Bandwidth(64_000_000_000), Picos(1_234_567));
        for (&gpu, &nic) in gpus.iter().zip(&nics) {
            builder.link(gpu, nic, &spec);
        }
        builder.finish()
    }

    #[test]
    fn regular_machines_are_written_as_ranges() {
        let expected = r#"name = "regular"

[[node]]
id = "gpu[0-7]"
kind = "gpu"

[[node]]
id = "nic[0-7]"
kind = "nic"

[[node]]
id = "nvswitch0"
kind = "nvswitch"

[[link]]
a = "gpu[0-7]"
b = "nvswitch0"
kind = "nvlink"
lanes = 18
bandwidth = "450 GB/s"
latency = "350 ns"

[[link]]
a = "gpu[0-7]"
b = "nic[0-7]"
kind = "pcie"
bandwidth = "64 GB/s"
latency = "1234567 ps"
"#;
        assert_eq!(write(&regular()).unwrap(), expected);
    }

    #[test]
    fn unrepresentable_devices_are_rejected_by_name() {
        let one = |id: &str, kind, figures| {
            let mut builder = FabricBuilder::new("one");
            let host = builder.host(DEFAULT_HOST);
            builder.node(id, kind, host, figures);
            write(&builder.finish()).map_err(|error| error.to_string())
        };
        assert!(one("gpu[0-3]", NodeKind::Gpu, Figures::None).unwrap_err().contains("the id of `gpu[0-3]`"));
        let nic = crate::fabric::NicFigures { gdr: Some(true), ..Default::default() };
        assert!(one("g", NodeKind::Gpu, Figures::Nic(nic.into())).unwrap_err().contains("the figures of `g`"));
    }
}
