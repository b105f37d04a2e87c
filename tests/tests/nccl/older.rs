//! Tests of NCCL versions before 2.28, each where it differs from the next: table cells and shares derived by hand from
//! the sources named in planner/libraries/src/nccl/version.rs (NVIDIA/nccl v2.20.3-1, v2.22.3-1, v2.26.2-1, v2.27.3-1).

use fabricast_libraries::nccl::Pattern;
use fabricast_libraries::nccl::{
    Algo, Communicator, Function, NcclVersion, Nic, NicDistance, Proto, Request, Settings, Unavailable,
    working_channels,
};
use fabricast_topologies::{Bandwidth, Bytes};

use super::{Picker, communicator, graph};

/// Returns a cell of the table in all versions, in µs and GB/s, rounded to a tenth.
fn cells(comm: &Communicator, function: Function, algo: Algo, proto: Proto) -> Vec<(f64, f64)> {
    let tenths = |value: f64| (value * 10.0).round() / 10.0;
    NcclVersion::ALL
        .map(|version| {
            let picker = Picker::new(*comm, version);
            let cell = picker.table.cell(function, algo, proto);
            (tenths(cell.latency.us()), tenths(cell.bandwidth.gb_per_s()))
        })
        .to_vec()
}

/// Returns the availability of a strategy in all versions.
fn availability(comm: &Communicator, function: Function, algo: Algo, proto: Proto) -> Vec<Result<(), Unavailable>> {
    NcclVersion::ALL.map(|version| Picker::new(*comm, version).table.cell(function, algo, proto).availability).to_vec()
}

fn nvswitch_communicator(nodes: u32, sm: u32) -> Communicator {
    let mut comm = if nodes == 1 { communicator(1, 8, sm, 12, 30.0) } else { communicator(nodes, 8, sm, 8, 45.0) };
    comm.graphs.nvls = Some(graph(Pattern::Nvls, 8, 40.0, 45.0));
    comm
}

fn latencies(cells: &[(f64, f64)]) -> Vec<f64> {
    cells.iter().map(|cell| cell.0).collect()
}

fn bandwidths(cells: &[(f64, f64)]) -> Vec<f64> {
    cells.iter().map(|cell| cell.1).collect()
}

#[test]
fn simple_trees_have_a_cost_per_chunk_until_2_22() {
    let one_node = cells(&communicator(1, 8, 80, 4, 20.0), Function::AllReduce, Algo::Tree, Proto::Simple);
    assert_eq!(latencies(&one_node)[..4], [392.0, 392.0, 64.4, 64.4]);
    let two_nodes = cells(&nvswitch_communicator(2, 90), Function::AllReduce, Algo::Tree, Proto::Simple);
    assert_eq!(latencies(&two_nodes)[..5], [448.0, 448.0, 92.4, 92.4, 92.4]);
}

#[test]
fn ll_rings_have_less_bandwidth_in_2_20() {
    let comm = communicator(1, 8, 80, 4, 20.0);
    let ll = |function| bandwidths(&cells(&comm, function, Algo::Ring, Proto::Ll))[..3].to_vec();
    assert_eq!(ll(Function::AllReduce), [11.4, 22.9, 22.9]);
    assert_eq!(ll(Function::AllGather), [30.5, 45.7, 45.7]);
    assert_eq!(ll(Function::Broadcast), [26.7, 40.0, 40.0]);
    assert_eq!(ll(Function::Reduce), [20.0, 40.0, 40.0]);
}

#[test]
fn rings_have_two_more_hops_until_2_22() {
    let two_nodes = cells(&nvswitch_communicator(2, 90), Function::AllReduce, Algo::Ring, Proto::Ll);
    assert_eq!(latencies(&two_nodes)[..5], [43.4, 43.4, 40.0, 40.0, 40.0]);
}

#[test]
fn single_rank_nodes_have_other_latency_and_bandwidth_until_2_22() {
    let comm = communicator(2, 1, 90, 2, 45.0);
    let ll = cells(&comm, Function::AllReduce, Algo::Ring, Proto::Ll);
    assert_eq!(latencies(&ll)[..4], [15.4, 15.4, 16.6, 16.6]);
    let ll128 = cells(&comm, Function::AllReduce, Algo::Ring, Proto::Ll128);
    assert_eq!(bandwidths(&ll128)[..4], [63.0, 63.0, 73.4, 73.4]);
    let pat = availability(&comm, Function::AllGather, Algo::Pat, Proto::Simple);
    assert_eq!(pat[..3], [Err(Unavailable::NoKernel), Err(Unavailable::NoKernel), Ok(())]);
}

