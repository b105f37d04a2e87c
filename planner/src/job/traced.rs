//! A job that was written down: a trace, timed as it stands.
//!
//! Its ranks are those of the trace, and its kernels take what the trace says, on every machine: what differs are calls. A machine with
//! fewer GPUs cannot run it; on one with more the rest have nothing to do.

use std::sync::Arc;

use super::{Collectives, Places};
use crate::trace::Trace;

/// A job from a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// Its name.
    pub name: String,
    /// The file as the study names it.
    pub file: String,
    /// What happens.
    pub trace: Arc<Trace>,
    /// What calls may be done by.
    pub collectives: Collectives,
    /// What the job counts for among others, over 0.
    pub weight: f64,
    /// Where it stands.
    pub places: Places,
}
