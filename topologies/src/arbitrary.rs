//! Random fabrics for property tests, and the properties that decide whether two fabrics are equal.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::fabric::{
    CpuArch, CpuFigures, Fabric, FabricBuilder, Figures, GpuFigures, Link, LinkKind, LinkSpec, NicFigures, Node,
    NodeKind, SwitchFigures,
};
use crate::route::{Ecmp, GpuDirect, PeerAccess, Routing};
use crate::{Bandwidth, Bytes, Picos};

/// Properties of a fabric as texts, so that tests can compare two fabrics: name, sources, devices, links, rank order
/// and settings. Hosts are given by name because their numbers depend on the order of first use.
pub(crate) fn comparable_properties(fabric: &Fabric) -> Vec<String> {
    let id = |node: crate::NodeId| &*fabric.node(node).id;
    let mut facts = vec![format!("name {:?} sources {:?}", fabric.name(), fabric.sources())];
    facts.extend(fabric.nodes().map(|(_, node)| {
        let host = &fabric.hosts()[node.host.0 as usize];
        format!("{:?} {:?} in {host:?} {:?} {:?}", node.id, node.kind, node.figures, node.attributes)
    }));
    facts.extend(fabric.links().map(|(_, link)| {
        let (from, to) = (id(link.from), id(link.to));
        let Link { kind, lanes, bandwidth, nominal_bandwidth: built, latency, failed, .. } = link;
        format!("{from:?} {to:?} {kind:?} x{lanes} {bandwidth:?} of {built:?} {latency:?} failed {failed}")
    }));
    facts.push(format!("ranks {:?}", fabric.gpus().iter().map(|&gpu| id(gpu)).collect::<Vec<_>>()));
    facts.push(format!("{:?} {:?}", fabric.routing(), fabric.host_grid()));
    facts
}

/// Strategy for device ids: mostly numbered sequences, sometimes arbitrary valid ids.
fn id() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => ("(gpu|n0/gpu|sw|a-b|x\\[|mlx5_)", 0u32..12).prop_map(|(stem, number)| format!("{stem}{number}")),
        1 => "[a-z0-9#>\\[\\]\"' é\\\\/-]{1,8}".prop_filter("no range", |id| crate::read::spec::ids::is_plain_id(id)),
    ]
}

fn kind() -> impl Strategy<Value = NodeKind> {
    use NodeKind::*;
    prop::sample::select(vec![Gpu, Mig, Accelerator, Nvswitch, PcieSwitch, Cpu, Nic, Switch])
}

fn bandwidth() -> impl Strategy<Value = Bandwidth> {
    prop_oneof![
        (1u64..1000).prop_map(|gb_per_s| Bandwidth(gb_per_s * 1_000_000_000)),
        (1..=Bandwidth::MAX.0).prop_map(Bandwidth),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just("X200 SXM".to_owned()), "\\PC{0,6}", "[\"\\\\\n\t\r\u{7f}\u{1}]{0,3}"]
}

fn figures(kind: NodeKind) -> BoxedStrategy<Figures> {
    let some = match kind {
        NodeKind::Gpu | NodeKind::Mig | NodeKind::Accelerator => (
            option::of(text()),
            option::of(any::<u32>()),
            option::of(any::<u32>()),
            option::of(0..=Bytes::MAX.0),
            option::of(bandwidth()),
            option::of(any::<u32>()),
            option::of(1e-3..1e5f64),
        )
            .prop_map(|(model, compute_capability, sm_count, memory, memory_bandwidth, copy_engines, bf16_tflops)| {
                let memory = memory.map(Bytes);
                Figures::Gpu(Arc::new(GpuFigures {
                    model,
                    compute_capability,
                    sm_count,
                    memory,
                    memory_bandwidth,
                    copy_engines,
                    bf16_tflops,
                }))
            })
            .boxed(),
        NodeKind::Cpu => {
            let arch = prop::sample::select(vec![CpuArch::X86, CpuArch::Arm, CpuArch::Power]);
            (
                option::of(text()),
                option::of(arch),
                option::of(text()),
                option::of(any::<u32>()),
                option::of(any::<u32>()),
                option::of(-1..9i32),
                option::of(bandwidth()),
                option::of(1..1_u64 << 50),
            )
                .prop_map(|(model, arch, vendor, family, model_id, numa, memory_bandwidth, memory)| {
                    let memory = memory.map(Bytes);
                    Figures::Cpu(Arc::new(CpuFigures {
                        model,
                        arch,
                        vendor,
                        family,
                        model_id,
                        numa,
                        memory_bandwidth,
                        memory,
                    }))
                })
                .boxed()
        }
        NodeKind::Nic => (
            option::of(text()),
            option::of(bandwidth()),
            option::of(any::<bool>()),
            option::of(any::<u32>()),
            option::of(prop::sample::select(&LinkKind::NETWORK[..])),
            option::of(any::<bool>()),
            option::of(any::<u32>()),
        )
            .prop_map(|(model, speed, gdr, mtu, link, adaptive_routing, queue_pairs)| {
                Figures::Nic(Arc::new(NicFigures { model, speed, gdr, mtu, link, adaptive_routing, queue_pairs }))
            })
            .boxed(),
        NodeKind::Nvswitch | NodeKind::PcieSwitch | NodeKind::Switch => {
            (option::of(text()), option::of(bandwidth()), option::of(any::<bool>()))
                .prop_map(|(model, capacity, multicast)| {
                    Figures::Switch(Arc::new(SwitchFigures { model, capacity, multicast }))
                })
                .boxed()
        }
    };
    prop_oneof![Just(Figures::None), some].boxed()
}

