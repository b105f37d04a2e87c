//! Comparison of lower bounds with enumeration of all cuts and with published optima, and tests of invariants.

use std::collections::BTreeSet;

use fabricast_sim::schedule::{BufferUse, Call, Collective, Rank, TrafficMatrix};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, Fabric, FabricRequest, LinkId, NodeKind, Picos, load, read_text};
use proptest::collection::vec;
use proptest::prelude::*;

use super::cut::{CutRatio, Direction, Search};
use super::distance::Distances;
use super::line::gcd;
use super::twins::InterchangeableDevices;
use super::wiring::{Wire, Wiring};
use super::*;
use crate::flow::{FlowNetwork, UNLIMITED};

const GIB: Bytes = Bytes(1 << 30);

fn call(collective: Collective, bytes: Bytes, ranks: u32) -> Call {
    Call { collective, bytes, ranks, root: Rank(0), buffers: BufferUse::OutOfPlace }
}

fn bounds(fabric: &Fabric) -> Bounds {
    Bounds::new(fabric, &Router::new(fabric, RouteOptions::default()), fabric.gpus(), 0)
}

/// Returns the data rate at the lower bound in GB/s: bytes divided by transfer time.
fn rate(fabric: &Fabric, in_network: InNetwork, collective: Collective) -> f64 {
    let bound = bounds(fabric).with_in_network(in_network).bound(&call(collective, GIB, fabric.gpus().len() as u32));
    GIB.0 as f64 * 1e3 / bound.transfer.0 as f64
}

fn hosts(preset: &str, nodes: u32, network: &str) -> Fabric {
    let network = (nodes > 1).then(|| network.parse().unwrap());
    load(&FabricRequest { fabric: preset.to_owned(), nodes: Some(nodes), gpus: None, network, gpu: None, drives: None })
        .unwrap()
}

/// Returns the topology drawn in ForestColl's paper: GPUs on an NVSwitch, each with a separate link to a single network
/// switch.
fn boxes(count: u32) -> Fabric {
    let mut text = String::from("name = \"boxes\"\n[[node]]\nid = \"ib\"\nkind = \"switch\"\n");
    for host in 0..count {
        text += &format!("[[node]]\nid = \"n{host}/sw\"\nkind = \"nvswitch\"\nhost = \"n{host}\"\n");
        for gpu in 0..8 {
            text += &format!("[[node]]\nid = \"n{host}/gpu{gpu}\"\nkind = \"gpu\"\nhost = \"n{host}\"\n");
            for (to, kind, rate) in [(format!("n{host}/sw"), "nvlink", 300), ("ib".to_owned(), "infiniband", 25)] {
                text += &format!(
                    "[[link]]\na = \"n{host}/gpu{gpu}\"\nb = \"{to}\"\nkind = \"{kind}\"\nbandwidth = \"{rate} GB/s\"\n"
                );
            }
        }
    }
    read_text(&text, "boxes.toml").unwrap()
}

#[test]
fn a100_boxes_match_forestcoll_published_optima() {
    for boxes_of_8 in [1u32, 2, 4, 8] {
        let n = f64::from(8 * boxes_of_8);
        let (per_rank, per_host) = (325.0 * n / (n - 1.0), if n > 8.0 { 8.0 * 25.0 * n / (n - 8.0) } else { f64::MAX });
        let expected = if boxes_of_8 == 1 { 300.0 * 8.0 / 7.0 } else { per_rank.min(per_host) };
        let preset = hosts("dgx-a100", boxes_of_8, "rail,nic=200Gb/s");
        let close = |rate: f64| (rate / expected - 1.0).abs() < 1e-6;
        assert!(close(rate(&preset, InNetwork::Allowed, Collective::AllGather)), "{boxes_of_8} boxes: {expected}");
        if boxes_of_8 > 1 {
            let topology = boxes(boxes_of_8);
            for collective in [Collective::AllGather, Collective::ReduceScatter] {
                let actual = rate(&topology, InNetwork::Allowed, collective);
                assert!(close(actual), "{boxes_of_8} boxes: {collective} {actual}, published {expected}");
            }
            let actual = rate(&topology, InNetwork::Allowed, Collective::AllReduce);
            assert!(close(2.0 * actual), "{boxes_of_8} boxes: all_reduce at {actual}");
        }
    }
    let close = |actual: f64, published: f64| assert!((actual - published).abs() < 0.005, "{actual}, not {published}");
    close(rate(&hosts("dgx-a100", 1, ""), InNetwork::Allowed, Collective::AllGather), 342.86);
    close(rate(&boxes(2), InNetwork::Allowed, Collective::AllGather), 346.67);
}

