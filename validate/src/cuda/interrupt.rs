//! Ctrl-C handling while GPUs work: a flag that every wait polls, so that resources are released before the process
//! ends.
//!
//! A process that ends immediately also leaves its GPUs in order, because the driver frees all resources. The flag
//! protects child processes and partly written files. The command's signal handler calls [`request`] and ends the
//! process if nobody [`start_polling`]s, or if Ctrl-C is repeated.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static POLLERS: AtomicUsize = AtomicUsize::new(0);

/// Response to a request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// The flag is being polled; the work will stop.
    WillStop,
    /// Nobody polls the flag, or the request is a repetition: the caller should end the process.
    Nobody,
}

/// Guard whose owner polls the flag and stops its work when the flag is set.
#[derive(Debug)]
pub struct InterruptGuard(());

/// Registers the caller as polling the flag, until the guard is dropped.
pub fn start_polling() -> InterruptGuard {
    POLLERS.fetch_add(1, Ordering::Relaxed);
    InterruptGuard(())
}

impl Drop for InterruptGuard {
    fn drop(&mut self) {
        POLLERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sets the flag that requests a stop. Safe to call from a signal handler.
pub fn request() -> Response {
    let again = REQUESTED.swap(true, Ordering::Relaxed);
    if again || POLLERS.load(Ordering::Relaxed) == 0 { Response::Nobody } else { Response::WillStop }
}

/// Returns true if a stop was requested.
pub fn is_requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
