//! What routing answers: the links of a flow, the part of it that each carries, and what they add up to.

use super::PathClass;
use crate::{Bandwidth, LinkId, NodeId, Picos};

/// An exact part of a flow, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// Parts carried.
    pub numerator: u32,
    /// Parts of the whole.
    pub denominator: u32,
}

impl Share {
    /// All of the flow.
    pub const WHOLE: Self = Self { numerator: 1, denominator: 1 };

    /// `numerator / denominator` in lowest terms; `None` where they do not fit or the denominator is 0.
    #[must_use]
    pub fn new(numerator: u64, denominator: u64) -> Option<Self> {
        let divisor = gcd(numerator, denominator);
        if denominator == 0 {
            return None;
        }
        let (numerator, denominator) = (numerator / divisor, denominator / divisor);
        Some(Self { numerator: u32::try_from(numerator).ok()?, denominator: u32::try_from(denominator).ok()? })
    }

    /// Two parts together; no more than the whole, since shares are parts of one flow.
    pub(super) fn plus(self, other: Self) -> Self {
        let ((a, b), (c, d)) = (self.wide(), other.wide());
        Self::new(a * d + c * b, b * d).unwrap_or(Self::WHOLE)
    }

    fn wide(self) -> (u64, u64) {
        (u64::from(self.numerator), u64::from(self.denominator))
    }

    /// The part as a number, for display.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.numerator) / f64::from(self.denominator)
    }

    /// The largest whole flow whose share of this size fits into `bandwidth`.
    #[must_use]
    pub fn whole_of(self, bandwidth: Bandwidth) -> Bandwidth {
        let whole = u128::from(bandwidth.0) * u128::from(self.denominator) / u128::from(self.numerator.max(1));
        Bandwidth(u64::try_from(whole).unwrap_or(u64::MAX))
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A link on the way of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The link, in the direction of travel.
    pub link: LinkId,
    /// The part of the flow that it carries.
    pub share: Share,
}

/// Where a flow rests in host memory: it is written there and read again, as one transfer or as many small ones.
///
/// Between devices of a host that is the memory at the receiver's CPU, where NCCL keeps the buffers of its shared-memory
/// transport (`NCCL_SHM_LOCALITY`, receiver's side by default); towards the network that of the sender's own CPU, and
/// from it that of the receiver's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Staging {
    /// The CPU on the way out of the sender's host; also inside a host.
    pub out: Option<NodeId>,
    /// The CPU on the way into another host.
    pub into: Option<NodeId>,
}

impl Staging {
    /// The CPUs, in order of travel.
    pub fn cpus(self) -> impl Iterator<Item = NodeId> {
        self.out.into_iter().chain(self.into)
    }
}

/// What the links of a flow add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How near the two ends are.
    pub class: PathClass,
    /// The most that one flow alone can reach: the smallest of link bandwidth over share; `None` is unlimited.
    pub bandwidth: Option<Bandwidth>,
    /// Sum of the latencies of the links that one byte crosses.
    pub latency: Picos,
    /// The host memory that the flow passes, where devices do not reach each other's.
    pub staging: Staging,
}

impl Summary {
    /// A device to itself.
    pub const LOCAL: Self = Self {
        class: PathClass::Loc,
        bandwidth: None,
        latency: Picos::ZERO,
        staging: Staging { out: None, into: None },
    };
}

/// The way from one device to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The links in order of travel; where the flow spreads over equal ways, all of them, nearest to the source first.
    pub hops: Vec<Hop>,
    /// How near the two ends are.
    pub class: PathClass,
    /// The most that one flow alone can reach; `None` is unlimited.
    pub bandwidth: Option<Bandwidth>,
    /// Sum of the latencies of the links that one byte crosses.
    pub latency: Picos,
    /// The host memory that the flow passes.
    pub staging: Staging,
}

impl Path {
    /// The links in order of travel.
    pub fn links(&self) -> impl ExactSizeIterator<Item = LinkId> {
        self.hops.iter().map(|hop| hop.link)
    }
}

/// The ways from one device to each rank of the fabric, in one arena.
#[derive(Clone, Debug)]
pub struct PathTable {
    pub(super) from: NodeId,
    pub(super) hops: Vec<Hop>,
    pub(super) ends: Vec<u32>,
    pub(super) summaries: Vec<Option<Summary>>,
}

impl PathTable {
    /// The device that all paths start from.
    #[must_use]
    pub fn from(&self) -> NodeId {
        self.from
    }

    /// Number of destinations: the ranks of the fabric.
    #[must_use]
    pub fn len(&self) -> usize {
        self.summaries.len()
    }

    /// Whether the fabric has no ranks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.summaries.is_empty()
    }

    /// The path to rank `rank` (an index into [`Fabric::gpus`](crate::Fabric::gpus)); `None` where there is none.
    #[must_use]
    pub fn get(&self, rank: usize) -> Option<(&[Hop], Summary)> {
        let summary = (*self.summaries.get(rank)?)?;
        let start = rank.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |&end| end as usize);
        let end = *self.ends.get(rank)? as usize;
        Some((self.hops.get(start..end)?, summary))
    }
}
