//! Connection between a command and the program that calls it: result, warnings, progress and interruption.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use fabricast_topologies::visible::visible_lines;

/// Result of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandAnswer {
    /// Text that the command prints with `--format json`: a JSON document, or a file in another format if the command
    /// writes one. `None` if the command writes only the files of `output`.
    pub result: Option<String>,
    /// Warnings, in the order in which the command reported them.
    pub warnings: Vec<String>,
}

/// Progress of a command in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Number of steps done.
    pub done: u64,
    /// Total number of steps; 0 if unknown.
    pub total: u64,
}

/// Progress of a command, as its caller receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandProgress {
    /// Activity of the command, for example `planning`. A command may have several, in sequence.
    pub label: String,
    /// Progress of the activity.
    pub position: Position,
}

/// Connection to a running command: stops it, and receives its progress and result.
#[derive(Debug, Default)]
pub struct Control {
    interrupt: AtomicBool,
    is_progress_requested: AtomicBool,
    progress: Mutex<Option<CommandProgress>>,
    answer: Mutex<CommandAnswer>,
}

impl Control {
    /// Stops the command: it ends with exit code 130 and writes no further file. Simulations and plans end within
    /// milliseconds, studies at the latest after their current run, comparisons after their current measurement or group,
    /// calibrations after the current step of their fit, and all other commands before they write their result.
    pub fn stop(&self) {
        self.interrupt.store(true, Ordering::Relaxed);
    }

    /// Requests the progress of commands, which [`Self::progress`] then returns. The result does not depend on it.
    pub fn request_progress(&self) {
        self.is_progress_requested.store(true, Ordering::Relaxed);
    }

    /// Returns the progress of the command, at most a tenth of a second old; `None` if it was not requested or the command
    /// has not begun its work. After the command, it is the progress at its end.
    pub fn progress(&self) -> Option<CommandProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if the caller requested progress.
    pub(crate) fn is_progress_requested(&self) -> bool {
        self.is_progress_requested.load(Ordering::Relaxed)
    }

    pub(crate) fn set_progress(&self, progress: CommandProgress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }

    /// Flag that [`Self::stop`] sets.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.interrupt
    }

    pub(crate) fn set_result(&self, text: &str) {
        self.with_answer(|answer| answer.result = Some(text.to_owned()));
    }

    pub(crate) fn add_warning(&self, message: &str) {
        self.with_answer(|answer| answer.warnings.push(visible_lines(message).into_owned()));
    }

    /// Changes the result and the warnings received so far.
    pub(crate) fn with_answer<T>(&self, change: impl FnOnce(&mut CommandAnswer) -> T) -> T {
        change(&mut self.answer.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
