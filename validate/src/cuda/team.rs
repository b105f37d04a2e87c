//! Team of host threads, one per GPU, that run the same work and synchronize at barriers.

use std::sync::Arc;

use super::context::Context;
use super::error::CudaError;
use super::gate::Gate;
use super::watchdog::Watchdog;

/// A thread of a team.
#[derive(Debug)]
pub struct Member<'a> {
    /// Rank in the team.
    pub rank: usize,
    /// Number of members.
    pub size: usize,
    /// Context of the member's GPU. Several members may share a GPU.
    pub context: &'a Arc<Context>,
    /// Time limit for every wait.
    pub watchdog: &'a Watchdog,
    place: Place<'a>,
}

/// Barrier of a team.
enum Place<'a> {
    /// Barrier between threads of one process.
    Gate(&'a Gate),
    /// Barrier supplied by the caller, such as one between processes.
    Elsewhere(&'a dyn Fn() -> Result<(), CudaError>),
}

impl std::fmt::Debug for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Gate(_) => "Gate",
            Self::Elsewhere(_) => "Elsewhere",
        })
    }
}

impl<'a> Member<'a> {
    /// Creates a member of a team of processes. `meet` must return when all members have called it.
    pub fn apart(
        rank: usize,
        size: usize,
        context: &'a Arc<Context>,
        watchdog: &'a Watchdog,
        meet: &'a dyn Fn() -> Result<(), CudaError>,
    ) -> Self {
        Self { rank, size, context, watchdog, place: Place::Elsewhere(meet) }
    }

    /// Waits until all members have arrived. They leave within about a microsecond of each other if each has a core.
    ///
    /// # Errors
    /// Another member failed, the time limit expired, or Ctrl-C.
    pub fn meet(&self) -> Result<(), CudaError> {
        match self.place {
            Place::Gate(gate) => gate.meet(self.watchdog, &format!("rank {}", self.rank)),
            Place::Elsewhere(meet) => meet(),
        }
    }
}

/// Runs `work` in one thread per context, with that context current, and returns the results by rank. If a member
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
    let gate = Gate::new(contexts.len());
    let (gate, work, size) = (&gate, &work, contexts.len());
    let results: Vec<Result<T, E>> = std::thread::scope(|scope| {
        let start = |(rank, context): (usize, &Arc<Context>)| {
            let context = Arc::clone(context);
            scope.spawn(move || {
                let _guard = BreakOnExit { gate };
                let member = Member { rank, size, context: &context, watchdog, place: Place::Gate(gate) };
                let result = context.bind().map_err(E::from).and_then(|()| work(&member));
                if result.is_ok() {
                    std::mem::forget(_guard);
                }
                result
            })
        };
        let threads: Vec<_> = contexts.iter().enumerate().map(start).collect();
        // A thread that panicked counts as failed; its message is on standard error.
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(CudaError::Abandoned.into()))).collect()
    });
    let mut consequence = None;
    let mut made = Vec::with_capacity(size);
    for result in results {
        match result {
            Ok(value) => made.push(value),
            Err(error) if error.is_consequence() => consequence = consequence.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    consequence.map_or(Ok(made), Err)
}

/// Errors that may only be the consequence of another thread's failure.
pub trait Consequence {
    /// Returns true if the error only reports that another thread failed.
    fn is_consequence(&self) -> bool;
}

impl Consequence for CudaError {
    fn is_consequence(&self) -> bool {
        matches!(self, Self::Abandoned)
    }
}

/// Breaks the gate if a member ends without success, by an error or a panic.
struct BreakOnExit<'a> {
    gate: &'a Gate,
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
        let gate = Gate::new(2);
        let watchdog = Watchdog::new(Duration::from_secs(60));
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.meet(&watchdog, "rank 0"));
            gate.break_up();
            waiting.join().unwrap()
        });
        assert_eq!(waiting, Err(CudaError::Abandoned));
    }

    #[test]
    fn gate_is_reusable_and_opens_when_all_arrive() {
        let gate = Gate::new(3);
        let watchdog = Watchdog::new(Duration::from_secs(60));
        let passed = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 0..100 {
                        passed.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        gate.meet(&watchdog, "someone").unwrap();
                        assert!(passed.load(std::sync::atomic::Ordering::SeqCst) >= 3 * (round + 1));
                    }
                });
            }
        });
    }

    #[test]
    fn incomplete_gate_ends_by_watchdog() {
        let gate = Gate::new(2);
        let error = gate.meet(&Watchdog::new(Duration::from_millis(1)), "rank 1").unwrap_err();
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
}
