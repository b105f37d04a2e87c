//! Equal-cost paths between two points: selection by bandwidth and latency, and the share of the flow on each link.
//!
//! A search returns all shortest paths as a layered graph of [`LayeredLink`]s. [`select_paths`] tries each bandwidth
//! threshold: of the paths with at least that bandwidth, it selects those with the lowest latency and spreads the flow
//! evenly over them. The threshold with the highest total bandwidth of the flow is used. More bandwidth on a link
//! therefore never reduces the bandwidth of a flow, and a slowed link is not used where it would be the bottleneck. If
//! a step represents several links ([`Multiplicity`]), each of them carries the stated share.

use super::Ecmp;
use super::link_classes::Multiplicity;
use super::path::Share;
use crate::{Bandwidth, Picos};

/// Maximum number of equal-cost paths over which a flow is spread. If there are more, the flow uses one of them. The
/// limit keeps the denominators of the shares small, so that shares are exact fractions.
pub(super) const MAX_PATHS: u64 = 1 << 16;

/// A link of the layered graph. States are dense numbers; steps are in order of travel.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayeredLink {
    pub from: u32,
    pub to: u32,
    pub link: u32,
    /// Number of links that this step represents.
    pub multiple: Multiplicity,
    /// Number of links between the source and `from`.
    pub layer: u32,
    pub bandwidth: u64,
    pub latency: u64,
}

/// One link of a [`Segment`], with the share of the flow that it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub link: u32,
    pub layer: u32,
    /// State at the start of the link. Together with the state at its end (`to`), it identifies the next link of a
    /// single path.
    pub from: u32,
    pub to: u32,
    pub share: Share,
}

/// Selection among equal-cost paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PathSelection {
    /// All paths.
    #[default]
    All,
    /// One path, selected by link numbers, because there were more than [`MAX_PATHS`].
    One,
}

/// The path (or equal-cost paths) between two points. Link numbers are those of the search that found it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    pub parts: Box<[Part]>,
    /// Number of links that each byte crosses.
    pub hops: u32,
    /// Number of equal-cost paths.
    pub paths: u64,
    /// Smallest bandwidth of a link on the paths, in bytes per second; `u64::MAX` is unlimited.
    pub bandwidth: u64,
    /// Bandwidth of the flow over all its paths, in bytes per second; `u64::MAX` is unlimited.
    pub rate: u64,
    pub latency: u64,
    pub selection: PathSelection,
}

impl Segment {
    /// The segment from a point to itself.
    pub fn empty() -> Self {
        Self {
            parts: Box::default(),
            hops: 0,
            paths: 1,
            bandwidth: u64::MAX,
            rate: u64::MAX,
            latency: 0,
            selection: PathSelection::All,
        }
    }

    /// Concatenates this segment with one that begins where it ends.
    pub fn followed_by(&self, next: &Self) -> Self {
        let (Some(last), Some(first)) = (self.parts.last(), next.parts.first()) else {
            return if self.parts.is_empty() { next.clone() } else { self.clone() };
        };
        // States of the second segment are renumbered behind those of the first; both share the junction state.
        let (ending, starting) = (last.layer, first.layer);
        let states = self.parts.iter().map(|part| part.from.max(part.to)).max().unwrap_or_default();
        let (junction, offset) = (states + 1, states + 2);
        let before =
            self.parts.iter().map(|part| Part { to: if part.layer == ending { junction } else { part.to }, ..*part });
        let after = next.parts.iter().map(|part| Part {
            layer: part.layer + self.hops,
            from: if part.layer == starting { junction } else { part.from + offset },
            to: part.to + offset,
            ..*part
        });
        Self {
            parts: before.chain(after).collect(),
            hops: self.hops + next.hops,
            paths: self.paths.saturating_mul(next.paths),
            bandwidth: self.bandwidth.min(next.bandwidth),
            rate: self.rate.min(next.rate),
            latency: self.latency.saturating_add(next.latency),
            selection: if self.selection == PathSelection::One { PathSelection::One } else { next.selection },
        }
    }

