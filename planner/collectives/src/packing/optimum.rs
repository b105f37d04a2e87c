//! Optimal throughput: the rate at which every root can send to all terminals, and the cut that limits it.

use super::digraph::Digraph;
use super::requirement::{Requirement, Roots};
use crate::bound::cut::{CutRatio, Direction, Search};
use crate::bound::line::gcd;

/// Non-negative fraction, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    /// Numerator of the fraction.
    pub numerator: u128,
    /// Denominator of the fraction; at least 1.
    pub denominator: u128,
}

impl Ratio {
    /// Creates a fraction in lowest terms; a denominator of 0 counts as 1.
    #[must_use]
    pub fn new(numerator: u128, denominator: u128) -> Self {
        let divisor = gcd(numerator, denominator.max(1));
        Self { numerator: numerator / divisor, denominator: denominator.max(1) / divisor }
    }

    /// Sum of two fractions; `None` if it exceeds 128 bits.
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        let common = gcd(self.denominator, other.denominator);
        let (left, right) = (other.denominator / common, self.denominator / common);
        let numerator = self.numerator.checked_mul(left)?.checked_add(other.numerator.checked_mul(right)?)?;
        Some(Self::new(numerator, self.denominator.checked_mul(left)?))
    }

    /// Returns true if the fraction is larger than another; `None` if the products exceed 128 bits.
    #[must_use]
    pub fn is_above(self, other: Self) -> Option<bool> {
        Some(self.numerator.checked_mul(other.denominator)? > other.numerator.checked_mul(self.denominator)?)
    }

    /// Value as a floating-point number.
    #[must_use]
    pub fn value(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }
}

/// Optimal throughput of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Optimum {
    /// Rate at which each root can send, in units of capacity; 0 if some terminal cannot be reached.
    pub rate: Ratio,
    /// True for each vertex on the side of the limiting cut that sends.
    pub sending_side: Vec<bool>,
}

/// Finds the optimal throughput of a graph with at least two terminals: the minimum, over all cuts, of the capacity
/// through the cut divided by the number of roots on its sending side (Zhao et al., *ForestColl*, arXiv 2402.06787, §4).
pub(crate) fn optimum(graph: &Digraph, roots: Roots) -> Optimum {
    optimum_into(graph, roots, 0..graph.terminals())
}

/// Finds the lowest rate at which all roots can send to one of `receivers`: the optimal throughput if each terminal is like
/// one of them. The cut that limits it is valid in any case.
pub(crate) fn optimum_into(graph: &Digraph, roots: Roots, receivers: impl Iterator<Item = u32>) -> Optimum {
    let ranks = vec![1u32; graph.terminals() as usize];
    let arcs = graph.flow_arcs();
    match roots {
        Roots::All => {
            let mut search = Search::on_arcs(graph.vertices() as usize, &arcs, &ranks, Direction::Towards);
            let others = u128::from(graph.terminals()).saturating_sub(1);
            let ports = (0..graph.terminals()).map(|terminal| (search.port(terminal), terminal));
            let Some((through, narrowest)) = ports.min() else {
                return Optimum { rate: Ratio::new(0, 1), sending_side: Vec::new() };
            };
            // Switches on the way into the narrowest terminal are on the side of the minimum cut nearest to it.
            search.port(narrowest);
            let mut sending_side = search.far_side();
            let mut slowest = CutRatio { ranks: others, through };
            for terminal in receivers {
                if let Some(cut) = search.slowest_blocks(terminal, &mut slowest) {
                    sending_side = cut.vertices_beyond;
                }
            }
            Optimum { rate: Ratio::new(slowest.through, slowest.ranks), sending_side }
        }
        Roots::One(root) => {
            let mut search = Search::on_arcs(graph.vertices() as usize, &arcs, &ranks, Direction::Away);
            let mut through = crate::flow::UNLIMITED;
            let mut sending_side = vec![true; graph.vertices() as usize];
            for terminal in receivers.filter(|&terminal| terminal != root) {
                if let Some(cut) = search.minimum_cut(root, terminal, through) {
                    through = cut.through;
                    sending_side = cut.vertices_beyond.iter().map(|&beyond| !beyond).collect();
                }
            }
            Optimum { rate: Ratio::new(through, 1), sending_side }
        }
    }
}

/// Graph whose capacities count trees, with the trees to pack and the rate of one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScaledGraph {
    pub graph: Digraph,
    pub requirement: Requirement,
    /// Rate of a tree of one unit, in the capacity units of the original graph.
    pub unit: Ratio,
}

/// Scales a graph so that capacities and the trees per root at the optimal throughput are integers, as small as
/// possible. `None` if the rate is 0, the trees per root exceed `max_units` or capacities do not fit in 64 bits.
pub(crate) fn scale_to_optimum(graph: &Digraph, roots: Roots, rate: Ratio, max_units: u64) -> Option<ScaledGraph> {
    let Ratio { numerator, denominator } = rate;
    // Some terminal cannot be reached.
    if numerator == 0 {
        return None;
    }
    let unit = graph.arcs().fold(numerator, |unit, (_, _, capacity)| gcd(unit, u128::from(capacity) * denominator));
    let units = u64::try_from(numerator / unit).ok().filter(|&units| (1..=max_units).contains(&units))?;
    let scale = |capacity: u64| u64::try_from(u128::from(capacity) * denominator / unit).ok();
    graph.arcs().map(|arc| scale(arc.2)).collect::<Option<Vec<_>>>()?;
    Some(ScaledGraph {
        graph: graph.map(|capacity| scale(capacity).unwrap_or(0)),
        requirement: Requirement { roots, units },
        unit: Ratio::new(unit, denominator),
    })
}

/// Scales a graph to the highest rate at which `units` trees per root exist, each at a whole rate in the units of the
/// graph's capacities. `None` if they do not exist at `min_percent` of the optimal rate, or not even at the rate 1.
///
/// A tree per root uses a whole number of trees of each arc, so a capacity c carries ⌊c / rate⌋ of them. Rates are found
/// by bisection; rounding to whole rates loses less than one unit of capacity per tree.
pub(crate) fn scale_to_units(
    graph: &Digraph,
    roots: Roots,
    rate: Ratio,
    units: u64,
    min_percent: u128,
) -> Option<ScaledGraph> {
    let requirement = Requirement { roots, units };
    let at = |rate: u64| graph.map(|capacity| capacity / rate);
    let exists = |rate: u64| requirement.deficit_below(&at(rate), 1) == 0;
    let highest = rate.numerator / (rate.denominator * u128::from(units.max(1)));
    let lowest = rate.numerator * min_percent / (rate.denominator * u128::from(units.max(1)) * 100);
    let (mut low, mut high) =
        (u64::try_from(lowest).ok()?, u64::try_from(highest).unwrap_or(u64::MAX).saturating_add(1));
    if low > 0 && !exists(low) {
        return None;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if exists(middle) { low = middle } else { high = middle }
    }
    (low > 0).then(|| ScaledGraph { graph: at(low), requirement, unit: Ratio::new(low.into(), 1) })
}
