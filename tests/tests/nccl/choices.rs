//! Choices of NCCL and Open MPI on fabrics: symmetric kernels, sends, settings, and arbitrary calls.

use fabricast_planner::algorithm::Algorithm;
use fabricast_planner::bound::InNetwork;
use fabricast_planner::library::nccl::graph::Pattern;
use fabricast_planner::library::nccl::{
    Communicator, Function, Proto, Request, Settings, SymmetricKernel, Version, p2p, symmetric,
};
use fabricast_planner::library::{Chooser, Conditions, Library, Offer, Registered, Unknown};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, Fabric, FabricRequest, load};
use proptest::prelude::*;

use super::{communicator, graph};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn on_switches(gpus: u32, sm: u32) -> Communicator {
    let mut made = communicator(1, gpus, sm, 12, 30.0);
    made.graphs.nvls = Some(graph(Pattern::Nvls, gpus as u16, 40.0, 60.0));
    made
}

fn kernel_at(of: &Communicator, function: Function, bytes: u64) -> SymmetricKernel {
    symmetric(of, &Settings::default(), &Request::new(function, Bytes(bytes))).unwrap().kernel
}

/// First power of two at which another kernel is chosen; for AllGather and ReduceScatter in bytes of a rank's part.
fn crossover(of: &Communicator, function: Function) -> (u64, SymmetricKernel) {
    let whole = if function == Function::AllReduce { 1 } else { u64::from(of.ranks) };
    let first = kernel_at(of, function, whole << 7);
    let power = (8..30).find(|&power| kernel_at(of, function, whole << power) != first).unwrap();
    (1 << power, kernel_at(of, function, whole << power))
}

/// Derived from NCCL's model: sizes from which multicast kernels replace one-shot kernels.
#[test]
fn symmetric_kernel_crossovers_match_nccls_model() {
    let (hopper, blackwell) = (on_switches(8, 90), on_switches(8, 100));
    for (of, sums, gathers, scatters) in
        [(&hopper, 32 * KIB, 16 * KIB, 16 * KIB), (&blackwell, 64 * KIB, 32 * KIB, 8 * KIB)]
    {
        assert_eq!(crossover(of, Function::AllReduce), (sums, SymmetricKernel::TwoShotMulticast));
        assert_eq!(crossover(of, Function::AllGather), (gathers, SymmetricKernel::Multicast));
        assert_eq!(crossover(of, Function::ReduceScatter), (scatters, SymmetricKernel::Multicast));
    }
    let request = Request::new(Function::AllReduce, Bytes(256 * MIB));
    let found = symmetric(&hopper, &Settings::default(), &request).unwrap();
    assert!((found.time.us() / 593.0 - 1.0).abs() < 0.03, "{found:?}");
}

#[test]
fn symmetric_kernels_need_windows_and_one_node() {
    let request = Request::new(Function::AllReduce, Bytes(KIB));
    assert!(symmetric(&communicator(2, 8, 90, 8, 45.0), &Settings::default(), &request).is_none());
    let (off, _) = Settings::parse("NCCL_WIN_ENABLE=0").unwrap();
    assert!(symmetric(&on_switches(8, 90), &off, &request).is_none());
    assert!(
        symmetric(&on_switches(8, 90), &Settings::default(), &Request::new(Function::Reduce, Bytes(KIB))).is_none()
    );
}

/// 24 channels of rings give 32 channels of sends: 4 for each of eight peers until the parts are large (usual init
/// line of H100: 32 p2p channels, 32 p2p channels per peer).
#[test]
fn sends_divide_channels_among_peers() {
    let of = communicator(1, 8, 90, 12, 30.0);
    let at = |bytes, peers| p2p(&of, Version::V2_30_7, &Settings::default(), Bytes(bytes), peers);
    assert_eq!((at(64 * KIB, 7).per_peer, at(64 * KIB, 7).proto), (1, Proto::Simple));
    assert_eq!((at(16 * KIB, 7).per_peer, at(16 * KIB, 7).proto), (1, Proto::Ll));
    assert_eq!((at(MIB, 7).per_peer, at(MIB, 7).channels), (4, 28));
    assert_eq!(at(512 * MIB, 1).per_peer, 32);
}