    /// Visits the links of a single path. Each fork takes the link with the greatest `weight`, whose arguments are the
    /// link and its index among the remaining parallel links.
    pub fn visit_single_path(&self, mut weight: impl FnMut(u32, u32) -> u64, mut visit: impl FnMut(u32)) {
        let mut state = None;
        let mut parts = &self.parts[..];
        while let Some(first) = parts.first() {
            let width = parts.iter().take_while(|part| part.layer == first.layer).count();
            let (layer, remaining) = parts.split_at(width);
            let open: Vec<&Part> = layer.iter().filter(|part| state.is_none_or(|state| part.from == state)).collect();
            let weighed = open.iter().enumerate().map(|(index, part)| {
                let parallel = open.iter().take(index).filter(|other| other.to == part.to).count() as u32;
                (weight(part.link, parallel), std::cmp::Reverse(part.link), part.to)
            });
            if let Some((_, std::cmp::Reverse(link), to)) = weighed.max() {
                visit(link);
                state = Some(to);
            }
            parts = remaining;
        }
    }
}

/// Bandwidth in bytes per second as searches compare it; `u64::MAX` is unlimited.
pub(super) fn bandwidth_key(bandwidth: Option<Bandwidth>) -> u64 {
    bandwidth.map_or(u64::MAX, |bandwidth| bandwidth.0)
}

/// Converts a [`bandwidth_key`] back to a bandwidth; `None` is unlimited.
pub(super) fn to_bandwidth(bandwidth: u64) -> Option<Bandwidth> {
    (bandwidth != u64::MAX).then_some(Bandwidth(bandwidth))
}

/// Converts a latency of a search, which is in picoseconds.
pub(super) fn picos(latency: u64) -> Picos {
    Picos(latency)
}

/// Selects the best of the equal-cost paths and distributes the flow over them. Returns `None` if no target is reached.
///
/// `steps` are in order of travel; `source` and `targets` are states; `weight` selects a path if there are more than
/// [`MAX_PATHS`]. For a hashed flow, which uses a single path, only the paths of maximum bandwidth are considered.
pub(super) fn select_paths(
    states: usize,
    source: u32,
    targets: &[u32],
    steps: &[LayeredLink],
    ecmp: Ecmp,
    mut weight: impl FnMut(u32, u32) -> u64,
) -> Option<Segment> {
    if let Some(single) = single_path(source, targets, steps) {
        return Some(single);
    }
    let mut widest = vec![0u64; states];
    *widest.get_mut(source as usize)? = u64::MAX;
    for step in steps {
        let path_bandwidth = widest[step.from as usize].min(step.bandwidth);
        let to = &mut widest[step.to as usize];
        *to = (*to).max(path_bandwidth);
    }
    let bandwidth = targets.iter().map(|&target| widest[target as usize]).max()?;
    let mut thresholds = vec![bandwidth];
    if ecmp == Ecmp::Averaged {
        thresholds.extend(steps.iter().map(|step| step.bandwidth).filter(|&other| other < bandwidth));
    }
    thresholds.sort_unstable_by_key(|&bandwidth| std::cmp::Reverse(bandwidth));
    thresholds.dedup();
    let mut best: Option<Segment> = None;
    for min_bandwidth in thresholds {
        let graph = LayeredGraph { states, source, targets };
        let Some(segment) = graph.spread(steps, min_bandwidth, &mut weight) else { continue };
        if best.as_ref().is_none_or(|best| segment.rate > best.rate) {
            best = Some(segment);
        }
    }
    best
}

/// The states of a layered graph, and the ends of the paths in it.
struct LayeredGraph<'a> {
    states: usize,
    source: u32,
    targets: &'a [u32],
}