#[test]
fn in_network_reduction_raises_only_the_all_reduce_rate() {
    let h200 = hosts("hgx-h200", 1, "");
    let close =
        |actual: f64, expected: f64| assert!((actual / expected - 1.0).abs() < 1e-9, "{actual}, not {expected}");
    close(rate(&h200, InNetwork::Allowed, Collective::AllReduce), 450.0);
    close(rate(&h200, InNetwork::Off, Collective::AllReduce), 450.0 * 4.0 / 7.0);
    for collective in [Collective::AllGather, Collective::ReduceScatter] {
        close(rate(&h200, InNetwork::Allowed, collective), 450.0 * 8.0 / 7.0);
    }
    // No switch reduces between hosts: 16 hosts at 400 GB/s each.
    let multi_host = hosts("hgx-h200", 16, "rail");
    close(rate(&multi_host, InNetwork::Allowed, Collective::AllReduce), 400.0 * 8.0 / 15.0);
    // The NVSwitch of an A100 does not reduce.
    let a100 = hosts("dgx-a100", 1, "");
    close(rate(&a100, InNetwork::Allowed, Collective::AllReduce), 300.0 * 4.0 / 7.0);
}

/// Accelerators in a line with a slow link in the middle.
const LINE: &str = r#"
name = "line"
[[node]]
id = "tpu[0-5]"
kind = "accelerator"
[[link]]
a = "tpu[0-1]"
b = "tpu[1-2]"
kind = "nvlink"
bandwidth = "100 GB/s"
latency = "1 us"
[[link]]
a = "tpu[3-4]"
b = "tpu[4-5]"
kind = "nvlink"
bandwidth = "100 GB/s"
latency = "1 us"
[[link]]
a = "tpu2"
b = "tpu3"
kind = "nvlink"
bandwidth = "20 GB/s"
latency = "1 us"
"#;

#[test]
fn bottleneck_cut_is_named() {
    let line = read_text(LINE, "line.toml").unwrap();
    let bound = bounds(&line).bound(&call(Collective::AllToAll, Bytes(6_000_000), 6));
    assert_eq!(bound.limited_by.to_string(), "cut of 3 ranks: tpu0, tpu1, tpu2", "{bound:?}");
    // 9 pairs of 1 MB over 20 GB/s.
    assert_eq!(bound.transfer, Picos::from_us(450.0));
    assert_eq!(BoundSource::HostPorts.to_string(), "host ports");
}

#[test]
fn all_to_all_on_a_ring_is_bounded_by_total_path_length() {
    let link = |i: usize| {
        format!("[[link]]\na = \"tpu{i}\"\nb = \"tpu{}\"\nkind = \"nvlink\"\nbandwidth = \"50 GB/s\"\n", (i + 1) % 7)
    };
    let links: String = (0..7).map(link).collect();
    let devices = "name = \"circle\"\n[[node]]\nid = \"tpu[0-6]\"\nkind = \"accelerator\"\n";
    let circle = read_text(&format!("{devices}{links}"), "circle.toml").unwrap();
    // The blocks of 1 MB of each rank pass 2 × (1 + 2 + 3) links; there are 14 link directions of 50 GB/s.
    let bound = bounds(&circle).bound(&call(Collective::AllToAll, Bytes(7_000_000), 7));
    assert_eq!(bound.transfer, Picos(7 * 12 * 1_000_000 * 1_000 / (14 * 50)));
}

#[test]
fn longest_path_latency_bounds_small_calls() {
    let line = read_text(LINE, "line.toml").unwrap();
    for (collective, latency) in [
        (Collective::AllReduce, 5.0),
        (Collective::AllGather, 5.0),
        (Collective::Broadcast, 5.0),
        (Collective::Gather, 5.0),
        // From the last rank to the first.
        (Collective::SendRecv, 5.0),
    ] {
        let bound = bounds(&line).bound(&call(collective, Bytes(1), 6));
        assert!(bound.time >= Picos::from_us(latency) && bound.time < Picos::from_us(latency + 0.01), "{bound:?}");
    }
}