#[test]
fn nvls_efficiency_is_five_sixths_until_2_27() {
    let comm = nvswitch_communicator(1, 90);
    let reduce = cells(&comm, Function::AllReduce, Algo::Nvls, Proto::Simple);
    assert_eq!(latencies(&reduce)[..5], [23.0, 25.0, 25.0, 25.0, 25.0]);
    assert_eq!(bandwidths(&reduce)[..4], [266.7; 4]);
    let gather = cells(&comm, Function::AllGather, Algo::Nvls, Proto::Simple);
    assert_eq!(bandwidths(&gather)[..5], [266.7, 266.7, 320.0, 280.0, 208.3]);
}

#[test]
fn nvls_trees_use_half_of_the_network_beyond_two_nodes_until_2_27() {
    let tree = |nodes| cells(&nvswitch_communicator(nodes, 90), Function::AllReduce, Algo::NvlsTree, Proto::Simple);
    assert_eq!(latencies(&tree(2))[..6], [51.0, 53.0, 53.0, 53.0, 53.0, 66.8]);
    assert_eq!(bandwidths(&tree(2))[..5], [266.7, 266.7, 266.7, 266.7, 246.2]);
    assert_eq!(bandwidths(&tree(4))[..5], [150.0, 150.0, 150.0, 150.0, 185.8]);
}

#[test]
fn blackwell_constants_evolve_from_hoppers() {
    let comm = nvswitch_communicator(1, 100);
    let ll128 = availability(&comm, Function::AllReduce, Algo::Ring, Proto::Ll128);
    assert_eq!(ll128[..3], [Err(Unavailable::UnsafeLl128), Err(Unavailable::UnsafeLl128), Ok(())]);
    // With 2 channels of 45 GB/s per node, the rate of a channel is the limit.
    let few_channels = communicator(1, 8, 100, 2, 90.0);
    let ring = cells(&few_channels, Function::AllReduce, Algo::Ring, Proto::Ll128);
    assert_eq!(bandwidths(&ring)[2..6], [83.9, 83.9, 83.9, 45.7]);
    let tree = cells(&few_channels, Function::AllReduce, Algo::Tree, Proto::Simple);
    assert_eq!(bandwidths(&tree)[..5], [38.7, 38.7, 77.4, 77.4, 70.0]);
    let channels = |version| comm.nvls_shape(version, &Settings::default()).channels;
    assert_eq!(NcclVersion::ALL.map(channels), [16, 16, 32, 24, 24, 24, 24]);
    // Two nodes have NICs of 400 Gb/s that are not reached through switches alone; since 2.29 chunks depend on the
    // NICs.
    let mut two_nodes = nvswitch_communicator(2, 100);
    let nic = Nic { bandwidth: Bandwidth::from_gb_per_s(50.0), distance: NicDistance::Farther };
    two_nodes = Communicator { nic: Some(nic), min_ranks_per_node: 4, max_ranks_per_node: 4, ..two_nodes };
    let chunk = |version| (two_nodes.nvls_shape(version, &Settings::default()).chunk.0) >> 10;
    assert_eq!(NcclVersion::ALL.map(chunk), [128, 128, 128, 128, 128, 256, 256]);
}

#[test]
fn older_versions_use_more_channels_for_a_call() {
    let comm = communicator(1, 8, 90, 12, 30.0);
    let request = Request::new(Function::AllReduce, Bytes(1 << 10));
    let working = |version| working_channels(&comm, version, &request, Proto::Simple, 16);
    assert_eq!(NcclVersion::ALL.map(working), [16, 4, 1, 1, 1, 1, 1]);
    let request = Request::new(Function::AllReduce, Bytes(1 << 18));
    let working = |version| working_channels(&comm, version, &request, Proto::Simple, 16);
    assert_eq!(NcclVersion::ALL.map(working), [16, 16, 16, 16, 16, 16, 16]);
}

#[test]
fn symmetric_kernels_exist_since_2_27() {
    let support = NcclVersion::ALL.map(|version| (version.has_window_kernels(), version.has_copy_engines()));
    let (no, kernels, both) = ((false, false), (true, false), (true, true));
    assert_eq!(support, [no, no, no, kernels, both, both, both]);
}
