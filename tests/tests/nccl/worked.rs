//! Examples worked out by hand from NCCL's source, and tables from public logs.
//!
//! LOG A: eunomia-bpf/nccl-eBPF test notes (NCCL 2.29.7, one RTX 5090 as two nodes over sockets). LOG B: vLLM issue
//! 28901 (two Hopper GPUs). The tables of choices assume the usual graphs of the machines (NVIDIA/nccl issue 1197 for
//! 8 × H100), one tree pattern, and no latency stated by the network plugin.

use fabricast_libraries::nccl::{Algo, AlgoProto, Communicator, Function, NcclVersion, Proto, Request, kernel};
use fabricast_libraries::nccl::{Graph, Pattern};
use fabricast_topologies::Bytes;

use super::{Picker, communicator, graph};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Choices by size: the first power of two at which each algorithm and protocol is chosen.
type Steps<'a> = &'a [(u64, Algo, Proto)];

const ANY: u64 = 1 << 10;

fn assert_steps(picker: &Picker, function: Function, steps: Steps<'_>) {
    let mut actual: Vec<(u64, Algo, Proto)> = Vec::new();
    for power in 10..=33 {
        let pick = picker.pick(function, 1 << power);
        if actual.last().is_none_or(|&(_, algo, proto)| (algo, proto) != (pick.algo, pick.proto)) {
            actual.push((1 << power, pick.algo, pick.proto));
        }
    }
    assert_eq!(actual, steps, "{function}");
}

fn with_nvls(communicator: Communicator, nvls: Graph) -> Picker {
    let mut communicator = communicator;
    communicator.graphs.nvls = Some(nvls);
    Picker::new(communicator, NcclVersion::V2_30_7)
}

fn without_nvls(communicator: Communicator) -> Picker {
    Picker::new(communicator, NcclVersion::V2_30_7)
}

fn assert_cells(picker: &Picker, function: Function, cells: &[(Algo, Proto, f64, Option<f64>)]) {
    for &(algo, proto, us, gb_per_s) in cells {
        let cell = picker.table.cell(function, algo, proto);
        assert!(
            (cell.latency.us() - us).abs() <= 0.051,
            "{function} {algo} {proto}: {} µs, not {us}",
            cell.latency.us()
        );
        if let Some(gb_per_s) = gb_per_s {
            let actual = cell.bandwidth.gb_per_s();
            assert!((actual - gb_per_s).abs() <= 0.051, "{function} {algo} {proto}: {actual} GB/s, not {gb_per_s}");
        }
    }
}

fn h100s(nodes: u32) -> Communicator {
    match nodes {
        1 => communicator(1, 8, 90, 12, 30.0),
        _ => communicator(nodes, 8, 90, 8, 45.0),
    }
}

#[test]
fn log_a_two_nodes_of_one_rank_over_sockets() {
    let mut machine = communicator(2, 1, 120, 2, 1.2);
    machine.graphs.tree = graph(Pattern::Tree, 2, 2.4, 2.4);
    // The network paths of this machine cross the CPU, so LL128 is not used; its latency is printed nevertheless.
    for graph in [&mut machine.graphs.ring, &mut machine.graphs.tree] {
        graph.inter_class = fabricast_topologies::route::PathClass::Phb;
        graph.intra_class = fabricast_topologies::route::PathClass::Loc;
    }
    let picker = Picker::new(machine, NcclVersion::V2_30_7);
    assert_eq!(picker.communicator.channels(&picker.settings), 4);
    use {Algo::*, Proto::*};
    assert_cells(&picker, Function::Broadcast, &[(Ring, Ll, 9.3, Some(1.2)), (Ring, Simple, 22.4, Some(2.4))]);
    assert_cells(
        &picker,
        Function::AllGather,
        &[(Ring, Ll, 11.6, Some(2.4)), (Ring, Simple, 22.4, Some(4.8)), (Pat, Simple, 17.6, Some(3.6))],
    );
    assert_cells(
        &picker,
        Function::AllReduce,
        &[
            (Tree, Ll, 16.8, Some(0.5)),
            (Tree, Ll128, 31.0, None),
            (Tree, Simple, 36.4, Some(1.9)),
            (Ring, Ll, 16.6, Some(1.2)),
            (Ring, Simple, 36.4, Some(2.4)),
        ],
    );
    assert_steps(&picker, Function::Broadcast, &[(ANY, Ring, Ll), (32 * KIB, Ring, Simple)]);
    for (bytes, channels) in [(KIB, 1), (8 * KIB, 1), (16 * KIB, 2), (32 * KIB, 1), (64 * KIB, 2), (128 * KIB, 4)] {
        let pick = picker.pick(Function::Broadcast, bytes);
        let request = Request::new(Function::Broadcast, Bytes(bytes));
        let strategy = AlgoProto { algo: pick.algo, proto: pick.proto };
        let kernel = kernel(&picker.communicator, picker.version, &picker.settings, &picker.table, &request, strategy);
        assert_eq!(kernel.channels, channels, "{bytes}: {kernel:?}");
    }
}