/// A link that was slowed to the rate of the others makes its GPU no twin of theirs: 7/8 of the buffer through 100 GB/s.
#[test]
fn slowed_links_have_no_twins_of_other_nominal_rates() {
    let mut text = String::from("name = \"star\"\n[[node]]\nid = \"nvs\"\nkind = \"nvswitch\"\n");
    for gpu in 0..8 {
        let rate = if gpu == 0 { 200 } else { 100 };
        text += &format!(
            "[[node]]\nid = \"g{gpu}\"\nkind = \"gpu\"\n[[link]]\na = \"g{gpu}\"\nb = \"nvs\"\nkind = \"nvlink\"\nbandwidth = \"{rate} GB/s\"\n"
        );
    }
    let fabric = read_text(&text, "star.toml").unwrap().with_slowed("g0-nvs", 0.5).unwrap();
    let bound = bounds(&fabric).bound(&call(Collective::AllToAll, GIB, 8));
    let expected = 7.0 / 8.0 * GIB.0 as f64 / 100e9 * 1e12;
    assert!((bound.transfer.0 as f64 / expected - 1.0).abs() < 1e-4, "{bound:?} for {expected}");
}

#[test]
fn links_without_a_stated_rate_limit_nothing() {
    let mut text = String::from(
        "name = \"free\"\n[[node]]\nid = \"gpu[0-3]\"\nkind = \"gpu\"\n[[node]]\nid = \"sw\"\nkind = \"nvswitch\"\n",
    );
    text += "[[link]]\na = \"gpu[0-3]\"\nb = \"sw\"\nkind = \"nvlink\"\nlatency = \"1 us\"\n";
    let free = read_text(&text, "free.toml").unwrap();
    for collective in Collective::ALL {
        let even = TrafficMatrix::even(4, GIB).unwrap();
        let bound =
            bounds(&free).with_in_network(InNetwork::Off).with_matrix(Some(&even)).bound(&call(collective, GIB, 4));
        assert_eq!((bound.time, bound.transfer), (Picos::from_us(2.0), Picos::ZERO), "{collective}");
        assert_eq!(bound.limited_by, BoundSource::Latency);
    }
}

/// Returns all pairs of links that some route uses consecutively.
fn turns(fabric: &Fabric) -> BTreeSet<(LinkId, LinkId)> {
    let router = Router::new(fabric, RouteOptions::default());
    let mut turns = BTreeSet::new();
    for transit in router.island_traffic(fabric.gpus()) {
        for &island in &transit.islands {
            turns.extend(router.island_turns(island, &transit));
        }
    }
    turns
}

#[test]
fn failures_without_new_routes_lower_no_bound() {
    for fabric in [hosts("dgx-a100", 2, "rail,nic=200Gb/s"), hosts("hgx-h200", 2, "fat_tree"), boxes(2)] {
        let (intact, used_turns) = (bounds(&fabric), turns(&fabric));
        let mut compared = 0;
        for link in (0..fabric.link_count() as u32).step_by(2).map(LinkId) {
            let name = fabric.link_name(link).replace("->", "-");
            let broken = fabric.with_failed(&name).unwrap();
            // Routing may use links after the failure that it did not use before, and these may be faster.
            if !turns(&broken).is_subset(&used_turns) {
                continue;
            }
            compared += 1;
            let after = bounds(&broken);
            for collective in Collective::ALL {
                let call = call(collective, GIB, fabric.gpus().len() as u32);
                let (before, after) = (intact.bound(&call), after.bound(&call));
                assert!(after.transfer >= before.transfer, "{collective} without {name}: {after:?} under {before:?}");
            }
        }
        assert!(compared >= 16, "{compared} of {}", fabric.link_count());
    }
}

/// Generates wirings of up to ten vertices, with the number of ranks of each device.
pub(super) fn wirings() -> impl Strategy<Value = (Wiring, Vec<u32>)> {
    let capacity = prop_oneof![8 => 1u128..20, 2 => (1u128..4).prop_map(|c| c * 1_000_000_007), 1 => Just(UNLIMITED)];
    (2usize..7, 0u32..4).prop_flat_map(move |(devices, switches)| {
        let vertices = devices as u32 + switches;
        let wire = (0..vertices, 0..vertices, capacity.clone(), 0u64..9);
        (vec(wire, 1..30), vec(prop_oneof![4 => Just(1u32), 1 => Just(2)], devices)).prop_map(move |(wires, ranks)| {
            let ends = (NodeKind::Gpu, NodeKind::Nvswitch);
            let wires = wires.into_iter().filter(|wire| wire.0 != wire.1);
            let wires = wires.map(|(from, to, capacity, ns)| Wire {
                from,
                to,
                ends,
                nominal: capacity,
                capacity,
                latency: Picos(ns),
            });
            (Wiring { vertices, devices: Vec::new(), wires: wires.collect() }, ranks)
        })
    })
}

