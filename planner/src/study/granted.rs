//! What a job's figures take for granted on a machine: what a fabric leaves open, or a job asks for that there is not.

use crate::job::{Collectives, Job};
use crate::step::Machine;

/// Each a sentence without its end, that holds of all candidates of which it is said.
pub(super) fn taken_for_granted(job: &Job, machine: &Machine<'_>) -> Vec<String> {
    other_library(job, machine).into_iter().collect()
}

/// Calls keep to a library that does not run there.
fn other_library(job: &Job, machine: &Machine<'_>) -> Option<String> {
    let library = machine.simulated.library_not_for_these().filter(|_| job.collectives() == Collectives::Library)?;
    Some(format!(
        "{library} does not run on these GPUs, and what their own library would do is not known: calls take the fastest way that there is"
    ))
}
