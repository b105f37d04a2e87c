//! Compares completion times with closed forms: under the `ideal` profile on equal links, the time of every algorithm
//! is given by its facts and formulas, within one picosecond per transfer.
//!
//! L is the latency of a path (two links), B the bandwidth of a link, n the number of ranks. The engine rounds the end
//! of each transfer up to a picosecond and a shared rate down by less than 10⁻³ B/s. Messages of a channel to one peer
//! are serialized, so each of several messages in a step is rounded up. A connection carries no block twice, so the
//! number of serialized transfers is at most that of the steps and the blocks of a rank.

use fabricast_collectives::algorithm::facts::{Count, Time, facts};
use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_sim::Folding;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_topologies::{Bandwidth, Bytes, Picos, cluster};
use proptest::prelude::*;

use crate::generators::{Case, is_rooted};
use crate::matrices::with_matrix;
use crate::testbed::{Testbed, switch};

/// A call on ranks with equal links.
#[derive(Clone, Copy, Debug)]
struct Setup {
    ranks: u32,
    bytes: u64,
    channels: u16,
    buffers: BufferUse,
    bandwidth: Bandwidth,
    link_latency: Picos,
}

impl Setup {
    fn case(&self, algorithm: Algorithm, collective: Collective, root: u32) -> Case {
        let Self { ranks, bytes, channels, buffers, .. } = *self;
        let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(root), buffers };
        Case { algorithm, shape: with_matrix(Shape { channels, ..Shape::new(call, Protocol::Simple) }, 0) }
    }

    fn time(&self, case: &Case) -> Picos {
        let testbed = Testbed::ideal(switch(self.ranks, self.bandwidth, self.link_latency));
        let timeline = testbed.run(&*case.generator(), Folding::Off).unwrap();
        assert_eq!(timeline.costs.total(), timeline.time);
        timeline.time
    }

    /// Returns L, the latency of a path, in picoseconds.
    fn latency(&self) -> f64 {
        2.0 * self.link_latency.0 as f64
    }

    /// Returns the time of all bytes over one link, in picoseconds.
    fn transfer_time(&self) -> f64 {
        self.bytes as f64 * 1e12 / self.bandwidth.0 as f64
    }
}

fn setups() -> impl Strategy<Value = Setup> {
    let buffers = prop_oneof![Just(BufferUse::InPlace), Just(BufferUse::OutOfPlace)];
    let bandwidth =
        prop_oneof![Just(Bandwidth(450_000_000_000)), (1_000_000_000u64..2_000_000_000_000).prop_map(Bandwidth)];
    let bytes = prop_oneof![0u64..100, 1u64..100_000_000];
    (2u32..=17, bytes, 1u16..=4, buffers, bandwidth, 0u64..2_000_000).prop_map(
        |(ranks, bytes, channels, buffers, bandwidth, latency)| Setup {
            ranks,
            bytes,
            channels,
            buffers,
            bandwidth,
            link_latency: Picos(latency),
        },
    )
}

