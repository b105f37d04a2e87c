//! Ranks of an exchange, grouped into domains whose GPUs access each other's memory.

use fabricast_topologies::NodeId;
use fabricast_topologies::route::{PathClass, PeerAccess, Router};

use crate::costs::ExchangeExtent;
use crate::error::ExchangeError;

/// Ranks of an exchange and their NVLink domains.
///
/// A domain is a set of ranks that do not need the network to reach each other: the GPUs of a host, or those of a rack
/// with multi-node NVLink. Without peer access, every rank is a separate domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeRanks {
    devices: Vec<NodeId>,
    domains: Vec<Vec<u32>>,
    /// Domain of each rank.
    domain_of: Vec<u32>,
}

impl ExchangeRanks {
    /// Largest number of ranks of an exchange.
    pub const MAX_RANKS: usize = 2048;

    /// Groups the ranks on these devices.
    ///
    /// # Errors
    /// [`ExchangeError::Ranks`] for no or too many ranks, [`ExchangeError::Unreachable`] if two ranks have no path.
    pub fn new(router: &Router<'_>, devices: &[NodeId]) -> Result<Self, ExchangeError> {
        if devices.is_empty() || devices.len() > Self::MAX_RANKS {
            return Err(ExchangeError::Ranks { ranks: devices.len(), max: Self::MAX_RANKS });
        }
        let is_shared = router.options().p2p == PeerAccess::Allowed;
        let mut domains: Vec<(NodeId, Vec<u32>)> = Vec::new();
        let mut domain_of = Vec::with_capacity(devices.len());
        for (rank, &device) in (0u32..).zip(devices) {
            let mut found = None;
            for (number, (first, _)) in domains.iter().enumerate().filter(|_| is_shared) {
                if router.path(*first, device)?.class < PathClass::Net {
                    found = Some(number);
                    break;
                }
            }
            let number = found.unwrap_or(domains.len());
            match domains.get_mut(number) {
                Some((_, members)) => members.push(rank),
                None => domains.push((device, vec![rank])),
            }
            domain_of.push(number as u32);
        }
        let domains = domains.into_iter().map(|(_, members)| members).collect();
        Ok(Self { devices: devices.to_vec(), domains, domain_of })
    }

    /// Device of each rank.
    #[must_use]
    pub fn devices(&self) -> &[NodeId] {
        &self.devices
    }

    /// Ranks of each domain.
    #[must_use]
    pub fn domains(&self) -> &[Vec<u32>] {
        &self.domains
    }

    /// Number of ranks.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.devices.len() as u32
    }

    /// Extent of an exchange between the ranks.
    #[must_use]
    pub fn extent(&self) -> ExchangeExtent {
        if self.domains.len() > 1 { ExchangeExtent::Network } else { ExchangeExtent::OneDomain }
    }

    /// Domain of a rank.
    pub(crate) fn domain(&self, rank: u32) -> u32 {
        self.domain_of.get(rank as usize).copied().unwrap_or_default()
    }

    /// Rank in `domain` that receives what a rank sends to the domain: the one with the same index.
    pub(crate) fn counterpart(&self, rank: u32, domain: u32) -> Option<u32> {
        let own = self.domains.get(self.domain(rank) as usize)?;
        let index = own.iter().position(|&member| member == rank)?;
        let members = self.domains.get(domain as usize)?;
        members.get(index % members.len().max(1)).copied()
    }

    /// Largest number of ranks in a domain.
    pub(crate) fn largest_domain(&self) -> u32 {
        self.domains.iter().map(Vec::len).max().unwrap_or(1) as u32
    }
}
