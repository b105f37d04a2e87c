//! NCCL versions before 2.28, each where it differs from the next: table cells and shares derived by hand from the
//! sources named in planner/library/nccl/version (NVIDIA/nccl v2.20.3-1, v2.22.3-1, v2.26.2-1, v2.27.3-1).

use fabricast_planner::library::nccl::graph::Pattern;
use fabricast_planner::library::nccl::{
    Absent, Algo, Communicator, Function, Nearness, Nic, Proto, Request, Settings, Version, working_channels,
};
use fabricast_topologies::{Bandwidth, Bytes};

use super::{Picker, communicator, graph};

/// Cell of the table in all versions: µs and GB/s, to a tenth.
fn cells(of: &Communicator, function: Function, algo: Algo, proto: Proto) -> Vec<(f64, f64)> {
    let tenths = |value: f64| (value * 10.0).round() / 10.0;
    Version::ALL
        .map(|version| {
            let picker = Picker::new(*of, version);
            let cell = picker.table.cell(function, algo, proto);
            (tenths(cell.latency.us()), tenths(cell.bandwidth.gbps()))
        })
        .to_vec()
}

/// Availability of a strategy in all versions.
fn taken(of: &Communicator, function: Function, algo: Algo, proto: Proto) -> Vec<Result<(), Absent>> {
    Version::ALL.map(|version| Picker::new(*of, version).table.cell(function, algo, proto).taken).to_vec()
}

fn with_switches(nodes: u32, sm: u32) -> Communicator {
    let mut of = if nodes == 1 { communicator(1, 8, sm, 12, 30.0) } else { communicator(nodes, 8, sm, 8, 45.0) };
    of.graphs.nvls = Some(graph(Pattern::Nvls, 8, 40.0, 45.0));
    of
}

fn latencies(cells: &[(f64, f64)]) -> Vec<f64> {
    cells.iter().map(|cell| cell.0).collect()
}

fn bandwidths(cells: &[(f64, f64)]) -> Vec<f64> {
    cells.iter().map(|cell| cell.1).collect()
}

#[test]
fn simple_trees_have_a_cost_per_chunk_until_2_22() {
    let one = cells(&communicator(1, 8, 80, 4, 20.0), Function::AllReduce, Algo::Tree, Proto::Simple);
    assert_eq!(latencies(&one)[..4], [392.0, 392.0, 64.4, 64.4]);
    let two = cells(&with_switches(2, 90), Function::AllReduce, Algo::Tree, Proto::Simple);
    assert_eq!(latencies(&two)[..5], [448.0, 448.0, 92.4, 92.4, 92.4]);
}

#[test]
fn ll_rings_have_less_bandwidth_in_2_20() {
    let of = communicator(1, 8, 80, 4, 20.0);
    let ll = |function| bandwidths(&cells(&of, function, Algo::Ring, Proto::Ll))[..3].to_vec();
    assert_eq!(ll(Function::AllReduce), [11.4, 22.9, 22.9]);
    assert_eq!(ll(Function::AllGather), [30.5, 45.7, 45.7]);
    assert_eq!(ll(Function::Broadcast), [26.7, 40.0, 40.0]);
    assert_eq!(ll(Function::Reduce), [20.0, 40.0, 40.0]);
}

#[test]
fn rings_have_two_more_hops_until_2_22() {
    let two = cells(&with_switches(2, 90), Function::AllReduce, Algo::Ring, Proto::Ll);
    assert_eq!(latencies(&two)[..5], [43.4, 43.4, 40.0, 40.0, 40.0]);
}

#[test]
fn single_rank_nodes_have_other_latency_and_bandwidth_until_2_22() {
    let of = communicator(2, 1, 90, 2, 45.0);
    let ll = cells(&of, Function::AllReduce, Algo::Ring, Proto::Ll);
    assert_eq!(latencies(&ll)[..4], [15.4, 15.4, 16.6, 16.6]);
    let ll128 = cells(&of, Function::AllReduce, Algo::Ring, Proto::Ll128);
    assert_eq!(bandwidths(&ll128)[..4], [63.0, 63.0, 73.4, 73.4]);
    let pat = taken(&of, Function::AllGather, Algo::Pat, Proto::Simple);
    assert_eq!(pat[..3], [Err(Absent::NoKernel), Err(Absent::NoKernel), Ok(())]);
}

