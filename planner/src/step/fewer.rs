//! What rings of very many ranks take, told by those of fewer of them.
//!
//! A ring of n ranks takes steps in proportion to n − 1, each of which moves the same bytes of a rank, so with as many bytes for each
//! rank its time is a straight line over n. It is timed among the first [`SOME`] ranks of a group and among twice as many.
//! From 128 and 256 of HGX H100 on rails those of 512, 1,024 and 4,096 come out within 0.63 % (all_gather and all_reduce, ll128 and
//! simple, 16 KiB and 1 MiB for each rank), for a fiftieth of the work: where channels enter hosts by different NICs, the programs of all
//! ranks and channels are looked at before it shows which are alike.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, NodeId, Picos};

use super::price::Simulated;
use super::together::Planned;
use crate::algorithm::Algorithm;
use crate::plan::PlanError;

/// So many ranks, to whole NVLink domains, and twice as many.
const SOME: usize = 128;

/// What is timed of a ring of very many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fewer {
    /// Ranks that are timed first; then twice as many are.
    pub some: usize,
    /// Bytes of a call for each rank.
    part: u64,
}

impl Fewer {
    /// The call of so many ranks.
    pub(super) fn bytes(self, ranks: usize) -> Bytes {
        Bytes(self.part * ranks as u64)
    }

    /// What `ranks` take, from what some and twice as many take.
    pub(super) fn told(self, ranks: usize, [first, second]: [Picos; 2]) -> Picos {
        let more = u128::from((second - first).0) * (ranks - 2 * self.some) as u128;
        second + Picos((more / self.some as u128) as u64)
    }
}

/// Whether a way is told so.
pub(super) fn is_told(algorithm: Algorithm, collective: Collective) -> bool {
    let goes_round = matches!(collective, Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter);
    algorithm == Algorithm::Ring && goes_round
}

impl Simulated<'_> {
    /// What is timed of a ring of a group; `None` of groups that are not of very many ranks, or not alike in all their domains.
    pub(super) fn fewer(&self, group: &[NodeId], bytes: Bytes) -> Option<Fewer> {
        if group.len() <= 2 * SOME {
            return None;
        }
        let islands: Vec<u32> = group.iter().map(|&device| self.router.island_of(device)).collect();
        let mut counts = islands.chunk_by(|a, b| a == b).map(<[u32]>::len);
        let of_island = counts.next()?;
        let some = SOME.next_multiple_of(of_island);
        let is_alike = counts.all(|count| count == of_island) && group.len() > 2 * some;
        is_alike.then(|| Fewer { some, part: bytes.0.div_ceil(group.len() as u64) })
    }

    /// What all groups at once take for a call by a ring of very many; `None` of other calls.
    pub(super) fn by_fewer(&self, groups: &[Vec<NodeId>], call: &Planned) -> Option<Result<Picos, PlanError>> {
        let first = groups.first().filter(|_| is_told(call.strategy.algorithm, call.collective))?;
        let fewer = self.fewer(first, call.bytes)?;
        let among = |ranks: usize| {
            let groups: Vec<Vec<NodeId>> =
                groups.iter().filter_map(|group| Some(group.get(..ranks)?.to_vec())).collect();
            self.part(&groups, Planned { bytes: fewer.bytes(ranks), ..*call })
        };
        let (first_took, second_took) = rayon::join(|| among(fewer.some), || among(2 * fewer.some));
        Some(first_took.and_then(|first_took| Ok(fewer.told(first.len(), [first_took, second_took?]))))
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::Protocol;
    use fabricast_topologies::{FabricRequest, load};

    use super::*;
    use crate::step::tests::{on, rails};
    use crate::strategy::Strategy;

    /// How far what fewer ranks of a group tell is from what the ring takes.
    fn error(
        simulated: &Simulated<'_>,
        group: &[NodeId],
        (collective, protocol, kib): (Collective, Protocol, u64),
    ) -> f64 {
        let strategy = Strategy { algorithm: Algorithm::Ring, protocol, channels: 8, threads: None, chunk: None };
        let call = Planned { collective, bytes: Bytes(kib * 1024 * group.len() as u64), strategy };
        let groups = [group.to_vec()];
        let told = simulated.by_fewer(&groups, &call).unwrap().unwrap();
        let whole = simulated.slowest(&groups, (collective, call.bytes), strategy).unwrap();
        told.0 as f64 / whole.0 as f64 - 1.0
    }

    /// On rails, and on trees of switches whose core is narrow, of all GPUs of hosts and of one in each.
    #[test]
    fn rings_of_many_take_what_fewer_tell() {
        let narrow = Some("fat_tree,nics_per_node=8,nic=400Gb/s,oversubscription=4".parse().unwrap());
        let narrow = FabricRequest { nodes: Some(96), network: narrow, ..FabricRequest::of("hgx-h100") };
        for (fabric, stride) in [(rails(96), 1), (load(&narrow).unwrap(), 1), (rails(640), 8)] {
            let group: Vec<NodeId> = fabric.gpus().iter().copied().step_by(stride).collect();
            for call in [
                (Collective::AllGather, Protocol::Ll128, 16),
                (Collective::ReduceScatter, Protocol::Simple, 1024),
                (Collective::AllReduce, Protocol::Simple, 128),
            ] {
                let error = on(&fabric, |machine| error(machine.simulated, &group, call));
                assert!(error.abs() < 0.01, "{}, every {stride}, {call:?}: {error:+.4}", fabric.name());
            }
        }
    }

    #[test]
    fn groups_of_few_or_of_unlike_domains_are_timed_whole() {
        let fabric = rails(80);
        let gpus = fabric.gpus();
        // Three of each host.
        let three: Vec<NodeId> =
            gpus.iter().copied().enumerate().filter(|(i, _)| i % 8 < 3).map(|(_, gpu)| gpu).collect();
        on(&fabric, |machine| {
            let fewer = |group: &[NodeId], bytes| machine.simulated.fewer(group, Bytes(bytes));
            assert_eq!(fewer(gpus, 1 << 30), Some(Fewer { some: 128, part: 1_677_722 }));
            assert_eq!(fewer(&gpus[..256], 1 << 30), None);
            assert_eq!(fewer(&gpus[..639], 1 << 30), None);
            assert_eq!(fewer(&three.repeat(2), 1 << 20).map(|fewer| fewer.some), Some(129));
        });
    }
}
