//! NCCL as a reference: with its default choice, with buffers in symmetric windows, and forced to a strategy. Each of
//! these has a set of communicators, created on first use.

use std::cell::OnceCell;
use std::sync::Arc;

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::strategy::Strategy;
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::Bytes;
use fabricast_validate::cuda::Watchdog;
use fabricast_validate::execute::{Buffers, ExecuteError, NcclChoice, NcclCommunicators, Testbed};
use fabricast_validate::nccl::{ForcedChoice, Nccl};

use crate::args::{ExecutionArgs, ExecutorChoice};
use crate::output::Output;

/// NCCL and its communicators.
pub(super) struct Libraries {
    nccl: Arc<Nccl>,
    default_choice: Option<NcclCommunicators>,
    windows: Option<(Buffers, NcclCommunicators)>,
    /// Forced communicators by strategy, in order of first request.
    forced: Vec<(Strategy, OnceCell<NcclCommunicators>)>,
}

impl Libraries {
    /// Creates the requested communicators that this machine supports; warns of the others.
    pub(super) fn new(
        testbed: &Testbed,
        watchdog: &Watchdog,
        max_bytes: Bytes,
        args: &ExecutionArgs,
        strategies: impl Iterator<Item = Strategy>,
        output: &Output,
    ) -> Result<Option<Self>, ExecuteError> {
        // NCCL's default choice does not depend on the protocol of a schedule, so any protocol can be passed here.
        let wants = |choice| args.wants(choice, Protocol::Symmetric);
        let choices = [ExecutorChoice::Nccl, ExecutorChoice::NcclSymmetric, ExecutorChoice::NcclForced];
        if !choices.into_iter().any(wants) {
            return Ok(None);
        }
        let nccl = Nccl::open(args.nccl.as_deref())?;
        let mut libraries = Self { nccl, default_choice: None, windows: None, forced: Vec::new() };
        if wants(ExecutorChoice::Nccl) {
            libraries.default_choice = warn_if_unsupported(
                NcclCommunicators::new(testbed, &libraries.nccl, NcclChoice::Own, watchdog),
                output,
            )?;
        }
        if wants(ExecutorChoice::NcclSymmetric) {
            let windows = Buffers::for_windows(testbed, &libraries.nccl, max_bytes, args.offset).and_then(|buffers| {
                let library =
                    NcclCommunicators::new(testbed, &libraries.nccl, NcclChoice::Windows(&buffers), watchdog)?;
                Ok((buffers, library))
            });
            libraries.windows = warn_if_unsupported(windows, output)?;
        }
        if wants(ExecutorChoice::NcclForced) {
            for strategy in strategies.filter(|strategy| forced(*strategy).is_some()) {
                if libraries.forced.iter().all(|(known, _)| !is_same_choice(*known, strategy)) {
                    libraries.forced.push((strategy, OnceCell::new()));
                }
            }
        }
        Ok(Some(libraries))
    }

    /// Version of NCCL.
    pub(super) fn version(&self) -> String {
        self.nccl.version().to_string()
    }

    /// Communicators in which NCCL chooses the strategy itself; `None` if they are not requested or not supported.
    pub(super) fn default_choice(&self) -> Option<&NcclCommunicators> {
        self.default_choice.as_ref()
    }

    /// Communicators with symmetric windows, and their memory; `None` if they are not requested or not supported.
    pub(super) fn windows(&self) -> Option<(&Buffers, &NcclCommunicators)> {
        self.windows.as_ref().map(|(buffers, library)| (buffers, library))
    }

    /// Communicators forced to a strategy, created on first use; `None` if NCCL does not have it or none are requested.
    pub(super) fn forced(
        &self,
        strategy: Strategy,
        testbed: &Testbed,
        watchdog: &Watchdog,
    ) -> Result<Option<&NcclCommunicators>, ExecuteError> {
        let entry = self.forced.iter().find(|(known, _)| is_same_choice(*known, strategy));
        let (Some((_, cell)), Some(forced)) = (entry, forced(strategy)) else { return Ok(None) };
        if cell.get().is_none() {
            let library = NcclCommunicators::new(testbed, &self.nccl, NcclChoice::Forced(&forced), watchdog)?;
            let _ = cell.set(library);
        }
        Ok(cell.get())
    }
}

/// Returns `None` and warns if the operation is not supported on this machine.
fn warn_if_unsupported<T>(result: Result<T, ExecuteError>, output: &Output) -> Result<Option<T>, ExecuteError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ ExecuteError::Unsupported { .. }) => {
            output.warn(&error.to_string());
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn is_same_choice(one: Strategy, other: Strategy) -> bool {
    (one.algorithm, one.protocol, one.channels) == (other.algorithm, other.protocol, other.channels)
}

/// Names of a strategy in NCCL (`ncclAlgoStr`, `ncclProtoStr`, NCCL 2.28 src/graph/tuning.cc). `None` if NCCL lacks the
/// strategy, or if it needs multicast.
pub(super) fn forced(strategy: Strategy) -> Option<ForcedChoice> {
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
    Some(ForcedChoice {
        algorithm: Some(algorithm.to_owned()),
        protocol: Some(protocol.to_owned()),
        channels: Some(strategy.channels.into()),
    })
}
