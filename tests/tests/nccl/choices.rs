//! Choices of NCCL and Open MPI on fabrics: symmetric kernels, sends, settings, and arbitrary calls.

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::bound::InNetwork;
use fabricast_libraries::nccl::Pattern;
use fabricast_libraries::nccl::{
    Communicator, Function, NcclVersion, Nic, NicDistance, Proto, Request, Settings, SymmetricKernel, p2p,
    pick_symmetric,
};
use fabricast_libraries::{BufferRegistration, Chooser, Conditions, Library, LibraryCapabilities, Unknown};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bandwidth, Bytes, Fabric, FabricRequest, load};
use proptest::prelude::*;

use super::{communicator, graph};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn nvswitch_communicator(gpus: u32, sm: u32) -> Communicator {
    let mut comm = communicator(1, gpus, sm, 12, 30.0);
    comm.graphs.nvls = Some(graph(Pattern::Nvls, gpus as u16, 40.0, 60.0));
    comm
}

fn kernel_at(comm: &Communicator, function: Function, bytes: u64) -> SymmetricKernel {
    pick_symmetric(comm, &Settings::default(), &Request::new(function, Bytes(bytes))).unwrap().kernel
}

/// Returns the first power of two at which another kernel is chosen; for AllGather and ReduceScatter in bytes of a
/// rank's part.
fn crossover(comm: &Communicator, function: Function) -> (u64, SymmetricKernel) {
    let scale = if function == Function::AllReduce { 1 } else { u64::from(comm.ranks) };
    let first = kernel_at(comm, function, scale << 7);
    let power = (8..30).find(|&power| kernel_at(comm, function, scale << power) != first).unwrap();
    (1 << power, kernel_at(comm, function, scale << power))
}

/// The expected sizes from which multicast kernels replace one-shot kernels are derived from NCCL's model.
#[test]
fn symmetric_kernel_crossovers_match_nccls_model() {
    let (hopper, blackwell) = (nvswitch_communicator(8, 90), nvswitch_communicator(8, 100));
    for (comm, sums, gathers, scatters) in
        [(&hopper, 32 * KIB, 16 * KIB, 16 * KIB), (&blackwell, 64 * KIB, 32 * KIB, 8 * KIB)]
    {
        assert_eq!(crossover(comm, Function::AllReduce), (sums, SymmetricKernel::TwoShotMulticast));
        assert_eq!(crossover(comm, Function::AllGather), (gathers, SymmetricKernel::Multicast));
        assert_eq!(crossover(comm, Function::ReduceScatter), (scatters, SymmetricKernel::Multicast));
    }
    let request = Request::new(Function::AllReduce, Bytes(256 * MIB));
    let choice = pick_symmetric(&hopper, &Settings::default(), &request).unwrap();
    assert!((choice.time.us() / 593.0 - 1.0).abs() < 0.03, "{choice:?}");
}

#[test]
fn symmetric_kernels_need_windows_and_one_node() {
    let request = Request::new(Function::AllReduce, Bytes(KIB));
    assert!(pick_symmetric(&communicator(2, 8, 90, 8, 45.0), &Settings::default(), &request).is_none());
    let (off, _) = Settings::parse("NCCL_WIN_ENABLE=0").unwrap();
    assert!(pick_symmetric(&nvswitch_communicator(8, 90), &off, &request).is_none());
    assert!(
        pick_symmetric(
            &nvswitch_communicator(8, 90),
            &Settings::default(),
            &Request::new(Function::Reduce, Bytes(KIB))
        )
        .is_none()
    );
}

/// NCCL 2.30.7 src/sym_kernels.cc: `kernelMask_user` leaves one kernel, also for other collectives, and `NCCL_SYM_CTAS` sets
/// the number of blocks.
#[test]
fn named_symmetric_kernel_is_the_only_one() {
    let comm = nvswitch_communicator(8, 90);
    let (settings, _) = Settings::parse("NCCL_SYM_KERNEL=AllReduce_RSxLD_AGxST NCCL_SYM_CTAS=8").unwrap();
    let pick = |function| pick_symmetric(&comm, &settings, &Request::new(function, Bytes(KIB)));
    assert_eq!(pick(Function::AllReduce).map(|pick| (pick.kernel, pick.blocks)), Some((SymmetricKernel::TwoShot, 8)));
    assert_eq!(pick(Function::AllGather), None);
}

