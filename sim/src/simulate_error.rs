//! Errors of simulations.

use crate::engine::EngineError;
use crate::lower::LowerError;

/// Reasons why a schedule could not be simulated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SimulateError {
    /// No schedule was given.
    #[error("no schedule to run")]
    NoParties,
    /// The schedule cannot run on the fabric.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The engine could not complete the simulation.
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
