//! Verification of schedules before use. A schedule is run, timed or written only after the proof that it computes its
//! collective, unless `--no-verify` is given.

use std::path::Path;

use fabricast_sim::schedule::Schedule;
use fabricast_sim::verify::{Fault, FaultKind, VerifyOptions, verify};
use fabricast_topologies::Bytes;

use crate::args::VerifyArgs;
use crate::failure::Failure;

/// Note on a schedule that was not verified.
pub const NOT_VERIFIED: &str = "not verified (--no-verify)";

/// Reads and verifies a schedule file, and scales it to calls of `bytes` if given.
///
/// # Errors
/// [`Failure`]: the file cannot be read, or the schedule is wrong.
pub fn read(path: &Path, bytes: Option<Bytes>, flags: &VerifyArgs) -> Result<Schedule, Failure> {
    let schedule = super::schedule_file::read(path)?.with_bytes(bytes);
    check(&schedule, flags).map_err(|failure| failure.with_file(path))?;
    Ok(schedule)
}

/// Verifies a schedule, unless `--no-verify` is given.
///
/// # Errors
/// [`Failure`]: the first operation that breaks the proof, or too many operations to verify.
pub fn check(schedule: &Schedule, flags: &VerifyArgs) -> Result<(), Failure> {
    if flags.no_verify {
        return Ok(());
    }
    let verified = verify(schedule, &VerifyOptions::default());
    verified.map(|_| ()).map_err(|fault| failure(&fault).or_with_help("--no-verify accepts it as it is"))
}

/// Failure of a verification: exit code 1 for a wrong schedule, an input error for one that is too large to verify.
pub fn failure(fault: &Fault) -> Failure {
    match fault.kind {
        FaultKind::TooLarge => Failure::input(fault.to_string()),
        _ => Failure::Failed(format!("the schedule is wrong: {fault}")),
    }
}