/// Rings of 24 channels give 32 channels of sends: 4 for each of eight peers until the parts are large (usual init line
/// of H100: 32 p2p channels, 32 p2p channels per peer).
#[test]
fn sends_divide_channels_among_peers() {
    let comm = communicator(1, 8, 90, 12, 30.0);
    let sends = |bytes, peers| p2p(&comm, NcclVersion::V2_30_7, &Settings::default(), Bytes(bytes), peers);
    assert_eq!((sends(64 * KIB, 7).per_peer, sends(64 * KIB, 7).proto), (1, Proto::Simple));
    assert_eq!((sends(16 * KIB, 7).per_peer, sends(16 * KIB, 7).proto), (1, Proto::Ll));
    assert_eq!((sends(MIB, 7).per_peer, sends(MIB, 7).channels), (4, 28));
    assert_eq!(sends(512 * MIB, 1).per_peer, 32);
}

/// On two hosts of eight GPUs, messages of more than 256 KiB use four channels per peer. NCCL 2.30.7
/// (src/graph/paths.cc, src/include/channel.h) uses ⌈NIC ÷ 14 GB/s⌉ channels per peer, halved until all batches of
/// eight peers have separate channels; the eight ranks of a host share them, and over a network only Simple has
/// buffers.
#[test]
fn peers_of_a_host_share_their_channels_over_a_network() {
    let sends = |nodes: u32, per_node: u32, gb_per_s: u64, variables: &str, bytes| {
        let mut comm = communicator(nodes, per_node, 90, 8, 45.0);
        let bandwidth = Bandwidth(gb_per_s * 1_000_000_000);
        comm.nic = Some(Nic { bandwidth, distance: NicDistance::Switches });
        let (settings, _) = Settings::parse(variables).unwrap();
        let sends = p2p(&comm, NcclVersion::V2_30_7, &settings, Bytes(bytes), nodes * per_node - 1);
        assert_eq!(sends.proto, Proto::Simple);
        (sends.per_peer, sends.channels)
    };
    let of_two_hosts = |bytes| sends(2, 8, 48, "", bytes);
    assert_eq!([1, 128 * KIB, 256 * KIB, MIB].map(of_two_hosts), [(1, 2), (1, 2), (2, 4), (4, 8)]);
    assert_eq!(sends(2, 8, 48, "NCCL_NCHANNELS_PER_NET_PEER=1", MIB), (1, 2));
    assert_eq!(sends(2, 8, 48, "NCCL_NCHANNELS_PER_NET_PEER=2", MIB), (2, 4));
    assert_eq!(sends(2, 8, 24, "", MIB), (2, 4));
    assert_eq!(sends(8, 8, 48, "", MIB), (2, 16));
    assert_eq!(sends(16, 8, 48, "", MIB), (1, 16));
}

/// With 16 channels, a peer of two gets 8, and sends up to 256 KiB behave like LL, in parts of 8 KiB. The times are
/// those of NCCL 2.28.3 on two H200 (validate/runs/2026-11-23-2xh200-sends).
#[test]
fn sends_before_2_29_use_ll_by_the_capacity_of_all_channels_of_a_peer() {
    let comm = communicator(1, 2, 90, 24, 20.0);
    let (settings, _) = Settings::parse("NCCL_MIN_P2P_NCHANNELS=16 NCCL_MAX_P2P_NCHANNELS=16").unwrap();
    let sends = |bytes| p2p(&comm, NcclVersion::V2_28_9, &settings, Bytes(bytes), 1);
    let proto_and_channels = |bytes| (sends(bytes).proto, sends(bytes).per_peer);
    assert_eq!(proto_and_channels(8 * KIB), (Proto::Ll, 1));
    assert_eq!(proto_and_channels(16 * KIB), (Proto::Ll, 2));
    assert_eq!(proto_and_channels(64 * KIB), (Proto::Ll, 8));
    assert_eq!(proto_and_channels(256 * KIB), (Proto::Ll, 8));
    assert_eq!(proto_and_channels(512 * KIB), (Proto::Simple, 8));
    assert_eq!(proto_and_channels(256 * MIB), (Proto::Simple, 16));
}

fn preset(name: &str, nodes: u32) -> Fabric {
    let network = (nodes > 1).then(|| "rail".parse().unwrap());
    load(&FabricRequest { fabric: name.to_owned(), nodes: Some(nodes), gpus: None, network, gpu: None, drives: None })
        .unwrap()
}

fn call(collective: Collective, ranks: u32, bytes: u64) -> Call {
    Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace }
}

fn chooser(library: &str, fabric: &Fabric, conditions: Conditions) -> Chooser {
    let router = Router::new(fabric, RouteOptions::default());
    Chooser::new(library.parse::<Library>().unwrap(), fabric, &router, fabric.gpus(), conditions)
}

