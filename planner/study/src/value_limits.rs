//! Limits of prices and other values of a study.

/// Smallest valid price, power or count.
pub(super) const MIN_VALUE: f64 = 1e-6;

/// Largest valid price or budget, in the study's currency: more than all existing machines.
pub(super) const MAX_PRICE: f64 = 1e12;
