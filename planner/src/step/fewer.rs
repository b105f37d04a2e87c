//! What rings and double trees of very many ranks take, told by those of fewer of them: timed among the first [`SOME`] ranks of a group
//! and among twice as many.
//!
//! A ring of n ranks takes steps in proportion to n − 1, each of which moves the same bytes of a rank, so with as many bytes for each
//! rank its time is a straight line over n.
//! From 128 and 256 of HGX H100 on rails those of 512, 1,024 and 4,096 come out within 0.63 % (all_gather and all_reduce, ll128 and
//! simple, 16 KiB and 1 MiB for each rank), for a fiftieth of the work: where channels enter hosts by different NICs, the programs of all
//! ranks and channels are looked at before it shows which are alike.
//!
//! A double tree is as much deeper each time that its ranks double, and a buffer streams through all that there is of it: 256 MiB took
//! 12.405, 12.672, 12.938 and 13.205 ms among 128, 256, 512 and 1,024 hosts (H100, a GPU and a NIC of 400 Gb/s each, simple). On the way
//! to the next doubling the first ranks add the most, since each of them is a level further from the root: 12.826, 12.819, 12.882 and
//! 12.942 ms among 288, 320, 384 and 448, of which square roots say 12.766, 12.805, 12.860 and 12.902.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, NodeId, Picos};

use super::price::Simulated;
use super::sample::TIMED_STREAMING;
use super::together::Planned;
use crate::algorithm::Algorithm;
use crate::plan::PlanError;

/// So many ranks, to whole NVLink domains, and twice as many.
const SOME: usize = 128;

/// How what a way takes grows with its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// In proportion, with as many bytes for each: rings.
    ByRank,
    /// As much each time that they double, with as many bytes in all: double trees.
    ByDoubling,
}

impl Growth {
    /// That of a way; `None` where it is not known.
    pub(super) fn of(algorithm: Algorithm, collective: Collective) -> Option<Self> {
        match (algorithm, collective) {
            (Algorithm::Ring, Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter) => {
                Some(Self::ByRank)
            }
            (Algorithm::Tree | Algorithm::NvlsTree, Collective::AllReduce) => Some(Self::ByDoubling),
            _ => None,
        }
    }
}

/// What is timed of a call of very many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fewer {
    /// Ranks that are timed first; then twice as many are.
    pub some: usize,
    /// Ranks of the call itself.
    ranks: usize,
    bytes: Bytes,
    growth: Growth,
}

impl Fewer {
    /// The call of so many ranks.
    pub(super) fn bytes(self, ranks: usize) -> Bytes {
        match self.growth {
            Growth::ByRank => Bytes(self.bytes.0.div_ceil(self.ranks.max(1) as u64) * ranks as u64),
            Growth::ByDoubling => self.bytes,
        }
    }

    /// What the call takes, from what some ranks and twice as many take.
    pub(super) fn told(self, [first, second]: [Picos; 2]) -> Picos {
        let (some, twice) = (self.some.max(1), 2 * self.some.max(1));
        // In parts of what it took more from the first to the second.
        let (more, parts) = match self.growth {
            Growth::ByRank => (self.ranks.saturating_sub(twice), some),
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
    /// What is timed of a call of a group; `None` of groups that are not of very many ranks, or not alike in all their domains, and of
    /// calls that do not stream.
    pub(super) fn fewer(&self, group: &[NodeId], bytes: Bytes, growth: Growth) -> Option<Fewer> {
        // What does not fill a tree goes by its longest way, not by its mean.
        let fills = growth == Growth::ByRank || bytes.0 >= TIMED_STREAMING;
        if group.len() <= 2 * SOME || !fills {
            return None;
        }
        let islands: Vec<u32> = group.iter().map(|&device| self.router.island_of(device)).collect();
        let mut counts = islands.chunk_by(|a, b| a == b).map(<[u32]>::len);
        let of_island = counts.next()?;
        let some = SOME.next_multiple_of(of_island);
        let is_alike = counts.all(|count| count == of_island) && group.len() > 2 * some;
        is_alike.then_some(Fewer { some, ranks: group.len(), bytes, growth })
    }

    /// What all groups at once take for a call of very many that fewer tell; `None` of other calls.
    pub(super) fn by_fewer(&self, groups: &[Vec<NodeId>], call: &Planned) -> Option<Result<Picos, PlanError>> {
        let growth = Growth::of(call.strategy.algorithm, call.collective)?;
        let fewer = self.fewer(groups.first()?, call.bytes, growth)?;
        let among = |ranks: usize| {
            let groups: Vec<Vec<NodeId>> =
                groups.iter().filter_map(|group| Some(group.get(..ranks)?.to_vec())).collect();
            self.part(&groups, Planned { bytes: fewer.bytes(ranks), ..*call })
        };
        let (first_took, second_took) = rayon::join(|| among(fewer.some), || among(2 * fewer.some));
        Some(first_took.and_then(|first_took| Ok(fewer.told([first_took, second_took?]))))
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::Protocol;
    use fabricast_topologies::{FabricRequest, load};

    use super::*;
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

    /// A straight line over ranks, or over doublings of them, with square roots between.
    #[test]
    fn times_grow_with_ranks_or_with_doublings() {
        let told = |growth, ranks| {
            let times = [Picos(1000), Picos(1100)];
            Fewer { some: 128, ranks, bytes: Bytes(1), growth }.told(times).0
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
            let all = Fewer { some: 128, ranks: 640, bytes: Bytes(1 << 30), growth: Growth::ByRank };
            assert_eq!(fewer(gpus, 1 << 30), Some(all));
            assert_eq!(all.bytes(256), Bytes(1_677_722 * 256));
            let tree = |bytes| machine.simulated.fewer(gpus, Bytes(bytes), Growth::ByDoubling);
            assert_eq!(tree(1 << 30), Some(Fewer { growth: Growth::ByDoubling, ..all }));
            assert_eq!(tree(1 << 30).unwrap().bytes(256), Bytes(1 << 30));
            assert_eq!(tree(1 << 20), None);
            assert_eq!(fewer(&gpus[..256], 1 << 30), None);
            assert_eq!(fewer(&gpus[..639], 1 << 30), None);
            assert_eq!(fewer(&three.repeat(2), 1 << 20).map(|fewer| fewer.some), Some(129));
        });
    }
}
