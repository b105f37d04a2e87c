//! Checker of certificates.

use fabricast_topologies::route::{Participants, Router};
use fabricast_topologies::{Fabric, LinkId, NodeId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Certificate, CertificateError, Phase, has_block_per_rank};
use crate::schedule::{Collective, Rank, Schedule, gcd};

/// Non-negative exact fraction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Fraction(pub u128, pub u128);

impl Fraction {
    pub(super) fn new(numerator: u128, denominator: u128) -> Self {
        let divisor = gcd(numerator, denominator).max(1);
        Self(numerator / divisor, denominator / divisor)
    }

    pub(super) fn add(self, other: Self) -> Option<Self> {
        let divisor = gcd(self.1, other.1).max(1);
        let sum = self.0.checked_mul(other.1 / divisor)?.checked_add(other.0.checked_mul(self.1 / divisor)?)?;
        Some(Self::new(sum, self.1.checked_mul(other.1 / divisor)?))
    }

    pub(super) fn is_below(self, other: Self) -> Option<bool> {
        Some(self.0.checked_mul(other.1)? < other.0.checked_mul(self.1)?)
    }

    /// Returns the transfer time of this number of bytes at a rate in bytes per second: picoseconds as numerator and
    /// denominator.
    pub(super) fn picos(self, rate: u128) -> Option<(u128, u128)> {
        Some((self.0.checked_mul(1_000_000_000_000)?, self.1.checked_mul(rate.max(1))?))
    }
}

pub(super) const TOO_LARGE: CertificateError = CertificateError::TooLarge;

/// Checks the certificate of a schedule on a fabric whose devices are given by rank. The schedule itself is checked by
/// [`verify`](crate::verify::verify()). Returns the certificate.
///
/// # Errors
/// [`CertificateError`] for the first statement of the certificate that does not hold.
pub fn check<'s>(
    schedule: &'s Schedule,
    fabric: &Fabric,
    router: &Router<'_>,
    placement: &[NodeId],
) -> Result<&'s Certificate, CertificateError> {
    let certificate = schedule.header().certificate.as_ref().ok_or(CertificateError::Missing)?;
    let call = schedule.header().call;
    let distinct: FxHashSet<NodeId> = placement.iter().copied().collect();
    if placement.len() != call.ranks as usize || distinct.len() != placement.len() {
        return Err(CertificateError::Devices { ranks: call.ranks, devices: distinct.len() });
    }
    let proven = match (certificate.cut.is_empty(), certificate.prices.is_empty()) {
        (true, true) => return Err(CertificateError::NoEvidence),
        (_, true) => proven_bound(certificate, schedule, fabric, router, placement)?,
        (_, false) => super::prices::proven_bound(certificate, &call, fabric, router, placement)?,
    };
    if certificate.bound_ps > proven {
        return Err(CertificateError::Bound { claimed: certificate.bound_ps, proven });
    }
    let expected = tree_traffic(certificate, schedule)?;
    let moved = transfers(schedule)?;
    let pairs: FxHashSet<(u32, u32)> = expected.keys().chain(moved.keys()).copied().collect();
    if let Some(&(from, to)) = pairs.iter().filter(|&pair| expected.get(pair) != moved.get(pair)).min() {
        return Err(CertificateError::Transfers { from: Rank(from), to: Rank(to) });
    }
    let participants = Participants::new(placement);
    let mut loads: FxHashMap<LinkId, Fraction> = FxHashMap::default();
    for (&(from, to), bytes) in &moved {
        let [from, to] = [from, to].map(|rank| placement[rank as usize]);
        for hop in router.path_for_participants(&participants, from, to)?.hops {
            let (numerator, denominator) = (u128::from(hop.share.numerator), u128::from(hop.share.denominator));
            let part = bytes.0.checked_mul(numerator).zip(bytes.1.checked_mul(denominator));
            let (numerator, denominator) = part.ok_or(TOO_LARGE)?;
            let load = loads.entry(hop.link).or_insert(Fraction(0, 1));
            *load = load.add(Fraction::new(numerator, denominator)).ok_or(TOO_LARGE)?;
        }
    }
    let mut links: Vec<(LinkId, Fraction)> = loads.into_iter().collect();
    links.sort_unstable_by_key(|&(link, _)| link);
    for (id, bytes) in links {
        let Some(rate) = fabric.link(id).bandwidth else { continue };
        let (numerator, denominator) = bytes.picos(rate.0.into()).ok_or(TOO_LARGE)?;
        let needed = u64::try_from(numerator.div_ceil(denominator)).map_err(|_| TOO_LARGE)?;
        if needed > certificate.packed_ps {
            let (link, claimed) = (fabric.link_name(id), certificate.packed_ps);
            return Err(CertificateError::Load { link, needed, claimed });
        }
    }
    Ok(certificate)
}