/// Asserts that `actual` is `exact` rounded up by at most a picosecond for each of `steps` steps, with rates rounded
/// down to 10⁻³ B/s among `sharers` flows.
fn is_rounded_up(
    actual: Picos,
    exact: f64,
    steps: u32,
    sharers: u32,
    bandwidth: Bandwidth,
) -> Result<(), TestCaseError> {
    let rounding = exact * f64::from(sharers) * 1e-3 / bandwidth.0 as f64;
    // The slack covers the floating-point error of the exact value, and the truncation of chunks below 10⁻¹⁵ bytes.
    let slack = 1e-3 + exact * 1e-14;
    let excess = actual.0 as f64 - exact;
    prop_assert!(
        -slack <= excess && excess <= f64::from(steps) + rounding + slack,
        "{actual:?} against {exact} in {steps} steps"
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// Every algorithm with a closed form takes one latency per step plus the transfer time of the stated bytes, on any
    /// number of ranks, in or out of place, with any root and number of channels that share the links.
    #[test]
    fn flat_times_match_the_facts(setup in setups(), root in any::<prop::sample::Index>()) {
        for facts in facts().filter(|facts| facts.is_exact_for(setup.ranks)) {
            let Time::Flat(bytes) = facts.time else { continue };
            let channels = match facts.algorithm {
                // Channels over different sides of a grid are not in step, and chunks of a reduce-then-scatter are
                // serialized.
                Algorithm::GridRing | Algorithm::ReduceThenScatter => 1,
                // Each of the two trees has one channel; on a single channel the second tree would follow the first.
                Algorithm::Tree => 2,
                _ => setup.channels,
            };
            let setup = Setup { channels, ..setup };
            let root = if is_rooted(facts.collective) { root.index(setup.ranks as usize) as u32 } else { 0 };
            let count = Count { ranks: setup.ranks, per_host: setup.ranks };
            let steps = (facts.steps.evaluate)(count);
            let exact = steps * setup.latency() + (bytes.evaluate)(count) * setup.transfer_time();
            let time = setup.time(&setup.case(facts.algorithm, facts.collective, root));
            let sharers = setup.ranks * u32::from(setup.channels);
            // A buffer has as many blocks as ranks.
            let transfers = steps as u32 + ((facts.sent.evaluate)(count).max(1.0) * f64::from(setup.ranks)).ceil() as u32;
            let checked = is_rounded_up(time, exact, transfers, sharers, setup.bandwidth);
            prop_assert!(checked.is_ok(), "{} {}: {:?}", facts.algorithm, facts.collective, checked);
        }
    }

    /// PAT on 2ᵏ ranks with messages of at most 2ᵃ blocks needs a + 2ᵏ⁻ᵃ − 1 steps and the minimum number of bytes.
    #[test]
    fn pat_with_small_messages_matches_closed_form(setup in setups(), k in 1u32..=5, a in 0u32..5) {
        let (ranks, blocks_per_message) = (1u32 << k, 1u64 << a.min(k - 1));
        let block = setup.bytes / u64::from(setup.channels) / u64::from(ranks) + 1;
        let bytes = block * u64::from(setup.channels) * u64::from(ranks);
        let setup = Setup { ranks, bytes, ..setup };
        let steps = a.min(k - 1) + (ranks >> a.min(k - 1)) - 1;
        let exact = f64::from(steps) * setup.latency() + f64::from(ranks - 1) / f64::from(ranks) * setup.transfer_time();
        for collective in [Collective::AllGather, Collective::ReduceScatter] {
            let mut case = setup.case(Algorithm::Pat, collective, 0);
            case.shape.chunk = Some(Bytes(block * blocks_per_message));
            let sharers = ranks * u32::from(setup.channels);
            is_rounded_up(setup.time(&case), exact, steps + ranks, sharers, setup.bandwidth)?;
        }
    }

    /// A grid of equal sides with one channel per dimension and direction, all in step, needs Σ(aᵢ−1) steps.
    #[test]
    fn square_grids_match_closed_form(setup in setups(), side in 2u32..=4, dimensions in 1u32..=3) {
        let ranks = side.pow(dimensions);
        let channels = 2 * dimensions as u16;
        let setup = Setup { ranks, channels, ..setup };
        let steps = dimensions * (side - 1);
        let exact = f64::from(steps) * setup.latency() + f64::from(ranks - 1) / f64::from(ranks) * setup.transfer_time();
        for (collective, times) in
            [(Collective::AllReduce, 2), (Collective::AllGather, 1), (Collective::ReduceScatter, 1)]
        {
            let mut case = setup.case(Algorithm::GridRing, collective, 0);
            case.shape.ranks_per_node = 1;
            case.shape.grid = vec![side; dimensions as usize];
            let sharers = ranks * u32::from(channels);
            let exact = f64::from(times) * exact;
            is_rounded_up(setup.time(&case), exact, times * (steps + ranks), sharers, setup.bandwidth)?;
        }
    }

    /// A chain of k equal chunks of c bytes takes (n−1)(L + c/B) for the first chunk, and c/B for each further one.
    #[test]
    fn pipelined_chains_match_closed_form(setup in setups(), k in 1u32..9, root in any::<prop::sample::Index>()) {
        let chunk = setup.bytes / u64::from(k) / u64::from(setup.channels) + 1;
        let setup = Setup { bytes: chunk * u64::from(k) * u64::from(setup.channels), ..setup };
        let steps = setup.ranks - 2 + k;
        let exact = f64::from(setup.ranks - 1) * setup.latency() + f64::from(steps) * setup.transfer_time() / f64::from(k);
        let root = root.index(setup.ranks as usize) as u32;
        for collective in [Collective::Broadcast, Collective::Reduce] {
            let mut case = setup.case(Algorithm::Ring, collective, root);
            case.shape.chunk = Some(Bytes(chunk));
            is_rounded_up(setup.time(&case), exact, steps, setup.channels.into(), setup.bandwidth)?;
        }
    }

    /// In a tree of radix 4 on 4ᵐ ranks, a rank of height k has 3k children, which share its port. The same holds for
    /// an all_reduce whose result is broadcast over the tree, after a reduce of 2m steps.
    #[test]
    fn radix_4_trees_match_closed_form(setup in setups(), m in 1u32..=2, root in any::<prop::sample::Index>()) {
        let setup = Setup { ranks: 1 << (2 * m), ..setup };
        let loads = f64::from(3 * m * (m + 1) / 2);
        let sharers = 3 * m * u32::from(setup.channels);
        let root = root.index(setup.ranks as usize) as u32;
        let time = setup.time(&setup.case(Algorithm::Knomial, Collective::Broadcast, root));
        is_rounded_up(time, f64::from(m) * setup.latency() + loads * setup.transfer_time(), m, sharers, setup.bandwidth)?;
        let time = setup.time(&setup.case(Algorithm::ReduceThenBroadcast, Collective::AllReduce, 0));
        let exact = f64::from(3 * m) * setup.latency() + (loads + f64::from(2 * m)) * setup.transfer_time();
        is_rounded_up(time, exact, 3 * m, sharers, setup.bandwidth)?;
    }

    /// Compares full binary trees of 2ᵏ − 1 ranks with their closed form, for any numbering of the ranks. The in-order
    /// tree needs an additional step if the last rank is not the root, and the split tree an additional step for half
    /// of the bytes.
    #[test]
    fn full_binary_trees_match_closed_form(setup in setups(), k in 2u32..=4, root in any::<prop::sample::Index>()) {
        let setup = Setup { ranks: (1 << k) - 1, ..setup };
        let root = root.index(setup.ranks as usize) as u32;
        let level = setup.latency() + 2.0 * setup.transfer_time();
        let up = f64::from(k - 1) * level;
        let sharers = 2 * u32::from(setup.channels);
        let exact = |algorithm, collective, root, exact| {
            is_rounded_up(setup.time(&setup.case(algorithm, collective, root)), exact, k, sharers, setup.bandwidth)
        };
        exact(Algorithm::BinaryTree, Collective::Broadcast, root, up)?;
        exact(Algorithm::BinaryTree, Collective::Reduce, root, up)?;
        exact(Algorithm::InOrderTree, Collective::Reduce, setup.ranks - 1, up)?;
        let last_step = if root + 1 == setup.ranks { 0.0 } else { setup.latency() + setup.transfer_time() };
        exact(Algorithm::InOrderTree, Collective::Reduce, root, up + last_step)?;
        let split = f64::from(k) * setup.latency() + (f64::from(k) - 0.5) * setup.transfer_time();
        exact(Algorithm::SplitTree, Collective::Broadcast, root, split)?;
    }

    /// A reduce over four chains of l ranks each takes l·L + (l + 3)·bytes/B.
    #[test]
    fn reduce_over_equal_chains_matches_closed_form(setup in setups(), l in 1u32..=4, root in any::<prop::sample::Index>()) {
        let setup = Setup { ranks: 4 * l + 1, ..setup };
        let root = root.index(setup.ranks as usize) as u32;
        let time = setup.time(&setup.case(Algorithm::Chains, Collective::Reduce, root));
        let exact = f64::from(l) * setup.latency() + f64::from(l + 3) * setup.transfer_time();
        is_rounded_up(time, exact, l, 4 * u32::from(setup.channels), setup.bandwidth)?;
    }

    /// A gather with handshakes sends, for each rank except the root, a signal to that rank and its block back.
    #[test]
    fn gather_with_handshakes_matches_closed_form(setup in setups(), root in any::<prop::sample::Index>()) {
        let root = root.index(setup.ranks as usize) as u32;
        let time = setup.time(&setup.case(Algorithm::LinearSync, Collective::Gather, root));
        let n = f64::from(setup.ranks);
        let exact = 2.0 * (n - 1.0) * setup.latency() + (n - 1.0) / n * setup.transfer_time();
        is_rounded_up(time, exact, 2 * setup.ranks, u32::from(setup.channels), setup.bandwidth)?;
    }

    /// Within a host both trees are the same chain. On separate channels they share its links: 2(n−1)(L + bytes/B). On
    /// one channel the second tree follows the first: 2(n−1)(L + bytes/2B), plus bytes/2B.
    #[test]
    fn trees_in_a_host_are_chains(setup in setups()) {
        let setup = Setup { channels: setup.channels.min(2), ..setup };
        let steps = 2 * (setup.ranks - 1);
        let time = setup.time(&setup.case(Algorithm::Tree, Collective::AllReduce, 0));
        let exact = match setup.channels {
            1 => f64::from(steps) * (setup.latency() + setup.transfer_time() / 2.0) + setup.transfer_time() / 2.0,
            _ => f64::from(steps) * (setup.latency() + setup.transfer_time()),
        };
        is_rounded_up(time, exact, steps + 1, 2, setup.bandwidth)?;
    }

    /// Compares a double binary tree over 2ᵏ hosts of one rank with its closed form. Host 0 has one child, of height
    /// k−1, whose subtrees are complete; each tree carries half of the bytes. A rank is a leaf in one tree; in the
    /// other tree, the halves of its two children share its port. The time is k−1 levels of L + bytes/B, and L +
    /// bytes/(2B) between host 0 and its child, both up and down.
    #[test]
    fn double_binary_trees_match_closed_form(setup in setups(), k in 1u32..=5) {
        let setup = Setup { ranks: 1 << k, channels: [1, 2, 4][usize::from(setup.channels % 3)], ..setup };
        let mut case = setup.case(Algorithm::Tree, Collective::AllReduce, 0);
        case.shape.ranks_per_node = 1;
        let levels = f64::from(k - 1) * (setup.latency() + setup.transfer_time());
        let exact = 2.0 * (levels + setup.latency() + setup.transfer_time() / 2.0);
        is_rounded_up(setup.time(&case), exact, 2 * k, 2 * u32::from(setup.channels), setup.bandwidth)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Compares hierarchical algorithms with their closed form on h hosts of g ranks, with one rail of latency L' and
    /// bandwidth B' per rank. All_reduce takes 2(L + (g−1)/g·bytes/B) within the hosts and 2(h−1)(L' + bytes/(g·h·B'))
    /// between them; other collectives likewise.
    #[test]
    fn hierarchical_algorithms_on_rails_match_closed_form(
        setup in setups(),
        hosts in 2u32..=4,
        per_host in 1u32..=8,
        nic_gb_per_s in 1u32..=50,
        root in any::<prop::sample::Index>(),
    ) {
        let setup = Setup { ranks: hosts * per_host, ..setup };
        let network = format!("rail,nics_per_node={per_host},nic={nic_gb_per_s}GB/s,nic_latency=1us,switch_latency=200ns");
        // NICs are attached to the GPUs if a host has no other device.
        let host = switch(per_host, setup.bandwidth, setup.link_latency);
        let fabric = cluster::build(&host, hosts, Some(&network.parse().unwrap())).unwrap();
        let testbed = Testbed::ideal(fabric);
        // The path crosses PCIe to the NIC and back (150 ns each), the NICs and one switch.
        let rail = testbed.router().path(testbed.fabric.gpus()[0], testbed.fabric.gpus()[per_host as usize]).unwrap();
        prop_assert_eq!(rail.latency, Picos(150_000 + 1_000_000 + 200_000 + 150_000));
        prop_assert_eq!(rail.bandwidth, Some(Bandwidth::from_gb_per_s(nic_gb_per_s.into())));

        let (g, h, n) = (f64::from(per_host), f64::from(hosts), f64::from(setup.ranks));
        let rail_time = |part: f64| rail.latency.0 as f64 + part * setup.bytes as f64 * 1e3 / f64::from(nic_gb_per_s);
        let host_time = |part: f64| if per_host == 1 { 0.0 } else { setup.latency() + part * setup.transfer_time() };
        let run = |collective, root| {
            let mut case = setup.case(Algorithm::Hierarchical, collective, root);
            case.shape.ranks_per_node = per_host;
            testbed.run(&*case.generator(), Folding::Off).unwrap().time
        };
        let min_bandwidth = Bandwidth(setup.bandwidth.0.min(u64::from(nic_gb_per_s) * 1_000_000_000));
        let sharers = setup.ranks * u32::from(setup.channels);
        let is_exact = |actual, exact| is_rounded_up(actual, exact, 2 + 2 * hosts, sharers, min_bandwidth);

        let exact = 2.0 * host_time((g - 1.0) / g) + 2.0 * (h - 1.0) * rail_time(1.0 / n);
        is_exact(run(Collective::AllReduce, 0), exact)?;
        let root = root.index(setup.ranks as usize) as u32;
        for collective in [Collective::Broadcast, Collective::Reduce] {
            is_exact(run(collective, root), 2.0 * host_time((g - 1.0) / g) + (h - 1.0) * rail_time(1.0 / g))?;
        }
        // If the rails are not faster than the links in the hosts, forwarding block by block is limited by the rails.
        let (step, share) = (rail_time(1.0 / n), host_time((g - 1.0) / n));
        if share + f64::from(sharers) <= step {
            is_exact(run(Collective::AllGather, 0), (h - 1.0) * step + share)?;
            // Of the first two blocks that a rank sends to a local peer, the second follows the first immediately.
            let hidden = if per_host == 1 || hosts == 2 { 0.0 } else { setup.latency() };
            is_exact(run(Collective::ReduceScatter, 0), (h - 1.0) * step + 2.0 * share - hidden)?;
        }
        // A rank's own blocks are sent while those of the local peers are gathered.
        let min_time = rail_time((h - 1.0) / h);
        let actual = run(Collective::AllToAll, 0).0 as f64;
        prop_assert!(actual >= min_time - 1.0, "{actual} is less than {min_time}");
        let max_time = (host_time((g - 1.0) / g) + min_time) * (1.0 + 1e-9) + f64::from(sharers);
        prop_assert!(actual <= max_time, "{actual} is more than {max_time}");
    }
}
