//! Reader of schedule files.

use std::path::Path;

use fabricast_sim::schedule::Schedule;
use fabricast_sim::schedule::format::{self, Format};
use fabricast_topologies::read::Limit;

use crate::failure::Failure;

/// Reads a schedule file of any supported format.
///
/// # Errors
/// [`Failure`]: the file cannot be read, and errors of [`parse`].
pub fn read(path: &Path) -> Result<Schedule, Failure> {
    let name = path.display().to_string();
    parse(&fabricast_topologies::read::read_text_file(path, Limit::SCHEDULE)?, &name)
}

/// Parses the text of a schedule file. `name` names it in errors.
///
/// # Errors
/// [`Failure`] with the line of the error: the text is not a valid schedule.
pub fn parse(text: &str, name: &str) -> Result<Schedule, Failure> {
    format::read(text, name).map_err(|error| {
        let failure = Failure::input_at(error.to_string(), None, Some(&error.location));
        if Format::detect(text) != Format::Json || text.contains("\"fabricast_schedule\"") {
            return failure;
        }
        failure.or_with_help(
            "a schedule file is JSON as `fabricast schedule generate` writes it, an MSCCL algorithm (XML) or an MSCCL++ \
             execution plan (JSON)",
        )
    })
}
