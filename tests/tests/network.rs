//! Compares messages between hosts with closed forms: proxy costs apply once per message, and not at all within a host.
//!
//! Hosts have one GPU each, so that a broadcast over two of them uses one connection. Under the `ideal` profile with
//! network costs only, L is the latency of the path, B the bandwidth of a link, t the proxy's time per message.

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_sim::Folding;
use fabricast_sim::profile::{ChannelLimit, NetworkCosts, PacketRouting, Profile, QueuePairs, largest_message};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_sim::sharing::WHOLE;
use fabricast_topologies::{Bandwidth, Bytes, FabricRequest, Picos, load};
use proptest::prelude::*;
use proptest::sample::select;

use crate::generators::Case;
use crate::testbed::Testbed;

pub(crate) fn costs() -> impl Strategy<Value = NetworkCosts> {
    let time = || (0u64..20_000_000).prop_map(Picos);
    let scan = prop_oneof![Just(None), (1_000_000_000u64..20_000_000_000).prop_map(|rate| Some(Bandwidth(rate)))];
    let eager = prop_oneof![Just(None), (0u64..40_000).prop_map(|bytes| Some(Bytes(bytes)))];
    let signal = (time(), queue_pairs());
    let interval = prop_oneof![Just(Picos::ZERO), time()];
    (time(), time(), time(), time(), (time(), interval), scan, (time(), eager), signal).prop_map(
        |(post, fence, arrive, flush, (message, interval), scan, (rendezvous, eager), (signal, queue_pairs))| {
            NetworkCosts { post, fence, arrive, flush, message, interval, scan, rendezvous, eager, signal, queue_pairs }
        },
    )
}

fn queue_pairs() -> impl Strategy<Value = QueuePairs> {
    let rates = vec![None, Some(Bandwidth(12_500_000_000)), Some(Bandwidth(50_000_000_000))];
    let thresholds = prop_oneof![Just(8192), Just(0), 0u64..100_000].prop_map(Bytes);
    (1u32..5, select(vec![PacketRouting::Adaptive, PacketRouting::Static]), thresholds, select(rates)).prop_map(
        |(count, routing, largest_ordered, line_rate)| QueuePairs { count, routing, largest_ordered, line_rate },
    )
}

fn testbed(preset: &str, gpus: u32, nodes: u32, network: NetworkCosts) -> Testbed {
    let spec = (nodes > 1).then(|| "rail,nics_per_node=8,nic=400Gb/s".parse().unwrap());
    let request = FabricRequest { nodes: Some(nodes), gpus: Some(gpus), network: spec, ..FabricRequest::new(preset) };
    let fabric = load(&request).unwrap();
    Testbed { profile: Profile { network, ..Profile::ideal() }, ..Testbed::ideal(fabric) }
}

/// Returns the time of a broadcast in `loops` chunks of a size, on `channels` channels.
fn broadcast(testbed: &Testbed, protocol: Protocol, chunk: u64, (loops, channels): (u64, u16)) -> f64 {
    let bytes = Bytes(chunk * loops * u64::from(channels));
    let call = Call {
        collective: Collective::Broadcast,
        bytes,
        ranks: testbed.ranks(),
        root: Rank(0),
        buffers: BufferUse::InPlace,
    };
    let shape = Shape { channels, chunk: Some(Bytes(chunk)), ..Shape::new(call, protocol) };
    let case = Case { algorithm: Algorithm::Ring, shape };
    testbed.run(&*case.generator(), Folding::WhereProved).unwrap().time.0 as f64
}

fn path(testbed: &Testbed) -> f64 {
    let gpus = testbed.fabric.gpus();
    testbed.router().path(gpus[0], gpus[1]).unwrap().latency.0 as f64
}