/// Generates wirings with a few kinds of wires between devices and switches, and some between devices, so that many
/// devices have twins.
fn wirings_with_twins() -> impl Strategy<Value = (Wiring, Vec<u32>)> {
    let wire = |from: u32, to: u32, capacity: u128, ns: u64| {
        let ends = (NodeKind::Gpu, NodeKind::Nvswitch);
        Wire { from, to, ends, nominal: capacity, capacity, latency: Picos(ns) }
    };
    let ports = vec(((0u128..3, 0u128..3), 0u64..2), 12);
    (2u32..7, ports, vec((0u32..6, 0u32..6), 0..2), vec(prop_oneof![6 => Just(1u32), 1 => Just(2)], 6)).prop_map(
        move |(devices, ports, between, ranks)| {
            let mut wires = Vec::new();
            for (number, ((out, into), ns)) in (0u32..).zip(ports) {
                let (device, switch) = (number / 2, devices + number % 2);
                if device < devices && out > 0 {
                    wires.push(wire(device, switch, out, ns));
                }
                if device < devices && into > 0 {
                    wires.push(wire(switch, device, into, ns));
                }
            }
            wires.push(wire(devices, devices + 1, 2, 1));
            wires.push(wire(devices + 1, devices, 2, 1));
            let joined = between.into_iter().filter(|&(a, b)| a != b && a.max(b) < devices);
            wires.extend(joined.map(|(a, b)| wire(a, b, 1, 3)));
            (Wiring { vertices: devices + 2, devices: Vec::new(), wires }, ranks[..devices as usize].to_vec())
        },
    )
}

/// Returns the total capacity of the wires out of a set of vertices.
fn leaving(wiring: &Wiring, set: u32) -> u128 {
    let leaves = |wire: &&Wire| set >> wire.from & 1 == 1 && set >> wire.to & 1 == 0;
    wiring.wires.iter().filter(leaves).map(|wire| wire.capacity).sum::<u128>().min(UNLIMITED)
}

fn ranks_in(ranks: &[u32], set: u32) -> u128 {
    ranks.iter().enumerate().filter(|(device, _)| set >> device & 1 == 1).map(|(_, &ranks)| u128::from(ranks)).sum()
}

fn lowest((a, b): (u128, u128)) -> (u128, u128) {
    (a / gcd(a, b), b / gcd(a, b))
}

/// Returns the slowest of the sets accepted by `keep`: its number of ranks and the capacity out of it, in lowest terms.
fn slowest_of_all(wiring: &Wiring, ranks: &[u32], keep: impl Fn(u32) -> bool) -> Option<(u128, u128)> {
    let sets = (1u32..1 << wiring.vertices).filter(|&set| keep(set) && ranks_in(ranks, set) > 0);
    let cuts = sets.map(|set| (ranks_in(ranks, set), leaving(wiring, set))).filter(|cut| cut.1 < UNLIMITED);
    cuts.reduce(|a, b| if b.0 * a.1 > a.0 * b.1 { b } else { a })
        .map(|cut| if cut.1 == 0 { (1, 0) } else { lowest(cut) })
}

fn all_finite(wiring: &Wiring) -> u128 {
    wiring.wires.iter().map(|wire| wire.capacity).filter(|&capacity| capacity < UNLIMITED).sum::<u128>() + 1
}

/// Returns the ratio of the slowest cut that the search finds from the devices in `starts`, in lowest terms.
fn searched(
    wiring: &Wiring,
    ranks: &[u32],
    direction: Direction,
    starts: std::ops::Range<u32>,
) -> Option<(u128, u128)> {
    let mut search = Search::new(wiring, ranks, direction);
    let mut slowest = CutRatio { ranks: 1, through: all_finite(wiring) };
    let slowest_cut = starts.filter_map(|start| search.slowest_blocks(start, &mut slowest)).last();
    slowest_cut.map(|cut| if cut.through == 0 { (1, 0) } else { lowest((cut.ranks, cut.through)) })
}

