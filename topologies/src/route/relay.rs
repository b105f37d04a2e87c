//! Relays: a GPU in place of a missing NVLink between two others (NCCL's NVB).
//!
//! If two GPUs of a host have no NVLink in common, NCCL places the FIFO of their connection in the memory of a third
//! GPU with an NVLink to each. The sender stores there and the receiver loads from there (2.30 src/transport/p2p.cc,
//! `P2P_INTERMEDIATE`), so a relay uses memory bandwidth but no SMs. All channels use the same single relay. It must be
//! a rank of the communicator, because other GPUs are not part of its topology, and both of its links must be direct
//! links between GPUs (src/graph/paths.cc, `ncclTopoSetPaths`, `ncclTopoCheckP2p`). RCCL never relays (in its paths.cc,
//! GPUs are no intermediate steps).
//!
//! **A failure never widens a route.** NCCL uses a direct NVLink between two GPUs even if a relay would be wider. A
//! pair that was built with a direct link must not gain bandwidth from a relay when that link fails: a wider relay is
//! used only if nothing else joins the two. The links as built determine which GPU relays.

use std::cmp::Reverse;

use super::inside::Inside;
use super::segment::Segment;
use super::shape::Shape;
use super::{PathClass, RouteOptions};
use crate::LinkKind;
use crate::fabric::NodeKind;

/// The route from one GPU to another through a third, if it is preferred to the route over links alone (`other`).
/// `place` is the rank of a candidate among those of the call, `None` if it is not one; the lowest rank breaks ties.
pub(super) fn relayed(
    shape: &Shape,
    (from, to): (u32, u32),
    options: &RouteOptions,
    other: Option<&Inside>,
    place: impl Fn(u32) -> Option<u32>,
) -> Option<Inside> {
    let joins = |node: u32| shape.node(node).kind == NodeKind::Gpu && shape.node(node).relays;
    let is_nearer = other.is_some_and(|way| way.class <= PathClass::Nvb);
    if from == to || is_nearer || !options.peer_access() || !joins(from) || !joins(to) {
        return None;
    }
    let host = shape.node(from).host;
    let by = |middle: u32| {
        let stands_between = middle != from && middle != to && joins(middle) && shape.node(middle).host == host;
        if !stands_between || !shape.takes_part(middle) {
            return None;
        }
        let place = place(middle)?;
        Some((straight(shape, from, middle, options)?.followed_by(&straight(shape, middle, to, options)?), place))
    };
    let mut middles: Vec<u32> = nvlinks(shape, from).map(|link| shape.link(link).to).collect();
    middles.sort_unstable();
    middles.dedup();
    let ways: Vec<(Segment, u32)> = middles.into_iter().filter_map(by).collect();
    if ways.is_empty() {
        return None;
    }
    let built = straight(shape.as_built(), from, to, options).map_or(u64::MAX, |link| link.rate);
    let least = other.map_or(0, |way| way.segment.rate);
    let permitted = ways.iter().filter(|(way, _)| (least..=built).contains(&way.rate));
    let best = permitted.min_by_key(|(way, place)| (Reverse(way.rate), way.latency, *place));
    let best = best.or_else(|| {
        let narrowest = || ways.iter().min_by_key(|(way, place)| (way.rate, way.latency, *place));
        other.is_none().then(narrowest).flatten()
    });
    best.map(|(segment, _)| Inside { class: PathClass::Nvb, segment: segment.clone() })
}

/// The direct NVLinks from one GPU to another, as one segment.
fn straight(shape: &Shape, from: u32, to: u32, options: &RouteOptions) -> Option<Segment> {
    let way = shape.between(from, to, options)?;
    (way.class == PathClass::Nvl && way.segment.hops == 1).then(|| way.segment.clone())
}

/// NVLinks that leave a device and have not failed.
fn nvlinks(shape: &Shape, from: u32) -> impl Iterator<Item = u32> {
    let links = shape.leaving(from).iter().copied();
    links.filter(|&link| shape.link(link).kind == LinkKind::Nvlink && !shape.link(link).failed)
}

/// Returns true if some GPU of a shape could relay between two others.
pub(super) fn is_possible(shape: &Shape) -> bool {
    let joins = |node: u32| shape.node(node).kind == NodeKind::Gpu && shape.takes_part(node);
    let mut links = (0..shape.link_count()).map(|link| shape.link(link));
    links.any(|link| link.kind == LinkKind::Nvlink && joins(link.from) && joins(link.to))
}
