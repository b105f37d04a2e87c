//! Routes that replace others after failures, and the law that failures never help.
//!
//! Software that works around a failure may reach hardware that it leaves idle on the machine as built: PCIe in place of
//! a slower NVLink, a neighbour's NIC in place of the link between CPU sockets, C2C in addition to the NVLinks of other GPUs. A
//! model that charged such a detour only with its own links would let a failure add capacity. Therefore **a substitute
//! is charged with what it replaces**: it uses the capacities of both routes, those out of service at the rates that they
//! had. Its bandwidth is at most, and its latency at least, that of the route as built.
//!
//! Rates of transfers that are possible after failures are then possible on the machine as built, whatever the
//! efficiency of each kind of link, so that no schedule needs less time except by another division of shared links, and
//! lower bounds for the machine as built hold as well.

use super::participants::{Participants, RelaySet};
use super::path::{Hop, Summary};
use super::router::Router;
use crate::{LinkId, NodeId, Result};

/// Links to which a transfer is charged that uses the route `hops` in place of the route `replaced`: those of both, each
/// with the larger share.
pub fn charged_hops<'h>(hops: &'h [Hop], replaced: &'h [Hop]) -> impl Iterator<Item = Hop> + 'h {
    let find = |hops: &'h [Hop], link: LinkId| hops.iter().find(|other| other.link == link);
    let larger = move |hop: &Hop| match find(replaced, hop.link) {
        Some(other) if other.share.fraction() > hop.share.fraction() => *other,
        _ => *hop,
    };
    let only_replaced = replaced.iter().filter(move |hop| find(hops, hop.link).is_none()).copied();
    hops.iter().map(larger).chain(only_replaced)
}

/// Route over the links in service, and the route that it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Substitution {
    /// The route over the links in service. Bandwidth and latency are no better than those of the route it replaces.
    pub used: Summary,
    /// The route as built; `None` if it is the one in use.
    pub replaced: Option<Summary>,
}

impl<'f> Router<'f> {
    /// Router of the fabric as built, with the same options; `None` if no link is out of service.
    #[must_use]
    pub fn as_built(&self) -> Option<&Router<'f>> {
        self.built.as_deref()
    }

    /// Appends the path from one device to another to `hops`, as [`Router::route_for_participants`] does, and the path
    /// as built to `replaced` if it is another. Links of `replaced` may be out of service. If `participants` is `None`,
    /// any rank of the fabric relays, as for [`Router::route_into`].
    ///
    /// # Errors
    /// [`Error::Unreachable`](crate::Error::Unreachable) as in [`Router::path`]; `hops` and `replaced` are unchanged in
    /// that case.
    pub fn route_and_replaced(
        &self,
        participants: Option<&Participants>,
        from: NodeId,
        to: NodeId,
        flow: u64,
        hops: &mut Vec<Hop>,
        replaced: &mut Vec<Hop>,
    ) -> Result<Substitution> {
        let relaying = participants.map_or(RelaySet::AnyRank, RelaySet::Among);
        self.substitute(from, to, flow, relaying, hops, replaced).ok_or_else(|| self.unreachable(from, to))
    }

    pub(super) fn find(
        &self,
        from: NodeId,
        to: NodeId,
        flow: u64,
        relaying: RelaySet<'_>,
        hops: &mut Vec<Hop>,
    ) -> Option<Summary> {
        self.substitute(from, to, flow, relaying, hops, &mut Vec::new()).map(|route| route.used)
    }

    fn substitute(
        &self,
        from: NodeId,
        to: NodeId,
        flow: u64,
        relaying: RelaySet<'_>,
        hops: &mut Vec<Hop>,
        replaced: &mut Vec<Hop>,
    ) -> Option<Substitution> {
        let (start, replaced_start) = (hops.len(), replaced.len());
        let used = self.find_in_service(from, to, flow, relaying, hops)?;
        let built = self.as_built().and_then(|built| built.find_in_service(from, to, flow, relaying, replaced));
        let Some(built) = built.filter(|_| hops[start..] != replaced[replaced_start..]) else {
            replaced.truncate(replaced_start);
            return Some(Substitution { used, replaced: None });
        };
        // An unlimited route has no bandwidth.
        let bandwidth = used.bandwidth.into_iter().chain(built.bandwidth).min();
        let latency = used.latency.max(built.latency);
        Some(Substitution { used: Summary { bandwidth, latency, ..used }, replaced: Some(built) })
    }
}
