//! Schedules in memory, with the operations of the command `schedule`.

use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use fabricast_sim::schedule::Schedule;

use super::{CommandAnswer, Control, KernelTarget, RequestError, ScheduleKernel, answer_of};
use crate::args::ScheduleFormat;
use crate::commands::{schedule, schedule_file};
use crate::failure::Failure;
use crate::output::Output;

/// Schedule that was read from a file or a text.
#[derive(Debug)]
pub struct ScheduleFile(Schedule);

/// Format of a schedule file.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleFileFormat(ScheduleFormat);

impl ScheduleFile {
    /// Reads a schedule file: fabricast's JSON, an MSCCL algorithm (XML) or an MSCCL++ plan (JSON).
    ///
    /// # Errors
    /// [`RequestError`] with line and column: the file cannot be read or is not a schedule.
    pub fn read(path: &Path) -> Result<Self, RequestError> {
        answer(schedule_file::read(path))
    }

    /// Parses the text of a schedule file. `name` names it in errors.
    ///
    /// # Errors
    /// [`RequestError`] with line and column: the text is not a schedule.
    pub fn parse(text: &str, name: &str) -> Result<Self, RequestError> {
        answer(schedule_file::parse(text, name))
    }

    /// Parses the name of a format: `json`, `msccl-xml` or `mscclpp`.
    ///
    /// # Errors
    /// [`RequestError`]: there is no such format.
    pub fn format(name: &str) -> Result<ScheduleFileFormat, RequestError> {
        ScheduleFormat::from_str(name, false).map(ScheduleFileFormat).map_err(|_| {
            let names = ScheduleFormat::value_variants().iter().filter_map(ValueEnum::to_possible_value);
            let names: Vec<String> = names.map(|value| value.get_name().to_owned()).collect();
            let message = format!("there is no format {name}: expected one of {}", names.join(", "));
            RequestError::new(&Failure::input(message), CommandAnswer::default())
        })
    }

    /// Proves that the schedule computes its collective without races and deadlocks, and returns the document of
    /// `schedule verify`. `fifo_depth`: maximum number of unread transfers per connection.
    ///
    /// # Errors
    /// [`RequestError`] with exit code 1 and the fault as its result: the schedule is wrong. With 2: it is too large.
    pub fn verify(&self, fifo_depth: Option<u32>, control: &Arc<Control>) -> Result<CommandAnswer, RequestError> {
        answer_of(control, || schedule::prove(&self.0, fifo_depth, &Output::for_caller(Arc::clone(control))))
    }

    /// Writes the schedule in a format, with a warning if the format lacks its protocol.
    ///
    /// # Errors
    /// [`RequestError`]: the format cannot express the schedule.
    pub fn write(&self, format: ScheduleFileFormat, control: &Arc<Control>) -> Result<CommandAnswer, RequestError> {
        answer_of(control, || schedule::write(&self.0, format.0, &Output::for_caller(Arc::clone(control))))
    }

    /// Generates the CUDA kernel of the schedule for one GPU per rank, in the message format of its protocol. The kernel
    /// runs on a shared arena.
    ///
    /// # Errors
    /// [`RequestError`]: the schedule fails verification, or kernels cannot run it.
    pub fn kernel(&self, target: &KernelTarget) -> Result<ScheduleKernel, RequestError> {
        ScheduleKernel::new(&self.0, target).map_err(|failure| RequestError::new(&failure, CommandAnswer::default()))
    }

    /// The schedule.
    #[must_use]
    pub fn schedule(&self) -> &Schedule {
        &self.0
    }
}

fn answer(schedule: Result<Schedule, Failure>) -> Result<ScheduleFile, RequestError> {
    schedule.map(ScheduleFile).map_err(|failure| RequestError::new(&failure, CommandAnswer::default()))
}