#[test]
fn log_b_two_hoppers() {
    let picker = without_nvls(communicator(1, 2, 90, 8, 20.0));
    use {Algo::*, Proto::*};
    assert_cells(
        &picker,
        Function::Broadcast,
        &[(Ring, Ll, 7.2, Some(80.0)), (Ring, Ll128, 15.9, Some(147.2)), (Ring, Simple, 11.8, Some(160.0))],
    );
    assert_cells(
        &picker,
        Function::AllGather,
        &[(Ring, Ll, 7.2, Some(160.0)), (Ring, Ll128, 15.9, Some(294.4)), (Ring, Simple, 11.8, Some(320.0))],
    );
}

#[test]
fn one_node_of_a100() {
    let picker = without_nvls(communicator(1, 8, 80, 12, 20.0));
    use {Algo::Ring, Proto::*};
    let sums = [(ANY, Ring, Ll), (4 * MIB, Ring, Ll128), (32 * MIB, Ring, Simple)];
    assert_steps(&picker, Function::AllReduce, &sums);
    let blocks = [(ANY, Ring, Ll), (4 * MIB, Ring, Ll128), (16 * MIB, Ring, Simple)];
    assert_steps(&picker, Function::AllGather, &blocks);
    assert_steps(&picker, Function::ReduceScatter, &blocks);
    assert_steps(&picker, Function::Broadcast, &[(ANY, Ring, Ll), (MIB, Ring, Simple)]);
}

#[test]
fn one_node_of_h100() {
    use {Algo::*, Proto::*};
    let picker = with_nvls(h100s(1), graph(Pattern::Nvls, 8, 40.0, 60.0));
    assert_cells(
        &picker,
        Function::AllReduce,
        &[
            (Ring, Ll, 15.0, Some(80.6)),
            (Ring, Ll128, 40.6, Some(189.3)),
            (Ring, Simple, 56.0, Some(205.7)),
            (Tree, Ll, 15.2, Some(43.6)),
            (Tree, Ll128, 31.5, Some(128.8)),
            (Tree, Simple, 64.4, Some(165.6)),
            (Nvls, Simple, 25.0, Some(272.0)),
        ],
    );
    assert_steps(&picker, Function::AllReduce, &[(ANY, Ring, Ll), (2 * MIB, Nvls, Simple)]);
    let blocks = [(ANY, Ring, Ll), (8 * MIB, Ring, Ll128), (32 * MIB, Ring, Simple)];
    assert_steps(&picker, Function::AllGather, &blocks);
    assert_steps(&picker, Function::Broadcast, &[(ANY, Ring, Ll), (2 * MIB, Ring, Simple)]);
    for (bytes, us) in
        [(KIB, 15.0), (64 * KIB, 15.8), (MIB, 28.0), (16 * MIB, 86.7), (256 * MIB, 1012.0), (GIB, 3973.0)]
    {
        let actual = picker.pick(Function::AllReduce, bytes).time.us();
        assert!((actual / us - 1.0).abs() < 0.003, "{bytes}: {actual} µs, not {us}");
    }
    let no_nvls = without_nvls(h100s(1));
    let sums = [(ANY, Ring, Ll), (4 * MIB, Ring, Ll128), (64 * MIB, Ring, Simple)];
    assert_steps(&no_nvls, Function::AllReduce, &sums);
}

