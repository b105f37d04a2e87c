//! Results of routing: the links of a flow, the share of the flow on each link, and class, bandwidth and latency of the
//! path.

use super::PathClass;
use crate::{Bandwidth, LinkId, NodeId, Picos};

/// An exact fraction of a flow, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// Numerator of the fraction.
    pub numerator: u32,
    /// Denominator of the fraction.
    pub denominator: u32,
}

impl Share {
    /// The whole flow.
    pub const WHOLE: Self = Self { numerator: 1, denominator: 1 };

    /// The fraction `numerator / denominator` in lowest terms; `None` if the denominator is 0 or a term exceeds 32
    /// bits.
    #[must_use]
    pub fn new(numerator: u64, denominator: u64) -> Option<Self> {
        let divisor = gcd(numerator, denominator);
        if denominator == 0 {
            return None;
        }
        let (numerator, denominator) = (numerator / divisor, denominator / divisor);
        Some(Self { numerator: u32::try_from(numerator).ok()?, denominator: u32::try_from(denominator).ok()? })
    }

    /// Sum of two shares of one flow, at most the whole.
    pub(super) fn saturating_add(self, other: Self) -> Self {
        let ((a, b), (c, d)) = (self.wide(), other.wide());
        Self::new(a * d + c * b, b * d).unwrap_or(Self::WHOLE)
    }

    fn wide(self) -> (u64, u64) {
        (u64::from(self.numerator), u64::from(self.denominator))
    }

    /// The share as a floating-point number, for display.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.numerator) / f64::from(self.denominator)
    }

    /// The largest bandwidth of a whole flow for which this share of it does not exceed `bandwidth`.
    #[must_use]
    pub fn whole_bandwidth(self, bandwidth: Bandwidth) -> Bandwidth {
        let link_bandwidth = u128::from(bandwidth.0) * u128::from(self.denominator) / u128::from(self.numerator.max(1));
        Bandwidth(u64::try_from(link_bandwidth).unwrap_or(u64::MAX))
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A link on the path of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The link direction in which the flow travels.
    pub link: LinkId,
    /// The share of the flow that the link carries.
    pub share: Share,
}

/// CPUs in whose host memory a flow is staged: the flow is written there and read again, as one transfer or in chunks.
///
/// Between devices of a host, this is the memory at the receiver's CPU, where NCCL allocates the buffers of its
/// shared-memory transport (`NCCL_SHM_LOCALITY`, default: receiver's side). Traffic to the network is staged in the
/// memory of the sender's own CPU, traffic from the network in that of the receiver's CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Staging {
    /// CPU on the way out of the sender's host, or between devices of one host; `None` if the flow is not staged there.
    pub out: Option<NodeId>,
    /// CPU on the way into another host; `None` if the flow is not staged there.
    pub into: Option<NodeId>,
}

impl Staging {
    /// The CPUs, in order of travel.
    pub fn cpus(self) -> impl Iterator<Item = NodeId> {
        self.out.into_iter().chain(self.into)
    }
}

/// Class, bandwidth, latency and staging of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Class of the path.
    pub class: PathClass,
    /// Maximum bandwidth of one flow alone: the minimum of link bandwidth divided by share. `None` is unlimited.
    pub bandwidth: Option<Bandwidth>,
    /// Sum of the latencies of the links that each byte crosses.
    pub latency: Picos,
    /// Staging in host memory, where devices cannot access each other's memory.
    pub staging: Staging,
}

impl Summary {
    /// The path from a device to itself.
    pub const LOCAL: Self = Self {
        class: PathClass::Loc,
        bandwidth: None,
        latency: Picos::ZERO,
        staging: Staging { out: None, into: None },
    };
}

/// The path from one device to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The links in order of travel. If the flow is spread over equal-cost paths, the links of all of them, nearest to
    /// the source first.
    pub hops: Vec<Hop>,
    /// Class of the path.
    pub class: PathClass,
    /// Maximum bandwidth of one flow alone; `None` is unlimited.
    pub bandwidth: Option<Bandwidth>,
    /// Sum of the latencies of the links that each byte crosses.
    pub latency: Picos,
    /// Staging in host memory.
    pub staging: Staging,
}

impl Path {
    /// The links in order of travel.
    pub fn links(&self) -> impl ExactSizeIterator<Item = LinkId> {
        self.hops.iter().map(|hop| hop.link)
    }
}

/// The paths from one device to each rank of the fabric, in one allocation.
#[derive(Clone, Debug)]
pub struct PathTable {
    pub(super) from: NodeId,
    pub(super) hops: Vec<Hop>,
    pub(super) ends: Vec<u32>,
    pub(super) summaries: Vec<Option<Summary>>,
}

impl PathTable {
    /// The device at which all paths start.
    #[must_use]
    pub fn from(&self) -> NodeId {
        self.from
    }

    /// Number of destinations: the ranks of the fabric.
    #[must_use]
    pub fn len(&self) -> usize {
        self.summaries.len()
    }

    /// Returns true if the fabric has no ranks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.summaries.is_empty()
    }

    /// The path to rank `rank` (an index into [`Fabric::gpus`](crate::Fabric::gpus)); `None` if there is none.
    #[must_use]
    pub fn get(&self, rank: usize) -> Option<(&[Hop], Summary)> {
        let summary = (*self.summaries.get(rank)?)?;
        let start = rank.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |&end| end as usize);
        let end = *self.ends.get(rank)? as usize;
        Some((self.hops.get(start..end)?, summary))
    }
}
