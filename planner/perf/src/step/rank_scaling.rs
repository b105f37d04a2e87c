//! Extrapolates the completion time of rings, double binary trees and PAT over large groups from simulations of
//! [`FIRST_RANKS`] ranks and of twice as many. A partly filled last NVLink domain is simulated as well. Of several groups that
//! share links, [`FIRST_RANKS_OF_SEVERAL`] ranks each and twice as many are simulated if they load the busiest link like all
//! ranks, otherwise [`FIRST_RANKS`] if these do. PAT always uses [`FIRST_RANKS`].
//!
//! Rings: n - 1 steps (or a multiple of it), each of which moves the bytes of one rank. With constant bytes per rank
//! the time is linear in n. From 128 and 256 ranks, those of 512, 1,024 and 4,096 are within 0.63 % (HGX H100 on rails,
//! all_gather and all_reduce, LL128 and Simple, 16 KiB and 1 MiB per rank) at a fiftieth of the cost.
//!
//! PAT, one GPU per host: exact for powers of two, up to 4.5 % too short for 600 ranks (HGX H100 on rails, 256 KiB to 2
//! MiB per rank). Smaller parts are bound by the threads that send them, and the time is linear in n within 0.7 % (64
//! KiB, 128 to 1,500 hosts, H100 and GB200).
//!
//! Double binary trees: each doubling of the ranks adds one level, and the buffer streams through all levels, so the
//! time grows by a constant per doubling. Between doublings the first added ranks cost most, as each is one level
//! further from the root; a square root models this within 0.5 % (H100, one GPU and one 400 Gb/s NIC per host, 256 MiB,
//! Simple, 128 to 1,024 hosts).

use std::convert::Infallible;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::fabric::Link;
use fabricast_topologies::{Bytes, LinkId, NodeId, Picos};
use rayon::prelude::*;

use super::call_times::SimulatedCosts;
use super::concurrent_calls::CallWithStrategy;
use super::size_sampling::SAMPLE_BYTES_STREAMING;
use fabricast_collectives::algorithm::Algorithm;
use fabricast_search::plan::PlanError;

/// Ranks of the first simulation of a single group, rounded up to whole NVLink domains. The second has twice as many.
const FIRST_RANKS: usize = 128;

/// Variant of [`FIRST_RANKS`] for each of several groups that share links, all of which are simulated.
const FIRST_RANKS_OF_SEVERAL: usize = 64;

/// Largest relative difference between the load of the busiest link of the scaled-down groups and that of the full
/// groups. Counter-example: rings over an odd number of dragonfly groups put twice the load on a link on the way back.
const LOAD_TOLERANCE: f64 = 0.01;

/// Number of partial link-load sums that are computed in parallel.
const PARTIAL_SUMS: usize = 16;

/// Longest period, in NVLink domains, after which rank counts per domain repeat. Example: with a rank stride of 16,
/// racks of 72 GPUs hold five and four ranks in turn.
const LONGEST_PERIOD: usize = 4;

/// Bytes per rank from which PAT's steps are bandwidth-bound and run one after the other, so that the time is linear in
/// the ranks.
const PAT_BANDWIDTH_BOUND_BYTES: u64 = 256 << 10;

/// Smallest bytes per rank for the extrapolation of PAT. Below [`PAT_BANDWIDTH_BOUND_BYTES`] it is bound by threads: links may need at
/// most half of the time.
const PAT_MIN_BYTES: u64 = 4 << 10;

/// Smallest time ratio of the second simulation to the first, in hundredths, that counts as linear. (Latency-bound
/// calls with tiny parts gain only one step per doubling.)
const LINEAR_RATIO_PERCENT: u64 = 180;

/// Communication pattern of the ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pattern {
    /// Each rank sends everything to the next one.
    Ring,
    /// Each rank sends a half to the next rank, a quarter to the second next, an eighth to the fourth next, and so on.
    PowersOfTwo,
}