#[test]
fn one_node_of_b200() {
    use {Algo::*, Proto::*};
    let picker = with_nvls(communicator(1, 8, 100, 16, 45.0), graph(Pattern::Nvls, 8, 80.0, 90.0));
    let cells = [(Nvls, Simple, 25.0, Some(411.4)), (Ring, Simple, 56.0, Some(411.4))];
    assert_cells(&picker, Function::AllReduce, &cells);
    assert_steps(&picker, Function::AllReduce, &[(ANY, Ring, Ll), (4 * MIB, Nvls, Simple)]);
    let blocks = [(ANY, Ring, Ll), (16 * MIB, Ring, Ll128), (32 * MIB, Ring, Simple)];
    assert_steps(&picker, Function::AllGather, &blocks);
    assert_steps(&picker, Function::Broadcast, &[(ANY, Ring, Ll), (4 * MIB, Ring, Simple)]);
    assert!((picker.pick(Function::AllReduce, GIB).time.us() / 2635.0 - 1.0).abs() < 0.003);
}

#[test]
fn two_nodes_of_h100() {
    use {Algo::*, Proto::*};
    let picker = with_nvls(h100s(2), graph(Pattern::Nvls, 8, 40.0, 48.0));
    assert_cells(
        &picker,
        Function::AllReduce,
        &[
            (Tree, Ll, 25.2, Some(19.5)),
            (Tree, Ll128, 48.5, Some(146.8)),
            (Tree, Simple, 92.4, Some(165.6)),
            (Ring, Ll, 40.0, Some(20.8)),
            (Ring, Ll128, 75.2, Some(156.6)),
            (Ring, Simple, 131.6, Some(192.0)),
            (NvlsTree, Simple, 66.8, Some(246.2)),
        ],
    );
    let sums = [(ANY, Tree, Ll), (256 * KIB, Tree, Ll128), (4 * MIB, NvlsTree, Simple)];
    assert_steps(&picker, Function::AllReduce, &sums);
    let blocks = [(ANY, Ring, Ll), (MIB, Ring, Ll128), (64 * MIB, Ring, Simple)];
    assert_steps(&picker, Function::AllGather, &blocks);
    let chain = [(ANY, Ring, Ll), (512 * KIB, Ring, Ll128), (8 * MIB, Ring, Simple)];
    assert_steps(&picker, Function::Broadcast, &chain);
    for (bytes, us) in [(MIB, 60.4), (16 * MIB, 134.9), (256 * MIB, 1157.0), (GIB, 4428.0)] {
        let actual = picker.pick(Function::AllReduce, bytes).time.us();
        assert!((actual / us - 1.0).abs() < 0.003, "{bytes}: {actual} µs, not {us}");
    }
    let no_nvls = without_nvls(h100s(2));
    let sums = [(ANY, Tree, Ll), (256 * KIB, Tree, Ll128), (32 * MIB, Ring, Ll128), (128 * MIB, Ring, Simple)];
    assert_steps(&no_nvls, Function::AllReduce, &sums);
}

#[test]
fn sixteen_nodes_of_h100() {
    use {Algo::*, Proto::*};
    let picker = with_nvls(h100s(16), graph(Pattern::Nvls, 8, 40.0, 48.0));
    assert_cells(
        &picker,
        Function::AllReduce,
        &[
            (Tree, Ll, 55.2, None),
            (Tree, Ll128, 99.5, None),
            (Tree, Simple, 176.4, None),
            (Ring, Ll, 311.6, None),
            (Ring, Ll128, 559.6, None),
            (Ring, Simple, 1190.0, None),
            (NvlsTree, Simple, 192.2, Some(183.4)),
        ],
    );
    let sums = [(ANY, Tree, Ll), (256 * KIB, Tree, Ll128), (32 * MIB, NvlsTree, Simple)];
    assert_steps(&picker, Function::AllReduce, &sums);
    let blocks = [(ANY, Ring, Ll), (4 * MIB, Ring, Ll128), (512 * MIB, Ring, Simple)];
    assert_steps(&picker, Function::AllGather, &blocks);
    let chain = [(ANY, Ring, Ll), (256 * KIB, Ring, Ll128), (8 * MIB, Ring, Simple)];
    assert_steps(&picker, Function::Broadcast, &chain);
    assert!((picker.pick(Function::AllReduce, GIB).time.us() / 6046.0 - 1.0).abs() < 0.003);
}

#[test]
fn chains_count_every_hop_if_channels_differ() {
    let mut machine = h100s(2);
    machine.graphs.ring.paths = fabricast_libraries::nccl::ChannelPaths::Differ;
    let picker = without_nvls(machine);
    assert_cells(&picker, Function::Broadcast, &[(Algo::Ring, Proto::Ll, 49.8, None)]);
}