#[test]
fn nvls_efficiency_is_five_sixths_until_2_27() {
    let one = with_switches(1, 90);
    let reduce = cells(&one, Function::AllReduce, Algo::Nvls, Proto::Simple);
    assert_eq!(latencies(&reduce)[..5], [23.0, 25.0, 25.0, 25.0, 25.0]);
    assert_eq!(bandwidths(&reduce)[..4], [266.7; 4]);
    let gather = cells(&one, Function::AllGather, Algo::Nvls, Proto::Simple);
    assert_eq!(bandwidths(&gather)[..5], [266.7, 266.7, 320.0, 280.0, 208.3]);
}

#[test]
fn nvls_trees_use_half_of_the_network_beyond_two_nodes_until_2_27() {
    let tree = |nodes| cells(&with_switches(nodes, 90), Function::AllReduce, Algo::NvlsTree, Proto::Simple);
    assert_eq!(latencies(&tree(2))[..6], [51.0, 53.0, 53.0, 53.0, 53.0, 66.8]);
    assert_eq!(bandwidths(&tree(2))[..5], [266.7, 266.7, 266.7, 266.7, 246.2]);
    assert_eq!(bandwidths(&tree(4))[..5], [150.0, 150.0, 150.0, 150.0, 185.8]);
}

#[test]
fn blackwell_constants_evolve_from_hoppers() {
    let of = with_switches(1, 100);
    let ll128 = taken(&of, Function::AllReduce, Algo::Ring, Proto::Ll128);
    assert_eq!(ll128[..3], [Err(Absent::UnsafeLl128), Err(Absent::UnsafeLl128), Ok(())]);
    // 2 channels of 45 GB/s per node: limited by the rate of a channel.
    let slow = communicator(1, 8, 100, 2, 90.0);
    let ring = cells(&slow, Function::AllReduce, Algo::Ring, Proto::Ll128);
    assert_eq!(bandwidths(&ring)[2..6], [83.9, 83.9, 83.9, 45.7]);
    let tree = cells(&slow, Function::AllReduce, Algo::Tree, Proto::Simple);
    assert_eq!(bandwidths(&tree)[..5], [38.7, 38.7, 77.4, 77.4, 70.0]);
    let channels = |version| of.nvls(version, &Settings::default()).channels;
    assert_eq!(Version::ALL.map(channels), [16, 16, 32, 24, 24, 24, 24]);
    // Two nodes with NICs of 400 Gb/s that are not reached through switches alone: since 2.29 chunks depend on the
    // NICs.
    let mut two = with_switches(2, 100);
    let nic = Nic { bandwidth: Bandwidth::from_gbps(50.0), nearness: Nearness::Farther };
    two = Communicator { nic: Some(nic), fewest_ranks: 4, most_ranks: 4, ..two };
    let chunk = |version| (two.nvls(version, &Settings::default()).chunk.0) >> 10;
    assert_eq!(Version::ALL.map(chunk), [128, 128, 128, 128, 128, 256, 256]);
}

#[test]
fn older_versions_use_more_channels_for_a_call() {
    let of = communicator(1, 8, 90, 12, 30.0);
    let request = Request::new(Function::AllReduce, Bytes(1 << 10));
    let working = |version| working_channels(&of, version, &request, Proto::Simple, 16);
    assert_eq!(Version::ALL.map(working), [16, 4, 1, 1, 1, 1, 1]);
    let request = Request::new(Function::AllReduce, Bytes(1 << 18));
    let working = |version| working_channels(&of, version, &request, Proto::Simple, 16);
    assert_eq!(Version::ALL.map(working), [16, 16, 16, 16, 16, 16, 16]);
}

#[test]
fn symmetric_kernels_exist_since_2_27() {
    let known = Version::ALL.map(|version| (version.has_window_kernels(), version.has_copy_engines()));
    let (no, kernels, both) = ((false, false), (true, false), (true, true));
    assert_eq!(known, [no, no, no, kernels, both, both, both]);
}
