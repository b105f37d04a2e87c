//! What rings and double trees of very many ranks take, told by those of fewer of them: timed among the first [`SOME`] ranks of a group
//! and among twice as many, and with what the last NVLink domain has where that is not as full as the others. Of several groups that share
//! links half as many of each (of PAT as many), where these keep the busiest link as busy as all do.
//!
//! A ring of n ranks takes steps in proportion to n − 1, each of which moves the same bytes of a rank, so with as many bytes for each
//! rank its time is a straight line over n.
//! From 128 and 256 of HGX H100 on rails those of 512, 1,024 and 4,096 come out within 0.63 % (all_gather and all_reduce, ll128 and
//! simple, 16 KiB and 1 MiB for each rank), for a fiftieth of the work: where channels enter hosts by different NICs, the programs of all
//! ranks and channels are looked at before it shows which are alike.
//!
//! PAT of a GPU in each host (1,024 of HGX H100 on a rail, 256 KiB to 2 MiB for each rank) comes out exact among powers of two, and up to
//! 4.5 % short among 600. Of smaller parts each rank's costs the threads that send it as much: 64 KiB on 8 channels took 1,136, 2,175,
//! 4,974, 6,574, 8,174 and 12,235 µs among 128, 256, 600, 800, 1,000 and 1,500 hosts, which a straight line meets within 0.5 % (0.7 % on GB200).
//!
//! A double tree is as much deeper each time that its ranks double, and a buffer streams through all that there is of it: 256 MiB took
//! 12.405, 12.672, 12.938 and 13.205 ms among 128, 256, 512 and 1,024 hosts (H100, a GPU and a NIC of 400 Gb/s each, simple). On the way
//! to the next doubling the first ranks add the most, since each of them is a level further from the root: 12.826, 12.819, 12.882 and
//! 12.942 ms among 288, 320, 384 and 448, of which square roots say 12.766, 12.805, 12.860 and 12.902.

use std::convert::Infallible;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::fabric::Link;
use fabricast_topologies::{Bytes, LinkId, NodeId, Picos};
use rayon::prelude::*;

use super::price::Simulated;
use super::sample::TIMED_STREAMING;
use super::together::Planned;
use crate::algorithm::Algorithm;
use crate::plan::PlanError;

/// So many ranks of one group, to whole NVLink domains, and twice as many.
const SOME: usize = 128;

/// The same of each of several groups that share links, all of which are simulated.
const SOME_OF_SEVERAL: usize = 64;

/// By how much the busiest link of fewer ranks may differ from that of all, where several groups share links. Rings over an odd number
/// of a dragonfly's groups meet on the way back, twice as many on a link as in 64 or 128 of these ranks.
const BUSY_ALIKE: f64 = 0.01;

/// Sums of links' loads that are worked out beside each other.
const SUMS: usize = 16;

/// After so many domains at most their ranks are as many as those of the first again, the second and so on: groups whose ranks are
/// 16 apart have five in one rack of 72 and four in the next.
const LONGEST_PERIOD: usize = 4;

/// Bytes of each rank from which on PAT's steps move them one after the other, so that its time is in proportion to its ranks.
const LARGE_PART: u64 = 256 << 10;

/// The same where each part costs threads as much and links are not what it waits for: they need half of that time at most.
const PART: u64 = 4 << 10;

/// Twice as many ranks take at least so many hundredths of what the first took, where time is in proportion to them. (Of parts so small that
/// only steps count they would take a step more.)
const TWICE: u64 = 180;

/// To whom the ranks of a group send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Partners {
    /// To the next, all.
    Next,
    /// To the next a half, to the second a quarter, to the fourth an eighth, and so on.
    PowersOfTwo,
}

