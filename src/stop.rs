//! Exit code and message of a run that a signal stopped.

use std::sync::atomic::{AtomicU8, Ordering};

/// Exit code after Ctrl-C: 128 + SIGINT, by shell convention.
pub const INTERRUPTED: u8 = 130;
/// Exit code after SIGTERM, which Slurm and Kubernetes send: 128 + SIGTERM.
pub const TERMINATED: u8 = 143;

/// Exit code of a run that is stopped, set by the last received signal.
static STOPPED: AtomicU8 = AtomicU8::new(INTERRUPTED);

/// Returns the exit code of a stopped run.
pub fn stop_exit_code() -> u8 {
    STOPPED.load(Ordering::Relaxed)
}

/// Returns the message on standard error for a stopped run.
pub fn stop_message() -> &'static str {
    if stop_exit_code() == TERMINATED { "terminated" } else { "interrupted" }
}

/// Sets the exit code of the signal that stops the run.
pub fn set_stop_exit_code(code: u8) {
    STOPPED.store(code, Ordering::Relaxed);
}
