//! Extrapolation of the completion time of large calls from simulations of smaller ones. Each file has the arithmetic
//! of one method and knows neither simulation nor caches: the smaller calls are timed by a function that it is given.
//! `timing_method` decides which method applies.

pub(super) mod busiest_link;
pub(super) mod near_size;
pub(super) mod rank_scaling;
pub(super) mod scaling_law;
pub(super) mod size_sampling;
