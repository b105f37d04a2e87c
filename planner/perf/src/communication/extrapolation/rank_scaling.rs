//! Extrapolates the completion time of rings, double binary trees and PAT over large groups from simulations of
//! [`FIRST_RANKS`] ranks and of twice as many. A partly filled last NVLink domain is simulated as well. If several
//! groups share links, [`FIRST_RANKS_OF_SEVERAL`] ranks of each and twice as many are simulated, provided that they put
//! the same load on the busiest link as all ranks; otherwise [`FIRST_RANKS`], under the same condition. PAT always uses
//! [`FIRST_RANKS`].
//!
//! Rings have n − 1 steps (or a multiple of it), each of which moves the bytes of one rank. With constant bytes per
//! rank, the time is linear in n. Times extrapolated from 128 and 256 ranks to 512, 1,024 and 4,096 ranks differ from
//! simulation by at most 0.63 % (HGX H100 on rails, all_gather and all_reduce, LL128 and Simple, 16 KiB and 1 MiB per
//! rank) at one fiftieth of the simulation time.
//!
//! For PAT with one GPU per host, the result is exact for powers of two, and up to 4.5 % too short for 600 ranks (HGX
//! H100 on rails, 256 KiB to 2 MiB per rank). Smaller messages are bound by the threads that send them, and the time is
//! linear in n within 0.7 % (64 KiB, 128 to 1,500 hosts, H100 and GB200).
//!
//! In double binary trees, each doubling of the number of ranks adds one level, and the buffer streams through all
//! levels, so the time grows by a constant per doubling. Between doublings, the first additional ranks add most of the
//! time, since they are one level further from the root. A square root models this within 0.5 % (H100, one GPU and one
//! 400 Gb/s NIC per host, 256 MiB, Simple, 128 to 1,024 hosts).

use fabricast_topologies::{Bytes, NodeId, Picos};

use super::scaling_law::ScalingLaw;
use super::size_sampling::SAMPLE_BYTES_STREAMING;
use crate::communication::calls::CallWithStrategy;
use fabricast_search::plan::PlanError;

/// Number of ranks of the first simulation of a single group, rounded up to whole NVLink domains. The second simulation
/// has twice as many.
pub(in crate::communication) const FIRST_RANKS: usize = 128;

/// Number of ranks of the first simulation for each of several groups that share links and are all simulated.
pub(in crate::communication) const FIRST_RANKS_OF_SEVERAL: usize = 64;

/// Longest period, in NVLink domains, after which the rank counts per domain may repeat. Example: with a rank stride of
/// 16, racks of 72 GPUs have alternately five and four ranks.
const LONGEST_PERIOD: usize = 4;

/// Number of bytes per rank from which PAT's steps are bandwidth-bound and sequential, so that the time is linear in
/// the number of ranks.
const PAT_BANDWIDTH_BOUND_BYTES: u64 = 256 << 10;

/// Minimum number of bytes per rank for the extrapolation of PAT. Below [`PAT_BANDWIDTH_BOUND_BYTES`], PAT must be
/// bound by threads: links may need at most half of the time.
const PAT_MIN_BYTES: u64 = 4 << 10;

/// Minimum ratio of the second simulation's time to the first's, in percent, that counts as linear. (Latency-bound
/// calls with very small messages add only one step per doubling.)
const LINEAR_RATIO_PERCENT: u64 = 180;

/// Scaled-down simulations from which the time of a call of a large group is extrapolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::communication) struct ScaledDownCall {
    /// Number of ranks in whole domains in the first simulation. The second simulation has twice as many.
    first_ranks: usize,
    /// Number of ranks in a partly filled last domain, which has fewer NICs and is part of both simulations; 0 if the
    /// last domain is full.
    last_domain_ranks: usize,
    /// Number of ranks of the call whose time is extrapolated.
    ranks: usize,
    bytes: Bytes,
    law: ScalingLaw,
}

/// Group and call to scale down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::communication) struct ScaledGroup {
    /// Number of ranks of the group.
    pub ranks: usize,
    /// Message size of the call.
    pub bytes: Bytes,
    /// Growth law of the algorithm's completion time.
    pub law: ScalingLaw,
}