impl Pattern {
    /// Returns sender, receiver and share of the bytes for all pairs.
    fn pairs(self, group: &[NodeId]) -> impl Iterator<Item = (&NodeId, &NodeId, f64)> {
        let ranks = group.len();
        let distances = match self {
            Self::Ring => 1,
            Self::PowersOfTwo => ranks.checked_ilog2().unwrap_or(0),
        };
        (0..distances).flat_map(move |power| {
            let share = if self == Self::Ring { 1.0 } else { 0.5f64.powi(power as i32 + 1) };
            group.iter().zip(group.iter().cycle().skip(1 << power)).map(move |(from, to)| (from, to, share))
        })
    }

    /// Largest relative difference of the busiest link's load. (Larger groups have additional, smaller shares.)
    fn load_tolerance(self) -> f64 {
        match self {
            Self::Ring => LOAD_TOLERANCE,
            Self::PowersOfTwo => 2.0 * LOAD_TOLERANCE,
        }
    }
}

/// Growth law of the completion time with the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScalingLaw {
    /// Linear in the ranks, at constant bytes per rank: rings.
    Rank,
    /// Constant increment per doubling of the ranks, at constant total bytes: double binary trees.
    Doubling,
    /// Linear in the ranks for parts of at least [`PAT_MIN_BYTES`] bytes, if the two simulations confirm it: PAT.
    RankIfConfirmed,
}

impl ScalingLaw {
    /// Growth law of an algorithm; `None` if unknown.
    pub(super) fn new(algorithm: Algorithm, collective: Collective) -> Option<Self> {
        match (algorithm, collective) {
            (Algorithm::Ring, Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter) => {
                Some(Self::Rank)
            }
            (Algorithm::Tree | Algorithm::NvlsTree, Collective::AllReduce) => Some(Self::Doubling),
            (Algorithm::Pat, Collective::AllGather | Collective::ReduceScatter) => Some(Self::RankIfConfirmed),
            _ => None,
        }
    }
}

/// Scaled-down simulations from which the time of a call of a large group is extrapolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScaledDown {
    /// Ranks in whole domains in the first simulation; the second has twice as many.
    first_ranks: usize,
    /// Ranks in a partly filled last domain, which has fewer NICs; part of both simulations.
    last_domain_ranks: usize,
    /// Ranks of the call itself.
    ranks: usize,
    bytes: Bytes,
    growth: ScalingLaw,
}

impl ScaledDown {
    /// Returns the number of ranks in the first and in the second simulation.
    pub(super) fn sample_ranks(self) -> [usize; 2] {
        [self.first_ranks + self.last_domain_ranks, 2 * self.first_ranks + self.last_domain_ranks]
    }

    /// Selects `ranks` ranks of a group: from its first domains, and all of a partly filled last one.
    pub(super) fn select(self, group: &[NodeId], ranks: usize) -> Option<Vec<NodeId>> {
        let (full_domains, last) = group.split_at_checked(group.len().checked_sub(self.last_domain_ranks)?)?;
        Some([full_domains.get(..ranks.checked_sub(self.last_domain_ranks)?)?, last].concat())
    }

    /// Applies [`Self::select`] to several groups.
    fn select_each(self, groups: &[Vec<NodeId>], ranks: usize) -> Vec<Vec<NodeId>> {
        groups.iter().filter_map(|group| self.select(group, ranks)).collect()
    }

    /// Scales a call down to `ranks` ranks.
    fn scaled_call(self, call: &CallWithStrategy, ranks: usize) -> CallWithStrategy {
        CallWithStrategy { bytes: self.scaled_bytes(ranks), ..*call }
    }

    /// Returns the message size of the call scaled down to `ranks` ranks.
    pub(super) fn scaled_bytes(self, ranks: usize) -> Bytes {
        match self.growth {
            ScalingLaw::Rank | ScalingLaw::RankIfConfirmed => {
                Bytes(self.bytes.0.div_ceil(self.ranks.max(1) as u64) * ranks as u64)
            }
            ScalingLaw::Doubling => self.bytes,
        }
    }