fn reversed(wiring: &Wiring) -> Wiring {
    let back = |wire: &Wire| Wire { from: wire.to, to: wire.from, ..*wire };
    Wiring { vertices: wiring.vertices, devices: Vec::new(), wires: wiring.wires.iter().map(back).collect() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Maximum flow equals the capacity of the minimum cut, found by enumeration of all cuts.
    #[test]
    fn maximum_flow_equals_minimum_cut((wiring, _) in wirings(), scale in 1u128..1_000_000_000_000) {
        let arcs: Vec<_> = wiring.wires.iter().map(|wire| (wire.from, wire.to, wire.capacity)).collect();
        let mut network = FlowNetwork::new(wiring.vertices as usize, &arcs);
        for to in 1..wiring.vertices {
            let cuts = (0u32..1 << wiring.vertices).filter(|set| set & 1 == 1 && set >> to & 1 == 0);
            let minimum = cuts.map(|set| leaving(&wiring, set)).min().unwrap();
            let minimum = if minimum >= UNLIMITED { UNLIMITED } else { minimum * scale };
            prop_assert_eq!(network.run(0, [(to, UNLIMITED)], scale), minimum);
            // A second run with another scale and another drain must not depend on the first.
            prop_assert_eq!(network.run(0, [(to, 1)], 1), minimum.min(1));
        }
    }

    /// The search for all_gather, reduce_scatter, gather and scatter finds exactly the slowest of all sets.
    #[test]
    fn slowest_set_matches_enumeration((wiring, ranks) in wirings()) {
        let devices = ranks.len() as u32;
        let others = |set: u32| (0..devices).any(|device| set >> device & 1 == 0);
        let without_first = |set: u32| set & 1 == 0;
        let back = reversed(&wiring);
        let slowest = |wiring: &Wiring, keep: &dyn Fn(u32) -> bool| slowest_of_all(wiring, &ranks, keep);
        prop_assert_eq!(searched(&wiring, &ranks, Direction::Towards, 0..devices), slowest(&wiring, &others));
        prop_assert_eq!(searched(&wiring, &ranks, Direction::Away, 0..devices), slowest(&back, &others));
        prop_assert_eq!(searched(&wiring, &ranks, Direction::Towards, 0..1), slowest(&wiring, &without_first));
        prop_assert_eq!(searched(&wiring, &ranks, Direction::Away, 0..1), slowest(&back, &without_first));
    }

    /// The search for broadcast finds the minimum cut between the root and any other device.
    #[test]
    fn minimum_cut_matches_enumeration((wiring, ranks) in wirings()) {
        let sets = (0u32..1 << wiring.vertices).filter(|set| set & 1 == 1);
        let cuts = sets.filter(|set| (1..ranks.len()).any(|device| set >> device & 1 == 0));
        let minimum = cuts.map(|set| leaving(&wiring, set)).min().unwrap();
        let mut search = Search::new(&wiring, &ranks, Direction::Away);
        let mut through = all_finite(&wiring);
        for other in 1..ranks.len() as u32 {
            if let Some(cut) = search.minimum_cut(0, other, through) {
                through = cut.through;
                prop_assert!(!cut.beyond[0] && cut.beyond[other as usize]);
            }
        }
        prop_assert_eq!(through, minimum.min(all_finite(&wiring)));
    }

    /// The slowest cut is no slower with a faster wire, and no faster without a wire.
    #[test]
    fn more_capacity_is_never_slower((wiring, ranks) in wirings(), wire in any::<prop::sample::Index>(), more in 1u128..50) {
        prop_assume!(!wiring.wires.is_empty());
        let devices = ranks.len() as u32;
        let search = |wiring: &Wiring| searched(wiring, &ranks, Direction::Towards, 0..devices);
        let slower = |a: Option<(u128, u128)>, b: Option<(u128, u128)>| match (a, b) {
            (Some(a), Some(b)) => a.0 * b.1 > b.0 * a.1,
            (a, b) => a.is_some() && b.is_none(),
        };
        let (mut faster, mut reduced) = (wiring.clone(), wiring.clone());
        let number = wire.index(wiring.wires.len());
        faster.wires[number].capacity = (faster.wires[number].capacity + more).min(UNLIMITED);
        reduced.wires.remove(number);
        prop_assert!(!slower(search(&faster), search(&wiring)));
        prop_assert!(!slower(search(&wiring), search(&reduced)));
    }

    /// Shortest paths are as long as those found by the method of Bellman and Ford.
    #[test]
    fn distances_match_bellman_ford((wiring, ranks) in wirings()) {
        let mut distances = Distances::new(&wiring, ranks.len(), Direction::Away);
        for from in 0..ranks.len() as u32 {
            let mut shortest = vec![u64::MAX; wiring.vertices as usize];
            shortest[from as usize] = 0;
            for _ in 0..wiring.vertices {
                for wire in &wiring.wires {
                    let through = shortest[wire.from as usize].saturating_add(wire.latency.0);
                    shortest[wire.to as usize] = shortest[wire.to as usize].min(through);
                }
            }
            prop_assert_eq!(distances.distances_from([from]), &shortest[..ranks.len()]);
            let inside: Vec<bool> = (0..ranks.len() as u32).map(|device| device == from).collect();
            let nearest = (0..ranks.len()).filter(|&to| to as u32 != from).map(|to| shortest[to]).min();
            prop_assert_eq!(distances.nearest_outside(&inside), nearest.filter(|&l| l != u64::MAX).map(Picos));
        }
    }

    /// One search for all parts finds the distances that one search per part finds.
    #[test]
    fn nearest_of_others_matches_single_part_searches((wiring, ranks) in wirings(), parts in vec(0u32..3, 8)) {
        for direction in [Direction::Away, Direction::Towards] {
            let mut distances = Distances::new(&wiring, ranks.len(), direction);
            let part_by_device: Vec<u32> = (0..ranks.len()).map(|device| parts[device % parts.len()]).collect();
            let distances_by_part = distances.nearest_other_parts(&part_by_device, 3);
            for part in 0..3 {
                let others = (0..).zip(&part_by_device).filter(|(_, device_part)| **device_part != part).map(|(device, _)| device);
                let from_others = distances.distances_from(others.collect::<Vec<u32>>());
                let part_distances = from_others.iter().zip(&part_by_device).filter(|(_, device_part)| **device_part == part).map(|(distance, _)| *distance);
                let nearest = part_distances.min().filter(|&distance| distance != u64::MAX).map(Picos);
                prop_assert_eq!(distances_by_part[part as usize], nearest);
            }
        }
    }

    /// Distances, flows and cuts from a device equal those from each of its twins.
    #[test]
    fn twins_have_equal_distances_flows_and_cuts((wiring, ranks) in wirings_with_twins()) {
        let twins = InterchangeableDevices::new(&wiring, &ranks);
        let devices = ranks.len() as u32;
        prop_assert_eq!(twins.sets().iter().map(|&(_, size)| size).sum::<u32>(), devices);
        for direction in [Direction::Away, Direction::Towards] {
            let mut search = Search::new(&wiring, &ranks, direction);
            let mut distances = Distances::new(&wiring, ranks.len(), direction);
            let mut sorted_distances = |from: u32| {
                let mut sorted_distances = distances.distances_from([from]).to_vec();
                sorted_distances.sort_unstable();
                sorted_distances
            };
            let mut slowest = |from: u32| {
                let mut slowest = CutRatio { ranks: 1, through: all_finite(&wiring) };
                let _ = search.slowest_blocks(from, &mut slowest);
                (search.port(from), if slowest.through == 0 { (1, 0) } else { lowest((slowest.ranks, slowest.through)) })
            };
            for device in 0..devices {
                prop_assert_eq!(sorted_distances(device), sorted_distances(twins.first(device)));
                prop_assert_eq!(slowest(device), slowest(twins.first(device)));
            }
        }
        // The minimum cut to every other device equals that to one device per set.
        for start in 0..devices {
            let mut search = Search::new(&wiring, &ranks, Direction::Away);
            let mut min_capacity = |ends: Vec<u32>| {
                let limit = all_finite(&wiring);
                ends.into_iter().filter_map(|end| search.minimum_cut(start, end, limit)).map(|cut| cut.through).min()
            };
            let all = (0..devices).filter(|&other| other != start).collect();
            prop_assert_eq!(min_capacity(twins.others(start)), min_capacity(all));
        }
    }
}