#[test]
fn choices_map_to_our_strategies() {
    let fabric = preset("hgx-h100", 1);
    let choose = |conditions, collective, bytes| {
        let choice = chooser("nccl-2.28.9", &fabric, conditions).choose(&call(collective, 8, bytes));
        choice.map(|choice| (choice.strategy.algorithm, choice.strategy.protocol, choice.strategy.channels))
    };
    let defaults = Conditions::default;
    let without_nvls = || Conditions { in_network: InNetwork::Off, ..Conditions::default() };
    let windows = || Conditions { registered: BufferRegistration::Symmetric, in_network: InNetwork::Off, ..defaults() };
    assert_eq!(choose(defaults(), Collective::AllReduce, 64 * KIB), Ok((Algorithm::Ring, Protocol::Ll, 2)));
    assert_eq!(choose(defaults(), Collective::AllReduce, 16 * MIB), Ok((Algorithm::Nvls, Protocol::Simple, 16)));
    assert_eq!(choose(without_nvls(), Collective::AllReduce, 16 * MIB), Ok((Algorithm::Ring, Protocol::Ll128, 24)));
    let one_shot = choose(windows(), Collective::AllReduce, 4 * KIB).unwrap();
    assert_eq!((one_shot.0, one_shot.1), (Algorithm::OneShot, Protocol::Symmetric));
    let two_shot = choose(windows(), Collective::AllReduce, 16 * MIB).unwrap();
    assert_eq!((two_shot.0, two_shot.1), (Algorithm::TwoShot, Protocol::Symmetric));
    let windows_in_network = Conditions { registered: BufferRegistration::Symmetric, ..defaults() };
    assert!(matches!(choose(windows_in_network, Collective::AllReduce, 16 * MIB), Err(Unknown::NoSchedule { .. })));
    let (settings, _) = Settings::parse("NCCL_ALGO=Tree NCCL_PROTO=Simple NCCL_MAX_CTAS=4").unwrap();
    let forced = Conditions { settings, ..defaults() };
    assert_eq!(choose(forced.clone(), Collective::AllReduce, 16 * MIB), Ok((Algorithm::Tree, Protocol::Simple, 4)));
    assert!(matches!(choose(forced, Collective::AllGather, MIB), Err(Unknown::NothingAllowed { .. })));
}

#[test]
fn unknown_choices_give_a_reason() {
    let fabric = preset("dgx-v100", 1);
    let choice = chooser("nccl", &fabric, Conditions::default()).choose(&call(Collective::AllReduce, 8, KIB));
    assert!(choice.unwrap_err().to_string().contains("NVLink without switches"));
    let choice = chooser("open_mpi-5.0", &fabric, Conditions::default()).choose(&call(Collective::AllReduce, 8, MIB));
    assert_eq!(choice.unwrap().strategy.algorithm, Algorithm::RecursiveHalvingDoubling);
    let choice = chooser("open_mpi-5.0", &fabric, Conditions::default()).choose(&call(Collective::Broadcast, 8, MIB));
    assert_eq!(choice.unwrap().strategy.algorithm, Algorithm::Linear);
    let small = call(Collective::AllReduce, 128, KIB);
    let choice = chooser("open_mpi-5.0", &fabric, Conditions::default()).choose(&small);
    assert!(matches!(choice, Err(Unknown::NoSchedule { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_call_has_an_answer_and_choices_are_supported(
        collective in prop::sample::select(Collective::ALL.to_vec()),
        name in prop::sample::select(vec!["hgx-h100", "dgx-a100", "hgx-b200", "l40s-pcie", "rtx4090-pcie"]),
        library in prop::sample::select(vec!["nccl-2.28.9", "nccl-2.30", "nccl-2.31", "open_mpi-4.1", "open_mpi-5.0"]),
        nodes in 1u32..=3, power in 0u32..=40, symmetric in prop::bool::ANY,
    ) {
        let fabric = preset(name, nodes);
        let registered = if symmetric { BufferRegistration::Symmetric } else { BufferRegistration::Plain };
        let conditions = Conditions { registered, ..Conditions::default() };
        let chooser = chooser(library, &fabric, conditions);
        match chooser.choose(&call(collective, fabric.gpus().len() as u32, 1 << power)) {
            Ok(choice) => {
                let strategy = choice.strategy;
                let capabilities = LibraryCapabilities::new(chooser.library(), registered);
                prop_assert!(capabilities.runs(strategy.algorithm, strategy.protocol, collective), "{:?}", choice);
                prop_assert!((1..=64).contains(&strategy.channels), "{:?}", choice);
            }
            Err(Unknown::NoSchedule { .. } | Unknown::NotModelled { collective: Collective::Barrier | Collective::AllToAllV, .. }) => {}
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
