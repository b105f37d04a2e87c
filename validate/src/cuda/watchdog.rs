//! Waiting with a limit: what does not end in time is an error that names who was waiting, and Ctrl-C ends it too.

use std::time::{Duration, Instant};

use super::error::CudaError;
use super::interrupt;
use super::stream::{Progress, Stream};

/// How long a wait keeps a core busy before it sleeps between looks: longer than a collective of ordinary size takes.
const EAGER: Duration = Duration::from_millis(50);
/// How long it sleeps between looks from then on.
const NAP: Duration = Duration::from_micros(200);

/// How long anything may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    limit: Duration,
}

impl Watchdog {
    /// Each wait may take `limit`.
    pub const fn new(limit: Duration) -> Self {
        Self { limit }
    }

    /// Begins to wait for something other than streams; look at [`Clock::check`] now and then.
    pub fn start(&self) -> Clock {
        Clock { since: Instant::now(), limit: self.limit }
    }

    /// Waits until all streams are done. Each comes with words that say what runs there, for the error. Where time runs
    /// out, contexts of streams that hang are [abandoned](super::Context::abandon), or freeing what belongs to them
    /// would wait forever.
    ///
    /// # Errors
    /// [`CudaError::Hang`], [`CudaError::Interrupted`], or what went wrong on a stream.
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
            if clock.since.elapsed() < EAGER { std::hint::spin_loop() } else { std::thread::sleep(NAP) }
        }
    }

    /// Waits for one stream.
    ///
    /// # Errors
    /// As [`Watchdog::wait`].
    pub fn wait_for(&self, stream: &Stream, what: &dyn Fn() -> String) -> Result<(), CudaError> {
        self.wait(&[(stream, what)])
    }
}

/// A wait that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    since: Instant,
    limit: Duration,
}

impl Clock {
    /// Whether to go on waiting.
    ///
    /// # Errors
    /// [`CudaError::Hang`] with `waiting` when the time is over; [`CudaError::Interrupted`] after Ctrl-C.
    pub fn check(&self, waiting: impl FnOnce() -> Vec<String>) -> Result<(), CudaError> {
        if interrupt::requested() {
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
    fn time_that_is_over_names_who_waits() {
        let clock = Watchdog::new(Duration::ZERO).start();
        let error = clock.check(|| vec!["rank 3, operation 7".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("rank 3, operation 7"), "{error}");
        assert!(Watchdog::new(Duration::from_secs(60)).start().check(Vec::new).is_ok());
    }
}
