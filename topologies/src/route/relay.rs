//! Relays: a GPU in place of a missing NVLink between two others (NCCL's NVB).
//!
//! If two GPUs of a host have no NVLink in common, NCCL places the FIFO of their connection in the memory of a third
//! GPU with an NVLink to each. The sender stores there and the receiver loads from there (2.30 src/transport/p2p.cc,
//! `P2P_INTERMEDIATE`), so a relay uses memory bandwidth but no SMs. All channels use the same single relay. It must be
//! a rank of the communicator, because other GPUs are not part of its topology, and both of its links must be direct
//! links between GPUs (src/graph/paths.cc, `ncclTopoSetPaths`, `ncclTopoCheckP2p`). RCCL does not use relays (in its
//! paths.cc, paths do not pass through GPUs).

use std::cmp::Reverse;

use super::island_routes::IslandRoute;
use super::segment::Segment;
use super::shape::Shape;
use super::{PathClass, RouteOptions};
use crate::LinkKind;
use crate::fabric::NodeKind;

/// The route from one GPU to another through a third, if this route is preferred to `direct`, the route without a
/// relay. `rank` returns the rank of a candidate relay, or `None` if the candidate does not participate in the call. Of
/// equal candidates, the one with the lowest rank is selected.
pub(super) fn find_relay_route(
    shape: &Shape,
    from: u32,
    to: u32,
    options: &RouteOptions,
    direct: Option<&IslandRoute>,
    rank: impl Fn(u32) -> Option<u32>,
) -> Option<IslandRoute> {
    let joins = |node: u32| shape.node(node).kind == NodeKind::Gpu && shape.node(node).relays;
    let is_nearer = direct.is_some_and(|route| route.class <= PathClass::Nvb);
    if from == to || is_nearer || !options.peer_access() || !joins(from) || !joins(to) {
        return None;
    }
    let host = shape.node(from).host;
    let relay_through = |middle: u32| {
        let is_between = middle != from && middle != to && joins(middle) && shape.node(middle).host == host;
        if !is_between || !shape.can_relay(middle) {
            return None;
        }
        let rank = rank(middle)?;
        Some((
            direct_nvlinks(shape, from, middle, options)?.followed_by(&direct_nvlinks(shape, middle, to, options)?),
            rank,
        ))
    };
    let mut middles: Vec<u32> = nvlinks(shape, from).map(|link| shape.link(link).to).collect();
    middles.sort_unstable();
    middles.dedup();
    let candidates = middles.into_iter().filter_map(relay_through);
    let min_rate = direct.map_or(0, |route| route.segment.rate);
    let permitted = candidates.filter(|(route, _)| route.rate >= min_rate);
    let best = permitted.min_by_key(|(route, rank)| (Reverse(route.rate), route.latency, *rank));
    best.map(|(segment, _)| IslandRoute { class: PathClass::Nvb, segment })
}

/// The direct NVLinks from one GPU to another, as one segment.
fn direct_nvlinks(shape: &Shape, from: u32, to: u32, options: &RouteOptions) -> Option<Segment> {
    let route = shape.route_between(from, to, options)?;
    (route.class == PathClass::Nvl && route.segment.hops == 1).then(|| route.segment.clone())
}

/// NVLinks that leave a device and have not failed.
fn nvlinks(shape: &Shape, from: u32) -> impl Iterator<Item = u32> {
    let links = shape.outgoing_links(from).iter().copied();
    links.filter(|&link| shape.link(link).kind == LinkKind::Nvlink && !shape.link(link).failed)
}

/// Returns true if some GPU of a shape could relay between two others.
pub(super) fn can_relay(shape: &Shape) -> bool {
    let joins = |node: u32| shape.node(node).kind == NodeKind::Gpu && shape.can_relay(node);
    let mut links = (0..shape.link_count()).map(|link| shape.link(link));
    links.any(|link| link.kind == LinkKind::Nvlink && joins(link.from) && joins(link.to))
}