impl ScaledDownCall {
    /// Returns the scaled-down simulations for a call of a group, the first with at least `min_ranks` ranks.
    /// `ranks_by_domain` returns the number of ranks in each NVLink domain. `None` if the group is too small or its
    /// domains are irregular (except for the last), or if the message is too small to stream.
    pub(in crate::communication) fn new(
        min_ranks: usize,
        group: ScaledGroup,
        ranks_by_domain: impl FnOnce() -> Vec<usize>,
    ) -> Option<Self> {
        let ScaledGroup { ranks, bytes, law } = group;
        let fills = match law {
            ScalingLaw::Rank => true,
            // A message that does not fill the pipeline of a tree is bound by the longest path of the tree.
            ScalingLaw::Doubling => bytes.0 >= SAMPLE_BYTES_STREAMING,
            ScalingLaw::RankIfConfirmed => bytes.0 >= PAT_MIN_BYTES * ranks as u64,
        };
        if ranks <= 2 * min_ranks || !fills {
            return None;
        }
        let counts = ranks_by_domain();
        let (&last, others) = counts.split_last()?;
        let is_periodic =
            |period: &usize| others.iter().zip(others.iter().skip(*period)).all(|(one, next)| one == next);
        let period = others.get(..(1..=LONGEST_PERIOD).find(is_periodic)?)?;
        let first_ranks = min_ranks.next_multiple_of(period.iter().sum());
        // Number of ranks of a partly filled last domain.
        let last_domain_ranks = if last == *period.get(others.len() % period.len())? { 0 } else { last };
        (last <= *period.iter().max()? && ranks > 2 * first_ranks + last_domain_ranks).then_some(Self {
            first_ranks,
            last_domain_ranks,
            ranks,
            bytes,
            law,
        })
    }

    /// Returns the growth law of the completion time.
    pub(in crate::communication) fn law(self) -> ScalingLaw {
        self.law
    }

    /// Returns the number of ranks in the first and in the second simulation.
    pub(in crate::communication) fn sample_ranks(self) -> [usize; 2] {
        [self.first_ranks + self.last_domain_ranks, 2 * self.first_ranks + self.last_domain_ranks]
    }

    /// Selects `ranks` ranks of a group: those of its first domains, and all of a partly filled last domain.
    pub(in crate::communication) fn select(self, group: &[NodeId], ranks: usize) -> Option<Vec<NodeId>> {
        let (full_domains, last) = group.split_at_checked(group.len().checked_sub(self.last_domain_ranks)?)?;
        Some([full_domains.get(..ranks.checked_sub(self.last_domain_ranks)?)?, last].concat())
    }

    /// Selects `ranks` ranks of each group. Groups with too few ranks are omitted.
    pub(in crate::communication) fn select_each(self, groups: &[Vec<NodeId>], ranks: usize) -> Vec<Vec<NodeId>> {
        groups.iter().filter_map(|group| self.select(group, ranks)).collect()
    }

    /// Returns the call scaled down to `ranks` ranks, with the message size for which the growth law is valid.
    pub(in crate::communication) fn scaled_call(self, call: &CallWithStrategy, ranks: usize) -> CallWithStrategy {
        CallWithStrategy { bytes: self.scaled_bytes(ranks), ..*call }
    }

    /// Returns the message size of the call scaled down to `ranks` ranks.
    pub(in crate::communication) fn scaled_bytes(self, ranks: usize) -> Bytes {
        match self.law {
            ScalingLaw::Rank | ScalingLaw::RankIfConfirmed => {
                Bytes(self.bytes.0.div_ceil(self.ranks.max(1) as u64) * ranks as u64)
            }
            ScalingLaw::Doubling => self.bytes,
        }
    }

    /// Extrapolates the completion time of the call from the times of the two simulations.
    pub(in crate::communication) fn extrapolate(self, [first, second]: [Picos; 2]) -> Picos {
        let [_, second_ranks] = self.sample_ranks();
        let (first_ranks, second_ranks) = (self.first_ranks.max(1), second_ranks.max(1));
        // Factor on the increment between the two simulations, as the fraction `numerator / denominator`.
        let (numerator, denominator) = match self.law {
            ScalingLaw::Rank | ScalingLaw::RankIfConfirmed => (self.ranks.saturating_sub(second_ranks), first_ranks),
            // Number of whole doublings plus the square root of the remaining fraction of a doubling, in thousandths.
            ScalingLaw::Doubling => {
                let doublings = (self.ranks / second_ranks).max(1).ilog2();
                let doubled_ranks = second_ranks << doublings;
                let remainder = (self.ranks.saturating_sub(doubled_ranks) * 1_000_000 / doubled_ranks).isqrt();
                (doublings as usize * 1000 + remainder, 1000)
            }
        };
        second + Picos((u128::from((second - first).0) * numerator as u128 / denominator as u128) as u64)
    }

