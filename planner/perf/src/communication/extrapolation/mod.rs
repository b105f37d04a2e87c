//! Extrapolation of the completion time of large calls from simulations of smaller ones. Each file contains the
//! arithmetic of one method. Methods use neither simulations nor caches; they time smaller calls with a function that
//! the caller passes. `timing_method` selects the method.

pub(super) mod busiest_link;
pub(super) mod near_size;
pub(super) mod rank_scaling;
pub(super) mod scaling_law;
pub(super) mod size_sampling;
