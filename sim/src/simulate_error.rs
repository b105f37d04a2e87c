//! Errors of simulations.

use crate::engine::EngineError;
use crate::lower::LowerError;

/// Reasons why a schedule could not be simulated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SimulateError {
    /// There is no schedule to run.
    #[error("no schedule to run")]
    NoParties,
    /// The schedule does not fit the fabric.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The simulation did not complete.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl SimulateError {
    /// Returns true if the schedule has too many operations or runs to simulate.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Engine(EngineError::TooManyOperations { .. }) | Self::Lower(LowerError::TooLarge(_)))
    }

    /// Returns true if two ranks that exchange data have no path.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Lower(LowerError::Unreachable(_)))
    }

    /// Returns true if the run was interrupted.
    #[must_use]
    pub fn is_interrupt(&self) -> bool {
        matches!(self, Self::Engine(EngineError::Interrupted))
    }
}