/// Bound that the cut proves, in picoseconds.
fn proven_bound(
    certificate: &Certificate,
    schedule: &Schedule,
    fabric: &Fabric,
    router: &Router<'_>,
    placement: &[NodeId],
) -> Result<u64, CertificateError> {
    let call = schedule.header().call;
    let mut sets: Vec<FxHashSet<NodeId>> = Vec::new();
    for ids in &certificate.cut {
        let set = ids.iter().map(|id| fabric.find(id).ok_or_else(|| CertificateError::Cut(format!("no device {id}"))));
        let set: FxHashSet<NodeId> = set.collect::<Result<_, _>>()?;
        sets.push(set);
    }
    let inside = |set: &FxHashSet<NodeId>| placement.iter().filter(|device| set.contains(device)).count() as u128;
    let n = placement.len() as u128;
    if sets.is_empty() || sets.iter().any(|set| inside(set) == 0) || sets.iter().any(|set| inside(set) == n) {
        return Err(CertificateError::Cut("a set has none or all of the ranks".to_owned()));
    }
    // Otherwise, ranks in no set may add up what the sets send, and a rank in two sets receives for both.
    let is_in_one_set = |device: &NodeId| sets.iter().filter(|set| set.contains(device)).count() == 1;
    if sets.len() > 1 && !placement.iter().all(is_in_one_set) {
        return Err(CertificateError::Cut("a rank is in none or several of its sets".to_owned()));
    }
    let has_root = placement.get(call.root.0 as usize).is_some_and(|root| sets[0].contains(root));
    // Bytes that must cross, as a multiple of the call's.
    let demand = match (call.collective, sets.len()) {
        (Collective::AllGather, 1) => Fraction(inside(&sets[0]), n),
        (Collective::ReduceScatter, 1) => Fraction(n - inside(&sets[0]), n),
        (Collective::Broadcast, 1) if has_root => Fraction(1, 1),
        (Collective::Reduce, 1) if !has_root => Fraction(1, 1),
        (Collective::AllReduce, 1) => Fraction(1, 1),
        // Before the first of k sets has the sum, each other has sent something, and must then receive something.
        (Collective::AllReduce, sets) => Fraction(2 * (sets as u128 - 1), 1),
        (Collective::Broadcast | Collective::Reduce, 1) => {
            return Err(CertificateError::Cut("nothing needs to leave the set".to_owned()));
        }
        (Collective::AllGather | Collective::ReduceScatter | Collective::Broadcast | Collective::Reduce, _) => {
            return Err(CertificateError::Cut("it has several sets".to_owned()));
        }
        (collective, _) => return Err(CertificateError::Collective(collective)),
    };
    let enters = sets.len() > 1;
    let crosses = |link: LinkId| {
        let (from, to) = fabric.ends(link);
        let (from, to) = if enters { (to, from) } else { (from, to) };
        sets.iter().filter(|set| set.contains(&from) && !set.contains(&to)).count() as u128
    };
    let mut through = 0u128;
    for link in used_links(router, placement) {
        let times = crosses(link);
        match fabric.link(link).bandwidth {
            _ if times == 0 => {}
            Some(rate) => through += times * u128::from(rate.0),
            None => return Ok(0),
        }
    }
    let bytes = Fraction(demand.0 * u128::from(call.bytes.0), demand.1);
    let (numerator, denominator) = bytes.picos(through).ok_or(TOO_LARGE)?;
    Ok(u64::try_from(numerator / denominator).unwrap_or(u64::MAX))
}

/// Links on the routes between all pairs of ranks.
pub(super) fn used_links(router: &Router<'_>, placement: &[NodeId]) -> FxHashSet<LinkId> {
    let participants = Participants::new(placement);
    let pairs = placement.iter().flat_map(|&from| placement.iter().map(move |&to| (from, to)));
    let paths = pairs.filter_map(|(from, to)| router.path_for_participants(&participants, from, to).ok());
    paths.flat_map(|path| path.hops.into_iter().map(|hop| hop.link)).collect()
}

