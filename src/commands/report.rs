//! `report`: what other commands wrote, as one page to read and to pass on.

use fabricast_reports::page::{Input, InputError, report};

use crate::args::ReportArgs;
use crate::failure::Failure;
use crate::output::{Format, Output};

/// Bytes of an input at most: what `simulate --trace` writes at most, with room.
const MOST: u64 = 200_000_000;

pub fn run(args: &ReportArgs, output: &Output) -> Result<(), Failure> {
    if output.format != Format::Text {
        return Err(Failure::input_with_help("a report is a page of HTML", "leave --format out"));
    }
    let mut inputs = Vec::with_capacity(args.inputs.len());
    for path in &args.inputs {
        let text = fabricast_topologies::read::text_up_to(path, MOST)?;
        let name = path.display().to_string();
        let input = Input::read(&text, &name).map_err(refused)?;
        inputs.push((name, input));
    }
    output.write(&report(&inputs).map_err(refused)?.html())
}

fn refused(error: InputError) -> Failure {
    match error {
        InputError::Fabric(error) => error.into(),
        other => match other.help() {
            Some(help) => Failure::input_with_help(other.to_string(), help.to_owned()),
            None => Failure::input(other.to_string()),
        },
    }
}
