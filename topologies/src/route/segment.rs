//! Equal ways between two points: which survive the preference for bandwidth and latency, and what part each carries.
//!
//! A search finds all shortest ways as a layered graph of [`Step`]s. [`settle`] keeps the ways of at least some bandwidth, of
//! these the ones with the lowest latency, and spreads the flow evenly over them; the bandwidth that it asks of each is the one with
//! which the whole flow is fastest. So a link that gains bandwidth never draws a flow away from others that carry more together, and
//! one that loses it is left out where it would hold up the rest. Where a step stands for several ([`Multiple`]) each of these
//! carries the share that is told of it.

use super::Ecmp;
use super::alike::Multiple;
use super::path::Share;
use crate::{Bandwidth, Picos};

/// More equal ways than this are not spread over: one of them is taken. Shares stay small exact fractions.
pub(super) const MOST_WAYS: u64 = 1 << 16;

/// A link of the layered graph; states are dense numbers, steps are in order of travel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub from: u32,
    pub to: u32,
    pub link: u32,
    /// How many links it stands for.
    pub multiple: Multiple,
    /// Distance of `from` from the source, in links.
    pub layer: u32,
    pub bandwidth: u64,
    pub latency: u64,
}

/// One link of a settled segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub link: u32,
    pub layer: u32,
    /// State at its start and its end, for walking one way.
    pub from: u32,
    pub to: u32,
    pub share: Share,
}

/// What was kept of equal ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kept {
    /// All.
    #[default]
    All,
    /// One, chosen by its links' numbers: there were more than [`MOST_WAYS`].
    One,
}

/// The way (or the equal ways) between two points, with links numbered as the search numbered them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    pub parts: Box<[Part]>,
    /// Number of links that one byte crosses.
    pub hops: u32,
    /// Number of equal ways.
    pub ways: u64,
    /// Smallest bandwidth on any one way; `u64::MAX` is unlimited.
    pub bandwidth: u64,
    /// Bandwidth that the flow reaches over all its ways together; `u64::MAX` is unlimited.
    pub rate: u64,
    pub latency: u64,
    pub kept: Kept,
}

impl Segment {
    /// From a point to itself.
    pub fn empty() -> Self {
        Self {
            parts: Box::default(),
            hops: 0,
            ways: 1,
            bandwidth: u64::MAX,
            rate: u64::MAX,
            latency: 0,
            kept: Kept::All,
        }
    }

    /// This segment and one that begins where it ends.
    pub fn followed_by(&self, next: &Self) -> Self {
        let (Some(last), Some(first)) = (self.parts.last(), next.parts.first()) else {
            return if self.parts.is_empty() { next.clone() } else { self.clone() };
        };
        // States keep apart: those of the second come after those of the first, but for the one that both have.
        let (ending, starting) = (last.layer, first.layer);
        let states = self.parts.iter().map(|part| part.from.max(part.to)).max().unwrap_or_default();
        let (meeting, beyond) = (states + 1, states + 2);
        let before =
            self.parts.iter().map(|part| Part { to: if part.layer == ending { meeting } else { part.to }, ..*part });
        let after = next.parts.iter().map(|part| Part {
            layer: part.layer + self.hops,
            from: if part.layer == starting { meeting } else { part.from + beyond },
            to: part.to + beyond,
            ..*part
        });
        Self {
            parts: before.chain(after).collect(),
            hops: self.hops + next.hops,
            ways: self.ways.saturating_mul(next.ways),
            bandwidth: self.bandwidth.min(next.bandwidth),
            rate: self.rate.min(next.rate),
            latency: self.latency.saturating_add(next.latency),
            kept: if self.kept == Kept::One { Kept::One } else { next.kept },
        }
    }

    /// The parts of one way, chosen at each fork by the greatest weight of a link; the weight may depend on which of
    /// several parallel links it is, counted among those that are left.
    pub fn one_way(&self, mut weight: impl FnMut(u32, u32) -> u64, mut visit: impl FnMut(u32)) {
        let mut state = None;
        let mut parts = &self.parts[..];
        while let Some(first) = parts.first() {
            let width = parts.iter().take_while(|part| part.layer == first.layer).count();
            let (layer, rest) = parts.split_at(width);
            let open: Vec<&Part> = layer.iter().filter(|part| state.is_none_or(|state| part.from == state)).collect();
            let weighed = open.iter().enumerate().map(|(place, part)| {
                let parallel = open.iter().take(place).filter(|other| other.to == part.to).count() as u32;
                (weight(part.link, parallel), std::cmp::Reverse(part.link), part.to)
            });
            if let Some((_, std::cmp::Reverse(link), to)) = weighed.max() {
                visit(link);
                state = Some(to);
            }
            parts = rest;
        }
    }
}

/// Bandwidth as the search compares it: unlimited is the greatest.
pub(super) fn comparable(bandwidth: Option<Bandwidth>) -> u64 {
    bandwidth.map_or(u64::MAX, |bandwidth| bandwidth.0)
}

/// The reverse of [`comparable`].
pub(super) fn stated(bandwidth: u64) -> Option<Bandwidth> {
    (bandwidth != u64::MAX).then_some(Bandwidth(bandwidth))
}

/// Latency as a quantity.
pub(super) fn picos(latency: u64) -> Picos {
    Picos(latency)
}

