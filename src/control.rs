//! Connection between a command and the program that calls it: result, warnings and interruption.

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

/// Connection to a running command: stops it and receives its result.
#[derive(Debug, Default)]
pub struct Control {
    interrupt: AtomicBool,
    answer: Mutex<CommandAnswer>,
}

impl Control {
    /// Stops the command: it ends with exit code 130 and writes no further file. Simulations and plans end within
    /// milliseconds, studies at the latest after their current run, and all other commands before they write their
    /// result.
    pub fn stop(&self) {
        self.interrupt.store(true, Ordering::Relaxed);
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
