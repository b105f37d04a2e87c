//! A host thread for each GPU, all doing the same part of some work, meeting where they must.

use std::sync::Arc;

use super::context::Context;
use super::error::CudaError;
use super::gate::Gate;
use super::watchdog::Watchdog;

/// One thread of a team.
#[derive(Debug)]
pub struct Member<'a> {
    /// Its number in the team: its rank.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// Its GPU; several members may share one.
    pub context: &'a Arc<Context>,
    /// How long anything may wait.
    pub watchdog: &'a Watchdog,
    place: Place<'a>,
}

/// Where members meet.
enum Place<'a> {
    /// Threads of one process.
    Gate(&'a Gate),
    /// Somewhere else, in the words of whoever knows.
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
    /// One of a team whose members are processes: `meet` returns when all of them have called theirs.
    pub fn apart(
        rank: usize,
        size: usize,
        context: &'a Arc<Context>,
        watchdog: &'a Watchdog,
        meet: &'a dyn Fn() -> Result<(), CudaError>,
    ) -> Self {
        Self { rank, size, context, watchdog, place: Place::Elsewhere(meet) }
    }

    /// Waits until all members are here. They leave within about a microsecond of each other where each has a core.
    ///
    /// # Errors
    /// Another member failed, the time is over, or Ctrl-C.
    pub fn meet(&self) -> Result<(), CudaError> {
        match self.place {
            Place::Gate(gate) => gate.meet(self.watchdog, &format!("rank {}", self.rank)),
            Place::Elsewhere(meet) => meet(),
        }
    }
}

/// Runs `work` in a thread for each of `contexts`, which is current there, and returns what each made, by rank. Where
/// one fails the others are let go at their next meeting, and the failure that began it is returned.
///
/// # Errors
/// The first failure that is not the consequence of another's, by rank.
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
        // A thread that panicked has failed; what it said stands on standard error.
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

/// Whether an error only says that another thread failed.
pub trait Consequence {
    /// Whether it does.
    fn is_consequence(&self) -> bool;
}

impl Consequence for CudaError {
    fn is_consequence(&self) -> bool {
        matches!(self, Self::Abandoned)
    }
}

/// Breaks the gate when a member ends without success, by an error or a panic.
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
    fn a_broken_gate_lets_everyone_go() {
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
    fn a_gate_opens_when_all_are_there_again_and_again() {
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
    fn a_gate_that_nobody_else_reaches_ends_by_the_watchdog() {
        let gate = Gate::new(2);
        let error = gate.meet(&Watchdog::new(Duration::from_millis(1)), "rank 1").unwrap_err();
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
}