impl Partners {
    /// Who sends to whom, and what part of all.
    fn of(self, group: &[NodeId]) -> impl Iterator<Item = (&NodeId, &NodeId, f64)> {
        let ranks = group.len();
        let distances = match self {
            Self::Next => 1,
            Self::PowersOfTwo => ranks.checked_ilog2().unwrap_or(0),
        };
        (0..distances).flat_map(move |power| {
            let part = if self == Self::Next { 1.0 } else { 0.5f64.powi(power as i32 + 1) };
            group.iter().zip(group.iter().cycle().skip(1 << power)).map(move |(from, to)| (from, to, part))
        })
    }

    /// By how much the busiest link of fewer ranks may differ from that of all. (Of more ranks some parts are smaller yet.)
    fn alike(self) -> f64 {
        match self {
            Self::Next => BUSY_ALIKE,
            Self::PowersOfTwo => 2.0 * BUSY_ALIKE,
        }
    }
}

/// How what a way takes grows with its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// In proportion, with as many bytes for each: rings.
    ByRank,
    /// As much each time that they double, with as many bytes in all: double trees.
    ByDoubling,
    /// In proportion where each rank has [`PART`] bytes or more and twice as many show it: PAT.
    WithParts,
}

impl Growth {
    /// That of a way; `None` where it is not known.
    pub(super) fn of(algorithm: Algorithm, collective: Collective) -> Option<Self> {
        match (algorithm, collective) {
            (Algorithm::Ring, Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter) => {
                Some(Self::ByRank)
            }
            (Algorithm::Tree | Algorithm::NvlsTree, Collective::AllReduce) => Some(Self::ByDoubling),
            (Algorithm::Pat, Collective::AllGather | Collective::ReduceScatter) => Some(Self::WithParts),
            _ => None,
        }
    }
}

/// What is timed of a call of very many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fewer {
    /// Ranks of whole domains that are timed first; then twice as many are.
    some: usize,
    /// Ranks of a last domain that has fewer than the others, so that fewer NICs lead there: they are there both times.
    rest: usize,
    /// Ranks of the call itself.
    ranks: usize,
    bytes: Bytes,
    growth: Growth,
}

impl Fewer {
    /// How many ranks are timed, the first and the second time.
    pub(super) fn timed(self) -> [usize; 2] {
        [self.some + self.rest, 2 * self.some + self.rest]
    }

    /// So many ranks of a group, some of the whole domains and all of the last.
    pub(super) fn of(self, group: &[NodeId], ranks: usize) -> Option<Vec<NodeId>> {
        let (whole, last) = group.split_at_checked(group.len().checked_sub(self.rest)?)?;
        Some([whole.get(..ranks.checked_sub(self.rest)?)?, last].concat())
    }

    /// The same of each of several groups.
    fn of_each(self, groups: &[Vec<NodeId>], ranks: usize) -> Vec<Vec<NodeId>> {
        groups.iter().filter_map(|group| self.of(group, ranks)).collect()
    }

    /// A call among so many ranks.
    fn call(self, call: &Planned, ranks: usize) -> Planned {
        Planned { bytes: self.bytes(ranks), ..*call }
    }

    /// The bytes of the call among so many ranks.
    pub(super) fn bytes(self, ranks: usize) -> Bytes {
        match self.growth {
            Growth::ByRank | Growth::WithParts => Bytes(self.bytes.0.div_ceil(self.ranks.max(1) as u64) * ranks as u64),
            Growth::ByDoubling => self.bytes,
        }
    }

    /// What the call takes, from what some ranks and twice as many take.
    pub(super) fn told(self, [first, second]: [Picos; 2]) -> Picos {
        let [_, twice] = self.timed();
        let (some, twice) = (self.some.max(1), twice.max(1));
        // In parts of what it took more from the first to the second.
        let (more, parts) = match self.growth {
            Growth::ByRank | Growth::WithParts => (self.ranks.saturating_sub(twice), some),
            // Whole doublings, and on the way to the next one its part's square root, in thousandths.
            Growth::ByDoubling => {
                let doublings = (self.ranks / twice).max(1).ilog2();
                let whole = twice << doublings;
                let further = (self.ranks.saturating_sub(whole) * 1_000_000 / whole).isqrt();
                (doublings as usize * 1000 + further, 1000)
            }
        };
        second + Picos((u128::from((second - first).0) * more as u128 / parts as u128) as u64)
    }
}

