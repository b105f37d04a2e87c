//! A GPU in place of a missing NVLink between two others (NCCL's NVB).
//!
//! Where two GPUs of a host have no NVLink in common, NCCL lays the FIFO of their connection into the memory of a third that has
//! one to each: the sender stores there, the receiver loads from there (2.30 src/transport/p2p.cc, `P2P_INTERMEDIATE`), so that a
//! relay spends memory bandwidth and no SMs. The third GPU is one, the same for all channels; it is a rank of the communicator,
//! since others are no part of its topology; and both links are straight ones between GPUs (src/graph/paths.cc,
//! `ncclTopoSetPaths`, `ncclTopoCheckP2p`). RCCL relays nowhere (its paths.cc: GPUs are no intermediate steps).
//!
//! **A failure never widens a route.** NCCL sends over an NVLink between two GPUs even where a relay would be wider. So a pair that
//! was built with a link of its own gets no more by a relay, once that link has failed, than the link had: wider relays are used
//! only where nothing else joins the two. Which GPU relays is chosen by the links as they were built.

use std::cmp::Reverse;

use super::inside::Inside;
use super::segment::Segment;
use super::shape::Shape;
use super::{PathClass, RouteOptions};
use crate::LinkKind;
use crate::fabric::NodeKind;

/// The way from one GPU to another through a third, where that is preferred to the way that links alone make (`other`).
/// `place` is the third one's among the ranks of the call, if it is one: the first of equally good ones relays.
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

/// The NVLinks straight from one GPU to another, as one way.
fn straight(shape: &Shape, from: u32, to: u32, options: &RouteOptions) -> Option<Segment> {
    let way = shape.between(from, to, options)?;
    (way.class == PathClass::Nvl && way.segment.hops == 1).then(|| way.segment.clone())
}

/// NVLinks in service that leave a device.
fn nvlinks(shape: &Shape, from: u32) -> impl Iterator<Item = u32> {
    let links = shape.leaving(from).iter().copied();
    links.filter(|&link| shape.link(link).kind == LinkKind::Nvlink && !shape.link(link).failed)
}

/// Whether some GPU of a shape could stand between two others.
pub(super) fn is_possible(shape: &Shape) -> bool {
    let joins = |node: u32| shape.node(node).kind == NodeKind::Gpu && shape.takes_part(node);
    let mut links = (0..shape.link_count()).map(|link| shape.link(link));
    links.any(|link| link.kind == LinkKind::Nvlink && joins(link.from) && joins(link.to))
}
