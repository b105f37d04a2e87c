//! Watchdog for calls that do not return. Waits for a stream have a timeout. A library call can also block the host
//! thread while it waits for another rank (NCCL connects its ranks in the first call of a kind). Such a call cannot be
//! interrupted, so the watchdog ends the process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fabricast_validate::cuda::{self, Stream};
use fabricast_validate::execute::{ExecuteError, Executor};

use crate::failure::Failure;

/// Poll interval for calls that exceed the time limit.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Exit code after a call that exceeds the time limit.
const FAILED: u8 = 1;

/// Executor that records the rank and the start time of each call in progress.
pub(super) struct WatchedExecutor<'a> {
    executor: &'a dyn Executor,
    start: Instant,
    /// Start of the current call of each member: milliseconds since `start`, plus 1; 0 outside calls.
    inside: Vec<AtomicU64>,
}

impl<'a> WatchedExecutor<'a> {
    /// Runs `work` with a watched executor. If a call exceeds `limit`, the process reports the rank and the call, and
    /// exits.
    pub(super) fn run<T>(
        executor: &'a dyn Executor,
        members: usize,
        limit: Duration,
        label: &str,
        work: impl FnOnce(&Self) -> T,
    ) -> T {
        let watched =
            Self { executor, start: Instant::now(), inside: (0..members).map(|_| AtomicU64::new(0)).collect() };
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) {
                    let stuck = watched.overdue_members(limit);
                    if !stuck.is_empty() {
                        let ranks = stuck.iter().map(|rank| format!("rank {rank}")).collect::<Vec<_>>().join(", ");
                        let seconds = limit.as_secs();
                        crate::failure_report::report(&Failure::Failed(format!(
                            "{label}: a call did not return for {seconds} s: {ranks}"
                        )));
                        cuda::exit_immediately(FAILED);
                    }
                    thread::park_timeout(POLL_INTERVAL);
                }
            });
            let result = work(&watched);
            is_done.store(true, Ordering::Release);
            watcher.thread().unpark();
            result
        })
    }

    fn overdue_members(&self, limit: Duration) -> Vec<usize> {
        let now = self.start.elapsed();
        let is_stuck = |since: &AtomicU64| match since.load(Ordering::Relaxed) {
            0 => false,
            since => now.saturating_sub(Duration::from_millis(since - 1)) > limit,
        };
        self.inside.iter().enumerate().filter(|(_, since)| is_stuck(since)).map(|(rank, _)| rank).collect()
    }
}

impl Executor for WatchedExecutor<'_> {
    fn enqueue(&self, member: usize, stream: &Stream) -> Result<(), ExecuteError> {
        let set_start = |value: u64| {
            if let Some(since) = self.inside.get(member) {
                since.store(value, Ordering::Relaxed);
            }
        };
        set_start(self.start.elapsed().as_millis() as u64 + 1);
        let result = self.executor.enqueue(member, stream);
        set_start(0);
        result
    }

    fn waiting(&self, member: usize) -> String {
        self.executor.waiting(member)
    }

    fn timed_out_waits(&self) -> Vec<String> {
        self.executor.timed_out_waits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_in_an_overlong_call_is_named() {
        struct Nothing;
        impl Executor for Nothing {
            fn enqueue(&self, _: usize, _: &Stream) -> Result<(), ExecuteError> {
                Ok(())
            }
        }
        let inside = vec![AtomicU64::new(0), AtomicU64::new(1)];
        let begun = Instant::now().checked_sub(Duration::from_secs(5)).unwrap_or_else(Instant::now);
        let watched = WatchedExecutor { executor: &Nothing, start: begun, inside };
        assert_eq!(watched.overdue_members(Duration::from_secs(3)), [1]);
        assert!(watched.overdue_members(Duration::from_secs(60)).is_empty());
    }
}