/// Keeps the best of the equal ways and shares the flow between them.
///
/// `steps` are in order of travel; `source` and `targets` are states; `weight` decides which way is taken where there
/// are more than [`MOST_WAYS`]. A flow that is hashed takes one of the ways: only the widest are kept for it. `None` where no
/// target is reached.
pub(super) fn settle(
    states: usize,
    source: u32,
    targets: &[u32],
    steps: &[Step],
    ecmp: Ecmp,
    mut weight: impl FnMut(u32, u32) -> u64,
) -> Option<Segment> {
    if let Some(single) = single_way(source, targets, steps) {
        return Some(single);
    }
    let mut widest = vec![0u64; states];
    *widest.get_mut(source as usize)? = u64::MAX;
    for step in steps {
        let through = widest[step.from as usize].min(step.bandwidth);
        let to = &mut widest[step.to as usize];
        *to = (*to).max(through);
    }
    let bandwidth = targets.iter().map(|&target| widest[target as usize]).max()?;
    let mut asked = vec![bandwidth];
    if ecmp == Ecmp::Averaged {
        asked.extend(steps.iter().map(|step| step.bandwidth).filter(|&other| other < bandwidth));
    }
    asked.sort_unstable_by_key(|&bandwidth| std::cmp::Reverse(bandwidth));
    asked.dedup();
    let mut best: Option<Segment> = None;
    for least in asked {
        let graph = Layered { states, source, targets };
        let Some(segment) = graph.spread(steps, least, &mut weight) else { continue };
        if best.as_ref().is_none_or(|best| segment.rate > best.rate) {
            best = Some(segment);
        }
    }
    best
}

/// The states of a layered graph, and where ways in it start and end.
struct Layered<'a> {
    states: usize,
    source: u32,
    targets: &'a [u32],
}

impl Layered<'_> {
    /// The flow over the soonest of the ways whose steps all have `least` bandwidth.
    fn spread(&self, steps: &[Step], least: u64, weight: impl FnMut(u32, u32) -> u64) -> Option<Segment> {
        let Self { states, source, targets } = *self;
        let wide: Vec<&Step> = steps.iter().filter(|step| step.bandwidth >= least).collect();
        let mut soonest = vec![u64::MAX; states];
        soonest[source as usize] = 0;
        for step in &wide {
            let through = soonest[step.from as usize].saturating_add(step.latency);
            let to = &mut soonest[step.to as usize];
            *to = (*to).min(through);
        }
        let latency = targets.iter().map(|&target| soonest[target as usize]).min()?;
        let on_time = |step: &&&Step| {
            let start = soonest[step.from as usize];
            start != u64::MAX && start.saturating_add(step.latency) == soonest[step.to as usize]
        };

        // Ways from a state to a target, then from the source to a state.
        let mut onward = vec![0u64; states];
        for &target in targets {
            onward[target as usize] = u64::from(soonest[target as usize] == latency);
        }
        for step in wide.iter().rev().filter(on_time) {
            let through = onward[step.to as usize].saturating_mul(step.multiple.out);
            onward[step.from as usize] = onward[step.from as usize].saturating_add(through);
        }
        let ways = onward[source as usize];
        let mut arrived = vec![0u64; states];
        arrived[source as usize] = 1;
        let mut parts: Vec<Part> = Vec::new();
        let mut bandwidth = u64::MAX;
        let mut rate = u64::MAX;
        let mut carried = Share::WHOLE;
        for step in wide.iter().filter(on_time).filter(|step| onward[step.to as usize] > 0) {
            let here = arrived[step.from as usize];
            if here == 0 {
                continue;
            }
            let to = &mut arrived[step.to as usize];
            *to = to.saturating_add(here.saturating_mul(step.multiple.into));
            let share = Share::new(here.saturating_mul(onward[step.to as usize]), ways).unwrap_or(Share::WHOLE);
            // Ways that differ only in what they have been through cross a link side by side.
            let again = parts.last().is_some_and(|last| (last.layer, last.link) == (step.layer, step.link));
            carried = if again { carried.plus(share) } else { share };
            bandwidth = bandwidth.min(step.bandwidth);
            rate = rate.min(if step.bandwidth == u64::MAX {
                u64::MAX
            } else {
                carried.whole_of(Bandwidth(step.bandwidth)).0
            });
            parts.push(Part { link: step.link, layer: step.layer, from: step.from, to: step.to, share });
        }
        let hops = steps.last()?.layer + 1;
        let segment = Segment { parts: parts.into(), hops, ways, bandwidth, rate, latency, kept: Kept::All };
        Some(if ways > MOST_WAYS { narrowed(&segment, weight) } else { segment })
    }
}

/// The usual case: one way, no choice.
fn single_way(source: u32, targets: &[u32], steps: &[Step]) -> Option<Segment> {
    let mut state = source;
    let mut segment = Segment::empty();
    let mut parts = Vec::with_capacity(steps.len());
    for (layer, step) in steps.iter().enumerate() {
        if step.layer as usize != layer || step.from != state || step.multiple != Multiple::ONE {
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

/// One way out of too many.
fn narrowed(segment: &Segment, weight: impl FnMut(u32, u32) -> u64) -> Segment {
    let mut chosen = Vec::new();
    segment.one_way(weight, |link| chosen.push(link));
    let mut chosen = chosen.into_iter().peekable();
    let mut parts = Vec::new();
    for part in &segment.parts {
        if chosen.next_if(|&link| link == part.link).is_some() {
            parts.push(Part { share: Share::WHOLE, ..*part });
        }
    }
    Segment { parts: parts.into(), ways: 1, rate: segment.bandwidth, kept: Kept::One, ..*segment }
}