type PairBytes = FxHashMap<(u32, u32), Fraction>;

/// Bytes that the trees move between ranks, after checking that they span all ranks and carry all blocks.
fn tree_traffic(certificate: &Certificate, schedule: &Schedule) -> Result<PairBytes, CertificateError> {
    let invalid = |text: String| Err(CertificateError::Trees(text));
    let call = schedule.header().call;
    let (phases, roots): (&[Phase], Vec<u32>) = match call.collective {
        Collective::AllGather => (&[Phase::Spread], (0..call.ranks).collect()),
        Collective::ReduceScatter => (&[Phase::Collect], (0..call.ranks).collect()),
        Collective::AllReduce => (&[Phase::Collect, Phase::Spread], (0..call.ranks).collect()),
        Collective::Broadcast => (&[Phase::Spread], vec![call.root.0]),
        Collective::Reduce | Collective::Gather => (&[Phase::Collect], vec![call.root.0]),
        Collective::AllToAll => (&[Phase::Spread], (0..call.ranks).collect()),
        Collective::Scatter => (&[Phase::Spread], vec![call.root.0]),
        other => return Err(CertificateError::Collective(other)),
    };
    let mut units: FxHashMap<(Phase, u32), u128> = FxHashMap::default();
    for (number, tree) in certificate.trees.iter().enumerate() {
        let root = tree.root.0;
        if !phases.contains(&tree.phase) || !roots.contains(&root) || tree.parents.len() != call.ranks as usize {
            return invalid(format!("tree {number} has a root, a phase or ranks that the call does not have"));
        }
        for start in 0..call.ranks {
            let (mut rank, mut steps) = (start, 0);
            while rank != root {
                let parent = tree.parents.get(rank as usize).filter(|_| steps < call.ranks);
                let Some(parent) = parent else { return invalid(format!("tree {number} does not join rank {start}")) };
                (rank, steps) = (parent.0, steps + 1);
            }
        }
        *units.entry((tree.phase, root)).or_default() += u128::from(tree.units);
    }
    for (phase, root) in phases.iter().flat_map(|&phase| roots.iter().map(move |&root| (phase, root))) {
        if units.get(&(phase, root)).is_none_or(|&units| units == 0) {
            return invalid(format!("rank {root} has no trees"));
        }
    }
    let blocks = if has_block_per_rank(call.collective) { call.ranks as usize } else { roots.len() };
    let mut traffic = PairBytes::default();
    for tree in &certificate.trees {
        let block = units.get(&(tree.phase, tree.root.0)).copied().unwrap_or(1) * blocks as u128;
        let share = u128::from(tree.units).checked_mul(call.bytes.0.into()).ok_or(TOO_LARGE)?;
        for (from, to) in tree.transfers(call.collective) {
            let bytes = traffic.entry((from.0, to.0)).or_insert(Fraction(0, 1));
            *bytes = bytes.add(Fraction::new(share, block)).ok_or(TOO_LARGE)?;
        }
    }
    traffic.retain(|_, bytes| bytes.0 > 0);
    Ok(traffic)
}

/// Bytes that a schedule moves between ranks.
fn transfers(schedule: &Schedule) -> Result<PairBytes, CertificateError> {
    let layout = &schedule.header().layout;
    let mut chunks: FxHashMap<(u32, u32, usize), u128> = FxHashMap::default();
    for op in schedule.operations().filter(|op| op.kind.is_transfer()) {
        let pair = if op.kind.reads_peer() { (op.peer.0, op.rank.0) } else { (op.rank.0, op.peer.0) };
        for chunk in op.src.index..op.src.index.saturating_add(op.span) {
            let segment = layout.segment_index(chunk % layout.chunks().max(1));
            *chunks.entry((pair.0, pair.1, segment)).or_default() += 1;
        }
    }
    let mut bytes = PairBytes::default();
    for ((from, to, segment), count) in chunks {
        let Some(segment) = layout.segments().get(segment) else { continue };
        let part = Fraction::new(count.checked_mul(segment.bytes.0.into()).ok_or(TOO_LARGE)?, segment.parts.into());
        let sum = bytes.entry((from, to)).or_insert(Fraction(0, 1));
        *sum = sum.add(part).ok_or(TOO_LARGE)?;
    }
    bytes.retain(|_, bytes| bytes.0 > 0);
    Ok(bytes)
}
