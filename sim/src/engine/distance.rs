//! Distance by which a jump over whole periods of a steady state advances the engine.

use fabricast_topologies::Picos;

use super::costs::ChainCosts;

/// Number of skipped periods, their total time, and the costs that every open chain gains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distance {
    /// Number of periods that are skipped.
    pub periods: u32,
    pub time: Picos,
    pub costs: ChainCosts,
}
