//! Limits of prices and other values of a study.

/// Minimum valid price, power or count.
pub(super) const MIN_VALUE: f64 = 1e-6;

/// Maximum valid price or budget, in the study's currency. It exceeds the total price of all existing machines.
pub(super) const MAX_PRICE: f64 = 1e12;