/// A device without host number: id, kind, figures, host name, attributes.
type RandomNode = (String, NodeKind, Figures, String, Vec<(String, String)>);

fn node() -> impl Strategy<Value = RandomNode> {
    let host = prop_oneof![Just("host0".to_owned()), Just("network".to_owned()), "n[0-2]"];
    (id(), kind().prop_flat_map(|kind| (Just(kind), figures(kind))), host, vec((text(), text()), 0..3))
        .prop_map(|(id, (kind, figures), host, attributes)| (id, kind, figures, host, attributes))
}

fn link() -> impl Strategy<Value = LinkSpec> {
    use LinkKind::*;
    let latency = prop_oneof![Just(0), (0u64..2000).prop_map(|ns| ns * 1000), 0..=1_000_000_000_000_000u64];
    let kind = prop::sample::select(vec![Nvlink, C2c, Pcie, Upi, Infiniband, Ethernet]);
    (kind, prop_oneof![Just(1u16), 1..=u16::MAX], option::of(bandwidth()), option::of(option::of(bandwidth())), latency)
        .prop_map(|(kind, lanes, forward, other, latency)| LinkSpec {
            kind,
            lanes,
            forward,
            backward: other.unwrap_or(forward),
            latency: Picos(latency),
        })
}

/// Deviations of a random fabric from the defaults: idle GPUs, failed links, routing settings, side lengths of the host
/// grid.
#[derive(Debug)]
struct State {
    idle: Vec<prop::sample::Index>,
    failed: Vec<prop::sample::Index>,
    routing: Routing,
    grid: Vec<u32>,
}

fn state() -> impl Strategy<Value = State> {
    let some = || vec(any::<prop::sample::Index>(), 0..3);
    let ecmp = option::of(any::<u64>()).prop_map(|seed| seed.map_or(Ecmp::Averaged, |seed| Ecmp::Hashed { seed }));
    let p2p = prop::sample::select(vec![PeerAccess::Allowed, PeerAccess::Switches, PeerAccess::Off]);
    let routing = (p2p, any::<bool>(), ecmp).prop_map(|(p2p, gdr, ecmp)| Routing {
        p2p,
        gdr: if gdr { GpuDirect::Allowed } else { GpuDirect::Off },
        ecmp,
    });
    (some(), some(), routing, vec(1..9u32, 0..3)).prop_map(|(idle, failed, routing, grid)| State {
        idle,
        failed,
        routing,
        grid,
    })
}

/// A random fabric with any kinds of devices, figures, hosts, parallel links and rank order.
pub(crate) fn fabric() -> impl Strategy<Value = Fabric> {
    let ends = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    let runs = (1..4usize, link(), vec(ends, 0..12));
    let parts = (text(), vec(text(), 0..3), vec(node(), 1..14), vec(runs, 0..4), any::<prop::sample::Index>());
    (parts, state()).prop_map(|((name, sources, nodes, links, turn), State { idle, failed, routing, grid })| {
        let mut builder = FabricBuilder::new(&name);
        for source in sources {
            builder.add_source(source);
        }
        // GPUs with MIG instances cannot be set idle: they are not ranks, and their instances replace them.
        let is_cut = nodes.iter().any(|node| node.1 == NodeKind::Mig);
        let mut added = Vec::new();
        for (id, kind, figures, host, mut attributes) in nodes {
            let host = builder.host(&host);
            attributes.sort();
            attributes.dedup_by(|a, b| a.0 == b.0);
            let attributes = attributes.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
            added.extend(builder.add_node(Node { id: id.into(), kind, host, figures, attributes }));
        }
        for (repeat, spec, ends) in links {
            for (a, b) in ends.iter().flat_map(|ends| std::iter::repeat_n(ends, repeat)) {
                let (a, b) = (*a.get(&added), *b.get(&added));
                if a != b {
                    builder.link(a, b, &spec);
                }
            }
        }
        let mut ranks = builder.ranks().to_vec();
        if !ranks.is_empty() {
            let offset = turn.index(ranks.len());
            ranks.rotate_left(offset);
            builder.set_rank_order(ranks);
        }
        for gpu in idle.into_iter().filter(|_| !is_cut) {
            if let ranks @ [_, _, ..] = builder.ranks() {
                let gpu = *gpu.get(ranks);
                builder.set_idle(gpu);
            }
        }
        builder.set_routing(routing);
        builder.set_host_grid(grid);
        let fabric = builder.finish();
        let links = fabric.link_count();
        let failed = failed.into_iter().filter(|_| links > 0);
        let failed: Vec<crate::LinkId> = failed.map(|one| crate::LinkId(one.index(links) as u32)).collect();
        fabric.with_failed_links(&failed)
    })
}
