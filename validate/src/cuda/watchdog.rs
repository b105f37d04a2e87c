//! Waits with a time limit. A wait that exceeds the limit returns an error that names the waiting operations. Ctrl-C
//! ends a wait as well.

use std::time::{Duration, Instant};

use super::error::CudaError;
use super::interrupt;
use super::progress::Progress;
use super::stream::Stream;

/// Duration for which a wait polls continuously before it sleeps between polls; longer than an ordinary collective.
const BUSY_POLL_DURATION: Duration = Duration::from_millis(50);
/// Poll interval of a wait after [`BUSY_POLL_DURATION`].
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Time limit of every single wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    limit: Duration,
}

impl Watchdog {
    /// Creates a watchdog with the limit of a single wait.
    pub const fn new(limit: Duration) -> Self {
        Self { limit }
    }

    /// Starts a wait for a condition other than the end of a stream. The caller polls [`Deadline::check`].
    pub fn start(&self) -> Deadline {
        Deadline { since: Instant::now(), limit: self.limit }
    }

    /// Waits until all streams are done. Each stream comes with a description of its work, for the error. When the
    /// limit expires or Ctrl-C is pressed, the contexts of unfinished streams are [abandoned](super::Context::abandon),
    /// because freeing their resources would block.
    ///
    /// # Errors
    /// [`CudaError::Hang`], [`CudaError::Interrupted`], or a failure of the work of a stream.
    pub fn wait(&self, streams: &[(&Stream, &dyn Fn() -> String)]) -> Result<(), CudaError> {
        let clock = self.start();
        let mut left: Vec<_> = streams.iter().collect();
        loop {
            let mut pending = Vec::with_capacity(left.len());
            for entry in left {
                if entry.0.progress()? == Progress::Pending {
                    pending.push(entry);
                }
            }
            left = pending;
            if left.is_empty() {
                return Ok(());
            }
            if let Err(error) = clock.check(|| left.iter().map(|(_, name)| name()).collect()) {
                left.iter().for_each(|(stream, _)| stream.context().abandon());
                return Err(error);
            }
            if clock.since.elapsed() < BUSY_POLL_DURATION {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }

    /// Waits until one stream is done. `description` describes the work of the stream, for the error.
    ///
    /// # Errors
    /// Errors of [`Watchdog::wait`].
    pub fn wait_for(&self, stream: &Stream, description: &dyn Fn() -> String) -> Result<(), CudaError> {
        self.wait(&[(stream, description)])
    }
}

/// A wait in progress, with its start and its time limit.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    since: Instant,
    limit: Duration,
}

impl Deadline {
    /// Returns an error if the wait must end; the caller calls it at every poll.
    ///
    /// # Errors
    /// [`CudaError::Hang`] with `waiting` when the limit has expired; [`CudaError::Interrupted`] after Ctrl-C.
    pub fn check(&self, waiting: impl FnOnce() -> Vec<String>) -> Result<(), CudaError> {
        if interrupt::is_requested() {
            return Err(CudaError::Interrupted);
        }
        if self.since.elapsed() >= self.limit {
            return Err(CudaError::Hang { limit: self.limit, waiting: waiting() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_limit_names_waiting_operations() {
        let clock = Watchdog::new(Duration::ZERO).start();
        let error = clock.check(|| vec!["rank 3, operation 7".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("rank 3, operation 7"), "{error}");
        assert!(Watchdog::new(Duration::from_secs(60)).start().check(Vec::new).is_ok());
    }
}
