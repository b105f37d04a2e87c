//! Ctrl-C while GPUs work: a flag that everything which waits looks at, so that what was taken is given back first.
//!
//! A process that ends at once leaves its GPUs in order too, since the driver takes everything back; child processes and
//! half-written files are what the flag is for. The command's handler asks [`request`]: where nobody [`heed`]s, or the
//! first request was not heeded in time, it ends the process.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static HEEDING: AtomicUsize = AtomicUsize::new(0);

/// What became of a request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// Someone looks at the flag and will stop.
    WillStop,
    /// Nobody does, or this was asked before: end the process.
    Nobody,
}

/// As long as it lives, its owner looks at the flag often and stops when it is set.
#[derive(Debug)]
pub struct Heed(());

/// From here on the caller looks at the flag.
pub fn heed() -> Heed {
    HEEDING.fetch_add(1, Ordering::Relaxed);
    Heed(())
}

impl Drop for Heed {
    fn drop(&mut self) {
        HEEDING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Asks whoever heeds to stop; for a signal handler.
pub fn request() -> Response {
    let again = REQUESTED.swap(true, Ordering::Relaxed);
    if again || HEEDING.load(Ordering::Relaxed) == 0 { Response::Nobody } else { Response::WillStop }
}

/// Whether someone asked to stop.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