    /// Runs both simulations and extrapolates their times. `link_bound`: transfer time of the busiest link with all
    /// ranks. `None` if the times of PAT do not grow linearly.
    ///
    /// # Errors
    /// Errors of `simulate`, which times the groups scaled down to a number of ranks.
    pub(in crate::communication) fn simulate_and_extrapolate(
        self,
        simulate: impl Fn(usize) -> Result<Picos, PlanError> + Sync,
        link_bound: impl FnOnce() -> Picos,
    ) -> Result<Option<Picos>, PlanError> {
        let [first, second] = self.sample_ranks();
        let (first_time, second_time) = rayon::join(|| simulate(first), || simulate(second));
        let times = [first_time?, second_time?];
        let extrapolated = self.extrapolate(times);
        let is_linear =
            self.law != ScalingLaw::RankIfConfirmed || self.confirms_linear(times, extrapolated, link_bound);
        Ok(is_linear.then_some(extrapolated))
    }

    /// Returns true if the times of PAT grow linearly with the number of ranks and, for small messages, links need at
    /// most half of the time.
    fn confirms_linear(
        self,
        [first, second]: [Picos; 2],
        extrapolated: Picos,
        link_bound: impl FnOnce() -> Picos,
    ) -> bool {
        let is_large = self.bytes.0 >= PAT_BANDWIDTH_BOUND_BYTES * self.ranks as u64;
        second.0 / 100 >= first.0 / 10_000 * LINEAR_RATIO_PERCENT && (is_large || extrapolated.0 / 2 >= link_bound().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of rings and PAT are linear in the number of ranks; those of trees in the number of doublings, with square
    /// roots between doublings.
    #[test]
    fn extrapolation_is_linear_in_ranks_or_doublings() {
        let extrapolate = |law, ranks| {
            let times = [Picos(1000), Picos(1100)];
            ScaledDownCall { first_ranks: 128, last_domain_ranks: 0, ranks, bytes: Bytes(1), law }.extrapolate(times).0
        };
        let ranks = [257, 384, 512, 768, 1024, 4096];
        assert_eq!(ranks.map(|ranks| extrapolate(ScalingLaw::Rank, ranks)), [1100, 1200, 1300, 1500, 1700, 4100]);
        assert_eq!(ranks.map(|ranks| extrapolate(ScalingLaw::Doubling, ranks)), [1106, 1170, 1200, 1270, 1300, 1500]);
    }

    #[test]
    fn small_or_irregular_groups_are_not_extrapolated() {
        // Numbers of ranks by domain of eight GPUs. The first and the last domain may be partly used.
        let scaled_down = |counts: &[usize], bytes, law| {
            let group = ScaledGroup { ranks: counts.iter().sum(), bytes: Bytes(bytes), law };
            ScaledDownCall::new(FIRST_RANKS, group, || counts.to_vec())
        };
        let ring = |counts: &[usize], bytes| scaled_down(counts, bytes, ScalingLaw::Rank);
        let all = ScaledDownCall {
            first_ranks: 128,
            last_domain_ranks: 0,
            ranks: 640,
            bytes: Bytes(1 << 30),
            law: ScalingLaw::Rank,
        };
        assert_eq!(ring(&[8; 80], 1 << 30), Some(all));
        assert_eq!(all.scaled_bytes(256), Bytes(1_677_722 * 256));
        let tree = |bytes| scaled_down(&[8; 80], bytes, ScalingLaw::Doubling);
        assert_eq!(tree(1 << 30), Some(ScaledDownCall { law: ScalingLaw::Doubling, ..all }));
        assert_eq!(tree(1 << 30).unwrap().scaled_bytes(256), Bytes(1 << 30));
        assert_eq!(tree(1 << 20), None);
        assert_eq!(ring(&[8; 32], 1 << 30), None);
        // A last domain with fewer ranks is part of both simulations; one with more ranks rules out extrapolation.
        let seven = ScaledDownCall { last_domain_ranks: 7, ranks: 639, ..all };
        assert_eq!(ring(&[[8; 79].as_slice(), &[7]].concat(), 1 << 30), Some(seven));
        assert_eq!(seven.sample_ranks(), [135, 263]);
        let gpus: Vec<NodeId> = (0..639).map(NodeId).collect();
        assert_eq!(seven.select(&gpus, 135), Some([&gpus[..128], &gpus[632..639]].concat()));
        assert_eq!(ring(&[[7].as_slice(), &[8; 79]].concat(), 1 << 30), None);
        assert_eq!(ring(&[[8; 32].as_slice(), &[7]].concat(), 1 << 30), None);
        assert_eq!(ring(&[3; 160], 1 << 20).map(|scaled_down| scaled_down.first_ranks), Some(129));
    }
}
