//! NCCL beside our own ways: by its own choice, of symmetric windows, and forced; communicators are made when they are first
//! needed, one for each case.

use std::cell::OnceCell;
use std::sync::Arc;

use fabricast_planner::algorithm::Algorithm;
use fabricast_planner::strategy::Strategy;
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::Bytes;
use fabricast_validate::cuda::Watchdog;
use fabricast_validate::execute::{Buffers, Choice, ExecuteError, Library, Stage};
use fabricast_validate::nccl::{Forced, Nccl};

use crate::args::{ExecutionArgs, ExecutorChoice};
use crate::output::Output;

/// NCCL and its communicators.
pub(super) struct Libraries {
    nccl: Arc<Nccl>,
    own: Option<Library>,
    windows: Option<(Buffers, Library)>,
    /// By what is forced, in the order in which they were first asked for.
    forced: Vec<(Strategy, OnceCell<Library>)>,
}

impl Libraries {
    /// What is asked for, as far as this machine has it; what it has not is a warning.
    pub(super) fn new(
        stage: &Stage,
        watchdog: &Watchdog,
        most: Bytes,
        args: &ExecutionArgs,
        strategies: impl Iterator<Item = Strategy>,
        output: &Output,
    ) -> Result<Option<Self>, ExecuteError> {
        // No choice of NCCL hangs on the protocol of a schedule.
        let wants = |choice| args.wants(choice, Protocol::Symmetric);
        let choices = [ExecutorChoice::Nccl, ExecutorChoice::NcclSymmetric, ExecutorChoice::NcclForced];
        if !choices.into_iter().any(wants) {
            return Ok(None);
        }
        let nccl = Nccl::open(args.nccl.as_deref())?;
        let mut all = Self { nccl, own: None, windows: None, forced: Vec::new() };
        if wants(ExecutorChoice::Nccl) {
            all.own = missing(Library::new(stage, &all.nccl, Choice::Own, watchdog), output)?;
        }
        if wants(ExecutorChoice::NcclSymmetric) {
            let made = Buffers::for_windows(stage, &all.nccl, most, args.offset).and_then(|buffers| {
                let library = Library::new(stage, &all.nccl, Choice::Windows(&buffers), watchdog)?;
                Ok((buffers, library))
            });
            all.windows = missing(made, output)?;
        }
        if wants(ExecutorChoice::NcclForced) {
            for strategy in strategies.filter(|one| forced(*one).is_some()) {
                if all.forced.iter().all(|(known, _)| !alike(*known, strategy)) {
                    all.forced.push((strategy, OnceCell::new()));
                }
            }
        }
        Ok(Some(all))
    }

    /// Its version.
    pub(super) fn version(&self) -> String {
        self.nccl.version().to_string()
    }

    /// NCCL by its own choice.
    pub(super) fn own(&self) -> Option<&Library> {
        self.own.as_ref()
    }

    /// NCCL with symmetric windows, and the memory in them.
    pub(super) fn windows(&self) -> Option<(&Buffers, &Library)> {
        self.windows.as_ref().map(|(buffers, library)| (buffers, library))
    }

    /// NCCL forced to a strategy; nothing for one that it has not.
    pub(super) fn forced(
        &self,
        strategy: Strategy,
        stage: &Stage,
        watchdog: &Watchdog,
    ) -> Result<Option<&Library>, ExecuteError> {
        let found = self.forced.iter().find(|(known, _)| alike(*known, strategy));
        let (Some((_, cell)), Some(forced)) = (found, forced(strategy)) else { return Ok(None) };
        if cell.get().is_none() {
            let made = Library::new(stage, &self.nccl, Choice::Forced(&forced), watchdog)?;
            let _ = cell.set(made);
        }
        Ok(cell.get())
    }
}

/// What this machine has not is told, not fatal.
fn missing<T>(made: Result<T, ExecuteError>, output: &Output) -> Result<Option<T>, ExecuteError> {
    match made {
        Ok(made) => Ok(Some(made)),
        Err(error @ ExecuteError::Unsupported { .. }) => {
            output.warn(&error.to_string());
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn alike(one: Strategy, other: Strategy) -> bool {
    (one.algorithm, one.protocol, one.channels) == (other.algorithm, other.protocol, other.channels)
}

/// A strategy in NCCL's words (`ncclAlgoStr`, `ncclProtoStr`, NCCL 2.28 src/graph/tuning.cc); nothing for what it has not, or
/// what takes multicast.
pub(super) fn forced(strategy: Strategy) -> Option<Forced> {
    let algorithm = match strategy.algorithm {
        Algorithm::Ring => "Ring",
        Algorithm::Tree => "Tree",
        Algorithm::Pat => "PAT",
        _ => return None,
    };
    let protocol = match strategy.protocol {
        Protocol::Ll => "LL",
        Protocol::Ll128 => "LL128",
        Protocol::Simple => "Simple",
        Protocol::Symmetric | Protocol::CopyEngine => return None,
    };
    Some(Forced {
        algorithm: Some(algorithm.to_owned()),
        protocol: Some(protocol.to_owned()),
        channels: Some(strategy.channels.into()),
    })
}