    /// Extrapolates the completion time of the call from the times of the two simulations.
    pub(super) fn extrapolate(self, [first, second]: [Picos; 2]) -> Picos {
        let [_, second_ranks] = self.sample_ranks();
        let (first_ranks, second_ranks) = (self.first_ranks.max(1), second_ranks.max(1));
        // Multiple of the increment between the simulations, as a fraction `numerator / denominator`.
        let (numerator, denominator) = match self.growth {
            ScalingLaw::Rank | ScalingLaw::RankIfConfirmed => (self.ranks.saturating_sub(second_ranks), first_ranks),
            // Whole doublings, plus the square root of the remaining fraction of a doubling, in thousandths.
            ScalingLaw::Doubling => {
                let doublings = (self.ranks / second_ranks).max(1).ilog2();
                let doubled_ranks = second_ranks << doublings;
                let remainder = (self.ranks.saturating_sub(doubled_ranks) * 1_000_000 / doubled_ranks).isqrt();
                (doublings as usize * 1000 + remainder, 1000)
            }
        };
        second + Picos((u128::from((second - first).0) * numerator as u128 / denominator as u128) as u64)
    }
}

impl SimulatedCosts<'_> {
    /// Returns the scaled-down simulations for a call of a group, the first with at least `min_ranks` ranks. `None` if
    /// the group is too small or its domains are irregular (except for the last), or if the message is too small to stream.
    fn scaled_down_from(
        &self,
        min_ranks: usize,
        group: &[NodeId],
        bytes: Bytes,
        growth: ScalingLaw,
    ) -> Option<ScaledDown> {
        let fills = match growth {
            ScalingLaw::Rank => true,
            // A message that does not fill the pipeline of a tree is bound by its longest path.
            ScalingLaw::Doubling => bytes.0 >= SAMPLE_BYTES_STREAMING,
            ScalingLaw::RankIfConfirmed => bytes.0 >= PAT_MIN_BYTES * group.len() as u64,
        };
        if group.len() <= 2 * min_ranks || !fills {
            return None;
        }
        let islands: Vec<u32> = group.iter().map(|&device| self.router.island_of(device)).collect();
        let counts: Vec<usize> = islands.chunk_by(|a, b| a == b).map(<[u32]>::len).collect();
        let (&last, others) = counts.split_last()?;
        let is_periodic =
            |period: &usize| others.iter().zip(others.iter().skip(*period)).all(|(one, next)| one == next);
        let period = others.get(..(1..=LONGEST_PERIOD).find(is_periodic)?)?;
        let first_ranks = min_ranks.next_multiple_of(period.iter().sum());
        // (Ranks of a partly filled last domain.)
        let last_domain_ranks = if last == *period.get(others.len() % period.len())? { 0 } else { last };
        (last <= *period.iter().max()? && group.len() > 2 * first_ranks + last_domain_ranks).then_some(ScaledDown {
            first_ranks,
            last_domain_ranks,
            ranks: group.len(),
            bytes,
            growth,
        })
    }

    /// Variant of [`Self::scaled_down_from`] for a single group.
    pub(super) fn scaled_down(&self, group: &[NodeId], bytes: Bytes, growth: ScalingLaw) -> Option<ScaledDown> {
        self.scaled_down_from(FIRST_RANKS, group, bytes, growth)
    }

    /// Extrapolated completion time of a call with all groups concurrent; `None` if the call cannot be extrapolated.
    pub(super) fn extrapolated_time(
        &self,
        groups: &[Vec<NodeId>],
        call: &CallWithStrategy,
    ) -> Option<Result<Picos, PlanError>> {
        let growth = ScalingLaw::new(call.strategy.algorithm, call.collective)?;
        let first = groups.first()?;
        let alone = || self.scaled_down(first, call.bytes, growth);
        if groups.len() == 1 {
            // (A longer ring or tree puts no more load on any link. Distant PAT partners may.)
            let scaled_down = alone().filter(|scaled_down| {
                growth != ScalingLaw::RankIfConfirmed || self.loads_links_equally(*scaled_down, groups)
            })?;
            return self.simulate_and_extrapolate(groups, call, scaled_down);
        }
        // (From 64 and 128 ranks PAT among 2,048 is 2 % off, from 128 and 256 less than 1 %.)
        let first_ranks: &[usize] =
            if growth == ScalingLaw::RankIfConfirmed { &[FIRST_RANKS] } else { &[FIRST_RANKS_OF_SEVERAL, FIRST_RANKS] };
        let samples = first_ranks.iter().map(|&min_ranks| self.scaled_down_from(min_ranks, first, call.bytes, growth));
        let scaled_down = samples.flatten().find(|scaled_down| self.loads_links_equally(*scaled_down, groups))?;
        let [_, second_ranks] = scaled_down.sample_ranks();
        // If the first group represents all, use its times without the others.
        match self.first_represents_all(
            &scaled_down.select_each(groups, second_ranks),
            scaled_down.scaled_call(call, second_ranks),
        ) {
            true => self.simulate_and_extrapolate(std::slice::from_ref(first), call, alone().unwrap_or(scaled_down)),
            false => self.simulate_and_extrapolate(groups, call, scaled_down),
        }
    }

    /// Runs both simulations and extrapolates; `None` if PAT's times do not grow linearly.
    fn simulate_and_extrapolate(
        &self,
        groups: &[Vec<NodeId>],
        call: &CallWithStrategy,
        scaled_down: ScaledDown,
    ) -> Option<Result<Picos, PlanError>> {
        let simulate = |ranks: usize| {
            self.part_time(&scaled_down.select_each(groups, ranks), scaled_down.scaled_call(call, ranks))
        };
        let [first, second] = scaled_down.sample_ranks();
        let times = match rayon::join(|| simulate(first), || simulate(second)) {
            (Ok(first), Ok(second)) => [first, second],
            (Err(error), _) | (_, Err(error)) => return Some(Err(error)),
        };
        let extrapolated = scaled_down.extrapolate(times);
        let is_linear = || {
            let [first, second] = times;
            let is_large = call.bytes.0 >= PAT_BANDWIDTH_BOUND_BYTES * scaled_down.ranks as u64;
            second.0 / 100 >= first.0 / 10_000 * LINEAR_RATIO_PERCENT
                && (is_large || extrapolated.0 / 2 >= self.busiest_link_bound(groups, *call).0)
        };
        (scaled_down.growth != ScalingLaw::RankIfConfirmed || is_linear()).then_some(Ok(extrapolated))
    }

    /// Returns true if the scaled-down groups load their busiest link like the full groups, in both simulations.
    fn loads_links_equally(&self, scaled_down: ScaledDown, groups: &[Vec<NodeId>]) -> bool {
        let pattern = match scaled_down.growth {
            ScalingLaw::Rank | ScalingLaw::Doubling => Pattern::Ring,
            ScalingLaw::RankIfConfirmed => Pattern::PowersOfTwo,
        };
        let full_time = self.busiest_link_time(groups, pattern);
        scaled_down.sample_ranks().iter().all(|&ranks| {
            let sample_time = self.busiest_link_time(&scaled_down.select_each(groups, ranks), pattern);
            (sample_time - full_time).abs() <= pattern.load_tolerance() * full_time
        })
    }

    /// Transfer time of the busiest link, in seconds, if each rank sends one byte in total to its partners and only
    /// transfers between domains count. Cached by first group, number of groups and pattern.
    fn busiest_link_time(&self, groups: &[Vec<NodeId>], pattern: Pattern) -> f64 {
        let Some(first) = groups.first() else { return 0.0 };
        let compute = || Ok::<_, Infallible>(Some(self.find_busiest(groups, pattern)));
        self.busiest_links
            .get_or_compute((first.clone(), groups.len(), pattern), compute)
            .ok()
            .flatten()
            .unwrap_or_default()
    }

    fn find_busiest(&self, groups: &[Vec<NodeId>], pattern: Pattern) -> f64 {
        let fabric = self.router.fabric();
        // Summation order does not depend on the number of threads.
        let groups_per_task = groups.len().div_ceil(PARTIAL_SUMS).max(1);
        let partial_loads: Vec<Vec<f64>> = groups
            .par_chunks(groups_per_task)
            .with_max_len(1)
            .map(|groups| self.load_between_domains(groups, pattern))
            .collect();
        let mut loads = vec![0.0; fabric.links().len()];
        for partial in &partial_loads {
            loads.iter_mut().zip(partial).for_each(|(sum, load)| *sum += load);
        }
        let seconds = |((_, link), load): ((LinkId, &Link), f64)| {
            link.bandwidth.map_or(0.0, |bandwidth| load / bandwidth.0 as f64)
        };
        fabric.links().zip(loads).map(seconds).fold(0.0, f64::max)
    }

    /// Load of each link, indexed by [`LinkId`], if each rank of the groups sends one byte in total to its partners;
    /// transfers inside domains do not count.
    fn load_between_domains(&self, groups: &[Vec<NodeId>], pattern: Pattern) -> Vec<f64> {
        let mut loads = vec![0.0; self.router.fabric().links().len()];
        let mut hops = Vec::new();
        for (&from, &to, share) in groups.iter().flat_map(|group| pattern.pairs(group)) {
            hops.clear();
            // (Unreachable pairs are rejected by the simulation.)
            if self.router.island_of(from) == self.router.island_of(to)
                || self.router.route_into(from, to, 0, &mut hops).is_err()
            {
                continue;
            }
            for hop in &hops {
                if let Some(load) = loads.get_mut(hop.link.0 as usize) {
                    *load += share * hop.share.fraction();
                }
            }
        }
        loads
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::Protocol;
    use fabricast_topologies::{Fabric, FabricRequest, load};

    use super::*;
    use crate::step::tests::{rails, with_machine};
    use fabricast_collectives::strategy::Strategy;
    use fabricast_workload::job::{Degrees, Dimension, Layout};

    /// Relative error of the extrapolation for one group, `kib` KiB per rank.
    fn error(
        simulated: &SimulatedCosts<'_>,
        group: &[NodeId],
        (algorithm, collective, protocol, kib): (Algorithm, Collective, Protocol, u64),
    ) -> f64 {
        let strategy = Strategy { algorithm, protocol, channels: 8, threads: None, chunk: None };
        let call = CallWithStrategy { collective, bytes: Bytes(kib * 1024 * group.len() as u64), strategy };
        let groups = [group.to_vec()];
        let extrapolated = simulated.extrapolated_time(&groups, &call).unwrap().unwrap();
        let expected = simulated.slowest(&groups, collective, call.bytes, strategy).unwrap();
        extrapolated.0 as f64 / expected.0 as f64 - 1.0
    }

    /// Rings and trees on rails and on an oversubscribed fat tree, with all GPUs of the hosts and with one GPU per
    /// host.
    #[test]
    fn extrapolated_rings_and_trees_are_within_1_2_percent() {
        let mut errors = Vec::new();
        let narrow = Some("fat_tree,nics_per_node=8,nic=400Gb/s,oversubscription=4".parse().unwrap());
        let narrow = FabricRequest { nodes: Some(96), network: narrow, ..FabricRequest::new("hgx-h100") };
        for (fabric, stride) in [(rails(96), 1), (load(&narrow).unwrap(), 1), (rails(640), 8)] {
            let group: Vec<NodeId> = fabric.gpus().iter().copied().step_by(stride).collect();
            for call in [
                (Algorithm::Ring, Collective::AllGather, Protocol::Ll128, 16),
                (Algorithm::Ring, Collective::ReduceScatter, Protocol::Simple, 1024),
                (Algorithm::Ring, Collective::AllReduce, Protocol::Simple, 128),
                (Algorithm::Tree, Collective::AllReduce, Protocol::Simple, 256),
                (Algorithm::Tree, Collective::AllReduce, Protocol::Ll128, 256),
            ] {
                let error = with_machine(&fabric, |machine| error(machine.simulated, &group, call));
                errors.push((error, format!("{}, every {stride}, {call:?}: {error:+.4}", fabric.name())));
            }
        }
        assert!(errors.iter().all(|(error, _)| error.abs() < 0.012), "{errors:#?}");
    }

    /// PAT with one GPU per host on rails. On a torus distant partners share links that near ones do not, so there is
    /// no extrapolation.
    #[test]
    fn extrapolated_pat_is_within_4_5_percent() {
        let error = |fabric: &Fabric, kib: u64| {
            let group: Vec<NodeId> = fabric.gpus().iter().copied().step_by(8).collect();
            let groups = [group];
            with_machine(fabric, |machine| {
                let (algorithm, protocol) = (Algorithm::Pat, Protocol::Simple);
                let strategy = Strategy { algorithm, protocol, channels: 16, threads: None, chunk: None };
                let (collective, bytes) = (Collective::ReduceScatter, Bytes(kib * 1024 * groups[0].len() as u64));
                let extrapolated = machine
                    .simulated
                    .extrapolated_time(&groups, &CallWithStrategy { collective, bytes, strategy })?
                    .unwrap();
                let expected = machine.simulated.slowest(&groups, collective, bytes, strategy).unwrap();
                Some(extrapolated.0 as f64 / expected.0 as f64 - 1.0)
            })
        };
        let (even, uneven) = (rails(512), rails(600));
        for (fabric, kib, tolerance) in
            [(&even, 16, 0.01), (&even, 256, 0.01), (&even, 2048, 0.01), (&uneven, 64, 0.01), (&uneven, 1024, 0.045)]
        {
            let error = error(fabric, kib).unwrap();
            assert!(error.abs() < tolerance, "{kib}: {error:+.4}");
        }
        assert_eq!(error(&even, 1), None);
        let torus = Some("torus,nic=400Gb/s".parse().unwrap());
        let torus =
            load(&FabricRequest { nodes: Some(512), network: torus, ..FabricRequest::new("hgx-h100") }).unwrap();
        assert_eq!(error(&torus, 1024), None);
    }

    /// Groups that share links, on machines with a partly filled last domain or with periodic rank counts per domain.
    /// Rings that share links only at full scale are not extrapolated.
    #[test]
    fn extrapolated_concurrent_rings_are_within_1_percent() {
        for (preset, nodes, network, tensor, is_extrapolated) in [
            ("hgx-h100", 160, "dragonfly,nic=400Gb/s", 8, false),
            ("hgx-h100", 192, "dragonfly,nic=400Gb/s", 8, true),
            ("hgx-h100", 160, "torus,nic=400Gb/s", 8, true),
            ("gb200-nvl72", 400, "", 8, true),
            ("gb200-nvl72", 700, "", 16, true),
        ] {
            let network = (!network.is_empty()).then(|| network.parse().unwrap());
            let fabric = load(&FabricRequest { nodes: Some(nodes), network, ..FabricRequest::new(preset) }).unwrap();
            let data = fabric.gpus().len() as u32 / tensor;
            let layout = Layout { degrees: Degrees { tensor, data, ..Degrees::default() } };
            with_machine(&fabric, |machine| {
                for (collective, protocol) in
                    [(Collective::AllGather, Protocol::Simple), (Collective::AllReduce, Protocol::Ll128)]
                {
                    let groups = machine.simulated.concurrent_groups(&layout.groups(Dimension::Data), collective);
                    let strategy =
                        Strategy { algorithm: Algorithm::Ring, protocol, channels: 8, threads: None, chunk: None };
                    let bytes = Bytes((1 << 20) * groups[0].len() as u64);
                    let extrapolated =
                        machine.simulated.extrapolated_time(&groups, &CallWithStrategy { collective, bytes, strategy });
                    assert_eq!(extrapolated.is_some(), is_extrapolated, "{preset} x {nodes}");
                    if let Some(extrapolated) = extrapolated {
                        let expected = machine.simulated.slowest(&groups, collective, bytes, strategy).unwrap();
                        let error = extrapolated.unwrap().0 as f64 / expected.0 as f64 - 1.0;
                        assert!(error.abs() < 0.01, "{preset} x {nodes}, {collective}: {error:+.4}");
                    }
                }
            });
        }
    }

    /// Linear in ranks, or linear in doublings with square roots between them.
    #[test]
    fn extrapolation_is_linear_in_ranks_or_doublings() {
        let extrapolate = |growth, ranks| {
            let times = [Picos(1000), Picos(1100)];
            ScaledDown { first_ranks: 128, last_domain_ranks: 0, ranks, bytes: Bytes(1), growth }.extrapolate(times).0
        };
        let ranks = [257, 384, 512, 768, 1024, 4096];
        assert_eq!(ranks.map(|ranks| extrapolate(ScalingLaw::Rank, ranks)), [1100, 1200, 1300, 1500, 1700, 4100]);
        assert_eq!(ranks.map(|ranks| extrapolate(ScalingLaw::Doubling, ranks)), [1106, 1170, 1200, 1270, 1300, 1500]);
    }

    #[test]
    fn small_or_irregular_groups_are_not_extrapolated() {
        let fabric = rails(80);
        let gpus = fabric.gpus();
        // Three GPUs of each host.
        let three: Vec<NodeId> =
            gpus.iter().copied().enumerate().filter(|(i, _)| i % 8 < 3).map(|(_, gpu)| gpu).collect();
        with_machine(&fabric, |machine| {
            let scaled_down =
                |group: &[NodeId], bytes| machine.simulated.scaled_down(group, Bytes(bytes), ScalingLaw::Rank);
            let all = ScaledDown {
                first_ranks: 128,
                last_domain_ranks: 0,
                ranks: 640,
                bytes: Bytes(1 << 30),
                growth: ScalingLaw::Rank,
            };
            assert_eq!(scaled_down(gpus, 1 << 30), Some(all));
            assert_eq!(all.scaled_bytes(256), Bytes(1_677_722 * 256));
            let tree = |bytes| machine.simulated.scaled_down(gpus, Bytes(bytes), ScalingLaw::Doubling);
            assert_eq!(tree(1 << 30), Some(ScaledDown { growth: ScalingLaw::Doubling, ..all }));
            assert_eq!(tree(1 << 30).unwrap().scaled_bytes(256), Bytes(1 << 30));
            assert_eq!(tree(1 << 20), None);
            assert_eq!(scaled_down(&gpus[..256], 1 << 30), None);
            // A last domain with fewer ranks is part of both simulations; one with more ranks rules out extrapolation.
            let seven = ScaledDown { last_domain_ranks: 7, ranks: 639, ..all };
            assert_eq!(scaled_down(&gpus[..639], 1 << 30), Some(seven));
            assert_eq!(seven.sample_ranks(), [135, 263]);
            assert_eq!(seven.select(&gpus[..639], 135), Some([&gpus[..128], &gpus[632..639]].concat()));
            assert_eq!(scaled_down(&gpus[1..], 1 << 30), None);
            assert_eq!(scaled_down(&gpus[..263], 1 << 30), None);
            assert_eq!(scaled_down(&three.repeat(2), 1 << 20).map(|scaled_down| scaled_down.first_ranks), Some(129));
        });
    }
}
