//! Trees over which every root sends a separate block to each rank, or receives one from each: all_to_all, scatter and
//! gather. A link from a parent to a child carries the blocks of all ranks below it.
//!
//! ```text
//! Routes ─► network: edges between ranks, with the links of each
//!             └► shortest_trees: tree of the shortest paths, for given prices of links
//!                  └► linear_program: trees with rates ─► rounding: trees with units
//! ```
//!
//! The fastest way to move all blocks is a multicommodity flow: rates on paths, of which no link carries more than its
//! bandwidth. The paths of one root form trees, so that its flow is a mixture of spanning trees. A linear program finds
//! the mixture of the shortest time of the busiest link. By duality, prices of links prove that no mixture is faster: the
//! price of all bandwidth, times the time, is at least the sum over all blocks of the price of their cheapest path
//! (Shahrokhi & Matula, *The maximum concurrent flow problem*, J. ACM 1990).

mod linear_program;
mod network;
mod rounding;
mod shortest_trees;
#[cfg(test)]
mod tests;

pub(super) use network::Network;

use super::forest::Forest;
use super::optimum::Ratio;
use super::packer::PackingError;
use super::variant::TreeVariant;
use linear_program::{Mixture, Objective, solve};
use rounding::Division;

/// Trees with their lower bound.
#[derive(Clone, Debug)]
pub(super) struct PersonalisedForest {
    pub forest: Forest,
    /// Prices of links that prove the bound, by number of the link in the network.
    pub prices: Vec<u64>,
    /// Time that no mixture of trees is below, in seconds per byte of the call.
    pub lower: Ratio,
}

/// Finds trees of a variant.
///
/// # Errors
/// [`PackingError::Disconnected`] if a root cannot reach some rank, [`PackingError::NoMixture`] if the program has no
/// solution in floating point, [`PackingError::TooManyPaths`] if exact shares of paths exceed 128 bits.
pub(super) fn trees(network: &Network, variant: TreeVariant) -> Result<PersonalisedForest, PackingError> {
    if let Some(rank) = network.unreachable() {
        return Err(PackingError::Disconnected { rank });
    }
    let fastest = solve(network, Objective::ShortestTime).ok_or(PackingError::NoMixture)?;
    let prices = network.integer_prices(&fastest.prices);
    let lower = network.proven_time(&prices).ok_or(PackingError::TooManyPaths)?;
    let time = lower.value() / network.block_time() * f64::from(variant.widening());
    let mixture = match variant.widening() {
        1 => fastest,
        _ => solve(network, Objective::FewestHops { time }).ok_or(PackingError::NoMixture)?,
    };
    let forest = match variant {
        TreeVariant::AtMost(units) => Division::new(network, &mixture, units).forest(),
        TreeVariant::Optimal | TreeVariant::Widened(_) => few_units(network, &mixture, time),
    };
    Ok(PersonalisedForest { forest, prices, lower })
}

/// Numbers of units of a block up to this one are all tried.
const FEW_UNITS: u32 = 64;

/// Larger numbers of units, which few fabrics need: links of very unequal bandwidth.
const MANY_UNITS: [u32; 4] = [96, 128, 192, 256];

/// Share by which trees of whole units may exceed the time of the best mixture. The first number of units with which they
/// do not is used, because the number of messages grows with it.
const MAX_ROUNDING_LOSS: f64 = 0.01;

/// Divides blocks into as few units as a time of the busiest link nearly permits.
fn few_units(network: &Network, mixture: &Mixture, time: f64) -> Forest {
    let mut best = Division::new(network, mixture, 1);
    for units in (2..=FEW_UNITS).chain(MANY_UNITS) {
        if best.time() <= time * (1.0 + MAX_ROUNDING_LOSS) {
            break;
        }
        let division = Division::new(network, mixture, units);
        if division.time() < best.time() {
            best = division;
        }
    }
    best.forest()
}