impl LayeredGraph<'_> {
    /// The flow over the lowest-latency paths among those whose steps all have a bandwidth of at least `min_bandwidth`.
    fn spread(
        &self,
        steps: &[LayeredLink],
        min_bandwidth: u64,
        weight: impl FnMut(u32, u32) -> u64,
    ) -> Option<Segment> {
        let Self { states, source, targets } = *self;
        let wide: Vec<&LayeredLink> = steps.iter().filter(|step| step.bandwidth >= min_bandwidth).collect();
        let mut min_latencies = vec![u64::MAX; states];
        min_latencies[source as usize] = 0;
        for step in &wide {
            let arrival = min_latencies[step.from as usize].saturating_add(step.latency);
            let to = &mut min_latencies[step.to as usize];
            *to = (*to).min(arrival);
        }
        let latency = targets.iter().map(|&target| min_latencies[target as usize]).min()?;
        let on_time = |step: &&&LayeredLink| {
            let start = min_latencies[step.from as usize];
            start != u64::MAX && start.saturating_add(step.latency) == min_latencies[step.to as usize]
        };

        // Number of paths from a state to a target (`onward`) and from the source to a state (`arrived`).
        let mut onward = vec![0u64; states];
        for &target in targets {
            onward[target as usize] = u64::from(min_latencies[target as usize] == latency);
        }
        for step in wide.iter().rev().filter(on_time) {
            let step_paths = onward[step.to as usize].saturating_mul(step.multiple.out);
            onward[step.from as usize] = onward[step.from as usize].saturating_add(step_paths);
        }
        let path_count = onward[source as usize];
        let mut arrived = vec![0u64; states];
        arrived[source as usize] = 1;
        let mut parts: Vec<Part> = Vec::new();
        let mut bandwidth = u64::MAX;
        let mut rate = u64::MAX;
        let mut carried = Share::WHOLE;
        for step in wide.iter().filter(on_time).filter(|step| onward[step.to as usize] > 0) {
            let arriving = arrived[step.from as usize];
            if arriving == 0 {
                continue;
            }
            let to = &mut arrived[step.to as usize];
            *to = to.saturating_add(arriving.saturating_mul(step.multiple.into));
            let share =
                Share::new(arriving.saturating_mul(onward[step.to as usize]), path_count).unwrap_or(Share::WHOLE);
            // Paths through different states of the same device cross a link in adjacent steps.
            let again = parts.last().is_some_and(|last| (last.layer, last.link) == (step.layer, step.link));
            carried = if again { carried.saturating_add(share) } else { share };
            bandwidth = bandwidth.min(step.bandwidth);
            rate = rate.min(if step.bandwidth == u64::MAX {
                u64::MAX
            } else {
                carried.whole_bandwidth(Bandwidth(step.bandwidth)).0
            });
            parts.push(Part { link: step.link, layer: step.layer, from: step.from, to: step.to, share });
        }
        let hops = steps.last()?.layer + 1;
        let segment = Segment {
            parts: parts.into(),
            hops,
            paths: path_count,
            bandwidth,
            rate,
            latency,
            selection: PathSelection::All,
        };
        Some(if path_count > MAX_PATHS { reduce_to_single_path(&segment, weight) } else { segment })
    }
}

/// Returns the segment if `steps` are one single path, the usual case, without a search; `None` otherwise.
fn single_path(source: u32, targets: &[u32], steps: &[LayeredLink]) -> Option<Segment> {
    let mut state = source;
    let mut segment = Segment::empty();
    let mut parts = Vec::with_capacity(steps.len());
    for (layer, step) in steps.iter().enumerate() {
        if step.layer as usize != layer || step.from != state || step.multiple != Multiplicity::ONE {
            return None;
        }
        state = step.to;
        segment.bandwidth = segment.bandwidth.min(step.bandwidth);
        segment.latency = segment.latency.saturating_add(step.latency);
        parts.push(Part { link: step.link, layer: step.layer, from: step.from, to: step.to, share: Share::WHOLE });
    }
    segment.hops = u32::try_from(parts.len()).ok()?;
    segment.rate = segment.bandwidth;
    segment.parts = parts.into();
    targets.contains(&state).then_some(segment)
}

/// Reduces a segment to one of its paths.
fn reduce_to_single_path(segment: &Segment, weight: impl FnMut(u32, u32) -> u64) -> Segment {
    let mut chosen = Vec::new();
    segment.visit_single_path(weight, |link| chosen.push(link));
    let mut chosen = chosen.into_iter().peekable();
    let mut parts = Vec::new();
    for part in &segment.parts {
        if chosen.next_if(|&link| link == part.link).is_some() {
            parts.push(Part { share: Share::WHOLE, ..*part });
        }
    }
    Segment { parts: parts.into(), paths: 1, rate: segment.bandwidth, selection: PathSelection::One, ..*segment }
}
