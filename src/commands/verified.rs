//! Schedules that are verified before anything is made of them: they are run, priced or written only once they are proved to compute
//! their collective, or where `--no-verify` asks for that.

use std::path::Path;

use fabricast_sim::schedule::Schedule;
use fabricast_sim::verify::{Fault, FaultKind, VerifyOptions, verify};
use fabricast_topologies::Bytes;

use crate::args::VerifyArgs;
use crate::failure::Failure;

/// The note on a schedule that is used as it is.
pub const NOT_VERIFIED: &str = "not verified (--no-verify)";

/// A schedule of a file, of calls of `bytes` where that is given.
///
/// # Errors
/// [`Failure`]: it cannot be read, or is wrong.
pub fn read(path: &Path, bytes: Option<Bytes>, flags: &VerifyArgs) -> Result<Schedule, Failure> {
    let schedule = super::schedule::read(path)?.scaled(bytes);
    check(&schedule, flags)?;
    Ok(schedule)
}

/// Verifies a schedule, unless that is switched off.
///
/// # Errors
/// [`Failure`]: the first operation that breaks; too many operations to verify.
pub fn check(schedule: &Schedule, flags: &VerifyArgs) -> Result<(), Failure> {
    if flags.no_verify {
        return Ok(());
    }
    let verified = verify(schedule, &VerifyOptions::default());
    verified.map(|_| ()).map_err(|fault| failure(&fault).or_help("--no-verify takes it as it is"))
}

/// A wrong schedule ends the command with 1; one that is too large to verify is refused.
pub fn failure(fault: &Fault) -> Failure {
    match fault.kind {
        FaultKind::TooLarge => Failure::input(fault.to_string()),
        _ => Failure::Failed(format!("the schedule is wrong: {fault}")),
    }
}