impl Simulated<'_> {
    /// What is timed of a call of a group, `least` ranks of it or a few more and twice as many; `None` of groups that are not of very many
    /// ranks, or not alike in all their domains but the last, and of calls that do not stream.
    fn fewer_than(&self, least: usize, group: &[NodeId], (bytes, growth): (Bytes, Growth)) -> Option<Fewer> {
        let fills = match growth {
            Growth::ByRank => true,
            // What does not fill a tree goes by its longest way, not by its mean.
            Growth::ByDoubling => bytes.0 >= TIMED_STREAMING,
            Growth::WithParts => bytes.0 >= PART * group.len() as u64,
        };
        if group.len() <= 2 * least || !fills {
            return None;
        }
        let islands: Vec<u32> = group.iter().map(|&device| self.router.island_of(device)).collect();
        let counts: Vec<usize> = islands.chunk_by(|a, b| a == b).map(<[u32]>::len).collect();
        let (&last, others) = counts.split_last()?;
        let recurs = |period: &usize| others.iter().zip(others.iter().skip(*period)).all(|(one, next)| one == next);
        let period = others.get(..(1..=LONGEST_PERIOD).find(recurs)?)?;
        let some = least.next_multiple_of(period.iter().sum());
        // (What is left of the last domains.)
        let rest = if last == *period.get(others.len() % period.len())? { 0 } else { last };
        (last <= *period.iter().max()? && group.len() > 2 * some + rest).then_some(Fewer {
            some,
            rest,
            ranks: group.len(),
            bytes,
            growth,
        })
    }

    /// The same of a group by itself.
    pub(super) fn fewer(&self, group: &[NodeId], bytes: Bytes, growth: Growth) -> Option<Fewer> {
        self.fewer_than(SOME, group, (bytes, growth))
    }

    /// What all groups at once take for a call of very many that fewer tell; `None` of other calls.
    pub(super) fn by_fewer(&self, groups: &[Vec<NodeId>], call: &Planned) -> Option<Result<Picos, PlanError>> {
        let growth = Growth::of(call.strategy.algorithm, call.collective)?;
        let first = groups.first()?;
        let alone = || self.fewer(first, call.bytes, growth);
        if groups.len() == 1 {
            // (A ring or a tree by itself keeps no link busier for being longer; far partners may.)
            let told = alone().filter(|fewer| growth != Growth::WithParts || self.are_as_busy(*fewer, groups))?;
            return self.told(groups, call, told);
        }
        // (PAT among 64 and 128 is 2 % off among 2,048, among 128 and 256 under 1.)
        let some: &[usize] = if growth == Growth::WithParts { &[SOME] } else { &[SOME_OF_SEVERAL, SOME] };
        let some = some.iter().map(|&least| self.fewer_than(least, first, (call.bytes, growth)));
        let fewer = some.flatten().find(|fewer| self.are_as_busy(*fewer, groups))?;
        let [_, twice] = fewer.timed();
        // Where the first stands for all, what is known of it by itself.
        match self.first_stands_for_all(&fewer.of_each(groups, twice), fewer.call(call, twice)) {
            true => self.told(std::slice::from_ref(first), call, alone().unwrap_or(fewer)),
            false => self.told(groups, call, fewer),
        }
    }

    /// `None` where those that are timed do not grow as they should.
    fn told(&self, groups: &[Vec<NodeId>], call: &Planned, fewer: Fewer) -> Option<Result<Picos, PlanError>> {
        let among = |ranks: usize| self.part(&fewer.of_each(groups, ranks), fewer.call(call, ranks));
        let [first, second] = fewer.timed();
        let times = match rayon::join(|| among(first), || among(second)) {
            (Ok(first), Ok(second)) => [first, second],
            (Err(error), _) | (_, Err(error)) => return Some(Err(error)),
        };
        let told = fewer.told(times);
        let is_in_proportion = || {
            let [first, second] = times;
            let is_large = call.bytes.0 >= LARGE_PART * fewer.ranks as u64;
            second.0 / 100 >= first.0 / 10_000 * TWICE
                && (is_large || told.0 / 2 >= self.least_of_links(groups, *call).0)
        };
        (fewer.growth != Growth::WithParts || is_in_proportion()).then_some(Ok(told))
    }

    /// Whether fewer ranks of groups keep their busiest link as busy as all do, both times.
    fn are_as_busy(&self, fewer: Fewer, groups: &[Vec<NodeId>]) -> bool {
        let partners = match fewer.growth {
            Growth::ByRank | Growth::ByDoubling => Partners::Next,
            Growth::WithParts => Partners::PowersOfTwo,
        };
        let all = self.busiest_between_domains(groups, partners);
        fewer.timed().iter().all(|&ranks| {
            let some = self.busiest_between_domains(&fewer.of_each(groups, ranks), partners);
            (some - all).abs() <= partners.alike() * all
        })
    }

    /// How long the busiest link takes for a byte from each rank that another domain follows, round all groups: seconds. Groups are
    /// known by the first of them and how many there are.
    fn busiest_between_domains(&self, groups: &[Vec<NodeId>], partners: Partners) -> f64 {
        let Some(first) = groups.first() else { return 0.0 };
        let find = || Ok::<_, Infallible>(Some(self.find_busiest(groups, partners)));
        self.busiest.or_find((first.clone(), groups.len(), partners), find).ok().flatten().unwrap_or_default()
    }

    fn find_busiest(&self, groups: &[Vec<NodeId>], partners: Partners) -> f64 {
        let fabric = self.router.fabric();
        // Added up in the order of the groups, whichever are through first.
        let some = groups.len().div_ceil(SUMS).max(1);
        let of_some: Vec<Vec<f64>> =
            groups.par_chunks(some).with_max_len(1).map(|groups| self.load_between_domains(groups, partners)).collect();
        let mut loads = vec![0.0; fabric.links().len()];
        for of_some in &of_some {
            loads.iter_mut().zip(of_some).for_each(|(sum, load)| *sum += load);
        }
        let seconds = |((_, link), load): ((LinkId, &Link), f64)| {
            link.bandwidth.map_or(0.0, |bandwidth| load / bandwidth.0 as f64)
        };
        fabric.links().zip(loads).map(seconds).fold(0.0, f64::max)
    }

    /// What each link carries where each rank of some groups sends a byte to those that another domain has, by [`LinkId`].
    fn load_between_domains(&self, groups: &[Vec<NodeId>], partners: Partners) -> Vec<f64> {
        let mut loads = vec![0.0; self.router.fabric().links().len()];
        let mut hops = Vec::new();
        for (&from, &to, part) in groups.iter().flat_map(|group| partners.of(group)) {
            hops.clear();
            // (What cannot be reached is refused when it is simulated.)
            if self.router.island_of(from) == self.router.island_of(to)
                || self.router.route_into(from, to, 0, &mut hops).is_err()
            {
                continue;
            }
            for hop in &hops {
                if let Some(load) = loads.get_mut(hop.link.0 as usize) {
                    *load += part * hop.share.fraction();
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
    use crate::job::{Degrees, Dimension, Layout};
    use crate::step::tests::{on, rails};
    use crate::strategy::Strategy;

    /// How far what fewer ranks of a group tell is from what it takes, of so many KiB for each.
    fn error(
        simulated: &Simulated<'_>,
        group: &[NodeId],
        (algorithm, collective, protocol, kib): (Algorithm, Collective, Protocol, u64),
    ) -> f64 {
        let strategy = Strategy { algorithm, protocol, channels: 8, threads: None, chunk: None };
        let call = Planned { collective, bytes: Bytes(kib * 1024 * group.len() as u64), strategy };
        let groups = [group.to_vec()];
        let told = simulated.by_fewer(&groups, &call).unwrap().unwrap();
        let whole = simulated.slowest(&groups, (collective, call.bytes), strategy).unwrap();
        told.0 as f64 / whole.0 as f64 - 1.0
    }

    /// On rails, and on trees of switches whose core is narrow, of all GPUs of hosts and of one in each.
    #[test]
    fn many_take_what_fewer_tell() {
        let mut told = Vec::new();
        let narrow = Some("fat_tree,nics_per_node=8,nic=400Gb/s,oversubscription=4".parse().unwrap());
        let narrow = FabricRequest { nodes: Some(96), network: narrow, ..FabricRequest::of("hgx-h100") };
        for (fabric, stride) in [(rails(96), 1), (load(&narrow).unwrap(), 1), (rails(640), 8)] {
            let group: Vec<NodeId> = fabric.gpus().iter().copied().step_by(stride).collect();
            for call in [
                (Algorithm::Ring, Collective::AllGather, Protocol::Ll128, 16),
                (Algorithm::Ring, Collective::ReduceScatter, Protocol::Simple, 1024),
                (Algorithm::Ring, Collective::AllReduce, Protocol::Simple, 128),
                (Algorithm::Tree, Collective::AllReduce, Protocol::Simple, 256),
                (Algorithm::Tree, Collective::AllReduce, Protocol::Ll128, 256),
            ] {
                let error = on(&fabric, |machine| error(machine.simulated, &group, call));
                told.push((error, format!("{}, every {stride}, {call:?}: {error:+.4}", fabric.name())));
            }
        }
        assert!(told.iter().all(|(error, _)| error.abs() < 0.012), "{told:#?}");
    }

    /// PAT of a GPU in each host on rails; where far partners share links that near ones do not, as in a torus, it is not told.
    #[test]
    fn pat_takes_what_fewer_tell() {
        let error = |fabric: &Fabric, kib: u64| {
            let group: Vec<NodeId> = fabric.gpus().iter().copied().step_by(8).collect();
            let groups = [group];
            on(fabric, |machine| {
                let (algorithm, protocol) = (Algorithm::Pat, Protocol::Simple);
                let strategy = Strategy { algorithm, protocol, channels: 16, threads: None, chunk: None };
                let (collective, bytes) = (Collective::ReduceScatter, Bytes(kib * 1024 * groups[0].len() as u64));
                let told = machine.simulated.by_fewer(&groups, &Planned { collective, bytes, strategy })?.unwrap();
                let whole = machine.simulated.slowest(&groups, (collective, bytes), strategy).unwrap();
                Some(told.0 as f64 / whole.0 as f64 - 1.0)
            })
        };
        let (even, uneven) = (rails(512), rails(600));
        for (fabric, kib, range) in
            [(&even, 16, 0.01), (&even, 256, 0.01), (&even, 2048, 0.01), (&uneven, 64, 0.01), (&uneven, 1024, 0.045)]
        {
            let error = error(fabric, kib).unwrap();
            assert!(error.abs() < range, "{kib}: {error:+.4}");
        }
        assert_eq!(error(&even, 1), None);
        let torus = Some("torus,nic=400Gb/s".parse().unwrap());
        let torus = load(&FabricRequest { nodes: Some(512), network: torus, ..FabricRequest::of("hgx-h100") }).unwrap();
        assert_eq!(error(&torus, 1024), None);
    }

    /// Groups that share the links of a network, on machines whose last domain is not full, or whose domains have ranks by turns; rings
    /// that meet where fewer ranks do not are not told.
    #[test]
    fn several_groups_take_what_fewer_ranks_of_each_tell() {
        for (preset, nodes, network, tensor, is_told) in [
            ("hgx-h100", 160, "dragonfly,nic=400Gb/s", 8, false),
            ("hgx-h100", 192, "dragonfly,nic=400Gb/s", 8, true),
            ("hgx-h100", 160, "torus,nic=400Gb/s", 8, true),
            ("gb200-nvl72", 400, "", 8, true),
            ("gb200-nvl72", 700, "", 16, true),
        ] {
            let network = (!network.is_empty()).then(|| network.parse().unwrap());
            let fabric = load(&FabricRequest { nodes: Some(nodes), network, ..FabricRequest::of(preset) }).unwrap();
            let data = fabric.gpus().len() as u32 / tensor;
            let layout = Layout { degrees: Degrees { tensor, data, ..Degrees::default() } };
            on(&fabric, |machine| {
                for (collective, protocol) in
                    [(Collective::AllGather, Protocol::Simple), (Collective::AllReduce, Protocol::Ll128)]
                {
                    let groups = machine.simulated.together(&layout.groups(Dimension::Data), collective);
                    let strategy =
                        Strategy { algorithm: Algorithm::Ring, protocol, channels: 8, threads: None, chunk: None };
                    let bytes = Bytes((1 << 20) * groups[0].len() as u64);
                    let told = machine.simulated.by_fewer(&groups, &Planned { collective, bytes, strategy });
                    assert_eq!(told.is_some(), is_told, "{preset} x {nodes}");
                    if let Some(told) = told {
                        let whole = machine.simulated.slowest(&groups, (collective, bytes), strategy).unwrap();
                        let error = told.unwrap().0 as f64 / whole.0 as f64 - 1.0;
                        assert!(error.abs() < 0.01, "{preset} x {nodes}, {collective}: {error:+.4}");
                    }
                }
            });
        }
    }

    /// A straight line over ranks, or over doublings of them, with square roots between.
    #[test]
    fn times_grow_with_ranks_or_with_doublings() {
        let told = |growth, ranks| {
            let times = [Picos(1000), Picos(1100)];
            Fewer { some: 128, rest: 0, ranks, bytes: Bytes(1), growth }.told(times).0
        };
        let ranks = [257, 384, 512, 768, 1024, 4096];
        assert_eq!(ranks.map(|ranks| told(Growth::ByRank, ranks)), [1100, 1200, 1300, 1500, 1700, 4100]);
        assert_eq!(ranks.map(|ranks| told(Growth::ByDoubling, ranks)), [1106, 1170, 1200, 1270, 1300, 1500]);
    }

    #[test]
    fn groups_of_few_or_of_unlike_domains_are_timed_whole() {
        let fabric = rails(80);
        let gpus = fabric.gpus();
        // Three of each host.
        let three: Vec<NodeId> =
            gpus.iter().copied().enumerate().filter(|(i, _)| i % 8 < 3).map(|(_, gpu)| gpu).collect();
        on(&fabric, |machine| {
            let fewer = |group: &[NodeId], bytes| machine.simulated.fewer(group, Bytes(bytes), Growth::ByRank);
            let all = Fewer { some: 128, rest: 0, ranks: 640, bytes: Bytes(1 << 30), growth: Growth::ByRank };
            assert_eq!(fewer(gpus, 1 << 30), Some(all));
            assert_eq!(all.bytes(256), Bytes(1_677_722 * 256));
            let tree = |bytes| machine.simulated.fewer(gpus, Bytes(bytes), Growth::ByDoubling);
            assert_eq!(tree(1 << 30), Some(Fewer { growth: Growth::ByDoubling, ..all }));
            assert_eq!(tree(1 << 30).unwrap().bytes(256), Bytes(1 << 30));
            assert_eq!(tree(1 << 20), None);
            assert_eq!(fewer(&gpus[..256], 1 << 30), None);
            // A last domain of fewer is there both times, one of more than the others is not told.
            let seven = Fewer { rest: 7, ranks: 639, ..all };
            assert_eq!(fewer(&gpus[..639], 1 << 30), Some(seven));
            assert_eq!(seven.timed(), [135, 263]);
            assert_eq!(seven.of(&gpus[..639], 135), Some([&gpus[..128], &gpus[632..639]].concat()));
            assert_eq!(fewer(&gpus[1..], 1 << 30), None);
            assert_eq!(fewer(&gpus[..263], 1 << 30), None);
            assert_eq!(fewer(&three.repeat(2), 1 << 20).map(|fewer| fewer.some), Some(129));
        });
    }
}