/// Returns the rate of the slowest link of the route, in bytes per picosecond.
fn rate(testbed: &Testbed) -> f64 {
    let gpus = testbed.fabric.gpus();
    let path = testbed.router().path(gpus[0], gpus[1]).unwrap();
    let rates = path.hops.iter().filter_map(|hop| {
        let bandwidth = testbed.fabric.link(hop.link).bandwidth?;
        Some(bandwidth.0 as f64 * 1e-12 / hop.share.fraction())
    });
    rates.fold(f64::INFINITY, f64::min)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Sending k messages of c bytes on each of n channels takes L, the wait of one message (with a rendezvous or a
    /// separate notification if it is large), n times the longer of t and c/B, because a GPU has one proxy for all its
    /// channels, and k − 1 times the longest of that, the interval of a queue pair and that of a connection. GPUs before Hopper wait for a
    /// flush if a counter signals the data.
    #[test]
    fn messages_between_hosts_match_closed_form(
        network in costs(),
        protocol in select(vec![Protocol::Ll, Protocol::Ll128, Protocol::Simple]),
        (bytes, loops, channels) in (1u64..30_000, 1u64..6, 1u16..4),
        (preset, before_hopper) in select(vec![("hgx-h100", 0.0), ("dgx-a100", 1.0)]),
    ) {
        let testbed = testbed(preset, 1, 2, network);
        let time = broadcast(&testbed, protocol, bytes, (loops, channels));
        let scan = match network.scan {
            Some(rate) if protocol == Protocol::Ll => bytes as f64 * 1e12 / rate.0 as f64,
            _ => 0.0,
        };
        let waits = |costs: &[Picos]| costs.iter().map(|cost| cost.0 as f64).sum::<f64>();
        let waits = match protocol {
            Protocol::Ll => waits(&[network.post]),
            Protocol::Ll128 => waits(&[network.fence, network.post]),
            _ => waits(&[network.fence, network.post, network.arrive]) + before_hopper * network.flush.0 as f64,
        };
        let on_wire = bytes as f64 / rate(&testbed);
        let rendezvous = match network.eager {
            Some(eager) if bytes > eager.0 => network.rendezvous.0 as f64,
            _ => 0.0,
        };
        let per_message = (network.message.0 as f64 + scan.floor()).max(on_wire);
        let QueuePairs { count, routing, largest_ordered, line_rate } = network.queue_pairs;
        let is_separate = routing == PacketRouting::Adaptive && bytes > largest_ordered.0;
        let signal = if is_separate { network.signal.0 as f64 } else { 0.0 };
        let transfer = line_rate.filter(|_| signal > 0.0).map_or(0.0, |rate| bytes as f64 * 1e12 / rate.0 as f64);
        let interval = ((2.0 * signal + transfer) / f64::from(count)).max(network.interval.0 as f64);
        let all_channels = per_message * f64::from(channels);
        let later = (loops - 1) as f64 * all_channels.max(interval);
        // Receivers of LL and LL128 read flags in the data and do not wait for the notification.
        let notified = if protocol == Protocol::Simple { signal } else { 0.0 };
        let expected = path(&testbed) + waits + rendezvous + notified + all_channels + later;
        // The proxy's time per byte, in nanoseconds, is counted in parts of WHOLE and rounded up; so are fractions of
        // it.
        let tolerance = 2.0 * bytes as f64 * 1e3 / WHOLE as f64 + 2.0;
        let tolerance = tolerance * f64::from(channels) * loops as f64 * f64::from(channels) + 1e-6 * expected;
        prop_assert!(time >= expected - 2.0 && time - expected <= tolerance, "{time} and {expected} + {tolerance}");
    }

    /// Within a host the network costs have no effect.
    #[test]
    fn network_costs_do_not_apply_within_a_host(network in costs(), bytes in 1u64..10_000_000, loops in 1u64..4) {
        let (with_costs, without_costs) = (testbed("hgx-h100", 2, 1, network), testbed("hgx-h100", 2, 1, NetworkCosts::FREE));
        let time = |testbed: &Testbed| broadcast(testbed, Protocol::Simple, bytes, (loops, 1));
        prop_assert_eq!(time(&with_costs), time(&without_costs));
    }

    /// Time does not decrease with bytes.
    #[test]
    fn time_does_not_decrease_with_bytes(
        network in costs(),
        protocol in select(vec![Protocol::Ll, Protocol::Ll128, Protocol::Simple]),
        (less, more) in (1u64..4_000_000, 0u64..4_000_000),
    ) {
        let testbed = Testbed {
            profile: Profile { network, ..Profile::named("nccl-2.28-h200").unwrap() },
            ..testbed("hgx-h200", 1, 2, network)
        };
        let time = |bytes| broadcast(&testbed, protocol, bytes, (1, 1));
        // Block and proxy times per byte, in nanoseconds, are counted in parts of WHOLE and rounded up.
        let tolerance = 2.0 * (less + more) as f64 * 1e3 / WHOLE as f64 + 1.0;
        prop_assert!(time(less) <= time(less + more) + tolerance);
    }
}

/// Sends of one pair alternate between a copy, a step and a fence: the block is done with a message once it is visible
/// to the proxy. With several peers on one channel, the copies for one peer overlap with the waits for the others.
#[test]
fn a_pair_waits_for_fences_and_peers_of_a_channel_share_its_copies() {
    let fence = Picos(5_000_000);
    let network = NetworkCosts { fence, ..NetworkCosts::FREE };
    let profile = |network| Profile { network, ..Profile::named("nccl-2.28-h200").unwrap() };
    let chunk = 128 << 10;
    let time = |collective, gpus, network: NetworkCosts, loops: u64| {
        let testbed = Testbed { profile: profile(network), ..testbed("hgx-h200", gpus, 2, network) };
        let (ranks, buffers) = (testbed.ranks(), BufferUse::OutOfPlace);
        let blocks = if collective == Collective::SendRecv { 1 } else { u64::from(ranks) };
        let call = Call { collective, bytes: Bytes(chunk * loops * blocks), ranks, root: Rank(0), buffers };
        let channels = if collective == Collective::SendRecv { 1 } else { 2 };
        let shape =
            Shape { channels, chunk: Some(Bytes(chunk)), ranks_per_node: gpus, ..Shape::new(call, Protocol::Simple) };
        let case = Case { algorithm: Algorithm::Direct, shape };
        testbed.run(&*case.generator(), Folding::WhereProved).unwrap().time.0
    };
    let each =
        |collective, gpus, network| (time(collective, gpus, network, 65) - time(collective, gpus, network, 1)) / 64;
    let [alone, without] = [network, NetworkCosts::FREE].map(|network| each(Collective::SendRecv, 1, network));
    assert!(alone.abs_diff(without + fence.0) < alone / 100, "{alone} {without}");
    // With eight peers, the channel's rate is that of its copies, which is higher than that of a single pair.
    let [shared, free] = [network, NetworkCosts::FREE].map(|network| each(Collective::AllToAll, 8, network));
    assert!(shared < 8 * alone * 3 / 4 && shared <= free + fence.0 / 8, "{shared} {free} {alone}");
}

/// Time of the passes in which half of a Simple block of the H200 profile copies `bytes` to other GPUs or, at the pace
/// of a receiving pass, in its own memory.
fn half_block_copies(bytes: u64, is_local: bool) -> f64 {
    let profile = Profile::named("nccl-2.28-h200").unwrap();
    let costs = profile.protocol(Protocol::Simple);
    let ChannelLimit::Passes(passes) = costs.channel_limit else { panic!("blocks work in passes") };
    let per_warp = passes.per_warp.0 * u64::from(costs.threads / 32);
    let slowdown = (passes.receive.0 + per_warp) as f64 / (passes.send.0 + per_warp) as f64;
    let pass = passes.exchange.unwrap().0 as f64 * if is_local { slowdown } else { 1.0 };
    pass * bytes as f64 / (passes.bytes_per_thread.0 * u64::from(costs.threads / 2)) as f64
}

/// Number of warps of a Simple block of the H200 profile (17) that copy data for 1 to 8 peers: half of each peer's warps,
/// less one of three or more (NCCL 2.30.7 src/device/sendrecv.h).
const COPYING_WARPS: [f64; 8] = [8.0, 6.0, 6.0, 8.0, 5.0, 6.0, 7.0, 8.0];

/// Returns the time of an all_to_all on `channels` channels, with `loops` chunks of a size to each peer.
fn exchange(nodes: u32, gpus: u32, channels: u16, network: NetworkCosts, (chunk, loops): (u64, u64)) -> f64 {
    let profile = Profile { network, ..Profile::named("nccl-2.28-h200").unwrap() };
    let testbed = Testbed { profile, ..testbed("hgx-h200", gpus, nodes, network) };
    let (collective, ranks, buffers) = (Collective::AllToAll, testbed.ranks(), BufferUse::OutOfPlace);
    let bytes = Bytes(chunk * loops * u64::from(ranks));
    let call = Call { collective, bytes, ranks, root: Rank(0), buffers };
    let chunk = Some(Bytes(chunk));
    let nics_per_node = if nodes > 1 { gpus } else { 0 };
    let shape = Shape { channels, chunk, ranks_per_node: gpus, nics_per_node, ..Shape::new(call, Protocol::Simple) };
    let case = Case { algorithm: Algorithm::Direct, shape };
    testbed.run(&*case.generator(), Folding::WhereProved).unwrap().time.0 as f64
}

/// Between hosts, each peer of a block has its own warps, which overlap the waits for one peer with copies for others into
/// buffers in the block's own memory.
#[test]
fn blocks_with_many_peers_exchange_at_the_rate_of_their_copies() {
    let network = NetworkCosts { post: Picos(1), ..NetworkCosts::FREE };
    let chunk = 128 << 10;
    for (nodes, gpus, peers) in [(3, 1, 2), (4, 1, 3), (6, 1, 5), (9, 1, 8)] {
        let time = |loops| exchange(nodes, gpus, 1, network, (chunk, loops));
        let each = (time(65) - time(1)) / 64.0;
        let expected =
            half_block_copies(chunk * peers, nodes > 1) * COPYING_WARPS[0] / COPYING_WARPS[peers as usize - 1];
        assert!((each / expected - 1.0).abs() < 0.02, "{nodes} x {gpus}: {each} and {expected}");
    }
}

/// In calls over several hosts, a block divides its warps among the peers on its own host as well, and overlaps the waits
/// for one with copies for the others. Copies to other GPUs are slower than those for NICs.
#[test]
fn peers_on_the_own_host_share_blocks_in_calls_over_several_hosts() {
    let network = NetworkCosts { post: Picos(1), ..NetworkCosts::FREE };
    for (gpus, chunk) in [(8, 16 << 10), (4, 32 << 10)] {
        let time = |loops| exchange(2, gpus, 2, network, (chunk, loops));
        let each = (time(65) - time(1)) / 64.0;
        let copies = half_block_copies(chunk * u64::from(gpus - 1), false);
        let expected = copies * COPYING_WARPS[0] / COPYING_WARPS[gpus as usize - 2];
        assert!((each / expected - 1.0).abs() < 0.02, "{gpus} GPUs per host: {each} and {expected}");
    }
}

/// Within a host each peer has its own blocks, which those of a schedule represent, unless there are fewer channels than
/// peers.
#[test]
fn peers_on_a_host_share_blocks_if_channels_do_not_suffice() {
    let step = Profile::named("nccl-2.28-h200").unwrap().protocol(Protocol::Simple).step.0 as f64;
    for (gpus, channels, peers) in [(8, 8, 1), (8, 4, 2), (8, 1, 7), (4, 1, 3)] {
        let lane = 128 << 10;
        let time = |loops| exchange(1, gpus, channels, NetworkCosts::FREE, (lane, loops * u64::from(channels)));
        let each = (time(65) - time(1)) / 64.0;
        let messages = f64::from(gpus - 1);
        let copies = half_block_copies(lane, false) * COPYING_WARPS[0] / COPYING_WARPS[peers - 1];
        let expected = messages * (copies + step);
        assert!((each / expected - 1.0).abs() < 0.02, "{gpus} GPUs, {channels} channels: {each} and {expected}");
    }
}

/// The proxies post the messages of a block to its peers when they are complete, which they are at the same time, and a
/// block receives the last messages after that. Both together need the time of an exchange.
#[test]
fn messages_to_peers_of_a_block_are_sent_when_all_are_complete() {
    let network = NetworkCosts { message: Picos(50_000_000), ..NetworkCosts::FREE };
    for hosts in [2, 5, 9] {
        let time = |bytes| exchange(hosts, 1, 1, network, (bytes, 1));
        let peers = u64::from(hosts - 1);
        let copies = half_block_copies(peers * (64 << 10), true) * COPYING_WARPS[0] / COPYING_WARPS[peers as usize - 1];
        let (added, expected) = (time(128 << 10) - time(64 << 10), copies);
        assert!((added / expected - 1.0).abs() < 0.02, "{hosts} hosts: {added} and {expected}");
    }
}

/// A chunk of a ring is sent slice by slice, and a chunk of a chain as one message, so a ring chunk needs the proxy
/// twice.
#[test]
fn rings_send_slices_and_chains_send_chunks() {
    let network = NetworkCosts { message: Picos(50_000_000), ..NetworkCosts::FREE };
    let time = |collective, network: NetworkCosts| {
        let profile = Profile { network, ..Profile::named("nccl-2.28-h200").unwrap() };
        let testbed = Testbed { profile, ..testbed("hgx-h200", 1, 2, network) };
        let call = Call { collective, bytes: Bytes(64 << 10), ranks: 2, root: Rank(0), buffers: BufferUse::OutOfPlace };
        let case = Case { algorithm: Algorithm::Ring, shape: Shape::new(call, Protocol::Simple) };
        testbed.run(&*case.generator(), Folding::WhereProved).unwrap().time.0
    };
    let messages = |collective| {
        let added = time(collective, network) - time(collective, NetworkCosts::FREE);
        (added as f64 / network.message.0 as f64).round()
    };
    assert_eq!([Collective::AllGather, Collective::Broadcast].map(messages), [2.0, 1.0]);
}

/// A message is sent when it is complete: the passes of its block precede it, for at most one slot of the connection's
/// buffer.
#[test]
fn messages_are_sent_when_they_are_complete() {
    let profile = Profile {
        network: NetworkCosts { post: Picos(1), ..NetworkCosts::FREE },
        ..Profile::named("nccl-2.28-h200").unwrap()
    };
    let free = Profile { network: NetworkCosts::FREE, ..profile.clone() };
    let time = |profile: &Profile, bytes| {
        let testbed = Testbed { profile: profile.clone(), ..testbed("hgx-h200", 1, 2, NetworkCosts::FREE) };
        broadcast(&testbed, Protocol::Ll128, bytes, (1, 1))
    };
    let fill = |bytes| time(&profile, bytes) - time(&free, bytes) - 1.0;
    // Within the first pass there is no additional wait.
    assert_eq!(fill(30_000), 0.0);
    let (half, full, twice) = (fill(288_000), fill(576_000), fill(1_152_000));
    assert!(half > 0.0 && (full / half - 2.0).abs() < 0.2, "{half} {full}");
    assert_eq!((full, largest_message(Protocol::Ll128)), (twice, Bytes(576_000)));
}

/// Each of the 15 messages of a ring's connection between hosts waits for the acknowledgements of the data and of the
/// notification of the one before, if a message has more than 8 KiB with its framing. Several queue pairs overlap the
/// waits between messages, and with static routing there are none.
#[test]
fn rings_wait_for_acknowledgements_of_large_messages() {
    let signal = Picos(1_000_000_000);
    let time = |payload: u64, network: NetworkCosts| {
        let profile = Profile { network, ..Profile::named("nccl-2.28-h200").unwrap() };
        let testbed = Testbed { profile, ..testbed("hgx-h200", 8, 2, network) };
        let (ranks, buffers) = (testbed.ranks(), BufferUse::OutOfPlace);
        let bytes = Bytes(payload * u64::from(ranks));
        let call = Call { collective: Collective::AllGather, bytes, ranks, root: Rank(0), buffers };
        let shape = Shape { ranks_per_node: 8, ..Shape::new(call, Protocol::Ll128) };
        let case = Case { algorithm: Algorithm::Ring, shape };
        testbed.run(&*case.generator(), Folding::WhereProved).unwrap().time.0
    };
    let waits = |payload, queue_pairs| {
        let with_signal = NetworkCosts { signal, queue_pairs, ..NetworkCosts::FREE };
        let added = time(payload, with_signal) - time(payload, NetworkCosts::FREE);
        (added as f64 / signal.0 as f64).round()
    };
    let (one, two) = (QueuePairs::ONE, QueuePairs { count: 2, ..QueuePairs::ONE });
    // LL128 frames 7,680 bytes in 8,192.
    assert_eq!([7_680, 7_696].map(|payload| waits(payload, one)), [0.0, 14.0 * 2.0]);
    assert_eq!(waits(7_696, two), 14.0);
    assert_eq!(waits(7_696, QueuePairs { routing: PacketRouting::Static, ..one }), 0.0);
}
