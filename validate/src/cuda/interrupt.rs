//! Ctrl-C handling while GPUs work. Every wait polls a flag, so that resources are released before the process ends.
//!
//! Even if a process ends immediately, the driver frees all GPU resources. The flag serves to end child processes and
//! to avoid partly written files. The command's signal handler calls [`request`]. It ends the process if no
//! [`InterruptGuard`] exists ([`start_polling`]), or if Ctrl-C is pressed again.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static POLLERS: AtomicUsize = AtomicUsize::new(0);

/// Response to a request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// The flag is being polled; the work will stop.
    WillStop,
    /// No code polls the flag, or the stop was requested before: the caller should end the process.
    Nobody,
}

/// Guard that registers its owner as polling the flag. The owner stops its work when the flag is set.
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
