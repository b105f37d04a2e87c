//! Team of host threads, one per GPU, that run the same work and synchronize at barriers.

use std::sync::Arc;

use super::context::Context;
use super::error::CudaError;
use super::spin_barrier::SpinBarrier;
use super::watchdog::Watchdog;

/// A member of a team: a thread, or a process, that drives a GPU.
#[derive(Debug)]
pub struct Member<'a> {
    /// Rank of the member in the team, from 0.
    pub rank: usize,
    /// Number of members of the team.
    pub size: usize,
    /// Context of the member's GPU. Several members may share a GPU.
    pub context: &'a Arc<Context>,
    /// Time limit of each wait of the member.
    pub watchdog: &'a Watchdog,
    barrier: Barrier<'a>,
}

/// Barrier of a team.
enum Barrier<'a> {
    /// Barrier between threads of one process.
    Gate(&'a SpinBarrier),
    /// Barrier supplied by the caller, such as one between processes.
    External(&'a dyn Fn() -> Result<(), CudaError>),
}

impl std::fmt::Debug for Barrier<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Gate(_) => "Gate",
            Self::External(_) => "External",
        })
    }
}

impl<'a> Member<'a> {
    /// Creates a member of a team of processes. `wait` is the barrier: it must return when all members have called it.
    pub fn for_process(
        rank: usize,
        size: usize,
        context: &'a Arc<Context>,
        watchdog: &'a Watchdog,
        wait: &'a dyn Fn() -> Result<(), CudaError>,
    ) -> Self {
        Self { rank, size, context, watchdog, barrier: Barrier::External(wait) }
    }

    /// Waits until all members have arrived. Threads leave within about a microsecond of each other if each has a core.
    ///
    /// # Errors
    /// Another member failed, the time limit expired, or Ctrl-C was pressed.
    pub fn barrier(&self) -> Result<(), CudaError> {
        match self.barrier {
            Barrier::Gate(gate) => gate.wait(self.watchdog, &format!("rank {}", self.rank)),
            Barrier::External(wait) => wait(),
        }
    }
}

/// Runs `work` in one thread per context, with this context current, and returns the results by rank. If a member
/// fails, the others are released at their next barrier.
///
/// # Errors
/// The first failure, by rank, that is not the consequence of another member's failure.
pub fn run<T, E>(
    contexts: &[Arc<Context>],
    watchdog: &Watchdog,
    work: impl Fn(&Member<'_>) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E>
where
    T: Send,
    E: From<CudaError> + Send + Consequence,
{
    let gate = SpinBarrier::new(contexts.len());
    let (gate, work, size) = (&gate, &work, contexts.len());
    let results: Vec<Result<T, E>> = std::thread::scope(|scope| {
        let start = |(rank, context): (usize, &Arc<Context>)| {
            let context = Arc::clone(context);
            scope.spawn(move || {
                let _guard = BreakOnExit { gate };
                let member = Member { rank, size, context: &context, watchdog, barrier: Barrier::Gate(gate) };
                let result = context.bind().map_err(E::from).and_then(|()| work(&member));
                if result.is_ok() {
                    std::mem::forget(_guard);
                }
                result
            })
        };
        let threads: Vec<_> = contexts.iter().enumerate().map(start).collect();
        // A thread that panicked counts as failed; the panic message is on standard error.
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(CudaError::Abandoned.into()))).collect()
    });
    let mut consequence = None;
    let mut values = Vec::with_capacity(size);
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(error) if error.is_consequence() => consequence = consequence.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    consequence.map_or(Ok(values), Err)
}

/// Errors that may only be a consequence of another thread's failure.
pub trait Consequence {
    /// Returns true if the error only reports that another thread failed.
    fn is_consequence(&self) -> bool;
}

impl Consequence for CudaError {
    fn is_consequence(&self) -> bool {
        matches!(self, Self::Abandoned)
    }
}

/// Guard that breaks the barrier if a member ends with an error or a panic.
struct BreakOnExit<'a> {
    gate: &'a SpinBarrier,
}

impl Drop for BreakOnExit<'_> {
    fn drop(&mut self) {
        self.gate.break_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn broken_gate_releases_waiters() {
        let gate = SpinBarrier::new(2);
        let watchdog = Watchdog::new(Duration::from_secs(60));
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.wait(&watchdog, "rank 0"));
            gate.break_up();
            waiting.join().unwrap()
        });
        assert_eq!(waiting, Err(CudaError::Abandoned));
    }

    #[test]
    fn gate_is_reusable_and_opens_when_all_arrive() {
        let gate = SpinBarrier::new(3);
        let watchdog = Watchdog::new(Duration::from_secs(60));
        let passed = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 0..100 {
                        passed.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        gate.wait(&watchdog, "someone").unwrap();
                        assert!(passed.load(std::sync::atomic::Ordering::SeqCst) >= 3 * (round + 1));
                    }
                });
            }
        });
    }

    #[test]
    fn incomplete_gate_ends_by_watchdog() {
        let gate = SpinBarrier::new(2);
        let error = gate.wait(&Watchdog::new(Duration::from_millis(1)), "rank 1").unwrap_err();
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
}
