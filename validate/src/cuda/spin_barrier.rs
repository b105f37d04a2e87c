//! Spin barrier for host threads. Threads leave the barrier within a microsecond of each other. The barrier can be
//! broken, so that no thread waits for a failed one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::error::CudaError;
use super::watchdog::Watchdog;

/// Number of spins between two checks of the time limit.
const SPINS_PER_CLOCK_CHECK: u32 = 1 << 12;

/// A barrier that can be broken.
#[derive(Debug)]
pub(super) struct SpinBarrier {
    size: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
    broken: AtomicBool,
}

impl SpinBarrier {
    pub(super) fn new(size: usize) -> Self {
        Self { size, arrived: AtomicUsize::new(0), round: AtomicUsize::new(0), broken: AtomicBool::new(false) }
    }

    /// Releases all current and future waiters with an error.
    pub(super) fn break_up(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// Waits until all threads have arrived.
    ///
    /// # Errors
    /// Another thread failed, the time limit expired, or Ctrl-C was pressed.
    pub(super) fn wait(&self, watchdog: &Watchdog, waiter: &str) -> Result<(), CudaError> {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.size {
            self.arrived.store(0, Ordering::Release);
            self.round.store(round.wrapping_add(1), Ordering::Release);
            return if self.broken.load(Ordering::Acquire) { Err(CudaError::Abandoned) } else { Ok(()) };
        }
        let clock = watchdog.start();
        let mut spins = 0_u32;
        while self.round.load(Ordering::Acquire) == round {
            if self.broken.load(Ordering::Acquire) {
                return Err(CudaError::Abandoned);
            }
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(SPINS_PER_CLOCK_CHECK) {
                clock.check(|| vec![format!("{waiter}, for the other GPUs' threads")])?;
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}