/// From times of 2.28.3 on two H200 (validate/runs/2026-11-23-2xh200-sends): with 16 channels a peer of two gets 8,
/// and sends up to 256 KiB behave like LL, in parts of 8 KiB.
#[test]
fn sends_before_2_29_use_ll_by_the_capacity_of_all_channels_of_a_peer() {
    let of = communicator(1, 2, 90, 24, 20.0);
    let (settings, _) = Settings::parse("NCCL_MIN_P2P_NCHANNELS=16 NCCL_MAX_P2P_NCHANNELS=16").unwrap();
    let at = |bytes| p2p(&of, Version::V2_28_9, &settings, Bytes(bytes), 1);
    let found = |bytes| (at(bytes).proto, at(bytes).per_peer);
    assert_eq!(found(8 * KIB), (Proto::Ll, 1));
    assert_eq!(found(16 * KIB), (Proto::Ll, 2));
    assert_eq!(found(64 * KIB), (Proto::Ll, 8));
    assert_eq!(found(256 * KIB), (Proto::Ll, 8));
    assert_eq!(found(512 * KIB), (Proto::Simple, 8));
    assert_eq!(found(256 * MIB), (Proto::Simple, 16));
}

fn preset(name: &str, nodes: u32) -> Fabric {
    let network = (nodes > 1).then(|| "rail".parse().unwrap());
    load(&FabricRequest { fabric: name.to_owned(), nodes: Some(nodes), gpus: None, network, gpu: None }).unwrap()
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
    let found = |conditions, collective, bytes| {
        let choice = chooser("nccl-2.28.9", &fabric, conditions).choose(&call(collective, 8, bytes));
        choice.map(|choice| (choice.strategy.algorithm, choice.strategy.protocol, choice.strategy.channels))
    };
    let plain = Conditions::default;
    let without = || Conditions { in_network: InNetwork::Off, ..Conditions::default() };
    let windows = || Conditions { registered: Registered::Symmetric, in_network: InNetwork::Off, ..plain() };
    assert_eq!(found(plain(), Collective::AllReduce, 64 * KIB), Ok((Algorithm::Ring, Protocol::Ll, 2)));
    assert_eq!(found(plain(), Collective::AllReduce, 16 * MIB), Ok((Algorithm::Nvls, Protocol::Simple, 16)));
    assert_eq!(found(without(), Collective::AllReduce, 16 * MIB), Ok((Algorithm::Ring, Protocol::Ll128, 24)));
    let one_shot = found(windows(), Collective::AllReduce, 4 * KIB).unwrap();
    assert_eq!((one_shot.0, one_shot.1), (Algorithm::OneShot, Protocol::Symmetric));
    let two_shot = found(windows(), Collective::AllReduce, 16 * MIB).unwrap();
    assert_eq!((two_shot.0, two_shot.1), (Algorithm::TwoShot, Protocol::Symmetric));
    let through = Conditions { registered: Registered::Symmetric, ..plain() };
    assert!(matches!(found(through, Collective::AllReduce, 16 * MIB), Err(Unknown::NoSchedule { .. })));
    let (settings, _) = Settings::parse("NCCL_ALGO=Tree NCCL_PROTO=Simple NCCL_MAX_CTAS=4").unwrap();
    let forced = Conditions { settings, ..plain() };
    assert_eq!(found(forced.clone(), Collective::AllReduce, 16 * MIB), Ok((Algorithm::Tree, Protocol::Simple, 4)));
    assert!(matches!(found(forced, Collective::AllGather, MIB), Err(Unknown::NoWay { .. })));
}

#[test]
fn unknown_choices_give_a_reason() {
    let fabric = preset("dgx-v100", 1);
    let unknown = chooser("nccl", &fabric, Conditions::default()).choose(&call(Collective::AllReduce, 8, KIB));
    assert!(unknown.unwrap_err().to_string().contains("NVLink without switches"));
    let found = chooser("open_mpi-5.0", &fabric, Conditions::default()).choose(&call(Collective::AllReduce, 8, MIB));
    assert_eq!(found.unwrap().strategy.algorithm, Algorithm::RecursiveHalvingDoubling);
    let found = chooser("open_mpi-5.0", &fabric, Conditions::default()).choose(&call(Collective::Broadcast, 8, MIB));
    assert_eq!(found.unwrap().strategy.algorithm, Algorithm::Linear);
    let small = call(Collective::AllReduce, 128, KIB);
    let found = chooser("open_mpi-5.0", &fabric, Conditions::default()).choose(&small);
    assert!(matches!(found, Err(Unknown::NoSchedule { .. })));
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
        let registered = if symmetric { Registered::Symmetric } else { Registered::Plain };
        let conditions = Conditions { registered, ..Conditions::default() };
        let chooser = chooser(library, &fabric, conditions);
        match chooser.choose(&call(collective, fabric.gpus().len() as u32, 1 << power)) {
            Ok(choice) => {
                let strategy = choice.strategy;
                let offer = Offer::new(chooser.library(), registered);
                prop_assert!(offer.runs(strategy.algorithm, strategy.protocol, collective), "{:?}", choice);
                prop_assert!((1..=64).contains(&strategy.channels), "{:?}", choice);
            }
            Err(Unknown::NoSchedule { .. } | Unknown::NotModelled { collective: Collective::Barrier | Collective::AllToAllV, .. }) => {}
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
